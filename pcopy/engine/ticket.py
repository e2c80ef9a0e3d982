"""Interfaces of a running task: the outcome that it returns, and the tickets (operations in progress) that it may wait
for.

docs/design/engine.md lists the rules for a task that waits. Each rule has a test in ``tests/engine/test_tickets.py``.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Sequence
from typing import Protocol, TypeVar

from pcopy.engine.task import NewTask, TaskId, TaskShares
from pcopy.fast_named_tuple import NamedTuple

Result = TypeVar("Result")


class OperationTicket(Protocol):
    """Protocol: an operation in progress, such as a batch of system calls, which other threads or the kernel complete.
    A task that yields the ticket is resumed once the operation is done.
    """

    @property
    def is_done(self) -> bool:
        """True if no part of the operation is in progress any longer: each part has ended or was cancelled. Never
        blocks.
        """

    def cancel(self) -> None:
        """Cancel the parts of the operation that have not begun.

        ``is_done`` becomes True when all parts that had begun have ended.
        """


class WakeDescriptor(Protocol):
    """Protocol: a file descriptor that wakes a sleeping rank when an operation that a task waits for (a ticket) is
    done.
    """

    def fileno(self) -> int:
        """Return a descriptor that is readable from the time when an operation (ticket) is done until ``clear`` is
        called.
        """

    def clear(self) -> None:
        """Make the descriptor unreadable again. Never blocks. The caller then checks which operations (tickets) are
        done.
        """


class TaskOutcome(NamedTuple):
    """Result of a task that has ended: the tasks that it spawned and its counts.

    *Deferred completion*: if the only effect of a task is in this rank's memory, the journal does not record the task
    as done yet. The journal does so when a later task, which has used that effect, is done and names the first task in
    ``also_done``. Until then a resumed job runs the first task again. A task with deferred completion may spawn tasks
    for its own rank only.
    """

    spawned: Iterable[NewTask] = ()
    """Descriptions of the new tasks that the task has spawned."""
    counts: Sequence[int] = ()
    """Number to add to each counter, by the counter's index."""
    also_done: Sequence[TaskId] = ()
    """Ids of earlier tasks with deferred completion whose effect this task has used. They are recorded as done together
    with this task.
    """
    is_deferred: bool = False
    """True if the journal must not record this task as done yet, because its only effect is in this rank's memory. A
    later task that has used the effect names it in ``also_done``.
    """
    shares: TaskShares = ()
    """Parts of ``counts``, each under a label. If a resumed job repeats the work of a label, it subtracts the counts
    recorded under that label.
    """


TicketGenerator = Generator[OperationTicket | None, None, Result]
"""Generator that does work in slices of some milliseconds. It yields None when the rank may handle messages, or a
``OperationTicket``, an operation in progress; then it is resumed only when that operation is done.
"""

TaskGenerator = TicketGenerator[TaskOutcome]
"""Generator that runs one task and returns its outcome.

If the job is stopped, the driver closes the generator at one of its yields. That must not leave an operation half done.
"""
