"""What is measured: a step is one test by so many ranks; and what rank 0 keeps of it.

Rank 0 leads: it has the ranks of a step prepare, then measure, and begins the next step when all have told what they
have measured (``pcopy.tasks.bench.measure``). So no rank is late because it was asleep: it has just prepared.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from enum import IntEnum

from pcopy.fsio.kernel.batches import Call
from pcopy.named import NamedTuple
from pcopy.tasks.base.job import InFront, Sink
from pcopy.tasks.bench.private import Private


class Test(IntEnum):
    """What is done in a step. The first ones are a ``Call`` for each file; CLEAR is not measured."""

    CREATE = Call.CREATE
    STAT = Call.STAT
    OPEN = Call.OPEN
    RENAME = Call.RENAME
    UNLINK = Call.UNLINK
    READDIR = 10
    WRITE = 11
    READ = 12
    CLEAR = 20

    @property
    def moves(self) -> bool:
        """Are bytes counted, and no operations?"""
        return self in (Test.WRITE, Test.READ)


class Step(NamedTuple):
    """``test`` by the first ``ranks`` ranks, for ``microseconds`` or so, whatever comes first.

    Of metadata: each rank has up to ``most`` files, all in one directory if that is ``shared``, and keeps so many
    operations ``in_flight``; steps of one ``round`` have the same files, and those of round 0 warm up. Of data: up
    to ``most`` bytes in blocks of ``block`` bytes, past the page cache if ``direct``; each rank has a file of its own,
    or if that is ``shared`` a segment of one.
    """

    test: int
    ranks: int
    in_flight: int
    shared: bool
    most: int
    microseconds: int
    round: int = 0
    block: int = 0
    direct: bool = False

    @property
    def is_measured(self) -> bool:
        return self.round > 0 and self.test != Test.CLEAR


class Timed(NamedTuple):
    """One rank's part: from ``begin`` to ``end`` (nanoseconds of its host's clock) it did ``number`` operations, or
    moved so many bytes."""

    rank: int
    begin: int
    end: int
    number: int


class Taken(NamedTuple):
    """A step that is over: ``number`` by all ranks together, in ``seconds``."""

    step: Step
    number: int
    seconds: float
    spread: float = 0.0
    """If it was made several times: by which part of the rate the slowest and the fastest one differ."""

    @property
    def rate(self) -> float:
        """Operations or bytes a second."""
        return self.number / self.seconds if self.seconds > 0 else 0.0

    @classmethod
    def of(cls, step: Step, parts: Sequence[Timed], *, one_clock: bool) -> Taken:
        """With one clock from the earliest begin to the latest end; else as long as the slowest rank took."""
        if one_clock:
            took = max(part.end for part in parts) - min(part.begin for part in parts)
        else:
            took = max(part.end - part.begin for part in parts)
        return cls(step, sum(part.number for part in parts), took / 1e9)


def medians(taken: Sequence[Taken]) -> list[Taken]:
    """Of steps that were made several times, in rounds of their own, the one of median rate (of two the slower one), in
    the order of the first ones."""
    alike: dict[Step, list[Taken]] = {}
    for each in taken:
        alike.setdefault(each.step._replace(round=1), []).append(each)
    found = []
    for some in alike.values():
        some.sort(key=lambda each: each.rate)
        median = some[(len(some) - 1) // 2]
        spread = (some[-1].rate - some[0].rate) / median.rate if median.rate else 0.0
        found.append(median._replace(spread=spread))
    return found


class Notebook(InFront):
    """On rank 0: the steps that are to come, and those that were taken. The job tells it what happens, too."""

    def __init__(self, screen: Sink, steps: Sequence[Step]) -> None:
        super().__init__(screen)
        self._steps: Iterator[Step] = iter(steps)
        self.step: Step | None = None
        self.ready = 0
        self.parts: list[Timed] = []
        self.taken: list[Taken] = []
        self.made: dict[int, int] = {}
        """What each rank has made in the last step that makes anything: files, or bytes of one."""
        self.private: Private | None = None
        """Where all is done, once it was made."""

    def begin_next(self) -> Step | None:
        """The step that begins now, if there is one more."""
        self.step, self.ready, self.parts = next(self._steps, None), 0, []
        return self.step

    def add(self, part: Timed, *, one_clock: bool) -> bool:
        """One rank has measured; are all done?"""
        assert self.step is not None
        self.parts.append(part)
        if self.step.test in (Test.CREATE, Test.WRITE):
            self.made[part.rank] = part.number
        if len(self.parts) < self.step.ranks:
            return False
        if self.step.is_measured:
            self.taken.append(Taken.of(self.step, self.parts, one_clock=one_clock))
        return True
