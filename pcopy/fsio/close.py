"""Closing descriptors: its errors count like those of any other call, and belong to one item (close(2))."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from pcopy.fsio.problem import Problem, failing


def close_written(descriptor: int, *, sync: bool = False) -> None:
    """Closes, after an fsync if that is wanted; raises ``Problem``. Quota and network file systems report lost writes
    here."""
    if sync:
        try:
            os.fsync(descriptor)
        except OSError as error:
            abandon(descriptor)
            raise Problem.of("fsync", error) from error
    with failing("close"):
        os.close(descriptor)


def close_read(descriptor: int) -> None:
    """Closes a source's descriptor; raises ``Problem``, since FUSE file systems may answer anything here."""
    with failing("close", on_source=True):
        os.close(descriptor)


def abandon(descriptor: int) -> None:
    """Closes what was written in vain. The failure that made it so is the one to tell: after a write that met a full
    quota, NFS says so once more when the file is closed."""
    with suppress(OSError):
        os.close(descriptor)


def let_go(descriptor: int) -> None:
    """Closes what nothing was read or written through: a directory, an O_PATH descriptor, a file to be opened again.

    Whatever the file system says to that, nothing of the copy is lost by it.
    """
    with suppress(OSError):
        os.close(descriptor)


@contextmanager
def held_open(descriptor: int) -> Iterator[int]:
    """Lets it go when the block ends."""
    try:
        yield descriptor
    finally:
        let_go(descriptor)
