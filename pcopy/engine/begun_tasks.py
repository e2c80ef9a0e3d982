"""The tasks that a rank has begun and not ended: those that can run, and those that wait for a ticket (an operation in
progress).
"""

from __future__ import annotations

from pcopy.engine.task import ANY_RANK, Task
from pcopy.errors import InvariantBroken


class BegunTasks:
    """The tasks that one rank has begun and not ended: those that can run, and those that wait for an operation in
    progress (a ticket). At most ``slots`` tasks are begun.
    """

    def __init__(self, rank: int, slots: int) -> None:
        self._rank = rank
        self.slots = slots
        """Maximum number of tasks that are under way, that is, begun and not ended."""
        self._runnable: list[Task] = []
        self._waiting: list[Task] = []
        self._begun_since_received: list[Task] = []  # tasks for any rank that were begun since tasks were received
        self.has_room = slots > 0
        """True if a task may be begun: fewer than ``slots`` tasks have begun and not ended, and all of these wait for
        an operation in progress (a ticket).
        """
        self.has_untried_received_tasks = False
        """True after tasks were received from another rank, until this rank has begun a task that any rank may run and
        has run it up to its first yield or its end.

        While this is True the rank gives no tasks away, so that tasks do not travel in circles.
        """
        # Counts of tasks: ended on this rank, received from other ranks, given to other ranks.
        self.ended_count = self.received_count = self.given_count = 0

    def __len__(self) -> int:
        return len(self._runnable) + len(self._waiting)

    @property
    def has_no_runnable_task(self) -> bool:
        """True if no begun task can run: there is none, or all of them wait for an operation in progress (a ticket).

        A note (a short task that brings data to this rank) may be begun then even without a free slot, because notes
        never wait for a ticket.
        """
        return not self._runnable

    def set_max_begun_tasks(self, slots: int) -> None:
        """Set the maximum number of tasks that may have begun and not ended. Tasks that have begun continue, even if
        they are more than ``slots``.
        """
        self.slots = slots
        self.has_room = not self._runnable and len(self._waiting) < slots

    def begin_task(self, task: Task) -> None:
        """Add ``task``, which begins now and can run."""
        self._runnable.append(task)
        self.has_room = False
        if self.has_untried_received_tasks and task.owner == ANY_RANK:
            self._begun_since_received.append(task)

    def suspend_task(self, task: Task) -> None:
        """Mark ``task`` as waiting for an operation in progress (a ticket)."""
        self._remove_runnable(task)
        self._waiting.append(task)
        self.has_room = not self._runnable and len(self._waiting) < self.slots

    def resume_task(self, task: Task) -> None:
        """Mark ``task``, which waited for an operation in progress (a ticket), as able to run."""
        self._waiting.remove(task)
        self._runnable.append(task)
        self.has_room = False

    def record_executed_task_slice(self, task: Task) -> None:
        """Record that ``task`` has run up to a yield or its end. If it was begun after tasks arrived from another rank,
        ``has_untried_received_tasks`` becomes False.
        """
        if self.has_untried_received_tasks and task in self._begun_since_received:
            self.has_untried_received_tasks = False

    def end_task(self, task: Task) -> None:
        """Remove ``task``, which has ended. Raise ``InvariantBroken`` if it was not begun, or waits for a ticket."""
        self._remove_runnable(task)
        self.ended_count += 1

    def _remove_runnable(self, task: Task) -> None:
        """Remove ``task`` from the tasks that can run. Raise ``InvariantBroken`` if it is not one of them."""
        if self.has_untried_received_tasks:
            self.record_executed_task_slice(task)
        try:
            self._runnable.remove(task)
        except ValueError:
            what = "waits for a ticket" if task in self._waiting else "has not been begun"
            raise InvariantBroken(f"rank {self._rank} ends the task {task.id}, which {what}") from None
        self.has_room = not self._runnable and len(self._waiting) < self.slots

    def record_received_tasks(self, number: int) -> None:
        """Record that ``number`` tasks have arrived from another rank. ``has_untried_received_tasks`` becomes True
        until a task that begins later has run.
        """
        self.received_count += number
        self.has_untried_received_tasks = True
        self._begun_since_received.clear()
