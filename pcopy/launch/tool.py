"""The interface between a program and the code that starts its ranks: its tasks, what rank 0 prepares, and its reports.

A program on the engine is one ``Tool``, in a file of ``pcopy.tools``. The code that starts, runs, watches or displays
ranks uses this class and knows no program.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Protocol

from pcopy.engine.messages import Halt
from pcopy.engine.phase_end import Director
from pcopy.engine.task import Task
from pcopy.errors import EXIT_INCOMPLETE, EXIT_INTERNAL, EXIT_OK, EXIT_REFUSED, EXIT_STOPPED
from pcopy.fast_named_tuple import NamedTuple
from pcopy.jobs.lifecycle import CheckpointSettings, JobDirectory
from pcopy.report.progress_gauge import Stages
from pcopy.report.screen import OutputOptions
from pcopy.tasks.base import counts
from pcopy.tasks.base.job import Job, Sink, Totals
from pcopy.tasks.base.phases import Phase, phase_name
from pcopy.tasks.base.rank import Rank
from pcopy.tasks.base.values import Place
from pcopy.walk.visitor import Visitor


class JobResult(NamedTuple):
    """How a job ended, on rank 0: its exit status, the exact counters, and why it ``halt`` if it did not do
    everything.
    """

    status: int
    totals: Totals
    halt: Halt | None
    layouts: tuple[tuple[str, int], ...] = ()
    """Number of files per Lustre layout, described for people; empty if there are none."""
    work_of_ranks: bytes = b""
    """What all ranks report of their work (``pcopy.tasks.base.rank_sums``), if a report was asked for."""
    is_durable: bool = True
    """False if the job has written more than is recorded and on stable storage."""


class JobDirector(Director, Protocol):
    """Decides on rank 0 which phase follows, and holds how the job ended."""

    result: JobResult
    """How the job ended."""


CompleteJob = Callable[[Rank, Totals], int]
"""Does the remaining work when all items are processed; returns the exit status."""


class Tool:
    """A program that works on whole trees; each program is a subclass."""

    name: str
    """Name of the program, which begins each line of its messages."""
    writes_to_targets: bool
    """True if the program may write to the targets of its roots, which all hosts must then see alike."""
    unfinished_status: int
    """Exit status of a job that ends before everything is done."""
    spool_advice: str
    """What the user can do if there is no space for waiting work."""
    stages: Stages
    """How progress is measured."""
    done_word = "copied"
    """Word for what was done to an item that counts as ``Totals.copied``."""
    status_meanings: Mapping[int, str] = MappingProxyType(
        {
            EXIT_OK: "all done",
            EXIT_INCOMPLETE: "finished, but not everything is as it should be",
            EXIT_REFUSED: "something could not be read",
            EXIT_INTERNAL: "internal error",
            EXIT_STOPPED: "stopped early",
        }
    )
    """Meanings of the exit statuses, for people."""
    make_director: Callable[[Rank, CompleteJob, int], JobDirector]
    """Creates the director of a job; the last argument is ``unfinished``."""
    durable_before: tuple[int, ...] = (int(Phase.NAME),)
    """Phases that begin only after everything before them is recorded."""

    def phase_name(self, phase: int) -> str:
        """Return the name of a phase, for users."""
        return phase_name(phase)

    def initial_counts(self, job: Job) -> list[int]:
        """Return the counters before the first task: roots that are directories count as found; items below them
        count when they are found.
        """
        first = [0] * counts.COUNTER_COUNT
        first[counts.FOUND] = first[counts.UNSCANNED] = sum(1 for root in job.roots if not root.item)
        return first

    def make_visitor(self, rank: Rank, result: Any, place: Place, attempt: int) -> Visitor:
        """Return the visitor that receives the items that a task (``ScanDir``, ``ScanNames``) finds in a directory."""
        raise NotImplementedError

    def remove_temporaries(self, rank: Rank, forgotten: Iterable[Task], since: int) -> None:
        """Remove temporary files that were created by the run ``since`` or a later one and will never be completed.

        ``forgotten``: the tasks that were dropped.
        """


class PreparedJob:
    """A job that is ready to run, and what is reported to its user; on rank 0 only.

    This class serves programs that do not record jobs; others override it.
    """

    job: Job
    """The job; final once ``begin`` was called."""

    def __init__(self, ranks: int, in_flight: int, output_options: OutputOptions) -> None:
        """Prepare a job.

        Args:
            ranks: number of ranks that the user wants; 0: the default.
            in_flight: number of operations that each rank keeps under way; 0: automatic.
            output_options: what the user wants to be shown.
        """
        self.began = time.monotonic()
        self.ranks = ranks
        self.in_flight = in_flight
        self.output = output_options
        self.job_directory: JobDirectory | None = None
        """The job directory; None if the job is not recorded."""
        self.command_line: Sequence[str] = ()
        """The command line, without the name of the program."""
        self.json_values: dict[str, object] = {}
        """The values of ``--json``, once the end was reported."""
        self.number_of_places = 1
        """Number of hosts, or of namespaces on them, that have ranks; set before ``begin``."""

    @property
    def checkpoint(self) -> CheckpointSettings:
        """How the job is recorded, for all ranks."""
        return CheckpointSettings()

    def complete_preparation(self, ranks: int) -> None:
        """Complete the preparation for this number of ranks; raise ``RequestRefused``. Afterwards ``job`` is final."""

    def print_start(self) -> None:
        """Print what the job is about to do."""

    def sink(self, screen: Sink) -> Sink:
        """Return the receiver of the job's progress, failures and notices; ``screen`` or one that passes them on
        to it.
        """
        return screen

    def complete(self, rank: Rank, totals: Totals) -> int:
        """Do the remaining work when all items are processed; return the exit status (``CompleteJob``)."""
        raise NotImplementedError

    def report_end(self, ended: JobResult, ranks: int) -> int:
        """Print how the job ended; return the exit status."""
        raise NotImplementedError

    def print_resume_advice(self) -> None:
        """Print what the user can do after a rank has failed."""


class Command(NamedTuple):
    """A ``tool``, and the function that prepares a job from the user's command line; it raises ``RequestRefused``."""

    tool: Tool
    prepare: Callable[[Sequence[str]], PreparedJob]
