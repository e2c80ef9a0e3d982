"""Batches whose rows are subtrees: the backend walks all below each row, within limits. Only the C backend has them.

A batch returns the items that its rows have not processed, and the directories that they have not entered. Directories
that cannot be rows get the code ``SLOW_PATH``: the caller processes them.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, TypeVar

from pcopy.fast_named_tuple import NamedTuple
from pcopy.fsio.backend.batches import UNCHANGED_VALUE, BatchFilters, BatchResult, ItemCounts, NamesInDirectoryBatch

if TYPE_CHECKING:
    from pcopy.fsio.backend.columns import ItemStatusColumns
    from pcopy.fsio.backend.interface import ColumnSums

SUMMED_KINDS = b"fdlpscb"
"""Letters of the types of items, in the order of ``EnteredDirectories.kinds``."""


class RemainingItems(NamedTuple):
    """Items of one directory that a walk has not processed.

    Fields:
        directory: path of the directory, relative to the parent directory of the batch.
        directory_inode: inode number of the directory.
        names: names of the items.
        inodes: inode numbers that the directory lists for them.
        kinds: a letter for each item: ``d`` for a directory that was not entered, ``c`` for files that differ only in
            their contents, ``!`` for an item whose name was taken by another item meanwhile, ``?`` for other items that
            the batch cannot process, or one that the type of batch defines.
        other_directory_inode: inode number of the directory on the second side, if two sides are compared.
    """

    directory: bytes
    directory_inode: int
    names: Sequence[bytes]
    inodes: Sequence[int]
    kinds: bytes
    other_directory_inode: int = 0


class SubtreeFrontier(NamedTuple):
    """What remains to be done in the subtree of one row.

    The first three fields describe the directories in which or below which something remains, by their numbers.
    Number 0 is the directory of the row. A directory has a larger number than its parent.

    Fields:
        paths: their paths, relative to the parent directory of the batch.
        inodes: their inode numbers.
        parents: the numbers of their parents; 0 for number 0.
        remaining: the remaining items, by directory.
    """

    paths: Sequence[bytes]
    inodes: Sequence[int]
    parents: Sequence[int]
    remaining: Sequence[RemainingItems]


class WalkResult(BatchResult):
    """The result of a batch that walks subtrees.

    Fields:
        counts: counts of the processed items of all rows together.
        frontiers: by row, what remains to be done, for rows with the code ``DONE`` in which something remains.
        letters: for each row, what remains to be done with the item of the row itself: 0 for nothing, otherwise a
            letter as in ``RemainingItems.kinds``.
    """

    counts: ItemCounts
    frontiers: dict[int, SubtreeFrontier]
    letters: bytes = b""

    @property
    def remaining(self) -> Iterator[RemainingItems]:
        """Iterate over the remaining items of all rows, by directory."""
        return (items for frontier in self.frontiers.values() for items in frontier.remaining)


WalkResultType = TypeVar("WalkResultType", bound=WalkResult)


class WalkBatch(NamesInDirectoryBatch[WalkResultType]):
    """Base of the batches that walk subtrees. Rows are directories; a row enters the directories below it, too.

    A directory below the rows is not entered if the time is over, if it is too deep, or if it would get the code
    ``SLOW_PATH`` as a row.

    Fields:
        directory: descriptor of the parent directory.
        names: names of the directories, joined by slashes.
        inodes: inode numbers that they must have.
        device: st_dev that they must have.
        max_names: a directory with more names gets ``SLOW_PATH``; at most 1023.
        depth: how many levels of directories below the rows may be entered.
        deadline: time (``time.monotonic``) after which no further directory below the rows is entered.
        filters: the filters of the user; None if there are none. They do not apply to the rows.
    """

    row_kind = "subtree"

    inodes: array[int]
    device: int
    max_names: int
    depth: int
    deadline: float
    filters: BatchFilters | None


class ListPathsResult(WalkResult):
    """The result of ``ListPathsBatch``. ``packed_paths`` has the paths of all items, each followed by a zero byte."""

    packed_paths: bytes = b""


class ListPathsBatch(WalkBatch[ListPathsResult]):
    """Open directories and return the paths of everything in them and below.

    ``path_prefix`` is the path of the parent directory, with a slash at its end; all returned paths begin with it.
    """

    path_prefix: bytes


class EnteredDirectories(NamedTuple):
    """The directories that the rows of a ``ListItemsBatch`` have entered, as columns.

    Those whose items were added to the sums of the batch (``is_summed``) have sums here: numbers of items by type, in
    the order of ``SUMMED_KINDS``, bytes of the files, bytes of storage that are allocated for all items, and the owner
    and group that all items have. The others have zeros, and their items are in the result of the batch.

    Fields:
        paths: their paths, relative to the parent directory of the batch.
        inodes: their inode numbers.
        items: the numbers of items in them.
        is_summed: 1 for each directory whose items were added to the sums, otherwise 0.
        sizes, allocated, kinds, users, groups: sums.
    """

    paths: Sequence[bytes]
    inodes: Sequence[int]
    items: Sequence[int]
    is_summed: Sequence[int]
    sizes: Sequence[int]
    allocated: Sequence[int]
    kinds: Sequence[Sequence[int]]
    users: Sequence[int]
    groups: Sequence[int]


_WIDE_FIELDS, _NARROW_FIELDS = 9, 18
"""Size of a directory in ``ListItemsResult.packed_directories`` (``pk_entered`` of native/backend.h), in units of 8
and of 4 bytes.
"""


class ListedItems(NamedTuple):
    """Items of one directory within the items of a ``ListItemsResult``: those from ``start`` up to, but not including,
    ``end``. ``directory`` is the path of the directory, relative to the parent directory of the batch,
    ``directory_inode`` its inode number.
    """

    directory: bytes
    directory_inode: int
    start: int
    end: int


class ListItemsResult(WalkResult):
    """The result of ``ListItemsBatch``; ``counts`` is empty. Items of one directory follow each other.

    Fields:
        paths: paths of the items, relative to the parent directory of the batch.
        kinds: the type of each item as a letter of ``find -type``.
        inodes: inode numbers that the directories list.
        rows: columns of the items; None if no columns were requested.
        packed_directories: the directories that were entered, in the order of the items: their paths, separated by
            zero bytes, and for each a structure with the other fields of ``EnteredDirectories``.
    """

    paths: Sequence[bytes] = ()
    kinds: bytes = b""
    inodes: Sequence[int] = ()
    rows: ItemStatusColumns | None = None
    packed_directories: tuple[bytes, bytes] = (b"", b"")

    def entered(self) -> EnteredDirectories:
        """Return the directories that were entered, in the order of the items."""
        paths, packed = self.packed_directories
        wide, narrow = array("Q", packed), array("I", packed)
        inodes, sizes, allocated = (wide[each::_WIDE_FIELDS] for each in range(3))
        items, is_summed, *kinds, users, groups = (narrow[each::_NARROW_FIELDS] for each in range(6, 17))
        return EnteredDirectories(
            paths.split(b"\0") if packed else [], inodes, items, is_summed, sizes, allocated, kinds, users, groups
        )

    def items_by_directory(self) -> Iterator[ListedItems]:
        """Iterate over the directories whose items are here."""
        entered, start = self.entered(), 0
        for path, inode, number, is_summed in zip(
            entered.paths, entered.inodes, entered.items, entered.is_summed, strict=True
        ):
            if not is_summed:
                yield ListedItems(path, inode, start, start + number)
                start += number


class ListItemsBatch(WalkBatch[ListItemsResult]):
    """Open directories and return all items in them and below, with columns of their status.

    The status is read only if ``mask`` requests columns. Items whose status was not read have zeros.

    If ``column_sums`` is set and no threads are used, the items of a directory are added to it instead of being
    returned. This requires that all items have one owner and group, and that their names are printable ASCII. The mask
    must then include the columns that the sums need, and owner and group.

    Fields:
        mask: the columns to return; 0 for none.
        kinds: letters (as of ``find -type``) of the types of items whose status is read; empty for all types.
        column_sums: sums to which simple directories are added, or None.
        path_prefix: what precedes the paths of the largest files in ``column_sums``: the path of ``directory``, ending
            with a slash.
    """

    mask: int
    kinds: bytes
    column_sums: ColumnSums | None
    path_prefix: bytes = b""


class CompareTreesBatch(WalkBatch[WalkResult]):
    """Compare subtrees on two sides, except extended attributes and ACLs. Directories that are equal are entered.

    ``WalkResult.counts`` has the pairs of items that were found equal, and of the files that differ only in their
    contents; its ``bytes`` are those read from both sides. Rows that were not begun because the time was over have the
    code ``CANCELLED``. A remaining item has the letter ``c`` if it is a file that differs only in its contents, ``d``
    if it is a directory that was neither compared nor entered, ``n`` if it is a file that was not compared because
    enough of its directory had been read, ``<`` or ``>`` if only the first or only the second side has it, and ``?`` if
    it differs, or cannot be compared by the batch, as devices and sockets.

    If only names are compared, ``?`` stands for a directory of the first side that is an item of another type on the
    second one, and items that only the first side has have the letter of their type as a capital.

    Fields:
        directory: descriptor of the parent directory on the first side.
        names: names of the rows, the same on both sides, joined by slashes.
        target: descriptor of the parent directory on the second side.
        other_inodes: inode numbers that the directories must have on the second side.
        other_device: st_dev that they must have on the second side.
        properties: bits that say which properties (such as size, mode and contents) to compare;
            ``pcopy.tasks.compare.properties`` defines them.
        modify_window: seconds by which mtimes may differ.
        are_items: True if the rows are items of any type, which are compared themselves first. The arrays of inode
            numbers are overwritten then. An item that differs, or that the batch cannot compare, has the code
            ``SLOW_PATH``.
        compares_names: True if only names and types are compared: then the first side is the target of a copy, and
            items that only the second side has are ignored. The rows are directories of the first side with these
            ``inodes``, and ``are_items`` is True.
        created_since: if only names are compared, directories of the first side that were created after this time
            (nanoseconds since 1970) count as equal, with everything below them.
        changed_since: if only names are compared, directories of the first side that were not created and have changed
            after this time are not entered.
    """

    target: int
    other_inodes: array[int]
    other_device: int
    properties: int
    modify_window: int = 0
    are_items: bool = False
    compares_names: bool = False
    created_since: int = 2**63 - 1
    changed_since: int = 2**63 - 1

    @property
    def directory_descriptors(self) -> tuple[int, ...]:
        return self.directory, self.target


class RemoveTreesBatch(WalkBatch[WalkResult]):
    """Open directories, remove everything in them and below, and then the directories themselves.

    A row with the code ``DONE`` that is not in ``WalkResult.frontiers`` was removed. ``WalkResult.counts`` has the
    removed items; of these, ``directories`` includes the rows. When the time is over, rows that were not begun get the
    code ``CANCELLED``. In a row with the code ``SLOW_PATH`` nothing was removed.

    A remaining item has the letter ``d`` if it is a directory that was not entered, ``?`` if it could not be removed,
    and the letter of its type if it was not tried. A directory of a frontier below and in which nothing remains could
    not be removed itself.

    Fields:
        mount: the mount (``pcopy.fsio.mounted.mount_id_of``) on which all directories must be.
        removes_by_type: True to remove items by name and type of the listing, without reading their status. Then the
            bytes of the files are not counted.
    """

    mount: int
    removes_by_type: bool = False


class ChangeTreesBatch(WalkBatch[WalkResult]):
    """Set the same owner and group for items of one directory and everything below those that are directories, and
    change the permission bits by two tables from old to new bits. A directory is changed before it is entered; if this
    process might lose access to it, it is changed after everything below it.

    When the time is over, rows that were not begun get the code ``CANCELLED``. A row with the code ``SLOW_PATH`` was
    neither changed nor counted. A remaining item has one of these letters:

    - ``?``: the batch cannot process it.
    - ``!``: another item took its name.
    - ``x``: a directory that was entered, and that must be changed after everything below it.
    - the letter of its type: it was not begun.

    Fields:
        kinds: letters of the types of the rows, as listed. Empty: the rows are directories that were changed and
            counted already, so that only their contents are processed.
        modes: array of type "H": the new permission bits of items that are not directories, by the old ones (0 to
            4095).
        directory_modes: an array like ``modes``, for directories.
        uid: the new owner, or ``UNCHANGED_VALUE`` (``pcopy.fsio.backend.batches``).
        gid: the new group, or ``UNCHANGED_VALUE``.
    """

    kinds: bytes
    modes: array[int]
    directory_modes: array[int]
    uid: int = UNCHANGED_VALUE
    gid: int = UNCHANGED_VALUE
