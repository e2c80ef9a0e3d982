"""Batches: one step that a backend carries out for many items of one directory, and the columns of its result.

Each type of batch is a single step, so that the caller can select rows between two steps:

- ``ListNames`` lists the names of a directory, ``StatNames`` reads the status of names.
- ``PlanCopies`` plans the copy of each file (``pcopy.fsio.backend.plan_copies``), ``CompareXattrs`` compares extended
  attributes, ``Copy`` copies small files, and ``Make`` creates files from memory.
- ``Read`` reads files for their digests.
- ``SetMetadata`` and ``SetUniformMetadata`` set owners and modes of existing items; ``RemoveItems`` removes items.

A directory is given as an open descriptor. Each name is looked up in that directory without following symbolic links,
unless the batch says otherwise.

A result has one row for each row of its batch, in the same order.
"""

from __future__ import annotations

from array import array
from enum import IntEnum
from typing import Any, ClassVar, Generic, TypeVar, dataclass_transform

from pcopy.fsio.attributes import MetadataOutcome
from pcopy.fsio.backend.columns import SCAN_COLUMNS, RowMarks, Rows, Verdicts
from pcopy.fsio.layout import DEFAULT_RECIPE, Recipe

Result = TypeVar("Result")

UNCHANGED = 0xFFFFFFFF
"""A mode, owner or group that is not changed: the value -1 of chown(2), as 32 bits."""

NAMES_PER_LIST = 2048
"""Default number of names that one ``ListNames`` returns."""


class CopyPlan(IntEnum):
    """The way in which a row of ``Copy`` is to be copied."""

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
    """Leave the file to the slow path: it is large, ``--inplace`` is used, or an earlier run may have created the
    existing item."""


class TrialOperation(IntEnum):
    """The operation that each row of a ``TrialCalls`` consists of."""

    CREATE = 1
    """Create an empty file that must be new, and close it."""
    STAT = 2
    """Read the status of an item."""
    OPEN = 3
    """Open a file for reading, and close it."""
    RENAME = 4
    """Rename an item within the directory."""
    UNLINK = 5
    """Remove a file."""


SYNC_FLAG = 0x80
"""Flag that is added to a plan: sync the file to stable storage before it gets its final name, or, if it is not
renamed, before it is reported as copied."""


@dataclass_transform()
class LightDataclass:
    """Base of simple data classes, whose fields are the annotated names of the class, as with
    ``dataclasses.dataclass``.

    It exists because importing ``dataclasses`` takes longer than many a copy. The constructor raises ``TypeError`` if a
    field is given twice or does not exist.
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


class Batch(LightDataclass, Generic[Result]):
    """Rows that are submitted to a backend together. ``Result`` is the type of their result."""

    @property
    def descriptors(self) -> tuple[int, ...]:
        """The descriptors of directories that must stay open while the batch is in progress."""
        raise NotImplementedError


class NamesBatch(Batch[Result]):
    """A batch with one row for each of the ``names`` in one open ``directory``. The names are packed: joined by
    slashes."""

    directory: int
    names: bytes

    @property
    def descriptors(self) -> tuple[int, ...]:
        return (self.directory,)

    def __len__(self) -> int:
        return self.names.count(b"/") + 1 if self.names else 0


# The results of batches.


class BatchResult(LightDataclass):
    """The result of a batch: a verdict for each row."""

    verdicts: Verdicts


class ListResult(BatchResult):
    """The result of ``ListNames``: the next names of a directory.

    ``verdicts`` has one row, for the directory. If reading the directory fails, the names that were read before are
    included.

    Fields:
        names: the names, packed.
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
    next_batch: ListNames | None = None
    """The batch that continues the listing, or None if these were the last names."""


class StatResult(BatchResult):
    """The result of ``StatNames``: the status of each name, in ``rows``.

    A name that does not exist has the code ``FAILED`` or ``SOURCE_FAILED`` and the errno ENOENT.
    """

    rows: Rows


class RemoveResult(BatchResult):
    """The result of ``RemoveItems``.

    If the batch has inode numbers, ``observed`` has the sizes (column ``SIZE``) of the regular files, and 0 for other
    items. Otherwise all sizes are 0.
    """

    observed: Rows


