"""Batches: one operation that a backend carries out on many items of one directory, and its result.

A batch has a row for each item. Its input and its result are columns, arrays with one value per row
(``pcopy.fsio.backend.columns``). The outcome of a row is its *verdict*: an ``OutcomeCode``, and an error if there was
one. Each type of batch is a single step, so that the caller can select rows between two steps:

- ``ListNamesBatch`` lists the names of a directory, ``StatNamesBatch`` reads the status of names.
- ``PlanCopiesBatch`` decides how each file is to be copied (``pcopy.fsio.backend.plan_copies``), ``CompareXattrsBatch``
  compares extended attributes, ``CopySmallFilesBatch`` copies files, and ``CreateSmallFilesBatch`` creates files from
  memory.
- ``ReadSmallFilesBatch`` reads files for their digests.
- ``FindItemsWithoutXattrsBatch`` finds files that are archived without a look at each.
- ``SetMetadataBatch`` and ``SetUniformMetadataBatch`` set owners and modes of existing items; ``RemoveItemsBatch``
  removes items.

A directory is given as an open descriptor. Each name is looked up in that directory without following symbolic links,
unless the batch says otherwise.

A result has one row for each row of its batch, in the same order. Rows that a backend does not handle get the code
``SLOW_PATH``: the calling task processes these items one by one.
"""

from __future__ import annotations

from array import array
from enum import IntEnum
from struct import Struct
from typing import Any, ClassVar, Generic, TypeVar, dataclass_transform

from pcopy.fast_named_tuple import NamedTuple
from pcopy.fsio.attributes import MetadataOutcome
from pcopy.fsio.backend.columns import SCAN_COLUMNS, BatchOutcomeColumns, IdentityMarksByRow, ItemStatusColumns
from pcopy.fsio.layout import DEFAULT_LAYOUT_RECIPE, LayoutRecipe

Result = TypeVar("Result")

ALL_LEVELS = 2**32 - 1
"""Number of levels below the rows of a batch that may be entered: any number."""
MAX_NAMES_IN_ROW = 1023
"""Largest number of names of a directory that a row of the C backend can process with those below it."""

MEMBER_ROW_FORMAT = Struct("=3Q2q4I")
"""Format of a member of a ``ReadTarMembersBatch``, that is, of one file or directory: inode, size, st_dev, mtime,
ctime, mode, user, group, bytes of the member in the archive.
"""

UNCHANGED_VALUE = 0xFFFFFFFF
"""Value for a mode, owner or group that is not to be changed: the -1 of chown(2) as 32 bits."""

NAMES_PER_LISTING_BATCH = 2048
"""Default for the largest number of names that one ``ListNamesBatch`` returns."""


class CopyPlan(IntEnum):
    """How a file of a ``CopySmallFilesBatch`` is to be copied, as ``PlanCopiesBatch`` has decided."""

    NEW = 1
    """Create the file under its own name, which must be free."""
    REPLACE = 2
    """Create the file under a temporary name, then rename it to its own name, replacing the existing item."""
    TEMPORARY = 3
    """Create the file under a temporary name; a later task gives it its own name."""
    SKIP = 4
    """Leave the existing item in the target unchanged."""
    REFUSE = 5
    """Fail because the name is taken (``--existing fail``)."""
    SLOW_PATH = 6
    """Do not copy the file in a batch: the task copies it alone. It is large, ``--inplace`` is used, or an earlier run
    may have created the existing item.
    """


class BenchmarkOperation(IntEnum):
    """The system call that is measured by pdbench, the benchmark of file systems. A ``BenchmarkCallsBatch`` makes
    this call for each of many names.
    """

    CREATE = 1
    """Create an empty file (O_EXCL), and close it."""
    STAT = 2
    """Read the status of an item."""
    OPEN = 3
    """Open a file for reading, and close it."""
    RENAME = 4
    """Rename an item within the directory."""
    UNLINK = 5
    """Remove a file."""


SYNC_FILE_FLAG = 0x80
"""Flag that is added to a ``CopyPlan``: sync the file to stable storage before it gets its final name, or, if it is not
renamed, before it is reported as copied.
"""


@dataclass_transform()
class LightDataclass:
    """Base of simple data classes, whose fields are the annotated names of the class, as with
    ``dataclasses.dataclass``.

    It exists because importing ``dataclasses`` takes longer than the copy of a few files. The constructor raises
    ``TypeError`` if a field is given twice or does not exist.
    """

    _field_names: ClassVar[tuple[str, ...]] = ()

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        cls._field_names = (*cls._field_names, *cls.__annotations__)

    def __init__(self, *values: Any, **named: Any) -> None:
        names, fields = self._field_names, self.__dict__
        if len(values) > len(names) or (named and not named.keys() <= {*names[len(values) :]}):
            raise TypeError(f"{type(self).__name__} has these fields, each once: {', '.join(names)}")
        fields.update(zip(names, values, strict=False))
        fields.update(named)


