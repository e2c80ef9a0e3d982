"""``pdbench``: measure a file system. Rank 0 chooses the steps, checks that there is enough free space, and reports the
results.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence

from pcopy.engine.task import Spawn, Task
from pcopy.errors import INCOMPLETE, OK, Refused
from pcopy.jobs.path_read import root_read
from pcopy.launch.tool import Ended
from pcopy.report.gauge import Done, Stage, Stages
from pcopy.report.output_file import OutputFile
from pcopy.report.streams import tell
from pcopy.tasks.base.codec import encode
from pcopy.tasks.base.job import Job, Options, Sink, Totals
from pcopy.tasks.base.rank import Rank
from pcopy.tasks.bench.measure import Prepare, first_tasks, notebook_of, private_name
from pcopy.tasks.bench.steps import Notebook, Step, Taken, Test, medians
from pcopy.text import counted, shown
from pcopy.tools.arguments import BenchArguments
from pcopy.tools.bench_figures import advice, drawing, tables, values_of
from pcopy.tools.director import RepeatableDirector, RepeatableTool
from pcopy.tools.ending import SummedPreparation
from pcopy.tools.outputs import DRAWN, check_told
from pcopy.tools.space import free_on
from pcopy.tools.summary import summary_values
from pcopy.units import show_seconds, show_size

OF_FILES = (Test.CREATE, Test.STAT, Test.OPEN, Test.READDIR, Test.RENAME, Test.UNLINK)
"""The metadata tests, in the order in which they run: each needs the files that the tests before it created."""

WARM_UP = 20_000
"""Microseconds that each test runs before the first measurement, whose rate would be too low while libraries, names and
files are not cached.
"""

EMPTY_FILE = 512
"""Bytes that an empty file may occupy: its inode and its directory entry."""


def _measured(totals: Totals) -> Done:
    """Return the progress of the phase ``measure``, in operations and bytes; the total is unknown."""
    return Done(totals.files, totals.files, totals.bytes, totals.bytes, totals.bytes, False)


STAGES: Stages = {"measure": Stage(_measured, measured=False)}
"""The only stage of progress."""


def ladder(most: int, factor: int) -> list[int]:
    """Return the numbers 1, ``factor``, ``factor``² and so on that are smaller than ``most``, followed by ``most``."""
    steps, value = [], 1
    while value < most:
        steps.append(value)
        value *= factor
    return [*steps, most]


def steps_of(arguments: BenchArguments, ranks: int) -> list[Step]:
    """Return all steps of the benchmark on up to ``ranks`` ranks, in the order in which they run.

    Each repeat begins after all other steps were measured once, so that a temporary disturbance affects only one of the
    repeats.
    """
    microseconds = max(1, round(arguments.seconds * 1e6))
    tests = [test for test in OF_FILES if not arguments.tests or test.name.lower() in arguments.tests]
    begins: list[Step] = []
    steps: list[Step] = []
    rounds = 0
    for shared in (True, False) if tests else ():
        for number in ladder(ranks, 2):
            for in_flight in ladder(arguments.most_in_flight, 4):
                rounds += 1
                chosen = [test for test in tests if test != Test.READDIR or in_flight == 1]
                made = [] if chosen[:1] == [Test.CREATE] or not chosen else [Test.CREATE]
                for test in (*made, *chosen, Test.CLEAR) if chosen else ():
                    steps.append(Step(int(test), number, in_flight, shared, arguments.files, microseconds, rounds))
    warm = [test for test in tests if test != Test.CREATE]
    for number in dict.fromkeys((1, ranks)) if tests else ():
        for test in (Test.CREATE, *warm, Test.CLEAR):
            begins.append(Step(int(test), number, 1, False, arguments.files, min(WARM_UP, microseconds)))
    moving = [test for test in (Test.WRITE, Test.READ) if not arguments.tests or test.name.lower() in arguments.tests]
    for block in arguments.blocks if moving else ():
        amount = arguments.size // block * block
        for number, shared in [(number, shared) for number in ladder(ranks, 2) for shared in (False, True)]:
            for test in (Test.WRITE, Test.READ)[: 2 if Test.READ in moving else 1] if number > 1 or not shared else ():
                step = Step(int(test), number, 1, shared, amount, microseconds, rounds + 1, block, arguments.direct)
                steps.append(step)
    of_data = [step for step in steps if step.block == arguments.blocks[0] and step.ranks in (1, ranks)]
    begins += [step._replace(round=0, microseconds=min(WARM_UP, microseconds)) for step in of_data]
    turns = range(0, arguments.repeats * (rounds + 1), rounds + 1)
    return [*begins, *(step._replace(round=step.round + turn) for turn in turns for step in steps)]


class BenchDirector(RepeatableDirector):
    """Director of ``pdbench``: there is one phase, in which each step starts when the one before it has ended."""

    def first_tasks(self, phase: int) -> Iterable[Spawn]:
        return [Spawn(phase, encode(task), 0, owner=owner) for owner, task in self._first()]

    def _first(self) -> Iterable[tuple[int, Prepare]]:
        return first_tasks(notebook_of(self._rank), self._rank.hosts.names)

    def next_phase(self, phase: int, totals: tuple[int, ...]) -> int | None:
        return None


class Benchmark(RepeatableTool):
    """The program ``pdbench``. In its counters, an operation is an item that counts as copied."""

    name = "pdbench"
    writes = True
    stages = STAGES
    done = "measured"
    director = BenchDirector

    def phase_name(self, phase: int) -> str:
        return "measure"

    def discard(self, rank: Rank, forgotten: Iterable[Task], since: int) -> None:
        """Remove the private directory on rank 0, however the job has ended."""
        if rank.number == 0:
            private = notebook_of(rank).private
            if private is not None:
                private.remove()  # ``tell_end`` calls it once more and reports what could not be removed.


BENCHMARK = Benchmark()
"""The only instance of ``Benchmark``."""


class BenchPreparation(SummedPreparation):
    """The job of ``pdbench`` on rank 0: checks the arguments, chooses the steps, and reports the results."""

    program, incomplete = "pdbench", "a measurement failed, and later ones were not made"
    stopped = "the tables show what was measured before"

    def __init__(self, arguments: BenchArguments) -> None:
        """Check the arguments and prepare the job. Raise ``Refused`` if nothing can be measured in the directory;
        nothing is modified.
        """
        super().__init__(arguments.ranks, 1, arguments.telling, dry_run=arguments.dry_run)
        self.arguments = arguments
        root = root_read(arguments.directory, follow=True)
        if root.item:
            raise Refused(f"{shown(arguments.directory)}: is no directory; name one on the file system to be measured")
        if not os.access(root.target, os.W_OK | os.X_OK):
            raise Refused(f"{shown(arguments.directory)}: no permission to create files in it")
        options = Options(termination=arguments.termination, sync=False, dry_run=arguments.dry_run)
        self.job = Job(os.urandom(5).hex(), 1, (root,), options)
        self.steps: list[Step] = []
        self._book: Notebook | None = None
        check_told(self.telling, (), "is measured", svg=arguments.svg)
        self._svg = OutputFile(arguments.svg) if arguments.svg else None

    def begin(self, ranks: int) -> None:
        """Choose the steps for this number of ranks. Raise ``Refused`` if there is too little free space for their
        files.
        """
        self.steps = steps_of(self.arguments, ranks)
        self._needs = max((step.most * step.ranks for step in self.steps if step.block), default=0)
        self._files = max((step.most * step.ranks for step in self.steps if not step.block), default=0)
        root = self.job.roots[0]
        try:
            free = free_on(root.target)
        except OSError:  # The free space is unknown. A measurement that cannot write reports the error.
            return
        needed = self._needs + self._files * EMPTY_FILE
        if free.bytes < needed:
            raise Refused(f"{shown(root.target_shown)}: {show_size(needed)} are needed at a time, and "
                          f"{show_size(free.bytes)} are free; choose a smaller --size or fewer --files")  # fmt: skip
        if 0 <= free.inodes < self._files + 2 * ranks:
            raise Refused(f"{shown(root.target_shown)}: {self._files:,} files are needed at a time, and "
                          f"{free.inodes:,} can be created; choose fewer --files")  # fmt: skip

    def announce(self) -> None:
        if self.telling.verbose:
            tell("pdbench", self._planned())

    def _planned(self) -> str:
        """Return a description of the measurements that will be made, for people."""
        measured = [step for step in self.steps if step.is_measured]
        seconds = sum(step.microseconds for step in measured) / 1e6
        return (
            f"{counted(len(measured), 'measurement', 'measurements')} of up to {show_seconds(self.arguments.seconds)}, "
            f"{show_seconds(seconds)} together; at a time up to {counted(self._files, 'empty file', 'empty files')} "
            f"and {show_size(self._needs)} of data, all below {shown(self._private)}, which is removed at the end"
        )

    @property
    def _private(self) -> bytes:
        """Path of the private directory in which everything is measured."""
        return os.path.join(self.job.roots[0].target_shown, private_name(self.job))

    def sink(self, screen: Sink) -> Sink:
        self._book = Notebook(screen, [] if self.dry_run else self.steps)
        return self._book

    def settle(self, rank: Rank, totals: Totals) -> int:
        return OK

    def tell_how_to_go_on(self) -> None:
        """Remove the private directory, and report if it cannot be removed. All ranks have ended when this
        is called.
        """
        private = self._book.private if self._book else None
        remaining = private.remove() if private is not None else ""
        if remaining:
            tell("pdbench", f"{shown(self._private)}: {remaining}")

    @property
    def _taken(self) -> Sequence[Taken]:
        """The results: for each step the repeat with the median rate."""
        return medians(self._book.taken) if self._book else ()

    def tell_end(self, ended: Ended, ranks: int) -> int:
        self.tell_how_to_go_on()
        return super().tell_end(ended._replace(status=self._draw(ended.status)), ranks)

    def lines(self, ended: Ended, seconds: float, ranks: int) -> Iterator[str]:
        if self.dry_run:
            yield self._planned()
            return
        yield from tables(self._taken)
        yield from advice(self._taken)
        times = "once" if self.arguments.repeats == 1 else f"{self.arguments.repeats} times (medians are shown)"
        yield f"in {show_seconds(seconds)} with up to {counted(ranks, 'rank', 'ranks')}, each measured {times}"

    def _draw(self, status: int) -> int:
        """Write the chart of ``--svg``, if asked for. Return ``status``, or a worse one if the file cannot
        be written.
        """
        if self._svg is None or not self._taken:
            return status
        try:
            self._svg.replace(DRAWN.encode() + drawing(self._taken, shown(self.job.roots[0].target_shown)).encode())
        except OSError as error:
            tell("pdbench", f"{shown(self._svg.path)}: the chart could not be written: {error.strerror}")
            return max(status, INCOMPLETE)
        finally:
            self._svg.close()
        return status

    def summary(self, ended: Ended, seconds: float, ranks: int) -> dict[str, object]:
        return {
            **summary_values(ended.totals, ("failed",), seconds, ranks, ended.status),
            "dry_run": self.dry_run,
            "operations": ended.totals.files,
            "bytes": ended.totals.bytes,
            **values_of(self._taken),
        }
