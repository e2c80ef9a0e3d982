"""Copying of the contents of regular files, by the fastest method that is correct.

- A clone (FICLONE) shares the source's extents and moves no bytes.
- With copy_file_range(2), a file server copies without sending the bytes to this host.
- Reading and writing in pieces (``pcopy.fsio.memory_copy``) always works.

Holes are skipped. A transfer completes or raises; a write of 0 bytes is an error.

If a digest is wanted, the contents must pass through memory. Holes are digested without being read. A file that was
cloned is read once, for its digest only.
"""

from __future__ import annotations

import errno
import fcntl
import os
from collections.abc import Callable, Generator, Iterator

from pcopy.fsio.contents import (
    Digest,
    GeneratedFileSystems,
    data_extents,
    digest_contents,
    digest_hole,
    generated_pieces,
    may_have_holes,
    read_pieces_to_end,
)
from pcopy.fsio.copy_methods import TransferTraitsCache
from pcopy.fsio.memory_copy import DEFAULT_CACHE_POLICY, CachePolicy, ContentCopy, write_all
from pcopy.fsio.problem import Problem, as_problem
from pcopy.fsio.throttle import Throttle, UntransferredBytes, throttled

COPY_FILE_RANGE_BYTES = 8 << 20
"""Bytes moved by one call of copy_file_range(2)."""

FICLONE = 0x40049409
"""The request number of ioctl_ficlone(2)."""

_CLONE_UNSUPPORTED_ERRNOS = (errno.EOPNOTSUPP, errno.EXDEV, errno.ENOTTY, errno.ENOSYS, errno.EPERM)
"""Errors of FICLONE which mean that it is not tried again between these two file systems."""
_CLONE_REFUSED_ERRNOS = (*_CLONE_UNSUPPORTED_ERRNOS, errno.EINVAL, errno.EBADF, errno.ETXTBSY)
"""Errors of FICLONE after which the contents are copied by other means."""
_COPY_FILE_RANGE_UNSUPPORTED_ERRNOS = (errno.EXDEV, errno.EOPNOTSUPP, errno.ENOSYS, errno.EPERM)
"""Errors of copy_file_range(2) which mean that it is not tried again between these two file systems."""


REFLINK_CHOICES = ("auto", "never", "always")
"""Values of ``--reflink``: whether contents may be shared with the source.

``never`` also excludes copy_file_range(2), by which the file system might share them.
"""


