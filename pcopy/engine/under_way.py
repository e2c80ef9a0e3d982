"""The tasks that a rank has begun and not ended: those that can run, and those that wait for a ticket."""

from __future__ import annotations

from pcopy.engine.task import ANYBODY, Task
from pcopy.errors import InvariantBroken


class UnderWay:
    """The tasks of one rank, up to ``slots`` of them."""

    def __init__(self, rank: int, slots: int) -> None:
        self._rank = rank
        self.slots = slots
        self._running: list[Task] = []
        self._waiting: list[Task] = []
        self._fresh: list[Task] = []  # begun since tasks were received, and open to all
        self.has_room = slots > 0
        """May any task be begun?"""
        self.is_untouched = False
        """Have tasks been received since which nothing that others could run has run a slice?"""
        self.ended = self.taken = self.given = 0
        """How many tasks have ended here, were taken from other ranks, and were given to them."""

    def __len__(self) -> int:
        return len(self._running) + len(self._waiting)

    @property
    def only_waits(self) -> bool:
        """Can no task run? Then a note may be begun, which needs no slot: it never waits."""
        return not self._running

    def allow(self, slots: int) -> None:
        """From now on there may be so many; those that have been begun stay."""
        self.slots = slots
        self.has_room = not self._running and len(self._waiting) < slots

    def begin(self, task: Task) -> None:
        self._running.append(task)
        self.has_room = False
        if self.is_untouched and task.owner == ANYBODY:
            self._fresh.append(task)

    def suspend(self, task: Task) -> None:
        self._leave(task)
        self._waiting.append(task)
        self.has_room = not self._running and len(self._waiting) < self.slots

    def resume(self, task: Task) -> None:
        self._waiting.remove(task)
        self._running.append(task)
        self.has_room = False

    def sliced(self, task: Task) -> None:
        if self.is_untouched and task in self._fresh:
            self.is_untouched = False

    def end(self, task: Task) -> None:
        """``task`` is over. Raises ``InvariantBroken`` if it is not under way, or waits for a ticket."""
        self._leave(task)
        self.ended += 1

    def _leave(self, task: Task) -> None:
        if self.is_untouched:
            self.sliced(task)
        try:
            self._running.remove(task)
        except ValueError:
            what = "waits for a ticket" if task in self._waiting else "has not been begun"
            raise InvariantBroken(f"rank {self._rank} ends the task {task.id}, which {what}") from None
        self.has_room = not self._running and len(self._waiting) < self.slots

    def received(self, number: int) -> None:
        """So many tasks have come from another rank; what has been begun before them is none of them."""
        self.taken += number
        self.is_untouched = True
        self._fresh.clear()
