"""A failed operation on one item: which operation, and with which errno. It never ends the job by itself."""

from __future__ import annotations

import errno
import os


class Problem(OSError):
    """An ``OSError`` that knows its operation and the side (source or target) that it concerns.

    ``changed`` marks a source that is no longer what it was when it was found; it may be tried again.
    """

    def __init__(self, operation: str, number: int, *, on_source: bool = False, text: str = "", changed: bool = False):
        super().__init__(number, text or os.strerror(number))
        self.operation = operation
        self.on_source = on_source
        self.changed = changed

    @classmethod
    def of(cls, operation: str, error: OSError, *, on_source: bool = False) -> Problem:
        """``error`` with its operation; a problem that has one already stays as it is."""
        if isinstance(error, Problem):
            return error
        return cls(operation, error.errno or errno.EIO, on_source=on_source)


class MetadataProblem(Problem):
    """The item's contents are whole, but not all of its metadata could be set."""


def changed(operation: str, text: str) -> Problem:
    """The source is no longer what it was."""
    return Problem(operation, 0, on_source=True, text=text, changed=True)
