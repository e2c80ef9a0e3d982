"""Copying of the contents of regular files, by the fastest method that is correct.

- A clone (FICLONE) shares the source's extents and moves no bytes.
- With copy_file_range(2), a file server copies without sending the bytes to this host.
- Reading and writing in pieces (``pcopy.fsio.memory_copy``) always works.

Holes are skipped. A function copies all requested bytes or raises ``Problem``; a write of 0 bytes is an error.

If a digest is wanted, the contents must pass through memory. Holes are digested without being read. A file that was
cloned is read once, for its digest only.
"""

from __future__ import annotations

import errno
import fcntl
import os
from collections.abc import Callable, Generator, Iterator

from pcopy.fsio.contents import (
    IncrementalDigest,
    PseudoFileSystemCache,
    data_extents,
    digest_contents,
    digest_hole,
    may_have_holes,
    pieces_of_pseudo_file,
    read_file_in_pieces_to_end,
)
from pcopy.fsio.copy_methods import FileSystemTransferTraitsCache
from pcopy.fsio.memory_copy import DEFAULT_PAGE_CACHE_POLICY, PageCachePolicy, UserSpaceFileCopier, write_all
from pcopy.fsio.problem import Problem, errors_as_problem
from pcopy.fsio.throttle import Throttle, UntransferredBytes, throttled_steps

COPY_FILE_RANGE_BYTES = 8 << 20
"""Maximum bytes that one call of copy_file_range(2) copies."""

FICLONE = 0x40049409
"""The request number of ioctl_ficlone(2)."""

_CLONE_UNSUPPORTED_ERRNOS = (errno.EOPNOTSUPP, errno.EXDEV, errno.ENOTTY, errno.ENOSYS, errno.EPERM)
"""Errors of FICLONE after which it is not tried again between the same two file systems."""
_CLONE_REFUSED_ERRNOS = (*_CLONE_UNSUPPORTED_ERRNOS, errno.EINVAL, errno.EBADF, errno.ETXTBSY)
"""Errors of FICLONE after which the contents are copied by other calls, unless ``--reflink always`` is given."""
_COPY_FILE_RANGE_UNSUPPORTED_ERRNOS = (errno.EXDEV, errno.EOPNOTSUPP, errno.ENOSYS, errno.EPERM)
"""Errors of copy_file_range(2) after which it is not tried again between the same two file systems."""


REFLINK_CHOICES = ("auto", "never", "always")
"""Values of ``--reflink``: whether a copy may share the blocks of its source (a clone).

``auto``: if possible; ``always``: a file that cannot be cloned fails; ``never``: not at all. ``never`` also excludes
copy_file_range(2), since the file system might share blocks in that call.
"""


