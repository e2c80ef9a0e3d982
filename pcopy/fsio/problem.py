"""A failed operation on one item: which operation, and with which errno. It never ends the job by itself."""

from __future__ import annotations

import errno
import os

from pcopy.fsio.identity import Identity

Plain = tuple[str, int, str, bool, bool, bool]
"""A problem as primitives: operation, errno, text, whether it concerns the source, whether that has changed, and
whether it may be tried again."""


class Problem(OSError):
    """An ``OSError`` that knows its operation and the side (source or target) that it concerns.

    ``changed`` marks a source that is no longer what it was when it was found. That may be tried ``again``, and so may
    other things that have happened to an item from outside.
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
    def plain(self) -> Plain:
        """As primitives, to be sent to another rank."""
        return self.operation, self.errno or 0, self.strerror or "", self.on_source, self.changed, self.again

    @classmethod
    def from_plain(cls, plain: Plain) -> Problem:
        """What ``plain`` was made of."""
        operation, number, text, on_source, changed, again = plain
        return cls(operation, number, text=text, on_source=on_source, changed=changed, again=again)


class MetadataProblem(Problem):
    """The item's contents are whole, but not all of its metadata could be set."""

    made: Identity | None = None
    """The item, where further names may be wanted of it."""


def changed(operation: str, text: str) -> Problem:
    """The source is no longer what it was."""
    return Problem(operation, 0, on_source=True, text=text, changed=True)
