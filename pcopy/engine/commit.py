"""When facts are cut; and the end of a phase, or of the job, which waits until they are on storage.

- After the first cut of a job, in whatever run, a phase begins only when all ranks are durable at an epoch that ended
  after the phase before did: a resumed job must not repeat its tasks once the next phase has changed what they find.
- A job that ends with something left to do takes a last cut, even if it is the first one. A job that was told to stop
  waits for it only for a while, and not at all if a rank's data did not get to storage.
- Once a job is not kept any more, a phase waits only until the job's directory has gone.
"""

from __future__ import annotations

from math import inf

from pcopy.engine.journal import LOST, Epochs
from pcopy.engine.limits import Limits
from pcopy.engine.messages import LAST_EPOCH, Answer

COMMIT_POLL = 0.02
"""Seconds between two looks whether all ranks are durable."""

AHEAD = 2
"""Epochs that may be under way to storage before the root raises another one."""


class Commit:
    """One rank's part; all but the first question is the root's alone."""

    def __init__(self, epochs: Epochs, limits: Limits) -> None:
        self._epochs = epochs
        self._longest = limits.cut_interval
        self._interval = min(limits.first_cut, self._longest)  # until the next cut
        self._patience = limits.last_cut
        self._next_cut = 0.0
        self._target = 0
        self._deadline = inf
        self.is_complete = True
        """At the root: False if the job ends although not all that it has done is durable."""

    def start(self, now: float) -> None:
        self._next_cut = now + self._interval

    @property
    def waits_for_storage(self) -> bool:
        """Are there more facts than may be outside it?"""
        return self._epochs.journal is not None and self._epochs.journal.is_full

    def is_due(self, rank: int, report: Answer | None, now: float) -> bool:
        """Is it time for the next epoch? Any rank may find that it knows too much; the root also looks at the time."""
        journal = self._epochs.journal
        if journal is None or self._epochs.given_up:
            return False
        if journal.wants_cut or self._epochs.has_failed:
            return True
        if rank or now < self._next_cut:
            return False
        self._interval = min(2 * self._interval, self._longest)
        self._next_cut = now + self._interval
        return self._epochs.number - (report.durable if report else 0) <= AHEAD

    def is_done(self, report: Answer, now: float, *, needed: bool, halted: bool, phase: int) -> bool:
        """At the end of a phase: may the next one begin? ``needed``: even if there has not been a cut yet."""
        if self._epochs.journal is None or not (self._epochs.begun or needed):
            return True
        if halted and report.durable == LOST:
            self.is_complete = False
            return True
        if not self._target:
            self._target = self._epochs.number
            self._epochs.enter(self._target + 1, phase)
        if halted:  # from then on, however long a phase has waited for storage before
            self._deadline = min(self._deadline, now + self._patience)
        durable, target = report.durable, self._target
        if self._epochs.given_up:
            durable, target = self._epochs.durable, LAST_EPOCH
        if durable < target and now <= self._deadline:
            return False
        self._target = 0
        self.is_complete = durable >= target
        return True
