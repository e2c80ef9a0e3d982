"""Reading of members from the headers of an archive (ustar, pax, GNU and older formats), from any offset on.

Whatever the archive contains, each result is a member or an ``ArchiveDamage`` (offset and error). No exception is
raised, except those of reading. After an invalid header the next valid one is searched, as tar does.

An *extension header* precedes the header of a member and contains what does not fit into that: a pax header, or a long
name or link of GNU tar. The records of a *global* header apply to all later members.
"""

from __future__ import annotations

import os
from array import array
from collections.abc import Callable, Iterator
from zlib import adler32

from pcopy.archive.acl_text import OwnerIdLookup
from pcopy.archive.member import (
    DIRECTORY,
    FILE,
    HARD_LINK_MEMBER,
    MAX_HEADER_BYTES,
    SYMLINK,
    TAR_BLOCK_BYTES,
    ArchiveMember,
    Extents,
    rounded_up_to_multiple,
)
from pcopy.archive.records import (
    MAX_EXTENTS,
    NUMBER_LIMIT,
    PaxRecords,
    extents_in_pax_records,
    parse_pax_records,
    parse_sparse_map,
    parse_xattrs,
    to_nanoseconds,
    too_many_extents_error,
)
from pcopy.fast_named_tuple import NamedTuple

ReadFunction = Callable[[int, int], bytes]
"""Function (offset, number) that returns that number of bytes of the archive from the offset on.

It returns fewer bytes at the end of the archive, and before an offset that cannot be read. It may raise ``OSError``.
"""

HEADER_WINDOW_BYTES = 64 << 10
"""Number of bytes of the archive that are read in one call to get headers."""
_LONGEST_PAIR = 100
"""Maximum number of bytes that a pax header has for one extent of a sparse file."""

_ZEROS = bytes(TAR_BLOCK_BYTES)
_GLOBAL, _PAX, _SOLARIS, _LONG_NAME, _LONG_LINK, _OLD_SPARSE, _VOLUME = b"g", b"x", b"X", b"L", b"K", b"S", b"V"
_EXTENSIONS = (_GLOBAL, _PAX, _SOLARIS, _LONG_NAME, _LONG_LINK)
"""Types of extension headers."""
_GLOBAL_KEYS = frozenset((b"path", b"linkpath", b"size", b"uid", b"gid", b"uname", b"gname", b"mtime"))
"""Keys of the records of a global header that are applied to the members after it."""
_SINGLE_FILE_PREFIXES = (b"GNU.sparse.", b"SCHILY.xattr.", b"SCHILY.acl.", b"LIBARCHIVE.xattr.")
"""Prefixes of the keys of records that describe a single file. A global header with such a record is reported as
damage, because no program writes them there.
"""
_ESSENTIAL_KEYS = frozenset((b"size", b"path", b"GNU.sparse.name"))
"""Keys of the records that determine the end of a member, and its name."""
_LONGEST_KEY = 64
"""Number of bytes that is enough for the length and the key of a record of ``_ESSENTIAL_KEYS``."""
_LONGEST_VALUE = 8 << 10
"""Maximum number of bytes of a record of ``_ESSENTIAL_KEYS`` that is read: a valid path is shorter than 4 KiB."""
_DEVICES = (b"3", b"4")
_CONTINUED = b"M"
_KNOWN_TYPES = (FILE, HARD_LINK_MEMBER, SYMLINK, *_DEVICES, DIRECTORY, b"6")
_TYPE_ALIASES = {b"\0": FILE, b"7": FILE, b"D": DIRECTORY}
_WITHOUT_DATA = frozenset((SYMLINK, *_DEVICES, DIRECTORY, b"6"))
"""Types of members that are not followed by data, whatever size their header states (pax(1)). GNU tar -x, bsdtar and
tarfile read them alike."""
_OLD_FILES = frozenset((FILE, b"\0", b"7"))
"""Types of files that are directories if their name ends with a slash, as in formats before ustar."""
_ADLER_MODULUS = 65521
"""Modulus of Adler-32. Its lower half is the sum of all bytes plus 1, which zlib computes faster than Python code."""
_OCTAL = frozenset(b"01234567")


