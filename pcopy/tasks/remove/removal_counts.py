"""What is counted of a removal: by prm as a copy counts what it has copied, in a copy job as deleted.

What a copy job deletes was never found in its source. But what it cannot delete has failed, and counts as found, too:
found = copied + skipped + failed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

from pcopy.fsio.problem import Problem
from pcopy.tasks.base import counts
from pcopy.tasks.base.actions import NOBODY, Action
from pcopy.tasks.base.phases import Phase
from pcopy.tasks.base.rank import Rank
from pcopy.tasks.base.result import Result, Tried
from pcopy.tasks.base.values import Place


def only_looks(rank: Rank) -> bool:
    """Is nothing removed, but counted?"""
    return rank.options.dry_run or (rank.options.delete and rank.phase == Phase.COUNT)


class RemovalCounts:
    """Of one task's ``result``."""

    def __init__(self, rank: Rank, result: Result) -> None:
        self._result = result
        self._deletes = rank.options.delete
        counts_first = self._deletes and rank.phase == Phase.COUNT
        self._counter = counts.TO_DELETE if counts_first else counts.DELETED
        self._items = NOBODY if counts_first else result.items

    def found(self, items: int = 1, size: int = 0) -> None:
        """Items that are to go; fewer, if they had gone by themselves."""
        if not self._deletes:
            self._result.count(counts.FOUND, items)
            self._result.count(counts.FOUND_BYTES, size)

    def gone(self, counters: Iterable[int] | Mapping[int, int], size: int = 0) -> None:
        """What was removed: the counter of each item, as prm counts it, or how many each counts, and the bytes of the
        files among them."""
        by_counter = Counter(counters)
        if self._deletes:
            self._result.count(self._counter, by_counter.total())
            return
        self._result.count(counts.BYTES, size)
        for counter, number in by_counter.items():
            self._result.count(counter, number)

    def tell(self, place: Place, names: list[bytes], kinds: list[bytes], sizes: list[int]) -> None:
        """Each of what was removed, or would be (the name ``b""``: the directory itself), to whoever wants to know."""
        for name, kind, size in zip(names, kinds, sizes, strict=True):
            self._items.did(Action.DELETE, place, name, kind, size)

    def failed(self, place: Place, name: bytes, problem: Problem, size: int = 0) -> None:
        """One that stays, and should not."""
        if self._deletes:
            self._result.fail(place, name, problem, retry=Tried.WHEN_FOUND)
        else:
            self._result.fail(place, name, problem, size, retry=Tried.NEVER)

    def stays(self, items: int = 1) -> None:
        """What is not to go, or has something in it that stays: no failure of its own."""
        if not self._deletes:
            self._result.count(counts.SKIPPED, items)

    def excluded(self, items: int = 1) -> None:
        """What filters leave."""
        self.stays(items)
        if not self._deletes:
            self._result.count(counts.EXCLUDED, items)

    def unread(self, directories: int) -> None:
        """So many more that are not read yet."""
        if not self._deletes:
            self._result.count(counts.UNSCANNED, directories)
