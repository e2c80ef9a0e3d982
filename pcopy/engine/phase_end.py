"""End of a phase on rank 0: collect exact sums from all ranks, decide on the next phase, and wait for storage.

Rank 0 also queries the sums while a phase runs (``pcopy.engine.progress``), but does not wait for those answers.
"""

from __future__ import annotations

from collections.abc import Iterable
from math import inf
from typing import Protocol

from pcopy.engine.commit import COMMIT_POLL, Commit
from pcopy.engine.journal import LOST
from pcopy.engine.limits import Limits
from pcopy.engine.messages import Halt, Outgoing
from pcopy.engine.progress import CounterTree
from pcopy.engine.task import Spawn
from pcopy.named import NamedTuple


class Director(Protocol):
    """Decisions of rank 0 between phases.

    The ``totals`` passed to its methods are exact, because no task runs while they are called.
    """

    def next_phase(self, phase: int, totals: tuple[int, ...]) -> int | None:
        """Return the phase that follows ``phase``, which is a higher number, or None if the job is over."""

    def first_tasks(self, phase: int) -> Iterable[Spawn]:
        """Return the tasks that rank 0 adds to its queue when ``phase`` begins."""

    def status(self, totals: tuple[int, ...], halted: Halt | None) -> int:
        """Return the exit status of all ranks. ``halted`` is the reason of an early stop, or None."""


class Next(NamedTuple):
    """The next phase; or None and the exit ``status`` of the job, which is over."""

    phase: int | None
    status: int


class PhaseEnd:
    """End of a phase, as rank 0 performs it. On other ranks it does nothing."""

    def __init__(self, director: Director, limits: Limits, progress: CounterTree, commit: Commit) -> None:
        self._director = director
        self._limits = limits
        self._progress = progress
        self._commit = commit
        self._next: Next | None = None
        self._complete = 0
        self.next_query = inf
        """Time in seconds of the next query."""

    @property
    def is_near(self) -> bool:
        """True if a phase is over and its exact sums have been queried."""
        return self._complete > 0

    @property
    def is_last(self) -> bool:
        """True if no phase follows the one that is over."""
        return self._next is not None and self._next.phase is None

    def ask(self, now: float) -> Outgoing:
        """Return the query for the counters of all ranks, and schedule the next query."""
        asked = self._progress.ask()
        interval = min(self._limits.progress_interval, self._progress.steering.interval)
        if self._complete:  # all ranks must answer, which may take longer than an interval: double it with each query
            interval *= 2 ** (self._progress.sequence - self._complete)
        self.next_query = now + interval
        return asked

    def begin(self, now: float) -> Outgoing:
        """Query the exact sums, since the phase is over; return nothing if they have been queried already."""
        if self._complete:
            return []
        asked = self.ask(now)
        self._complete = self._progress.sequence
        return asked

    def decide(self, now: float, phase: int, halted: Halt | None, *, resumed: bool) -> Next | None:
        """Return what follows ``phase``, or None as long as that is not decided.

        It is decided once the sums of the phase are complete and its facts are on storage.

        Args:
            now: time in seconds.
            halted: reason of an early stop, or None.
            resumed: True if the job was resumed.
        """
        report = self._progress.report
        if report is None or report.sequence < self._complete or report.silent:
            return None
        if self._next is None or (halted is not None and self._next.phase is not None):
            following = None if halted is not None else self._director.next_phase(phase, report.totals)
            status = self._director.status(report.totals, halted) if following is None else 0
            self._next = Next(following, status)
        following, status = self._next
        needed = status != 0 or resumed or following in self._limits.durable_before
        if not self._commit.is_done(report, now, needed=needed, halted=halted is not None, phase=phase):
            self._complete, self.next_query = report.sequence + 1, now + COMMIT_POLL
            return None
        self._complete, self._next = 0, None
        if following is None and not status and halted is not None and report.durable == LOST:
            # All work is done, but its data are not on storage: the exit status must say so.
            return Next(None, self._director.status(report.totals, halted))
        return Next(following, status)
