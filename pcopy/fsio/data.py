"""Moves the bytes of regular files, the fastest correct way.

A clone (FICLONE) shares the source's extents and moves nothing; copy_file_range(2) moves inside the kernel; read and
write in pieces that stay in cache always work. Holes are skipped. A transfer completes or raises; a write of nothing is
an error.

Where a digest is wanted, the contents must pass through memory: each piece is digested while it is in the cache. Holes
are digested without being read. A file that was cloned is read once, for its digest only.
"""

from __future__ import annotations

import errno
import fcntl
import os
from collections.abc import Generator, Iterator

from pcopy.fsio.contents import Digest, data_extents, digest_contents, has_holes, pieces, pieces_to_end, skip_hole
from pcopy.fsio.problem import Problem, failing

KERNEL_PIECE = 8 << 20
"""Bytes moved by one copy_file_range."""

FICLONE = 0x40049409
"""The request of ioctl_ficlone(2)."""

_NEVER_CLONES = (errno.EOPNOTSUPP, errno.EXDEV, errno.ENOTTY, errno.ENOSYS, errno.EPERM)
_NO_CLONE = (*_NEVER_CLONES, errno.EINVAL, errno.EBADF, errno.ETXTBSY)
_NEVER_KERNEL_COPIES = (errno.EXDEV, errno.EOPNOTSUPP, errno.ENOSYS, errno.EPERM)


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

    def fill(
        self, source: int, target: int, status: os.stat_result, devices: tuple[int, int], digest: Digest | None = None
    ) -> Iterator[int]:
        """Gives the empty ``target`` all of the contents of ``source``, whose status is ``status``.

        Yields the bytes that each step moved; raises ``Problem``.
        """
        size = status.st_size
        if not size:
            yield from _copy_pieces(pieces_to_end(source), target, digest)
        elif self.clone(source, target, devices):
            if digest is None:
                yield size
            else:
                yield from digest_contents(source, 0, size, digest, holes=has_holes(status))
        else:
            if self._sparse and has_holes(status):
                set_size(target, size)
            yield from self.copy(source, target, 0, size, devices, holes=has_holes(status), digest=digest)

    def copy(
        self,
        source: int,
        target: int,
        start: int,
        end: int,
        devices: tuple[int, int],
        *,
        holes: bool,
        digest: Digest | None = None,
    ) -> Iterator[int]:
        """Copies the bytes from ``start`` to ``end``, without its holes if there may be ``holes``.

        Yields the bytes that each step moved (holes count as moved); raises ``Problem``.
        """
        extents = data_extents(source, start, end) if holes and self._sparse else iter([(start, end)])
        at = start
        for first, after in extents:
            yield from skip_hole(at, first, digest)
            at = first
            if digest is None and devices not in self._no_kernel_copy:
                at = yield from self._copy_in_kernel(source, target, first, after, devices)
            yield from _copy_pieces(pieces(source, at, after), target, digest)
            at = after
        yield from skip_hole(at, end, digest)

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


def _copy_pieces(found: Iterator[tuple[int, memoryview | bytes]], target: int, digest: Digest | None) -> Iterator[int]:
    for at, piece in found:
        if digest is not None:
            digest.update(piece)
        write_all(target, piece, at)
        yield len(piece)


def set_size(target: int, size: int) -> None:
    """Makes the file ``size`` bytes long, with a hole where nothing was written; raises ``Problem``."""
    with failing("truncate"):
        os.ftruncate(target, size)


def write_all(target: int, data: memoryview | bytes, offset: int) -> None:
    """Writes all of ``data`` at ``offset``; raises ``Problem``."""
    view = memoryview(data)
    while view:
        with failing("write"):
            put = os.pwrite(target, view, offset)
        if not put:
            raise Problem("write", errno.EIO, text="nothing was written")
        view = view[put:]
        offset += put
