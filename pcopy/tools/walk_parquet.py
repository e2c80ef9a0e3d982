"""Writer of a list in Parquet format. It uses pyarrow, so this module is imported only if such a list is asked for."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow  # type: ignore[import-untyped]
import pyarrow.parquet  # type: ignore[import-untyped]

from pcopy.fsio.backend.columns import EARLIEST_TIME, LATEST_TIME
from pcopy.walk.matching import DirectoryItems
from pcopy.walk.output_formats import TYPE_WORDS, field_values, path_and_base64

ITEMS_PER_ROW_GROUP = 1 << 16
"""Number of items that are collected before they are written as one row group of the Parquet file."""

_SIGNED_TIME_FIELDS = ("atime_ns", "mtime_ns", "ctime_ns")
"""Fields with signed values, in nanoseconds since 1970: times before that year are negative."""


def _time_or_none_if_too_large(time: int) -> int | None:
    """Return ``time`` (nanoseconds since 1970), or None if it does not fit into 64 bits."""
    return time if EARLIEST_TIME <= time <= LATEST_TIME else None


class ParquetWriter:
    """Writer of a list with the same columns as the CSV format.

    ``path_b64`` is null if ``path`` consists of exactly the bytes of the name. A time is null if it does not fit into
    64 bits.
    """

    def __init__(self, path: bytes, stream: Any, fields: Sequence[str]) -> None:
        self.path = path
        self.has_begun = False  # It is needed only for standard output, which is never a Parquet file.
        """Always False: no incomplete list can be visible, since a file gets its name when it is complete."""
        self._fields = fields
        text = pyarrow.string()
        columns = [pyarrow.field("path", text, nullable=False), pyarrow.field("path_b64", text)]
        columns.append(pyarrow.field("type", text, nullable=False))
        columns += [
            pyarrow.field(name, pyarrow.int64())
            if name in _SIGNED_TIME_FIELDS
            else pyarrow.field(name, pyarrow.uint64(), nullable=False)
            for name in fields
        ]
        self._schema = pyarrow.schema(columns)
        self._pending_columns: list[list[Any]] = [[] for _ in columns]
        """The values of items that were not written yet, one list per column."""
        self._writer = pyarrow.parquet.ParquetWriter(stream, self._schema, compression="zstd")

    def write_items(self, items: DirectoryItems) -> None:
        paths = [path_and_base64(items.above + name) for name in items.names]
        kinds = [TYPE_WORDS[kind] for kind in items.kinds]
        columns: list[list[Any]] = [[text for text, _ in paths], [exact or None for _, exact in paths], kinds]
        for name, column in zip(self._fields, field_values(items, self._fields), strict=True):
            columns.append(
                [_time_or_none_if_too_large(time) for time in column] if name in _SIGNED_TIME_FIELDS else list(column)
            )
        for pending, column in zip(self._pending_columns, columns, strict=True):
            pending.extend(column)
        if len(self._pending_columns[0]) >= ITEMS_PER_ROW_GROUP:
            self._write_pending_columns()

    def write(self, part: bytes) -> None:
        raise AssertionError  # For a Parquet file, ranks send items instead of text (``write_items``).

    def _write_pending_columns(self) -> None:
        arrays = [
            pyarrow.array(pending, each.type) for pending, each in zip(self._pending_columns, self._schema, strict=True)
        ]
        self._writer.write_table(pyarrow.Table.from_arrays(arrays, schema=self._schema))
        for pending in self._pending_columns:
            pending.clear()

    def write_rest_of_list(self) -> None:
        if self._pending_columns[0]:
            self._write_pending_columns()
        self._writer.close()