class FileOperationBatch(LightDataclass, Generic[Result]):
    """An operation on many items, which are submitted to a backend together. ``Result`` is the type of its result."""

    row_kind = "item"
    """What a row of the batch is: an ``item``, a ``directory`` with the items in it, a ``subtree``, or ``members of
    subtrees`` (``pcopy.fsio.backend.member_batches``).
    """

    @property
    def directory_descriptors(self) -> tuple[int, ...]:
        """The descriptors of directories that the batch uses. They must stay open while it is in progress."""
        raise NotImplementedError


class BatchFilters(NamedTuple):
    """Filters of the user, for a batch that walks subtrees: the items that they exclude are counted and left out.

    Fields:
        rules: the patterns (``pcopy.walk.patterns.pattern_rules``).
        above: path of the parent directory of the rows, as patterns see it, with a slash at its end; or empty.
        after, before: only items with an mtime between these times (nanoseconds since 1970) are selected.
        larger, smaller: only files with a size in bytes between these are selected.
    """

    rules: bytes
    above: bytes = b""
    after: int = -(2**63)
    before: int = 2**63 - 1
    larger: int = -1
    smaller: int = 2**63 - 1


class NamesInDirectoryBatch(FileOperationBatch[Result]):
    """A batch with one row (item) for each of the ``names`` in the open ``directory``. The names are packed into one
    string, joined by slashes.
    """

    directory: int
    names: bytes

    @property
    def directory_descriptors(self) -> tuple[int, ...]:
        return (self.directory,)

    def __len__(self) -> int:
        return self.names.count(b"/") + 1 if self.names else 0


# The results of batches.


class BatchResult(LightDataclass):
    """The result of a batch: a verdict (code, error, bytes, duration) for each row, that is, for each item."""

    verdicts: BatchOutcomeColumns


class ListNamesResult(BatchResult):
    """The result of ``ListNamesBatch``: the next names of a directory.

    ``verdicts`` has a single row, the outcome of listing the directory. If reading the directory fails, the names that
    were read before are included.

    Fields:
        names: the names, joined by slashes.
        name_count: how many names there are.
        kinds: the type of each item as a letter of ``find -type``, or ``?`` if the directory does not list types; empty
            unless the batch is ``is_detailed``.
        inodes: the inode numbers that the directory lists; empty unless the batch is ``is_detailed``.
        next_batch: a batch that lists the names after these, or None at the end of the directory.
    """

    names: bytes = b""
    name_count: int = 0
    kinds: bytes = b""
    inodes: array[int] = array("Q")
    next_batch: ListNamesBatch | None = None
    """The batch that continues the listing after these names, or None if they were the last names."""


class StatNamesResult(BatchResult):
    """The result of ``StatNamesBatch``: the status of each name; ``rows`` has it as columns.

    A name that does not exist has the errno ENOENT and the code ``FAILED``, or ``SOURCE_FAILED`` on the source side.
    """

    rows: ItemStatusColumns


class RemoveItemsResult(BatchResult):
    """The result of ``RemoveItemsBatch``. The field ``observed`` has the size in bytes of each regular file that was
    removed, and 0 for other items.

    If the batch has no inode numbers, the status of the items is not read, and all sizes are 0.
    """

    observed: ItemStatusColumns


class SetUniformMetadataResult(BatchResult):
    """The result of ``SetUniformMetadataBatch``. The field ``observed`` has the st_mode of each item before the change,
    and the size in bytes of regular files (0 for other items).
    """

    observed: ItemStatusColumns


class ReadSmallFilesResult(BatchResult):
    """The result of ``ReadSmallFilesBatch``: the digest of each file that was read; the field ``observed`` has its
    inode number, size, mtime and ctime.
    """

    observed: ItemStatusColumns
    digests: Digests


class CopySmallFilesResult(BatchResult):
    """The result of ``CopySmallFilesBatch``.

    Fields:
        verdicts: ``verdicts.bytes`` has the number of bytes copied, which for a file in /proc may exceed its size.
        digests: the digest of each copied file, if the backend's settings have a digest function.
        created_inodes: inode numbers of the files that were created under temporary names, and of all new files if the
            batch is ``reports_identities``.
        marks: identity marks of these files (bytes that distinguish a file from a later one with the same inode
            number), unless they were renamed to replace another item.
        metadata_outcomes: by row (item), which metadata were not set although that is no error, and notices for the
            user. Most rows have no entry.
    """

    digests: Digests
    created_inodes: array[int]
    marks: IdentityMarksByRow
    metadata_outcomes: dict[int, MetadataOutcome]