class FoundMember(NamedTuple):
    """A member that was read from the archive.

    Fields:
      offset: the offset of its first header, which may be an extension header.
      member: the member.
      data, stored: the offset and the number of bytes of its stored contents.
      next: the offset at which the next header begins.
      problem_text: an error about extended attributes or ACLs that cannot be read; empty if there is none.
      warning: a warning about anything else; empty if there is none.
    """

    offset: int
    member: ArchiveMember
    data: int
    stored: int
    next: int
    problem_text: str = ""
    warning: str = ""


class ArchiveDamage(NamedTuple):
    """An error in the archive: a member or header that cannot be read.

    Fields:
      offset: the offset of the first header of the member.
      name: the name of the member; empty if it is unknown.
      text: the error text.
      is_truncated: True if the archive ends within the member or without its end mark, so that nothing follows.
    """

    offset: int
    name: bytes
    text: str
    is_truncated: bool = False


class InvalidHeaderError(Exception):
    """Error for an invalid header. The next one is searched from ``next_offset`` on; if None, from the next block."""

    next_offset: int | None = None


class TruncatedArchiveError(Exception):
    """Error for an archive that ends within a header, or without its end mark (blocks of zeros)."""


def read_archive_members(
    read: ReadFunction,
    lookup: OwnerIdLookup,
    start: int = 0,
    end: int | None = None,
    global_records: dict[bytes, bytes] | None = None,
    most_extents: int = MAX_EXTENTS,
) -> Iterator[FoundMember | ArchiveDamage]:
    """Yield the members and the damage from ``start`` on, up to the end of the archive.

    If the archive is truncated, the last result is an ``ArchiveDamage`` that says so.

    Args:
      read: returns bytes of the archive.
      lookup: returns the id of a user or group by its name, for ACLs.
      start: offset of the first header of a member.
      end: only members that begin before this offset are read; None: all.
      global_records: records of the global headers before ``start``; the records of those that are read are added.
      most_extents: a sparse file with more extents is reported as ``ArchiveDamage``.
    """
    source = ArchiveBlockReader(read, most_extents)
    shared = {} if global_records is None else global_records
    at = start
    while end is None or at < end:
        try:
            found = _read_member(source, at, shared, lookup)
        except InvalidHeaderError as broken:
            yield ArchiveDamage(at, b"", str(broken))
            after = broken.next_offset
            following = next_header_offset(source, at + TAR_BLOCK_BYTES if after is None else after)
            if following is None:
                return
            at = following
            continue
        if found is None:
            return
        yield found
        if isinstance(found, ArchiveDamage):
            if found.is_truncated:
                return
            at = offset_after_damage(source, found)
        else:
            at = found.next


def offset_after_damage(source: ArchiveBlockReader, damage: ArchiveDamage) -> int:
    """Return the offset at which the next header after a damaged member is expected: behind its contents if their size
    is known, otherwise at the next block.
    """
    return source.next_header_after.get(damage.offset, damage.offset + TAR_BLOCK_BYTES)


def next_header_offset(source: ArchiveBlockReader, at: int) -> int | None:
    """Return the offset of the first valid header in ``source`` at ``at`` or later; None if there is none."""
    while block := source.read_block(at):
        if block != _ZEROS and is_valid_header(block):
            return at
        at += TAR_BLOCK_BYTES
    return None


class ArchiveBlockReader:
    """Reads blocks of the archive. The part (window) that was read last stays in memory."""

    def __init__(self, read: ReadFunction, most_extents: int = MAX_EXTENTS) -> None:
        self._read = read
        self.most_extents = most_extents
        self._window = b""
        self._start = 0
        self.next_header_after: dict[int, int] = {}
        """Offsets of the next header after a damaged member, by the offset of that member."""

    def read_block(self, at: int) -> bytes:
        """Return the block of 512 bytes at the offset ``at``; empty if the archive ends before the end of the block."""
        offset = at - self._start
        block = self._window[offset : offset + TAR_BLOCK_BYTES] if offset >= 0 else b""
        if len(block) < TAR_BLOCK_BYTES:
            self._window, self._start = self._read(at, HEADER_WINDOW_BYTES), at
            block = self._window[:TAR_BLOCK_BYTES]
        return block if len(block) == TAR_BLOCK_BYTES else b""

    def read_bytes(self, at: int, size: int) -> bytes:
        """Return ``size`` bytes from the offset ``at`` on; fewer at the end of the archive."""
        offset = at - self._start
        if offset >= 0 and offset + size <= len(self._window):
            return self._window[offset : offset + size]
        return self._read(at, size)


