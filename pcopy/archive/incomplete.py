"""The trailer of an archive: names of files whose contents could not be read completely when the archive was created.

The headers of these files were written before that was known. The trailer follows the blocks of zeros that end an
archive, so that other programs do not read it (``docs/formats/ptar_trailer.md``).
"""

from __future__ import annotations

import re
from collections.abc import Collection

from pcopy.archive.headers import pax_header, pax_record
from pcopy.archive.member import TAR_BLOCK_BYTES, TAR_RECORD_BYTES, rounded_up_to_multiple
from pcopy.archive.reader import InvalidHeaderError, ReadFunction, is_valid_header, parse_number
from pcopy.fast_named_tuple import NamedTuple

MAX_TRAILER_NAME_BYTES = 16 << 20
"""Maximum sum of the bytes of the names that a trailer lists, each with ``NAME_OVERHEAD_BYTES``, because a reader has
all of them in memory. If there are more, the trailer only says so.
"""
NAME_OVERHEAD_BYTES = 64
"""Number of bytes that are counted for each name in addition to its own bytes, towards ``MAX_TRAILER_NAME_BYTES``."""
_TRAILER_RECORD_KEY, _NAME_VALUE_PREFIX, _MORE_NAMES_VALUE = (
    b"comment",
    b"incomplete: ",
    b"incomplete: other files, too",
)
_TRAILER_OFFSET_PREFIX = b"incomplete files are listed at "
_LAST_RECORD_PATTERN = re.compile(rb"\d+ comment=%b(\d{20})\n" % _TRAILER_OFFSET_PREFIX)
_LAST_RECORD_BYTES = len(pax_record(_TRAILER_RECORD_KEY, _TRAILER_OFFSET_PREFIX + bytes(20)))
_GLOBAL_HEADER_TYPE = b"g"

INCOMPLETE_TEXT = (
    "its contents are incomplete: they could not be read when it was archived, and zeros stand in their place"
)
MORE_INCOMPLETE_TEXT = (
    "the contents of more files than can be listed are incomplete: they could not be read when the archive was created"
)


class NamesOfIncompleteFiles(NamedTuple):
    """The names of files whose contents in the archive are incomplete. ``has_more`` is True if there were too many to
    list, so that any other file may be incomplete, too.
    """

    names: Collection[bytes] = ()
    has_more: bool = False

    def __bool__(self) -> bool:
        """Return True if any file is incomplete."""
        return bool(self.names) or self.has_more

    def error_text_if_incomplete(self, name: bytes, otherwise: str = "") -> str:
        """Return the error text for the member ``name`` if it is listed as incomplete. If it is not, return
        ``otherwise``, the text of any other error.
        """
        return INCOMPLETE_TEXT if name in self.names else otherwise


NONE_INCOMPLETE = NamesOfIncompleteFiles()
"""The value for an archive without incomplete files."""


def encoded_archive_trailer(incomplete: NamesOfIncompleteFiles, end: int) -> bytes:
    """Return the trailer that lists the files ``incomplete``, to be appended to an archive of ``end`` bytes. ``end``
    and the size of the trailer are multiples of ``TAR_RECORD_BYTES``.
    """
    records = [pax_record(_TRAILER_RECORD_KEY, _NAME_VALUE_PREFIX + name) for name in sorted(incomplete.names)]
    if incomplete.has_more:
        records.append(pax_record(_TRAILER_RECORD_KEY, _MORE_NAMES_VALUE))
    size = sum(map(len, records)) + _LAST_RECORD_BYTES
    stored = TAR_BLOCK_BYTES + rounded_up_to_multiple(size)
    before = rounded_up_to_multiple(stored, TAR_RECORD_BYTES) - stored
    records.append(pax_record(_TRAILER_RECORD_KEY, _TRAILER_OFFSET_PREFIX + b"%020d" % (end + before)))
    return b"".join(
        (bytes(before), pax_header(size, _GLOBAL_HEADER_TYPE), *records, bytes(rounded_up_to_multiple(size) - size))
    )


def read_archive_trailer(read: ReadFunction, size: int) -> NamesOfIncompleteFiles:
    """Return the names in the trailer of an archive of ``size`` bytes; ``NONE_INCOMPLETE`` if it has no trailer.

    ``read(offset, number)`` returns that number of bytes of the archive; exceptions that it raises are passed on. Raise
    ``ValueError`` if the trailer is damaged.
    """
    start = max(0, size - 2 * TAR_BLOCK_BYTES)
    last = _LAST_RECORD_PATTERN.fullmatch(read(start, size - start).rstrip(b"\0")[-_LAST_RECORD_BYTES:])
    if last is None or size % TAR_BLOCK_BYTES:
        return NONE_INCOMPLETE
    at = int(last[1])
    block = read(at, TAR_BLOCK_BYTES) if at + TAR_BLOCK_BYTES <= size else b""
    try:
        is_trailer = len(block) == TAR_BLOCK_BYTES and block[156:157] == _GLOBAL_HEADER_TYPE and is_valid_header(block)
        length = parse_number(block[124:136]) if is_trailer else 0
    except InvalidHeaderError:
        length = 0
    if not 0 < length <= min(size - at - TAR_BLOCK_BYTES, 2 * MAX_TRAILER_NAME_BYTES):
        raise ValueError("the list of incomplete files at the end of the archive is damaged")
    body = b""
    while len(body) < length and (more := read(at + TAR_BLOCK_BYTES + len(body), length - len(body))):
        body += more
    return _parse_archive_trailer(body)


def _parse_archive_trailer(body: bytes) -> NamesOfIncompleteFiles:
    """Return the names that the pax records in ``body`` list. Raise ``ValueError`` if the records are damaged."""
    names, has_more, at, size = set[bytes](), False, 0, 0
    start = b" %b=" % _TRAILER_RECORD_KEY
    while at < len(body):
        digits = body[at : at + 20].partition(b" ")[0]
        following = at + (int(digits) if digits.isdigit() else 0)
        key_at = at + len(digits)
        if not body.startswith(start, key_at) or body[following - 1 : following] != b"\n" or following <= key_at:
            raise ValueError("the list of incomplete files at the end of the archive is damaged")
        value = body[key_at + len(start) : following - 1]
        if value.startswith(_NAME_VALUE_PREFIX):
            size += len(value) - len(_NAME_VALUE_PREFIX) + NAME_OVERHEAD_BYTES
            if size > MAX_TRAILER_NAME_BYTES or value == _MORE_NAMES_VALUE:
                has_more = True
            else:
                names.add(value[len(_NAME_VALUE_PREFIX) :])
        at = following
    return NamesOfIncompleteFiles(names, has_more)
