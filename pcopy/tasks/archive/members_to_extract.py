"""Members to be extracted, in the packed form in which tasks and sorters carry them.

Most members are *simple*: regular files whose headers state only name, mode, owner, mtime and size. A packed simple
member consists of ``SIMPLE_MEMBER_WORDS`` numbers of 8 bytes. The C backend makes these from headers, and they become
the columns of a batch. The path of a simple member is not among them: it is only in the key of the record. The C
backend packs directories whose headers state nothing else in the same way.
"""

from __future__ import annotations

import marshal
import struct
from array import array
from collections.abc import Iterable, Sequence

from pcopy.archive.member import DIRECTORY, FILE, ArchiveMember, path_order_key
from pcopy.fast_named_tuple import NamedTuple
from pcopy.fsio.backend.columns import CREATION_COLUMNS, EARLIEST_TIME, LATEST_TIME, ItemStatusColumns
from pcopy.fsio.identity import ItemIdentity
from pcopy.tasks.base.values import NO_DIRECTORY_IDENTITY, Place

_NONE = ItemIdentity(-1, -1)
_PACKED_SIMPLE_MEMBER = struct.Struct("=IIIIQQq")
"""A packed simple member: 0 for a file, 1 for a directory (the packed form of any other member begins with another
byte); mode, uid, gid, offset of the contents in the archive, size in bytes, mtime in nanoseconds.
"""
_DIRECTORY_BYTE = 1
"""First byte of a directory that the C backend has packed."""
SIMPLE_MEMBER_WORDS = 5
"""Number of 8-byte words in the packed form of a simple member."""


def member_sort_key(directory: bytes, name: bytes, at: int) -> bytes:
    """Return the key by which members, and marks of their names, are sorted: by ``directory``, ``name``, and offset
    ``at`` in the archive.
    """
    return b"%b\0\0%b\0%016x" % (path_order_key(directory), name, at)


def offset_in_sort_key(key: bytes) -> int:
    """Return the offset in the archive that ``key`` contains, which was made by ``member_sort_key``."""
    return int(key[-16:], 16)


def path_in_sort_key(key: bytes) -> bytes:
    """Return the path (directory and name) that ``key`` contains. ``key`` was made by ``member_sort_key``, and its last
    field, the offset, was removed.
    """
    directory, _, name = key.partition(b"\0\0")
    return directory.replace(b"\0", b"/") + b"/" + name if directory else name


def directory_place_in_target(path: bytes) -> Place:
    """Return the ``Place`` (position in the tree) of the directory ``path`` below the target. It contains no inode
    number, so whatever directory has this path is used.
    """
    return Place(0, path, _NONE, NO_DIRECTORY_IDENTITY, False, False)


class MemberToExtract(NamedTuple):
    """A member that is to be extracted.

    Fields:
      path: the directory below the target.
      name: the name in the directory; empty if the member is that directory itself.
      data: the offset of its contents in the archive.
      member: what its headers state.
      problem_text: what is wrong with its metadata or contents in the archive; empty if it is complete.
      at: its place in the order of the members: the offset of its contents, except for a hard link that gets the
          contents of another member.
    """

    path: bytes
    name: bytes
    data: int
    member: ArchiveMember
    problem_text: str
    at: int

    def pack_as_bytes(self) -> bytes:
        """Return the member as bytes, in a form that suits every type. (``pack_simple_member`` makes a shorter form of
        simple members.)
        """
        return marshal.dumps((*self[:3], self.member.marshallable_fields, *self[4:]))

    @classmethod
    def unpack(cls, packed: bytes, path: bytes = b"", name: bytes = b"") -> MemberToExtract:
        """Return the member that ``pack_as_bytes`` or ``pack_simple_member`` has made into the bytes ``packed``.

        Args:
            path, name: directory and name; only needed for a member that ``pack_simple_member`` or the C backend has
                packed, since this form does not contain them.
        """
        if packed[0] <= _DIRECTORY_BYTE:
            is_directory, mode, uid, gid, data, size, mtime = _PACKED_SIMPLE_MEMBER.unpack(packed)
            kind = DIRECTORY if is_directory else FILE
            return cls(path, name, data, ArchiveMember(name or path, kind, mode, uid, gid, mtime, size), "", data)
        path, name, data, primitives, *others = marshal.loads(packed)
        return cls(path, name, data, ArchiveMember.from_marshallable_fields(primitives), *others)


