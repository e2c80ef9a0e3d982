"""The filters of a job (--include, --exclude, sizes, times), as tasks apply them to items and to entries of a
manifest; and the report of the items that they exclude.
"""

from __future__ import annotations

import os
from collections.abc import Iterable

from pcopy.fsio.backend.batches import BatchFilters
from pcopy.signature.items import DIRECTORY, FILE, ROOT_PATH, type_byte
from pcopy.tasks.base.actions import ItemAction
from pcopy.tasks.base.hashing import SOCKET_TYPE_BYTE
from pcopy.tasks.base.rank import Rank
from pcopy.tasks.base.result import TaskResult
from pcopy.tasks.base.values import Place
from pcopy.walk.selection import ItemSelector
from pcopy.walk.visitor import FoundItems


class JobFilter(ItemSelector):
    """Applies the filters of the job. A rank has one instance (``Rank.shared_instance``)."""

    def __init__(self, rank: Rank) -> None:
        super().__init__(rank.options.select)
        self._rules: bytes | None = None

    def selects_item(self, place: Place, name: bytes, status: os.stat_result) -> bool:
        """Return True if the item ``name`` of the directory ``place`` passes the filters."""
        if not self.has_filters:
            return True
        path = place.path_of(name)
        return self.selects_item_at_path(path, status.st_mode, status.st_size, status.st_mtime_ns)

    def batch_filters(self, directory: bytes) -> BatchFilters | None:
        """Return the filters for a batch whose rows are items of a directory; None if the user has given none.
        ``directory`` is its path as patterns see it.

        Limits of time that 64 bits cannot hold become the last ones that they can hold: the backend leaves items with
        such times to the slow path.
        """
        if not self.has_filters:
            return None
        if self._rules is None:
            from pcopy.walk.patterns import pattern_rules

            self._rules = pattern_rules(self.select.patterns)
        chosen = self.select
        limits = {
            "after": chosen.after, "before": chosen.before, "larger": chosen.larger_than, "smaller": chosen.smaller_than
        }  # fmt: skip
        above = directory + b"/" if directory else b""
        given = {key: max(-(1 << 63), min(limit, (1 << 63) - 1)) for key, limit in limits.items() if limit is not None}
        return BatchFilters(self._rules, above, **given)

    def selects_manifest_entry(self, path: bytes, kind: bytes, size: int) -> bool:
        """Return True if an entry of a manifest passes the filters. Filters of times are ignored, because a manifest
        contains no times.

        Args:
            path: path of the entry.
            kind: type byte.
            size: size in bytes.
        """
        if not self.has_filters or path == ROOT_PATH:
            return True
        is_excluded = self.excludes_path_or_ancestor(path + b"/" if kind == DIRECTORY else path)
        return not is_excluded and (kind != FILE or self.is_size_within_limits(size))


def report_excluded_items(rank: Rank, result: TaskResult, place: Place, found: FoundItems, rows: Iterable[int]) -> None:
    """Report the items of ``found`` that filters exclude, all but those in ``rows``, as left unchanged.

    Args:
        place: the directory of the items.
    """
    if result.item_recorder.is_recording and (rank.job.copies or rank.options.itemize):
        for row in {*range(len(found))}.difference(rows, found.problems):
            kind = type_byte(found.rows.mode[row]) or SOCKET_TYPE_BYTE
            result.item_recorder.record_item_outcome(ItemAction.SKIP, place, found.names[row], kind)
