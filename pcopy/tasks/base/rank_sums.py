"""What ranks have done, for a report: the work of each, sizes of files, and the slowest ones.

A rank gathers this in bounded memory. At the end of the job it is merged on its way up the tree to rank 0
(``pcopy.engine.barrier``), where no more of it arrives than a row for each rank.
"""

from __future__ import annotations

import heapq
from array import array
from collections.abc import Iterable, Sequence

from pcopy.engine.messages import dump_primitives, load_primitives
from pcopy.named import NamedTuple
from pcopy.signature.items import FILE
from pcopy.tasks.base.actions import Action
from pcopy.tasks.base.itemized import Itemized

SLOWEST = 20
"""Files that are named because they have taken longest."""

_OUTCOMES = {
    Action.COPY: "copied",
    Action.REPLACE: "copied",
    Action.META: "skipped",
    Action.SKIP: "skipped",
    Action.FAIL: "failed",
}
"""What has become of a file, by what was done with it."""

_FILE = FILE[0]

POWERS = 65
"""Powers of two that a size in 64 bits may lie below: 2**0 to 2**64."""


class RankWork(NamedTuple):
    """What one rank has done in this run: ``items`` that it has settled and bytes that it has ``moved`` or read back,
    ``tasks`` that ended there, ``busy`` and all ``seconds``, and tasks ``taken`` from and ``given`` to other ranks."""

    rank: int
    items: int
    moved: int
    tasks: int
    busy: float
    seconds: float
    taken: int
    given: int


class Slow(NamedTuple):
    """A file that was copied in so many nanoseconds; ``path`` as it is shown to the user."""

    nanoseconds: int
    size: int
    path: bytes


class SizeColumns(NamedTuple):
    """How many files, and of how many bytes together, by the power of two that their size lies below."""

    files: list[int]
    bytes: list[int]

    @classmethod
    def none(cls) -> SizeColumns:
        return cls([0] * POWERS, [0] * POWERS)

    def add(self, sizes: Iterable[int]) -> None:
        files, bytes_ = self
        for size in sizes:
            power = size.bit_length()
            files[power] += 1
            bytes_[power] += size

    def merge(self, other: Sequence[Sequence[int]]) -> None:
        for mine, others in zip(self, other, strict=True):
            for power, number in enumerate(others):
                mine[power] += number


class RankSums:
    """Of some ranks: ``sizes`` of files by the word for what has become of them."""

    def __init__(self, _: object = None) -> None:
        self.ranks: list[RankWork] = []
        self.sizes: dict[str, SizeColumns] = {}
        self._slowest: list[Slow] = []  # a heap

    def add(self, items: Iterable[Itemized]) -> None:
        """Items were settled. Of those that have failed nobody knows what they are; what has a size is a file."""
        for each in items:
            what, sizes, kinds = _OUTCOMES.get(Action(each.action)), array("Q", each.sizes), each.kinds
            if what is None:
                continue
            of_files = [size for kind, size in zip(kinds, sizes, strict=True) if kind == _FILE or (not kind and size)]
            if of_files:
                self.sizes.setdefault(what, SizeColumns.none()).add(of_files)
            self._add_times(each, sizes)

    def _add_times(self, items: Itemized, sizes: Sequence[int]) -> None:
        """0 stands for a file that nobody has measured."""
        for row, took in enumerate(array("Q", items.nanoseconds)):
            is_slow = len(self._slowest) < SLOWEST or took > self._slowest[0].nanoseconds
            if took and is_slow and items.kinds[row] == _FILE:
                self._add(Slow(took, sizes[row], items.path_of(row)))

    def _add(self, slow: Slow) -> None:
        if len(self._slowest) < SLOWEST:
            heapq.heappush(self._slowest, slow)
        else:
            heapq.heappushpop(self._slowest, slow)

    @property
    def slowest(self) -> list[Slow]:
        """The slowest first."""
        return sorted(self._slowest, reverse=True)

    def merge(self, words: bytes) -> None:
        """Adds what ``words`` tells of other ranks."""
        ranks, sizes, slowest = load_primitives(words)
        self.ranks += (RankWork(*each) for each in ranks)
        for what, columns in sizes.items():
            self.sizes.setdefault(what, SizeColumns.none()).merge(columns)
        for each in slowest:
            self._add(Slow(*each))

    def words(self) -> bytes:
        ranks = [tuple(each) for each in sorted(self.ranks)]
        sizes = {what: tuple(columns) for what, columns in self.sizes.items()}
        return dump_primitives((ranks, sizes, [tuple(each) for each in self._slowest]))

    @classmethod
    def heard(cls, words: bytes) -> RankSums:
        """Of all ranks, at the end; nothing, if nothing was said."""
        sums = cls()
        if words:
            sums.merge(words)
        return sums