def pack_member(path: bytes, member: ArchiveMember, data: int, trouble: str) -> bytes:
    """Return ``member`` in packed form.

    Args:
        path: the path below the target to which it is extracted.
        data: the offset of its contents in the archive.
        trouble: what is wrong with its metadata or contents in the archive; empty if it is complete.
    """
    if member.kind == DIRECTORY:
        return MemberToExtract(path, b"", data, member, trouble, data).pack_as_bytes()
    directory, _, name = path.rpartition(b"/")
    return MemberToExtract(directory, name, data, member, trouble, data).pack_as_bytes()


def is_packed_simple_member(packed: bytes) -> bool:
    """Return True if ``packed`` is the packed form of a simple member (a regular file whose headers state only name,
    mode, owner, mtime and size).
    """
    return not packed[0]


def is_packed_directory(packed: bytes) -> bool:
    """Return True if the C backend has made the bytes ``packed`` of a directory."""
    return packed[0] == _DIRECTORY_BYTE


def pack_simple_member(data: int, member: ArchiveMember, uid: int, gid: int) -> bytes:
    """Return a simple member (a regular file without special metadata) in packed form: numbers only, without its path.
    Return empty bytes if its mtime does not fit.

    Args:
        data: the offset of its contents in the archive.
        uid, gid: the owner that the extracted file gets.
    """
    if not EARLIEST_TIME < member.mtime < LATEST_TIME:
        return b""
    return _PACKED_SIMPLE_MEMBER.pack(0, member.mode, uid, gid, data, member.size, member.mtime)


class SimpleMemberColumns:
    """Simple members (regular files without special metadata), as columns; a row is one member.

    ``names`` are their names in one directory. They may be empty if only the other columns are used; these may belong
    to several directories, or be those of directories that the C backend has packed. ``data_offsets`` are the offsets
    of their contents in the archive, ``sizes`` the bytes of their contents.
    """

    def __init__(self, names: Sequence[bytes], packed: bytes) -> None:
        words = array("Q", packed)
        halves = array("I", packed)
        self.names = names
        self.packed = packed
        self.data_offsets, self.sizes = words[2::SIMPLE_MEMBER_WORDS], words[3::SIMPLE_MEMBER_WORDS]
        self._halves = halves

    def __len__(self) -> int:
        return len(self.names)

    def selected_members(self, rows: Iterable[int]) -> SimpleMemberColumns:
        """Return only the members in these ``rows``."""
        rows, size = list(rows), _PACKED_SIMPLE_MEMBER.size
        packed = b"".join([self.packed[row * size : (row + 1) * size] for row in rows])
        return SimpleMemberColumns([self.names[row] for row in rows], packed)

    def members_in_archive_order(self) -> SimpleMemberColumns:
        """Return the members, sorted by the offsets of their contents."""
        rows = sorted(range(len(self)), key=self.data_offsets.__getitem__)
        return self if rows == list(range(len(self))) else self.selected_members(rows)

    def member(self, path: bytes, row: int) -> MemberToExtract:
        """Return the member in this row; ``path`` is its directory."""
        size = _PACKED_SIMPLE_MEMBER.size
        return MemberToExtract.unpack(self.packed[row * size : (row + 1) * size], path, self.names[row])

    def members(self, path: bytes) -> list[MemberToExtract]:
        """Return all members; ``path`` is their directory."""
        return [self.member(path, row) for row in range(len(self))]

    def metadata_columns_for_creation(self, start: int, end: int) -> ItemStatusColumns:
        """Return the metadata (mode, owner, size and mtime) of the rows from ``start`` up to ``end``, as columns for a
        call of the backend that creates files.
        """
        rows = ItemStatusColumns(0, CREATION_COLUMNS)
        rows.row_count = end - start
        step, halves = (
            2 * SIMPLE_MEMBER_WORDS,
            self._halves[2 * SIMPLE_MEMBER_WORDS * start : 2 * SIMPLE_MEMBER_WORDS * end],
        )
        rows.mode, rows.uid, rows.gid = halves[1::step], halves[2::step], halves[3::step]
        rows.size = self.sizes[start:end]
        rows.mtime = array("q", self.packed)[4::SIMPLE_MEMBER_WORDS][start:end]
        return rows


NO_SIMPLE_MEMBERS = SimpleMemberColumns((), b"")
"""No simple members."""
