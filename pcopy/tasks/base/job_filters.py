"""The filters of a job (--include, --exclude, sizes, times), as tasks apply them to items and to entries of a
manifest.
"""

from __future__ import annotations

import os

from pcopy.signature.items import DIRECTORY, FILE, ROOT_PATH
from pcopy.tasks.base.rank import Rank
from pcopy.tasks.base.values import Place
from pcopy.walk.selection import ItemSelector


class JobFilter(ItemSelector):
    """Applies the filters of the job. A rank has one instance (``Rank.shared_instance``)."""

    def __init__(self, rank: Rank) -> None:
        super().__init__(rank.options.select)

    def selects_item(self, place: Place, name: bytes, status: os.stat_result) -> bool:
        """Return True if the item ``name`` of the directory ``place`` passes the filters."""
        if not self.has_filters:
            return True
        path = place.path + b"/" + name if place.path else name
        return self.selects_item_at_path(path, status.st_mode, status.st_size, status.st_mtime_ns)

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
