"""A failed operation on one item: which operation, and with which errno. It never ends the job by itself."""

from __future__ import annotations

import errno
import os

from pcopy.fsio.identity import Identity
from pcopy.fsio.patience import NO_DESCRIPTORS, shortage

Plain = tuple[str, int, str, bool, bool, bool]
"""A problem as primitives: operation, errno, text, whether it concerns the source, whether that has changed, and
whether it may be tried again."""


REPLACED = "something else was put in its place meanwhile"
EXCHANGED = "another item took its name after it was examined: that one is not changed"


LINK_REFUSALS = frozenset((errno.EXDEV, errno.EPERM, errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOTSUP, errno.EMLINK))
"""Errors of link(2) after which a copy has to take the place of a further name.

EXDEV: the directories are of two XFS projects, subvolumes or bind mounts of one file system. EMLINK: the inode has as
many names as the file system allows. The others: the file system makes no hard links, or not of this item.
"""


class Problem(OSError):
    """An ``OSError`` that knows its operation and the side (source or target) that it concerns.

    ``changed``: the source is no longer what it was when it was found. ``again``: the item may be tried once more,
    since it has changed or something else has happened to it from outside.
    """

    def __init__(
        self,
        operation: str,
        number: int,
        *,
        on_source: bool = False,
        text: str = "",
        changed: bool = False,
        again: bool = False,
    ):
        super().__init__(number, text or os.strerror(number))
        shortage.met += number in NO_DESCRIPTORS
        self.again = changed or again
        self.operation = operation
        self.on_source = on_source
        self.changed = changed

    @classmethod
    def of(cls, operation: str, error: OSError, *, on_source: bool = False) -> Problem:
        """``error`` with its operation; a problem that has one already stays as it is."""
        if isinstance(error, Problem):
            return error
        return cls(operation, error.errno or errno.EIO, on_source=on_source)

    @property
    def is_full(self) -> bool:
        """Is a directory of the target in the way that is not empty?"""
        return self.operation == "rmdir" and self.errno in (errno.ENOTEMPTY, errno.EEXIST)

    @property
    def plain(self) -> Plain:
        """As primitives, to be sent to another rank."""
        return self.operation, self.errno or 0, self.strerror or "", self.on_source, self.changed, self.again

    @classmethod
    def from_plain(cls, plain: Plain) -> Problem:
        """The problem of which ``plain`` was made."""
        operation, number, text, on_source, changed, again = plain
        return cls(operation, number, text=text, on_source=on_source, changed=changed, again=again)


class failing:  # noqa: N801 (it reads as a statement does)
    """``with failing(operation):`` what the system refuses there is a ``Problem``, as by ``Problem.of``.

    It takes half a microsecond: what runs several times for each small file spells it out.
    """

    __slots__ = ("_on_source", "_operation")

    def __init__(self, operation: str, *, on_source: bool = False) -> None:
        self._operation = operation
        self._on_source = on_source

    def __enter__(self) -> None: ...

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, OSError) and not isinstance(error, Problem):
            raise Problem.of(self._operation, error, on_source=self._on_source) from error


def full_directory() -> Problem:
    """The problem of an item whose name in the target a directory has that is not empty."""
    why = "a directory that is not empty is not replaced by an item of another type; move or remove it"
    return Problem("rmdir", errno.ENOTEMPTY, text=why)


class MetadataProblem(Problem):
    """The item's contents are whole, but not all of its metadata could be set."""

    made: Identity | None = None
    """The item, where further names may be wanted of it."""


class TargetChanged(Problem):
    """An item in the target is no longer what it was when it was examined, and nothing has been done to it.

    Another rank causes this, too, when it replaces another name of the same inode.
    """

    def __init__(self) -> None:
        super().__init__("open", errno.ESTALE, text=REPLACED, again=True)


def changed(operation: str, text: str) -> Problem:
    """The source is no longer what it was."""
    return Problem(operation, 0, on_source=True, text=text, changed=True)
