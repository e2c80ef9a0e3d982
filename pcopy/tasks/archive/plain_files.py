"""Plain files: regular ones of which there is nothing more to say than a header and a time. Those of one directory go
from the scan into the archive together, in columns.

They have one name, which is short, no attributes, no holes that are looked for, and a common time.
"""

from __future__ import annotations

import marshal
from array import array
from bisect import bisect_left
from collections.abc import Sequence
from itertools import accumulate

from pcopy.archive.headers import (
    PLAIN_TIMES,
    is_short_name,
    is_short_owner,
    plain_sizes,
)
from pcopy.archive.member import FILE, Member
from pcopy.fsio.kernel.columns import FOUND, GROUP, OWNER, Rows, pack_names, unpack_names
from pcopy.signature.sorting import KeyValue
from pcopy.tasks.archive.described import LEAST_SPARSE, Described, key_of
from pcopy.walk.visitor import Found

_KEPT = FOUND | OWNER | GROUP
_GROUPED = 1 << 63
"""Added to the size with which a value begins: it is one of ``PlainFiles``."""
_SIZE = 8
"""Bytes of it."""

Owners = dict[tuple[int, int], tuple[bytes, bytes]]
"""The names of owner and group, by their numbers."""


class PlainFiles:
    """Some of the directory ``path`` of a root, sorted by name. ``prefix`` comes before each name in the archive."""

    def __init__(
        self,
        root: int,
        path: bytes,
        prefix: bytes,
        names: list[bytes],
        rows: Rows,
        owners: Owners,
        offsets: array[int] | None = None,
    ) -> None:
        self.root = root
        self.path = path
        self.prefix = prefix
        self.names = names
        self.rows = rows
        self.owners = owners
        if offsets is None:
            offsets = array("Q", accumulate(plain_sizes(rows.size, rows.mtime), initial=0))
        self.offsets = offsets
        """Where each begins, and at last where all end, in bytes of the archive."""

    def __len__(self) -> int:
        return len(self.names)

    @property
    def size(self) -> int:
        """Bytes of the archive that they take."""
        return self.offsets[-1]

    def key(self, row: int) -> bytes:
        return key_of(self.root, self.path, self.names[row])

    def before(self, key: bytes, start: int) -> int:
        """The first row from ``start`` on whose key is not smaller than that of an item of the directory."""
        return bisect_left(self.names, key[len(key_of(self.root, self.path, b"")) :], start)

    def part(self, start: int, end: int) -> PlainFiles:
        if end - start == len(self):
            return self
        first = self.offsets[start]
        offsets = array("Q", [offset - first for offset in self.offsets[start : end + 1]])
        names, rows = self.names[start:end], self.rows.part(start, end)
        return PlainFiles(self.root, self.path, self.prefix, names, rows, self.owners, offsets)

    def described(self, row: int) -> Described:
        """One of them, by itself."""
        rows, name = self.rows, self.names[row]
        uid, gid = rows.uid[row], rows.gid[row]
        user, group = self.owners[uid, gid]
        member = Member(
            self.prefix + name, FILE, rows.mode[row] & 0o7777, uid, gid, rows.mtime[row], rows.size[row],
            user=user, group=group,
        )  # fmt: skip
        return Described(self.root, self.path, name, rows.inode[row], rows.ctime[row], member)

    @property
    def value(self) -> bytes:
        """Of a record, as ``Described`` has it."""
        head = (_GROUPED | self.size).to_bytes(_SIZE, "big")
        packed = pack_names(self.names), self.rows.packed(_KEPT), self.owners, self.offsets.tobytes()
        return head + marshal.dumps((self.root, self.path, self.prefix, *packed))

    @property
    def record(self) -> KeyValue:
        return self.key(0), self.value

    @property
    def told(self) -> bytes:
        """All that is said of them, but the number of the device, which is another one after the system has started
        anew. Equal files have equal ones."""
        rows = self.rows
        pairs = sorted(set(zip(rows.uid, rows.gid, strict=True)))
        names = [name for pair in pairs for name in (*self.owners[pair], b"")]
        columns = (rows.mode, rows.uid, rows.gid, rows.mtime, rows.ctime, rows.inode, rows.size)
        text = (b"%08x" % self.root, self.path, self.prefix, *names, *self.names)
        return b"".join((*(b"%d:%b" % (len(each), each) for each in text), *map(array.tobytes, columns)))


def is_of_plain(value: bytes) -> bool:
    """Is it the value of ``PlainFiles``, not of a ``Described``?"""
    return value[0] >= _GROUPED >> 56


def plain_in(value: bytes) -> PlainFiles:
    root, path, prefix, packed, rows, owners, offsets = marshal.loads(memoryview(value)[_SIZE:])
    names = unpack_names(packed)
    return PlainFiles(root, path, prefix, names, Rows.unpacked(rows, len(names), _KEPT), owners, array("Q", offsets))


def joined(parts: Sequence[PlainFiles]) -> PlainFiles:
    """Those of one directory, sorted."""
    names = [name for part in parts for name in part.names]
    order = sorted(range(len(names)), key=names.__getitem__)
    packed = [part.rows for part in parts]
    rows = Rows(0, _KEPT)
    for column in ("mode", "uid", "gid", "mtime", "ctime", "inode", "size", "device"):
        all_of_it: array[int] = array(getattr(rows, column).typecode)
        for some in packed:
            all_of_it += getattr(some, column)
        setattr(rows, column, all_of_it)
    rows.number = len(names)
    owners = {pair: each for part in parts for pair, each in part.owners.items()}
    first = parts[0]
    return PlainFiles(first.root, first.path, first.prefix, [names[row] for row in order], rows.chosen(order), owners)


def plain_rows(found: Found, rows: Sequence[int], prefix: bytes, owners: Owners) -> Sequence[int]:
    """Which of some small files are plain, unless they have attributes; ``owners`` are those of all."""
    columns = found.rows
    if (
        max(columns.size) < LEAST_SPARSE
        and min(columns.mtime) in PLAIN_TIMES
        and max(columns.mtime) in PLAIN_TIMES
        and is_short_name(prefix + max(found.names, key=len))
        and all(is_short_owner(*ids, *names) for ids, names in owners.items())
    ):
        return rows
    return [
        row
        for row in rows
        if columns.size[row] < LEAST_SPARSE
        and columns.mtime[row] in PLAIN_TIMES
        and is_short_name(prefix + found.names[row])
        and is_short_owner(*(ids := (columns.uid[row], columns.gid[row])), *owners[ids])
    ]


def sorted_files(
    root: int, path: bytes, prefix: bytes, found: Found, rows: Sequence[int], owners: Owners
) -> PlainFiles:
    """``rows`` are not empty."""
    names = found.names
    order = sorted(rows, key=names.__getitem__)
    return PlainFiles(root, path, prefix, [names[row] for row in order], found.rows.chosen(order), owners)
