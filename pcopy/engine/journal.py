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

from pcopy.engine.messages import LAST_EPOCH, EpochMarker, Message
from pcopy.engine.task import LabelledCounts, Task, TaskId

FIRST_EPOCH = 1
"""Number of the epoch in which a run begins."""

NEVER_DURABLE = -1
"""Value of a rank's durable epoch if no later epoch can become durable.

The data that the rank wrote could not be brought to stable storage, or its facts cannot be recorded.
"""


class Journal(Protocol):
    """Recorder of one rank's facts."""

    durable_epoch: int
    """Last epoch whose facts are all on stable storage; 0 before the first one."""

    @property
    def has_lost_data(self) -> bool:
        """True if written data could not be brought to stable storage. No later epoch will be durable then."""

    @property
    def has_failed(self) -> bool:
        """True if facts cannot be recorded any longer although no data were lost. All ranks must abandon their records
        then.
        """

    @property
    def needs_cut(self) -> bool:
        """True if so many facts have been gathered that they should be cut now."""

    @property
    def must_wait_for_storage(self) -> bool:
        """True if so many facts are not yet on storage that no further task should be begun."""

    def record_base(self, phase: int, tasks: Sequence[Task]) -> None:
        """On rank 0: record the tasks with which a new job begins."""

    def record_spawned(self, task: Task) -> None:
        """Record that ``task`` was spawned."""

    def record_done(
        self, task: Task, counts: Sequence[int], settled: Sequence[TaskId], shares: Sequence[LabelledCounts] = ()
    ) -> None:
        """Record that ``task`` is done, with its counts.

        Args:
            settled: ids of tasks with deferred completion (see ``Outcome``) that are done at the same moment.
            shares: parts of ``counts``, by label.

        The tasks that ``task`` spawned have been recorded before.
        """

    def end_epoch(self, epoch: int, phase: int) -> None:
        """End ``epoch``: its record consists of all facts since the last cut. ``phase`` is the current phase of this
        rank.
        """

    def abandon(self) -> None:
        """Stop recording. The durable epoch becomes ``LAST_EPOCH`` once no records remain from which the job could be
        resumed.
        """


class RankEpoch:
    """The epoch of one rank. Without a journal it never changes."""

    def __init__(self, journal: Journal | None) -> None:
        self.journal = journal
        self.number = FIRST_EPOCH
        self.is_ending = False
        """True if the job is being stopped. No further phase begins then, so the existing records remain valid."""

    @property
    def has_cut(self) -> bool:
        """True if there has been a cut in this run."""
        return self.number > FIRST_EPOCH

    @property
    def durable_epoch(self) -> int:
        """Last durable epoch of this rank; 0 without a journal, -1 if no later epoch can become durable."""
        if self.journal is None:
            return 0
        is_over = self.journal.has_failed and self.is_ending and not self.is_abandoned
        return NEVER_DURABLE if self.journal.has_lost_data or is_over else self.journal.durable_epoch

    @property
    def is_abandoned(self) -> bool:
        """True if this rank has abandoned the records of the job."""
        return self.number == LAST_EPOCH

    @property
    def has_failed(self) -> bool:
        """True if the records of the job must be abandoned because this rank cannot record further facts."""
        return self.journal is not None and self.journal.has_failed and not self.is_ending

    def record_done(
        self,
        task: Task,
        counts: Sequence[int] = (),
        settled: Sequence[TaskId] = (),
        shares: Sequence[LabelledCounts] = (),
    ) -> None:
        """Record in the journal, if there is one, that ``task`` is done (see ``Journal``)."""
        if self.journal:
            self.journal.record_done(task, counts, settled, shares)

    def enter_epoch(self, number: int, phase: int) -> None:
        """Advance this rank to epoch ``number``. The journal cuts each epoch before it, even one without facts.

        With ``LAST_EPOCH`` the journal abandons the records instead. ``phase`` is the current phase of this rank.
        """
        if self.is_abandoned:
            return
        if self.journal and number == LAST_EPOCH:
            self.number = LAST_EPOCH
            self.journal.abandon()
        while self.journal and self.number < number:
            self.journal.end_epoch(self.number, phase)
            self.number += 1

    def enter_next_epoch(self, phase: int) -> None:
        """Enter the next epoch, or ``LAST_EPOCH`` if facts cannot be recorded any longer."""
        self.enter_epoch(LAST_EPOCH if self.has_failed else self.number + 1, phase)


class Outbox(deque[tuple[int, Message]]):
    """Queue of the messages that one rank sends, as (destination, message)."""

    def __init__(self, epochs: RankEpoch) -> None:
        super().__init__()
        self._epochs = epochs
        self._announced_epochs: dict[int, int] = {}
        """Last epoch that was announced to each rank."""

    def send(self, destination: int, message: Message) -> None:
        """Queue ``message``, preceded by the marker of the current epoch if ``destination`` has not received that
        marker yet.
        """
        epoch = self._epochs.number
        if self._announced_epochs.get(destination, FIRST_EPOCH) != epoch:
            self._announced_epochs[destination] = epoch
            self.append((destination, EpochMarker(epoch)))
        self.append((destination, message))

    def send_all(self, messages: Iterable[tuple[int, Message]]) -> None:
        """Queue each of ``messages`` as ``send`` does."""
        for destination, message in messages:
            self.send(destination, message)
