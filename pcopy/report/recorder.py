"""Recorders: objects that receive progress and failures of a job and write them to a file (``--metrics``,
``--report``).

Rule: an error of a recorder never ends the job, and does not change its exit status. A recorder that cannot write its
file reports that once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from pcopy.fast_named_tuple import NamedTuple
from pcopy.report.progress_gauge import StagesByPhase
from pcopy.tasks.base.job import Failure, Job, JobCounters, ProgressSink

if TYPE_CHECKING:
    from pcopy.tasks.base.item_outcomes import PackedItemOutcomes

PrintNotice = Callable[[str], None]
"""Function that prints a line to the user."""


class RunDescription(NamedTuple):
    """Data about a run that do not change while it runs.

    Fields:
    - ``program``: name of the program.
    - ``done_word``: what the program does to an item, as a participle such as "copied".
    - ``writes_to_targets``: True if the program writes to a destination; False if it works on its sources alone.
    - ``stages``: the parts of the job whose progress is measured separately.
    - ``job``: the job.
    - ``hosts``: the names of the hosts, by rank.
    - ``backend``: the name of the code that performs file operations (C or Python), for people.
    - ``started``: start of the run, in seconds since 1970.
    """

    program: str
    done_word: str
    writes_to_targets: bool
    stages: StagesByPhase
    job: Job
    hosts: Sequence[str]
    backend: str
    started: float
    earlier_totals: JobCounters = JobCounters()
    """Counters of the job's earlier runs."""
    command_line: Sequence[str] = ()
    """The command line, without the name of the program."""
    status_meanings: Mapping[int, str] = {}
    """Texts for people that say what the exit statuses of the program mean."""


class JobEnd(NamedTuple):
    """How a job ended, as it was reported to the user.

    Fields:
    - ``status``: the exit status.
    - ``totals``: the counters; if a rank was lost, those that rank 0 received last.
    - ``halt_reason``: why the job stopped early; empty if it did not.
    - ``summary``: the values of ``--json``; empty if a rank was lost.
    - ``work_of_ranks``: sums of the work of each rank, packed (``pcopy.tasks.base.rank_sums``); empty if they are not
      known.
    """

    status: int
    totals: JobCounters
    halt_reason: str = ""
    summary: Mapping[str, Any] = {}
    work_of_ranks: bytes = b""


class JobRecorder:
    """Base class of the recorders. All methods are called on rank 0; a subclass overrides those that it needs."""

    def begin_recording(self, facts: RunDescription, notice: PrintNotice) -> None:
        """Called when it is certain that the job runs: start to record.

        ``facts`` describe the run. ``notice`` prints a line to the user.
        """

    def record_progress(self, phase: str, totals: JobCounters, silent: Sequence[int]) -> None:
        """Called repeatedly while the job runs, to record its progress.

        Args:
            phase: name of the current phase.
            totals: the job's counters.
            silent: the ranks that have not answered lately.
        """

    def record_failures(self, failures: Sequence[Failure]) -> None:
        """Called with the items that have failed since the last call."""

    def end(self, end: JobEnd) -> None:
        """Called once when the job has ended: write the final contents. Not called if the job never began or rank 0 was
        lost.
        """


class RecorderSink:
    """Passes progress and failures of a job on to all its recorders, and to the screen or another ``ProgressSink``.

    Implements the protocol ``pcopy.tasks.base.job.ProgressSink``, through which a job reports. ``forward_to`` must be
    called before anything is passed on.
    """

    def __init__(self, recorders: Sequence[JobRecorder]) -> None:
        self._recorders = recorders
        self._sink: ProgressSink | None = None
        self._totals = JobCounters()

    def begin_all_recorders(self, facts: RunDescription, notice: PrintNotice) -> None:
        """Start all recorders: call their ``begin_recording`` with the same arguments."""
        self._totals = facts.earlier_totals
        for recorder in self._recorders:
            recorder.begin_recording(facts, notice)

    def forward_to(self, sink: ProgressSink) -> ProgressSink:
        """Set the ``sink`` to which everything is passed on, in addition to the recorders; return this object."""
        self._sink = sink
        return self

    def receive_progress(self, phase: str, totals: JobCounters, silent: Sequence[int]) -> None:
        assert self._sink is not None
        self._sink.receive_progress(phase, totals, silent)
        self._totals = totals
        for recorder in self._recorders:
            recorder.record_progress(phase, totals, silent)

    def receive_failures(self, failures: Sequence[Failure]) -> None:
        assert self._sink is not None
        self._sink.receive_failures(failures)
        for recorder in self._recorders:
            recorder.record_failures(failures)

    def receive_notice(self, text: str) -> None:
        assert self._sink is not None
        self._sink.receive_notice(text)

    def items(self, items: Sequence[PackedItemOutcomes]) -> None:
        assert self._sink is not None
        self._sink.items(items)

    def end(self, end: JobEnd) -> None:
        """Let all recorders write their final contents."""
        for recorder in self._recorders:
            recorder.end(end)

    def record_end_after_rank_failure(self, status: int) -> None:
        """Let all recorders write their final contents after a rank was lost, with the counters received last."""
        self.end(JobEnd(status, self._totals))
