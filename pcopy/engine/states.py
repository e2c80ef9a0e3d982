"""States of a rank during a job, and the allowed transitions between them."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import TypeVar

from pcopy.errors import InvariantBroken

S = TypeVar("S", bound=Enum)

TransitionTable = Mapping[S, frozenset[S]]
"""Transition table: maps each state to the states that may follow it."""


def checked_transition(table: TransitionTable[S], state: S, following: S, rank: int) -> S:
    """Return ``following`` if it may follow ``state`` according to ``table``; raise ``InvariantBroken`` otherwise."""
    if following not in table[state]:
        raise InvariantBroken(f"rank {rank} can't go from {state.value} to {following.value}")
    return following


class State(Enum):
    """State of a rank during a job.

    States:
    - WAITING: no phase has begun on this rank.
    - WORKING: a phase is running.
    - STOPPING: the last phase is over; child ranks or the reply to a request are still awaited.
    - BARRIER: this rank's subtree is ready to close; the message Close is awaited.
    - CLOSED: all ranks have ended the job in order.
    - ABORTED: a rank has failed.
    """

    WAITING = "waiting"
    WORKING = "working"
    STOPPING = "stopping"
    BARRIER = "barrier"
    CLOSED = "closed"
    ABORTED = "aborted"


TRANSITIONS: TransitionTable[State] = {
    State.WAITING: frozenset({State.WORKING, State.ABORTED}),
    State.WORKING: frozenset({State.STOPPING, State.ABORTED}),
    State.STOPPING: frozenset({State.BARRIER, State.ABORTED}),
    State.BARRIER: frozenset({State.CLOSED, State.ABORTED}),
    State.CLOSED: frozenset(),
    State.ABORTED: frozenset(),
}
"""Allowed transitions of a rank's state."""

FINAL_STATES = (State.CLOSED, State.ABORTED)
"""States in which a rank no longer takes part in the job."""
