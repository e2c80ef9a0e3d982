"""Packed columns: what goes into a kernel and comes out of it, without an object for each file.

A column holds one value for each row of a batch, as a C array does: ``bytes`` or ``bytearray`` for one byte a row,
``array`` for numbers, in this machine's byte order. Names are one string, joined by slashes, which no name contains.
A kernel in C reads and writes the very memory. What is told of few rows only (``texts``, ``applied``) is a dictionary
by row.

Times are nanoseconds since 1970 in 64 bits. These end in 2262: a later time is ``LAST``, one before 1677 is ``FIRST``,
and C leaves a file that has such a time to Python. ``Rows.far`` has the exact time of such a row. No time is compared,
stored or shown from its column: ``Rows.time``, ``times``, ``version`` and ``status`` return exact ones.
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

from pcopy.fsio.problem import MetadataProblem, Problem
from pcopy.fsio.source import Version
from pcopy.named import NamedTuple

MODE = 0x3
LINKS = 0x4
OWNER = 0x8
GROUP = 0x10
ATIME = 0x20
MTIME = 0x40
CTIME = 0x80
INODE = 0x100
SIZE = 0x200
BLOCKS = 0x400
DEVICE = 1 << 20
"""A mask says which columns there are. The bits are those of statx(2), which tells devices always and has no bit for
them."""

VERSION = INODE | SIZE | MTIME | CTIME
"""What must stay the same while a file is copied, as ``pcopy.fsio.source.Version``."""

FOUND = VERSION | MODE | DEVICE
"""What a scan wants to know of what it finds."""

MADE = MODE | OWNER | GROUP | MTIME | SIZE
"""What is told of files that are made from memory."""

COLUMNS = (
    ("mode", "I", MODE, "st_mode"),
    ("links", "I", LINKS, "st_nlink"),
    ("uid", "I", OWNER, "st_uid"),
    ("gid", "I", GROUP, "st_gid"),
    ("atime", "q", ATIME, "st_atime_ns"),
    ("mtime", "q", MTIME, "st_mtime_ns"),
    ("ctime", "q", CTIME, "st_ctime_ns"),
    ("inode", "Q", INODE, "st_ino"),
    ("size", "Q", SIZE, "st_size"),
    ("device", "Q", DEVICE, "st_dev"),
    ("blocks", "Q", BLOCKS, "st_blocks"),
)
"""Name, type and bit of each column, in the order in which they are packed, and what stat(2) calls it."""

FIRST, LAST = -(2**63), 2**63 - 1
"""A time that is one of these may be another, which 64 bits can't hold."""

_FAR = Struct("=BQqI")
"""A time that no column holds, behind packed columns: index in ``COLUMNS``, row, seconds, nanoseconds."""
_SECOND = 10**9
"""In nanoseconds."""
TIMES = frozenset(name for name, typecode, *_ in COLUMNS if typecode == "q")
"""The names of the columns of times."""
_NUMBER = {name: number for number, (name, *_) in enumerate(COLUMNS)}


class Status(NamedTuple):
    """One row, with the names that ``os.stat_result`` has; 0 for what there is no column of. (Only regular files
    are decided about here, which have no device number.)"""

    st_mode: int
    st_size: int
    st_rdev: int
    st_mtime_ns: int
    st_ctime_ns: int
    st_uid: int = 0
    st_gid: int = 0


UNKNOWN = os.stat_result((0,) * os.stat_result.n_fields)
"""Of what could not be looked at."""


KINDS = {
    stat.S_IFREG: ord("f"),
    stat.S_IFDIR: ord("d"),
    stat.S_IFLNK: ord("l"),
    stat.S_IFIFO: ord("p"),
    stat.S_IFSOCK: ord("s"),
    stat.S_IFCHR: ord("c"),
    stat.S_IFBLK: ord("b"),
}
"""Letters of types, as ``find -type`` has them."""


