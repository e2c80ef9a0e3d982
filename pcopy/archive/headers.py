"""Writing of headers: ustar, preceded by a pax header for everything that ustar cannot express (pax(1), POSIX.1-2008).

The bytes of a header depend only on the member, so that an archive is the same whichever ranks write it. The only time
that is stored is mtime. Sparse files are stored in the format GNU.sparse 1.0, ACLs and extended attributes in pax
records with the keys that GNU tar and bsdtar use. A name that is not UTF-8 is written unchanged into the ustar header;
if it is too long for that header, it is written into a pax header with ``hdrcharset=BINARY``.

A *simple* member is a regular file whose header ustar can express, but for a fraction of a second in its mtime: its
names and numbers fit into their fields, and it has no extended attributes and no holes.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from functools import lru_cache
from itertools import chain
from zlib import adler32

from pcopy.archive.acl_text import acl_to_text
from pcopy.archive.member import FILE, TAR_BLOCK_BYTES, ArchiveMember, rounded_up_to_multiple
from pcopy.fsio.attribute_names import ACCESS_ACL_XATTR, DEFAULT_ACL_XATTR

_USTAR_NAME_BYTES, _USTAR_OWNER_NAME_BYTES = 100, 32
"""Number of bytes of the ustar fields for a name or the target of a link, and for the name of a user or group."""
_MAX_USTAR_SIZE, _MAX_USTAR_OWNER_ID, _MAX_USTAR_DEVICE = 0o77777777777, 0o7777777, 0o7777777
"""Maximum values of the ustar fields for a size or time, for the id of a user or group, and for a device number."""
_NANOSECONDS_PER_SECOND = 10**9
"""Nanoseconds of a second."""
_PAX_KEYS_OF_ACLS = {ACCESS_ACL_XATTR: b"SCHILY.acl.access", DEFAULT_ACL_XATTR: b"SCHILY.acl.default"}
_SIZE_WITH_TIME_RECORD = 3 * TAR_BLOCK_BYTES
"""Number of bytes of all headers of a member whose pax header contains only its mtime."""
MTIME_RECORD_FORMAT = b"30 mtime=%d.%09d\n"
"""Format of the pax record of an mtime with a fraction of a second. Its length, 30, is right for ten digits of seconds.
"""
_TEN_DIGIT_TIMES = range(10**9, 10**10)
"""Times, in seconds since 1970, that have ten digits."""
SIMPLE_MEMBER_MTIMES = range(10**9 * _NANOSECONDS_PER_SECOND, (_MAX_USTAR_SIZE + 1) * _NANOSECONDS_PER_SECOND)
"""Times, in nanoseconds since 1970, that a ustar header or ``MTIME_RECORD_FORMAT`` can express."""


def member_header(member: ArchiveMember) -> bytes:
    """Return all bytes that precede the contents of ``member`` in the archive: headers, and the map of a sparse file.
    Their number is a multiple of 512.
    """
    seconds, part = divmod(member.mtime, _NANOSECONDS_PER_SECOND)
    stored, sparse_map = member.size, b""
    if member.extents is None and not member.xattrs and part and seconds in _TEN_DIGIT_TIMES and _fits_ustar(member):
        records = MTIME_RECORD_FORMAT % (seconds, part)
    else:
        if member.extents is not None:
            sparse_map = _sparse_map_bytes(member)
            stored = len(sparse_map) + member.extents.data_size
        records = b"".join(pax_record(*each) for each in _pax_fields(member, stored))
    header = _ustar_header(member, stored, seconds)
    return _pax_header_with_records(records) + header + sparse_map if records else header + sparse_map


def header_size(member: ArchiveMember) -> int:
    """Return the number of bytes of ``member_header(member)``; usually without building the header."""
    part = member.mtime % _NANOSECONDS_PER_SECOND
    if member.extents is None and not member.xattrs and _fits_ustar(member):
        if not part and 0 <= member.mtime // _NANOSECONDS_PER_SECOND <= _MAX_USTAR_SIZE:
            return TAR_BLOCK_BYTES
        if part and member.mtime // _NANOSECONDS_PER_SECOND in _TEN_DIGIT_TIMES:
            return _SIZE_WITH_TIME_RECORD
    if member.extents is None:
        size = pax_records_size(member)
        return 2 * TAR_BLOCK_BYTES + rounded_up_to_multiple(size) if size else TAR_BLOCK_BYTES
    return len(member_header(member))


def archived_sizes_of_regular_files(sizes: Iterable[int], mtimes: Iterable[int]) -> list[int]:
    """Return the numbers of bytes that some simple members (regular files without xattrs and holes, with short names)
    take in the archive, with headers and padding. ``sizes`` are in bytes, ``mtimes`` in nanoseconds since 1970.
    """
    most = TAR_BLOCK_BYTES - 1
    return [
        (size + most & ~most) + (_SIZE_WITH_TIME_RECORD if mtime % _NANOSECONDS_PER_SECOND else TAR_BLOCK_BYTES)
        for size, mtime in zip(sizes, mtimes, strict=True)
    ]


def pax_mtime_header_block() -> bytes:
    """Return the header block that precedes the pax record of an mtime (``MTIME_RECORD_FORMAT``)."""
    return pax_header(len(MTIME_RECORD_FORMAT % (10**9, 0)))


def trailing_file_header_fields(user: bytes, group: bytes) -> tuple[bytes, int]:
    """Return the end of the ustar header of a regular file, from its type field on, and the sum of its bytes. This end
    is the same for all files of one owner.

    The sum, which is a part of the checksum of the header, includes 8 spaces for the checksum field itself. ``user``
    and ``group`` are the names of the owner.
    """
    end, end_sum = _trailing_ustar_header_fields(user, group, 0)
    return FILE + bytes(_USTAR_NAME_BYTES) + end, FILE[0] + end_sum + 8 * 32


def fits_name_field(name: bytes) -> bool:
    """Return True if ``name`` fits into the field for the name of a member in the ustar header."""
    return len(name) <= _USTAR_NAME_BYTES


def fits_owner_fields(uid: int, gid: int, user: bytes, group: bytes) -> bool:
    """Return True if the ids ``uid`` and ``gid`` and the names ``user`` and ``group`` fit into the ustar header."""
    return (
        uid <= _MAX_USTAR_OWNER_ID
        and gid <= _MAX_USTAR_OWNER_ID
        and len(user) < _USTAR_OWNER_NAME_BYTES
        and len(group) < _USTAR_OWNER_NAME_BYTES
    )


def pax_records_size(member: ArchiveMember) -> int:
    """Return the number of bytes of the pax records of ``member``, without the padding of their last block."""
    return sum(_pax_record_size(*each) for each in _pax_fields(member, stored_content_size(member)))


def stored_content_size(member: ArchiveMember) -> int:
    """Return the number of bytes of contents that the archive stores for ``member``, without holes and padding."""
    if member.kind != FILE:
        return 0
    return member.size if member.extents is None else member.extents.data_size


def size_in_archive(member: ArchiveMember) -> int:
    """Return the number of bytes that ``member`` takes in the archive, with headers and padding."""
    return header_size(member) + rounded_up_to_multiple(stored_content_size(member))


def _fits_ustar(member: ArchiveMember) -> bool:
    """Return True if names, size and owner of ``member`` fit into the ustar header, so that they need no pax
    records.
    """
    return (
        len(member.name) <= _USTAR_NAME_BYTES
        and len(member.link) <= _USTAR_NAME_BYTES
        and member.size <= _MAX_USTAR_SIZE
        and member.uid <= _MAX_USTAR_OWNER_ID
        and member.gid <= _MAX_USTAR_OWNER_ID
        and len(member.user) < _USTAR_OWNER_NAME_BYTES
        and len(member.group) < _USTAR_OWNER_NAME_BYTES
    )


def _ustar_header(member: ArchiveMember, stored: int, seconds: int) -> bytes:
    """Return the ustar header of ``member``. ``stored`` is the size of its contents in the archive, ``seconds`` its
    mtime.

    A number that does not fit into its field is replaced by 0, and a name that is too long is truncated: a pax record
    contains the real value.
    """
    name, link, uid, gid = member.name[:_USTAR_NAME_BYTES], member.link[:_USTAR_NAME_BYTES], member.uid, member.gid
    numbers = b"%07o\0%07o\0%07o\0%011o\0%011o\0" % (
        member.mode,
        uid if uid <= _MAX_USTAR_OWNER_ID else 0,
        gid if gid <= _MAX_USTAR_OWNER_ID else 0,
        stored if stored <= _MAX_USTAR_SIZE else 0,
        seconds if 0 <= seconds <= _MAX_USTAR_SIZE else 0,
    )
    end, end_sum = _trailing_ustar_header_fields(member.user, member.group, member.device)
    total = _byte_sum(name) + _byte_sum(numbers) + 8 * 32 + member.kind[0] + _byte_sum(link) + end_sum
    name, link = name.ljust(_USTAR_NAME_BYTES, b"\0"), link.ljust(_USTAR_NAME_BYTES, b"\0")
    return b"".join((name, numbers, b"%06o\0 " % total, member.kind, link, end))


def _byte_sum(field: bytes) -> int:
    """Return the sum of the bytes of a short ``field``. The lower half of its Adler-32 is this sum plus 1."""
    return (adler32(field) & 0xFFFF) - 1


@lru_cache(4096)
def _trailing_ustar_header_fields(user: bytes, group: bytes, device: int) -> tuple[bytes, int]:
    """Return the end of a ustar header, from its magic on, and the sum of the bytes of this end.

    ``user`` and ``group`` are the names of the owner, ``device`` is the device number (0: none).
    """
    major, minor = _ustar_device_numbers(device)
    end = b"".join(
        (
            b"ustar\x0000",
            user[: _USTAR_OWNER_NAME_BYTES - 1].ljust(_USTAR_OWNER_NAME_BYTES, b"\0"),
            group[: _USTAR_OWNER_NAME_BYTES - 1].ljust(_USTAR_OWNER_NAME_BYTES, b"\0"),
            b"%07o\0%07o\0" % (major, minor),
            bytes(167),
        )
    )
    return end, sum(end)


def _ustar_device_numbers(device: int) -> tuple[int, int]:
    """Return the major and minor number of ``device`` (st_rdev); zeros if they do not fit into the ustar header."""
    major, minor = os.major(device), os.minor(device)
    return (major, minor) if max(major, minor) <= _MAX_USTAR_DEVICE else (0, 0)


def _pax_header_with_records(records: bytes) -> bytes:
    """Return a complete pax header (its block and its body) that contains ``records``, padded to a multiple of 512
    bytes.
    """
    return pax_header(len(records)) + records.ljust(rounded_up_to_multiple(len(records)), b"\0")


@lru_cache(4096)
def pax_header(size: int, kind: bytes = b"x") -> bytes:
    """Return the block that precedes pax records of ``size`` bytes.

    ``kind`` is ``x`` for the records of the next member, and ``g`` for records of all members that follow.
    """
    return _ustar_header(ArchiveMember(b"././@PaxHeader", kind, 0o644, 0, 0, 0), size, 0)


def pax_record(key: bytes, value: bytes) -> bytes:
    """Return one record of a pax header: its length, ``key`` and ``value``. The length includes its own digits."""
    return b"%d %b=%b\n" % (_pax_record_size(key, value), key, value)


def _pax_record_size(key: bytes, value: bytes) -> int:
    """Return the length of ``pax_record(key, value)``."""
    bare = len(key) + len(value) + 3
    length = bare + len(b"%d" % bare)
    return bare + len(b"%d" % length)


def _pax_fields(member: ArchiveMember, stored: int) -> list[tuple[bytes, bytes]]:
    """Return the keys and values of pax records for everything that the ustar header of ``member`` cannot express.
    ``stored`` is the number of bytes of its stored contents, including the map of a sparse file.
    """
    found: list[tuple[bytes, bytes]] = []
    name, link = member.name, member.link
    names = [each for each in (name, link) if len(each) > _USTAR_NAME_BYTES]
    if member.extents is not None:
        names.append(name)
    if not all(map(_is_utf8, names)):
        found.append((b"hdrcharset", b"BINARY"))
    if member.extents is not None:
        found += [(b"GNU.sparse.major", b"1"), (b"GNU.sparse.minor", b"0"), (b"GNU.sparse.name", name)]
        found.append((b"GNU.sparse.realsize", b"%d" % member.size))
    elif len(name) > _USTAR_NAME_BYTES:
        found.append((b"path", name))
    if len(link) > _USTAR_NAME_BYTES:
        found.append((b"linkpath", link))
    if stored > _MAX_USTAR_SIZE:
        found.append((b"size", b"%d" % stored))
    found += [
        (key, b"%d" % number)
        for key, number in ((b"uid", member.uid), (b"gid", member.gid))
        if number > _MAX_USTAR_OWNER_ID
    ]
    found += [
        (key, owner)
        for key, owner in ((b"uname", member.user), (b"gname", member.group))
        if len(owner) >= _USTAR_OWNER_NAME_BYTES
    ]
    seconds, part = divmod(member.mtime, _NANOSECONDS_PER_SECOND)
    if part or not 0 <= seconds <= _MAX_USTAR_SIZE:
        found.append((b"mtime", _pax_time_text(member.mtime)))
    for attribute, value in member.xattrs:
        text = acl_to_text(value) if attribute in _PAX_KEYS_OF_ACLS else None
        key = (
            _PAX_KEYS_OF_ACLS[attribute] if text is not None else b"SCHILY.xattr." + _escaped_attribute_name(attribute)
        )
        found.append((key, value if text is None else text))
    return found


def _escaped_attribute_name(attribute: str) -> bytes:
    """Return the name of an extended attribute as GNU tar writes it in the key of a pax record: with escaped equals
    signs, since the first equals sign ends a key.
    """
    return attribute.encode("utf-8", "surrogateescape").replace(b"%", b"%25").replace(b"=", b"%3D")


def _pax_time_text(moment: int) -> bytes:
    """Return the time ``moment``, in nanoseconds since 1970, as text in seconds, with nine decimals unless all are
    zero.
    """
    seconds, part = divmod(abs(moment), _NANOSECONDS_PER_SECOND)
    text = b"%d.%09d" % (seconds, part) if part else b"%d" % seconds
    return b"-" + text if moment < 0 else text


def _is_utf8(name: bytes) -> bool:
    """Return True if ``name`` is valid UTF-8."""
    try:
        name.decode()
    except UnicodeDecodeError:
        return False
    return True


def _sparse_map_bytes(member: ArchiveMember) -> bytes:
    """Return the list of the parts of a sparse file that the archive stores. It precedes the data of the file in the
    archive, and is padded to whole blocks. A last entry of length 0 marks the end of the file.
    """
    assert member.extents is not None
    numbers = chain([len(member.extents) + 1], member.extents.numbers, [member.size, 0])
    text = bytearray()
    for number in numbers:
        text += b"%d\n" % number
    return bytes(text).ljust(rounded_up_to_multiple(len(text)), b"\0")