class UniformMetadataResult(BatchResult):
    """The result of ``SetUniformMetadata``.

    ``observed`` has the modes before the change and the sizes of regular files (``MODE | SIZE``).
    """

    observed: Rows


class ReadResult(BatchResult):
    """The result of ``Read``: the ``FileVersion`` of each file that was read, in ``observed``, and its digest."""

    observed: Rows
    digests: Digests


class CopyResult(BatchResult):
    """The result of ``Copy``.

    Fields:
        verdicts: ``verdicts.bytes`` has the number of bytes copied, which for a file in /proc may exceed its size.
        digests: the digest of each copied file, if the settings have a digest function.
        created_inodes: inode numbers of the files that were created under temporary names, and of all new files if the
            batch is ``reports_identities``.
        marks: identity marks of those files, unless they were renamed to replace another item.
        metadata_outcomes: by row, metadata that could not be set without this being an error, or that deserves a
            notice.
    """

    digests: Digests
    created_inodes: array[int]
    marks: RowMarks
    metadata_outcomes: dict[int, MetadataOutcome]


class CreateResult(BatchResult):
    """The result of ``Make``. ``metadata_outcomes`` has the same meaning as in ``Copied``."""

    metadata_outcomes: dict[int, MetadataOutcome]


class Digests(LightDataclass):
    """Digests of ``size`` bytes each, one for each row, in ``data``. Rows that were not read have zeros."""

    size: int
    data: bytearray

    @classmethod
    def zeros(cls, rows: int, size: int) -> Digests:
        """Return digests of zeros."""
        return cls(size, bytearray(rows * size))

    def __getitem__(self, row: int) -> bytes:
        return bytes(self.data[row * self.size : (row + 1) * self.size])

    def __setitem__(self, row: int, digest: bytes) -> None:
        self.data[row * self.size : (row + 1) * self.size] = digest


# The batches.


class ListNames(Batch[ListResult]):
    """List the next names of an open directory, in the order of the directory.

    Fields:
        directory: descriptor of the directory.
        max_names: the largest number of names to return.
        is_detailed: True if types and inode numbers are to be returned, too, as the directory lists them.
        on_source: True if errors concern the source side.
        listing_state: the state of a listing in progress, which only the backend interprets; None to begin at the first
            name.
    """

    directory: int
    max_names: int = NAMES_PER_LIST
    is_detailed: bool = False
    on_source: bool = True
    listing_state: Any = None

    @property
    def descriptors(self) -> tuple[int, ...]:
        return (self.directory,)


class StatNames(NamesBatch[StatResult]):
    """Read the status of each name.

    Fields:
        mask: the columns to return.
        on_source: True if the directory is on the source side: then transient errors are retried.
        follows_links: True if symbolic links are followed.
    """

    mask: int = SCAN_COLUMNS
    on_source: bool = True
    follows_links: bool = False


class CopySmallFiles(NamesBatch[CopyResult]):
    """Copy small regular files of ``directory`` to ``target``, each by its plan.

    The code of a row is ``CHANGED`` if the source is no longer the same item (inode and device). It is ``ANEW`` if the
    item has another version than in ``rows``, or if the name of a plan ``NEW`` is taken in the target. In these cases
    nothing is written.

    Fields:
        target: descriptor of the target directory.
        plans: a ``Plan`` for each row, perhaps with the flag ``SYNC``.
        rows: the columns from which the plans were made (``VERSION`` and ``DEVICE``).
        new_names: the packed names in the target if they differ from ``names``, otherwise empty.
        temporary_names: packed free names in the target, one for each row; a name is empty if its plan does not need
            it.
        inherits_acl: True if files created in ``target`` inherit an ACL that must be removed.
        recipe: how new files are created; files with another recipe belong to another batch.
        reports_identities: True if ``made`` and ``marks`` are needed for files of the plan ``NEW``, too.
    """

    target: int
    plans: bytes | bytearray
    rows: Rows
    new_names: bytes = b""
    temporary_names: bytes = b""
    inherits_acl: bool = False
    recipe: Recipe = DEFAULT_RECIPE
    reports_identities: bool = False

    @property
    def descriptors(self) -> tuple[int, ...]:
        return self.directory, self.target


