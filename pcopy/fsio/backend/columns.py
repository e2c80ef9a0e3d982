"""Packed columns: the input and output of a backend, without a Python object for each file.

A column holds one value for each row of a batch and has the memory layout of a C array: ``bytes`` or ``bytearray`` for
one byte per row, ``array`` for numbers in native byte order. Names are packed into one string, joined by slashes, which
cannot occur in names. The C backend reads and writes this memory directly. Data that few rows have, such as texts of
errors, are in dictionaries by row.

Times are nanoseconds since 1970 in signed 64 bits, which cover the years 1677 to 2262. A later time is stored as
``LATEST_TIME`` and an earlier one as ``EARLIEST_TIME``; the C backend leaves files with such times to Python.
``ItemStatusColumns.out_of_range_times`` has the exact times of these rows. To compare, store or show a time, do not use
the column but the methods ``exact_time_of_row``, ``exact_times_in_column``, ``content_version_of_row`` or ``status`` of
``ItemStatusColumns``, which return exact times.
"""

from __future__ import annotations

import os
import stat
from array import array
from collections.abc import Iterable, Mapping, Sequence
from enum import IntEnum
from operator import attrgetter
from struct import Struct
from types import MappingProxyType

from pcopy.fast_named_tuple import NamedTuple
from pcopy.fsio.problem import MetadataProblem, Problem
from pcopy.fsio.source import FileContentVersion

MODE_COLUMN = 0x3
LINKS_COLUMN = 0x4
OWNER_COLUMN = 0x8
GROUP_COLUMN = 0x10
ATIME_COLUMN = 0x20
MTIME_COLUMN = 0x40
CTIME_COLUMN = 0x80
INODE_COLUMN = 0x100
SIZE_COLUMN = 0x200
BLOCKS_COLUMN = 0x400
DEVICE_COLUMN = 1 << 20
"""Bits of a column mask, an integer that says which columns exist.

They are the bits of statx(2), except ``DEVICE_COLUMN``: statx(2) returns the device always and has no bit for it.
"""

VERSION_COLUMNS = INODE_COLUMN | SIZE_COLUMN | MTIME_COLUMN | CTIME_COLUMN
"""Columns of the values that must not change while a file is copied: inode, size, mtime and ctime."""

SCAN_COLUMNS = VERSION_COLUMNS | MODE_COLUMN | DEVICE_COLUMN
"""Columns that a scan reads for each item that it finds."""

CREATION_COLUMNS = MODE_COLUMN | OWNER_COLUMN | GROUP_COLUMN | MTIME_COLUMN | SIZE_COLUMN
"""Columns that the batch ``CreateSmallFilesBatch`` needs, which creates files from contents in memory."""

REQUIRED_TALLY_COLUMNS = MODE_COLUMN | LINKS_COLUMN | SIZE_COLUMN | BLOCKS_COLUMN | ATIME_COLUMN | MTIME_COLUMN
"""Columns that are needed to compute sums over the status of items (``ColumnSums``)."""

ALL_COLUMNS = (
    ("mode", "I", MODE_COLUMN, "st_mode"),
    ("links", "I", LINKS_COLUMN, "st_nlink"),
    ("uid", "I", OWNER_COLUMN, "st_uid"),
    ("gid", "I", GROUP_COLUMN, "st_gid"),
    ("atime", "q", ATIME_COLUMN, "st_atime_ns"),
    ("mtime", "q", MTIME_COLUMN, "st_mtime_ns"),
    ("ctime", "q", CTIME_COLUMN, "st_ctime_ns"),
    ("inode", "Q", INODE_COLUMN, "st_ino"),
    ("size", "Q", SIZE_COLUMN, "st_size"),
    ("device", "Q", DEVICE_COLUMN, "st_dev"),
    ("blocks", "Q", BLOCKS_COLUMN, "st_blocks"),
)
"""All columns in the order in which they are packed. Each has a name, a type code of ``array``, a bit of the mask, and
the name of its field in ``os.stat_result``.
"""

EARLIEST_TIME, LATEST_TIME = -(2**63), 2**63 - 1
"""The smallest and largest time in a column, in nanoseconds since 1970. Each may also stand for a time outside the
range.
"""

