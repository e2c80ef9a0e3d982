"""Members of an archive that the fast path has found in subtrees: simple directories and simple files that follow each
other in the archive, in packed form from the scan to the archive.
"""

from __future__ import annotations

import marshal

from pcopy.archive.member import DIRECTORY
from pcopy.fsio.backend.batches import MEMBER_ROW_FORMAT
from pcopy.fsio.backend.member_batches import ConsecutiveTreeMembers
from pcopy.signature.sorting import SortRecord
from pcopy.tasks.archive.descriptions import TREE_BIT, ItemToArchive, item_sort_key
from pcopy.tasks.archive.simple_files import (
    HEAD_SIZE,
    OwnerNames,
    SimpleFiles,
    holds_simple_files,
    unpack_simple_files,
)

_DIRECTORY_TYPE, _TYPE_BITS = 0o040000, 0o170000
_MODE_INDEX = 10
"""Index of the mode in a row, in units of 4 bytes."""


class TreeMembers(SimpleFiles):
    """Simple directories and simple files that follow each other in the archive. A row is one of them.

    ``path`` is the directory below which they are, ``prefix`` what stands before their names in the archive. ``names``
    are their paths below that directory; those of directories end with a slash. Nothing else belongs between them.
    """

    def __init__(
        self, root: int, path: bytes, prefix: bytes, packed_names: bytes, rows: bytes, owners: OwnerNames
    ) -> None:
        """Initialise the members. ``packed_names`` are their names, each followed by a zero byte; the other arguments
        are those of ``SimpleFiles``.
        """
        super().__init__(root, path, prefix, [], rows, owners)
        self._packed_names = packed_names

    def __len__(self) -> int:
        return len(self.rows) // MEMBER_ROW_FORMAT.size

    @property
    def file_count(self) -> int:
        """Number of the members that are files."""
        return len(self) - self._packed_names.count(b"/\0")

    def name_in_row(self, row: int) -> bytes:
        """Return the path of the member in this row, below ``path``."""
        if not self.names:
            self.names = self._packed_names.split(b"\0")[:-1]
        return self.names[row]

    def rows_in_range(self, start: int, end: int) -> TreeMembers:
        """Return the members from row ``start`` up to row ``end`` (exclusive)."""
        rows, unit = self.rows, MEMBER_ROW_FORMAT.size
        names = b"".join([self.name_in_row(row) + b"\0" for row in range(start, end)])
        return TreeMembers(self.root, self.path, self.prefix, names, rows[start * unit : end * unit], self.owners)

    def row_sort_key(self, row: int) -> bytes:
        directory, _, name = self._full_path(row).rpartition(b"/")
        return item_sort_key(self.root, directory, name)

    def _full_path(self, row: int) -> bytes:
        """Return the path of a member below the PATH on the command line; that of a directory ends with a slash."""
        return self.path + b"/" + self.name_in_row(row) if self.path else self.name_in_row(row)

    def file_description_in_row(self, row: int) -> ItemToArchive:
        directory, _, name = self._full_path(row).rpartition(b"/")
        described = super().file_description_in_row(row)
        member = described.member if name else described.member._replace(kind=DIRECTORY)
        return described._replace(path=directory, name=name, member=member)

    @property
    def packed_value(self) -> bytes:
        fields = self.root, self.path, self.prefix, self._packed_names, self.rows, self.owners
        return _packed(self.offsets[-1], len(self), fields)

    @property
    def zero_ended_names(self) -> bytes:
        return self._packed_names


def _packed(size: int, number: int, fields: tuple[int, bytes, bytes, bytes, bytes, OwnerNames]) -> bytes:
    """Return the value of a record: ``size`` bytes in the archive, ``number`` members, and the fields of
    ``TreeMembers``.
    """
    return (TREE_BIT | size).to_bytes(8, "big") + number.to_bytes(4, "big") + marshal.dumps(fields)


def record_of_tree_members(
    root: int, path: bytes, prefix: bytes, piece: ConsecutiveTreeMembers, owners: OwnerNames
) -> SortRecord:
    """Return the key and the value of a record with all members of ``piece``.

    Args:
        root, path: the number of the PATH on the command line, and the path below it of the directory that contains
            them.
        prefix: what stands before each name in the archive.
        owners: the names of all owners that may occur.
    """
    if len(owners) > 1:
        numbers, step = memoryview(piece.rows).cast("I"), MEMBER_ROW_FORMAT.size // 4
        owners = {
            ids: owners[ids]
            for ids in {*zip(numbers[_MODE_INDEX + 1 :: step], numbers[_MODE_INDEX + 2 :: step], strict=True)}
        }
    first = piece.names[: piece.names.index(b"\0")]
    directory, _, name = (path + b"/" + first if path else first).rpartition(b"/")
    fields = root, path, prefix, piece.names, piece.rows, owners
    return item_sort_key(root, directory, name), _packed(piece.size, len(piece.rows) // MEMBER_ROW_FORMAT.size, fields)


def holds_tree_members(value: bytes) -> bool:
    """Return True if ``value``, the value of a record, holds ``TreeMembers``."""
    return value[0] >= TREE_BIT >> 56


def unpack_members(value: bytes) -> bytes | SimpleFiles:
    """Unpack the value of a record: return ``SimpleFiles`` or ``TreeMembers`` if it holds several members; if it holds
    one ``ItemToArchive``, return ``value`` itself.
    """
    if holds_simple_files(value):
        return unpack_simple_files(value)
    if not holds_tree_members(value):
        return value
    root, path, prefix, names, rows, owners = marshal.loads(memoryview(value)[HEAD_SIZE:])
    return TreeMembers(root, path, prefix, names, rows, owners)
