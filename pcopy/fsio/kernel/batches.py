"""Batches: one step that a kernel does with many items of one directory, and the columns that it gives back.

Each kind of batch is one step, so that whoever asks can choose rows in between: ``List`` what there is, ``Stat`` it,
``Decide`` what becomes of it (``pcopy.fsio.kernel.decide``), ``Compare`` attributes, ``Copy`` it; ``Read`` files for
their digests, ``Mend`` or ``Remove`` what exists. A directory is an open descriptor, and every name is looked up in it,
following no symbolic link unless it is told to.

A result has one row for each row of its batch, in the same order.
"""

from __future__ import annotations

from array import array
from enum import IntEnum
from typing import Any, ClassVar, Generic, TypeVar, dataclass_transform

from pcopy.fsio.attributes import Applied
from pcopy.fsio.kernel.columns import FOUND, Marks, Rows, Verdicts
from pcopy.fsio.layout import PLAIN, Recipe

Result = TypeVar("Result")

KEEP = 0xFFFFFFFF
"""A mode, owner or group that is not wanted: -1, as chown(2) has it."""

NAMES_AT_ONCE = 2048
"""So many names of a directory are listed at once."""


class Plan(IntEnum):
    """What is to become of a row that is copied."""

    NEW = 1
    """Made under its own name, which must be free."""
    REPLACE = 2
    """Made under a temporary name, then renamed to its own, whatever has that."""
    TEMPORARY = 3
    """Made under a temporary name, which it keeps: a later task names it."""
    SKIP = 4
    """What is there stays."""
    REFUSE = 5
    """It fails, because its name is taken (``--existing fail``)."""
    CARE = 6
    """No plain case: a large file, ``--inplace``, what an earlier run may have made."""


class Call(IntEnum):
    """The one operation that each row of a ``Trial`` is."""

    CREATE = 1
    """An empty file that is new, which is closed."""
    STAT = 2
    OPEN = 3
    """For reading, and closed."""
    RENAME = 4
    UNLINK = 5


SYNC = 0x80
"""Added to a plan: the file is brought to stable storage before it gets its name, or before it is told as done."""


@dataclass_transform()
class Fields:
    """A value with the fields that its class names, as a dataclass has them; the module for these takes longer to load
    than many a copy. A field that is given twice, or is none, raises ``TypeError``."""

    _names: ClassVar[tuple[str, ...]] = ()

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        cls._names = (*cls._names, *cls.__annotations__)

    def __init__(self, *values: Any, **named: Any) -> None:
        names, fields = self._names, self.__dict__
        if len(values) > len(names) or (named and not named.keys() <= {*names[len(values) :]}):
            raise TypeError(f"{type(self).__name__} has these fields, each once: {', '.join(names)}")
        fields.update(zip(names, values, strict=False))
        fields.update(named)


class Batch(Fields, Generic[Result]):
    """Rows that are submitted together; ``Result`` is what they come back as."""

    @property
    def descriptors(self) -> tuple[int, ...]:
        """The directories that it works with, which stay open as long as it is under way."""
        raise NotImplementedError


class OfNames(Batch[Result]):
    """A row for each of the ``names`` in one open ``directory``."""

    directory: int
    names: bytes

    @property
    def descriptors(self) -> tuple[int, ...]:
        return (self.directory,)

    def __len__(self) -> int:
        return self.names.count(b"/") + 1 if self.names else 0


# What a batch comes back as.


class Judged(Fields):
    """What became of each row."""

    verdicts: Verdicts


class Listed(Judged):
    """The next names of a directory. ``kinds`` and ``inodes`` are empty unless they were asked for.

    ``verdicts`` has one row, for the directory. After a problem the names that were read before it are there.
    """

    names: bytes = b""
    number: int = 0
    kinds: bytes = b""
    inodes: array[int] = array("Q")
    rest: List | None = None
    """The batch that goes on, unless this was all."""


class Stated(Judged):
    """What there is. A row that is ``FAILED`` or ``UNREAD`` with ENOENT is not there."""

    rows: Rows


class Removed(Judged):
    """What has gone, or could not be removed. ``seen`` has the sizes (``SIZE``) of regular files, and else zeros, where
    the batch has inodes."""

    seen: Rows


class Mended(Judged):
    """What was changed. ``seen`` has the modes as they were, and the sizes of regular files (``MODE | SIZE``)."""

    seen: Rows


class ReadBack(Judged):
    """What was read: the ``Version`` of each file, and its digest."""

    seen: Rows
    digests: Digests


class Copied(Judged):
    """What was copied, of the versions in ``Copy.rows``.

    ``verdicts.bytes`` is what was copied (in /proc more than the size says). ``made`` are the inodes of what was made
    under temporary names, with the ``marks`` of those that keep these. ``applied`` tells of metadata that was excused,
    or is worth a notice.
    """

    digests: Digests
    made: array[int]
    marks: Marks
    applied: dict[int, Applied]


class FilesMade(Judged):
    """What was made. ``applied`` as in ``Copied``."""

    applied: dict[int, Applied]


