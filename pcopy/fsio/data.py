"""Moves the bytes of regular files, the fastest correct way.

A clone (FICLONE) shares the source's extents and moves nothing; copy_file_range(2) moves inside the kernel; read and
write in pieces that stay in cache always work. Holes are skipped. A transfer completes or raises: a read that ends
before the source's size means that the source has changed, a write of nothing is an error.
"""

from __future__ import annotations

import errno
import fcntl
import os
from collections.abc import Generator, Iterator

from pcopy.fsio.patience import PASSING, PAUSES, naps
from pcopy.fsio.problem import Problem, changed

PIECE = 512 << 10
"""Bytes moved by one read and write: large enough to cost nothing in calls, small enough to stay in cache."""

KERNEL_PIECE = 8 << 20
"""Bytes moved by one copy_file_range."""

FICLONE = 0x40049409

_NEVER_CLONES = (errno.EOPNOTSUPP, errno.EXDEV, errno.ENOTTY, errno.ENOSYS, errno.EPERM)
_NO_CLONE = (*_NEVER_CLONES, errno.EINVAL, errno.EBADF, errno.ETXTBSY)
_NEVER_KERNEL_COPIES = (errno.EXDEV, errno.EOPNOTSUPP, errno.ENOSYS, errno.EPERM)


def has_holes(status: os.stat_result) -> bool:
    """May the file have holes? (Compressed files look alike; asking for their holes does no harm.)"""
    return status.st_blocks * 512 < status.st_size


def data_extents(descriptor: int, start: int, end: int) -> Iterator[tuple[int, int]]:
    """The stretches (first byte, byte after the last) between ``start`` and ``end`` that hold data. See lseek(2)."""
    at = start
    while at < end:
        try:
            first = os.lseek(descriptor, at, os.SEEK_DATA)
        except OSError as error:
            if error.errno == errno.ENXIO:  # nothing but a hole up to the end of the file
                return
            if error.errno == errno.EINVAL:  # a file system that doesn't know holes
                yield at, end
                return
            raise Problem.of("lseek", error, on_source=True) from error
        if first >= end:
            return
        try:
            after = os.lseek(descriptor, first, os.SEEK_HOLE)
        except OSError as error:
            if error.errno == errno.ENXIO:  # there was data a moment ago
                raise changed("lseek", "the file was cut short while it was copied") from error
            raise Problem.of("lseek", error, on_source=True) from error
        yield first, min(after, end)
        at = after


class Mover:
    """Moves contents between files, and remembers between which file systems the quick ways don't work."""

    def __init__(self, *, sparse: bool) -> None:
        self._sparse = sparse
        self._no_clone: set[tuple[int, int]] = set()
        self._no_kernel_copy: set[tuple[int, int]] = set()

    def clone(self, source: int, target: int, devices: tuple[int, int]) -> bool:
        """Makes ``target`` share all of ``source``'s extents; False where the file systems can't.

        ``devices`` are the two files' st_dev. Raises ``Problem``.
        """
        if devices in self._no_clone:
            return False
        try:
            fcntl.ioctl(target, FICLONE, source)
        except OSError as error:
            if error.errno not in _NO_CLONE:
                raise Problem.of("clone", error) from error
            if error.errno in _NEVER_CLONES:
                self._no_clone.add(devices)
            return False
        return True

    def fill(self, source: int, target: int, status: os.stat_result, devices: tuple[int, int]) -> Iterator[int]:
        """Gives the empty ``target`` all of the contents of ``source``, whose status is ``status``.

        Yields the bytes that each step moved; raises ``Problem``.
        """
        if not status.st_size:
            yield from _copy_to_end(source, target)
        elif self.clone(source, target, devices):
            yield status.st_size
        else:
            if self._sparse and has_holes(status):
                set_size(target, status.st_size)
            yield from self.copy(source, target, 0, status.st_size, devices, holes=has_holes(status))

    def copy(
        self, source: int, target: int, start: int, end: int, devices: tuple[int, int], *, holes: bool
    ) -> Iterator[int]:
        """Copies the bytes from ``start`` to ``end``, without its holes if there may be ``holes``.

        Yields the bytes that each step moved (holes count as moved); raises ``Problem``.
        """
        extents = data_extents(source, start, end) if holes and self._sparse else iter([(start, end)])
        at = start
        for first, after in extents:
            if first > at:
                yield first - at
            at = first
            if devices not in self._no_kernel_copy:
                at = yield from self._copy_in_kernel(source, target, first, after, devices)
            yield from _copy_through_memory(source, target, at, after)
            at = after
        if end > at:
            yield end - at

    def _copy_in_kernel(
        self, source: int, target: int, start: int, end: int, devices: tuple[int, int]
    ) -> Generator[int, None, int]:
        """As far as copy_file_range gets; returns the offset that it reached.

        An error of it doesn't tell which side is to blame: reading and writing from there find out.
        """
        at = start
        while at < end:
            try:
                moved = os.copy_file_range(source, target, min(KERNEL_PIECE, end - at), at, at)
            except OSError as error:
                if error.errno in _NEVER_KERNEL_COPIES:
                    self._no_kernel_copy.add(devices)
                return at
            if not moved:
                return at
            at += moved
            yield moved
        return at


def _copy_through_memory(source: int, target: int, start: int, end: int) -> Iterator[int]:
    if start == end:
        return
    buffer = memoryview(bytearray(min(PIECE, end - start)))
    at = start
    while at < end:
        piece = buffer[: end - at]
        got = yield from _read(source, piece, at)
        if not got:
            raise changed("read", f"the file ended at byte {at}, before its size")
        write_all(target, piece[:got], at)
        at += got
        yield got


def _read(source: int, piece: memoryview, at: int) -> Generator[int, None, int]:
    """Reads into ``piece`` from offset ``at``, patiently; returns the number of bytes, 0 at the end of the file."""
    for pause in (*PAUSES, None):
        try:
            return os.preadv(source, [piece], at)
        except OSError as error:
            if pause is None or error.errno not in PASSING:
                raise Problem.of("read", error, on_source=True) from error
        for _ in naps(pause):
            yield 0
    raise AssertionError("the last try returns or raises")


def _copy_to_end(source: int, target: int) -> Iterator[int]:
    """For files whose size says 0 but which may have contents nevertheless (/proc)."""
    at = 0
    while True:
        try:
            data = os.read(source, PIECE)
        except OSError as error:
            raise Problem.of("read", error, on_source=True) from error
        if not data:
            return
        write_all(target, data, at)
        at += len(data)
        yield len(data)


def set_size(target: int, size: int) -> None:
    """Makes the file ``size`` bytes long, with a hole where nothing was written; raises ``Problem``."""
    try:
        os.ftruncate(target, size)
    except OSError as error:
        raise Problem.of("truncate", error) from error


def write_all(target: int, data: memoryview | bytes, offset: int) -> None:
    """Writes all of ``data`` at ``offset``; raises ``Problem``."""
    view = memoryview(data)
    while view:
        try:
            put = os.pwrite(target, view, offset)
        except OSError as error:
            raise Problem.of("write", error) from error
        if not put:
            raise Problem("write", errno.EIO, text="nothing was written")
        view = view[put:]
        offset += put
