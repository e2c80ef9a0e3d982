"""Control of cuts: when facts are cut, and when a phase or the job must wait until its facts are on stable storage.

- After the first cut of a job, in this or an earlier run, a phase begins only when all ranks are durable at an epoch
  that ended after the previous phase did. Otherwise a resumed job could repeat tasks of the previous phase after the
  next phase has changed the files that they work on.
- A job that ends with work remaining makes a last cut, even if it is the first one. A job that is being stopped waits
  for that cut only for a limited time, and not at all if the data of a rank could not be brought to storage.
- Once the records of a job are abandoned, a phase waits only until the job's directory has been removed.
"""

from __future__ import annotations

from math import inf

from pcopy.engine.journal import NEVER_DURABLE, RankEpoch
from pcopy.engine.limits import Limits
from pcopy.engine.messages import LAST_EPOCH, CounterSums

DURABILITY_POLL_SECONDS = 0.02
"""Seconds between two queries whether all ranks are durable."""

MAX_PENDING_EPOCHS = 2
"""Number of epochs not yet on storage up to which rank 0 begins a new epoch at its regular time."""


class CutSchedule:
    """One rank's part in cutting facts. Only rank 0 cuts at regular times, and waits at the end of a phase.

    ``start`` begins to measure the time until the first cut.
    """

    def __init__(self, epochs: RankEpoch, limits: Limits) -> None:
        self._epochs = epochs
        self._longest_interval = limits.cut_interval
        self._interval = min(limits.seconds_to_first_cut, self._longest_interval)  # seconds until the next cut
        self._patience = limits.last_cut_patience
        self._next_cut = 0.0
        self._target_epoch = 0
        self._deadline = inf
        self.is_complete = True
        """On rank 0: False if the job ends although not everything that it has done is durable."""

    def start(self, now: float) -> None:
        self._next_cut = now + self._interval

    @property
    def waits_for_storage(self) -> bool:
        """True if so many facts are not yet on storage that no task may be begun."""
        return self._epochs.journal is not None and self._epochs.journal.must_wait_for_storage

    def is_cut_due(self, rank: int, report: CounterSums | None, now: float) -> bool:
        """Return True if this rank must begin a new epoch now.

        Every rank does so when its journal has gathered too many facts. Rank 0 also does so at regular times.
        ``report`` is the latest answer with the sums over all ranks.
        """
        journal = self._epochs.journal
        if journal is None or self._epochs.is_abandoned:
            return False
        if journal.needs_cut or self._epochs.has_failed:
            return True
        if rank or now < self._next_cut:
            return False
        self._interval = min(2 * self._interval, self._longest_interval)
        self._next_cut = now + self._interval
        return self._epochs.number - (report.durable_epoch if report else 0) <= MAX_PENDING_EPOCHS

    def is_phase_durable(self, report: CounterSums, now: float, *, needed: bool, halted: bool, phase: int) -> bool:
        """At the end of a phase: return True if the next phase, or the end of the job, may begin.

        Args:
            report: answer with the sums over all ranks after the end of the phase.
            now: time in seconds.
            needed: True if a cut is required even if there has been none yet.
            halted: True if the job is being stopped.
            phase: the phase that has ended.

        The first call for a phase makes the cut that later calls wait for.
        """
        if self._epochs.journal is None or not (self._epochs.has_cut or needed):
            return True
        if halted and report.durable_epoch == NEVER_DURABLE:
            self.is_complete = False
            return True
        if not self._target_epoch:
            self._target_epoch = self._epochs.number
            self._epochs.enter_epoch(self._target_epoch + 1, phase)
        if halted:  # from the stop on, however long the phase has waited for storage before
            self._deadline = min(self._deadline, now + self._patience)
        durable, target = report.durable_epoch, self._target_epoch
        if self._epochs.is_abandoned:
            durable, target = self._epochs.durable_epoch, LAST_EPOCH
        if durable < target and now <= self._deadline:
            return False
        self._target_epoch = 0
        self.is_complete = durable >= target
        return True
