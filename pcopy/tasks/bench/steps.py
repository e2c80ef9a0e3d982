"""The steps of a benchmark, and the results that rank 0 collects. A step is one test by a number of ranks.

Rank 0 lets the ranks of a step prepare, then measure, and starts the next step when all have reported their results
(``pcopy.tasks.bench.measure``). No rank begins to measure late because it was asleep: it has just prepared.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from enum import IntEnum

from pcopy.fast_named_tuple import NamedTuple
from pcopy.fsio.backend.batches import BenchmarkOperation
from pcopy.tasks.base.job import ForwardingProgressSink, ProgressSink
from pcopy.tasks.bench.private import PrivateDirectory


class BenchmarkTest(IntEnum):
    """What is measured in a step of a benchmark. The first five tests make one system call for each file. READDIR lists
    directories, WRITE and READ transfer data. CLEAR removes the files of a round and is not measured.
    """

    CREATE = BenchmarkOperation.CREATE
    STAT = BenchmarkOperation.STAT
    OPEN = BenchmarkOperation.OPEN
    RENAME = BenchmarkOperation.RENAME
    UNLINK = BenchmarkOperation.UNLINK
    READDIR = 10
    WRITE = 11
    READ = 12
    CLEAR = 20

    @property
    def is_data_test(self) -> bool:
        """True if the test transfers data, so that its result is a number of bytes. Otherwise it is a number of
        operations.
        """
        return self in (BenchmarkTest.WRITE, BenchmarkTest.READ)


class BenchmarkStep(NamedTuple):
    """A step of a benchmark: one test on the first ``ranks`` ranks. On each rank it ends after ``microseconds`` or at
    ``max_amount``, whichever comes first.

    Fields of metadata tests:

    - ``max_amount``: the maximum number of files of each rank.
    - ``is_shared``: True if all files are in one directory, False if each rank has a directory.
    - ``in_flight``: the number of system calls that each rank makes at the same time.
    - ``round``: steps of the same round use the same files; the steps of round 0 warm up.

    Fields of data tests:

    - ``max_amount``: the maximum number of bytes of each rank.
    - ``is_shared``: True if all ranks use segments of one file, False if each rank has a file.
    - ``block_bytes``: the number of bytes of each write or read; 0 in metadata tests.
    - ``direct``: True if the page cache is bypassed (O_DIRECT).
    """

    test: int
    ranks: int
    in_flight: int
    is_shared: bool
    max_amount: int
    microseconds: int
    round: int = 0
    block_bytes: int = 0
    direct: bool = False

    @property
    def is_measured(self) -> bool:
        """True if the result of the step is recorded: not for warm-up steps, nor for CLEAR."""
        return self.round > 0 and self.test != BenchmarkTest.CLEAR


class RankTiming(NamedTuple):
    """What one rank measured in a step: start and end in nanoseconds of the clock of its host, and the number
    (``amount``) of operations or bytes.
    """

    rank: int
    begin: int
    end: int
    amount: int


class StepResult(NamedTuple):
    """The result of a step: the number (``amount``) of operations or bytes of all ranks together, and the time in
    ``seconds``.
    """

    step: BenchmarkStep
    amount: int
    seconds: float
    spread: float = 0.0
    """For a step that was repeated: how much the repeats differ, as the difference between the highest and the lowest
    rate, divided by the rate of this result.
    """

    @property
    def rate(self) -> float:
        """Operations or bytes per second; 0 if no time has passed."""
        return self.amount / self.seconds if self.seconds > 0 else 0.0

    @classmethod
    def from_timings(cls, step: BenchmarkStep, parts: Sequence[RankTiming], *, one_clock: bool) -> StepResult:
        """Return the result of ``step``, combined from what each of its ranks has measured (``parts``).

        If all ranks share one clock (``one_clock``, all on one host), the time is that from the earliest start to the
        latest end. Otherwise it is the time of the slowest rank.
        """
        if one_clock:
            took = max(part.end for part in parts) - min(part.begin for part in parts)
        else:
            took = max(part.end - part.begin for part in parts)
        return cls(step, sum(part.amount for part in parts), took / 1e9)


def median_results(results: Sequence[StepResult]) -> list[StepResult]:
    """Return one result for each step that was repeated: the one with the median rate (of two repeats, the slower one).

    Its ``spread`` is the difference between the fastest and the slowest repeat, divided by the median rate. The results
    are in the order of the first repeat.
    """
    alike: dict[BenchmarkStep, list[StepResult]] = {}
    for each in results:
        alike.setdefault(each.step._replace(round=1), []).append(each)
    found = []
    for repeats in alike.values():
        repeats.sort(key=lambda each: each.rate)
        median = repeats[(len(repeats) - 1) // 2]
        spread = (repeats[-1].rate - repeats[0].rate) / median.rate if median.rate else 0.0
        found.append(median._replace(spread=spread))
    return found


class BenchmarkState(ForwardingProgressSink):
    """State of a benchmark on rank 0: the steps that remain, and the results so far. It is also the receiver of the
    job's output, which it passes on to the screen.
    """

    def __init__(self, screen: ProgressSink, steps: Sequence[BenchmarkStep]) -> None:
        super().__init__(screen)
        self._steps: Iterator[BenchmarkStep] = iter(steps)
        self.step: BenchmarkStep | None = None
        self.ready_ranks = 0
        self.timings: list[RankTiming] = []
        self.results: list[StepResult] = []
        self.created: dict[int, int] = {}
        """What each rank created in the last step that created something: the number of its files, or the bytes of its
        file.
        """
        self.private: PrivateDirectory | None = None
        """The private directory; None before it was created."""

    def start_next_step(self) -> BenchmarkStep | None:
        """Take the next step from the remaining ones, make it the present step, and return it; return None after the
        last one.
        """
        self.step, self.ready_ranks, self.timings = next(self._steps, None), 0, []
        return self.step

    def add_timing(self, part: RankTiming, *, one_clock: bool) -> bool:
        """Add what one rank has measured in the present step (``part``). Return True if it was the last rank of the
        step: then the result of the step is computed. ``one_clock`` is True if all ranks are on one host.
        """
        assert self.step is not None
        self.timings.append(part)
        if self.step.test in (BenchmarkTest.CREATE, BenchmarkTest.WRITE):
            self.created[part.rank] = part.amount
        if len(self.timings) < self.step.ranks:
            return False
        if self.step.is_measured:
            self.results.append(StepResult.from_timings(self.step, self.timings, one_clock=one_clock))
        return True