class Digests(Fields):
    """One of ``size`` bytes for each row that was read; zeros for the others."""

    size: int
    data: bytearray

    @classmethod
    def of(cls, rows: int, size: int) -> Digests:
        return cls(size, bytearray(rows * size))

    def __getitem__(self, row: int) -> bytes:
        return bytes(self.data[row * self.size : (row + 1) * self.size])

    def __setitem__(self, row: int, digest: bytes) -> None:
        self.data[row * self.size : (row + 1) * self.size] = digest


# The batches.


class List(Batch[Listed]):
    """The next ``most`` names in an open directory, in its order; ``detailed``: with kinds (the letters of ``find
    -type``, and ``?`` for what the directory does not tell) and inodes, as the directory tells them.

    ``going_on`` is what a kernel keeps between the parts of one listing.
    """

    directory: int
    most: int = NAMES_AT_ONCE
    detailed: bool = False
    on_source: bool = True
    going_on: Any = None

    @property
    def descriptors(self) -> tuple[int, ...]:
        return (self.directory,)


class Stat(OfNames[Stated]):
    """What ``mask`` asks of each name. On the source's side errors that may pass are tried again."""

    mask: int = FOUND
    on_source: bool = True
    follow: bool = False


class Copy(OfNames[Copied]):
    """Small regular files of ``directory``, each by its plan.

    ``rows`` (``VERSION`` and ``DEVICE``) are what the plans were made from: before anything is written, a file that is
    not that very item (inode, device) has ``CHANGED``, and one of another version is to be decided ``ANEW``. So is one
    whose name should be free and is not.
    ``new_names`` are the names in the target, if those are others. ``temporaries`` are free names, one for each row;
    empty where a plan needs none. Rows of another ``recipe`` are another batch. ``inherits``: what is made in
    ``target`` inherits an ACL, which must go. ``identified``: ``made`` and ``marks`` are told of files that keep the
    names under which they were made, too.
    """

    target: int
    plans: bytes | bytearray
    rows: Rows
    new_names: bytes = b""
    temporaries: bytes = b""
    inherits: bool = False
    recipe: Recipe = PLAIN
    identified: bool = False

    @property
    def descriptors(self) -> tuple[int, ...]:
        return self.directory, self.target


class Read(OfNames[ReadBack]):
    """Small regular files for their digests; what is no such file, or can't be read just so, wants ``CARE``.

    Of ``copies``, what the page cache holds is given up first. Sources did not change while they were read. ``whole``:
    a file that is marked as half written (``pcopy.fsio.half_written``) wants ``CARE``, too.
    """

    copies: bool = False
    whole: bool = False


class SyncDirectories(Batch[Judged]):
    """Open directories, whose names are brought to stable storage. It is never cut short."""

    directories: tuple[int, ...]

    @property
    def descriptors(self) -> tuple[int, ...]:
        return self.directories


class Remove(OfNames[Removed]):
    """Items that are no directories, and empty directories (``MODE`` tells which; without it nothing is a directory).

    What is not the item of ``rows`` is to be decided ``ANEW``; without ``INODE`` nobody looks. What was gone before is
    ``FAILED`` with ENOENT. ``gone`` has two numbers of 8 bytes, to which C and Python add 1 after each removal.
    """

    rows: Rows
    gone: memoryview | None = None


class Mend(OfNames[Judged]):
    """Items that get other owners, groups and modes, in this order; a symbolic link is changed itself.

    An item that is not that of ``rows`` (``MODE``, perhaps ``INODE`` and ``DEVICE``), or has another mode, owner or
    group, is not changed, and gets the code ``ANEW``. ``wanted`` has ``MODE | OWNER | GROUP``, each ``KEEP`` where what
    is there stays. ``acls``: an access ACL that all get, and a
    default ACL for directories, as extended attributes have them; None where they stay, an empty default ACL is none.
    """

    rows: Rows
    wanted: Rows
    acls: tuple[bytes, bytes] | None = None


class MendPlain(OfNames[Mended]):
    """Items that are no directories: all get the owner ``uid``, the group ``gid`` (``KEEP``: as they are), and of their
    permission bits ``modes`` makes others, a column ("H") with a row for each of 4096. ``SKIPPED``: nothing differs.

    What is a directory, or not the item of ``rows`` (``INODE``), is to be decided ``ANEW``.
    """

    rows: Rows
    modes: array[int]
    uid: int = KEEP
    gid: int = KEEP


class Make(OfNames[FilesMade]):
    """Small regular files, with what ``rows`` tell (``MADE``): the contents of each begin at its offset in
    ``contents``, and its times are its ``mtime``. One whose name is taken is ``ANEW``. ``inherits`` as in ``Copy``."""

    rows: Rows
    contents: bytes | memoryview
    offsets: array[int]
    inherits: bool = False


class Compare(OfNames[Judged]):
    """Have items of ``directory`` the same extended attributes and ACLs as those of ``target``, as far as these are
    copied? They are ``DONE`` if so; others want ``CARE``, and so does what can't be told. ``new_names`` as in ``Copy``.
    """

    target: int
    new_names: bytes = b""

    @property
    def descriptors(self) -> tuple[int, ...]:
        return self.directory, self.target


class Trial(OfNames[Judged]):
    """One bare ``call`` for each name, and no more, for who measures a file system. ``RENAME`` gives ``new_names``."""

    call: Call
    new_names: bytes = b""