def is_valid_header(block: bytes) -> bool:
    """Return True if the checksum of the header ``block`` is right.

    Some old programs sum signed bytes; their checksum is accepted, too.
    """
    try:
        stated = parse_number(block[148:156])
    except InvalidHeaderError:
        return False
    field = block[148:156]
    if ((adler32(block) & 0xFFFF) - 1 - stated - sum(field) + 256) % _ADLER_MODULUS == 0:
        return True
    signed = sum(byte - 256 if byte > 127 else byte for byte in block[:148] + block[156:]) + 256
    return stated == signed


def parse_number(field: bytes) -> int:
    """Return the number in ``field`` of a header: octal digits, or the binary form of GNU tar. An empty field is 0.

    Raise ``InvalidHeaderError`` if the field is not a number, or the number is not between -2**63 and 2**63.
    """
    if field[:1] >= b"\x80":
        value = int.from_bytes(field, "big")
        bits = 8 * len(field)
        value -= 1 << (bits if field[0] == 0xFF else bits - 1)
        if not -NUMBER_LIMIT < value < NUMBER_LIMIT:
            raise InvalidHeaderError(f"a header field contains a number that is too large: {value}")
        return value
    digits = field.lstrip(b" \0").replace(b"\0", b" ").partition(b" ")[0]
    if not _OCTAL.issuperset(digits):
        raise InvalidHeaderError(f"a header field should be a number, but is {field!r}")
    return int(digits, 8) if digits else 0


def _check_member_size(at: int, size: int) -> None:
    """Raise ``InvalidHeaderError`` if a member at the offset ``at`` cannot have this ``size``."""
    if size < 0:
        raise InvalidHeaderError("a member of a negative size")
    if at + size > NUMBER_LIMIT - 2 * TAR_BLOCK_BYTES:
        raise InvalidHeaderError(f"a member of {size} bytes would end beyond the largest offset of a file")


def _text_before_nul(field: bytes) -> bytes:
    """Return the text in ``field`` of a header, up to the first NUL."""
    return field.partition(b"\0")[0]


class _ExtensionHeaders:
    """The extension headers of one member: the ``records`` of pax headers, the long ``name`` and the long ``link``
    target of GNU tar, and the ``size`` of all in bytes.
    """

    def __init__(self) -> None:
        self.records = PaxRecords()
        self.name = b""
        self.link = b""
        self.size = 0
        self.too_long_text = ""
        """Error text if the headers are too long; else empty. The member is then reported as damaged and skipped."""

    def read_extension_header(
        self, source: ArchiveBlockReader, at: int, kind: bytes, size: int, shared: dict[bytes, bytes]
    ) -> None:
        """Read the body of an extension header.

        Raise ``InvalidHeaderError``, with the offset at which the next header may be, or ``TruncatedArchiveError``.

        Args:
          source: the archive.
          at: offset of the body.
          kind: type of the header.
          size: number of bytes of the body.
          shared: records of global headers; those of a global header are added.
        """
        after = at + rounded_up_to_multiple(size)
        self.size += size
        try:
            if self.size <= _max_header_bytes(source.most_extents):
                self.parse_extension_header(kind, _read_exactly(source, at, size), shared)
                return
            text = f"a member has headers of {self.size:,} bytes, and at most {MAX_HEADER_BYTES:,} are read"
            self.too_long_text = f"{text}; if they list the holes of a file, --sparse-limit 0 allows more"
            if not has_header_at(source.read_block, after):  # no header follows the body, so its size is wrong
                after = at
                raise InvalidHeaderError(self.too_long_text)
            if kind == _GLOBAL:
                raise InvalidHeaderError(self.too_long_text)
            if kind in (_PAX, _SOLARIS):
                self.records.update(_essential_records(source, at, size))
        except InvalidHeaderError as broken:
            broken.next_offset = after
            raise

    def parse_extension_header(self, kind: bytes, body: bytes, shared: dict[bytes, bytes]) -> None:
        """Store the ``body`` of an extension header of this ``kind`` in this object, but add the records of a global
        header to ``shared``. Raise ``InvalidHeaderError`` if the body is invalid.
        """
        if kind == _LONG_NAME:
            self.name = _text_before_nul(body)
        elif kind == _LONG_LINK:
            self.link = _text_before_nul(body)
        else:
            try:
                found = parse_pax_records(body)
            except ValueError as error:
                raise InvalidHeaderError(str(error)) from None
            if kind == _GLOBAL:
                _add_global_records(found, shared)
            else:
                self.records = found