def numbers(typecode: str, rows: int) -> array[int]:
    """A column of zeros."""
    return array(typecode, [0]) * rows


def pack_names(names: Iterable[bytes]) -> bytes:
    """Names as one string; no name contains a slash."""
    return b"/".join(names)


def unpack_names(packed: bytes, rows: int = 1) -> list[bytes]:
    """The names. ``rows`` is wanted only where it may be 0: no name at all is packed as one empty name is."""
    return packed.split(b"/") if rows else []


def _column(typecode: str, field: str, statuses: Sequence[os.stat_result]) -> array[int]:
    values = list(map(attrgetter(field), statuses))
    try:
        return array(typecode, values)
    except OverflowError:
        return array(typecode, [min(max(value, FIRST), LAST) for value in values])


class Rows:
    """What is known of the items of a batch. Columns that are not in ``mask`` are empty."""

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
    far: Mapping[tuple[str, int], int] = MappingProxyType({})
    """Exact times, by column and row, where 64 bits can't hold them."""

    def __init__(self, number: int, mask: int) -> None:
        """``number`` rows of zeros."""
        self.number = number
        self.mask = mask
        for name, typecode, bit, _ in COLUMNS:
            if mask & bit:
                setattr(self, name, numbers(typecode, number))

    def __len__(self) -> int:
        return self.number

    @classmethod
    def to_fill(cls, number: int, mask: int) -> Rows:
        """Whoever asks sets all columns of ``mask``."""
        rows = cls.__new__(cls)
        rows.number, rows.mask = number, mask
        return rows

    @classmethod
    def of(cls, statuses: Sequence[os.stat_result], mask: int) -> Rows:
        """What stat(2) has told of all rows."""
        rows = cls(len(statuses), mask)
        rows.put(0, statuses)
        return rows

    def put(self, start: int, statuses: Sequence[os.stat_result]) -> None:
        """What stat(2) has told of the rows from ``start`` on."""
        end = start + len(statuses)
        for name, typecode, bit, field in COLUMNS:
            if self.mask & bit:
                column = _column(typecode, field, statuses)
                getattr(self, name)[start:end] = column
                if typecode == "q" and (LAST in column or FIRST in column):
                    self.keep_far(name, map(attrgetter(field), statuses), start)

    def keep_far(self, name: str, times: Iterable[int], start: int = 0) -> None:
        """Keep those of the exact ``times`` of the rows from ``start`` on that the column ``name`` can't hold."""
        found = {(name, row): time for row, time in enumerate(times, start) if not FIRST <= time <= LAST}
        if found:
            self.far = {**self.far, **found}

    def time(self, name: str, row: int) -> int:
        """Return the exact time of one row; ``name`` is that of a column of times."""
        time: int = getattr(self, name)[row]
        return self.far.get((name, row), time) if self.far else time

    def times(self, name: str) -> Sequence[int]:
        """Return the exact times of all rows."""
        column: array[int] = getattr(self, name)
        return [self.far.get((name, row), time) for row, time in enumerate(column)] if self.far else column

    def is_item(self, row: int, status: os.stat_result) -> bool:
        """Is it the same item, of the same type, as far as there are columns that tell?"""
        return (
            (not self.inode or self.inode[row] == status.st_ino)
            and (not self.device or self.device[row] == status.st_dev)
            and (not self.mode or stat.S_IFMT(self.mode[row]) == stat.S_IFMT(status.st_mode))
        )

    def is_item_of(self, row: int, other: Rows) -> bool:
        """Return True if the row of both is one item, of one type; both have these columns."""
        return (
            self.inode[row] == other.inode[row]
            and self.device[row] == other.device[row]
            and stat.S_IFMT(self.mode[row]) == stat.S_IFMT(other.mode[row])
        )

    def has_owner_and_mode(self, row: int, status: os.stat_result) -> bool:
        """Return True if owner, group and mode are those of the row, as far as there are columns for them."""
        return (
            (not self.mode or self.mode[row] == status.st_mode)
            and (not self.uid or self.uid[row] == status.st_uid)
            and (not self.gid or self.gid[row] == status.st_gid)
        )

    def versions(self) -> list[tuple[int, int, int, int]]:
        """What ``version`` tells, of all rows."""
        return list(zip(self.inode, self.size, self.times("mtime"), self.times("ctime"), strict=True))

    def version(self, row: int) -> Version:
        """Only where all columns of ``VERSION`` are there."""
        return Version(self.inode[row], self.size[row], self.time("mtime", row), self.time("ctime", row))

    def status(self, row: int) -> Status:
        """One row as an object, for what is decided with more care. Without a column of modes all are regular files."""
        return Status(
            self.mode[row] if self.mode else stat.S_IFREG,
            self.size[row] if self.size else 0,
            0,
            self.time("mtime", row) if self.mtime else 0,
            self.time("ctime", row) if self.ctime else 0,
            self.uid[row] if self.uid else 0,
            self.gid[row] if self.gid else 0,
        )

    def chosen(self, rows: Sequence[int]) -> Rows:
        """Some of the rows, in their order."""
        some = Rows.to_fill(len(rows), self.mask)
        for name, typecode, bit, _ in COLUMNS:
            if self.mask & bit:
                column = getattr(self, name)
                setattr(some, name, array(typecode, map(column.__getitem__, rows)))
        if self.far:
            some.far = {
                (name, at): time
                for at, row in enumerate(rows)
                for name in _NUMBER
                if (time := self.far.get((name, row))) is not None
            }
        return some

    def part(self, start: int, end: int) -> Rows:
        """The rows from ``start`` up to ``end``."""
        some = Rows.to_fill(end - start, self.mask)
        for name, _, bit, _ in COLUMNS:
            if self.mask & bit:
                setattr(some, name, getattr(self, name)[start:end])
        if self.far:
            some.far = {(name, row - start): time for (name, row), time in self.far.items() if start <= row < end}
        return some

    def packed(self, mask: int | None = None) -> bytes:
        """The columns of ``mask``, which must be there, or all, as one string, to travel in a task; behind them the
        times of these that no column holds."""
        mask = self.mask if mask is None else mask
        columns = [getattr(self, name).tobytes() for name, _, bit, _ in COLUMNS if mask & bit]
        for (name, row), time in self.far.items():
            if mask & COLUMNS[_NUMBER[name]][2]:
                columns.append(_FAR.pack(_NUMBER[name], row, *divmod(time, _SECOND)))
        return b"".join(columns)

    @classmethod
    def unpacked(cls, packed: bytes, number: int, mask: int) -> Rows:
        """What was packed with this ``mask``; raises ``ValueError`` if it is not ``number`` rows of that."""
        rows = cls.to_fill(number, mask)
        start = 0
        for name, typecode, bit, _ in COLUMNS:
            if mask & bit:
                column = array(typecode)
                end = start + number * column.itemsize
                column.frombytes(packed[start:end])
                setattr(rows, name, column)
                start = end
        if start > len(packed) or (len(packed) - start) % _FAR.size:
            raise ValueError("the columns have another length")
        if start < len(packed):
            rows.far = _unpacked_far(packed[start:], number, mask)
        return rows


