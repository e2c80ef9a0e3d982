"""Batches whose rows are whole directories, and batches for archives of small files. Only the C backend supports them.

The rows of a batch are directories next to each other in one parent directory; some batches have a parent directory on
each side. Such batches pay off only if one call does everything for a directory, so the Python backend has none of them
(``Backend.has_directory_batches``). The C backend handles simple directories. The others get the code ``SLOW_PATH``,
and tasks process them one by one, as they do for all directories with the Python backend.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from struct import Struct
from typing import TYPE_CHECKING

from pcopy.fast_named_tuple import NamedTuple
from pcopy.fsio.attributes import Attributes
from pcopy.fsio.backend.batches import UNCHANGED, Batch, BatchResult, NamesBatch
from pcopy.fsio.backend.columns import ATIME, GROUP, MODE, MTIME, OWNER, Rows

if TYPE_CHECKING:
    from pcopy.fsio.backend.interface import ColumnSums

MEMBER_ROW = Struct("=3Q2q4I")
"""A row of ``ReadMembers``: inode, size, st_dev, mtime, ctime, mode, user, group, bytes of the member in the archive.
"""

DIRECTORY_METADATA_COLUMNS = MODE | OWNER | GROUP | ATIME | MTIME
"""Columns of the metadata that a directory gets when it is finished, without extended attributes."""

FAR_FUTURE = 2**63 - 1
"""A time that is later than all others, in nanoseconds since 1970."""


class DirectoryBatchSettings(NamedTuple):
    """Settings that the directories of a batch have in common.

    Fields:
        source_device: st_dev of the source directories; those with another get ``SLOW_PATH``.
        target_device: st_dev of the target directories; those with another get ``SLOW_PATH``.
        excluded_directory: st_dev and inode of the target root, which must not be copied into itself.
        changed_since: target directories, and files in them, that have changed since this time (nanoseconds since 1970)
            get ``SLOW_PATH``.
        modify_window: seconds by which the times of a file and its copy may differ.
        max_names: a directory with more names gets ``SLOW_PATH``.
        is_parent_new: True if this job created the parent directory of the targets.
        skips_matching_files: True if a file is skipped that has a matching copy in the target.
        excludes_hard_links: True if files with several hard links are neither skipped nor copied here.
        copies_small_files: True if small files are copied immediately into a directory that was just created, within a
            time limit.
    """

    source_device: int
    target_device: int
    excluded_directory: tuple[int, int] = (0, 0)
    changed_since: int = FAR_FUTURE
    modify_window: int = 0
    max_names: int = 0
    is_parent_new: bool = False
    skips_matching_files: bool = False
    excludes_hard_links: bool = False
    copies_small_files: bool = False


class RemainingDirectory(NamedTuple):
    """A directory that was opened on both sides, and for which something remains to be done.

    Fields:
        attributes: metadata of the source directory.
        inode: inode number of the target directory.
        mark: identity mark of the target directory (``pcopy.fsio.identity``).
        is_new: True if the target directory was created by this batch.
        is_owned_by_other_user: True if the target directory belongs to another user.
        names: packed names of the items that remain to be processed.
        rows: the columns of these items.
        skipped: number and bytes of the files that were skipped.
        copied: number and bytes of the files that were copied.
    """

    attributes: Attributes
    inode: int
    mark: bytes
    is_new: bool
    is_owned_by_other_user: bool
    names: bytes
    rows: Rows
    skipped: tuple[int, int]
    copied: tuple[int, int]


class EnterResult(BatchResult):
    """The result of ``EnterDirectories``.

    A directory that is ``DONE`` and not in ``remaining`` is finished: it has its metadata, and all items in it were
    skipped. A directory that is ``ANEW`` was created, but the slow path has to continue with it.

    Fields:
        skipped: number of files that were skipped in the finished directories.
        skipped_bytes: bytes of these files.
        remaining: the directories in which something remains to be done, by row.
    """

    skipped: int
    skipped_bytes: int
    remaining: dict[int, RemainingDirectory]


class EnterDirectories(NamesBatch[EnterResult]):
    """Open source directories, read the status of everything in them, and open or create their target directories.

    Fields:
        directory: descriptor of the parent directory of the sources.
        target: descriptor of the parent directory of the targets.
        names: names of the directories, the same on both sides.
        inodes: inode numbers that the source directories must have.
        settings: settings of the batch.
    """

    target: int
    inodes: array[int]
    settings: DirectoryBatchSettings

    @property
    def descriptors(self) -> tuple[int, ...]:
        return self.directory, self.target


class ContentsTotals(NamedTuple):
    """Totals of a directory whose contents were added to a ``Tally``.

    Fields:
        size: bytes of the files.
        allocated: bytes that are allocated for all items.
        user: owner of all items.
        group: group of all items.
    """

    size: int
    allocated: int
    user: int
    group: int


class DirectoryContents(NamedTuple):
    """The contents of one directory.

    Fields:
        names: packed names. If ``totals`` is set, they are included only if there are directories among the items.
        kinds: the type of each item as a letter of ``find -type``.
        inodes: inode numbers that the directory lists; empty if there are no directories among the items.
        rows: columns of the items; None if no columns were requested, or if ``totals`` is set.
        totals: totals, if the contents were added to a ``Tally``.
    """

    names: bytes
    kinds: bytes
    inodes: array[int]
    rows: Rows | None
    totals: ContentsTotals | None = None


class ListDirectoriesResult(BatchResult):
    """The result of ``ListDirectories``: the contents of each directory that is ``DONE``, by row. The others get
    ``SLOW_PATH``.
    """

    contents: dict[int, DirectoryContents]


class ListDirectories(NamesBatch[ListDirectoriesResult]):
    """Open directories, list them, and read the status of what is in them.

    The status is read only if ``mask`` requests columns. Items whose status was not read have zeros.

    If ``column_sums`` is set and no threads are used, the contents of a directory are added to it instead of being
    returned. This requires that all items have one owner and group, that names are printable ASCII, and that no file is
    larger than ``max_summed_file_bytes``. The mask must then include the columns of the tally, and the owners.

    Fields:
        directory: descriptor of the parent directory.
        names: names of the directories.
        inodes: inode numbers that they must have.
        device: st_dev that they must have.
        max_names: a directory with more names gets ``SLOW_PATH``; at most 1023.
        mask: the columns to return; 0 for none.
        kinds: letters of the types whose status is read; empty for all types.
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