def _essential_records(source: ArchiveBlockReader, at: int, size: int) -> dict[bytes, bytes]:
    """Return the records with ``_ESSENTIAL_KEYS`` in a pax header that is too long to be read into memory as a whole.

    The body of the header has ``size`` bytes, at the offset ``at``. Raise ``InvalidHeaderError`` if it is invalid, and
    ``TruncatedArchiveError`` if the archive ends within it.
    """
    found: dict[bytes, bytes] = {}
    end, window, opened = at + size, b"", at
    while at < end:
        if opened + len(window) < min(at + _LONGEST_KEY, end):
            window, opened = _read_exactly(source, at, min(HEADER_WINDOW_BYTES, end - at)), at
        start = window[at - opened : at - opened + _LONGEST_KEY]
        digits, _, rest = start.partition(b" ")
        if not digits.isdigit():
            if not start.strip(b"\0"):
                break
            raise InvalidHeaderError("a pax header has a record that does not begin with its length")
        length, key = int(digits), rest.partition(b"=")[0]
        if not len(digits) < length <= end - at:
            raise InvalidHeaderError("a pax header has a record with a wrong length")
        if key in _ESSENTIAL_KEYS and length <= _LONGEST_VALUE:
            found[key] = _read_exactly(source, at, length)[len(digits) + len(key) + 2 : -1]
        at += length
    return found


def _max_header_bytes(most_extents: int) -> int:
    """Return the maximum number of bytes of extension headers of one member that are read completely.

    The formats GNU.sparse 0.0 and 0.1 list the extents of sparse files in these headers, so the number grows with
    ``most_extents`` (``--sparse-limit``).
    """
    return MAX_HEADER_BYTES if most_extents <= MAX_EXTENTS else max(MAX_HEADER_BYTES, _LONGEST_PAIR * most_extents)


def _add_global_records(found: PaxRecords, shared: dict[bytes, bytes]) -> None:
    """Add ``found``, the records of a global header, to ``shared``, the records that apply to all later members.

    Raise ``InvalidHeaderError`` if the header has records that are not applied to all members, or too many.
    """
    shared.update({key: value for key, value in found.items() if key in _GLOBAL_KEYS})
    for key in found.cancelled_keys & _GLOBAL_KEYS:
        shared.pop(key, None)
    if sum(map(len, shared.values())) > MAX_HEADER_BYTES:
        shared.clear()
        raise InvalidHeaderError(f"global headers are not applied: they exceed {MAX_HEADER_BYTES:,} bytes, the limit")
    if found.sparse_pairs or any(key.startswith(_SINGLE_FILE_PREFIXES) for key in found):
        raise InvalidHeaderError("attributes, ACLs or a map of holes in a global header are not applied")


class _LocatedHeader(NamedTuple):
    """The header of a member: its ``block``, and the offset ``at`` of this block. ``start`` is the offset of the first
    extension header before it, or is equal to ``at`` if there are none.
    """

    start: int
    at: int
    block: bytes


def _read_member(
    source: ArchiveBlockReader, start: int, shared: dict[bytes, bytes], lookup: OwnerIdLookup
) -> FoundMember | ArchiveDamage | None:
    """Return the member whose first header is at the offset ``start``; None at the end of the archive.

    Return an ``ArchiveDamage`` if the member is invalid but its header is valid, or if the archive is truncated. Raise
    ``InvalidHeaderError`` if a header is invalid. ``shared`` are the records of global headers; new ones are added.
    """
    before = _ExtensionHeaders()
    at = start
    try:
        while block := _read_header(source, at, is_first=at == start):
            kind, size = block[156:157], parse_number(block[124:136])
            _check_member_size(at, size)
            if kind in _EXTENSIONS:
                before.read_extension_header(source, at + TAR_BLOCK_BYTES, kind, size, shared)
            elif kind != _VOLUME:
                if shared:
                    before.records.add_missing_records(shared)
                return _build_member(source, _LocatedHeader(start, at, block), before, lookup)
            at += TAR_BLOCK_BYTES + rounded_up_to_multiple(size)
            if kind in (_GLOBAL, _VOLUME):
                before.size = 0
                start = at
    except TruncatedArchiveError as cut:
        return ArchiveDamage(start, b"", str(cut), is_truncated=True)
    return None


