"""Where a rank is in the life of a job, and what may follow what."""

from __future__ import annotations

from enum import Enum

from pcopy.engine.transitions import Table


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
