"""Batches whose rows are whole directories, and batches for archives of small files. Only the C backend supports them.

A row of such a batch is a directory. All rows are directories in the same parent directory; some batches have a parent
directory in the source and one in the target. Such batches pay off only if one call does everything for a directory, so
the Python backend has none of them (``FileOperationBackend.has_directory_batches``). The C backend handles only
directories with few names and usual metadata. The others get the code ``SLOW_PATH``, and tasks process them one by one,
as they process all directories with the Python backend.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from struct import Struct
from typing import TYPE_CHECKING

from pcopy.fast_named_tuple import NamedTuple
from pcopy.fsio.attributes import ItemMetadata
from pcopy.fsio.backend.batches import UNCHANGED_VALUE, BatchResult, FileOperationBatch, NamesInDirectoryBatch
from pcopy.fsio.backend.columns import (
    ATIME_COLUMN,
    GROUP_COLUMN,
    MODE_COLUMN,
    MTIME_COLUMN,
    OWNER_COLUMN,
    ItemStatusColumns,
)

if TYPE_CHECKING:
    from pcopy.fsio.backend.interface import ColumnSums

SUMMED_KINDS = b"fdlpscb"
"""Letters of the types of items, in the order of ``SummedDirectory.kinds``."""

MEMBER_ROW_FORMAT = Struct("=3Q2q4I")
"""Format of a row of a ``ReadTarMembersBatch``, that is, of one file to archive: inode, size, st_dev, mtime,
ctime, mode, user, group, bytes of the member in the archive.
"""

DIRECTORY_METADATA_COLUMNS = MODE_COLUMN | OWNER_COLUMN | GROUP_COLUMN | ATIME_COLUMN | MTIME_COLUMN
"""Columns of the metadata that a directory gets after everything in it was copied: mode, owner, group, atime, mtime."""

FAR_FUTURE_TIME = 2**63 - 1
"""A time that is later than all others, in nanoseconds since 1970: nothing has changed since then."""


class DirectoryBatchSettings(NamedTuple):
    """Settings that the directories of a batch have in common. A directory that gets the code ``SLOW_PATH`` is
    processed by the caller, item by item.

    Fields:
        source_device: st_dev of the source directories; those with another get ``SLOW_PATH``.
        target_device: st_dev of the target directories; those with another get ``SLOW_PATH``.
        excluded_directory: st_dev and inode of the target root, which must not be copied into itself.
        changed_since: target directories, and files in them, that have changed since this time (nanoseconds since 1970)
            get ``SLOW_PATH``.
        modify_window: seconds by which the times of a file and its copy may differ.
        max_names: a directory with this many or more names gets ``SLOW_PATH``.
        is_parent_new: True if this job created the parent directory of the targets.
        skips_matching_files: True if a file is skipped whose copy in the target matches by size, times, owner, mode and
            attributes.
        excludes_hard_links: True if the batch must neither skip nor copy files with several hard links.
        copies_small_files: True if small files are copied immediately into a directory that was just created, within a
            time limit.
    """

    source_device: int
    target_device: int
    excluded_directory: tuple[int, int] = (0, 0)
    changed_since: int = FAR_FUTURE_TIME
    modify_window: int = 0
    max_names: int = 0
    is_parent_new: bool = False
    skips_matching_files: bool = False
    excludes_hard_links: bool = False
    copies_small_files: bool = False


class PresentDirectoryStatus(NamedTuple):
    """The status of a target directory before this job changed anything in it. It has no extended attribute that could
    differ from the source. The fields are those of ``os.stat_result``.
    """

    st_mode: int
    st_uid: int
    st_gid: int
    st_mtime_ns: int
    st_ctime_ns: int


class PartlyProcessedDirectory(NamedTuple):
    """A directory that was opened on both sides, and for which something remains to be done.

    Fields:
        attributes: metadata of the source directory.
        inode: inode number of the target directory.
        mark: identity mark of the target directory (bytes that distinguish it from a later one with the same inode
            number).
        is_new: True if the target directory was created by this batch.
        is_owned_by_other_user: True if the target directory belongs to another user.
        names: names of the items that remain to be processed, joined by slashes.
        rows: status of these items, as columns.
        skipped: (number, bytes) of the files that were skipped.
        copied: (number, bytes) of the files that were copied.
        present: status that the target directory had before; None if it was created by this batch.
    """

    attributes: ItemMetadata
    inode: int
    mark: bytes
    is_new: bool
    is_owned_by_other_user: bool
    names: bytes
    rows: ItemStatusColumns
    skipped: tuple[int, int]
    copied: tuple[int, int]
    present: PresentDirectoryStatus | None = None


class EnterDirectoriesResult(BatchResult):
    """The result of ``EnterDirectoriesBatch``.

    A directory with the code ``DONE`` that is not in ``remaining`` is finished: it has its metadata, and all items in
    it were skipped. The code ``DECIDE_AGAIN`` means that the target directory was created, but the caller has to
    continue with it.

    Fields:
        skipped: number of files that were skipped in the finished directories.
        skipped_bytes: bytes of these files.
        changed: number of finished directories whose metadata is now another than before.
        remaining: the directories in which something remains to be done, by row.
    """

    skipped: int
    skipped_bytes: int
    changed: int
    remaining: dict[int, PartlyProcessedDirectory]


class EnterDirectoriesBatch(NamesInDirectoryBatch[EnterDirectoriesResult]):
    """Open source directories, read the status of everything in them, and open or create their target directories.

    Fields:
        directory: descriptor of the parent directory of the sources.
        target: descriptor of the parent directory of the targets.
        names: names of the directories, the same on both sides, joined by slashes.
        inodes: inode numbers that the source directories must have.
        settings: settings of the batch.
    """

    target: int
    inodes: array[int]
    settings: DirectoryBatchSettings

    @property
    def directory_descriptors(self) -> tuple[int, ...]:
        return self.directory, self.target


class DirectoryTotals(NamedTuple):
    """Totals of the items in one directory, whose status was added to the sums of the batch (``ColumnSums``) and not
    returned.

    Fields:
        size: bytes of the files.
        allocated: bytes of storage that are allocated for all items.
        user: owner of all items.
        group: group of all items.
    """

    size: int
    allocated: int
    user: int
    group: int


class DirectoryContents(NamedTuple):
    """The items in one directory, as a batch has found them.

    Fields:
        names: names of the items, joined by slashes. If ``totals`` is set, they are empty unless there are directories
            among the items.
        kinds: the type of each item as a letter of ``find -type``.
        inodes: inode numbers that the directory lists; empty if there are no directories among the items.
        rows: columns of the items; None if no columns were requested, or if ``totals`` is set.
        totals: totals if the items were added to the sums of the batch (``ColumnSums``) instead; else None.
    """

    names: bytes
    kinds: bytes
    inodes: array[int]
    rows: ItemStatusColumns | None
    totals: DirectoryTotals | None = None


class ListDirectoriesResult(BatchResult):
    """The result of ``ListDirectoriesBatch``: by row, the contents of each directory with the code ``DONE``.
    Directories that the C backend does not handle have the code ``SLOW_PATH``: the caller lists them.
    """

    contents: dict[int, DirectoryContents]


class ListDirectoriesBatch(NamesInDirectoryBatch[ListDirectoriesResult]):
    """Open directories, list them, and read the status of what is in them.

    The status is read only if ``mask`` requests columns. Items whose status was not read have zeros.

    If ``column_sums`` is set and no threads are used, the contents of a directory are added to it instead of being
    returned. This requires that all items have one owner and group, that names are printable ASCII, and that no file is
    larger than ``max_summed_file_bytes``. The mask must then include the columns that the sums need, and owner and
    group.

    Fields:
        directory: descriptor of the parent directory.
        names: names of the directories, joined by slashes.
        inodes: inode numbers that they must have.
        device: st_dev that they must have.
        max_names: a directory with more names gets ``SLOW_PATH``; at most 1023.
        mask: the columns to return; 0 for none.
        kinds: letters (as of ``find -type``) of the types of items whose status is read; empty for all types.
        column_sums: sums to which simple directories are added, or None.
        max_summed_file_bytes: size in bytes of the largest file that may be added to ``column_sums``.
    """

    inodes: array[int]
    device: int
    max_names: int
    mask: int = 0
    kinds: bytes = b""
    column_sums: ColumnSums | None = None
    max_summed_file_bytes: int = 0


class UnprocessedItems(NamedTuple):
    """Those items of a directory that a batch has not processed, so that the caller has to.

    Fields:
        names: their names, joined by slashes.
        kinds: a letter for each item: ``d`` for a directory that was processed itself and whose contents remain, ``?``
            for an item that the batch cannot process, ``c`` for files that differ only in their contents, ``!`` for an
            item whose name was taken by another item meanwhile.
        inodes: inode numbers that the directory lists; 0 for an item that exists on one side only.
        other_inodes: inode numbers on the second side, if two sides are compared; otherwise empty.
    """

    names: bytes
    kinds: bytes
    inodes: array[int]
    other_inodes: array[int]


class ItemCounts(NamedTuple):
    """Counts of items that were processed completely, by type.

    ``bytes`` is the size of the files. If two trees are compared, a pair of items counts once, and ``bytes`` is the
    number of bytes read from both. ``changed`` is the number of items whose metadata were changed.
    """

    files: int = 0
    directories: int = 0
    links: int = 0
    other_items: int = 0
    bytes: int = 0
    changed: int = 0


class DirectoryContentsResult(BatchResult):
    """The result of a batch that processes the contents of directories.

    In a directory with the code ``DONE``, items may remain that the caller has to process. In a directory with the code
    ``SLOW_PATH`` nothing was changed, except that ``RemoveDirectoriesBatch`` may have removed items.

    Fields:
        counts: counts of the processed items of all rows together.
        remaining: the remaining items of each directory, by row.
    """

    counts: ItemCounts
    remaining: dict[int, UnprocessedItems]


class DirectoriesNotEntered(NamedTuple):
    """Directories of one parent that a batch has not entered, so that the caller has to.

    Fields:
        parent: path of the parent, relative to the parent directory of the batch.
        parent_inode: inode number of the parent.
        names: names of the directories.
        inodes: inode numbers that the parent lists for them.
    """

    parent: bytes
    parent_inode: int
    names: Sequence[bytes]
    inodes: Sequence[int]


class ListPathsResult(DirectoryContentsResult):
    """The result of ``ListPathsBatch``, a batch that finds the paths of everything in directories.

    ``packed_paths`` has the paths of all items, each followed by a zero byte. ``not_entered`` has the directories among
    these items that were not entered, by parent; ``remaining`` is empty.
    """

    packed_paths: bytes = b""
    not_entered: Sequence[DirectoriesNotEntered] = ()


class ListPathsBatch(NamesInDirectoryBatch[ListPathsResult]):
    """Open directories and return the paths of everything in them and below.

    A directory below the rows is not entered if the time is over, if it is too deep, or if it would get the code
    ``SLOW_PATH`` as a row.

    Fields:
        directory: descriptor of the parent directory.
        names: names of the directories, joined by slashes.
        inodes: inode numbers that they must have.
        device: st_dev that they must have.
        max_names: a directory with more names gets ``SLOW_PATH``; at most 1023.
        path_prefix: path of the parent directory, with a slash at its end; all returned paths begin with it.
        depth: how many levels of directories below the rows may be entered.
        deadline: time (``time.monotonic``) after which no further directory below the rows is entered.
    """

    inodes: array[int]
    device: int
    max_names: int
    path_prefix: bytes
    depth: int = 0
    deadline: float = 0.0


class SummedDirectory(NamedTuple):
    """A directory whose items were added to the sums of a batch. All of them have one owner and one group.

    Fields:
        path: path of the directory, relative to the parent directory of the batch.
        size: bytes of the files.
        allocated: bytes of storage that are allocated for all items.
        kinds: number of items of each type, in the order of ``SUMMED_KINDS``.
        user: owner of all items.
        group: group of all items.
    """

    path: bytes
    size: int
    allocated: int
    kinds: Sequence[int]
    user: int
    group: int


class SumDirectoriesResult(BatchResult):
    """The result of ``SumDirectoriesBatch``: the directories that were summed up, and, by parent, those that were not
    entered.
    """

    summed: Sequence[SummedDirectory]
    not_entered: Sequence[DirectoriesNotEntered]


class SumDirectoriesBatch(NamesInDirectoryBatch[SumDirectoriesResult]):
    """Open directories, and add the status of everything in them and below to sums.

    This requires that all items of a directory have one owner and group, that their names are printable ASCII, and that
    no file is larger than ``max_summed_file_bytes``. Another directory gets the code ``SLOW_PATH``, or is not entered
    if it is below one of the rows.

    Fields:
        directory: descriptor of the parent directory.
        names: names of the directories, joined by slashes.
        inodes: inode numbers that they must have.
        device: st_dev that they must have.
        max_names: a directory with more names gets ``SLOW_PATH``; at most 1023.
        column_sums: the sums; threads cannot be used with them.
        max_summed_file_bytes: size in bytes of the largest file that may be added to them.
        depth: how many levels of directories below the rows may be entered.
        deadline: time (``time.monotonic``) after which no further directory below the rows is entered.
    """

    inodes: array[int]
    device: int
    max_names: int
    column_sums: ColumnSums
    max_summed_file_bytes: int
    depth: int = 0
    deadline: float = 0.0


class SetMetadataInDirectoriesBatch(NamesInDirectoryBatch[DirectoryContentsResult]):
    """Open directories, set the same owner and group for everything in them, and change the permission bits of
    everything by two tables from old to new bits. Subdirectories are changed, too, but not their contents.
    (``SetUniformMetadataBatch`` does the same for single items.)

    Fields:
        directory: descriptor of the parent directory.
        names: names of the directories, joined by slashes.
        inodes: inode numbers that they must have.
        device: st_dev that they must have.
        max_names: a directory with more names gets ``SLOW_PATH``; at most 1023.
        modes: array of type "H": the new permission bits of items that are not directories, by the old ones (0 to
            4095).
        directory_modes: an array like ``modes``, for directories.
        uid: the new owner, or ``UNCHANGED_VALUE`` (``pcopy.fsio.backend.batches``).
        gid: the new group, or ``UNCHANGED_VALUE``.
    """

    inodes: array[int]
    device: int
    max_names: int
    modes: array[int]
    directory_modes: array[int]
    uid: int = UNCHANGED_VALUE
    gid: int = UNCHANGED_VALUE


class CompareDirectoriesBatch(NamesInDirectoryBatch[DirectoryContentsResult]):
    """Open directories on both sides and compare their contents, except extended attributes and ACLs.

    Fields:
        directory: descriptor of the parent directory on the first side.
        target: descriptor of the parent directory on the second side.
        names: names of the directories, the same on both sides, joined by slashes.
        inodes: inode numbers that the directories must have on the first side.
        other_inodes: inode numbers that they must have on the second side.
        devices: st_dev that they must have on each side.
        max_names: a directory with more names on a side gets ``SLOW_PATH``; at most 255.
        properties: bits that say which properties (such as size, mode and contents) to compare;
            ``pcopy.tasks.compare.properties`` defines them.
        modify_window: seconds by which mtimes may differ.
    """

    target: int
    inodes: array[int]
    other_inodes: array[int]
    devices: tuple[int, int]
    max_names: int
    properties: int
    modify_window: int = 0

    @property
    def directory_descriptors(self) -> tuple[int, ...]:
        return self.directory, self.target


class RemoveDirectoriesBatch(NamesInDirectoryBatch[DirectoryContentsResult]):
    """Open directories, remove everything in them except subdirectories, and remove each directory that is empty then.

    A directory in which something remains, or with too many names, gets ``SLOW_PATH``: the caller processes it. The
    ``counts`` of the result include the removed items of all rows, even of those with ``SLOW_PATH``.

    Fields:
        directory: descriptor of the parent directory.
        names: names of the directories, joined by slashes.
        inodes: inode numbers that they must have.
        device: st_dev that they must have.
        max_names: a directory with more names gets ``SLOW_PATH``; at most 1023.
    """

    inodes: array[int]
    device: int
    max_names: int


class FinishDirectoriesBatch(NamesInDirectoryBatch[BatchResult]):
    """Apply the final metadata to target directories after everything in them was copied, where they differ from the
    existing ones.

    A directory whose inode number or identity mark is not the given one was replaced; it is not changed and gets
    ``SLOW_PATH``.

    Fields:
        rows: the metadata (``DIRECTORY_METADATA_COLUMNS``) and the inode numbers, as columns.
        marks: identity marks of the directories (``pcopy.fsio.identity``).
        created_by_job: a byte for each directory, 1 if the job created it.
        settings: settings of the batch.
    """

    rows: ItemStatusColumns
    marks: tuple[bytes, ...]
    created_by_job: bytes
    settings: DirectoryBatchSettings


class FindItemsWithoutXattrsBatch(NamesInDirectoryBatch[BatchResult]):
    """Find the items that have no extended attribute and no ACL that a copy would get.

    These items get the code ``DONE``. Others, and items whose attributes cannot be listed, get ``SLOW_PATH``.
    """


class ReadTarMembersBatch(FileOperationBatch[BatchResult]):
    """Read small regular files, of several directories, as members of a tar archive.

    Header and contents of each member are written to ``buffer``, one after the other. A file that cannot be read, has
    changed, or needs a header of another kind gets ``SLOW_PATH``: the caller reads it; the contents of its part of
    ``buffer`` are undefined then.

    Fields:
        names: names of the files, joined by slashes.
        rows: status of the files and bytes in the archive, each in the format of ``MEMBER_ROW_FORMAT``, joined.
        source_directories: for each directory its descriptor, the number of its rows, and the prefix of its names in
            the archive.
        buffer: the memory for the members, filled with zeros.
        owner_fields: by (uid, gid), the last part of a tar header, from its type field on, and the sum of the bytes of
            that part, for the checksum.
        pax_header: the header block that precedes a pax record with an mtime.
    """

    names: bytes
    rows: bytes
    source_directories: Sequence[tuple[int, int, bytes]]
    buffer: bytearray
    owner_fields: dict[tuple[int, int], tuple[bytes, int]]
    pax_header: bytes

    @property
    def directory(self) -> int:
        return self.source_directories[0][0]

    @property
    def directory_descriptors(self) -> tuple[int, ...]:
        return tuple({directory for directory, _, _ in self.source_directories})

    def __len__(self) -> int:
        return len(self.rows) // MEMBER_ROW_FORMAT.size