def _read_header(source: ArchiveBlockReader, at: int, *, is_first: bool) -> bytes:
    """Return the block of the header at the offset ``at``; empty at the end mark of the archive.

    ``is_first`` is True if no extension header precedes it. Raise ``InvalidHeaderError`` if the block is no header, or
    if the end mark follows an extension header. Raise ``TruncatedArchiveError`` if the archive ends earlier.
    """
    block = source.read_block(at)
    if not block:
        short = f"shorter than a header ({TAR_BLOCK_BYTES} bytes); is this a tar archive?"
        cut = "the archive " + ("is truncated: its end is missing" if is_first else "ends here, within a member")
        raise TruncatedArchiveError(cut if at else short)
    if block == _ZEROS:
        if not is_first:
            raise InvalidHeaderError("an extension header is not followed by a member")
        return b""
    if not is_valid_header(block):
        hint = "" if at else "; is this a tar archive?"
        raise InvalidHeaderError(f"not a valid member header: its checksum is wrong{hint}")
    return block


def _read_exactly(source: ArchiveBlockReader, at: int, size: int) -> bytes:
    """Return ``size`` bytes of ``source`` from ``at`` on. Raise ``TruncatedArchiveError`` if there are fewer."""
    body = source.read_bytes(at, size)
    while len(body) < size and (more := source.read_bytes(at + len(body), size - len(body))):
        body += more
    if len(body) < size:
        raise TruncatedArchiveError("the archive ends here, within a member")
    return body


def is_pre_ustar_directory(kind: bytes, name: bytes) -> bool:
    """Return True if a member with the type ``kind`` of a file is a directory, because ``name`` ends with a slash, as
    in formats before ustar. No data follow its header.
    """
    return kind in _OLD_FILES and name.endswith(b"/")


def may_have_data(kind: bytes, name: bytes) -> bool:
    """Return True if data may follow the header of such a member. For a hard link, ``hard_link_data_size`` decides."""
    return kind not in _WITHOUT_DATA and not is_pre_ustar_directory(kind, name)


def hard_link_data_size(block: Callable[[int], bytes], data: int, size: int) -> int:
    """Return the number of bytes of data that follow the header of a hard link: ``size`` or 0.

    Most programs write no data for a hard link, whatever size its header contains; but pax(1) allows data. So if there
    is a valid header at ``data``, there are no data. Otherwise there are data if a valid header, or the end mark of the
    archive, follows them.

    Args:
      block: returns the block at an offset.
      data: the offset at which the data would begin.
      size: the size in the header of the link.
    """
    if not size or is_valid_header(following := block(data)):
        return 0
    behind = block(data + rounded_up_to_multiple(size))
    if behind and is_valid_header(behind):
        return size
    return size if behind == _ZEROS != following else 0


def has_header_at(block: Callable[[int], bytes], at: int) -> bool:
    """Return True if there is a valid header, or the end mark of the archive, at the offset ``at``. ``block`` returns
    the block at an offset.
    """
    found = block(at)
    return bool(found) and (found == _ZEROS or is_valid_header(found))


def is_old_gnu_header(block: bytes) -> bool:
    """Return True if the header ``block`` has the magic of the old GNU format."""
    return block[257:265] == b"ustar  \0"


def full_member_name(records: PaxRecords, long_name: bytes, block: bytes) -> bytes:
    """Return the name of a member: the one in its pax ``records``, else ``long_name`` (of GNU tar, unless it is empty),
    else the one in its header ``block``.
    """
    return records.get(b"GNU.sparse.name") or records.get(b"path") or long_name or _header_name(block)


def _member_type(block: bytes, name: bytes) -> tuple[bytes, str]:
    """Return the type of a member, one of those in ``pcopy.archive.member``, and a warning (empty if there is none): a
    member of unknown type is taken as a file.
    """
    kind = block[156:157]
    if is_pre_ustar_directory(kind, name):
        return DIRECTORY, ""
    if kind in _KNOWN_TYPES:
        return kind, ""
    if kind in _TYPE_ALIASES or (kind == _OLD_SPARSE and is_old_gnu_header(block)):
        return _TYPE_ALIASES.get(kind, FILE), ""
    return FILE, f"is of a type that is not known here, {kind!r}: it is taken as a file"