_OUT_OF_RANGE_TIME_FORMAT = Struct("=BQqI")
"""Format of a time that a column cannot hold: index in ``ALL_COLUMNS``, row, seconds, nanoseconds. Such times are
packed after the columns.
"""
_SECOND_NS = 10**9
"""Nanoseconds in one second."""
TIME_COLUMNS = frozenset(name for name, typecode, *_ in ALL_COLUMNS if typecode == "q")
"""Names of the columns that hold times."""
_COLUMN_INDEX = {name: number for number, (name, *_) in enumerate(ALL_COLUMNS)}


class ItemStatusRow(NamedTuple):
    """The status in one row of columns, that is, of one item, with the field names of ``os.stat_result``. Fields
    without a column are 0.

    ``st_rdev`` is always 0: the callers decide about regular files only, which have no device number.
    """

    st_mode: int
    st_size: int
    st_rdev: int
    st_mtime_ns: int
    st_ctime_ns: int
    st_uid: int = 0
    st_gid: int = 0


UNKNOWN_STATUS = os.stat_result((0,) * os.stat_result.n_fields)
"""A status of zeros, for items whose status could not be read."""


TYPE_LETTERS = {
    stat.S_IFREG: ord("f"),
    stat.S_IFDIR: ord("d"),
    stat.S_IFLNK: ord("l"),
    stat.S_IFIFO: ord("p"),
    stat.S_IFSOCK: ord("s"),
    stat.S_IFCHR: ord("c"),
    stat.S_IFBLK: ord("b"),
}
"""Letters of item types, as in ``find -type``, by the type bits of the mode."""


def column_of_zeros(typecode: str, rows: int) -> array[int]:
    """Return a column with this number of ``rows``, all zeros: an array with the type code ``typecode``."""
    return array(typecode, [0]) * rows


def pack_names(names: Iterable[bytes]) -> bytes:
    """Return the names as one string, joined by slashes."""
    return b"/".join(names)


def unpack_names(packed: bytes, rows: int = 1) -> list[bytes]:
    """Return the names in ``packed``, one string in which they are joined by slashes.

    ``rows`` is the number of names. It is needed only if it may be 0, because no names and one empty name are packed
    alike.
    """
    return packed.split(b"/") if rows else []


def _status_column(typecode: str, field: str, statuses: Sequence[os.stat_result]) -> array[int]:
    values = list(map(attrgetter(field), statuses))
    try:
        return array(typecode, values)
    except OverflowError:
        return array(typecode, [min(max(value, EARLIEST_TIME), LATEST_TIME) for value in values])