def _unpacked_far(packed: bytes, number: int, mask: int) -> dict[tuple[str, int], int]:
    """Return what ``Rows.far`` was packed from; raise ``ValueError`` unless all are times of these columns and rows."""
    far: dict[tuple[str, int], int] = {}
    for column, row, seconds, part in _FAR.iter_unpack(packed):
        name, typecode, bit, _ = COLUMNS[column] if column < len(COLUMNS) else ("", "", 0, "")
        if typecode != "q" or not mask & bit or row >= number or part >= _SECOND:
            raise ValueError("a time is of no such column or row")
        far[name, row] = seconds * _SECOND + part
    return far


class Code(IntEnum):
    """What became of a row."""

    PENDING = 0
    """Nobody has begun it yet."""
    DONE = 1
    SKIPPED = 2
    """Its plan was to do nothing."""
    CARE = 3
    """No plain case: nothing was changed, and it is to be done with more care, by others."""
    ANEW = 4
    """It is not what the plan was made from: nothing was changed, and it is to be decided anew."""
    LACKS = 5
    """It is whole and has its name, but not all of its metadata could be set."""
    FAILED = 6
    """On the target's side; nothing is left."""
    UNREAD = 7
    """Failed on the source's side."""
    CHANGED = 8
    """The source is no longer what it was when it was found: gone, another item, or changed while it was read."""
    CANCELLED = 9
    """The ticket was cancelled before the row was begun."""


