"""Goes from header to header, as quickly as can be: where do members begin? (``pcopy.archive.reader`` reads them.)

It believes checksums, types and sizes only. What it does not understand it leaves to the reader.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from pcopy.archive.member import BLOCK, MOST_HEADERS, filled_up
from pcopy.archive.reader import Broken, Read, full_name, has_data, is_header, link_data, number
from pcopy.archive.records import LARGEST, PaxRecords, parsed_records

if TYPE_CHECKING:
    from pcopy.fsio.kernel.native_tar import TarHeaders

WINDOW = 256 << 10
"""Bytes that are read at once, where members are small."""
_SMALL = 32 << 10
"""Bytes that are read where they are large."""
_ZEROS = bytes(BLOCK)
_PLAIN = frozenset(b"0\x00123456xXLK7D")
_BEFORE = frozenset(b"xXLK")
_PAX, _LONG_NAME, _LINK = frozenset(b"xX"), ord("L"), ord("1")


class _Unclear(Exception):
    """The reader has to go on."""


def skim(read: Read, start: int = 0, in_c: TarHeaders | None = None) -> Iterator[int | None]:
    """Offsets of members, the first one's left out, up to the end; None where the reader has to go on from the last
    one: global headers, sparse files of GNU's old format, damage. May raise what ``read`` raises.

    ``in_c`` finds most of them.
    """
    skimming = _Skimming(read)
    at: int | None = start
    try:
        while at is not None:
            if in_c is not None:
                for offsets, following in skimming.many(in_c, at):
                    yield from offsets if at > start else offsets[1:]
                    at = following
            after = skimming.member(at)
            if after is not None and at > start:
                yield at
            at = after
    except _Unclear:
        yield None


class _Skimming:
    def __init__(self, read: Read) -> None:
        self._read = read
        self._window, self._opened = b"", 0

    def _bytes(self, at: int, size: int) -> bytes:
        offset = at - self._opened
        found = self._window[offset : offset + size] if offset >= 0 else b""
        if len(found) < size:
            length = _SMALL if offset > len(self._window) + WINDOW else WINDOW
            self._window, self._opened = self._read(at, max(length, size)), at
            found = self._window[:size]
        return found

    def many(self, in_c: TarHeaders, at: int) -> Iterator[tuple[Sequence[int], int]]:
        """Offsets of the next members, some at a time, and where to go on; at last with ``member``."""
        number = 1
        while number and self._bytes(at, BLOCK):
            offsets, at = in_c.skim(self._window, self._opened, at)
            if number := len(offsets):
                yield offsets, at

    def member(self, at: int) -> int | None:
        """Where the member at ``at`` ends; None if there is none. Raises ``_Unclear``."""
        records, long_name, before = PaxRecords(), b"", 0
        while True:
            block = self._bytes(at, BLOCK)
            if len(block) < BLOCK or (block == _ZEROS and not before):
                return None
            kind, size = block[156], _size_of(block[124:136])
            if kind not in _PLAIN or size < 0 or not is_header(block):
                raise _Unclear
            if kind not in _BEFORE:
                return at + BLOCK + filled_up(self._stored(at, block, records, long_name))
            before += size
            if before > MOST_HEADERS:
                raise _Unclear
            if kind in _PAX:
                records = self._records_in(at + BLOCK, size)
            elif kind == _LONG_NAME:
                long_name = self._bytes(at + BLOCK, size).partition(b"\0")[0]
            at += BLOCK + filled_up(size)

    def _stored(self, at: int, block: bytes, records: PaxRecords, long_name: bytes) -> int:
        """Return the bytes of data that follow the header ``block`` at ``at``. Raises ``_Unclear``."""
        kind, size = block[156:157], number(block[124:136])
        if not has_data(kind, full_name(records, long_name, block)):
            return 0
        try:
            size = records.number(b"size", size)
        except ValueError:
            raise _Unclear from None
        if at + size > LARGEST - 2 * BLOCK:
            raise _Unclear
        if kind[0] == _LINK:
            return link_data(self._block, at + BLOCK, size)
        return size

    def _block(self, at: int) -> bytes:
        block = self._bytes(at, BLOCK)
        return block if len(block) == BLOCK else b""

    def _records_in(self, at: int, size: int) -> PaxRecords:
        """Return what a pax header says of the size and the name; nothing if it has neither. Raises ``_Unclear``."""
        body = self._bytes(at, size)
        if not (b"size=" in body or b"path=" in body or b"sparse.name=" in body):
            return PaxRecords()
        try:
            return parsed_records(body)
        except ValueError:
            raise _Unclear from None


def _size_of(field: bytes) -> int:
    """-1 for what is none."""
    try:
        return number(field)
    except Broken:
        return -1