class ItemStatusColumns:
    """The status of many items as columns: one array per field of the status, with one value for each item (row). A
    column that is not in ``mask`` is an empty array.
    """

    mode: array[int] = array("I")
    links: array[int] = array("I")
    uid: array[int] = array("I")
    gid: array[int] = array("I")
    atime: array[int] = array("q")
    mtime: array[int] = array("q")
    ctime: array[int] = array("q")
    inode: array[int] = array("Q")
    size: array[int] = array("Q")
    device: array[int] = array("Q")
    blocks: array[int] = array("Q")
    out_of_range_times: Mapping[tuple[str, int], int] = MappingProxyType({})
    """Exact times outside the 64-bit range, by column name and row."""

    def __init__(self, number: int, mask: int) -> None:
        """Create the columns of ``mask`` for ``number`` rows (items); all values are 0."""
        self.row_count = number
        self.mask = mask
        for name, typecode, bit, _ in ALL_COLUMNS:
            if mask & bit:
                setattr(self, name, column_of_zeros(typecode, number))

    def __len__(self) -> int:
        return self.row_count

    @classmethod
    def with_unset_columns(cls, number: int, mask: int) -> ItemStatusColumns:
        """Return an object for ``number`` rows in which no column exists yet: the caller must set every column of
        ``mask``.
        """
        rows = cls.__new__(cls)
        rows.row_count, rows.mask = number, mask
        return rows

    @classmethod
    def from_statuses(cls, statuses: Sequence[os.stat_result], mask: int) -> ItemStatusColumns:
        """Return rows with the columns of ``mask``, filled from ``statuses``: the status of each item, as stat(2)
        returned it.
        """
        rows = cls(len(statuses), mask)
        rows.set_statuses(0, statuses)
        return rows

    def set_statuses(self, start: int, statuses: Sequence[os.stat_result]) -> None:
        """Store ``statuses``, the status of consecutive items, in the rows from ``start`` on."""
        end = start + len(statuses)
        for name, typecode, bit, field in ALL_COLUMNS:
            if self.mask & bit:
                column = _status_column(typecode, field, statuses)
                getattr(self, name)[start:end] = column
                if typecode == "q" and (LATEST_TIME in column or EARLIEST_TIME in column):
                    self.record_out_of_range_times(name, map(attrgetter(field), statuses), start)

    def record_out_of_range_times(self, name: str, times: Iterable[int], start: int = 0) -> None:
        """Store in ``out_of_range_times`` those of ``times`` that the column cannot hold, because they are outside the
        64-bit range.

        Args:
            name: name of the column.
            times: exact times of consecutive rows, in nanoseconds since 1970.
            start: the first of these rows.
        """
        found = {(name, row): time for row, time in enumerate(times, start) if not EARLIEST_TIME <= time <= LATEST_TIME}
        if found:
            self.out_of_range_times = {**self.out_of_range_times, **found}

    def exact_time_of_row(self, name: str, row: int) -> int:
        """Return the exact time of one row in the column ``name``, in nanoseconds since 1970, even if the column cannot
        hold it.
        """
        time: int = getattr(self, name)[row]
        return self.out_of_range_times.get((name, row), time) if self.out_of_range_times else time

    def exact_times_in_column(self, name: str) -> Sequence[int]:
        """Return the exact times of all rows in the column ``name``, in nanoseconds since 1970, even if the column
        cannot hold them.
        """
        column: array[int] = getattr(self, name)
        return (
            [self.out_of_range_times.get((name, row), time) for row, time in enumerate(column)]
            if self.out_of_range_times
            else column
        )

    def is_same_item(self, row: int, status: os.stat_result) -> bool:
        """Return True if ``status`` has the inode, device and type of this row. Of these, columns that do not exist are
        ignored.
        """
        return (
            (not self.inode or self.inode[row] == status.st_ino)
            and (not self.device or self.device[row] == status.st_dev)
            and (not self.mode or stat.S_IFMT(self.mode[row]) == stat.S_IFMT(status.st_mode))
        )

    def is_same_item_in(self, row: int, other: ItemStatusColumns) -> bool:
        """Return True if this row and the same row of ``other`` have the same inode, device and type. These columns
        must exist in both objects.
        """
        return (
            self.inode[row] == other.inode[row]
            and self.device[row] == other.device[row]
            and stat.S_IFMT(self.mode[row]) == stat.S_IFMT(other.mode[row])
        )

    def has_owner_and_mode(self, row: int, status: os.stat_result) -> bool:
        """Return True if ``status`` has the owner, group and mode of this row. Of these, columns that do not exist are
        ignored.
        """
        return (
            (not self.mode or self.mode[row] == status.st_mode)
            and (not self.uid or self.uid[row] == status.st_uid)
            and (not self.gid or self.gid[row] == status.st_gid)
        )

    def content_versions(self) -> list[tuple[int, int, int, int]]:
        """Return the version of the file in each row: inode, size, mtime and ctime, by which a change of the file is
        noticed.
        """
        return list(
            zip(
                self.inode,
                self.size,
                self.exact_times_in_column("mtime"),
                self.exact_times_in_column("ctime"),
                strict=True,
            )
        )

    def content_version_of_row(self, row: int) -> FileContentVersion:
        """Return the version of the file in one row: inode, size, mtime and ctime, by which a change of the file is
        noticed. All ``VERSION_COLUMNS`` must exist.
        """
        return FileContentVersion(
            self.inode[row], self.size[row], self.exact_time_of_row("mtime", row), self.exact_time_of_row("ctime", row)
        )

    def status(self, row: int) -> ItemStatusRow:
        """Return the status in one row, for decisions that are made file by file. If there is no column of modes, the
        mode is that of a regular file; other fields without a column are 0.
        """
        return ItemStatusRow(
            self.mode[row] if self.mode else stat.S_IFREG,
            self.size[row] if self.size else 0,
            0,
            self.exact_time_of_row("mtime", row) if self.mtime else 0,
            self.exact_time_of_row("ctime", row) if self.ctime else 0,
            self.uid[row] if self.uid else 0,
            self.gid[row] if self.gid else 0,
        )

    def columns_of_selected_rows(self, rows: Sequence[int]) -> ItemStatusColumns:
        """Return new columns that have only the given ``rows`` (indices of items), in the given order."""
        some = ItemStatusColumns.with_unset_columns(len(rows), self.mask)
        for name, typecode, bit, _ in ALL_COLUMNS:
            if self.mask & bit:
                column = getattr(self, name)
                setattr(some, name, array(typecode, map(column.__getitem__, rows)))
        if self.out_of_range_times:
            some.out_of_range_times = {
                (name, at): time
                for at, row in enumerate(rows)
                for name in _COLUMN_INDEX
                if (time := self.out_of_range_times.get((name, row))) is not None
            }
        return some

    def rows_in_range(self, start: int, end: int) -> ItemStatusColumns:
        """Return new columns that have only the rows (items) from ``start`` up to, but not including, ``end``."""
        some = ItemStatusColumns.with_unset_columns(end - start, self.mask)
        for name, _, bit, _ in ALL_COLUMNS:
            if self.mask & bit:
                setattr(some, name, getattr(self, name)[start:end])
        if self.out_of_range_times:
            some.out_of_range_times = {
                (name, row - start): time for (name, row), time in self.out_of_range_times.items() if start <= row < end
            }
        return some

    def status_columns_as_bytes(self, mask: int | None = None) -> bytes:
        """Return the columns as one string of bytes, which can be sent to another rank in a task;
        ``status_columns_from_bytes`` restores them.

        The times outside the 64-bit range follow the columns. ``mask`` selects the columns, which must exist; None
        means all.
        """
        mask = self.mask if mask is None else mask
        columns = [getattr(self, name).tobytes() for name, _, bit, _ in ALL_COLUMNS if mask & bit]
        for (name, row), time in self.out_of_range_times.items():
            if mask & ALL_COLUMNS[_COLUMN_INDEX[name]][2]:
                columns.append(_OUT_OF_RANGE_TIME_FORMAT.pack(_COLUMN_INDEX[name], row, *divmod(time, _SECOND_NS)))
        return b"".join(columns)

    @classmethod
    def status_columns_from_bytes(cls, packed: bytes, number: int, mask: int) -> ItemStatusColumns:
        """Return ``number`` rows with the columns of ``mask`` from ``packed``, a string of bytes that
        ``status_columns_as_bytes`` has made. Raise ``ValueError`` if its length does not match.
        """
        rows = cls.with_unset_columns(number, mask)
        start = 0
        for name, typecode, bit, _ in ALL_COLUMNS:
            if mask & bit:
                column = array(typecode)
                end = start + number * column.itemsize
                column.frombytes(packed[start:end])
                setattr(rows, name, column)
                start = end
        if start > len(packed) or (len(packed) - start) % _OUT_OF_RANGE_TIME_FORMAT.size:
            raise ValueError("the length of the packed columns does not match the number of rows")
        if start < len(packed):
            rows.out_of_range_times = _unpacked_out_of_range_times(packed[start:], number, mask)
        return rows


