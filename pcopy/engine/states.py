"""States of a rank during a job, and the allowed transitions between them."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import TypeVar

from pcopy.errors import InvariantBroken

S = TypeVar("S", bound=Enum)

TransitionTable = Mapping[S, frozenset[S]]
"""For each state of a state machine, the states that may follow it."""


def checked_next_state(table: TransitionTable[S], state: S, following: S, rank: int) -> S:
    """Return ``following``, the new state, if ``table`` allows it after ``state``; otherwise raise ``InvariantBroken``.
    ``rank`` is named in the error.
    """
    if following not in table[state]:
        raise InvariantBroken(f"rank {rank} can't go from {state.value} to {following.value}")
    return following


class RankState(Enum):
    """State of a rank during a job.

    States:
    - WAITING: no phase has begun on this rank.
    - WORKING: a phase is running.
    - STOPPING: the last phase is over; this rank still waits until its child ranks are ready, or for the reply to its
      request for tasks.
    - BARRIER: this rank and all ranks below it are ready to close; this rank waits for the message
      ``CloseTransportMessage``, which says that all ranks are.
    - CLOSED: final state: all ranks are ready, and no message is in transit.
    - ABORTED: final state: this rank or another one has failed.
    """

    WAITING = "waiting"
    WORKING = "working"
    STOPPING = "stopping"
    BARRIER = "barrier"
    CLOSED = "closed"
    ABORTED = "aborted"


RANK_STATE_TRANSITIONS: TransitionTable[RankState] = {
    RankState.WAITING: frozenset({RankState.WORKING, RankState.ABORTED}),
    RankState.WORKING: frozenset({RankState.STOPPING, RankState.ABORTED}),
    RankState.STOPPING: frozenset({RankState.BARRIER, RankState.ABORTED}),
    RankState.BARRIER: frozenset({RankState.CLOSED, RankState.ABORTED}),
    RankState.CLOSED: frozenset(),
    RankState.ABORTED: frozenset(),
}
"""For each state of a rank, the states that may follow it."""

FINAL_RANK_STATES = (RankState.CLOSED, RankState.ABORTED)
"""States in which a rank no longer takes part in the job."""