def _stored_data_size(source: ArchiveBlockReader, head: _LocatedHeader, records: PaxRecords, name: bytes) -> int:
    """Return the number of bytes of data that follow the header ``head``. Raise ``ValueError`` or
    ``InvalidHeaderError`` if its size is invalid. ``records`` are the pax records before it.
    """
    kind, data = head.block[156:157], head.at + TAR_BLOCK_BYTES
    if not may_have_data(kind, name):
        return 0
    stored = records.number_in_record(b"size", parse_number(head.block[124:136]))
    _check_member_size(head.at, stored)
    return stored if kind != HARD_LINK_MEMBER else hard_link_data_size(source.read_block, data, stored)


def _build_member(
    source: ArchiveBlockReader, head: _LocatedHeader, before: _ExtensionHeaders, lookup: OwnerIdLookup
) -> FoundMember | ArchiveDamage:
    """Make a member from the header ``head`` and from the extension headers ``before`` it; return an ``ArchiveDamage``
    instead if the member is invalid.
    """
    start, at, block = head
    records = before.records
    name = full_member_name(records, before.name, block)
    kind, remark = _member_type(block, name)
    data = source.next_header_after[start] = at + TAR_BLOCK_BYTES
    try:
        stored = _stored_data_size(source, head, records, name)
        source.next_header_after[start] = data + rounded_up_to_multiple(stored)
        if before.too_long_text:
            raise ValueError(before.too_long_text)
        if block[156:157] == _CONTINUED:
            raise ValueError("it is continued from another volume, and its first part is missing")
        contents = ContentsLocation(data, stored, stored if kind == FILE else 0, None)
        if kind == FILE:
            contents = _contents_location(source, head, records, contents)
        xattrs, trouble = parse_xattrs(records, lookup) if kind != HARD_LINK_MEMBER else ((), "")
        member = ArchiveMember(
            name,
            kind,
            parse_number(block[100:108]) & 0o7777,
            records.number_in_record(b"uid", parse_number(block[108:116])),
            records.number_in_record(b"gid", parse_number(block[116:124])),
            records.time_in_record(b"mtime", to_nanoseconds(parse_number(block[136:148]))),
            contents.size,
            records.get(b"linkpath") or before.link or _text_before_nul(block[157:257]),
            _device_number(block) if kind in _DEVICES else 0,
            xattrs,
            contents.extents,
            records.get(b"uname") or _text_before_nul(block[265:297]),
            records.get(b"gname") or _text_before_nul(block[297:329]),
        )
        if b"\0" in member.link:
            raise ValueError("its link contains a NUL")
        if min(member.uid, member.gid) < 0 or max(member.uid, member.gid) >= 1 << 32:
            raise ValueError("its owner or group is not a valid number")
    except (ValueError, InvalidHeaderError) as error:
        return ArchiveDamage(start, name, str(error))
    return FoundMember(
        start, member, contents.data, contents.stored, source.next_header_after.pop(start), trouble, remark
    )


class ContentsLocation(NamedTuple):
    """Where the contents of a file are in the archive: ``stored`` bytes at the offset ``data``. The file has ``size``
    bytes, holes included. ``extents`` are the parts of a sparse file that are stored; None for another file.
    """

    data: int
    stored: int
    size: int
    extents: Extents | None


def _contents_location(
    source: ArchiveBlockReader, head: _LocatedHeader, records: PaxRecords, ordinary: ContentsLocation
) -> ContentsLocation:
    """Return where the contents of a file are in the archive. If it is not stored as sparse, that is ``ordinary``.

    Raise ``ValueError`` or ``InvalidHeaderError`` if the list of its extents is invalid.
    """
    data, stored = ordinary.data, ordinary.stored
    if head.block[156:157] == _OLD_SPARSE and is_old_gnu_header(head.block):
        extents, size, used = _old_gnu_sparse_map(source, head)
        found = ContentsLocation(data + used, stored, size, extents)
    elif records.is_sparse:
        extents, size, used = _pax_sparse_map(source, data, stored, records)
        found = ContentsLocation(data + used, stored - used, size, extents)
    else:
        return ordinary
    if extents.data_size != found.stored:
        raise ValueError("its map of holes does not match the size of its contents")
    return found


