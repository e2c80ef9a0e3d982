"""Headers of archives, found in C (tar.c) in what was read of an archive; what is not plain is left to others."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from typing import Any

from pcopy.fsio.kernel import _native
from pcopy.named import NamedTuple

_ffi, _lib = _native.ffi, _native.lib

MOST = 4096
"""Members that are found with one call at most."""
KEYS = 1 << 20
"""Bytes of their keys."""
VALUE = 8 * int(_lib.PK_TAR_WORDS)
"""Bytes of what is told of one."""


class PlainMembers(NamedTuple):
    """Members beside each other: of each the ``keys`` and the ``values``, and the rows where another directory
    ``begins``. Their contents have so many ``bytes``. To go on ``at`` the next one, which is not plain, or was not read
    (``is_unread``)."""

    keys: list[bytes]
    values: list[bytes]
    begins: list[int]
    bytes: int
    at: int
    is_unread: bool


class TarHeaders:
    def __init__(self, lookup: Callable[[str, str], int | None] | None) -> None:
        """``lookup``: the number of a ``user`` or ``group`` by name; without it names mean nothing."""
        self._lookup = lookup
        self._tar: Any = _ffi.new("pk_tar *")
        self._tar.is_numeric = lookup is None
        self._values = bytearray(MOST * VALUE)
        self._key_ends, self._begins = array("I", [0]) * MOST, array("I", [0]) * MOST
        self._keys = bytearray(KEYS)
        self._offsets = array("Q")
        tar = self._tar
        tar.most, tar.keys_size = MOST, KEYS
        self._kept = (
            _ffi.from_buffer("uint64_t[]", self._values),
            _ffi.from_buffer("uint32_t[]", self._key_ends),
            _ffi.from_buffer("uint32_t[]", self._begins),
            _ffi.from_buffer("char[]", self._keys),
        )
        tar.values, tar.key_ends, tar.begins, tar.keys = self._kept

    def find(self, data: bytes, start: int, at: int, end: int) -> PlainMembers:
        """Those that begin from ``at`` on and before ``end``, in the ``data`` that stand at ``start``."""
        tar = self._tar
        tar.at, tar.end = at, end
        self._hold(data, start)
        keys, values, begins, size = list[bytes](), list[bytes](), list[int](), 0
        while True:
            _lib.pk_tar_members(tar)
            number = tar.members
            if number:
                begins += [each + len(keys) for each in self._begins[: tar.directories]]
                ends = self._key_ends[:number].tolist()
                joined, told = bytes(self._keys[: ends[-1]]), bytes(self._values[: number * VALUE])
                keys += [joined[one:other] for one, other in zip([0, *ends[:-1]], ends, strict=True)]
                values += [told[place : place + VALUE] for place in range(0, len(told), VALUE)]
                size += tar.bytes
            if not (tar.why == _lib.PK_TAR_ROOM and number) and not self._learn():
                return PlainMembers(keys, values, begins, size, tar.at, tar.why == _lib.PK_TAR_MORE)

    def _hold(self, data: bytes, start: int) -> None:
        tar = self._tar
        tar.start, tar.size = start, len(data)
        self._data = _ffi.from_buffer("uint8_t[]", data)
        tar.data = self._data

    def _learn(self) -> bool:
        """Is it known now who is meant by a name that was not?"""
        tar = self._tar
        if tar.why not in (_lib.PK_TAR_USER, _lib.PK_TAR_GROUP) or self._lookup is None:
            return False
        what, known = ("user", tar.users) if tar.why == _lib.PK_TAR_USER else ("group", tar.groups)
        if known.number == _lib.PK_TAR_NAMES:
            return False
        name = _ffi.string(tar.unknown)
        found = self._lookup(what, name.decode("utf-8", "surrogateescape"))
        known.names[known.number] = name
        known.numbers[known.number] = -1 if found is None else found
        known.number += 1
        return True

    def skim(self, data: bytes, start: int, at: int) -> tuple[Sequence[int], int]:
        """As ``find``: where members of any sort begin, and where to go on."""
        if not self._offsets:
            self._offsets = array("Q", [0]) * MOST
        tar = self._tar
        tar.at = at
        self._hold(data, start)
        number = _lib.pk_tar_skim(tar, _ffi.from_buffer("uint64_t[]", self._offsets))
        return self._offsets[:number], tar.at
