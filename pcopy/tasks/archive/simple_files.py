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

from pcopy.archive.headers import (
    SIMPLE_MEMBER_MTIMES,
    archived_sizes_of_regular_files,
    fits_name_field,
    fits_owner_fields,
)
from pcopy.archive.member import FILE, ArchiveMember
from pcopy.fsio.backend.batches import MEMBER_ROW_FORMAT
from pcopy.fsio.backend.columns import EARLIEST_TIME, LATEST_TIME, pack_names, unpack_names
from pcopy.signature.sorting import SortRecord
from pcopy.tasks.archive.descriptions import (
    MIN_SPARSE_SIZE,
    RECORD_SIZE_BITS,
    ItemToArchive,
    item_sort_key,
    size_of_record_in_archive,
    unpack_item_to_archive,
)
from pcopy.walk.visitor import FoundItems

_SIMPLE_BIT = 1 << RECORD_SIZE_BITS
"""Bit of the first number (a size) in the value of a record that is set if the value holds ``SimpleFiles``."""
_HEAD_SIZE = 12
"""Bytes at the start of a value that holds ``SimpleFiles``: size in the archive, and number of files."""

_UID_INDEX = 11
"""Index of the uid in a row, in units of 4 bytes; the gid follows it."""

OwnerNames = dict[tuple[int, int], tuple[bytes, bytes]]
"""Names of user and group, by pairs of uid and gid."""


