"""Plain files: regular ones of which there is nothing more to say than a header and a time. Those of one directory go
from the scan into the archive together, packed.

They have one name, which is short, no attributes, no holes that are looked for, and a common time.
"""

from __future__ import annotations

import marshal
import stat
from array import array
from bisect import bisect_left
from collections.abc import Sequence
from itertools import accumulate

from pcopy.archive.headers import PLAIN_TIMES, is_short_name, is_short_owner, plain_sizes
from pcopy.archive.member import FILE, Member
from pcopy.fsio.kernel.columns import FIRST, LAST, pack_names, unpack_names
from pcopy.fsio.kernel.directory_batches import MEMBER
from pcopy.signature.sorting import KeyValue
from pcopy.tasks.archive.described import LEAST_SPARSE, SIZE_BITS, Described, described_in, key_of, size_in
from pcopy.walk.visitor import Found

_PLAIN = 1 << SIZE_BITS
"""Added to the size with which a value begins: it is one of ``PlainFiles``."""
_HEAD = 12
"""Bytes of the size and the number of files."""

_UID = 11
"""Where in a row the number of the owner stands, in units of 4 bytes; that of the group is behind it."""

Owners = dict[tuple[int, int], tuple[bytes, bytes]]
"""The names of owner and group, by their numbers."""