class ReadSmallFiles(NamesBatch[ReadResult]):
    """Read small regular files to compute their digests.

    Files that are large, not regular or not readable without complications get the code ``SLOW_PATH``, and so do files
    that change while they are read, unless ``are_copies`` is set.

    Fields:
        are_copies: True if the files are copies in the target: their pages are dropped from the page cache first, so
            that they are read from storage.
        excludes_half_written: True if files that are marked as half written (``pcopy.fsio.incomplete_mark``) get
            ``SLOW_PATH``, too.
    """

    are_copies: bool = False
    excludes_half_written: bool = False


class SyncDirectories(Batch[BatchResult]):
    """Sync open directories, so that their names reach stable storage. This batch cannot be cancelled."""

    directories: tuple[int, ...]

    @property
    def descriptors(self) -> tuple[int, ...]:
        return self.directories


class RemoveItems(NamesBatch[RemoveResult]):
    """Remove items that are not directories, and empty directories.

    An item that is not the one of ``rows`` is not removed and gets the code ``ANEW``. An item that is missing already
    gets ``FAILED`` with ENOENT.

    Fields:
        rows: columns of the items. Without ``INODE``, items are removed without a check. ``MODE`` says which are
            directories; without it none is.
        removal_counters: memory of two 64-bit counters, or None. The C code adds 1 to the first and Python adds 1 to
            the second after each removal.
    """

    rows: Rows
    removal_counters: memoryview | None = None


class SetMetadata(NamesBatch[BatchResult]):
    """Set owner, group and mode of items, in this order. Symbolic links are not followed.

    An item is not changed and gets the code ``ANEW`` if it is not the item of ``rows``, or if its mode, owner or group
    has changed since.

    Fields:
        rows: the columns from which the change was decided: ``MODE``, and where known ``OWNER``, ``GROUP``, ``INODE``
            and ``DEVICE``.
        wanted: the new values (``MODE | OWNER | GROUP``); ``KEEP`` for those that are not to be changed.
        acls: None, or the access ACL for all items and the default ACL for directories, as values of extended
            attributes. An empty default ACL removes the existing one.
    """

    rows: Rows
    wanted: Rows
    acls: tuple[bytes, bytes] | None = None


class SetUniformMetadata(NamesBatch[UniformMetadataResult]):
    """Set the same owner and group for all items, and change their permission bits by one table. Directories are
    excluded.

    The code is ``SKIPPED`` if an item has these values already, and ``ANEW`` for a directory or for an item that is not
    the one of ``rows`` (``INODE``).

    Fields:
        rows: the columns that identify the items.
        modes: array of type "H" with the new permission bits for each of the 4096 possible ones.
        uid: the new owner, or ``KEEP``.
        gid: the new group, or ``KEEP``.
    """

    rows: Rows
    modes: array[int]
    uid: int = UNCHANGED
    gid: int = UNCHANGED


class CreateSmallFiles(NamesBatch[CreateResult]):
    """Create small regular files from contents and metadata in memory.

    A row whose name is taken gets the code ``ANEW``.

    Fields:
        rows: the metadata (``MADE``); atime and mtime are both set to the column of mtimes.
        contents: the contents of all files.
        offsets: where in ``contents`` each file begins.
        inherits_acl: True if files created in the directory inherit an ACL that must be removed.
    """

    rows: Rows
    contents: bytes | memoryview
    offsets: array[int]
    inherits_acl: bool = False


class CompareXattrs(NamesBatch[BatchResult]):
    """Compare the extended attributes and ACLs of items in ``directory`` with those of items in ``target``.

    Only attributes that are copied are compared. Items with equal attributes get the code ``DONE``. Other items get
    ``SLOW_PATH``, and so do those that cannot be compared here. ``new_names`` has the same meaning as in ``Copy``.
    """

    target: int
    new_names: bytes = b""

    @property
    def descriptors(self) -> tuple[int, ...]:
        return self.directory, self.target


class TrialCalls(NamesBatch[BatchResult]):
    """Carry out one bare system call for each name, to measure a file system.

    ``operation`` is the operation; ``RENAME`` renames each item to its name in ``new_names``.
    """

    operation: TrialOperation
    new_names: bytes = b""
