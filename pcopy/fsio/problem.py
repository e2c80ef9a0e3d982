"""Errors of an operation on one item, with the operation, the errno and the side. Such an error makes the item fail;
the job continues.
"""

from __future__ import annotations

import errno
import os

from pcopy.fsio.identity import ItemIdentity
from pcopy.fsio.retries import TOO_MANY_OPEN_FILES_ERRNOS, descriptor_shortage

PackedProblem = tuple[str, int, str, bool, bool, bool]
"""A ``Problem`` as a tuple of simple values, which can be sent to another rank.

The fields are operation, errno, text, ``on_source``, ``changed`` and ``may_retry``.
"""


REPLACED_TEXT = "something else was put in its place meanwhile"
EXCHANGED_TEXT = "another item took its name after it was examined: that one is not changed"


HARD_LINK_UNSUPPORTED_ERRNOS = frozenset(
    (errno.EXDEV, errno.EPERM, errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOTSUP, errno.EMLINK)
)
"""Errors of link(2) after which a further hard link of a file must be created as a separate copy instead.

- EXDEV: the directories belong to two XFS projects, subvolumes or bind mounts of one file system.
- EMLINK: the inode has as many names as the file system allows.
- The others: the file system supports no hard links, or none to this item.
"""


class Problem(OSError):
    """An ``OSError`` that also records its operation and the side (source or target) that it concerns.

    Fields:
        operation: name of the failed operation, such as "rename".
        on_source: True if the error concerns the source, False if it concerns the target.
        changed: True if the source has changed since it was found.
        may_retry: True if the task may process the item once more, because the item or its directory changed during the
            operation. Always True if ``changed`` is.
    """

    def __init__(
        self,
        operation: str,
        number: int,
        *,
        on_source: bool = False,
        text: str = "",
        changed: bool = False,
        may_retry: bool = False,
    ):
        """Create a problem with the errno ``number`` and ``text`` (default: the system's text of that errno)."""
        super().__init__(number, text or os.strerror(number))
        descriptor_shortage.error_count += number in TOO_MANY_OPEN_FILES_ERRNOS
        self.may_retry = changed or may_retry
        self.operation = operation
        self.on_source = on_source
        self.changed = changed

    @classmethod
    def from_error(cls, operation: str, error: OSError, *, on_source: bool = False) -> Problem:
        """Return ``error`` as a problem of ``operation``; return it unchanged if it is a ``Problem`` already.
        ``on_source``: True if the error concerns the source.
        """
        if isinstance(error, Problem):
            return error
        return cls(operation, error.errno or errno.EIO, on_source=on_source)

    @property
    def is_directory_not_empty_error(self) -> bool:
        """True if a directory of the target could not be removed because it is not empty."""
        return self.operation == "rmdir" and self.errno in (errno.ENOTEMPTY, errno.EEXIST)

    @property
    def problem_as_tuple(self) -> PackedProblem:
        """The problem as a tuple (``PackedProblem``), from which ``from_packed_tuple`` makes an equal problem on
        another rank.
        """
        return self.operation, self.errno or 0, self.strerror or "", self.on_source, self.changed, self.may_retry

    @classmethod
    def from_packed_tuple(cls, packed: PackedProblem) -> Problem:
        """Return the problem that the tuple ``packed`` describes; the property ``problem_as_tuple`` has made it."""
        operation, number, text, on_source, changed, again = packed
        return cls(operation, number, text=text, on_source=on_source, changed=changed, may_retry=again)


class errors_as_problem:  # noqa: N801 (used like a statement)
    """Context manager that turns an ``OSError`` of its block into a ``Problem`` of the operation ``operation``, and
    leaves a ``Problem`` unchanged.

    It takes half a microsecond. So code that runs several times for each small file uses ``try`` and ``except``
    instead.
    """

    __slots__ = ("_on_source", "_operation")

    def __init__(self, operation: str, *, on_source: bool = False) -> None:
        self._operation = operation
        self._on_source = on_source

    def __enter__(self) -> None: ...

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, OSError) and not isinstance(error, Problem):
            raise Problem.from_error(self._operation, error, on_source=self._on_source) from error


def directory_not_empty_problem() -> Problem:
    """Return the error of an item that cannot be created because its name in the target is taken by a directory that is
    not empty.
    """
    why = "a directory that is not empty is not replaced by an item of another type; move or remove it"
    return Problem("rmdir", errno.ENOTEMPTY, text=why)


class MetadataProblem(Problem):
    """Error of an item whose contents are complete, but some of whose metadata could not be read from the source or
    set.
    """

    identity: ItemIdentity | None = None
    """Identity of the new item, if hard links to it may have to be created; else None."""


class TargetChangedProblem(Problem):
    """An item in the target has changed since it was examined, and nothing has been done to it.

    This also happens when another rank replaces another hard link to the same file.
    """

    def __init__(self) -> None:
        super().__init__("open", errno.ESTALE, text=REPLACED_TEXT, may_retry=True)


def source_changed_problem(operation: str, text: str) -> Problem:
    """Return the error of a source item that has changed since a scan found it. ``operation`` is the operation that
    noticed it, ``text`` says how the item has changed.
    """
    return Problem(operation, 0, on_source=True, text=text, changed=True)
