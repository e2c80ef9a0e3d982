"""A member that is to be unpacked, as tasks and sorters carry it: packed, with its path as the key.

Most are plain: regular files of which a header says nothing unusual. These are rows of numbers (``PLAIN_WORDS`` of 8
bytes each), which C finds in headers, and which become the columns of a batch.
"""

from __future__ import annotations

import marshal
import struct
from array import array
from collections.abc import Iterable, Sequence

from pcopy.archive.member import DIRECTORY, FILE, Member, order_key
from pcopy.fsio.identity import Identity
from pcopy.fsio.kernel.columns import FIRST, LAST, MADE, Rows
from pcopy.named import NamedTuple
from pcopy.tasks.base.values import NOWHERE, Place

_NONE = Identity(-1, -1)
_PLAIN = struct.Struct("=IIIIQQq")
"""A zero, which no other packed member begins with; mode, owner, group, where its contents stand, size, mtime."""
PLAIN_WORDS = 5
"""Of 8 bytes, of which a row consists."""


def key_of(directory: bytes, name: bytes, at: int) -> bytes:
    """What members and marks are sorted by: ``at`` is their place in the archive."""
    return b"%b\0\0%b\0%016x" % (order_key(directory), name, at)


def path_in(key: bytes) -> bytes:
    """Of a key without its place."""
    directory, _, name = key.partition(b"\0\0")
    return directory.replace(b"\0", b"/") + b"/" + name if directory else name


def place_of(path: bytes) -> Place:
    return Place(0, path, _NONE, NOWHERE, False, False)


class ToUnpack(NamedTuple):
    """A member, called ``name`` in the directory ``path`` below the target (``b""``: that directory itself), whose
    contents stand at ``data`` of the archive. ``trouble``: what of its metadata can't be had."""

    path: bytes
    name: bytes
    data: int
    member: Member
    trouble: str = ""

    def packed(self) -> bytes:
        return marshal.dumps((self.path, self.name, self.data, self.member.primitives, self.trouble))

    @classmethod
    def unpacked(cls, packed: bytes, path: bytes = b"", name: bytes = b"") -> ToUnpack:
        """``path`` and ``name`` are those of a plain one, which does not hold them."""
        if is_plain(packed):
            _, mode, uid, gid, data, size, mtime = _PLAIN.unpack(packed)
            return cls(path, name, data, Member(name, FILE, mode, uid, gid, mtime, size))
        path, name, data, told, trouble = marshal.loads(packed)
        return cls(path, name, data, Member.from_primitives(told), trouble)


def packed_at(path: bytes, member: Member, data: int, trouble: str) -> bytes:
    """Return the ``member`` that goes to ``path``, and whose contents stand at ``data``, packed."""
    if member.kind == DIRECTORY:
        return ToUnpack(path, b"", data, member, trouble).packed()
    directory, _, name = path.rpartition(b"/")
    return ToUnpack(directory, name, data, member, trouble).packed()


def is_plain(packed: bytes) -> bool:
    return not packed[0]


def packed_plain(data: int, member: Member, uid: int, gid: int) -> bytes:
    """A plain member, with the owner and group that it gets; empty if a row can't hold it."""
    if not FIRST < member.mtime < LAST:
        return b""
    return _PLAIN.pack(0, member.mode, uid, gid, data, member.size, member.mtime)


class PlainRows:
    """Plain members of one directory, in columns: ``places`` are those of their contents in the archive."""

    def __init__(self, names: Sequence[bytes], packed: bytes) -> None:
        words = array("Q", packed)
        halves = array("I", packed)
        self.names = names
        self.packed = packed
        self.places, self.sizes = words[2::PLAIN_WORDS], words[3::PLAIN_WORDS]
        self._halves = halves

    def __len__(self) -> int:
        return len(self.names)

    def chosen(self, rows: Iterable[int]) -> PlainRows:
        rows, size = list(rows), _PLAIN.size
        packed = b"".join([self.packed[row * size : (row + 1) * size] for row in rows])
        return PlainRows([self.names[row] for row in rows], packed)

    def in_order(self) -> PlainRows:
        """As their contents stand in the archive."""
        rows = sorted(range(len(self)), key=self.places.__getitem__)
        return self if rows == list(range(len(self))) else self.chosen(rows)

    def member(self, path: bytes, row: int) -> ToUnpack:
        size = _PLAIN.size
        return ToUnpack.unpacked(self.packed[row * size : (row + 1) * size], path, self.names[row])

    def members(self, path: bytes) -> list[ToUnpack]:
        return [self.member(path, row) for row in range(len(self))]

    def columns(self, start: int, end: int) -> Rows:
        """``MADE`` of some."""
        rows = Rows(0, MADE)
        rows.number = end - start
        step, halves = 2 * PLAIN_WORDS, self._halves[2 * PLAIN_WORDS * start : 2 * PLAIN_WORDS * end]
        rows.mode, rows.uid, rows.gid = halves[1::step], halves[2::step], halves[3::step]
        rows.size = self.sizes[start:end]
        rows.mtime = array("q", self.packed)[4::PLAIN_WORDS][start:end]
        return rows


NO_ROWS = PlainRows((), b"")
