"""Parses headers of tar archives in C (native/tar.c). Only simple members are parsed: regular files and directories
whose headers have a name, owner, mode, size and times, and no other records. All other members are left to the Python
code.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from typing import Any

from pcopy.fast_named_tuple import NamedTuple
from pcopy.fsio.backend import _native

_ffi, _lib = _native.ffi, _native.lib

MAX_MEMBERS_PER_CALL = 4096
"""Largest number of members of a tar archive that one call of the C code finds."""
KEY_BUFFER_BYTES = 1 << 20
"""Bytes of memory for the sort keys of the members that one call of the C code finds."""
MEMBER_VALUE_BYTES = 8 * int(_lib.PK_TAR_WORDS)
"""Bytes of the packed description (offset, size, mtime, mode, owner) of one member of a tar archive."""


class SimpleTarMembers(NamedTuple):
    """Consecutive simple members of a tar archive: regular files and directories without unusual header fields.

    Fields:
        keys: the key of each member, by which members are sorted: directory, name, offset (``member_sort_key`` in
            ``pcopy.tasks.archive.members_to_extract`` makes the same).
        values: offset of the data, size, mtime, mode and owner of each member, packed (``pack_simple_member`` in the
            same module makes the same).
        directory_starts: indices of the members that are directories, or are in another directory than the member
            before.
        bytes: total size of the contents of all members.
        next_offset: offset in the archive of the next member.
        needs_more_data: True if more data must be read to find the next member; False if its header is not simple, so
            that Python has to parse it.
    """

    keys: list[bytes]
    values: list[bytes]
    directory_starts: list[int]
    bytes: int
    next_offset: int
    needs_more_data: bool


class TarHeaderParser:
    """Finds members in parts of a tar archive that were read into memory, by parsing headers in C."""

    def __init__(self, lookup: Callable[[str, str], int | None] | None) -> None:
        """Create a parser.

        Args:
            lookup: function that takes "user" or "group" and a name, and returns the uid or gid on this host, or None
                if the name is unknown. If ``lookup`` is None, the ids in the archive are used and names are ignored.
        """
        self._lookup = lookup
        self._tar: Any = _ffi.new("pk_tar *")
        self._tar.is_numeric = lookup is None
        self._values = bytearray(MAX_MEMBERS_PER_CALL * MEMBER_VALUE_BYTES)
        self._key_ends, self._directory_starts = (
            array("I", [0]) * MAX_MEMBERS_PER_CALL,
            array("I", [0]) * MAX_MEMBERS_PER_CALL,
        )
        self._keys = bytearray(KEY_BUFFER_BYTES)
        self._offsets = array("Q")
        tar = self._tar
        tar.most, tar.keys_size = MAX_MEMBERS_PER_CALL, KEY_BUFFER_BYTES
        self._pointers = (
            _ffi.from_buffer("uint64_t[]", self._values),
            _ffi.from_buffer("uint32_t[]", self._key_ends),
            _ffi.from_buffer("uint32_t[]", self._directory_starts),
            _ffi.from_buffer("char[]", self._keys),
        )
        tar.values, tar.key_ends, tar.begins, tar.keys = self._pointers

    def parse_members(self, data: bytes, start: int, at: int, end: int) -> SimpleTarMembers:
        """Return the simple members whose headers begin in a part of the archive, up to the first one that is not
        simple.

        Args:
            data: the bytes that were read.
            start: offset of ``data`` in the archive.
            at: offset in the archive of the first header to parse.
            end: offset in the archive; members that begin there or later are not parsed.
        """
        tar = self._tar
        tar.at, tar.end = at, end
        self._pass_data_to_c(data, start)
        keys, values, begins, size = list[bytes](), list[bytes](), list[int](), 0
        while True:
            _lib.pk_tar_members(tar)
            number = tar.members
            if number:
                begins += [each + len(keys) for each in self._directory_starts[: tar.directories]]
                ends = self._key_ends[:number].tolist()
                joined, packed = bytes(self._keys[: ends[-1]]), bytes(self._values[: number * MEMBER_VALUE_BYTES])
                keys += [joined[one:other] for one, other in zip([0, *ends[:-1]], ends, strict=True)]
                values += [
                    packed[offset : offset + MEMBER_VALUE_BYTES] for offset in range(0, len(packed), MEMBER_VALUE_BYTES)
                ]
                size += tar.bytes
            if not (tar.why == _lib.PK_TAR_ROOM and number) and not self._look_up_owner():
                return SimpleTarMembers(keys, values, begins, size, tar.at, tar.why == _lib.PK_TAR_MORE)

    def _pass_data_to_c(self, data: bytes, start: int) -> None:
        """Pass to the C code a pointer to ``data``, which begins at the offset ``start`` of the archive, and keep the
        data alive.
        """
        tar = self._tar
        tar.start, tar.size = start, len(data)
        self._data = _ffi.from_buffer("uint8_t[]", data)
        tar.data = self._data

    def _look_up_owner(self) -> bool:
        """Look up the id of the user or group whose name the C code needs to continue, and pass it to C. Return False
        if C stopped for another reason, or if its table of names is full.
        """
        tar = self._tar
        if tar.why not in (_lib.PK_TAR_USER, _lib.PK_TAR_GROUP) or self._lookup is None:
            return False
        kind, table = ("user", tar.users) if tar.why == _lib.PK_TAR_USER else ("group", tar.groups)
        if table.number == _lib.PK_TAR_NAMES:
            return False
        name = _ffi.string(tar.unknown)
        found = self._lookup(kind, name.decode("utf-8", "surrogateescape"))
        table.names[table.number] = name
        table.numbers[table.number] = -1 if found is None else found
        table.number += 1
        return True

    def member_offsets(self, data: bytes, start: int, at: int) -> tuple[Sequence[int], int]:
        """Return the offsets in the archive at which members of any type begin, and the offset to continue from.

        Args:
            data: the bytes that were read.
            start: offset of ``data`` in the archive.
            at: offset in the archive of the first header.
        """
        if not self._offsets:
            self._offsets = array("Q", [0]) * MAX_MEMBERS_PER_CALL
        tar = self._tar
        tar.at = at
        self._pass_data_to_c(data, start)
        number = _lib.pk_tar_skim(tar, _ffi.from_buffer("uint64_t[]", self._offsets))
        return self._offsets[:number], tar.at
