"""Interface to the journal that records the engine's facts, and the epochs that make the records of all ranks
consistent.

There are two kinds of facts: "task spawned" and "task done". The rank on which a fact occurs records it in its current
epoch, a numbered part of the run. A rank that has entered a higher epoch sends a marker, with the number of that epoch,
to each other rank before its next message to that rank. A rank that receives a marker of a higher epoch cuts: it ends
its own epoch before it processes the message that follows the marker. docs/design/engine.md explains why the facts of
all ranks and of all epochs up to a given one are then consistent, so that a job can be resumed from them.

If a rank cannot record facts any longer, no later epoch is recorded on all ranks. But the job continues, so the
existing records would soon describe a state that later phases have changed. That rank therefore enters
``ABANDONED_EPOCH``; its marker makes all other ranks abandon their records, too.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from typing import Protocol

from pcopy.engine.messages import ABANDONED_EPOCH, EpochMarker, Message
from pcopy.engine.task import Task, TaskId, TaskShares

FIRST_EPOCH = 1
"""Number of the epoch (part of the run whose tasks are recorded together) in which each rank begins a run."""

NEVER_DURABLE = -1
"""Value in place of the number of a rank's last epoch on stable storage, if no later epoch can get there.

The reason is that data which the rank wrote could not be brought to stable storage, or that its facts (tasks spawned
and done) cannot be recorded.
"""


class TaskJournal(Protocol):
    """Protocol: records which tasks one rank has spawned and which are done (its facts), so that another run can resume
    the job.
    """

    durable_epoch: int
    """Last epoch (numbered part of the run) whose records are all on stable storage; 0 before the first one."""

    @property
    def has_lost_data(self) -> bool:
        """True if data that this rank has written could not be brought to stable storage. Then no later epoch becomes
        durable, and the job has to stop.
        """

    @property
    def has_failed(self) -> bool:
        """True if tasks cannot be recorded any longer, for example because the job directory is full. No data were
        lost, so the job can continue, but all ranks must abandon their records.
        """

    @property
    def needs_checkpoint(self) -> bool:
        """True if so many records have been gathered in memory that the rank should make a cut now: end its epoch (part
        of the run), so that they are written.
        """

    @property
    def must_wait_for_storage(self) -> bool:
        """True if so many records are not yet on storage that the rank should begin no task for the moment."""

    def record_initial_tasks(self, phase: int, tasks: Sequence[Task]) -> None:
        """On rank 0: record the tasks with which a new job begins in ``phase``. A resumed job starts from these if
        there are no later records.
        """

    def record_spawned_task(self, task: Task) -> None:
        """Record that ``task`` was spawned."""

    def record_done_task(
        self, task: Task, counts: Sequence[int], completed: Sequence[TaskId], shares: TaskShares = ()
    ) -> None:
        """Record that ``task`` is done. The tasks that ``task`` spawned have been recorded before.

        Args:
            task: the task that is done.
            counts: number to add to each counter, by the counter's index.
            completed: ids of other tasks that count as done only now, because ``task`` has used their effect, which was
                only in memory (see ``pcopy.engine.ticket.TaskOutcome``).
            shares: parts of ``counts``, each under a label.
        """

    def end_epoch(self, epoch: int, phase: int) -> None:
        """End the part of the run with the number ``epoch``: write one record of all tasks that were spawned or became
        done since the end of the previous epoch. ``phase`` is the current phase of this rank.
        """

    def abandon_records(self) -> None:
        """Stop recording, because a rank cannot record tasks any longer and the existing records would soon be wrong.
        ``durable_epoch`` becomes ``ABANDONED_EPOCH`` once no records of this job remain from which it could be resumed.
        """


class RankEpoch:
    """The current epoch (numbered part of the run, whose tasks are recorded together) of one rank, and its journal. If
    the job is not recorded (no journal), the epoch never changes.
    """

    def __init__(self, journal: TaskJournal | None) -> None:
        self.journal = journal
        self.number = FIRST_EPOCH
        self.is_ending = False
        """True if the job is being stopped. No other phase begins then, so the existing records remain valid."""

    @property
    def has_made_checkpoint(self) -> bool:
        """True if this rank has made at least one cut in this run: it has ended an epoch and passed its records on to
        be written.
        """
        return self.number > FIRST_EPOCH

    @property
    def durable_epoch(self) -> int:
        """Last epoch of this rank whose records are on stable storage; 0 without a journal, -1 if no later epoch can
        get there.
        """
        if self.journal is None:
            return 0
        is_over = self.journal.has_failed and self.is_ending and not self.is_recording_abandoned
        return NEVER_DURABLE if self.journal.has_lost_data or is_over else self.journal.durable_epoch

    @property
    def is_recording_abandoned(self) -> bool:
        """True if this rank has given up recording the job, whose existing records are removed."""
        return self.number == ABANDONED_EPOCH

    @property
    def must_abandon_records(self) -> bool:
        """True if the records of the job must be abandoned because this rank cannot record tasks any longer. False
        while the job is being stopped: the records made so far then remain valid.
        """
        return self.journal is not None and self.journal.has_failed and not self.is_ending

    def record_done_task(
        self,
        task: Task,
        counts: Sequence[int] = (),
        completed: Sequence[TaskId] = (),
        shares: TaskShares = (),
    ) -> None:
        """Record that ``task`` is done, if the job is recorded. ``counts`` are the numbers that it adds to the
        counters, ``shares`` are labelled parts of them, and ``completed`` are the ids of other tasks that count as
        done only now.
        """
        if self.journal:
            self.journal.record_done_task(task, counts, completed, shares)

    def enter_epoch(self, number: int, phase: int) -> None:
        """Advance this rank to the epoch (part of the run) with this number; the journal writes one record for each
        epoch that ends, even if nothing happened in it.

        If ``number`` is ``ABANDONED_EPOCH``, the journal abandons the records instead. ``phase`` is the current phase
        of this rank.
        """
        if self.is_recording_abandoned:
            return
        if self.journal and number == ABANDONED_EPOCH:
            self.number = ABANDONED_EPOCH
            self.journal.abandon_records()
        while self.journal and self.number < number:
            self.journal.end_epoch(self.number, phase)
            self.number += 1

    def enter_next_epoch(self, phase: int) -> None:
        """Make a cut: end the current epoch, so that its records are written, and enter the next one. If tasks cannot
        be recorded any longer, enter ``ABANDONED_EPOCH``, which abandons the records. ``phase`` is the current phase of
        this rank.
        """
        self.enter_epoch(ABANDONED_EPOCH if self.must_abandon_records else self.number + 1, phase)


class MessageOutbox(deque[tuple[int, Message]]):
    """Queue of the messages that one rank sends, as (destination, message). Before the first message to a rank in a new
    epoch (part of the run) it inserts a marker with the number of the epoch.
    """

    def __init__(self, epochs: RankEpoch) -> None:
        super().__init__()
        self._epochs = epochs
        self._announced_epochs: dict[int, int] = {}
        """Number of the last epoch (part of the run) that was announced to each rank by a marker; a rank that is
        missing has received none.
        """

    def send(self, destination: int, message: Message) -> None:
        """Queue ``message`` for the rank ``destination``. If that rank has not received the marker of the current epoch
        (part of the run), queue the marker before.
        """
        epoch = self._epochs.number
        if self._announced_epochs.get(destination, FIRST_EPOCH) != epoch:
            self._announced_epochs[destination] = epoch
            self.append((destination, EpochMarker(epoch)))
        self.append((destination, message))

    def send_all(self, messages: Iterable[tuple[int, Message]]) -> None:
        """Queue ``messages``, each with its destination. The marker of the current epoch (part of the run) precedes the
        first one to a rank that has not received it.
        """
        for destination, message in messages:
            self.send(destination, message)
