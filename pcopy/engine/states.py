"""The states of a rank in the life of a job, and which state may follow which."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import TypeVar

from pcopy.errors import InvariantBroken

S = TypeVar("S", bound=Enum)

Table = Mapping[S, frozenset[S]]
"""For each state those that may follow it."""


def follow(table: Table[S], state: S, following: S, rank: int) -> S:
    """``following``, if it may follow ``state``; raises ``InvariantBroken``."""
    if following not in table[state]:
        raise InvariantBroken(f"rank {rank} can't go from {state.value} to {following.value}")
    return following


class State(Enum):
    """Where a rank is in the life of a job."""

    WAITING = "waiting"
    WORKING = "working"
    STOPPING = "stopping"
    BARRIER = "barrier"
    CLOSED = "closed"
    ABORTED = "aborted"


TRANSITIONS: Table[State] = {
    State.WAITING: frozenset({State.WORKING, State.ABORTED}),
    State.WORKING: frozenset({State.STOPPING, State.ABORTED}),
    State.STOPPING: frozenset({State.BARRIER, State.ABORTED}),
    State.BARRIER: frozenset({State.CLOSED, State.ABORTED}),
    State.CLOSED: frozenset(),
    State.ABORTED: frozenset(),
}

FINAL = (State.CLOSED, State.ABORTED)
"""In which a rank no longer takes part."""