class CreateSmallFilesResult(BatchResult):
    """The result of ``CreateSmallFilesBatch``. ``metadata_outcomes``: by row (file), which metadata were not set
    although that is no error, and notices for the user.
    """

    metadata_outcomes: dict[int, MetadataOutcome]


class Digests(LightDataclass):
    """Digests of ``size`` bytes each, one for each row (item) of a batch, joined in ``data``. A row without a digest
    has zeros.
    """

    size: int
    data: bytearray

    @classmethod
    def all_zero_digests(cls, rows: int, size: int) -> Digests:
        """Return an object for ``rows`` digests of ``size`` bytes, all of them zeros."""
        return cls(size, bytearray(rows * size))

    def __getitem__(self, row: int) -> bytes:
        return bytes(self.data[row * self.size : (row + 1) * self.size])

    def __setitem__(self, row: int, digest: bytes) -> None:
        self.data[row * self.size : (row + 1) * self.size] = digest


# The batches.


class ListNamesBatch(FileOperationBatch[ListNamesResult]):
    """List the next names of an open directory, in the order of the directory.

    Fields:
        directory: descriptor of the directory.
        max_names: the largest number of names to return; the result's ``next_batch`` continues the listing.
        is_detailed: True if types and inode numbers are to be returned, too, as the directory lists them.
        on_source: True if errors concern the source side.
        listing_state: the state of a listing in progress, which only the backend interprets; None to begin at the first
            name.
    """

    directory: int
    max_names: int = NAMES_PER_LISTING_BATCH
    is_detailed: bool = False
    on_source: bool = True
    listing_state: Any = None

    @property
    def directory_descriptors(self) -> tuple[int, ...]:
        return (self.directory,)


class StatNamesBatch(NamesInDirectoryBatch[StatNamesResult]):
    """Read the status of each name.

    Fields:
        mask: bits that say which columns (fields of the status) to return.
        on_source: True if the directory is on the source side: then transient errors are retried.
        follows_links: True if symbolic links are followed.
    """

    mask: int = SCAN_COLUMNS
    on_source: bool = True
    follows_links: bool = False


class CopySmallFilesBatch(NamesInDirectoryBatch[CopySmallFilesResult]):
    """Copy small regular files of ``directory`` to the directory ``target``, each as its plan says.

    The code of a row is ``SOURCE_CHANGED`` if another item (inode and device) has taken the name of the source. It is
    ``DECIDE_AGAIN`` if size, mtime or ctime of the source differ from those in ``rows``, or if the plan is ``NEW`` and
    the name exists in the target. In these cases nothing is written.

    Fields:
        target: descriptor of the target directory.
        plans: a ``CopyPlan`` for each row, perhaps with ``SYNC_FILE_FLAG``.
        rows: status of the sources when the plans were made (``VERSION_COLUMNS`` and ``DEVICE_COLUMN``).
        new_names: the names in the target, joined by slashes, if they differ from ``names``; otherwise empty.
        temporary_names: free names in the target, one for each row, joined by slashes; a name is empty if the plan does
            not need it. Empty if no plan does.
        inherits_acl: True if files created in ``target`` inherit an ACL that must be removed.
        recipe: how new files are created so that they get their Lustre layout; all files of a batch have the same.
        reports_identities: True if the result needs inode numbers and marks of files of the plan ``NEW``, too.
    """

    target: int
    plans: bytes | bytearray
    rows: ItemStatusColumns
    new_names: bytes = b""
    temporary_names: bytes = b""
    inherits_acl: bool = False
    recipe: LayoutRecipe = DEFAULT_LAYOUT_RECIPE
    reports_identities: bool = False

    @property
    def directory_descriptors(self) -> tuple[int, ...]:
        return self.directory, self.target


class ReadSmallFilesBatch(NamesInDirectoryBatch[ReadSmallFilesResult]):
    """Read small regular files to compute their digests.

    A row gets the code ``SLOW_PATH`` if its file is large, is not regular or cannot be read. So does a file that
    changes while it is read, unless ``are_copies`` is True.

    Fields:
        are_copies: True if the files are copies in the target: their pages are dropped from the page cache first, so
            that they are read from storage.
        excludes_half_written: True if files that are marked as half written by ``--inplace`` get ``SLOW_PATH``, too.
    """

    are_copies: bool = False
    excludes_half_written: bool = False


class SyncDirectoriesBatch(FileOperationBatch[BatchResult]):
    """Sync open directories by fsync(2), so that the names in them reach stable storage. This batch cannot be
    cancelled.
    """

    row_kind = "directory"

    directories: tuple[int, ...]

    @property
    def directory_descriptors(self) -> tuple[int, ...]:
        return self.directories


