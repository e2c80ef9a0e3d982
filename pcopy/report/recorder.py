"""Recorders: files about a job, in addition to its screen, for people and programs, written while it runs and at its
end.

Rule: a recorder never ends a job, and does not change its exit status. If it cannot write its file, it reports that
once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from pcopy.fast_named_tuple import NamedTuple
from pcopy.report.progress_gauge import Stages
from pcopy.tasks.base.job import Failure, Job, Sink, Totals

if TYPE_CHECKING:
    from pcopy.tasks.base.item_outcomes import ItemOutcomes

PrintNotice = Callable[[str], None]
"""Prints a line to the user."""


class RunFacts(NamedTuple):
    """Data about a run that does not change while it runs.

    Fields:
    - ``program``: name of the program.
    - ``done_word``: the word for what it does to an item, as "copied".
    - ``writes_to_targets``: True if it writes to the targets of the job's roots.
    - ``stages``: how progress is measured.
    - ``job``: the job.
    - ``hosts``: the host of each rank.
    - ``backend``: the backend, for people.
    - ``started``: start of the run, in seconds since 1970.
    """

    program: str
    done_word: str
    writes_to_targets: bool
    stages: Stages
    job: Job
    hosts: Sequence[str]
    backend: str
    started: float
    earlier_totals: Totals = Totals()
    """Counters of the job's earlier runs."""
    command_line: Sequence[str] = ()
    """The command line, without the name of the program."""
    status_meanings: Mapping[int, str] = {}
    """Meanings of exit statuses, for people."""


class JobEnd(NamedTuple):
    """How a job ended, as it was reported to the user.

    Fields:
    - ``status``: the exit status.
    - ``totals``: the counters; after a failure of a rank, those that were received last.
    - ``halt_reason``: why the job stopped early; empty if it did not.
    - ``summary``: the values of ``--json``; empty after a failure of a rank.
    - ``work_of_ranks``: what all ranks reported of their work (``pcopy.tasks.base.rank_sums``), if they could.
    """

    status: int
    totals: Totals
    halt_reason: str = ""
    summary: Mapping[str, Any] = {}
    work_of_ranks: bytes = b""


class JobRecorder:
    """A file about a job."""

    def begin(self, facts: RunFacts, notice: PrintNotice) -> None:
        """Start to record; the job will not be refused any more. ``notice`` prints a line to the user."""

    def progress(self, phase: str, totals: Totals, silent: Sequence[int]) -> None:
        """Receive progress, as ``pcopy.tasks.base.job.Sink``."""

    def failures(self, failures: Sequence[Failure]) -> None:
        """Receive failures, as ``pcopy.tasks.base.job.Sink``."""

    def end(self, end: JobEnd) -> None:
        """Write the final contents. Called once, unless the job never began or rank 0 was lost."""


class RecorderSink:
    """All recorders of a job. Implements ``Sink``, and passes everything on to the screen."""

    def __init__(self, recorders: Sequence[JobRecorder]) -> None:
        self._recorders = recorders
        self._sink: Sink | None = None
        self._totals = Totals()

    def begin(self, facts: RunFacts, notice: PrintNotice) -> None:
        """Start all recorders."""
        self._totals = facts.earlier_totals
        for recorder in self._recorders:
            recorder.begin(facts, notice)

    def forward_to(self, sink: Sink) -> Sink:
        """Set the ``sink`` to which everything is passed on; return this object."""
        self._sink = sink
        return self

    def progress(self, phase: str, totals: Totals, silent: Sequence[int]) -> None:
        assert self._sink is not None
        self._sink.progress(phase, totals, silent)
        self._totals = totals
        for recorder in self._recorders:
            recorder.progress(phase, totals, silent)

    def failures(self, failures: Sequence[Failure]) -> None:
        assert self._sink is not None
        self._sink.failures(failures)
        for recorder in self._recorders:
            recorder.failures(failures)

    def notice(self, text: str) -> None:
        assert self._sink is not None
        self._sink.notice(text)

    def items(self, items: Sequence[ItemOutcomes]) -> None:
        assert self._sink is not None
        self._sink.items(items)

    def end(self, end: JobEnd) -> None:
        """Let all recorders write their final contents."""
        for recorder in self._recorders:
            recorder.end(end)

    def end_after_failure(self, status: int) -> None:
        """Let all recorders write their final contents after a rank has failed."""
        self.end(JobEnd(status, self._totals))
