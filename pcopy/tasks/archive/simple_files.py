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
from pcopy.archive.member import DIRECTORY, FILE, ArchiveMember
from pcopy.fsio.backend.batches import MEMBER_ROW_FORMAT
from pcopy.fsio.backend.columns import EARLIEST_TIME, LATEST_TIME, pack_names, unpack_names
from pcopy.signature.sorting import SortRecord
from pcopy.tasks.archive.descriptions import (
    MIN_SPARSE_SIZE,
    RECORD_SIZE_BITS,
    SIMPLE_FILES_BIT,
    ItemToArchive,
    item_sort_key,
    size_of_record_in_archive,
    unpack_item_to_archive,
)
from pcopy.walk.visitor import FoundItems

HEAD_SIZE = 12
"""Bytes at the start of a value that holds several members: size in the archive, and number of members."""

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
    def file_count(self) -> int:
        """Number of files."""
        return len(self)

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
        size = (SIMPLE_FILES_BIT | self.offsets[-1]).to_bytes(8, "big")
        fields = self.root, self.path, self.prefix, pack_names(self.names), self.rows, self.owners
        return size + len(self).to_bytes(4, "big") + marshal.dumps(fields)

    @property
    def record_for_sorting(self) -> SortRecord:
        """The key and the value of the record that holds these files."""
        return self.row_sort_key(0), self.packed_value

    @property
    def zero_ended_names(self) -> bytes:
        """The names, each followed by a zero byte."""
        return b"\0".join([*self.names, b""])

    @property
    def full_names(self) -> bytes:
        """The names in the archive, each followed by a zero byte."""
        return self.prefix + self.zero_ended_names[:-1].replace(b"\0", b"\0" + self.prefix) + b"\0"

    @property
    def used_owners(self) -> OwnerNames:
        """The names of those owners that the members have."""
        return self.owners if len(self.owners) == 1 else {ids: self.owners[ids] for ids in self._owner_ids}


def holds_simple_files(value: bytes) -> bool:
    """Return True if ``value``, the value of a record, holds several simple files (``SimpleFiles``), and not one
    ``ItemToArchive``.
    """
    return value[0] >> RECORD_SIZE_BITS - 56 == 1


def holds_several_members(value: bytes) -> bool:
    """Return True if ``value``, the value of a record, holds several members (``SimpleFiles`` or ``TreeMembers``), and
    not one ``ItemToArchive``.
    """
    return value[0] >> RECORD_SIZE_BITS - 56 > 0


def member_count(value: bytes) -> int:
    """Return how many members the value of a record holds."""
    return int.from_bytes(value[8:HEAD_SIZE], "big") if holds_several_members(value) else 1


def unpack_simple_files(value: bytes) -> SimpleFiles:
    """Return the ``SimpleFiles`` in the value of a record."""
    root, path, prefix, names, rows, owners = marshal.loads(memoryview(value)[HEAD_SIZE:])
    return SimpleFiles(root, path, prefix, unpack_names(names), rows, owners)


def as_simple_member(value: bytes) -> SimpleFiles | None:
    """If ``value`` is the value of a record of one file that is simple (no hard links, xattrs or holes), or of one
    directory without xattrs, return it as ``SimpleFiles``; otherwise None.
    """
    described = unpack_item_to_archive(value)
    member = described.member
    is_simple = member.kind in (FILE, DIRECTORY) and member.size < MIN_SPARSE_SIZE
    is_simple = is_simple and member.mtime in SIMPLE_MEMBER_MTIMES and EARLIEST_TIME <= described.ctime <= LATEST_TIME
    if not is_simple or member.xattrs or member.extents is not None or described.names:
        return None
    ids = member.uid, member.gid
    mode = member.mode | (stat.S_IFREG if member.kind == FILE else stat.S_IFDIR)
    row = MEMBER_ROW_FORMAT.pack(
        described.inode, member.size, 0, member.mtime, described.ctime, mode, *ids, size_of_record_in_archive(value)
    )
    return SimpleFiles(described.root, described.path, b"", [member.name], row, {ids: (member.user, member.group)})


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
