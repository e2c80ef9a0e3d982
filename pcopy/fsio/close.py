"""Closing descriptors: its errors count like those of any other call, and belong to one item (close(2))."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

from pcopy.fsio.problem import Problem


def close_written(descriptor: int, *, sync: bool = False) -> None:
    """Closes, after an fsync if that is wanted; raises ``Problem``. Quota and network file systems report lost writes
    here."""
    if sync:
        try:
            os.fsync(descriptor)
        except OSError as error:
            abandon(descriptor)
            raise Problem.of("fsync", error) from error
    try:
        os.close(descriptor)
    except OSError as error:
        raise Problem.of("close", error) from error


def close_read(descriptor: int) -> None:
    """Closes a source's descriptor; raises ``Problem``, since FUSE file systems may answer anything here."""
    try:
        os.close(descriptor)
    except OSError as error:
        raise Problem.of("close", error, on_source=True) from error


def abandon(descriptor: int) -> None:
    """Closes what was written in vain. The failure that made it so is the one to tell: after a write that met a full
    quota, NFS says so once more when the file is closed."""
    try:
        os.close(descriptor)
    except OSError:
        return


def let_go(descriptor: int) -> None:
    """Closes what nothing was read or written through: a directory, an O_PATH descriptor, a file to be opened again.

    Whatever the file system says to that, nothing of the copy is lost by it.
    """
    try:
        os.close(descriptor)
    except OSError:
        return


@contextmanager
def held_open(descriptor: int) -> Iterator[int]:
    """Lets it go when the block ends."""
    try:
        yield descriptor
    finally:
        let_go(descriptor)