class RemainingItems(NamedTuple):
    """Items of a directory that remain to be processed.

    Fields:
        names: packed names.
        kinds: a letter for each item: ``d`` for a directory that was processed itself and whose contents remain, ``?``
            for an item for the slow path, ``c`` for files that differ only in their contents, ``!`` for an item whose
            name was taken by another item meanwhile.
        inodes: inode numbers that the directory lists; 0 for an item that exists on one side only.
        other_inodes: inode numbers on the second side, if two sides are compared; otherwise empty.
    """

    names: bytes
    kinds: bytes
    inodes: array[int]
    other_inodes: array[int]


class ItemCounts(NamedTuple):
    """Counts of items that were processed completely, by type.

    If two sides are compared, a pair counts once, and ``bytes`` is what was read from both sides. Otherwise ``bytes``
    is the size of the files. ``changed`` is the number of items that were changed.
    """

    files: int = 0
    directories: int = 0
    links: int = 0
    other_items: int = 0
    bytes: int = 0
    changed: int = 0


class ContentsResult(BatchResult):
    """The result of a batch that processes the contents of directories.

    A directory that is ``DONE`` may have remaining items. In a directory with ``SLOW_PATH`` nothing was done, except
    that ``RemoveDirectories`` may have removed items.

    Fields:
        counts: counts of the processed items of all rows together.
        remaining: the remaining items of each directory, by row.
    """

    counts: ItemCounts
    remaining: dict[int, RemainingItems]


class ListPathsResult(ContentsResult):
    """The result of ``ListPaths``.

    ``remaining`` has the subdirectories of the directories that are ``DONE``. ``packed_paths`` has the paths of all
    items, each followed by a zero byte.
    """

    packed_paths: bytes = b""


