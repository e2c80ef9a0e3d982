"""A list of items as a Parquet file, by pyarrow; loaded where one is wanted."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow  # type: ignore[import-untyped]
import pyarrow.parquet  # type: ignore[import-untyped]

from pcopy.fsio.kernel.columns import FIRST, LAST
from pcopy.walk.forms import TYPES, told_path, values_of
from pcopy.walk.matching import Items

GROUP = 1 << 16
"""Rows that are written together."""

_SIGNED = ("atime_ns", "mtime_ns", "ctime_ns")


def _within(time: int) -> int | None:
    """Return the time, or None if 64 bits do not hold it."""
    return time if FIRST <= time <= LAST else None


class Parquet:
    """The columns of a CSV, with null where ``path`` is exact, and for times that 64 bits do not hold."""

    def __init__(self, path: bytes, stream: Any, fields: Sequence[str]) -> None:
        self.path = path
        self.has_begun = False  # a file is told to have begun to nobody
        self._fields = fields
        text = pyarrow.string()
        columns = [pyarrow.field("path", text, nullable=False), pyarrow.field("path_b64", text)]
        columns.append(pyarrow.field("type", text, nullable=False))
        columns += [
            pyarrow.field(name, pyarrow.int64())
            if name in _SIGNED
            else pyarrow.field(name, pyarrow.uint64(), nullable=False)
            for name in fields
        ]
        self._schema = pyarrow.schema(columns)
        self._held: list[list[Any]] = [[] for _ in columns]
        self._writer = pyarrow.parquet.ParquetWriter(stream, self._schema, compression="zstd")

    def put(self, items: Items) -> None:
        paths = [told_path(items.above + name) for name in items.names]
        kinds = [TYPES[kind] for kind in items.kinds]
        columns: list[list[Any]] = [[text for text, _ in paths], [exact or None for _, exact in paths], kinds]
        for name, column in zip(self._fields, values_of(items, self._fields), strict=True):
            columns.append([_within(time) for time in column] if name in _SIGNED else list(column))
        for held, column in zip(self._held, columns, strict=True):
            held.extend(column)
        if len(self._held[0]) >= GROUP:
            self._flush()

    def write(self, part: bytes) -> None:
        raise AssertionError  # it gets columns

    def _flush(self) -> None:
        arrays = [pyarrow.array(held, each.type) for held, each in zip(self._held, self._schema, strict=True)]
        self._writer.write_table(pyarrow.Table.from_arrays(arrays, schema=self._schema))
        for held in self._held:
            held.clear()

    def finish(self) -> None:
        if self._held[0]:
            self._flush()
        self._writer.close()
