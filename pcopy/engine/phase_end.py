"""End of a phase on rank 0: collect exact sums from all ranks, decide on the next phase, and wait for storage.

Rank 0 also queries the sums while a phase runs, to report progress, but then it does not wait for all answers
(``pcopy.engine.progress``).
"""

from __future__ import annotations

from collections.abc import Iterable
from math import inf
from typing import Protocol

from pcopy.engine.commit import DURABILITY_POLL_SECONDS, CheckpointSchedule
from pcopy.engine.journal import NEVER_DURABLE
from pcopy.engine.limits import EngineLimits
from pcopy.engine.messages import HaltMessage, OutgoingMessages
from pcopy.engine.progress import CounterTree
from pcopy.engine.task import NewTask
from pcopy.fast_named_tuple import NamedTuple


class PhaseDirector(Protocol):
    """Protocol: decides on rank 0, between two phases, which phase follows and when the job is over. Each program has
    its own implementation.

    ``totals`` are the sums of each counter over all ranks. They are exact, because no task runs while the methods are
    called.
    """

    def next_phase(self, phase: int, totals: tuple[int, ...]) -> int | None:
        """Return the number of the phase that follows ``phase`` (higher, but not always the next one); None if the job
        is over. ``totals`` are the exact sums of the counters over all ranks.
        """

    def first_tasks_of_phase(self, phase: int) -> Iterable[NewTask]:
        """Return the tasks that rank 0 adds to its queue when ``phase`` begins."""

    def status(self, totals: tuple[int, ...], halted: HaltMessage | None) -> int:
        """Return the exit status of the job, which all ranks get. ``totals`` are the exact sums of the counters over
        all ranks; ``halted`` is the reason why the job is stopped early, or None.
        """


class PhaseDecision(NamedTuple):
    """What follows a phase: another phase (``status`` is 0 then), or the end of the job (``phase`` is None) with the
    exit status ``status``.
    """

    phase: int | None
    status: int


class PhaseEndState:
    """State of rank 0 at the end of a phase: whether the final sums of the counters were queried, and what follows (the
    next phase, or the end of the job).

    Other ranks have such an object, too, but never use it.
    """

    def __init__(
        self, director: PhaseDirector, limits: EngineLimits, counter_tree: CounterTree, cut_schedule: CheckpointSchedule
    ) -> None:
        self._director = director
        self._limits = limits
        self._counter_tree = counter_tree
        self._cut_schedule = cut_schedule
        self._next: PhaseDecision | None = None
        self._final_query = 0
        self.next_query_time = inf
        """Time in seconds at which rank 0 queries the counters of all ranks next; infinity before the first phase, and
        on other ranks.
        """

    @property
    def is_phase_over(self) -> bool:
        """True if the phase is over and it is not yet decided what follows: rank 0 waits for the exact sums of the
        counters, or for storage.
        """
        return self._final_query > 0

    @property
    def is_job_over(self) -> bool:
        """True if the director has decided that no phase follows the one that is over."""
        return self._next is not None and self._next.phase is None

    def start_counter_query(self, now: float) -> OutgoingMessages:
        """Start a query for the counters of all ranks; return the messages to send. Set ``next_query_time``."""
        asked = self._counter_tree.start_query()
        interval = min(self._limits.progress_interval, self._counter_tree.steering.query_interval)
        if (
            self._final_query
        ):  # all ranks must answer one query, which may take longer than the interval: double it with each query
            interval *= 2 ** (self._counter_tree.sequence - self._final_query)
        self.next_query_time = now + interval
        return asked

    def query_final_sums(self, now: float) -> OutgoingMessages:
        """Start the query for the exact sums of all counters, because the phase is over; return the messages to send.
        Return an empty list if this query was started already.
        """
        if self._final_query:
            return []
        asked = self.start_counter_query(now)
        self._final_query = self._counter_tree.sequence
        return asked

    def next_phase(self, now: float, phase: int, halted: HaltMessage | None, *, resumed: bool) -> PhaseDecision | None:
        """Return what follows ``phase``: another phase or the end of the job. Return None while rank 0 has to wait; the
        caller then repeats the call.

        Rank 0 waits until all ranks have answered the query for the exact sums, and until the records of the phase's
        tasks are on stable storage (see ``CheckpointSchedule.make_phase_durable``).

        Args:
            now: time in seconds.
            phase: the phase that is over.
            halted: reason why the job is stopped early, or None.
            resumed: True if the job was resumed. Records of its earlier runs exist, so those of this phase must be
                written, too.
        """
        report = self._counter_tree.latest_sums
        if report is None or report.sequence < self._final_query or report.silent_ranks:
            return None
        if self._next is None or (halted is not None and self._next.phase is not None):
            following = None if halted is not None else self._director.next_phase(phase, report.totals)
            status = self._director.status(report.totals, halted) if following is None else 0
            self._next = PhaseDecision(following, status)
        following, status = self._next
        needed = status != 0 or resumed or following in self._limits.phases_after_checkpoint_cut
        if not self._cut_schedule.make_phase_durable(
            report, now, needed=needed, halted=halted is not None, phase=phase
        ):
            self._final_query, self.next_query_time = report.sequence + 1, now + DURABILITY_POLL_SECONDS
            return None
        self._final_query, self._next = 0, None
        if following is None and not status and halted is not None and report.durable_epoch == NEVER_DURABLE:
            # All work is done, but its data are not on storage: the exit status must say so.
            return PhaseDecision(None, self._director.status(report.totals, halted))
        return PhaseDecision(following, status)