class ContentsCopier:
    """Copies contents between files, and remembers between which file systems (pairs of st_dev) FICLONE and
    copy_file_range(2) do not work.
    """

    def __init__(
        self, *, sparse: bool, reflink: str = "auto", cache_policy: PageCachePolicy = DEFAULT_PAGE_CACHE_POLICY
    ) -> None:
        self._sparse = sparse
        self._reflink = reflink
        self._cache_policy = cache_policy
        self._clone_errno: dict[tuple[int, int], int] = {}
        self._without_copy_file_range: set[tuple[int, int]] = set()
        self.transfer_traits = FileSystemTransferTraitsCache()
        self.throttle = Throttle()
        self.generated_file_systems = PseudoFileSystemCache()

    def clone_file(self, source: int, target: int, devices: tuple[int, int]) -> bool:
        """Make the file ``target`` share all blocks of ``source`` (FICLONE). Return False if that is impossible, or
        excluded by ``--reflink never``.

        ``source`` and ``target`` are descriptors, ``devices`` their st_dev. Raise ``Problem``; with ``--reflink
        always`` also if the file cannot be cloned.
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

    def copy_all_contents(
        self,
        source: int,
        target: int,
        status: os.stat_result,
        devices: tuple[int, int],
        digest: IncrementalDigest | None = None,
        *,
        extend: Callable[[int], None],
    ) -> Generator[int, None, None]:
        """Generator: copy all contents of ``source`` into the empty file ``target``, by the fastest method that works.
        Yield the number of bytes that each step moved; raise ``Problem``.

        Args:
            source: descriptor of the source.
            target: descriptor of the target.
            status: status of the source.
            devices: st_dev of source and target.
            digest: object to which the contents are added; None if they are not digested.
            extend: function that sets the size of ``target`` before its contents are written. It is called only if
                holes are skipped.
        """
        size = status.st_size
        if self.generated_file_systems.is_on_pseudo_file_system(source, devices[0]):
            yield from _write_and_digest_pieces(pieces_of_pseudo_file(source, size), target, digest)
        elif not size:
            yield from _write_and_digest_pieces(read_file_in_pieces_to_end(source), target, digest)
        elif self.clone_file(source, target, devices):
            if digest is None:
                yield UntransferredBytes(size)
            else:
                yield from throttled_steps(
                    digest_contents(source, 0, size, digest, may_have_holes=may_have_holes(status)), self.throttle
                )
        else:
            if self._sparse and may_have_holes(status):
                extend(size)
            yield from self.copy_byte_range(
                source, target, 0, size, devices, may_have_holes=may_have_holes(status), digest=digest
            )

    def copy_byte_range(
        self,
        source: int,
        target: int,
        start: int,
        end: int,
        devices: tuple[int, int],
        *,
        may_have_holes: bool,
        digest: IncrementalDigest | None = None,
    ) -> Generator[int, None, None]:
        """Generator: copy the bytes of ``source`` from the offset ``start`` to ``end`` to the same offsets of
        ``target``. Yield the number of bytes that each step moved; raise ``Problem``.

        Args:
            source: descriptor of the source.
            target: descriptor of the target.
            start: offset of the first byte.
            end: offset after the last byte.
            devices: st_dev of source and target.
            may_have_holes: True if the source may have holes. Holes are skipped, and their bytes count as moved.
            digest: object to which the contents are added; None if they are not digested.
        """
        extents = data_extents(source, start, end) if may_have_holes and self._sparse else iter([(start, end)])
        in_kernel = (
            digest is None
            and devices not in self._without_copy_file_range
            and self._can_use_copy_file_range(target, devices)
        )
        at = start
        with UserSpaceFileCopier(
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
            passage.wait_for_helper_threads(start, end)

    def _can_use_copy_file_range(self, target: int, devices: tuple[int, int]) -> bool:
        """Return True if copy_file_range(2) may be used to copy to the file ``target``. ``devices`` are the st_dev of
        source and target.

        It is not used with ``--reflink never``, ``--direct`` or ``--drop-cache``, nor if the file system of ``target``
        is of a type whose server does not copy by itself.
        """
        if self._reflink == "never" or any(self._cache_policy):
            return False
        return self.transfer_traits.transfer_traits_of_file_system(devices[1], target).has_server_copy

    def _copy_file_range(
        self, source: int, target: int, start: int, end: int, devices: tuple[int, int]
    ) -> Generator[int, None, int]:
        """Generator: copy the bytes from ``start`` to ``end`` of the file ``source`` to the same offsets of ``target``
        with copy_file_range(2), as far as that is possible. Yield the bytes of each step; return the offset up to which
        bytes were copied. ``devices`` are the st_dev of the two files.

        An error is not raised, because it does not show which of the two files caused it. The caller then copies the
        rest by reading and writing, which shows that.
        """
        at = start
        while at < end:
            piece = min(COPY_FILE_RANGE_BYTES, end - at)
            if self.throttle.is_on:
                piece = self.throttle.bytes_to_copy_next(piece)
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


def _write_and_digest_pieces(
    pieces: Iterator[tuple[int, memoryview | bytes]], target: int, digest: IncrementalDigest | None
) -> Iterator[int]:
    """Generator: write ``pieces``, pairs (offset, bytes), to the file ``target``, and add them to ``digest`` (None: to
    none); yield the number of bytes of each piece.
    """
    for at, piece in pieces:
        if digest is not None:
            digest.update(piece)
        write_all(target, piece, at)
        yield len(piece)


def set_file_size(target: int, size: int) -> None:
    """Set the size of the file ``target`` to ``size`` bytes (ftruncate(2)); bytes that are added are a hole. Raise
    ``Problem``.
    """
    with errors_as_problem("truncate"):
        os.ftruncate(target, size)
