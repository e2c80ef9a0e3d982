"""Copying of file contents through memory: read, digest, write, with helper threads for large files.

One thread writes, because two writers of a local file would only wait for each other's inode lock. For a large stretch
of a file up to three helper threads run: one reads ahead, one computes the digest, and one starts the write-back of
data while more is copied (``pcopy.fsio.copy_methods``). Space is allocated before the copy where that is faster, but
never for holes.

With ``--direct`` both sides bypass the page cache (O_DIRECT). Parts that do not begin and end at a page boundary, and
parts that a file system refuses to move directly, go through the cache. With ``--drop-cache`` each part is removed from
the cache of both sides as soon as it is on storage.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from types import TracebackType
from typing import Self

from pcopy import libc
from pcopy.fast_named_tuple import NamedTuple
from pcopy.fsio.contents import (
    BUFFER_BYTES,
    DIRECT_IO_ALIGNMENT,
    PIECE_BYTES,
    Digest,
    borrowed_buffer,
    disable_direct_io,
    drop_cached_pages,
    early_end_problem,
    enable_direct_io,
    read_with_retries,
)
from pcopy.fsio.copy_methods import TransferTraitsCache
from pcopy.fsio.helper_thread import HelperThread
from pcopy.fsio.problem import Problem
from pcopy.fsio.retries import with_retries
from pcopy.fsio.throttle import Throttle

MIN_SIZE_FOR_THREADS = 8 << 20
"""Bytes from which on a stretch is worth a helper thread."""

_DIGEST_BUFFERS = 4
"""Number of buffers that are used in turn: filled, written, and read by the thread that computes the digest."""

WRITE_BACK_SIZE = 8 << 20
"""Bytes for which write-back is started by one call: enough for large requests to the storage, and few enough to start
early.
"""

_MAX_WRITE_BACK_REQUESTS = 4
"""Maximum number of write-back requests that wait where pages are dropped; it limits the amount of cached data."""

DIRECT_IO_SIZE = 4 << 20
"""Bytes of one direct read or write: each waits for the storage, which is faster with large requests."""

MIN_SIZE_FOR_READ_AHEAD = 64 << 20
"""Bytes from which on a stretch is read ahead by another thread.