class ListPaths(NamesBatch[ListPathsResult]):
    """Open directories and return the paths of everything in them.

    Fields:
        directory: descriptor of the parent directory.
        names: names of the directories.
        inodes: inode numbers that they must have.
        device: st_dev that they must have.
        max_names: a directory with more names gets ``SLOW_PATH``; at most 1023.
        path_prefix: path of the parent directory, with a slash at its end; all returned paths begin with it.
    """

    inodes: array[int]
    device: int
    max_names: int
    path_prefix: bytes


class SetMetadataWithin(NamesBatch[ContentsResult]):
    """Open directories, and change owner, group and modes of everything in them as ``SetUniformMetadata`` does.

    Fields:
        directory: descriptor of the parent directory.
        names: names of the directories.
        inodes: inode numbers that they must have.
        device: st_dev that they must have.
        max_names: a directory with more names gets ``SLOW_PATH``; at most 1023.
        modes: array of type "H" with the new permission bits for each of the 4096 possible ones.
        directory_modes: the same for directories.
        uid: the new owner, or ``KEEP``.
        gid: the new group, or ``KEEP``.
    """

    inodes: array[int]
    device: int
    max_names: int
    modes: array[int]
    directory_modes: array[int]
    uid: int = UNCHANGED
    gid: int = UNCHANGED


class CompareDirectories(NamesBatch[ContentsResult]):
    """Open directories on both sides and compare their contents, except extended attributes and ACLs.

    Fields:
        directory: descriptor of the parent directory on the first side.
        target: descriptor of the parent directory on the second side.
        names: names of the directories, the same on both sides.
        inodes: inode numbers that the directories must have on the first side.
        other_inodes: inode numbers that they must have on the second side.
        devices: st_dev that they must have on each side.
        max_names: a directory with more names on a side gets ``SLOW_PATH``; at most 255.
        properties: bits of the properties to compare (``pcopy.tasks.compare.properties``).
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
    def descriptors(self) -> tuple[int, ...]:
        return self.directory, self.target


class RemoveDirectories(NamesBatch[ContentsResult]):
    """Open directories, remove everything in them except subdirectories, and remove each directory that is empty then.

    A directory in which something remains gets ``SLOW_PATH``, and so does one with too many names. The ``sums`` of the
    result have the removed items of all rows, even of those with ``SLOW_PATH``.

    Fields:
        directory: descriptor of the parent directory.
        names: names of the directories.
        inodes: inode numbers that they must have.
        device: st_dev that they must have.
        max_names: a directory with more names gets ``SLOW_PATH``; at most 1023.
    """

    inodes: array[int]
    device: int
    max_names: int


class FinishDirectories(NamesBatch[BatchResult]):
    """Apply the metadata of directories that are complete, where it differs from the existing metadata.

    A directory must have the inode and the identity mark that are given here.

    Fields:
        rows: the metadata (``DRESSED``) and the inode numbers (``INODE``).
        marks: identity marks of the directories.
        created_by_job: a byte for each directory, 1 if the job created it.
        settings: settings of the batch.
    """

    rows: Rows
    marks: tuple[bytes, ...]
    created_by_job: bytes
    settings: DirectoryBatchSettings


class FindWithoutXattrs(NamesBatch[BatchResult]):
    """Find items that have no extended attribute and no ACL that would be copied.

    Such items get the code ``DONE``. Others, and items whose attributes cannot be listed, get ``SLOW_PATH``.
    """


class ReadMembers(Batch[BatchResult]):
    """Read small regular files, of several directories, as members of a tar archive.

    Header and contents of each member are written to ``buffer``, one after the other. A file that cannot be read
    without complications gets ``SLOW_PATH``; the contents of its part of ``buffer`` are undefined then.

    Fields:
        names: packed names of the files.
        rows: packed rows, in the format of ``MEMBER_ROW``.
        source_directories: for each directory its descriptor, the number of its rows, and the prefix of its names in
            the archive.
        buffer: the memory for the members, filled with zeros.
        owner_fields: for each user and group, the part of a header from its type field on, and the sum of the bytes of
            that part.
        pax_header: the header block that precedes an extended pax record with a time.
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
    def descriptors(self) -> tuple[int, ...]:
        return tuple({directory for directory, _, _ in self.source_directories})

    def __len__(self) -> int:
        return len(self.rows) // MEMBER_ROW.size