def _unpacked_out_of_range_times(packed: bytes, number: int, mask: int) -> dict[tuple[str, int], int]:
    """Return the times that columns cannot hold, by column name and row, from ``packed``, the bytes that follow the
    packed columns. Raise ``ValueError`` if a time belongs to a column that is not in ``mask`` or to a row that is not
    below ``number``.
    """
    far: dict[tuple[str, int], int] = {}
    for column, row, seconds, part in _OUT_OF_RANGE_TIME_FORMAT.iter_unpack(packed):
        name, typecode, bit, _ = ALL_COLUMNS[column] if column < len(ALL_COLUMNS) else ("", "", 0, "")
        if typecode != "q" or not mask & bit or row >= number or part >= _SECOND_NS:
            raise ValueError("a packed time belongs to a column or row that does not exist")
        far[name, row] = seconds * _SECOND_NS + part
    return far


class OutcomeCode(IntEnum):
    """Code of the outcome of the operation on one item (row) of a batch."""

    PENDING = 0
    """The operation on this item has not been started."""
    DONE = 1
    """The item was processed without an error."""
    SKIPPED = 2
    """Nothing was changed: the plan was to leave the item unchanged, or the item has the required values already."""
    SLOW_PATH = 3
    """Nothing was changed: the batch does not handle this item. The caller has to process it alone, by the slow
    path.
    """
    DECIDE_AGAIN = 4
    """Nothing was changed: the item is not the one for which the caller has decided what to do, or it has changed
    since. The caller has to decide again. Exception: for a row of ``EnterDirectoriesBatch`` the target directory was
    created, and the slow path has to continue with it.
    """
    LACKS_METADATA = 5
    """The item is complete and has its name, but some of its metadata could not be set."""
    FAILED = 6
    """An operation on the target failed; nothing of the new item remains."""
    SOURCE_FAILED = 7
    """An operation on the source failed; nothing was changed in the target."""
    SOURCE_CHANGED = 8
    """The source is no longer as the scan found it: it was removed, replaced by another item, or modified while it was
    read."""
    CANCELLED = 9
    """The batch was cancelled before the operation on this item was started."""


