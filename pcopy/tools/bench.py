"""``pdbench``: measure a file system. Rank 0 chooses the steps, checks that there is enough free space, and reports the
results.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterable, Iterator, Sequence

from pcopy.engine.task import NewTask, Task
from pcopy.errors import EXIT_INCOMPLETE, EXIT_OK, path_refused, unwritable_directory_code
from pcopy.jobs.source_argument import root_for_reading
from pcopy.launch.tool import JobResult
from pcopy.report.output_file import OutputFile
from pcopy.report.progress_gauge import ProgressStage, StagesByPhase, WorkDone
from pcopy.report.streams import print_error
from pcopy.tasks.base.codec import encode_task
from pcopy.tasks.base.job import Job, JobCounters, Options, ProgressSink
from pcopy.tasks.base.rank import Rank
from pcopy.tasks.bench.measure import PrepareBenchmarkStep, benchmark_state, next_step_tasks, private_directory_name
from pcopy.tasks.bench.steps import BenchmarkState, BenchmarkStep, BenchmarkTest, StepResult, median_results
from pcopy.text import count_with_noun, printable_path
from pcopy.tools.arguments import BenchArguments
from pcopy.tools.bench_figures import advice_lines, benchmark_json_values, benchmark_svg_chart, result_table_lines
from pcopy.tools.director import UnrecordedJobDirector, UnrecordedJobTool
from pcopy.tools.final_output import UnrecordedJob
from pcopy.tools.outputs import SVG_BEGINNING, check_output_files
from pcopy.tools.space import free_space_of_file_system
from pcopy.tools.summary import common_json_values
from pcopy.units import format_seconds, format_size

METADATA_TESTS = (
    BenchmarkTest.CREATE,
    BenchmarkTest.STAT,
    BenchmarkTest.OPEN,
    BenchmarkTest.READDIR,
    BenchmarkTest.RENAME,
    BenchmarkTest.UNLINK,
)
"""The metadata tests, in the order in which they run: each needs the files that the tests before it created."""

WARM_UP_MICROSECONDS = 20_000
"""Duration in microseconds of each test that is run once before the measurements, as a warm-up.