class RemoveItemsBatch(NamesInDirectoryBatch[RemoveItemsResult]):
    """Remove items that are not directories, and empty directories.

    An item that is not the one in ``rows`` (inode, device, type) is not removed and gets the code ``DECIDE_AGAIN``. An
    item that does not exist gets ``FAILED`` with ENOENT.

    Fields:
        rows: columns with the properties that the items must have. Without ``INODE_COLUMN``, items are removed without
            a check. ``MODE_COLUMN`` says which are directories; without it none is.
        removal_counters: memory of two 64-bit counters, or None. The C code adds 1 to the first and Python adds 1 to
            the second after each removal.
    """

    rows: ItemStatusColumns
    removal_counters: memoryview | None = None


class SetMetadataBatch(NamesInDirectoryBatch[BatchResult]):
    """Set owner, group and mode of items, in this order. Symbolic links are not followed.

    An item is not changed and gets the code ``DECIDE_AGAIN`` if it is not the item in ``rows`` (inode, device, type),
    or if its mode, owner or group differ from those in ``rows``.

    Fields:
        rows: the status of the items, as columns, from which the caller has decided the change: ``MODE_COLUMN``, and
            where known ``OWNER_COLUMN``, ``GROUP_COLUMN``, ``INODE_COLUMN`` and ``DEVICE_COLUMN``.
        wanted: columns with the new modes, owners and groups; ``UNCHANGED_VALUE`` for values that are not to be
            changed.
        acls: None, or the access ACL for all items and the default ACL for directories, as values of extended
            attributes. An empty default ACL removes the existing one.
    """

    rows: ItemStatusColumns
    wanted: ItemStatusColumns
    acls: tuple[bytes, bytes] | None = None


class SetUniformMetadataBatch(NamesInDirectoryBatch[SetUniformMetadataResult]):
    """Set the same owner and group for all items, and change their permission bits by one table from old to new bits.
    Directories are excluded.

    A row gets the code ``SKIPPED`` if its item has the new values already, and ``DECIDE_AGAIN`` if its item is a
    directory or has another inode number than in ``rows``.

    Fields:
        rows: the columns that identify the items (inode numbers).
        modes: array of type "H" with the new permission bits for each of the 4096 possible ones.
        uid: the new owner, or ``UNCHANGED_VALUE``.
        gid: the new group, or ``UNCHANGED_VALUE``.
    """

    rows: ItemStatusColumns
    modes: array[int]
    uid: int = UNCHANGED_VALUE
    gid: int = UNCHANGED_VALUE


class CreateSmallFilesBatch(NamesInDirectoryBatch[CreateSmallFilesResult]):
    """Create small regular files from contents and metadata in memory.

    If the name of a file exists already, nothing is created, and its row gets the code ``DECIDE_AGAIN``.

    Fields:
        rows: columns with mode, owner, group, mtime and size (``CREATION_COLUMNS``). The atime is set to the mtime,
            too.
        contents: the contents of all files, in one memory area.
        offsets: the offset in ``contents`` at which each file begins.
        inherits_acl: True if files created in the directory inherit an ACL that must be removed.
    """

    rows: ItemStatusColumns
    contents: bytes | memoryview
    offsets: array[int]
    inherits_acl: bool = False


class CompareXattrsBatch(NamesInDirectoryBatch[BatchResult]):
    """Compare the extended attributes and ACLs of items in ``directory`` with those of items in ``target``.

    Only attributes that a copy gets are compared. Items with equal attributes get the code ``DONE``. Items whose
    attributes differ, or cannot be compared in a batch, get ``SLOW_PATH``.

    Fields:
        target: descriptor of the directory that contains the other items.
        new_names: the names in ``target``, joined by slashes, if they differ from ``names``; otherwise empty.
    """

    target: int
    new_names: bytes = b""

    @property
    def directory_descriptors(self) -> tuple[int, ...]:
        return self.directory, self.target


class BenchmarkCallsBatch(NamesInDirectoryBatch[BatchResult]):
    """Make one system call for each name (for a file to create or open: open and close), so that pdbench can measure a
    file system.

    Fields:
        operation: the system call.
        new_names: for ``RENAME``, the new names, joined by slashes; otherwise empty.
    """

    operation: BenchmarkOperation
    new_names: bytes = b""


class ItemCounts(NamedTuple):
    """Counts of items that were processed completely, by type.

    ``bytes`` is the size of the files. If two trees are compared, a pair of items counts once, and ``bytes`` is the
    number of bytes read from both. ``changed`` is the number of items whose metadata were changed. ``excluded`` is the
    number of items that filters exclude, which are in no other count.
    """

    files: int = 0
    directories: int = 0
    links: int = 0
    other_items: int = 0
    bytes: int = 0
    changed: int = 0
    excluded: int = 0


class FindItemsWithoutXattrsBatch(NamesInDirectoryBatch[BatchResult]):
    """Find the items that have no extended attribute and no ACL that a copy would get.

    These items get the code ``DONE``. Others, and items whose attributes cannot be listed, get ``SLOW_PATH``.
    """
