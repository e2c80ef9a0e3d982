"""Compares what an existing item holds with the source (``--checksum``): by reading both, without digests."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Generator
from functools import partial

from pcopy.fsio.close import abandon, close_read
from pcopy.fsio.contents import PIECE, lent_buffer
from pcopy.fsio.patience import patiently
from pcopy.fsio.problem import Problem, changed, failing
from pcopy.fsio.source import Version, check_unchanged, open_to_read, status_of


def same_contents(
    reading: int, source: os.stat_result, directory: int, name: bytes, present: os.stat_result
) -> Generator[None, None, bool]:
    """Does the regular file ``name`` (which had the status ``present``) hold the same bytes as ``reading``?

    Yields after each piece. Raises ``Problem``, with the side that can't be read, and where either has changed.
    """
    if source.st_size != present.st_size:
        return False
    there = _open(directory, name, present)
    try:
        same = yield from _same(reading, source.st_size, there)
    except BaseException:
        abandon(there)
        raise
    close_read(there)
    check_unchanged(reading, Version.of(source))
    return same


def _same(reading: int, size: int, there: int) -> Generator[None, None, bool]:
    piece = min(PIECE, size + 1)  # a file of size 0 may have contents all the same (/proc)
    with lent_buffer() as ours, lent_buffer() as theirs:
        at = 0
        while True:
            got = _fill(reading, ours[:piece], at, on_source=True)
            if got < piece and at + got < size:
                raise changed("read", f"the file ended at byte {at + got}, before its size")
            if _fill(there, theirs[:piece], at, on_source=False) != got or ours[:got] != theirs[:got]:
                return False
            if got < piece:
                return True
            at += got
            yield


def _fill(descriptor: int, piece: memoryview, at: int, *, on_source: bool) -> int:
    """Reads from offset ``at`` until ``piece`` is full or the file ends; returns the number of bytes."""
    got = 0
    while got < len(piece):
        with failing("read", on_source=on_source):
            more = patiently(partial(os.preadv, descriptor, [piece[got:]], at + got))
        if not more:
            break
        got += more
    return got


def _open(directory: int, name: bytes, present: os.stat_result) -> int:
    """The existing file for reading, the very one that was looked at; raises ``Problem``."""
    with failing("open"):
        descriptor = open_to_read(directory, name)
    try:
        status = status_of(descriptor)
        if (status.st_dev, status.st_ino) != (present.st_dev, present.st_ino) or not stat.S_ISREG(status.st_mode):
            raise Problem("open", errno.ESTALE, text="something else was put in its place meanwhile")
    except Problem:
        abandon(descriptor)
        raise
    return descriptor


def same_link(source: int, source_name: bytes, target: int, target_name: bytes) -> bool:
    """Do two symbolic links, in two directories, have the same text? Raises ``Problem``."""
    return _text(source, source_name, on_source=True) == _text(target, target_name, on_source=False)


def _text(directory: int, name: bytes, *, on_source: bool) -> bytes:
    try:
        return os.readlink(name, dir_fd=directory)
    except OSError as error:
        gone = on_source and error.errno in (errno.ENOENT, errno.EINVAL)
        raise Problem("readlink", error.errno or errno.EIO, on_source=on_source, changed=gone) from error