Without it the first rates would be too low, since libraries, names and files are not cached yet.
"""

BYTES_PER_EMPTY_FILE = 512
"""Bytes that an empty file may occupy (its inode and its directory entry), for the estimate of the needed space."""


def _progress_of_measurements(totals: JobCounters) -> WorkDone:
    """Return the progress of the phase ``measure``, in operations and bytes; the total is unknown."""
    return WorkDone(totals.files, totals.files, totals.bytes, totals.bytes, totals.bytes, False)


BENCHMARK_STAGES: StagesByPhase = {"measure": ProgressStage(_progress_of_measurements, is_measured=False)}
"""How progress is measured: there is one stage, for the only phase, ``measure``."""


def growing_numbers_up_to(most: int, factor: int) -> list[int]:
    """Return the numbers 1, ``factor``, ``factor``² and so on that are smaller than ``most``, followed by ``most``."""
    steps, value = [], 1
    while value < most:
        steps.append(value)
        value *= factor
    return [*steps, most]


def benchmark_steps(arguments: BenchArguments, ranks: int) -> list[BenchmarkStep]:
    """Return all steps of the benchmark in the order in which they run.

    A step is one test, run by a number of ranks from 1 to ``ranks``, with a number of operations in flight or a block
    size. The first steps warm up and are not measured. Then the whole sequence of steps is run as often as ``--repeat``
    says: a step is not repeated at once, so that a temporary disturbance affects only one of its repeats.
    """
    microseconds = max(1, round(arguments.seconds * 1e6))
    tests = [test for test in METADATA_TESTS if not arguments.tests or test.name.lower() in arguments.tests]
    begins: list[BenchmarkStep] = []
    steps: list[BenchmarkStep] = []
    rounds = 0
    for shared in (True, False) if tests else ():
        for number in growing_numbers_up_to(ranks, 2):
            for in_flight in growing_numbers_up_to(arguments.max_in_flight, 4):
                rounds += 1
                chosen = [test for test in tests if test != BenchmarkTest.READDIR or in_flight == 1]
                made = [] if chosen[:1] == [BenchmarkTest.CREATE] or not chosen else [BenchmarkTest.CREATE]
                for test in (*made, *chosen, BenchmarkTest.CLEAR) if chosen else ():
                    steps.append(
                        BenchmarkStep(int(test), number, in_flight, shared, arguments.files, microseconds, rounds)
                    )
    warm = [test for test in tests if test != BenchmarkTest.CREATE]
    for number in dict.fromkeys((1, ranks)) if tests else ():
        for test in (BenchmarkTest.CREATE, *warm, BenchmarkTest.CLEAR):
            begins.append(
                BenchmarkStep(int(test), number, 1, False, arguments.files, min(WARM_UP_MICROSECONDS, microseconds))
            )
    moving = [
        test
        for test in (BenchmarkTest.WRITE, BenchmarkTest.READ)
        if not arguments.tests or test.name.lower() in arguments.tests
    ]
    for block in arguments.blocks if moving else ():
        amount = arguments.size // block * block
        for number, shared in [
            (number, shared) for number in growing_numbers_up_to(ranks, 2) for shared in (False, True)
        ]:
            for test in (
                (BenchmarkTest.WRITE, BenchmarkTest.READ)[: 2 if BenchmarkTest.READ in moving else 1]
                if number > 1 or not shared
                else ()
            ):
                step = BenchmarkStep(
                    int(test), number, 1, shared, amount, microseconds, rounds + 1, block, arguments.direct
                )
                steps.append(step)
    of_data = [step for step in steps if step.block_bytes == arguments.blocks[0] and step.ranks in (1, ranks)]
    begins += [step._replace(round=0, microseconds=min(WARM_UP_MICROSECONDS, microseconds)) for step in of_data]
    turns = range(0, arguments.repeats * (rounds + 1), rounds + 1)
    return [*begins, *(step._replace(round=step.round + turn) for turn in turns for step in steps)]


class BenchDirector(UnrecordedJobDirector):
    """Director of ``pdbench`` (the object on rank 0 that chooses phases and first tasks). There is one phase: it begins
    with the tasks of the first step, and each further step starts when the step before it has ended on all ranks.
    """

    def first_tasks_of_phase(self, phase: int) -> Iterable[NewTask]:
        return [NewTask(phase, encode_task(task), 0, owner=owner) for owner, task in self._first_tasks_by_rank()]

    def _first_tasks_by_rank(self) -> Iterable[tuple[int, PrepareBenchmarkStep]]:
        return next_step_tasks(benchmark_state(self._rank), self._rank.hosts.names)

    def next_phase(self, phase: int, totals: tuple[int, ...]) -> int | None:
        return None


class BenchTool(UnrecordedJobTool):
    """The program ``pdbench``. In its counters (``JobCounters``), each measured operation counts as a copied file."""

    name = "pdbench"
    writes_to_targets = True
    stages = BENCHMARK_STAGES
    done_word = "measured"
    make_director = BenchDirector

    def phase_name(self, phase: int) -> str:
        return "measure"

    def remove_temporary_files(self, rank: Rank, dropped_tasks: Iterable[Task], since: int) -> None:
        """On rank 0, remove the directory that contains all files of the measurements, whether the job has succeeded or
        not.

        Args:
            rank: this rank.
            dropped_tasks, since: not needed by this program.
        """
        if rank.number == 0:
            private = benchmark_state(rank).private
            if private is not None:
                private.remove()  # ``report_job_result`` removes it again, and reports what remains.


BENCH_TOOL = BenchTool()
"""The only instance of ``BenchTool``."""


class BenchJob(UnrecordedJob):
    """The job of ``pdbench`` on rank 0: checks the arguments, chooses the steps, and reports the results."""

    program, incomplete_text = "pdbench", "a measurement failed, and later ones were not made"
    stopped_text = "the tables show what was measured before"

    def __init__(self, arguments: BenchArguments) -> None:
        """Check the arguments and prepare the job. Raise ``RequestRefused`` if nothing can be measured in the
        directory; nothing is modified.
        """
        super().__init__(arguments.ranks, 1, arguments.output, dry_run=arguments.dry_run)
        self.arguments = arguments
        root = root_for_reading(arguments.directory, follow=True)
        if root.item:
            raise path_refused(
                arguments.directory,
                "is not a directory; name one on the file system to be measured",
                code=errno.ENOTDIR,
            )
        if not os.access(root.target, os.W_OK | os.X_OK):
            raise path_refused(
                arguments.directory,
                "no permission to create files in it; name another directory",
                code=unwritable_directory_code(root.target),
            )
        options = Options(termination=arguments.termination, sync=False, dry_run=arguments.dry_run)
        self.job = Job(os.urandom(5).hex(), 1, (root,), options)
        self.steps: list[BenchmarkStep] = []
        self._state: BenchmarkState | None = None
        check_output_files(self.output, (), "is measured", svg=arguments.svg)
        self._svg = OutputFile(arguments.svg) if arguments.svg else None

    def complete_preparation(self, ranks: int) -> None:
        """Choose the steps for this number of ranks. Raise ``RequestRefused`` if the file system has too little free
        space, or too few free inodes, for the files of a step.
        """
        self.steps = benchmark_steps(self.arguments, ranks)
        self._data_bytes = max((step.max_amount * step.ranks for step in self.steps if step.block_bytes), default=0)
        self._file_count = max((step.max_amount * step.ranks for step in self.steps if not step.block_bytes), default=0)
        root = self.job.roots[0]
        try:
            free = free_space_of_file_system(root.target)
        except OSError:  # The free space is unknown. A measurement that cannot write reports the error.
            return
        needed = self._data_bytes + self._file_count * BYTES_PER_EMPTY_FILE
        if free.bytes < needed:
            raise path_refused(
                root.target_shown,
                f"up to {format_size(needed)} are needed at the same time, and only {format_size(free.bytes)} are "
                "free; choose a smaller --size or fewer --files",
            )
        if 0 <= free.inodes < self._file_count + 2 * ranks:
            raise path_refused(
                root.target_shown,
                f"one measurement needs {self._file_count:,} files, and only {free.inodes:,} can be created; choose "
                "fewer --files",
            )

    def print_job_start_notices(self) -> None:
        if self.output.verbose:
            print_error("pdbench", self._measurement_plan_text())

    def _measurement_plan_text(self) -> str:
        """Return one sentence for people: number and duration of the measurements, and the files that they need."""
        measured = [step for step in self.steps if step.is_measured]
        seconds = sum(step.microseconds for step in measured) / 1e6
        return (
            f"{count_with_noun(len(measured), 'measurement', 'measurements')} of up to "
            f"{format_seconds(self.arguments.seconds)}, {format_seconds(seconds)} together; at a time up to "
            f"{count_with_noun(self._file_count, 'empty file', 'empty files')} and {format_size(self._data_bytes)} of "
            f"data, all below {printable_path(self._private_directory_path)}, which is removed at the end"
        )

    @property
    def _private_directory_path(self) -> bytes:
        """Path of the directory that this job creates below DIRECTORY; all files of the measurements are in it."""
        return os.path.join(self.job.roots[0].target_shown, private_directory_name(self.job))

    def job_event_sink(self, screen: ProgressSink) -> ProgressSink:
        self._state = BenchmarkState(screen, [] if self.dry_run else self.steps)
        return self._state

    def complete_job(self, rank: Rank, totals: JobCounters) -> int:
        return EXIT_OK

    def print_resume_advice(self) -> None:
        """Remove the directory with the files of the measurements, and report what cannot be removed.

        Called when all ranks have ended, after a failure. There is no advice to print: a benchmark cannot be resumed.
        """
        private = self._state.private if self._state else None
        remaining = private.remove() if private is not None else ""
        if remaining:
            print_error("pdbench", f"{printable_path(self._private_directory_path)}: {remaining}")

    @property
    def _median_step_results(self) -> Sequence[StepResult]:
        """The results of all steps: for each one the repeat with the median rate. Empty before the ranks have
        started.
        """
        return median_results(self._state.results) if self._state else ()

    def report_job_result(self, ended: JobResult, ranks: int) -> int:
        self.print_resume_advice()
        return super().report_job_result(ended._replace(status=self._write_chart(ended.status)), ranks)

    def summary_lines(self, ended: JobResult, seconds: float, ranks: int) -> Iterator[str]:
        if self.dry_run:
            yield self._measurement_plan_text()
            return
        yield from result_table_lines(self._median_step_results)
        yield from advice_lines(self._median_step_results)
        times = "once" if self.arguments.repeats == 1 else f"{self.arguments.repeats} times (medians are shown)"
        yield (
            f"in {format_seconds(seconds)} with up to {count_with_noun(ranks, 'rank', 'ranks')}, each measured {times}"
        )

    def _write_chart(self, status: int) -> int:
        """Write the chart of ``--svg``, if that option was given and there are results.

        ``status`` is the exit status so far. Return it, or 1 (incomplete) if the file cannot be written and ``status``
        is less.
        """
        if self._svg is None or not self._median_step_results:
            return status
        try:
            self._svg.replace(
                SVG_BEGINNING.encode()
                + benchmark_svg_chart(
                    self._median_step_results, printable_path(self.job.roots[0].target_shown)
                ).encode()
            )
        except OSError as error:
            print_error(
                "pdbench", f"{printable_path(self._svg.path)}: the chart could not be written: {error.strerror}"
            )
            return max(status, EXIT_INCOMPLETE)
        finally:
            self._svg.close()
        return status

    def json_summary(self, ended: JobResult, seconds: float, ranks: int) -> dict[str, object]:
        return {
            **common_json_values(ended.totals, ("failed",), seconds, ranks, ended.status),
            "dry_run": self.dry_run,
            "operations": ended.totals.files,
            "bytes": ended.totals.bytes,
            **benchmark_json_values(self._median_step_results),
        }