That takes a sixth more processor time. But such large files are usually few, and other processors are idle.
"""

_READ_AHEAD_PIECES = 2
"""Number of pieces that are read while another one is written."""

_WRITE_BACK_UNSUPPORTED_ERRNOS = (errno.ENOSYS, errno.EPERM, errno.EINVAL, errno.ESPIPE, errno.EOPNOTSUPP)
"""Errors of sync_file_range(2) that mean that it is not supported."""
_ALLOCATION_FAILURE_ERRNOS = (errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EROFS)
"""Errors of fallocate(2) that the following writes would meet, too."""

_idle_threads: list[HelperThread] = []
"""Idle helper threads of this process, to be used again."""
os.register_at_fork(after_in_child=_idle_threads.clear)  # threads do not survive a fork


class CachePolicy(NamedTuple):
    """The user's choice for the page cache: bypass it (``direct``), or remove data from it after the copy
    (``drop_cache``).
    """

    direct: bool = False
    drop_cache: bool = False


DEFAULT_CACHE_POLICY = CachePolicy()
"""The default: contents go through the page cache and stay there."""


class ContentCopy:
    """A copy of bytes between two open files, for one task. Used as a context manager."""

    def __init__(
        self,
        source: int,
        target: int,
        length: int,
        digest: Digest | None,
        known: TransferTraitsCache,
        device: int,
        manner: CachePolicy,
    ) -> None:
        """Prepare a copy of at most ``length`` bytes.

        Args:
            source: descriptor to read from.
            target: descriptor to write to.
            digest: object that receives the contents, None if they are not digested.
            known: properties of the file systems that the rank has met.
            device: st_dev of the target.
            manner: treatment of the page cache.
        """
        self._source = source
        self._target = target
        self._known_file_systems = known
        self._device = device
        self._cache_policy = manner
        self._traits = known.traits_of(device, target)
        self._borrowed = ExitStack()
        self._digest_thread: HelperThread | None = None
        self._write_back: WriteBack | None = None
        is_large = length >= MIN_SIZE_FOR_THREADS
        if digest is not None and is_large:
            self._digest_thread = self._borrowed.enter_context(_borrowed_thread())
            digest = _ThreadedDigest(digest, self._digest_thread)
        self.digest = digest
        """Receives the contents in order. It has processed all of them only after ``finish``."""
        self.throttle = Throttle()
        if manner.drop_cache or (is_large and self._traits.gains_by_early_write_back and not manner.direct):
            self._write_back = WriteBack(
                source, target, self._borrowed.enter_context(_borrowed_thread()), drops=manner.drop_cache
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._borrowed.close()

    def copy(self, start: int, end: int) -> Iterator[int]:
        """Copy the bytes from offset ``start`` to offset ``end``; yield the number of bytes of each step.

        Raise ``Problem``.
        """
        if end - start >= PIECE_BYTES and self._traits.gains_by_preallocation:
            self._preallocate(start, end)
        if self._cache_policy.direct:
            yield from self._copy_directly(start, end)
        elif end - start >= MIN_SIZE_FOR_READ_AHEAD and not self.throttle.is_on:
            yield from self._copy_with_read_ahead(start, end, BUFFER_BYTES)
        else:
            yield from self._copy_cached(start, end)

    def finish(self, start: int, end: int) -> None:
        """Wait for the helper threads after all bytes from ``start`` to ``end`` were copied. Raise ``Problem``."""
        if self._digest_thread is not None:
            self._digest_thread.wait()
        if self._write_back is not None:
            self._write_back.finish()
        if self._cache_policy.drop_cache:
            drop_cached_pages(self._source, start, end - start)

    def _preallocate(self, start: int, end: int) -> None:
        """Allocate the space of the stretch; if the file system refuses that, do not ask it again.

        Raise ``Problem`` if it is full.
        """
        try:
            libc.fallocate(self._target, start, end - start)
        except OSError as error:
            if error.errno in _ALLOCATION_FAILURE_ERRNOS:
                raise Problem.from_error("fallocate", error) from error
            self._known_file_systems.disable_preallocation(self._device)
            self._traits = self._known_file_systems.traits_of(self._device, self._target)

    def _copy_cached(self, start: int, end: int) -> Iterator[int]:
        """Copy a stretch through the page cache; yield the number of bytes of each step. Raise ``Problem``."""
        digester, storer = self._digest_thread, self._write_back
        with ExitStack() as lent:
            count = _DIGEST_BUFFERS if digester is not None else 1
            buffers = [lent.enter_context(borrowed_buffer()) for _ in range(count)]
            at, turn = start, 0
            while at < end:
                buffer = buffers[turn % count]
                turn += 1
                if digester is not None:
                    digester.wait(count - 1)  # until the previous contents of this buffer are digested
                size = min(PIECE_BYTES, end - at)
                if self.throttle.is_on:
                    size = self.throttle.piece_size(size)
                    yield from self.throttle.charge_bytes(size)
                reading = read_with_retries(self._source, buffer[:size], at, on_source=True)
                count_read = yield from reading
                if not count_read:
                    raise early_end_problem("read", at, on_source=True)
                piece = buffer[:count_read]
                if self.digest is not None:
                    self.digest.update(piece)
                write_all(self._target, piece, at)
                at += count_read
                if storer is not None:
                    storer.add_written(at - count_read, at)
                yield count_read
            if digester is not None:
                digester.wait()  # before the buffers are given back and used for other data

    def _copy_directly(self, start: int, end: int) -> Iterator[int]:
        """Copy whole pages directly, reading and writing in parallel; copy the bytes before and after them through the
        cache.
        """
        first, last = (
            -(-start // DIRECT_IO_ALIGNMENT) * DIRECT_IO_ALIGNMENT,
            end // DIRECT_IO_ALIGNMENT * DIRECT_IO_ALIGNMENT,
        )
        if first >= last:
            yield from self._copy_cached(start, end)
            return
        yield from self._copy_cached(start, first)
        enable_direct_io(self._source)
        enable_direct_io(self._target)
        try:
            yield from self._copy_with_read_ahead(first, last, DIRECT_IO_SIZE)
        finally:
            disable_direct_io(self._source)
            disable_direct_io(self._target)
        yield from self._copy_cached(last, end)

    def _copy_with_read_ahead(self, start: int, end: int, size: int) -> Iterator[int]:
        """Copy a stretch in pieces of ``size`` bytes while another thread reads the next ones. Raise ``Problem``."""
        step = self.throttle.piece_size(size)
        starts = range(start, end, step)
        count = _READ_AHEAD_PIECES + (1 if self._digest_thread is None else 2)
        with ExitStack() as lent:
            buffers = [lent.enter_context(borrowed_buffer(size)) for _ in range(min(count, len(starts)))]
            reader = lent.enter_context(_borrowed_thread())  # entered last: it stops before the buffers are given back
            submitted = 0
            for number, at in enumerate(starts):
                if self._digest_thread is not None:
                    # Until the previous contents of the buffer that is filled next are digested.
                    self._digest_thread.wait(count - 1 - _READ_AHEAD_PIECES)
                while submitted < min(number + _READ_AHEAD_PIECES + 1, len(starts)):
                    ahead = starts[submitted]
                    piece = buffers[submitted % count][: min(step, end - ahead)]
                    reader.submit(_read_all, self._source, piece, ahead)
                    submitted += 1
                reader.wait(submitted - number - 1)
                piece = buffers[number % count][: min(step, end - at)]
                if self.throttle.is_on:
                    yield from self.throttle.charge_bytes(len(piece))
                if self.digest is not None:
                    self.digest.update(piece)
                write_all(self._target, piece, at)
                if self._write_back is not None:
                    self._write_back.add_written(at, at + len(piece))
                yield len(piece)
            if self._digest_thread is not None:
                self._digest_thread.wait()


class WriteBack:
    """Starts the write-back of data that was written while more is copied; with ``drops`` it then removes the pages
    from the cache.
    """

    def __init__(self, source: int, target: int, aide: HelperThread, *, drops: bool) -> None:
        self._source = source
        self._target = target
        self._thread = aide
        self._drops_pages = drops
        self._start = self._end = -1
        self._previous: tuple[int, int] | None = None

    def add_written(self, start: int, end: int) -> None:
        """Record that the bytes from ``start`` to ``end`` are in the cache, and start their write-back when they are
        enough.

        An error of the write-back is raised by a later call.
        """
        if self._start < 0:
            self._start = start
        self._end = end
        if end - self._start < WRITE_BACK_SIZE:
            return
        if self._drops_pages:
            self._thread.wait(_MAX_WRITE_BACK_REQUESTS)
        elif self._thread.pending:
            return  # the storage is slower than the copy: the next request covers more bytes
        self._request()

    def finish(self) -> None:
        """Wait for the write-back requests after the last write. Raise ``Problem``.

        Bytes without a request are stored by the sync at the end, unless their pages must be dropped here.
        """
        if self._drops_pages and self._start >= 0:
            self._request()
        self._thread.wait()
        if self._previous is not None and self._drops_pages:
            self._drop_stored(*self._previous)

    def _request(self) -> None:
        """Hand the bytes that were written since the last request to the helper thread."""
        self._thread.submit(self._start_storing, self._start, self._end - self._start)
        self._start = self._end

    def _start_storing(self, start: int, length: int) -> None:
        """Start the write-back of these bytes, and wait for the stretch before. Runs in the helper thread."""
        _sync_range(self._target, start, length, libc.SYNC_RANGE_WRITE)
        if self._drops_pages:
            if self._previous is not None:
                self._drop_stored(*self._previous)
            self._previous = start, length

    def _drop_stored(self, start: int, length: int) -> None:
        """Wait until these bytes are on storage, and remove their pages from the cache on both sides."""
        _sync_range(
            self._target,
            start,
            length,
            libc.SYNC_RANGE_WAIT_BEFORE | libc.SYNC_RANGE_WRITE | libc.SYNC_RANGE_WAIT_AFTER,
        )
        drop_cached_pages(self._target, start, length)
        drop_cached_pages(self._source, start, length)


class _ThreadedDigest:
    """A digest that another thread computes. Data must stay unchanged until that thread has processed it."""

    def __init__(self, digest: Digest, aide: HelperThread) -> None:
        self._digest = digest
        self._thread = aide

    def update(self, data: memoryview | bytes) -> None:
        self._thread.submit(self._digest.update, data)

    def zeros(self, count: int) -> None:
        self._thread.submit(self._digest.zeros, count)


def write_all(target: int, data: memoryview | bytes, offset: int) -> None:
    """Write all of ``data`` at ``offset``, through the page cache if a direct write is refused. Raise ``Problem``."""
    view = memoryview(data)
    while view:
        try:
            written = os.pwrite(target, view, offset)
        except OSError as error:
            if error.errno == errno.EINVAL and disable_direct_io(target):
                continue
            raise Problem.from_error("write", error) from error
        if not written:
            raise Problem("write", errno.EIO, text="nothing was written")
        view = view[written:]
        offset += written


def _read_all(source: int, piece: memoryview, at: int) -> None:
    """Fill ``piece`` from the offset ``at``. Raise ``Problem``, also if the file ends before."""
    filled = 0
    while filled < len(piece):
        try:
            count = with_retries(lambda: os.preadv(source, [piece[filled:]], at + filled))  # noqa: B023 (called in this iteration)
        except OSError as error:
            if error.errno == errno.EINVAL and disable_direct_io(source):
                continue
            raise Problem.from_error("read", error, on_source=True) from error
        if not count:
            raise early_end_problem("read", at + filled, on_source=True)
        filled += count


def _sync_range(target: int, start: int, length: int, flags: int) -> None:
    """Call sync_file_range(2) with ``flags``. Raise ``Problem`` for lost data, which the system reports only once.

    Nothing is done where the call is not supported: the sync at the end of the job stores everything.
    """
    try:
        libc.sync_file_range(target, start, length, flags)
    except OSError as error:
        if error.errno not in _WRITE_BACK_UNSUPPORTED_ERRNOS:
            raise Problem.from_error("sync_file_range", error) from error


@contextmanager
def _borrowed_thread() -> Iterator[HelperThread]:
    """Lend an idle helper thread, which has finished all its work when the block ends."""
    aide = _idle_threads.pop() if _idle_threads else HelperThread()
    try:
        yield aide
    finally:
        aide.drain()
        _idle_threads.append(aide)
