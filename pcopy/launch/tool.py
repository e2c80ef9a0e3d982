"""The interface between a program (such as pcopy, prm, pverify) and the code that starts its ranks: what the program
consists of, what rank 0 prepares before the ranks start, and how the job ended.

Each program is a subclass of ``Tool``, in a file of ``pcopy.tools``. The code that starts, runs and watches ranks uses
only this class, and is the same for all programs.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Protocol

from pcopy.engine.messages import HaltMessage
from pcopy.engine.phase_end import PhaseDirector
from pcopy.engine.task import Task
from pcopy.errors import EXIT_INCOMPLETE, EXIT_INTERNAL, EXIT_OK, EXIT_REFUSED, EXIT_STOPPED
from pcopy.fast_named_tuple import NamedTuple
from pcopy.jobs.lifecycle import CheckpointSettings, JobDirectory
from pcopy.report.progress_gauge import StagesByPhase
from pcopy.report.screen import OutputOptions
from pcopy.tasks.base import counts
from pcopy.tasks.base.job import Job, JobCounters, ProgressSink
from pcopy.tasks.base.phases import Phase, phase_name
from pcopy.tasks.base.rank import Rank
from pcopy.tasks.base.values import Place
from pcopy.walk.visitor import DirectoryVisitor


class JobResult(NamedTuple):
    """Result of a job, on rank 0: the exit ``status``, the exact ``totals`` of the counters, and in ``halt`` the reason
    why the job was stopped early (None if it was not).
    """

    status: int
    totals: JobCounters
    halt: HaltMessage | None
    layouts: tuple[tuple[str, int], ...] = ()
    """Number of files per Lustre layout, described for people; empty if there are none."""
    work_of_ranks: bytes = b""
    """Statistics of all ranks for ``--report``, packed (``pcopy.tasks.base.rank_sums``); empty unless the user asked
    for that file.
    """
    is_durable: bool = True
    """False if a resumed job would repeat work that this job has done, because the records of that work are not on
    stable storage.
    """


class JobDirector(PhaseDirector, Protocol):
    """Protocol: decides on rank 0 which phase follows, and what the result of the job is."""

    result: JobResult
    """Result of the job; valid after the last phase."""


CompleteJob = Callable[[Rank, JobCounters], int]
"""Function that rank 0 calls when all items are processed, with the final counters. It does the work that remains, for
example writes a signature file, and returns the exit status of the job.
"""


class Tool:
    """A program of pcopy (such as pcopy, prm, pverify) that works on directory trees with several ranks. Each program
    is a subclass, of which there is one object.
    """

    name: str
    """Name of the program, which begins each line of its messages."""
    writes_to_targets: bool
    """True if the program may write to the destination; then all hosts must see the same destination."""
    unfinished_status: int
    """Exit status of a job that ends before everything is done, for example because of a signal."""
    spool_advice: str
    """Advice in the error message if there is no space for the temporary files with waiting tasks."""
    stages: StagesByPhase
    """What is counted as progress in each phase, for the progress display."""
    done_word = "copied"
    """What the program does to an item, as a past participle for messages, such as "copied". The number of such items
    is ``JobCounters.copied``.
    """
    status_meanings: Mapping[int, str] = MappingProxyType(
        {
            EXIT_OK: "all done",
            EXIT_INCOMPLETE: "finished, but not everything is as it should be",
            EXIT_REFUSED: "something could not be read",
            EXIT_INTERNAL: "internal error",
            EXIT_STOPPED: "stopped early",
        }
    )
    """What each exit status of the program means, as text for the files of ``--report``."""
    make_director: Callable[[Rank, CompleteJob, int], JobDirector]
    """Creates the object that decides on rank 0 which phases the job has. Arguments: the state of the rank, the
    function that does the remaining work when all items are processed, and the exit status of a job that ends before
    everything is done (``unfinished_status``).
    """
    durable_before: tuple[int, ...] = (int(Phase.NAME),)
    """Phases that begin only after the work of all earlier phases is recorded on stable storage."""

    def phase_name(self, phase: int) -> str:
        """Return the name of a phase, for users."""
        return phase_name(phase)

    def stages_of_job(self, job: Job) -> StagesByPhase:
        """Return what is counted as progress in each phase of ``job``."""
        return self.stages

    def initial_counts(self, job: Job) -> list[int]:
        """Return the counters before the first task. Each source that is a directory is counted as found and not yet
        scanned; items below it are counted when they are found.
        """
        first = [0] * counts.NUMBER_OF_COUNTERS
        first[counts.FOUND] = first[counts.UNSCANNED] = sum(1 for root in job.roots if not root.item)
        return first

    def make_visitor(self, rank: Rank, result: Any, place: Place, attempt: int) -> DirectoryVisitor:
        """Return the visitor for one directory: the object that receives the items that a scan of the directory finds.

        Args:
            rank: the rank that scans.
            result: collects the counts and new tasks of the scanning task.
            place: the directory, in the source and in the destination.
            attempt: number of times that the directory was scanned before in this run.
        """
        raise NotImplementedError

    def remove_temporary_files(self, rank: Rank, dropped_tasks: Iterable[Task], since: int) -> None:
        """Remove temporary files of this job that no later run will complete.

        Args:
            rank: this rank.
            dropped_tasks: the tasks that were dropped because the job was stopped; they name some of the files.
            since: number of a run of this job; files of earlier runs stay.
        """


class PreparedJob:
    """A job that rank 0 has prepared to run, and the messages about its beginning and end.

    This class serves programs that do not record jobs; others override some methods.
    """

    job: Job
    """The job; final once ``complete_preparation`` was called."""

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
        """The directory with the records from which the job can be resumed; None if the job is not recorded."""
        self.command_line: Sequence[str] = ()
        """The command line, without the name of the program."""
        self.json_values: dict[str, object] = {}
        """The values that ``--json`` prints; filled by ``report_job_result``."""
        self.host_count = 1
        """Number of hosts of the job, where different namespaces on a host count separately; set before
        ``complete_preparation``.
        """

    @property
    def checkpoint_settings(self) -> CheckpointSettings:
        """How the job is recorded (directory, interval, store). By default it is not recorded."""
        return CheckpointSettings()

    def complete_preparation(self, ranks: int) -> None:
        """Complete the preparation for this number of ranks; raise ``RequestRefused``. Afterwards ``job`` is final."""

    @property
    def state_after_second_sigint(self) -> str:
        """What is left of the job if a second SIGINT ends it at once, and how to continue, as part of a message."""
        return "the job is not recorded: repeat the command"

    def print_job_start_notices(self) -> None:
        """Print what the job is about to do, just before its first task."""

    def job_event_sink(self, screen: ProgressSink) -> ProgressSink:
        """Return the object that is to receive the job's progress, failures and notices: ``screen``, or an object that
        passes these on to ``screen``.
        """
        return screen

    def complete_job(self, rank: Rank, totals: JobCounters) -> int:
        """Do the work that remains when all items are processed, for example write a signature file; return the exit
        status of the job.

        ``totals`` are the final counters.
        """
        raise NotImplementedError

    def report_job_result(self, ended: JobResult, ranks: int) -> int:
        """Print the result ``ended`` of the job, which ran on ``ranks`` ranks; return the exit status of the
        program.
        """
        raise NotImplementedError

    def print_resume_advice(self) -> None:
        """Print what the user can do after a rank has failed or the job was stopped, such as how to resume the job."""


class ToolEntryPoint(NamedTuple):
    """A program (``tool``), and the function ``prepare`` that prepares a job from the command line arguments, and
    raises ``RequestRefused`` if they are wrong.
    """

    tool: Tool
    prepare: Callable[[Sequence[str]], PreparedJob]
