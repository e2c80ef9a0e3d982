"""Sums over the status of many items (bytes, unusual items, histograms), computed in C."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pcopy.fsio.backend import _native
from pcopy.fsio.backend.columns import REQUIRED_TALLY_COLUMNS, ItemStatusColumns

_ffi, _lib = _native.ffi, _native.lib

_COLUMNS = (
    ("mode", "uint32_t[]"),
    ("links", "uint32_t[]"),
    ("size", "uint64_t[]"),
    ("blocks", "uint64_t[]"),
    ("atime", "int64_t[]"),
    ("mtime", "int64_t[]"),
)


class NativeColumnSums:
    """Sums over the columns of many items, computed in C: bytes, numbers of unusual items, histograms of sizes and
    ages. It implements the protocol ``pcopy.fsio.backend.interface.ColumnSums``, which describes the methods.
    """

    def __init__(self, bounds: Sequence[int]) -> None:
        self._struct: Any = _ffi.gc(_ffi.new("pk_tally *"), _lib.pk_tally_release)
        self._struct.bounds = list(bounds)

    @property
    def c_struct(self) -> Any:
        return self._struct

    def add_rows(self, rows: ItemStatusColumns, kinds: bytes) -> tuple[int, int, int] | None:
        if REQUIRED_TALLY_COLUMNS & ~rows.mask or len(rows) != len(kinds):
            raise ValueError("a column is missing or does not have all rows")
        columns = [_ffi.from_buffer(pointer, getattr(rows, name)) for name, pointer in _COLUMNS]
        for (name, _), column in zip(_COLUMNS, columns, strict=True):
            if len(column) != len(kinds):
                raise ValueError(f"the column {name} has {len(column)} rows, another number than ``kinds``")
        tally = self._struct
        if _lib.pk_tally_add(tally, kinds, len(kinds), *columns):
            return None
        return tally.last_bytes, tally.last_allocated, tally.last_largest

    def sums(self) -> dict[str, int]:
        tally = self._struct
        names = ("bytes", "allocated", "holes", "sparse", "hard_linked", "set_id", "world_writable", "future")
        return {name: getattr(tally, name) for name in names}

    def largest_files(self) -> list[tuple[int, bytes]]:
        tally = self._struct
        return [(file.size, _ffi.string(file.path)) for file in tally.files[0 : tally.large_files]]

    def histograms(self) -> dict[str, dict[int, int]]:
        names = ("sizes", "size_bytes", "modified", "modified_bytes", "read")
        columns = ((name, list(getattr(self._struct, name))) for name in names)
        return {name: {each: number for each, number in enumerate(column) if number} for name, column in columns}
