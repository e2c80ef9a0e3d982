"""What the engine tells a journal, and the epochs that make its records one consistent cut.

There are two facts: a task was spawned; a task is done. The rank that learns a fact tells it, in its epoch. A rank that
has raised its epoch tells each other rank so before it sends anything else there; who hears of a higher epoch cuts
before it takes the message behind that marker. Why the facts of all epochs up to one fit together:
docs/design/engine.md.

If a rank can't record any more, no later cut is complete. But the phases go on, so the records would soon be of a time
before them. So that rank enters the last epoch, and the marker of that makes all others give up, too.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from typing import Protocol

from pcopy.engine.messages import LAST_EPOCH, Epoch, Message
from pcopy.engine.task import Share, Task, TaskId

FIRST = 1
"""The epoch in which a run begins."""

LOST = -1
"""The durable epoch of a rank whose data did not get to storage, or that can't record them: no later one will be."""


class Journal(Protocol):
    """Keeps one rank's facts."""

    durable: int
    """The last epoch all of whose facts are on stable storage; 0 before the first."""

    @property
    def is_lost(self) -> bool:
        """Could data not be brought to storage? Then no later epoch will be durable."""

    @property
    def has_failed(self) -> bool:
        """Can nothing be recorded any more, though no data are lost? Then all ranks are to give up."""

    @property
    def wants_cut(self) -> bool:
        """Are there so many facts that they should be cut now?"""

    @property
    def is_full(self) -> bool:
        """Are there so many that no task should be begun before some are on storage?"""

    def base(self, phase: int, tasks: Sequence[Task]) -> None:
        """At the root: what a new job begins with."""

    def spawned(self, task: Task) -> None:
        """A task was described."""

    def done(self, task: Task, counts: Sequence[int], settled: Sequence[TaskId], shares: Sequence[Share] = ()) -> None:
        """A task is done and has counted; so are the ``settled``, held until then. What it spawned was told before.

        ``shares`` are parts of what it has counted, by their labels.
        """

    def cut(self, epoch: int, phase: int) -> None:
        """All facts since the last cut are of ``epoch``; ``phase`` is the one that this rank is in."""

    def give_up(self) -> None:
        """Nothing is kept any more. ``durable`` is ``LAST_EPOCH`` once nothing is on record that could be resumed."""


class Epochs:
    """One rank's epoch. Without a journal it never changes."""

    def __init__(self, journal: Journal | None) -> None:
        self.journal = journal
        self.number = FIRST
        self.is_ending = False
        """Is the job told to stop? Then no phase begins any more, and what is on record holds."""

    @property
    def begun(self) -> bool:
        return self.number > FIRST

    @property
    def durable(self) -> int:
        """This rank's last durable epoch, or ``LOST``."""
        if self.journal is None:
            return 0
        is_over = self.journal.has_failed and self.is_ending and not self.given_up
        return LOST if self.journal.is_lost or is_over else self.journal.durable

    @property
    def given_up(self) -> bool:
        """Is the job not kept any more, as far as this rank knows?"""
        return self.number == LAST_EPOCH

    @property
    def has_failed(self) -> bool:
        """Must the job not be kept any more, since this rank can't record what will be done?"""
        return self.journal is not None and self.journal.has_failed and not self.is_ending

    def done(
        self, task: Task, counts: Sequence[int] = (), settled: Sequence[TaskId] = (), shares: Sequence[Share] = ()
    ) -> None:
        """Tells the journal, if there is one."""
        if self.journal:
            self.journal.done(task, counts, settled, shares)

    def enter(self, number: int, phase: int) -> None:
        """Cuts what is older than the epoch ``number``; each epoch is cut, be it empty. In the last one nothing is."""
        if self.given_up:
            return
        if self.journal and number == LAST_EPOCH:
            self.number = LAST_EPOCH
            self.journal.give_up()
        while self.journal and self.number < number:
            self.journal.cut(self.number, phase)
            self.number += 1

    def advance(self, phase: int) -> None:
        """Enters the next epoch, or the last one if nothing can be recorded any more."""
        self.enter(LAST_EPOCH if self.has_failed else self.number + 1, phase)


class Outbox(deque[tuple[int, Message]]):
    """What one rank sends, each message with its destination."""

    def __init__(self, epochs: Epochs) -> None:
        super().__init__()
        self._epochs = epochs
        self._told: dict[int, int] = {}
        """The last epoch that each rank knows of."""

    def send(self, destination: int, message: Message) -> None:
        """Behind the marker of a new epoch, if ``destination`` does not know of it."""
        epoch = self._epochs.number
        if self._told.get(destination, FIRST) != epoch:
            self._told[destination] = epoch
            self.append((destination, Epoch(epoch)))
        self.append((destination, message))

    def send_all(self, messages: Iterable[tuple[int, Message]]) -> None:
        for destination, message in messages:
            self.send(destination, message)
