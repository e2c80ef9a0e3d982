"""Sums of the work of ranks, for a report: work of each rank, sizes of files, and the files that took longest.

Each rank collects them in bounded memory. At the end of the job they are merged on their way up the tree of ranks
(``pcopy.engine.barrier``), so that rank 0 receives only one row for each rank in addition.
"""

from __future__ import annotations

import heapq
from array import array
from collections.abc import Iterable, Sequence

from pcopy.engine.messages import dump_primitives, load_primitives
from pcopy.fast_named_tuple import NamedTuple
from pcopy.signature.items import FILE
from pcopy.tasks.base.actions import Action
from pcopy.tasks.base.item_outcomes import ItemOutcomes

MAX_SLOWEST_FILES = 20
"""Number of files that are listed because they took longest."""

_OUTCOMES = {
    Action.COPY: "copied",
    Action.REPLACE: "copied",
    Action.META: "skipped",
    Action.SKIP: "skipped",
    Action.FAIL: "failed",
}
"""Outcome of a file, by action."""

_FILE = FILE[0]

SIZE_CLASSES = 65
"""Number of powers of two that a 64-bit size can be compared with: 2**0 to 2**64."""


class RankWork(NamedTuple):
    """Work of one rank in this run.

    Fields:
        rank: number of the rank.
        items: items that it copied, skipped or failed.
        moved: bytes that it copied or read back.
        tasks: tasks that ended on it.
        busy: seconds in which it ran tasks.
        seconds: duration of the run in seconds.
        taken, given: tasks that it received from and sent to other ranks.
    """

    rank: int
    items: int
    moved: int
    tasks: int
    busy: float
    seconds: float
    taken: int
    given: int


class SlowFile(NamedTuple):
    """A file whose copy took long; ``path`` is as it is shown to the user, ``size`` is in bytes."""

    nanoseconds: int
    size: int
    path: bytes


class SizeColumns(NamedTuple):
    """Number of files and sum of their sizes, by the smallest power of two above the size."""

    files: list[int]
    bytes: list[int]

    @classmethod
    def zeros(cls) -> SizeColumns:
        """Return columns of zeros."""
        return cls([0] * SIZE_CLASSES, [0] * SIZE_CLASSES)

    def add(self, sizes: Iterable[int]) -> None:
        """Add files of these ``sizes``."""
        files, bytes_ = self
        for size in sizes:
            power = size.bit_length()
            files[power] += 1
            bytes_[power] += size

    def merge(self, other: Sequence[Sequence[int]]) -> None:
        """Add the columns of another rank."""
        for mine, others in zip(self, other, strict=True):
            for power, number in enumerate(others):
                mine[power] += number


class RankSums:
    """Sums of one rank or of several. ``sizes`` contains the sizes of files, by outcome."""

    def __init__(self, _: object = None) -> None:
        self.ranks: list[RankWork] = []
        self.sizes: dict[str, SizeColumns] = {}
        self._slowest: list[SlowFile] = []  # a heap

    def add(self, items: Iterable[ItemOutcomes]) -> None:
        """Add items whose outcome is known. The type of a failed item is unknown; it is treated as a file if it has a
        size.
        """
        for each in items:
            outcome, sizes, kinds = _OUTCOMES.get(Action(each.action)), array("Q", each.sizes), each.kinds
            if outcome is None:
                continue
            of_files = [size for kind, size in zip(kinds, sizes, strict=True) if kind == _FILE or (not kind and size)]
            if of_files:
                self.sizes.setdefault(outcome, SizeColumns.zeros()).add(of_files)
            self._add_durations(each, sizes)

    def _add_durations(self, items: ItemOutcomes, sizes: Sequence[int]) -> None:
        """Add the durations of files. 0 stands for a file whose copy was not measured."""
        for row, took in enumerate(array("Q", items.nanoseconds)):
            is_slow = len(self._slowest) < MAX_SLOWEST_FILES or took > self._slowest[0].nanoseconds
            if took and is_slow and items.kinds[row] == _FILE:
                self._add_slow_file(SlowFile(took, sizes[row], items.path_of_row(row)))

    def _add_slow_file(self, slow: SlowFile) -> None:
        """Add a file to the slowest ones if it belongs there."""
        if len(self._slowest) < MAX_SLOWEST_FILES:
            heapq.heappush(self._slowest, slow)
        else:
            heapq.heappushpop(self._slowest, slow)

    @property
    def slowest(self) -> list[SlowFile]:
        """The files that took longest, the slowest first."""
        return sorted(self._slowest, reverse=True)

    def merge(self, words: bytes) -> None:
        """Add the sums of other ranks, as ``words`` packed them."""
        ranks, sizes, slowest = load_primitives(words)
        self.ranks += (RankWork(*each) for each in ranks)
        for outcome, columns in sizes.items():
            self.sizes.setdefault(outcome, SizeColumns.zeros()).merge(columns)
        for each in slowest:
            self._add_slow_file(SlowFile(*each))

    def packed(self) -> bytes:
        """Return the sums in packed form."""
        ranks = [tuple(each) for each in sorted(self.ranks)]
        sizes = {outcome: tuple(columns) for outcome, columns in self.sizes.items()}
        return dump_primitives((ranks, sizes, [tuple(each) for each in self._slowest]))

    @classmethod
    def from_packed(cls, words: bytes) -> RankSums:
        """Return the sums of all ranks, unpacked from ``words``; empty sums if it is empty."""
        sums = cls()
        if words:
            sums.merge(words)
        return sums
