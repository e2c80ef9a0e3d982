"""``pdbench`` as a tool: on rank 0, which steps are measured, whether there is room, and what is told of them."""

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
"""In this order: each finds what the ones before have left."""

WARM_UP = 20_000
"""Microseconds of a test before the first measurement, which would be too slow: libraries, names and files are new."""

EMPTY_FILE = 512
"""Bytes that a file without contents may take: an inode, and its name."""


def _measured(totals: Totals) -> Done:
    return Done(totals.files, totals.files, totals.bytes, totals.bytes, totals.bytes, False)


STAGES: Stages = {"measure": Stage(_measured, measured=False)}


def ladder(most: int, factor: int) -> list[int]:
    """1, 1 · factor, … and ``most`` itself."""
    steps, number = [], 1
    while number < most:
        steps.append(number)
        number *= factor
    return [*steps, most]


def steps_of(arguments: BenchArguments, ranks: int) -> list[Step]:
    """All that is measured on up to so many ``ranks``. What is repeated is so when all else has been measured: what
    disturbs for a while disturbs one of the repeats."""
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
        most = arguments.size // block * block
        for number, shared in [(number, shared) for number in ladder(ranks, 2) for shared in (False, True)]:
            for test in (Test.WRITE, Test.READ)[: 2 if Test.READ in moving else 1] if number > 1 or not shared else ():
                step = Step(int(test), number, 1, shared, most, microseconds, rounds + 1, block, arguments.direct)
                steps.append(step)
    of_data = [step for step in steps if step.block == arguments.blocks[0] and step.ranks in (1, ranks)]
    begins += [step._replace(round=0, microseconds=min(WARM_UP, microseconds)) for step in of_data]
    turns = range(0, arguments.repeats * (rounds + 1), rounds + 1)
    return [*begins, *(step._replace(round=step.round + turn) for turn in turns for step in steps)]


class BenchDirector(RepeatableDirector):
    """One phase: each step begins when the one before is over."""

    def first_tasks(self, phase: int) -> Iterable[Spawn]:
        return [Spawn(phase, encode(task), 0, owner=owner) for owner, task in self._first()]

    def _first(self) -> Iterable[tuple[int, Prepare]]:
        return first_tasks(notebook_of(self._rank), self._rank.hosts.names)

    def next_phase(self, phase: int, totals: tuple[int, ...]) -> int | None:
        return None


class Benchmark(RepeatableTool):
    """An operation counts as an item, and as copied."""

    name = "pdbench"
    writes = True
    stages = STAGES
    done = "measured"
    director = BenchDirector

    def phase_name(self, phase: int) -> str:
        return "measure"

    def discard(self, rank: Rank, forgotten: Iterable[Task], since: int) -> None:
        """Rank 0 removes the private directory, however the job has ended."""
        if rank.number == 0:
            private = notebook_of(rank).private
            if private is not None:
                private.remove()  # what is left is told of at the end


BENCHMARK = Benchmark()


class BenchPreparation(SummedPreparation):
    program, incomplete = "pdbench", "a measurement failed, and those after it were not made"
    stopped = "the tables show what was measured before"

    def __init__(self, arguments: BenchArguments) -> None:
        """Raises ``Refused``; nothing is touched."""
        super().__init__(arguments.ranks, 1, arguments.telling, dry_run=arguments.dry_run)
        self.arguments = arguments
        root = root_read(arguments.directory, follow=True)
        if root.item:
            raise Refused(f"{shown(arguments.directory)}: is no directory; name one on the file system to be measured")
        if not os.access(root.target, os.W_OK | os.X_OK):
            raise Refused(f"{shown(arguments.directory)}: may not be written, and files have to be made in it")
        options = Options(termination=arguments.termination, sync=False, dry_run=arguments.dry_run)
        self.job = Job(os.urandom(5).hex(), 1, (root,), options)
        self.steps: list[Step] = []
        self._book: Notebook | None = None
        check_told(self.telling, (), "is measured", svg=arguments.svg)
        self._svg = OutputFile(arguments.svg) if arguments.svg else None

    def begin(self, ranks: int) -> None:
        """Raises ``Refused`` if there is too little room."""
        self.steps = steps_of(self.arguments, ranks)
        self._needs = max((step.most * step.ranks for step in self.steps if step.block), default=0)
        self._files = max((step.most * step.ranks for step in self.steps if not step.block), default=0)
        root = self.job.roots[0]
        try:
            free = free_on(root.target)
        except OSError:  # unknown: a measurement reports what cannot be written
            return
        needed = self._needs + self._files * EMPTY_FILE
        if free.bytes < needed:
            raise Refused(f"{shown(root.target_shown)}: {show_size(needed)} are needed at a time, and "
                          f"{show_size(free.bytes)} are free; choose a smaller --size or fewer --files")  # fmt: skip
        if 0 <= free.inodes < self._files + 2 * ranks:
            raise Refused(f"{shown(root.target_shown)}: {self._files:,} files are needed at a time, and "
                          f"{free.inodes:,} can be made; choose fewer --files")  # fmt: skip

    def announce(self) -> None:
        if self.telling.verbose:
            tell("pdbench", self._planned())

    def _planned(self) -> str:
        measured = [step for step in self.steps if step.is_measured]
        seconds = sum(step.microseconds for step in measured) / 1e6
        return (
            f"{counted(len(measured), 'measurement', 'measurements')} of up to {show_seconds(self.arguments.seconds)}, "
            f"{show_seconds(seconds)} together; at a time up to {counted(self._files, 'empty file', 'empty files')} "
            f"and {show_size(self._needs)} of data, all below {shown(self._private)}, which is removed at the end"
        )

    @property
    def _private(self) -> bytes:
        return os.path.join(self.job.roots[0].target_shown, private_name(self.job))

    def sink(self, screen: Sink) -> Sink:
        self._book = Notebook(screen, [] if self.dry_run else self.steps)
        return self._book

    def settle(self, rank: Rank, totals: Totals) -> int:
        return OK

    def tell_how_to_go_on(self) -> None:
        """All ranks have ended by now."""
        private = self._book.private if self._book else None
        left = private.remove() if private is not None else ""
        if left:
            tell("pdbench", f"{shown(self._private)}: {left}")

    @property
    def _taken(self) -> Sequence[Taken]:
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
        times = "once" if self.arguments.repeats == 1 else f"{self.arguments.repeats} times (medians are told)"
        yield f"in {show_seconds(seconds)} with up to {counted(ranks, 'rank', 'ranks')}, each measured {times}"

    def _draw(self, status: int) -> int:
        if self._svg is None or not self._taken:
            return status
        try:
            self._svg.replace(DRAWN.encode() + drawing(self._taken, shown(self.job.roots[0].target_shown)).encode())
        except OSError as error:
            tell("pdbench", f"{shown(self._svg.path)}: the picture could not be written: {error.strerror}")
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
