"""Interface to the journal that records the engine's facts, and the epochs that make the records of all ranks
consistent.

There are two kinds of facts: "task spawned" and "task done". The rank on which a fact occurs records it in its current
epoch. A rank that has entered a higher epoch sends a marker, with the number of that epoch, to each other rank before
any other message to that rank. A rank that receives a marker of a higher epoch cuts: it ends its own epoch before it
processes the message that follows the marker. docs/design/engine.md explains why the facts of all epochs up to a given
one are then consistent.

If a rank cannot record facts any longer, no later cut is complete. The phases continue, so the existing records would
soon describe a state that later phases have changed. That rank therefore enters ``LAST_EPOCH``; its marker makes all
other ranks abandon their records, too.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from typing import Protocol

from pcopy.engine.messages import LAST_EPOCH, Epoch, Message
from pcopy.engine.task import Share, Task, TaskId

FIRST = 1
"""Number of the epoch in which a run begins."""

LOST = -1
"""Value of a rank's durable epoch if no later epoch can become durable.

The data that the rank wrote could not be brought to stable storage, or its facts cannot be recorded.
"""


class Journal(Protocol):
    """Recorder of one rank's facts."""

    durable: int
    """Last epoch whose facts are all on stable storage; 0 before the first one."""

    @property
    def is_lost(self) -> bool:
        """True if written data could not be brought to stable storage. No later epoch will be durable then."""

    @property
    def has_failed(self) -> bool:
        """True if facts cannot be recorded any longer although no data were lost. All ranks must abandon their records
        then.
        """

    @property
    def wants_cut(self) -> bool:
        """True if so many facts have been gathered that they should be cut now."""

    @property
    def is_full(self) -> bool:
        """True if so many facts are not yet on storage that no further task should be begun."""

    def base(self, phase: int, tasks: Sequence[Task]) -> None:
        """On rank 0: record the tasks with which a new job begins."""

    def spawned(self, task: Task) -> None:
        """Record that ``task`` was spawned."""

    def done(self, task: Task, counts: Sequence[int], settled: Sequence[TaskId], shares: Sequence[Share] = ()) -> None:
        """Record that ``task`` is done, with its counts.

        Args:
            settled: ids of tasks with deferred completion (see ``Outcome``) that are done at the same moment.
            shares: parts of ``counts``, by label.

        The tasks that ``task`` spawned have been recorded before.
        """

    def cut(self, epoch: int, phase: int) -> None:
        """End ``epoch``: its record consists of all facts since the last cut. ``phase`` is the current phase of this
        rank.
        """

    def give_up(self) -> None:
        """Stop recording. The durable epoch becomes ``LAST_EPOCH`` once no records remain from which the job could be
        resumed.
        """


class Epochs:
    """The epoch of one rank. Without a journal it never changes."""

    def __init__(self, journal: Journal | None) -> None:
        self.journal = journal
        self.number = FIRST
        self.is_ending = False
        """True if the job is being stopped. No further phase begins then, so the existing records remain valid."""

    @property
    def begun(self) -> bool:
        """True if there has been a cut in this run."""
        return self.number > FIRST

    @property
    def durable(self) -> int:
        """Last durable epoch of this rank; 0 without a journal, -1 if no later epoch can become durable."""
        if self.journal is None:
            return 0
        is_over = self.journal.has_failed and self.is_ending and not self.given_up
        return LOST if self.journal.is_lost or is_over else self.journal.durable

    @property
    def given_up(self) -> bool:
        """True if this rank has abandoned the records of the job."""
        return self.number == LAST_EPOCH

    @property
    def has_failed(self) -> bool:
        """True if the records of the job must be abandoned because this rank cannot record further facts."""
        return self.journal is not None and self.journal.has_failed and not self.is_ending

    def done(
        self, task: Task, counts: Sequence[int] = (), settled: Sequence[TaskId] = (), shares: Sequence[Share] = ()
    ) -> None:
        """Record in the journal, if there is one, that ``task`` is done (see ``Journal``)."""
        if self.journal:
            self.journal.done(task, counts, settled, shares)

    def enter(self, number: int, phase: int) -> None:
        """Advance this rank to epoch ``number``. The journal cuts each epoch before it, even one without facts.

        With ``LAST_EPOCH`` the journal abandons the records instead. ``phase`` is the current phase of this rank.
        """
        if self.given_up:
            return
        if self.journal and number == LAST_EPOCH:
            self.number = LAST_EPOCH
            self.journal.give_up()
        while self.journal and self.number < number:
            self.journal.cut(self.number, phase)
            self.number += 1

    def advance(self, phase: int) -> None:
        """Enter the next epoch, or ``LAST_EPOCH`` if facts cannot be recorded any longer."""
        self.enter(LAST_EPOCH if self.has_failed else self.number + 1, phase)


class Outbox(deque[tuple[int, Message]]):
    """Queue of the messages that one rank sends, as (destination, message)."""

    def __init__(self, epochs: Epochs) -> None:
        super().__init__()
        self._epochs = epochs
        self._told: dict[int, int] = {}
        """Last epoch that was announced to each rank."""

    def send(self, destination: int, message: Message) -> None:
        """Queue ``message``, preceded by the marker of the current epoch if ``destination`` has not received that
        marker yet.
        """
        epoch = self._epochs.number
        if self._told.get(destination, FIRST) != epoch:
            self._told[destination] = epoch
            self.append((destination, Epoch(epoch)))
        self.append((destination, message))

    def send_all(self, messages: Iterable[tuple[int, Message]]) -> None:
        """Queue each of ``messages`` as ``send`` does."""
        for destination, message in messages:
            self.send(destination, message)