class ContentsCopier:
    """Copies contents between files, and records between which file systems the fast methods do not work."""

    def __init__(
        self, *, sparse: bool, reflink: str = "auto", cache_policy: CachePolicy = DEFAULT_CACHE_POLICY
    ) -> None:
        self._sparse = sparse
        self._reflink = reflink
        self._cache_policy = cache_policy
        self._clone_errno: dict[tuple[int, int], int] = {}
        self._without_copy_file_range: set[tuple[int, int]] = set()
        self.transfer_traits = TransferTraitsCache()
        self.throttle = Throttle()
        self.generated_file_systems = GeneratedFileSystems()

    def clone(self, source: int, target: int, devices: tuple[int, int]) -> bool:
        """Make ``target`` share all extents of ``source``. Return False if that is impossible or not wanted.

        ``devices`` are the st_dev of source and target. Raise ``Problem``; with ``--reflink always`` also if the file
        cannot be cloned.
        """
        if self._reflink == "never":
            return False
        refused = self._clone_errno.get(devices, 0)
        if not refused:
            try:
                fcntl.ioctl(target, FICLONE, source)
                return True
            except OSError as error:
                if error.errno not in _CLONE_REFUSED_ERRNOS:
                    raise Problem.from_error("clone", error) from error
                refused = error.errno
            if refused in _CLONE_UNSUPPORTED_ERRNOS:
                self._clone_errno[devices] = refused
        if self._reflink == "always":
            raise Problem("clone", refused, text="it cannot be cloned, which --reflink always requires")
        return False

    def copy_all(
        self,
        source: int,
        target: int,
        status: os.stat_result,
        devices: tuple[int, int],
        digest: Digest | None = None,
        *,
        extend: Callable[[int], None],
    ) -> Generator[int, None, None]:
        """Copy all contents of ``source``, which has the given ``status``, into the empty file ``target``.

        Yield the number of bytes that each step moved; raise ``Problem``.

        Args:
            devices: st_dev of source and target.
            extend: sets the size of ``target`` before its contents are written (``NewFile.extend``). It is called if
                holes are skipped.
        """
        size = status.st_size
        if self.generated_file_systems.is_generated(source, devices[0]):
            yield from _copy_pieces(generated_pieces(source, size), target, digest)
        elif not size:
            yield from _copy_pieces(read_pieces_to_end(source), target, digest)
        elif self.clone(source, target, devices):
            if digest is None:
                yield UntransferredBytes(size)
            else:
                yield from throttled(
                    digest_contents(source, 0, size, digest, may_have_holes=may_have_holes(status)), self.throttle
                )
        else:
            if self._sparse and may_have_holes(status):
                extend(size)
            yield from self.copy_range(
                source, target, 0, size, devices, may_have_holes=may_have_holes(status), digest=digest
            )

    def copy_range(
        self,
        source: int,
        target: int,
        start: int,
        end: int,
        devices: tuple[int, int],
        *,
        may_have_holes: bool,
        digest: Digest | None = None,
    ) -> Generator[int, None, None]:
        """Copy the bytes from ``start`` to ``end``. Yield the number of bytes that each step moved; raise ``Problem``.

        Args:
            devices: st_dev of source and target.
            may_have_holes: True if the source may have holes. They are skipped, and count as moved.
        """
        extents = data_extents(source, start, end) if may_have_holes and self._sparse else iter([(start, end)])
        in_kernel = (
            digest is None
            and devices not in self._without_copy_file_range
            and self._can_use_copy_file_range(target, devices)
        )
        at = start
        with ContentCopy(
            source, target, end - start, digest, self.transfer_traits, devices[1], self._cache_policy
        ) as passage:
            passage.throttle = self.throttle
            for first, after in extents:
                yield from digest_hole(at, first, passage.digest)
                at = first
                if in_kernel:
                    at = yield from self._copy_file_range(source, target, first, after, devices)
                if at < after:
                    yield from passage.copy(at, after)
                at = after
            yield from digest_hole(at, end, passage.digest)
            passage.finish(start, end)

    def _can_use_copy_file_range(self, target: int, devices: tuple[int, int]) -> bool:
        """Return True if copy_file_range(2) is worth a try.

        It is not with ``--reflink never``, nor if the user wants direct I/O or an empty page cache (``CachePolicy``).
        """
        if self._reflink == "never" or any(self._cache_policy):
            return False
        return self.transfer_traits.traits_of(devices[1], target).has_server_copy

    def _copy_file_range(
        self, source: int, target: int, start: int, end: int, devices: tuple[int, int]
    ) -> Generator[int, None, int]:
        """Copy with copy_file_range(2) as far as possible; yield the bytes of each step; return the offset reached.

        An error does not show which of the two files caused it. So it is not raised: the caller continues by reading
        and writing, which finds out.
        """
        at = start
        while at < end:
            piece = min(COPY_FILE_RANGE_BYTES, end - at)
            if self.throttle.is_on:
                piece = self.throttle.piece_size(piece)
                yield from self.throttle.charge_bytes(piece)
            try:
                moved = os.copy_file_range(source, target, piece, at, at)
            except OSError as error:
                if error.errno in _COPY_FILE_RANGE_UNSUPPORTED_ERRNOS:
                    self._without_copy_file_range.add(devices)
                return at
            if not moved:
                return at
            at += moved
            yield moved
        return at


def _copy_pieces(pieces: Iterator[tuple[int, memoryview | bytes]], target: int, digest: Digest | None) -> Iterator[int]:
    """Write pieces to ``target`` at their offsets, and digest them; yield the number of bytes of each."""
    for at, piece in pieces:
        if digest is not None:
            digest.update(piece)
        write_all(target, piece, at)
        yield len(piece)


def set_size(target: int, size: int) -> None:
    """Set the size of the file ``target``, with a hole where nothing was written; raise ``Problem``."""
    with as_problem("truncate"):
        os.ftruncate(target, size)
