"""Quick search for the offsets of members in an archive. ``pcopy.archive.reader`` reads the members themselves.

The search looks only at checksums, types and sizes of headers, and at the few pax records that determine them. At a
header that needs more it stops, and the caller continues with ``pcopy.archive.reader``.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from pcopy.archive.member import MAX_HEADER_BYTES, TAR_BLOCK_BYTES, rounded_up_to_multiple
from pcopy.archive.reader import (
    InvalidHeaderError,
    ReadFunction,
    full_member_name,
    hard_link_data_size,
    is_valid_header,
    may_have_data,
    parse_number,
)
from pcopy.archive.records import NUMBER_LIMIT, PaxRecords, parse_pax_records

if TYPE_CHECKING:
    from pcopy.fsio.backend.native_tar import TarHeaderParser

SEARCH_WINDOW_BYTES = 256 << 10
"""Bytes of the archive that are read in one call where members are small, so that many headers are in it."""
_SMALL_WINDOW_BYTES = 32 << 10
"""Bytes of the archive that are read in one call where members are large, so that there is only one header in it."""
_ZEROS = bytes(TAR_BLOCK_BYTES)
_KNOWN_HEADER_TYPES = frozenset(b"0\x00123456xXLK7D")
_EXTENSION_TYPES = frozenset(b"xXLK")
_PAX_HEADER_TYPES, _LONG_NAME, _HARD_LINK_TYPE = frozenset(b"xX"), ord("L"), ord("1")


class _FullReaderNeededError(Exception):
    """Raised at a header that the quick search cannot interpret, so that ``pcopy.archive.reader`` must read it."""


def member_offsets_by_quick_search(
    read: ReadFunction, start: int = 0, in_c: TarHeaderParser | None = None
) -> Iterator[int | None]:
    """Generator: search quickly for members, and yield the offsets of those behind the one at ``start``, in ascending
    order, up to the end of the archive.

    The last value is None if ``pcopy.archive.reader`` must continue, from the last offset on: there is a global header,
    a sparse file of the old GNU format, or damage.

    Args:
      read: ``read(offset, number)`` returns that number of bytes of the archive; its exceptions are passed on.
      start: offset of the first header of a member.
      in_c: C functions that find most offsets; None if the C backend is not available.
    """
    skimming = _MemberOffsetSearch(read)
    at: int | None = start
    try:
        while at is not None:
            if in_c is not None:
                for offsets, following in skimming.member_offsets_from_c_search(in_c, at):
                    yield from offsets if at > start else offsets[1:]
                    at = following
            after = skimming.member_end_offset(at)
            if after is not None and at > start:
                yield at
            at = after
    except _FullReaderNeededError:
        yield None


class _MemberOffsetSearch:
    """Reads headers of an archive, and keeps in memory the part (window) of the archive that was read last."""

    def __init__(self, read: ReadFunction) -> None:
        self._read = read
        self._window, self._opened = b"", 0

    def _read_bytes_at(self, at: int, size: int) -> bytes:
        """Return ``size`` bytes from the offset ``at`` on; fewer at the end of the archive."""
        offset = at - self._opened
        found = self._window[offset : offset + size] if offset >= 0 else b""
        if len(found) < size:
            length = _SMALL_WINDOW_BYTES if offset > len(self._window) + SEARCH_WINDOW_BYTES else SEARCH_WINDOW_BYTES
            self._window, self._opened = self._read(at, max(length, size)), at
            found = self._window[:size]
        return found

    def member_offsets_from_c_search(self, in_c: TarHeaderParser, at: int) -> Iterator[tuple[Sequence[int], int]]:
        """Generator: let the C functions ``in_c`` search from the member at the offset ``at`` on. Yield lists of the
        offsets of members, each list with the offset of the member behind them.

        C stops at the member behind the last list: the caller must examine that one with ``member_end_offset``.
        """
        number = 1
        while number and self._read_bytes_at(at, TAR_BLOCK_BYTES):
            offsets, at = in_c.member_offsets(self._window, self._opened, at)
            if number := len(offsets):
                yield offsets, at

    def member_end_offset(self, at: int) -> int | None:
        """Return the offset at which the member at the offset ``at`` ends; None at the end of the archive. Raise
        ``_FullReaderNeededError`` at a header that needs ``pcopy.archive.reader``.
        """
        records, long_name, before = PaxRecords(), b"", 0
        while True:
            block = self._read_bytes_at(at, TAR_BLOCK_BYTES)
            if len(block) < TAR_BLOCK_BYTES or (block == _ZEROS and not before):
                return None
            kind, size = block[156], _header_number_or_minus_one(block[124:136])
            if kind not in _KNOWN_HEADER_TYPES or size < 0 or not is_valid_header(block):
                raise _FullReaderNeededError
            if kind not in _EXTENSION_TYPES:
                return at + TAR_BLOCK_BYTES + rounded_up_to_multiple(self._stored_size(at, block, records, long_name))
            before += size
            if before > MAX_HEADER_BYTES:
                raise _FullReaderNeededError
            if kind in _PAX_HEADER_TYPES:
                records = self._size_and_name_pax_records(at + TAR_BLOCK_BYTES, size)
            elif kind == _LONG_NAME:
                long_name = self._read_bytes_at(at + TAR_BLOCK_BYTES, size).partition(b"\0")[0]
            at += TAR_BLOCK_BYTES + rounded_up_to_multiple(size)

    def _stored_size(self, at: int, block: bytes, records: PaxRecords, long_name: bytes) -> int:
        """Return how many bytes of data follow the header ``block`` at the offset ``at``. Raise
        ``_FullReaderNeededError`` if the header does not state that in a valid way.

        ``records`` are the pax records, and ``long_name`` the long name, from the extension headers before it.
        """
        kind, size = block[156:157], parse_number(block[124:136])
        if not may_have_data(kind, full_member_name(records, long_name, block)):
            return 0
        try:
            size = records.number_in_record(b"size", size)
        except ValueError:
            raise _FullReaderNeededError from None
        if at + size > NUMBER_LIMIT - 2 * TAR_BLOCK_BYTES:
            raise _FullReaderNeededError
        if kind[0] == _HARD_LINK_TYPE:
            return hard_link_data_size(self._read_block, at + TAR_BLOCK_BYTES, size)
        return size

    def _read_block(self, at: int) -> bytes:
        """Return the block at the offset ``at``; empty at the end of the archive."""
        block = self._read_bytes_at(at, TAR_BLOCK_BYTES)
        return block if len(block) == TAR_BLOCK_BYTES else b""

    def _size_and_name_pax_records(self, at: int, size: int) -> PaxRecords:
        """Return the records in a pax header with a body of ``size`` bytes at the offset ``at``. If it contains neither
        a size nor a name, which alone matter here, return no records. Raise ``_FullReaderNeededError`` if it is
        invalid.
        """
        body = self._read_bytes_at(at, size)
        if not (b"size=" in body or b"path=" in body or b"sparse.name=" in body):
            return PaxRecords()
        try:
            return parse_pax_records(body)
        except ValueError:
            raise _FullReaderNeededError from None


def _header_number_or_minus_one(field: bytes) -> int:
    """Return the number in ``field`` of a header; -1 if it is invalid."""
    try:
        return parse_number(field)
    except InvalidHeaderError:
        return -1
