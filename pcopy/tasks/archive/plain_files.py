"""Simple files: regular files whose members consist of a ustar header, a time and the contents.

They have one hard link, a short name, no extended attributes, a time that a header can hold, and are too small to be
searched for holes. Those of one directory are handled together, in packed form, from the scan to the archive.
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
"""Bit that is set in the size with which a value begins, if it is a value of ``PlainFiles``."""
_HEAD = 12
"""Bytes of the size and of the number of files, with which the value of a record of ``PlainFiles`` begins."""

_UID = 11
"""Index of the uid in a row, in units of 4 bytes; the gid follows it."""

Owners = dict[tuple[int, int], tuple[bytes, bytes]]
"""Names of user and group, by pairs of uid and gid."""


class PlainFiles:
    """Simple files of the directory ``path`` of a root, sorted by name.

    ``rows`` are packed as for the batch ``Members``. ``prefix`` precedes each name in the archive.
    """

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
        """The offset of each member from the first one, in bytes of the archive; the last number is the end of all."""
        if not self._offsets:
            wholes = memoryview(self.rows).cast("I")[MEMBER.size // 4 - 1 :: MEMBER.size // 4]
            self._offsets = array("Q", accumulate(wholes, initial=0))
        return self._offsets

    @property
    def sizes(self) -> Sequence[int]:
        """Bytes of the contents of each file."""
        return memoryview(self.rows).cast("Q")[1 :: MEMBER.size // 8]

    @property
    def _ids(self) -> set[tuple[int, int]]:
        """The pairs of uid and gid that occur."""
        numbers, step = memoryview(self.rows).cast("I"), MEMBER.size // 4
        return {*zip(numbers[_UID::step], numbers[_UID + 1 :: step], strict=True)}

    def key(self, row: int) -> bytes:
        """Return the key of the file in this row."""
        return key_of(self.root, self.path, self.names[row])

    def before(self, key: bytes, start: int) -> int:
        """Return the first row from ``start`` on whose key is not below ``key``, the key of an item of the same
        directory."""
        return bisect_left(self.names, key[len(key_of(self.root, self.path, b"")) :], start)

    def part(self, start: int, end: int) -> PlainFiles:
        """Return the files from row ``start`` up to row ``end``."""
        names, rows = self.names[start:end], self.rows[start * MEMBER.size : end * MEMBER.size]
        return PlainFiles(self.root, self.path, self.prefix, names, rows, self.owners)

    def described(self, row: int) -> Described:
        """Return the description of the file in this row."""
        inode, size, _, mtime, ctime, mode, uid, gid, _ = MEMBER.unpack_from(self.rows, row * MEMBER.size)
        name, (user, group) = self.names[row], self.owners[uid, gid]
        full, permissions = self.prefix + name, mode & 0o7777
        member = Member(full, FILE, permissions, uid, gid, mtime, size, user=user, group=group)
        return Described(self.root, self.path, name, inode, ctime, member)

    @property
    def value(self) -> bytes:
        """The value of a record that holds these files; it begins as the value of a ``Described`` does."""
        size = (_PLAIN | self.offsets[-1]).to_bytes(8, "big")
        fields = self.root, self.path, self.prefix, pack_names(self.names), self.rows, self.owners
        return size + len(self).to_bytes(4, "big") + marshal.dumps(fields)

    @property
    def record(self) -> KeyValue:
        """The key and the value of the record."""
        return self.key(0), self.value

    @property
    def told(self) -> bytes:
        """The description of the files as bytes, for a digest. Equal files give equal bytes.

        The device number is left out, because it can change when the host is rebooted.
        """
        rows = array("Q", self.rows)
        rows[2 :: MEMBER.size // 8] = array("Q", bytes(8 * len(self)))
        owners = self.owners if len(self.owners) == 1 else {ids: self.owners[ids] for ids in self._ids}
        names = [each for ids, both in sorted(owners.items()) for each in (b"%d:%d" % ids, *both)]
        text = b"/".join(
            (b"%08x" % self.root, *(b"%d:%b" % (len(each), each) for each in (self.path, self.prefix, *names)))
        )
        return b"".join((text, b"//", pack_names(self.names), b"//", rows))


def is_of_plain(value: bytes) -> bool:
    """Return True if ``value`` is one of ``PlainFiles``, and not of a ``Described``."""
    return value[0] >= _PLAIN >> 56


def number_in(value: bytes) -> int:
    """Return the number of members that ``value`` holds."""
    return int.from_bytes(value[8:_HEAD], "big") if is_of_plain(value) else 1


def plain_in(value: bytes) -> PlainFiles:
    """Return the simple files that ``value`` holds."""
    root, path, prefix, names, rows, owners = marshal.loads(memoryview(value)[_HEAD:])
    return PlainFiles(root, path, prefix, unpack_names(names), rows, owners)


def opened(value: bytes) -> bytes | PlainFiles:
    """Return the simple files that ``value`` holds; if it holds another member, return ``value`` itself."""
    return plain_in(value) if is_of_plain(value) else value


def alone(value: bytes) -> PlainFiles | None:
    """Return the described file in ``value`` as ``PlainFiles`` if it is a simple file; None otherwise."""
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
    """Return the files of several ``parts``, which belong to one directory, sorted in one object."""
    if len(parts) == 1:
        return parts[0]
    names = [name for part in parts for name in part.names]
    rows, first = b"".join([part.rows for part in parts]), parts[0]
    owners = {ids: each for part in parts for ids, each in part.owners.items()}
    order = sorted(range(len(names)), key=names.__getitem__)
    rows = b"".join([rows[row * MEMBER.size : (row + 1) * MEMBER.size] for row in order])
    return PlainFiles(first.root, first.path, first.prefix, [names[row] for row in order], rows, owners)


def plain_rows(found: Found, rows: Sequence[int], prefix: bytes, owners: Owners) -> Sequence[int]:
    """Return those of ``rows``, which are small files, that are simple files, unless they have extended attributes.

    ``owners`` are the names of all owners that occur.
    """
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
    """Return the files in ``rows``, which are not empty, as ``PlainFiles``."""
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
