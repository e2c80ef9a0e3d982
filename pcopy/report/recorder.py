"""What is told of a job beside its screen: files that programs and people read while it runs, and afterwards.

Rule: a recorder never ends a job, and does not change its exit status; what it cannot write, it says once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from pcopy.named import NamedTuple
from pcopy.report.gauge import Stages
from pcopy.tasks.base.job import Failure, Job, Sink, Totals

if TYPE_CHECKING:
    from pcopy.tasks.base.itemized import Itemized

Notice = Callable[[str], None]


class Facts(NamedTuple):
    """What does not change while a job runs: the ``program``, and the word for what it has ``done`` to an item. Does it
    write to the targets of the job's roots? Each rank's host; when the job ``started``, in seconds since 1970."""

    program: str
    done: str
    writes: bool
    stages: Stages
    job: Job
    hosts: Sequence[str]
    kernel: str
    started: float
    before: Totals = Totals()
    """What earlier runs of the job have counted."""
    words: Sequence[str] = ()
    """The command line, without the program."""
    meanings: Mapping[int, str] = {}
    """What exit statuses mean."""


class End(NamedTuple):
    """How a job has ended: as its user was told, with the values of ``--json``.

    Of a job that ended in disorder the ``totals`` are those that were heard last, and ``summary`` is empty. ``halted``
    is the reason to stop early, if there was one; ``gathered`` what all ranks have said of themselves
    (``pcopy.tasks.base.rank_sums``), if they could.
    """

    status: int
    totals: Totals
    halted: str = ""
    summary: Mapping[str, Any] = {}
    gathered: bytes = b""


class Recorder:
    """One file that tells of a job."""

    def begin(self, facts: Facts, notice: Notice) -> None:
        """The job will not be refused any more; ``notice`` tells the user a line."""

    def progress(self, phase: str, totals: Totals, silent: Sequence[int]) -> None:
        """As for ``pcopy.tasks.base.job.Sink``."""

    def failures(self, failures: Sequence[Failure]) -> None:
        """As for ``pcopy.tasks.base.job.Sink``."""

    def end(self, end: End) -> None:
        """Called once, at last, if the job has begun and rank 0 is there yet."""


class Records:
    """All recorders of a job. Fills ``Sink``, in front of the screen."""

    def __init__(self, recorders: Sequence[Recorder]) -> None:
        self._recorders = recorders
        self._sink: Sink | None = None
        self._totals = Totals()

    def begin(self, facts: Facts, notice: Notice) -> None:
        self._totals = facts.before
        for recorder in self._recorders:
            recorder.begin(facts, notice)

    def before(self, sink: Sink) -> Sink:
        """What is told to this is told to ``sink``, too."""
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

    def items(self, items: Sequence[Itemized]) -> None:
        assert self._sink is not None
        self._sink.items(items)

    def end(self, end: End) -> None:
        for recorder in self._recorders:
            recorder.end(end)

    def end_in_disorder(self, status: int) -> None:
        self.end(End(status, self._totals))
