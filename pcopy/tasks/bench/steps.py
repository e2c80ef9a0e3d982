"""The steps of a benchmark, each one test by a number of ranks, and the results that rank 0 collects.

Rank 0 lets the ranks of a step prepare, then measure, and starts the next step when all have reported their results
(``pcopy.tasks.bench.measure``). So no rank starts late because it was asleep: it has just prepared.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from enum import IntEnum

from pcopy.fast_named_tuple import NamedTuple
from pcopy.fsio.backend.batches import TrialOperation
from pcopy.tasks.base.job import ForwardingSink, Sink
from pcopy.tasks.bench.private import PrivateDirectory


class BenchmarkTest(IntEnum):
    """The test of a step. The first five make one ``Call`` for each file; CLEAR removes the files and is
    not measured.
    """

    CREATE = TrialOperation.CREATE
    STAT = TrialOperation.STAT
    OPEN = TrialOperation.OPEN
    RENAME = TrialOperation.RENAME
    UNLINK = TrialOperation.UNLINK
    READDIR = 10
    WRITE = 11
    READ = 12
    CLEAR = 20

    @property
    def is_data_test(self) -> bool:
        """True if the test transfers data: its bytes are counted. Otherwise its operations are counted."""
        return self in (BenchmarkTest.WRITE, BenchmarkTest.READ)


class Step(NamedTuple):
    """One test on the first ``ranks`` ranks, which ends after ``microseconds`` or at ``max_amount``, whichever comes
    first.

    Fields of metadata tests:
    - ``max_amount``: the maximum number of files of each rank.
    - ``is_shared``: True if all files are in one directory, False if each rank has a directory.
    - ``in_flight``: the number of operations that each rank keeps under way.
    - ``round``: steps of the same round use the same files; the steps of round 0 warm up.

    Fields of data tests:
    - ``max_amount``: the maximum number of bytes of each rank.
    - ``is_shared``: True if all ranks use segments of one file, False if each rank has a file.
    - ``block_bytes``: the number of bytes of each write or read; 0 in metadata tests.
    - ``direct``: True if the page cache is bypassed.
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
        """True if the result of the step is recorded."""
        return self.round > 0 and self.test != BenchmarkTest.CLEAR


class RankTiming(NamedTuple):
    """The part of one rank in a step: its start and end in nanoseconds of its host's clock, and the ``number`` of
    operations or bytes.
    """

    rank: int
    begin: int
    end: int
    amount: int


class StepResult(NamedTuple):
    """The result of a step: the ``amount`` of operations or bytes of all ranks together, and the time in
    ``seconds``.
    """

    step: Step
    amount: int
    seconds: float
    spread: float = 0.0
    """If it was made several times: by which part of the rate the slowest and the fastest one differ."""

    @property
    def rate(self) -> float:
        """Operations or bytes per second."""
        return self.amount / self.seconds if self.seconds > 0 else 0.0

    @classmethod
    def from_timings(cls, step: Step, parts: Sequence[RankTiming], *, one_clock: bool) -> StepResult:
        """Combine the parts of all ranks.

        If all ranks share one clock (``one_clock``), the time is that from the earliest start to the latest end;
        otherwise it is the time that the slowest rank took.
        """
        if one_clock:
            took = max(part.end for part in parts) - min(part.begin for part in parts)
        else:
            took = max(part.end - part.begin for part in parts)
        return cls(step, sum(part.amount for part in parts), took / 1e9)


def median_results(results: Sequence[StepResult]) -> list[StepResult]:
    """Return one result for each step that was repeated: that with the median rate (of two, the slower one).

    ``spread`` of the result is the relative difference between the fastest and the slowest repeat. The order is that of
    the first repeat.
    """
    alike: dict[Step, list[StepResult]] = {}
    for each in results:
        alike.setdefault(each.step._replace(round=1), []).append(each)
    found = []
    for repeats in alike.values():
        repeats.sort(key=lambda each: each.rate)
        median = repeats[(len(repeats) - 1) // 2]
        spread = (repeats[-1].rate - repeats[0].rate) / median.rate if median.rate else 0.0
        found.append(median._replace(spread=spread))
    return found


class BenchmarkState(ForwardingSink):
    """Sink on rank 0 that also holds the remaining steps and the results."""

    def __init__(self, screen: Sink, steps: Sequence[Step]) -> None:
        super().__init__(screen)
        self._steps: Iterator[Step] = iter(steps)
        self.step: Step | None = None
        self.ready_ranks = 0
        self.timings: list[RankTiming] = []
        self.results: list[StepResult] = []
        self.created: dict[int, int] = {}
        """What each rank created in the last step that creates something: the number of files, or the bytes of its
        file.
        """
        self.private: PrivateDirectory | None = None
        """The private directory, once it was created."""

    def start_next_step(self) -> Step | None:
        """Start the next step and return it, or None after the last one."""
        self.step, self.ready_ranks, self.timings = next(self._steps, None), 0, []
        return self.step

    def add_timing(self, part: RankTiming, *, one_clock: bool) -> bool:
        """Add the part of one rank. Return True if it was the last one of the step."""
        assert self.step is not None
        self.timings.append(part)
        if self.step.test in (BenchmarkTest.CREATE, BenchmarkTest.WRITE):
            self.created[part.rank] = part.amount
        if len(self.timings) < self.step.ranks:
            return False
        if self.step.is_measured:
            self.results.append(StepResult.from_timings(self.step, self.timings, one_clock=one_clock))
        return True