class PlainFiles:
    """Some of the directory ``path`` of a root, sorted by name; ``rows`` as in the batch ``Members``. ``prefix`` comes
    before each name in the archive."""

    def __init__(self, root: int, path: bytes, prefix: bytes, names: list[bytes], rows: bytes, owners: Owners) -> None:
        self.root = root
        self.path = path
        self.prefix = prefix
        self.names = names
        self.rows = rows
        self.owners = owners
        self._offsets = array("Q")

    def __len__(self) -> int:
        return len(self.names)

    @property
    def offsets(self) -> array[int]:
        """Where each begins, and at last where all end, in bytes of the archive."""
        if not self._offsets:
            wholes = memoryview(self.rows).cast("I")[MEMBER.size // 4 - 1 :: MEMBER.size // 4]
            self._offsets = array("Q", accumulate(wholes, initial=0))
        return self._offsets

    @property
    def sizes(self) -> Sequence[int]:
        """Bytes of the contents of each."""
        return memoryview(self.rows).cast("Q")[1 :: MEMBER.size // 8]

    @property
    def _ids(self) -> set[tuple[int, int]]:
        """The numbers of owners and groups."""
        numbers, step = memoryview(self.rows).cast("I"), MEMBER.size // 4
        return {*zip(numbers[_UID::step], numbers[_UID + 1 :: step], strict=True)}

    def key(self, row: int) -> bytes:
        return key_of(self.root, self.path, self.names[row])

    def before(self, key: bytes, start: int) -> int:
        """The first row from ``start`` on whose key is not smaller than that of an item of the directory."""
        return bisect_left(self.names, key[len(key_of(self.root, self.path, b"")) :], start)

    def part(self, start: int, end: int) -> PlainFiles:
        names, rows = self.names[start:end], self.rows[start * MEMBER.size : end * MEMBER.size]
        return PlainFiles(self.root, self.path, self.prefix, names, rows, self.owners)

    def described(self, row: int) -> Described:
        """One of them, by itself."""
        inode, size, _, mtime, ctime, mode, uid, gid, _ = MEMBER.unpack_from(self.rows, row * MEMBER.size)
        name, (user, group) = self.names[row], self.owners[uid, gid]
        full, permissions = self.prefix + name, mode & 0o7777
        member = Member(full, FILE, permissions, uid, gid, mtime, size, user=user, group=group)
        return Described(self.root, self.path, name, inode, ctime, member)

    @property
    def value(self) -> bytes:
        """Of a record, as ``Described`` has it."""
        size = (_PLAIN | self.offsets[-1]).to_bytes(8, "big")
        fields = self.root, self.path, self.prefix, pack_names(self.names), self.rows, self.owners
        return size + len(self).to_bytes(4, "big") + marshal.dumps(fields)

    @property
    def record(self) -> KeyValue:
        return self.key(0), self.value

    @property
    def told(self) -> bytes:
        """All that is said of them, but the number of the device, which is another one after the system has started
        anew. Equal files have equal ones."""
        rows = array("Q", self.rows)
        rows[2 :: MEMBER.size // 8] = array("Q", bytes(8 * len(self)))
        owners = self.owners if len(self.owners) == 1 else {ids: self.owners[ids] for ids in self._ids}
        names = [each for ids, both in sorted(owners.items()) for each in (b"%d:%d" % ids, *both)]
        text = b"/".join(
            (b"%08x" % self.root, *(b"%d:%b" % (len(each), each) for each in (self.path, self.prefix, *names)))
        )
        return b"".join((text, b"//", pack_names(self.names), b"//", rows))


def is_of_plain(value: bytes) -> bool:
    """Is it the value of ``PlainFiles``, not of a ``Described``?"""
    return value[0] >= _PLAIN >> 56


def number_in(value: bytes) -> int:
    """How many members it is of."""
    return int.from_bytes(value[8:_HEAD], "big") if is_of_plain(value) else 1


def plain_in(value: bytes) -> PlainFiles:
    root, path, prefix, names, rows, owners = marshal.loads(memoryview(value)[_HEAD:])
    return PlainFiles(root, path, prefix, unpack_names(names), rows, owners)


def opened(value: bytes) -> bytes | PlainFiles:
    """Plain files unpacked; another value as it is."""
    return plain_in(value) if is_of_plain(value) else value


def alone(value: bytes) -> PlainFiles | None:
    """A described file of which there is no more to say than of plain ones; None for all others."""
    described = described_in(value)
    member = described.member
    is_plain = member.kind == FILE and member.size < LEAST_SPARSE and member.mtime in PLAIN_TIMES
    is_plain = is_plain and FIRST <= described.ctime <= LAST
    if not is_plain or member.xattrs or member.extents is not None or described.names:
        return None
    ids, prefix = (member.uid, member.gid), member.name.removesuffix(described.name)
    mode = stat.S_IFREG | member.mode
    row = MEMBER.pack(described.inode, member.size, 0, member.mtime, described.ctime, mode, *ids, size_in(value))
    owners = {ids: (member.user, member.group)}
    return PlainFiles(described.root, described.path, prefix, [described.name], row, owners)


def joined(parts: Sequence[PlainFiles]) -> PlainFiles:
    """Those of one directory, sorted."""
    if len(parts) == 1:
        return parts[0]
    names = [name for part in parts for name in part.names]
    rows, first = b"".join([part.rows for part in parts]), parts[0]
    owners = {ids: each for part in parts for ids, each in part.owners.items()}
    order = sorted(range(len(names)), key=names.__getitem__)
    rows = b"".join([rows[row * MEMBER.size : (row + 1) * MEMBER.size] for row in order])
    return PlainFiles(first.root, first.path, first.prefix, [names[row] for row in order], rows, owners)


def plain_rows(found: Found, rows: Sequence[int], prefix: bytes, owners: Owners) -> Sequence[int]:
    """Which of some small files are plain, unless they have attributes; ``owners`` are those of all."""
    columns = found.rows
    if (
        not columns.far
        and max(columns.size) < LEAST_SPARSE
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
        and ("ctime", row) not in columns.far
        and is_short_name(prefix + found.names[row])
        and is_short_owner(*(ids := (columns.uid[row], columns.gid[row])), *owners[ids])
    ]


def sorted_files(
    root: int, path: bytes, prefix: bytes, found: Found, rows: Sequence[int], owners: Owners
) -> PlainFiles:
    """``rows`` are not empty."""
    names, columns = found.names, found.rows
    if len(rows) < len(found):
        names, columns = [names[row] for row in rows], columns.chosen(rows)
    packed = map(
        MEMBER.pack, columns.inode, columns.size, columns.device, columns.mtime, columns.ctime,
        columns.mode, columns.uid, columns.gid, plain_sizes(columns.size, columns.mtime),
    )  # fmt: skip
    both = sorted(zip(names, packed, strict=True))
    owners = owners if len(owners) == 1 else {ids: owners[ids] for ids in {*zip(columns.uid, columns.gid, strict=True)}}
    return PlainFiles(root, path, prefix, [name for name, _ in both], b"".join([row for _, row in both]), owners)
