"""Interfaces of a running task: the outcome that it returns, and the tickets that it may wait for.

docs/design/engine.md lists the rules for a task that waits. Each rule has a test in ``tests/engine/test_tickets.py``.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Sequence
from typing import Protocol, TypeVar

from pcopy.engine.task import LabelledCounts, NewTask, TaskId
from pcopy.fast_named_tuple import NamedTuple

Result = TypeVar("Result")


class Ticket(Protocol):
    """Receipt for an operation that was started and is completed without the calling thread, such as a batch of system
    calls.
    """

    @property
    def is_done(self) -> bool:
        """True if no part of the operation is in progress any longer. Cheap; never blocks."""

    def cancel(self) -> None:
        """Cancel the parts of the operation that have not begun.

        The ticket becomes done when all parts that had begun have ended.
        """


class WakeDescriptor(Protocol):
    """File descriptor that wakes a sleeping rank when one of its tickets becomes done."""

    def fileno(self) -> int:
        """Return a descriptor that is readable from the time when a ticket becomes done until ``clear`` is called."""

    def clear(self) -> None:
        """Make the descriptor unreadable again. Never blocks. The caller then checks all tickets."""


class Outcome(NamedTuple):
    """Result of a task that has ended: the tasks that it spawned and its counts.

    *Deferred completion*: if the only effect of a task is in this rank's memory, the journal does not record it as done
    yet. It does so when a later task, which has used that effect, is done and names the first one. Until then a resumed
    job runs the first task again. A task with deferred completion may spawn tasks for its own rank only.
    """

    spawned: Iterable[NewTask] = ()
    """Descriptions of the new tasks."""
    counts: Sequence[int] = ()
    """Number to add to each counter, by the counter's index."""
    also_done: Sequence[TaskId] = ()
    """Ids of tasks with deferred completion that are recorded as done together with this task."""
    is_deferred: bool = False
    """True if the completion of this task is deferred."""
    shares: Sequence[LabelledCounts] = ()
    """Parts of ``counts`` by label, so that a resumed job can subtract the counts of a label."""


TicketGenerator = Generator[Ticket | None, None, Result]
"""Generator that yields None at the end of a slice of work, or a ticket; it is resumed once that ticket is done."""

TaskGenerator = TicketGenerator[Outcome]
"""Generator that runs one task and returns its outcome.

Closing the generator between two slices must not leave an operation half done.
"""
