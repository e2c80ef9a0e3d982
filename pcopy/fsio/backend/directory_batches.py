"""Batches whose rows are whole directories. Only the C backend supports them.

A row of such a batch is a directory. All rows are directories in the same parent directory; some batches have a parent
directory in the source and one in the target. Such batches pay off only if one call does everything for a directory, so
the Python backend has none of them (``FileOperationBackend.has_directory_batches``). The C backend handles only
directories with few names and usual metadata. The others get the code ``SLOW_PATH``, and tasks process them one by one,
as they process all directories with the Python backend.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence

from pcopy.fast_named_tuple import NamedTuple
from pcopy.fsio.backend.batches import BatchFilters, BatchResult, FileOperationBatch, NamesInDirectoryBatch
from pcopy.fsio.backend.columns import (
    ATIME_COLUMN,
    GROUP_COLUMN,
    MODE_COLUMN,
    MTIME_COLUMN,
    OWNER_COLUMN,
    ItemStatusColumns,
)

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
        changed_since: files in the target that have changed since this time (nanoseconds since 1970) are returned.
        directories_changed_since: target directories that have changed since this time get ``SLOW_PATH``, or are
            ``IS_TOUCHED`` if ``is_resumed``.
        modify_window: seconds by which the times of a file and its copy may differ.
        max_names: a directory with this many or more names gets ``SLOW_PATH``.
        is_parent_new: True if this job created the parent directory of the targets.
        skips_matching_files: True if a file is skipped whose copy in the target matches by size, times, owner, mode and
            attributes.
        excludes_hard_links: True if the batch must neither skip nor copy files with several hard links.
        copies_small_files: True if small files are copied immediately into a directory that was just created, within a
            time limit.
        is_resumed: True if earlier runs of this job may have created or changed items of the target.
        recognises_own_directories: True if target directories that earlier runs have created are ``IS_NEW``.
        returns_complete_rows: True if a row is returned that has subdirectories, even if nothing remains in and below
            it.
        reports_changes: True if the files that are copied are reported (``ReportedFiles``), and directories whose
            metadata differ are returned.
        reports_all: True if files that are skipped are reported, too, and all directories are returned. Then there must
            be no filters.
        filters: the filters of the user; None if there are none. Excluded items are skipped.
        finishes_by_path: True if a ``FinishDirectoriesBatch`` finishes the directory that has the path, whatever its
            inode number and mark are. Those with an ACL or another extended attribute that is copied are left to the
            caller.
    """

    source_device: int
    target_device: int
    excluded_directory: tuple[int, int] = (0, 0)
    changed_since: int = FAR_FUTURE_TIME
    directories_changed_since: int = FAR_FUTURE_TIME
    modify_window: int = 0
    max_names: int = 0
    is_parent_new: bool = False
    skips_matching_files: bool = False
    excludes_hard_links: bool = False
    copies_small_files: bool = False
    is_resumed: bool = False
    recognises_own_directories: bool = False
    returns_complete_rows: bool = False
    reports_changes: bool = False
    reports_all: bool = False
    filters: BatchFilters | None = None
    finishes_by_path: bool = False


class PresentDirectoryStatus(NamedTuple):
    """The status of a target directory before this job changed anything in it. It has no extended attribute that could
    differ from the source. The fields are those of ``os.stat_result``.
    """

    st_mode: int
    st_uid: int
    st_gid: int
    st_mtime_ns: int
    st_ctime_ns: int


class CopiedDirectories(NamedTuple):
    """The directories that a batch has entered, and that are not finished, in columns. A directory follows its parent;
    its position is its number.

    Fields:
        rows: number of rows among them; the others are below these.
        packed_paths: their paths, relative to the parent directory of the batch, each followed by a zero byte.
        metadata: metadata of the sources, as columns (``DIRECTORY_METADATA_COLUMNS``).
        sources, targets: inode numbers of the source and of the target directories.
        marks: identity marks of the target directories, each preceded by its length in one byte.
        copied, copied_bytes: number and bytes of the files that were copied into each.
        skipped, skipped_bytes: number and bytes of the items that were skipped in each, and in its finished
            subdirectories.
        excluded: number of those that the filters exclude.
        subdirectories: number of subdirectories of each that are among these directories.
        finished: number of directories below each that are finished: they existed, all in and below them was skipped,
            and they have their metadata. They are not among these directories.
        changed: number of those that had other metadata before.
        remaining: number of items that remain in each.
        flags: bits for each directory: ``IS_SIMPLE``, ``IS_NEW``, ``IS_OWNED_BY_OTHER_USER``, ``IS_UNCHANGED``,
            ``IS_TOUCHED``, ``IS_COMPLETE``, ``HAS_COMPLETE``.
        present: status that each existing target directory had before.
        contents: names (joined by slashes) and status of the items that remain, for each directory that has any, by its
            number.
        not_entered: subdirectories that were not entered, by the number of their parent: name, inode number, and a
            letter that says why (``NOT_REACHED``, ``LEFT_TO_SLOW_PATH``, ``CREATED``).
    """

    rows: int
    packed_paths: bytes
    metadata: ItemStatusColumns
    sources: array[int]
    targets: array[int]
    marks: bytes
    copied: Sequence[int]
    copied_bytes: Sequence[int]
    skipped: Sequence[int]
    skipped_bytes: Sequence[int]
    excluded: Sequence[int]
    subdirectories: Sequence[int]
    finished: Sequence[int]
    changed: Sequence[int]
    remaining: Sequence[int]
    flags: Sequence[int]
    present: dict[int, PresentDirectoryStatus]
    contents: dict[int, tuple[bytes, ItemStatusColumns]]
    not_entered: dict[int, list[tuple[bytes, int, int]]]


