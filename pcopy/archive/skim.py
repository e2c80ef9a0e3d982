"""Goes from header to header, as quickly as can be: where do members begin? ``pcopy.archive.reader`` says what they are.

It believes checksums, types and sizes only. What it does not understand it leaves to the reader.
"""

from __future__ import annotations

from collections.abc import Iterator

from pcopy.archive.member import BLOCK, filled_up
from pcopy.archive.reader import Read
from pcopy.archive.records import parsed_records

WINDOW = 256 << 10
"""Bytes that are read at once, where members are small."""
_SMALL = 32 << 10
"""Bytes that are read where they are large."""
_ZEROS = bytes(BLOCK)
_PLAIN = frozenset(b"0\x00123456gxLK7D")
_BEFORE = frozenset(b"xLK")


def skim(read: Read, start: int = 0) -> Iterator[int | None]:
    """Offsets of members, the first one's left out, up to the end; None where the reader has to go on from the last
    one: global headers, sparse files of GNU's old format, damage. May raise what ``read`` raises."""
    window, at, opened = b"", start, start
    told = start
    size_in_pax = -1
    is_begun = False
    while True:
        offset = at - opened
        block = window[offset : offset + BLOCK] if 0 <= offset else b""
        if len(block) < BLOCK:
            window, opened = read(at, _SMALL if offset > WINDOW else WINDOW), at
            block = window[:BLOCK]
        if len(block) < BLOCK or block == _ZEROS:
            return
        kind = block[156]
        size = _octal(block[124:136])
        if kind not in _PLAIN or kind == 0x67 or size < 0 or not _is_right(block):
            yield None
            return
        if not is_begun and at > told:
            yield at
        if kind in _BEFORE:
            is_begun = True
            if kind == 0x78:
                body = window[at - opened + BLOCK : at - opened + BLOCK + size]
                if len(body) < size:
                    body = read(at + BLOCK, size)
                if b"size=" in body:
                    try:
                        size_in_pax = parsed_records(body).number(b"size", -1)
                    except ValueError:
                        yield None
                        return
            at += BLOCK + filled_up(size)
            continue
        is_begun = False
        if size_in_pax >= 0:
            size, size_in_pax = size_in_pax, -1
        at += BLOCK + (0 if kind == 0x31 else filled_up(size))


def _octal(field: bytes) -> int:
    """-1 for what is no octal number, or in base 256, which the reader reads."""
    try:
        return int(field.strip(b" \0") or b"0", 8)
    except ValueError:
        return int.from_bytes(field[1:], "big") if field[:1] == b"\x80" else -1


def _is_right(block: bytes) -> bool:
    field = block[148:156]
    return _octal(field) == sum(block) - sum(field) + 256
