"""The tasks that a rank has begun and not ended: those that can run, and those that wait for a ticket."""

from __future__ import annotations

from pcopy.engine.task import ANYBODY, Task
from pcopy.errors import InvariantBroken


class UnderWay:
    """The tasks of one rank that have begun and not ended, at most ``slots`` of them."""

    def __init__(self, rank: int, slots: int) -> None:
        self._rank = rank
        self.slots = slots
        """Maximum number of tasks under way."""
        self._running: list[Task] = []
        self._waiting: list[Task] = []
        self._fresh: list[Task] = []  # tasks for any rank that were begun since tasks were received
        self.has_room = slots > 0
        """True if a task may be begun: a slot is free and no task that is under way can run."""
        self.is_untouched = False
        """True if tasks were received and since then no newly begun task that any rank may run has run for a slice.

        This rank gives no tasks away then, so that tasks do not travel in circles.
        """
        # Counts of tasks: ended on this rank, received from other ranks, given to other ranks.
        self.ended = self.taken = self.given = 0

    def __len__(self) -> int:
        return len(self._running) + len(self._waiting)

    @property
    def only_waits(self) -> bool:
        """True if no task can run.

        A note may be begun then without a free slot, because notes never wait for a ticket.
        """
        return not self._running

    def allow(self, slots: int) -> None:
        """Set the maximum number of tasks under way. Tasks that have begun continue."""
        self.slots = slots
        self.has_room = not self._running and len(self._waiting) < slots

    def begin(self, task: Task) -> None:
        """Add ``task``, which can run."""
        self._running.append(task)
        self.has_room = False
        if self.is_untouched and task.owner == ANYBODY:
            self._fresh.append(task)

    def suspend(self, task: Task) -> None:
        """Mark ``task`` as waiting for a ticket."""
        self._leave(task)
        self._waiting.append(task)
        self.has_room = not self._running and len(self._waiting) < self.slots

    def resume(self, task: Task) -> None:
        """Mark ``task``, which waited for a ticket, as able to run."""
        self._waiting.remove(task)
        self._running.append(task)
        self.has_room = False

    def sliced(self, task: Task) -> None:
        """Record that ``task`` has run for a slice."""
        if self.is_untouched and task in self._fresh:
            self.is_untouched = False

    def end(self, task: Task) -> None:
        """Remove ``task``, which has ended. Raise ``InvariantBroken`` if it is not under way, or waits for a ticket."""
        self._leave(task)
        self.ended += 1

    def _leave(self, task: Task) -> None:
        """Remove ``task`` from the tasks that can run. Raise ``InvariantBroken`` if it is not one of them."""
        if self.is_untouched:
            self.sliced(task)
        try:
            self._running.remove(task)
        except ValueError:
            what = "waits for a ticket" if task in self._waiting else "has not been begun"
            raise InvariantBroken(f"rank {self._rank} ends the task {task.id}, which {what}") from None
        self.has_room = not self._running and len(self._waiting) < self.slots

    def received(self, number: int) -> None:
        """Record that ``number`` tasks have arrived from another rank. Tasks begun before are not among them."""
        self.taken += number
        self.is_untouched = True
        self._fresh.clear()