class SimpleFiles:
    """Simple files (small regular files without xattrs, links and holes) of one directory, sorted by name. A row is one
    file.

    ``path`` is the directory below the PATH number ``root`` of the command line. ``rows`` are the properties of the
    files, packed as the batch ``ReadTarMembersBatch`` takes them. ``prefix`` stands before each name in the archive.
    ``owners`` are the names of their owners.
    """

    def __init__(
        self, root: int, path: bytes, prefix: bytes, names: list[bytes], rows: bytes, owners: OwnerNames
    ) -> None:
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
        """For each file, the bytes of the archive that the files before it take; then the bytes that all of
        them take.
        """
        if not self._offsets:
            wholes = memoryview(self.rows).cast("I")[MEMBER_ROW_FORMAT.size // 4 - 1 :: MEMBER_ROW_FORMAT.size // 4]
            self._offsets = array("Q", accumulate(wholes, initial=0))
        return self._offsets

    @property
    def sizes(self) -> Sequence[int]:
        """Bytes of the contents of each file."""
        return memoryview(self.rows).cast("Q")[1 :: MEMBER_ROW_FORMAT.size // 8]

    @property
    def _owner_ids(self) -> set[tuple[int, int]]:
        """The pairs of uid and gid of the files."""
        numbers, step = memoryview(self.rows).cast("I"), MEMBER_ROW_FORMAT.size // 4
        return {*zip(numbers[_UID_INDEX::step], numbers[_UID_INDEX + 1 :: step], strict=True)}

    def row_sort_key(self, row: int) -> bytes:
        """Return the sort key of the file in this row."""
        return item_sort_key(self.root, self.path, self.names[row])

    def first_row_not_below_key(self, key: bytes, start: int) -> int:
        """Return the first row from ``start`` on whose key is not below ``key``, which must be the key of an item of
        the same directory.
        """
        return bisect_left(self.names, key[len(item_sort_key(self.root, self.path, b"")) :], start)

    def rows_in_range(self, start: int, end: int) -> SimpleFiles:
        """Return the files from row ``start`` up to row ``end`` (exclusive)."""
        names, rows = self.names[start:end], self.rows[start * MEMBER_ROW_FORMAT.size : end * MEMBER_ROW_FORMAT.size]
        return SimpleFiles(self.root, self.path, self.prefix, names, rows, self.owners)

    def file_description_in_row(self, row: int) -> ItemToArchive:
        """Return the description of the file in this row."""
        inode, size, _, mtime, ctime, mode, uid, gid, _ = MEMBER_ROW_FORMAT.unpack_from(
            self.rows, row * MEMBER_ROW_FORMAT.size
        )
        name, (user, group) = self.names[row], self.owners[uid, gid]
        full, permissions = self.prefix + name, mode & 0o7777
        member = ArchiveMember(full, FILE, permissions, uid, gid, mtime, size, user=user, group=group)
        return ItemToArchive(self.root, self.path, name, inode, ctime, member)

    @property
    def packed_value(self) -> bytes:
        """These files packed as the value of a record to be sorted. The value begins with the number of bytes that they
        take in the archive.
        """
        size = (_SIMPLE_BIT | self.offsets[-1]).to_bytes(8, "big")
        fields = self.root, self.path, self.prefix, pack_names(self.names), self.rows, self.owners
        return size + len(self).to_bytes(4, "big") + marshal.dumps(fields)

    @property
    def record_for_sorting(self) -> SortRecord:
        """The key and the value of the record that holds these files."""
        return self.row_sort_key(0), self.packed_value

    @property
    def properties_as_digest_input(self) -> bytes:
        """The properties of all files as bytes, from which a digest is computed that shows whether a later run has the
        same files. Equal files give equal bytes.

        The device number is left out, because it can change when the host is rebooted.
        """
        rows = array("Q", self.rows)
        rows[2 :: MEMBER_ROW_FORMAT.size // 8] = array("Q", bytes(8 * len(self)))
        owners = self.owners if len(self.owners) == 1 else {ids: self.owners[ids] for ids in self._owner_ids}
        names = [each for ids, both in sorted(owners.items()) for each in (b"%d:%d" % ids, *both)]
        text = b"/".join(
            (b"%08x" % self.root, *(b"%d:%b" % (len(each), each) for each in (self.path, self.prefix, *names)))
        )
        return b"".join((text, b"//", pack_names(self.names), b"//", rows))


def holds_simple_files(value: bytes) -> bool:
    """Return True if ``value``, the value of a record, holds several simple files (``SimpleFiles``), and not one
    ``ItemToArchive``.
    """
    return value[0] >= _SIMPLE_BIT >> 56


def member_count(value: bytes) -> int:
    """Return how many members the value of a record holds."""
    return int.from_bytes(value[8:_HEAD_SIZE], "big") if holds_simple_files(value) else 1


def unpack_simple_files(value: bytes) -> SimpleFiles:
    """Return the ``SimpleFiles`` in the value of a record."""
    root, path, prefix, names, rows, owners = marshal.loads(memoryview(value)[_HEAD_SIZE:])
    return SimpleFiles(root, path, prefix, unpack_names(names), rows, owners)


def unpack_if_simple(value: bytes) -> bytes | SimpleFiles:
    """Unpack the value of a record: return ``SimpleFiles`` if it holds several simple files; if it holds one
    ``ItemToArchive``, return ``value`` itself.
    """
    return unpack_simple_files(value) if holds_simple_files(value) else value


def as_simple_file(value: bytes) -> SimpleFiles | None:
    """If ``value`` is the value of a record of one file that is simple (no hard links, xattrs or holes), return this
    file as ``SimpleFiles``; otherwise None.
    """
    described = unpack_item_to_archive(value)
    member = described.member
    is_simple = member.kind == FILE and member.size < MIN_SPARSE_SIZE and member.mtime in SIMPLE_MEMBER_MTIMES
    is_simple = is_simple and EARLIEST_TIME <= described.ctime <= LATEST_TIME
    if not is_simple or member.xattrs or member.extents is not None or described.names:
        return None
    ids, prefix = (member.uid, member.gid), member.name.removesuffix(described.name)
    mode = stat.S_IFREG | member.mode
    row = MEMBER_ROW_FORMAT.pack(
        described.inode, member.size, 0, member.mtime, described.ctime, mode, *ids, size_of_record_in_archive(value)
    )
    owners = {ids: (member.user, member.group)}
    return SimpleFiles(described.root, described.path, prefix, [described.name], row, owners)


def merged_files(parts: Sequence[SimpleFiles]) -> SimpleFiles:
    """Join the simple files in several ``parts``, all of one directory, into one object; return it, sorted by name."""
    if len(parts) == 1:
        return parts[0]
    names = [name for part in parts for name in part.names]
    rows, first = b"".join([part.rows for part in parts]), parts[0]
    owners = {ids: each for part in parts for ids, each in part.owners.items()}
    order = sorted(range(len(names)), key=names.__getitem__)
    rows = b"".join([rows[row * MEMBER_ROW_FORMAT.size : (row + 1) * MEMBER_ROW_FORMAT.size] for row in order])
    return SimpleFiles(first.root, first.path, first.prefix, [names[row] for row in order], rows, owners)


def simple_file_rows(found: FoundItems, rows: Sequence[int], prefix: bytes, owners: OwnerNames) -> Sequence[int]:
    """Return the rows of the files that are simple: below 64 KiB, with a short name and a time that a header can hold.
    All of ``rows`` are small regular files with one hard link. The caller must check that the files have no extended
    attributes.

    Args:
        prefix: what stands before each name in the archive.
        owners: the names of all owners that occur.
    """
    columns = found.rows
    if (
        not columns.out_of_range_times
        and max(columns.size) < MIN_SPARSE_SIZE
        and min(columns.mtime) in SIMPLE_MEMBER_MTIMES
        and max(columns.mtime) in SIMPLE_MEMBER_MTIMES
        and fits_name_field(prefix + max(found.names, key=len))
        and all(fits_owner_fields(*ids, *names) for ids, names in owners.items())
    ):
        return rows
    return [
        row
        for row in rows
        if columns.size[row] < MIN_SPARSE_SIZE
        and columns.mtime[row] in SIMPLE_MEMBER_MTIMES
        and ("ctime", row) not in columns.out_of_range_times
        and fits_name_field(prefix + found.names[row])
        and fits_owner_fields(*(ids := (columns.uid[row], columns.gid[row])), *owners[ids])
    ]


def simple_files(
    root: int, path: bytes, prefix: bytes, found: FoundItems, rows: Sequence[int], owners: OwnerNames
) -> SimpleFiles:
    """Return the files in ``rows`` (at least one) of the items ``found`` as ``SimpleFiles``.

    Args:
        root, path: the number of the PATH on the command line, and the path of the directory below it.
        prefix: what stands before each name in the archive.
        owners: the names of all owners that occur.
    """
    names, columns = found.names, found.rows
    if len(rows) < len(found):
        names, columns = [names[row] for row in rows], columns.columns_of_selected_rows(rows)
    packed = map(
        MEMBER_ROW_FORMAT.pack, columns.inode, columns.size, columns.device, columns.mtime, columns.ctime,
        columns.mode, columns.uid, columns.gid, archived_sizes_of_regular_files(columns.size, columns.mtime),
    )  # fmt: skip
    both = sorted(zip(names, packed, strict=True))
    owners = owners if len(owners) == 1 else {ids: owners[ids] for ids in {*zip(columns.uid, columns.gid, strict=True)}}
    return SimpleFiles(root, path, prefix, [name for name, _ in both], b"".join([row for _, row in both]), owners)
