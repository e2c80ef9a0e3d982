"""Control of cuts (checkpoints): when each rank passes on its records to be written, and when a phase or the job must
wait until they are on stable storage.

A fact is a record that a task was spawned or is done. A cut ends an epoch (a numbered part of the run) of a rank: the
facts gathered since the last cut are passed on to be written to the job directory. An epoch is durable when its facts
are on stable storage.

- After the first cut of a job, in this or an earlier run, a phase begins only when an epoch that ended after the
  previous phase did is durable on all ranks. Otherwise a resumed job could repeat tasks of the previous phase after the
  next phase has changed the files that these tasks work on.
- A job that ends with work remaining makes a last cut, even if it has made none before. A job that is being stopped
  waits for that cut only for a limited time, and not at all if the data of a rank could not be brought to storage.
- Once the records of a job are abandoned (a rank cannot write them), a phase waits only until rank 0 has removed them.
"""

from __future__ import annotations

from math import inf

from pcopy.engine.journal import NEVER_DURABLE, RankEpoch
from pcopy.engine.limits import EngineLimits
from pcopy.engine.messages import ABANDONED_EPOCH, CounterSums

DURABILITY_POLL_SECONDS = 0.02
"""Seconds between two queries by which rank 0 finds out, at the end of a phase, whether all ranks have brought their
records to stable storage.
"""

MAX_EPOCHS_NOT_DURABLE = 2
"""Maximum number of epochs (parts of the run whose records are written together) that are not yet on storage. If there
are more, rank 0 skips its next regular cut, because storage is too slow for more records.
"""


class CheckpointSchedule:
    """Decides when one rank makes a cut: ends its epoch and passes the gathered facts (tasks spawned and done) on to be
    written. Only rank 0 cuts at regular times, and waits for storage at the end of a phase.

    The other ranks cut with rank 0, because its messages carry the number of its epoch.
    """

    def __init__(self, epochs: RankEpoch, limits: EngineLimits) -> None:
        self._epochs = epochs
        self._longest_interval = limits.checkpoint_cut_interval
        self._interval = min(
            limits.seconds_to_first_checkpoint_cut, self._longest_interval
        )  # seconds until the next cut
        self._patience = limits.last_checkpoint_cut_timeout
        self._next_cut = 0.0
        self._target_epoch = 0
        self._deadline = inf
        self.are_all_records_durable = True
        """On rank 0, at the end of the job: False if records of ended tasks should be on stable storage and are not, so
        that a resumed job repeats these tasks.
        """

    def start(self, now: float) -> None:
        """Begin to measure the time until the first cut, which passes the records of tasks on to be written."""
        self._next_cut = now + self._interval

    @property
    def waits_for_storage(self) -> bool:
        """True if the rank may begin no task for the moment, because too many of its facts (records of tasks spawned
        and done) are not yet on storage.
        """
        return self._epochs.journal is not None and self._epochs.journal.must_wait_for_storage

    def advance_to_due_checkpoint(self, rank: int, report: CounterSums | None, now: float) -> bool:
        """Return True if this rank must make a cut now: end its epoch (part of the run) and pass its records on to be
        written.

        Every rank does so when its journal has gathered too many records, or cannot record tasks any longer. Rank 0
        also does so at regular times; when such a time has come, this method sets the next one.

        Args:
            rank: this rank.
            report: on rank 0, the latest answer of all ranks, or None if there is none yet.
            now: time in seconds.
        """
        journal = self._epochs.journal
        if journal is None or self._epochs.is_recording_abandoned:
            return False
        if journal.needs_checkpoint or self._epochs.must_abandon_records:
            return True
        if rank or now < self._next_cut:
            return False
        self._interval = min(2 * self._interval, self._longest_interval)
        self._next_cut = now + self._interval
        return self._epochs.number - (report.durable_epoch if report else 0) <= MAX_EPOCHS_NOT_DURABLE

    def make_phase_durable(self, report: CounterSums, now: float, *, needed: bool, halted: bool, phase: int) -> bool:
        """On rank 0, at the end of a phase: bring the facts of the phase (tasks spawned and done) to stable storage on
        all ranks. Return True if the next phase may begin, or the job may end. The caller repeats the call until
        then.

        The first call for a phase makes a cut, which passes the facts on to be written. Later calls return False until
        they are on storage on all ranks. If the job is being stopped, the wait is limited; if it ends without success,
        ``are_all_records_durable`` becomes False.

        Args:
            report: answer of all ranks, from after the end of the phase.
            now: time in seconds.
            needed: True if a cut is required even if there has been none yet.
            halted: True if the job is being stopped.
            phase: the phase that has ended.
        """
        if self._epochs.journal is None or not (self._epochs.has_made_checkpoint or needed):
            return True
        if halted and report.durable_epoch == NEVER_DURABLE:
            self.are_all_records_durable = False
            return True
        if not self._target_epoch:
            self._target_epoch = self._epochs.number
            self._epochs.enter_epoch(self._target_epoch + 1, phase)
        if halted:  # the patience begins with the stop, however long the phase has waited for storage before
            self._deadline = min(self._deadline, now + self._patience)
        durable, target = report.durable_epoch, self._target_epoch
        if self._epochs.is_recording_abandoned:
            durable, target = self._epochs.durable_epoch, ABANDONED_EPOCH
        if durable < target and now <= self._deadline:
            return False
        self._target_epoch = 0
        self.are_all_records_durable = durable >= target
        return True
