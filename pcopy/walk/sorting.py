"""Sorting of any number of items on rank 0: parts that fit into memory are sorted, written to temporary files, and
merged (``ExternalSorter``).
"""

from __future__ import annotations

import marshal
import os
from array import array
from collections.abc import Callable, Iterator
from itertools import islice
from typing import BinaryIO

from pcopy.fsio.backend.columns import ALL_COLUMNS, TIME_COLUMNS, ItemStatusColumns
from pcopy.signature.sorting import ExternalSorter
from pcopy.walk.matching import DirectoryItems
from pcopy.walk.output_formats import FIELD_COLUMNS

SORT_KEYS = ("path", "name", "type", "size", "allocated", "links", "uid", "gid", "inode", "atime", "mtime", "ctime")
"""Values of ``--sort``: the keys by which items can be sorted; a ``-`` before one reverses the order. Equal items are
sorted by path.
"""

_COLUMN_OF_KEY = {
    **{name: column for name, (_, column) in FIELD_COLUMNS.items()},
    **{name: name for name in ("atime", "mtime", "ctime")},
}
_ITEMS_PER_BATCH = 1024
"""Maximum number of items in one of the batches in which sorted items are returned."""
_MEMORY_BYTES = 64 << 20
"""Bytes of memory for sorting, enough for some 200,000 items. If there are more, temporary files are used."""
_INVERTED_BYTES = bytes(range(255, -1, -1))


def column_bit_for_sort_order(sort: str) -> int:
    """Return which field of the status items must have to be sorted by ``sort``, as the bit of its column; 0 for a
    path, name or type, which need no status.
    """
    column = _COLUMN_OF_KEY.get(sort.removeprefix("-"), "")
    return next((bit for name, _, bit, _ in ALL_COLUMNS if name == column), 0)


class ItemSorter:
    """Sorts any number of items, with temporary files if they do not fit in memory: ``add`` collects them, and
    ``sorted_batches`` returns them in their order.
    """

    def __init__(self, sort: str, open_spool: Callable[[], BinaryIO]) -> None:
        """Create an empty collection.

        Args:
            sort: one of ``SORT_KEYS``, after a ``-`` for the reverse order.
            open_spool: opens a temporary file.
        """
        self._key = sort.removeprefix("-")
        self._backwards = sort.startswith("-")
        self._sorter = ExternalSorter(open_spool, _MEMORY_BYTES)
        self._mask = 0

    def add(self, items: DirectoryItems) -> None:
        """Add items; raise ``TemporaryFileFailed`` if a temporary file cannot be written."""
        rows, above = items.rows, items.above
        self._mask = 0 if rows is None else rows.mask
        columns = [] if rows is None else [getattr(rows, name) for name, _, bit, _ in ALL_COLUMNS if rows.mask & bit]
        paths = [above + name for name in items.names]
        for row, key in enumerate(self._sort_keys(items, paths)):
            value = marshal.dumps((paths[row], items.kinds[row], *(column[row] for column in columns)))
            self._sorter.add(key + b"\0" + paths[row], value)

    def _sort_keys(self, items: DirectoryItems, paths: list[bytes]) -> Iterator[bytes]:
        """Yield a key for each item, made from its path in ``paths`` or its status; sorting the keys as bytes sorts the
        items.
        """
        if self._key == "path":
            keys = iter(paths)
        elif self._key == "name":
            keys = (os.path.basename(path.rstrip(b"/")) for path in paths)
        elif self._key == "type":
            keys = (bytes((kind,)) for kind in items.kinds)
        else:
            name = _COLUMN_OF_KEY[self._key]
            column = items.columns.exact_times_in_column(name) if name in TIME_COLUMNS else getattr(items.columns, name)
            keys = ((value + (1 << 95)).to_bytes(12, "big") for value in column)
        if not self._backwards:
            return keys
        return (key.translate(_INVERTED_BYTES) + b"\xff" for key in keys)

    def sorted_batches(self) -> Iterator[DirectoryItems]:
        """Yield all items in their order, in batches of up to ``_ITEMS_PER_BATCH``. Their names are whole paths."""
        records = self._sorter.sorted()
        while batch := list(islice(records, _ITEMS_PER_BATCH)):
            values = [marshal.loads(value) for _, value in batch]
            names, kinds = [each[0] for each in values], bytes(each[1] for each in values)
            yield DirectoryItems(-1, b"", names, kinds, self._status_columns_from_values([each[2:] for each in values]))
        self._sorter.close()

    def _status_columns_from_values(self, values: list[tuple[int, ...]]) -> ItemStatusColumns | None:
        if not self._mask:
            return None
        rows = ItemStatusColumns(0, self._mask)
        rows.row_count = len(values)
        present = [(name, typecode) for name, typecode, bit, _ in ALL_COLUMNS if self._mask & bit]
        for (name, typecode), column in zip(present, zip(*values, strict=True), strict=True):
            setattr(rows, name, array(typecode, column))
        return rows
