"""Counters of a removal. prm counts a removed item by its type, as a copy counts a copied one; a copy job counts it as
deleted.

A copy job does not count the items that it deletes as found, since they are not in its source. An item that it cannot
delete counts as found and as failed, so that found = copied + skipped + failed holds.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

from pcopy.fsio.problem import Problem
from pcopy.tasks.base import counts
from pcopy.tasks.base.actions import NULL_RECORDER, ItemAction
from pcopy.tasks.base.job_filters import report_excluded_items
from pcopy.tasks.base.phases import Phase
from pcopy.tasks.base.rank import Rank
from pcopy.tasks.base.result import RetryMode, TaskResult
from pcopy.tasks.base.values import Place
from pcopy.walk.visitor import FoundItems


def is_only_counting(rank: Rank) -> bool:
    """Return True if items are only counted and not removed. That is so in a dry run, and in the phase COUNT of a copy
    job, in which extra items of the target are counted before any is deleted.
    """
    return rank.options.dry_run or (rank.copy_options.delete and rank.phase == Phase.COUNT)


class RemovalCounts:
    """Counts the items that one task removes, and reports them; everything goes into the ``result`` of the task."""

    def __init__(self, rank: Rank, result: TaskResult) -> None:
        self._result = result
        self._deletes = rank.copy_options.delete
        counts_first = self._deletes and rank.phase == Phase.COUNT
        self._counter = counts.TO_DELETE if counts_first else counts.DELETED
        self._items = NULL_RECORDER if counts_first else result.item_recorder

    def count_found_items(self, items: int = 1, size: int = 0) -> None:
        """Count items that are to be removed, and their ``size`` in bytes (all together). Pass negative numbers for
        items that were counted and have vanished since.
        """
        if not self._deletes:
            self._result.count(counts.FOUND, items)
            self._result.count(counts.FOUND_BYTES, size)

    def count_removed_items(self, counters: Iterable[int] | Mapping[int, int], size: int = 0) -> None:
        """Count removed items.

        Args:
            counters: the number of the counter of each item, which depends on its type; or a mapping from such counters
                to numbers of items. Only prm uses them: a copy job counts all items as deleted.
            size: bytes of the regular files among them.
        """
        by_counter = Counter(counters)
        if self._deletes:
            self._result.count(self._counter, by_counter.total())
            return
        self._result.count(counts.BYTES, size)
        for counter, number in by_counter.items():
            self._result.count(counter, number)

    def report_removed_items(self, place: Place, names: list[bytes], kinds: list[bytes], sizes: list[int]) -> None:
        """Report each item that was removed, or would be removed, if the user asked for a report of every item.

        Args:
            place: the directory.
            names: names of the items; ``b""`` means the directory itself.
            kinds, sizes: type and size in bytes of each item.
        """
        for name, kind, size in zip(names, kinds, sizes, strict=True):
            self._items.record_item_outcome(ItemAction.DELETE, place, name, kind, size)

    def report_failed_removal(self, place: Place, name: bytes, problem: Problem, size: int = 0) -> None:
        """Count and report an item that could not be removed; ``name`` is ``b""`` for the directory ``place``
        itself.
        """
        if self._deletes:
            self._result.count_item_as_failed(place, name, problem, retry=RetryMode.BY_REPEATED_PHASE)
        else:
            self._result.count_item_as_failed(place, name, problem, size, retry=RetryMode.NEVER)

    def count_kept_items(self, items: int = 1) -> None:
        """Count as skipped: items that are not to be removed, and directories that stay because something in them
        stays.
        """
        if not self._deletes:
            self._result.count(counts.SKIPPED, items)

    def report_kept_item(self, place: Place, name: bytes, kind: bytes) -> None:
        """Report an item that is not removed; ``name`` is ``b""`` for the directory ``place`` itself. ``kind`` is its
        type byte; empty if the type is not known.
        """
        if not self._deletes:
            self._items.record_item_outcome(ItemAction.SKIP, place, name, kind)

    def report_excluded_items(self, rank: Rank, place: Place, found: FoundItems, rows: Iterable[int]) -> None:
        """Report the items of ``found`` that are not removed because filters exclude them (all but ``rows``)."""
        if not self._deletes:
            report_excluded_items(rank, self._result, place, found, rows)

    def count_excluded_items(self, items: int = 1) -> None:
        """Count items that filters exclude from the removal, as skipped and as excluded."""
        self.count_kept_items(items)
        if not self._deletes:
            self._result.count(counts.EXCLUDED, items)

    def count_unread_directories(self, directories: int) -> None:
        """Add ``directories`` to the number of directories that are found and not yet read. It is negative when
        directories were read.
        """
        if not self._deletes:
            self._result.count(counts.UNSCANNED, directories)