NOT_REACHED, LEFT_TO_SLOW_PATH, CREATED = b"dsa"
"""Why a directory was not entered: a limit of the batch was reached, or the directory could not be opened; the batch
cannot process it; or it cannot, but has created its target.
"""

IS_SIMPLE = 1
"""Flag of a directory: a ``FinishDirectoriesBatch`` can set its metadata."""
IS_NEW = 2
"""Flag of a directory: the batch has created it."""
IS_OWNED_BY_OTHER_USER = 4
"""Flag of a directory: its target belongs to another user."""
IS_UNCHANGED = 8
"""Flag of a directory: its target existed, and has the metadata that it should have."""
IS_TOUCHED = 16
"""Flag of a directory: an earlier run of the job may have created it, or items in it."""
IS_COMPLETE = 32
"""Flag of a directory: nothing had to be done in it and below."""
HAS_COMPLETE = 64
"""Flag of a directory: the same is true of subdirectories that are not returned, and that have subdirectories."""


class ReportedFiles(NamedTuple):
    """Files of one directory that a batch has copied or skipped.

    Fields:
        are_copied: True if they were copied, False if they were skipped.
        path: path of the directory, relative to the parent directory of the batch.
        names: their names, joined by slashes.
        sizes: their sizes in bytes, as 64-bit integers.
        nanoseconds: the durations of the copies, as 64-bit integers.
    """

    are_copied: bool
    path: bytes
    names: bytes
    sizes: bytes
    nanoseconds: bytes


class EnterDirectoriesResult(BatchResult):
    """The result of ``EnterDirectoriesBatch``.

    A row with the code ``DONE`` that is not among the ``unfinished`` directories is a finished one: it has its
    metadata, and all items in and below it were skipped. The code ``DECIDE_AGAIN`` means that the target directory was
    created, but the caller has to continue with it. A row with the code ``CANCELLED`` was not begun, because the time
    was over.

    Fields:
        unfinished: the directories that are not finished; None if there are none.
        skipped: number of items that were skipped in and below rows that are finished.
        skipped_bytes: bytes of the files among them, except those that filters exclude.
        excluded: number of those that the filters exclude.
        below: number of directories below these rows.
        changed: number of these rows, and of directories below them, whose metadata is now another than before.
        reported: the files that were copied or skipped, as far as the settings require that.
    """

    unfinished: CopiedDirectories | None
    skipped: int
    skipped_bytes: int
    excluded: int
    below: int
    changed: int
    reported: list[ReportedFiles]


class EnterDirectoriesBatch(NamesInDirectoryBatch[EnterDirectoriesResult]):
    """Open source directories, read the status of everything in them, and open or create their target directories.
    The batch does the same with the directories below.

    Fields:
        directory: descriptor of the parent directory of the sources.
        target: descriptor of the parent directory of the targets.
        names: names of the directories, the same on both sides, joined by slashes.
        inodes: inode numbers that the source directories must have.
        settings: settings of the batch.
        depth: how many levels of subdirectories below the rows may be entered.
        deadline: time (``time.monotonic``) after which no further subdirectory is entered.
    """

    row_kind = "directory"

    target: int
    inodes: array[int]
    settings: DirectoryBatchSettings
    depth: int = 0
    deadline: float = 0.0

    @property
    def directory_descriptors(self) -> tuple[int, ...]:
        return self.directory, self.target


class FinishDirectoriesResult(BatchResult):
    """The result of ``FinishDirectoriesBatch``: the ``OutcomeCode`` of each directory. It is 0 if the caller has to
    finish the directory.
    """

    codes: bytes


class FinishDirectoriesBatch(FileOperationBatch[FinishDirectoriesResult]):
    """Apply the final metadata to target directories after everything in them was copied, where they differ from the
    existing ones.

    A row has some of the directories, which are opened one from the other. Each is finished after those below it. A
    directory whose inode number or identity mark is not the given one was replaced; it is not changed. If the settings
    say ``is_resumed``, a directory is left to the caller, too, unless it has exactly the names that its source has, of
    the same types and sizes, and no extended attributes. If they say ``finishes_by_path``, the directories are only
    known by their paths: sources, inode numbers and marks are not used.

    Fields:
        directory: descriptor of the source directory from which the paths lead.
        target: descriptor of the target directory from which the paths lead.
        sources: inode numbers of the source directories.
        packed_paths: paths of the directories, joined by zero bytes; a directory precedes those below it.
        rows: columns of the wanted metadata, and of the inode numbers of the directories.
        marks: identity mark of each directory, preceded by its length in one byte.
        created_by_job: 1 for each directory that the job has created.
        settings: settings of the batch.
        directories_per_row: number of directories in a row.
    """

    row_kind = "directory"

    directory: int
    target: int
    sources: array[int]
    packed_paths: bytes
    rows: ItemStatusColumns
    marks: bytes
    created_by_job: bytes
    settings: DirectoryBatchSettings
    directories_per_row: int

    @property
    def directory_descriptors(self) -> tuple[int, ...]:
        return self.directory, self.target

    @property
    def names(self) -> bytes:
        """A name for each row, joined by slashes: the first one on the path of its first directory."""
        firsts = self.packed_paths.split(b"\0")[:: self.directories_per_row]
        return b"/".join(path.partition(b"/")[0] for path in firsts)

    def __len__(self) -> int:
        return (len(self.created_by_job) + self.directories_per_row - 1) // self.directories_per_row