OPERATION_NAMES = (
    "", "stat", "open", "fstat", "read", "listxattr", "getxattr", "create", "write", "chown", "setxattr",
    "removexattr", "chmod", "utimensat", "fsync", "close", "rename", "unlink", "rmdir", "readdir", "lseek",
    "link",
)  # fmt: skip
"""Names of operations. A verdict stores an index into this tuple; native/internal.h has the same list. Index 0:
none.
"""

_OPERATION_INDEX = {name: index for index, name in enumerate(OPERATION_NAMES)}


class BatchOutcomeColumns:
    """Columns with the outcome of the operation on each item (row) of a batch: ``OutcomeCode``, errno, failed operation
    (index in ``OPERATION_NAMES``), bytes copied or read, and duration in nanoseconds.

    ``texts`` has, by row, the parts of an error that the columns cannot express: (name of an extended attribute,
    message of pcopy), each perhaps empty. ``moved`` is the sum of the bytes of all rows so far.
    """

    __slots__ = ("bytes", "codes", "errnos", "moved", "nanoseconds", "operations", "texts")

    def __init__(self, rows: int) -> None:
        self.codes = bytearray(rows)
        self.errnos = column_of_zeros("i", rows)
        self.operations = bytearray(rows)
        self.bytes = column_of_zeros("Q", rows)
        self.moved = 0
        self.nanoseconds = column_of_zeros("Q", rows)
        self.texts: dict[int, tuple[str, str]] = {}

    def __len__(self) -> int:
        return len(self.codes)

    def set_problem_of_row(self, row: int, problem: Problem) -> None:
        """Record the error ``problem`` as the outcome of a row.

        The code of the row becomes ``LACKS_METADATA``, ``SOURCE_CHANGED``, ``SOURCE_FAILED`` or ``FAILED``, according
        to the type and side of the error.
        """
        if isinstance(problem, MetadataProblem):
            code = OutcomeCode.LACKS_METADATA
        elif problem.changed:
            code = OutcomeCode.SOURCE_CHANGED
        else:
            code = OutcomeCode.SOURCE_FAILED if problem.on_source else OutcomeCode.FAILED
        self.set_code_and_problem(row, code, problem)

    def set_code_and_problem(self, row: int, code: OutcomeCode, problem: Problem) -> None:
        """Record the error ``problem`` as the outcome of a row, with a ``code`` that the caller chooses."""
        operation, _, attribute = problem.operation.partition(" ")
        number = problem.errno or 0
        text = problem.strerror or ""
        self.codes[row] = code
        self.errnos[row] = number
        self.operations[row] = _OPERATION_INDEX[operation]
        if attribute or text != os.strerror(number):
            self.texts[row] = attribute, "" if text == os.strerror(number) else text

    def problem(self, row: int) -> Problem:
        """Return, as a new ``Problem``, the error that was recorded for a row. The code of the row must be one of
        failure or ``LACKS_METADATA``.
        """
        code = self.codes[row]
        attribute, text = self.texts.get(row, ("", ""))
        operation = OPERATION_NAMES[self.operations[row]]
        if attribute:
            operation = f"{operation} {attribute}"
        if code == OutcomeCode.LACKS_METADATA:
            # Batches read extended attributes on the source side only.
            is_read = operation.startswith(("listxattr", "getxattr"))
            return MetadataProblem(operation, self.errnos[row], on_source=is_read, text=text)
        on_source = code in (OutcomeCode.SOURCE_FAILED, OutcomeCode.SOURCE_CHANGED)
        return Problem(
            operation, self.errnos[row], on_source=on_source, text=text, changed=code == OutcomeCode.SOURCE_CHANGED
        )

    def rows_with_code(self, code: OutcomeCode) -> Sequence[int]:
        """Return the indices of the rows (items) whose outcome has this ``code``."""
        number = self.codes.count(code)
        if number == len(self.codes):
            return range(number)
        return [] if not number else [row for row, each in enumerate(self.codes) if each == code]


class IdentityMarksByRow(dict[int, bytes]):
    """Identity marks of the items of a batch, by row: bytes that distinguish an item from a later one with the same
    inode number. A row without an entry has an empty mark.
    """

    def __missing__(self, row: int) -> bytes:
        return b""
