"""End of a phase on rank 0: collect exact sums from all ranks, decide on the next phase, and wait for storage.

Rank 0 also queries the sums while a phase runs (``pcopy.engine.progress``), but does not wait for those answers.
"""

from __future__ import annotations

from collections.abc import Iterable
from math import inf
from typing import Protocol

from pcopy.engine.commit import DURABILITY_POLL_SECONDS, CutSchedule
from pcopy.engine.journal import NEVER_DURABLE
from pcopy.engine.limits import Limits
from pcopy.engine.messages import Halt, OutgoingMessages
from pcopy.engine.progress import CounterTree
from pcopy.engine.task import NewTask
from pcopy.fast_named_tuple import NamedTuple


class Director(Protocol):
    """Decisions of rank 0 between phases.

    The ``totals`` passed to its methods are exact, because no task runs while they are called.
    """

    def next_phase(self, phase: int, totals: tuple[int, ...]) -> int | None:
        """Return the phase that follows ``phase``, which is a higher number, or None if the job is over."""

    def first_tasks(self, phase: int) -> Iterable[NewTask]:
        """Return the tasks that rank 0 adds to its queue when ``phase`` begins."""

    def status(self, totals: tuple[int, ...], halted: Halt | None) -> int:
        """Return the exit status of all ranks. ``halted`` is the reason of an early stop, or None."""


class NextPhase(NamedTuple):
    """The next phase; or None and the exit ``status`` of the job, which is over."""

    phase: int | None
    status: int


class PhaseEnd:
    """End of a phase, as rank 0 performs it. On other ranks it does nothing."""

    def __init__(self, director: Director, limits: Limits, progress: CounterTree, commit: CutSchedule) -> None:
        self._director = director
        self._limits = limits
        self._counter_tree = progress
        self._cut_schedule = commit
        self._next: NextPhase | None = None
        self._final_query = 0
        self.next_query_time = inf
        """Time in seconds of the next query."""

    @property
    def is_phase_over(self) -> bool:
        """True if a phase is over and its exact sums have been queried."""
        return self._final_query > 0

    @property
    def is_job_over(self) -> bool:
        """True if no phase follows the one that is over."""
        return self._next is not None and self._next.phase is None

    def query_counters(self, now: float) -> OutgoingMessages:
        """Return the query for the counters of all ranks, and schedule the next query."""
        asked = self._counter_tree.start_query()
        interval = min(self._limits.progress_interval, self._counter_tree.steering.query_interval)
        if (
            self._final_query
        ):  # all ranks must answer, which may take longer than an interval: double it with each query
            interval *= 2 ** (self._counter_tree.sequence - self._final_query)
        self.next_query_time = now + interval
        return asked

    def query_final_sums(self, now: float) -> OutgoingMessages:
        """Query the exact sums, since the phase is over; return nothing if they have been queried already."""
        if self._final_query:
            return []
        asked = self.query_counters(now)
        self._final_query = self._counter_tree.sequence
        return asked

    def next_phase(self, now: float, phase: int, halted: Halt | None, *, resumed: bool) -> NextPhase | None:
        """Return what follows ``phase``, or None as long as that is not decided.

        It is decided once the sums of the phase are complete and its facts are on storage.

        Args:
            now: time in seconds.
            halted: reason of an early stop, or None.
            resumed: True if the job was resumed.
        """
        report = self._counter_tree.latest_sums
        if report is None or report.sequence < self._final_query or report.silent_ranks:
            return None
        if self._next is None or (halted is not None and self._next.phase is not None):
            following = None if halted is not None else self._director.next_phase(phase, report.totals)
            status = self._director.status(report.totals, halted) if following is None else 0
            self._next = NextPhase(following, status)
        following, status = self._next
        needed = status != 0 or resumed or following in self._limits.phases_after_cut
        if not self._cut_schedule.is_phase_durable(report, now, needed=needed, halted=halted is not None, phase=phase):
            self._final_query, self.next_query_time = report.sequence + 1, now + DURABILITY_POLL_SECONDS
            return None
        self._final_query, self._next = 0, None
        if following is None and not status and halted is not None and report.durable_epoch == NEVER_DURABLE:
            # All work is done, but its data are not on storage: the exit status must say so.
            return NextPhase(None, self._director.status(report.totals, halted))
        return NextPhase(following, status)