def _header_name(block: bytes) -> bytes:
    """Return the name in the header ``block``, with the prefix field of ustar."""
    name = _text_before_nul(block[:100])
    if block[257:263] == b"ustar\0":
        prefix = _text_before_nul(block[345:476] if block[508:512] == b"tar\0" else block[345:500])
        return prefix + b"/" + name if prefix else name
    return name


def _device_number(block: bytes) -> int:
    """Return the device number (st_rdev) in the header ``block``. Raise ``InvalidHeaderError`` if it is invalid."""
    major, minor = parse_number(block[329:337]), parse_number(block[337:345])
    if not (0 <= major < 1 << 12 and 0 <= minor < 1 << 20):
        raise InvalidHeaderError("its device number is invalid")
    return os.makedev(major, minor)


def _pax_sparse_map(
    source: ArchiveBlockReader, data: int, stored: int, records: PaxRecords
) -> tuple[Extents, int, int]:
    """Return the extents of a sparse file in one of the pax formats, its size with holes in bytes, and the number of
    bytes at the beginning of its stored contents that the list of the extents takes.

    Raise ``ValueError`` if the list is invalid. ``data`` and ``stored`` are the offset and the number of bytes of the
    stored contents.
    """
    if records.get(b"GNU.sparse.major") == b"1":
        size = records.number_in_record(b"GNU.sparse.realsize", -1)
        extents, used = parse_sparse_map(
            lambda at, length: source.read_bytes(data + at, length), stored, source.most_extents
        )
    else:
        size = records.number_in_record(b"GNU.sparse.size", records.number_in_record(b"GNU.sparse.realsize", -1))
        extents, used = extents_in_pax_records(records, source.most_extents), 0
    return checked_extents(extents, size), size, used


_PAIRS_IN_BLOCK = 21
"""Number of extents in a block that continues the header of a sparse file in the old GNU format."""


def _old_gnu_sparse_map(source: ArchiveBlockReader, head: _LocatedHeader) -> tuple[Extents, int, int]:
    """Return the extents of a sparse file in the old GNU format, its size with holes in bytes, and the number of bytes
    of the blocks behind the header in which the list of the extents continues.

    Raise ``ValueError`` or ``InvalidHeaderError`` if the list is invalid.
    """
    start, at, block = head
    found = array("q")
    _add_extents(found, block[386:482])
    size, more, used = parse_number(block[483:495]), block[482], 0
    pairs, most_pairs = 4, source.most_extents + _PAIRS_IN_BLOCK  # empty pairs count, because reading them takes time
    while more:
        used += TAR_BLOCK_BYTES
        block = source.read_block(at + used)
        if not block:
            raise ValueError("the archive ends here, within a member")
        pairs += _PAIRS_IN_BLOCK
        if pairs < most_pairs and len(found) <= 2 * source.most_extents:
            _add_extents(found, block[:504])
        more = block[504]
    source.next_header_after[start] += used
    if pairs >= most_pairs or len(found) > 2 * source.most_extents:
        raise too_many_extents_error(source.most_extents)
    return checked_extents(Extents(found), size), size, used


def _add_extents(found: array[int], fields: bytes) -> None:
    """Append offset and length of each extent in ``fields``, a part of a header, to ``found``. Omit pairs of zeros."""
    for at in range(0, len(fields), 24):
        offset, length = parse_number(fields[at : at + 12]), parse_number(fields[at + 12 : at + 24])
        if offset or length:
            found.append(offset)
            found.append(length)


def checked_extents(extents: Extents, size: int) -> Extents:
    """Return ``extents`` without those of length 0. Raise ``ValueError`` unless they are in order, do not overlap, and
    lie within a file of ``size`` bytes.
    """
    at = 0
    if size < 0:
        raise ValueError("it is a sparse file, and its size is missing or negative")
    for offset, length in extents:
        if offset < at or length < 0 or offset + length > size:
            raise ValueError("its map of holes has extents that overlap, are out of order, or exceed the file size")
        at = offset + length
    return (
        Extents.from_pairs(extent for extent in extents if extent[1])
        if 0 in memoryview(extents.numbers)[1::2]
        else extents
    )