OPERATIONS = (
    "", "stat", "open", "fstat", "read", "listxattr", "getxattr", "create", "write", "chown", "setxattr",
    "removexattr", "chmod", "utimensat", "fsync", "close", "rename", "unlink", "rmdir", "readdir", "lseek",
    "link",
)  # fmt: skip
"""The operation of a verdict is an index into these."""

_OPERATION = {name: index for index, name in enumerate(OPERATIONS)}


class Verdicts:
    """What became of each row: code, errno, operation, bytes moved, and nanoseconds that it took.

    ``texts`` hold what numbers can't say of a problem: the name of an attribute, and words of our own. ``moved`` is the
    sum of all bytes so far.
    """

    __slots__ = ("bytes", "codes", "errnos", "moved", "nanoseconds", "operations", "texts")

    def __init__(self, rows: int) -> None:
        self.codes = bytearray(rows)
        self.errnos = numbers("i", rows)
        self.operations = bytearray(rows)
        self.bytes = numbers("Q", rows)
        self.moved = 0
        self.nanoseconds = numbers("Q", rows)
        self.texts: dict[int, tuple[str, str]] = {}

    def __len__(self) -> int:
        return len(self.codes)

    def fail(self, row: int, problem: Problem) -> None:
        """Takes a problem apart."""
        if isinstance(problem, MetadataProblem):
            code = Code.LACKS
        elif problem.changed:
            code = Code.CHANGED
        else:
            code = Code.UNREAD if problem.on_source else Code.FAILED
        self.set(row, code, problem)

    def set(self, row: int, code: Code, problem: Problem) -> None:
        """Notes what was met, under a ``code`` of the caller's choice."""
        operation, _, attribute = problem.operation.partition(" ")
        number = problem.errno or 0
        text = problem.strerror or ""
        self.codes[row] = code
        self.errnos[row] = number
        self.operations[row] = _OPERATION[operation]
        if attribute or text != os.strerror(number):
            self.texts[row] = attribute, "" if text == os.strerror(number) else text

    def problem(self, row: int) -> Problem:
        """What went wrong with a row that ``LACKS`` something, or was not done; as it was put in."""
        code = self.codes[row]
        attribute, text = self.texts.get(row, ("", ""))
        operation = OPERATIONS[self.operations[row]]
        if attribute:
            operation = f"{operation} {attribute}"
        if code == Code.LACKS:
            is_read = operation.startswith(("listxattr", "getxattr"))  # which batches do on the source only
            return MetadataProblem(operation, self.errnos[row], on_source=is_read, text=text)
        on_source = code in (Code.UNREAD, Code.CHANGED)
        return Problem(operation, self.errnos[row], on_source=on_source, text=text, changed=code == Code.CHANGED)

    def rows(self, code: Code) -> Sequence[int]:
        """Those with this code."""
        number = self.codes.count(code)
        if number == len(self.codes):
            return range(number)
        return [] if not number else [row for row, each in enumerate(self.codes) if each == code]


class Marks(dict[int, bytes]):
    """The marks of ``pcopy.fsio.identity``, by row; few batches have some."""

    def __missing__(self, row: int) -> bytes:
        return b""
