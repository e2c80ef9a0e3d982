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
    BYTES_PER_READ,
    DIRECT_IO_ALIGNMENT,
    IncrementalDigest,
    borrowed_buffer,
    disable_direct_io,
    drop_cached_pages,
    early_end_of_file_problem,
    enable_direct_io,
    read_with_retries,
)
from pcopy.fsio.copy_methods import FileSystemTransferTraitsCache
from pcopy.fsio.helper_thread import HelperThread
from pcopy.fsio.problem import Problem
from pcopy.fsio.retries import call_with_retries
from pcopy.fsio.throttle import Throttle

MIN_SIZE_FOR_THREADS = 8 << 20
"""Length in bytes from which on the copy of a range of a file uses helper threads."""

_DIGEST_BUFFER_COUNT = 4
"""Number of buffers that are used in turn when a helper thread computes the digest: while one is filled, others are
written to the target or digested.
"""

WRITE_BACK_SIZE = 8 << 20
"""Number of written bytes after which write-back is started by a call: enough for large requests to the storage, and
few enough that it starts early.
"""

_MAX_WRITE_BACK_REQUESTS = 4
"""With ``--drop-cache``: maximum number of write-back requests that wait. This limits the amount of cached data."""

DIRECT_IO_SIZE = 4 << 20
"""Bytes of one read or write with O_DIRECT: each call waits for the storage, which is faster with large requests."""

MIN_SIZE_FOR_READ_AHEAD = 64 << 20
"""Length in bytes from which on a range is read ahead by another thread.

Reading ahead takes a sixth more processor time. But there are usually few such large files, and other processors are
idle.
"""

_READ_AHEAD_PIECE_COUNT = 2
"""Number of pieces that the helper thread reads ahead while another piece is written."""

_WRITE_BACK_UNSUPPORTED_ERRNOS = (errno.ENOSYS, errno.EPERM, errno.EINVAL, errno.ESPIPE, errno.EOPNOTSUPP)
"""Errors of sync_file_range(2), which starts write-back, that mean that it is not supported."""
_ALLOCATION_FAILURE_ERRNOS = (errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EROFS)
"""Errors of fallocate(2) with which the following writes would fail, too: the file fails immediately."""

_idle_threads: list[HelperThread] = []
"""Helper threads of this process that have no work; the next copy uses them again."""
os.register_at_fork(after_in_child=_idle_threads.clear)  # threads do not survive a fork


class PageCachePolicy(NamedTuple):
    """The user's choice for the page cache: bypass it (``direct``, the option ``--direct``), or remove data from it
    after the copy (``drop_cache``, ``--drop-cache``).
    """

    direct: bool = False
    drop_cache: bool = False


DEFAULT_PAGE_CACHE_POLICY = PageCachePolicy()
"""The default treatment of the page cache: contents go through it and stay there."""


class UserSpaceFileCopier:
    """Copies bytes from one open file to another, with helper threads if the range is large. It is a context manager,
    at the end of whose block the helper threads are released.
    """

    def __init__(
        self,
        source: int,
        target: int,
        length: int,
        digest: IncrementalDigest | None,
        known: FileSystemTransferTraitsCache,
        device: int,
        manner: PageCachePolicy,
    ) -> None:
        """Prepare a copy of at most ``length`` bytes.

        Args:
            source: descriptor to read from.
            target: descriptor to write to.
            digest: object that receives the contents, None if they are not digested.
            known: cache of the traits of file systems, which say what makes copies to them fast.
            device: st_dev of the target.
            manner: treatment of the page cache.
        """
        self._source = source
        self._target = target
        self._known_file_systems = known
        self._device = device
        self._cache_policy = manner
        self._traits = known.transfer_traits_of_file_system(device, target)
        self._borrowed = ExitStack()
        self._digest_thread: HelperThread | None = None
        self._write_back: BackgroundWriteBack | None = None
        is_large = length >= MIN_SIZE_FOR_THREADS
        if digest is not None and is_large:
            self._digest_thread = self._borrowed.enter_context(_borrowed_helper_thread())
            digest = _ThreadedDigest(digest, self._digest_thread)
        self.digest = digest
        """The digest to which the contents are added in order, or None. Another thread may compute it: it includes all
        contents only after ``wait_for_helper_threads``.
        """
        self.throttle = Throttle()
        if manner.drop_cache or (is_large and self._traits.gains_by_early_write_back and not manner.direct):
            self._write_back = BackgroundWriteBack(
                source, target, self._borrowed.enter_context(_borrowed_helper_thread()), drops=manner.drop_cache
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._borrowed.close()

    def copy(self, start: int, end: int) -> Iterator[int]:
        """Generator: copy the bytes from offset ``start`` to offset ``end``; yield the number of bytes of each step.
        Raise ``Problem``.
        """
        if end - start >= BYTES_PER_READ and self._traits.gains_by_preallocation:
            self._preallocate(start, end)
        if self._cache_policy.direct:
            yield from self._copy_with_direct_io(start, end)
        elif end - start >= MIN_SIZE_FOR_READ_AHEAD and not self.throttle.is_on:
            yield from self._copy_with_read_ahead(start, end, BUFFER_BYTES)
        else:
            yield from self._copy_through_page_cache(start, end)

    def wait_for_helper_threads(self, start: int, end: int) -> None:
        """Wait until the helper threads have done their work, after all bytes from ``start`` to ``end`` were copied.
        Raise ``Problem``, also for an error of a helper thread.
        """
        if self._digest_thread is not None:
            self._digest_thread.wait()
        if self._write_back is not None:
            self._write_back.wait_for_write_back()
        if self._cache_policy.drop_cache:
            drop_cached_pages(self._source, start, end - start)

    def _preallocate(self, start: int, end: int) -> None:
        """Allocate the space of the target from offset ``start`` to ``end``. If the file system does not support that,
        record it, so that it is not tried again there.

        Raise ``Problem`` if the file system is full or cannot be written.
        """
        try:
            libc.fallocate(self._target, start, end - start)
        except OSError as error:
            if error.errno in _ALLOCATION_FAILURE_ERRNOS:
                raise Problem.from_error("fallocate", error) from error
            self._known_file_systems.disable_preallocation(self._device)
            self._traits = self._known_file_systems.transfer_traits_of_file_system(self._device, self._target)

    def _copy_through_page_cache(self, start: int, end: int) -> Iterator[int]:
        """Generator: copy the bytes from offset ``start`` to ``end`` through the page cache; yield the number of bytes
        of each step. Raise ``Problem``.
        """
        digester, storer = self._digest_thread, self._write_back
        with ExitStack() as lent:
            count = _DIGEST_BUFFER_COUNT if digester is not None else 1
            buffers = [lent.enter_context(borrowed_buffer()) for _ in range(count)]
            at, turn = start, 0
            while at < end:
                buffer = buffers[turn % count]
                turn += 1
                if digester is not None:
                    digester.wait(count - 1)  # until the previous contents of this buffer are digested
                size = min(BYTES_PER_READ, end - at)
                if self.throttle.is_on:
                    size = self.throttle.bytes_to_copy_next(size)
                    yield from self.throttle.charge_bytes(size)
                reading = read_with_retries(self._source, buffer[:size], at, on_source=True)
                count_read = yield from reading
                if not count_read:
                    raise early_end_of_file_problem("read", at, on_source=True)
                piece = buffer[:count_read]
                if self.digest is not None:
                    self.digest.update(piece)
                write_all(self._target, piece, at)
                at += count_read
                if storer is not None:
                    storer.record_written_range(at - count_read, at)
                yield count_read
            if digester is not None:
                digester.wait()  # before the buffers are given back and used for other data

    def _copy_with_direct_io(self, start: int, end: int) -> Iterator[int]:
        """Generator: copy the bytes from offset ``start`` to ``end``; yield the number of bytes of each step. Whole
        pages are copied with O_DIRECT, reading and writing in parallel; the bytes before and after them go through the
        page cache. Raise ``Problem``.
        """
        first, last = (
            -(-start // DIRECT_IO_ALIGNMENT) * DIRECT_IO_ALIGNMENT,
            end // DIRECT_IO_ALIGNMENT * DIRECT_IO_ALIGNMENT,
        )
        if first >= last:
            yield from self._copy_through_page_cache(start, end)
            return
        yield from self._copy_through_page_cache(start, first)
        enable_direct_io(self._source)
        enable_direct_io(self._target)
        try:
            yield from self._copy_with_read_ahead(first, last, DIRECT_IO_SIZE)
        finally:
            disable_direct_io(self._source)
            disable_direct_io(self._target)
        yield from self._copy_through_page_cache(last, end)

    def _copy_with_read_ahead(self, start: int, end: int, size: int) -> Iterator[int]:
        """Generator: copy the bytes from offset ``start`` to ``end`` in pieces of ``size`` bytes, while another thread
        reads the next pieces; yield the number of bytes of each piece. Raise ``Problem``.
        """
        step = self.throttle.bytes_to_copy_next(size)
        starts = range(start, end, step)
        count = _READ_AHEAD_PIECE_COUNT + (1 if self._digest_thread is None else 2)
        with ExitStack() as lent:
            buffers = [lent.enter_context(borrowed_buffer(size)) for _ in range(min(count, len(starts)))]
            reader = lent.enter_context(
                _borrowed_helper_thread()
            )  # entered last: it stops before the buffers are given back
            submitted = 0
            for number, at in enumerate(starts):
                if self._digest_thread is not None:
                    # Until the previous contents of the buffer that is filled next are digested.
                    self._digest_thread.wait(count - 1 - _READ_AHEAD_PIECE_COUNT)
                while submitted < min(number + _READ_AHEAD_PIECE_COUNT + 1, len(starts)):
                    ahead = starts[submitted]
                    piece = buffers[submitted % count][: min(step, end - ahead)]
                    reader.submit_call(_read_until_buffer_is_full, self._source, piece, ahead)
                    submitted += 1
                reader.wait(submitted - number - 1)
                piece = buffers[number % count][: min(step, end - at)]
                if self.throttle.is_on:
                    yield from self.throttle.charge_bytes(len(piece))
                if self.digest is not None:
                    self.digest.update(piece)
                write_all(self._target, piece, at)
                if self._write_back is not None:
                    self._write_back.record_written_range(at, at + len(piece))
                yield len(piece)
            if self._digest_thread is not None:
                self._digest_thread.wait()


class BackgroundWriteBack:
    """Starts, in a helper thread, the write-back of copied data to storage, while more is copied. With ``drops`` it
    also removes the pages from the page cache as soon as they are on storage.
    """

    def __init__(self, source: int, target: int, aide: HelperThread, *, drops: bool) -> None:
        self._source = source
        self._target = target
        self._thread = aide
        self._drops_pages = drops
        self._start = self._end = -1
        self._previous: tuple[int, int] | None = None

    def record_written_range(self, start: int, end: int) -> None:
        """Record that the bytes of the target from offset ``start`` to ``end`` were written. If ``WRITE_BACK_SIZE``
        bytes have been written since the last request, start their write-back, unless the storage is still busy with an
        earlier request: then the next request covers them.

        An error of the write-back is raised by a later call of this method, or by ``wait_for_write_back``.
        """
        if self._start < 0:
            self._start = start
        self._end = end
        if end - self._start < WRITE_BACK_SIZE:
            return
        if self._drops_pages:
            self._thread.wait(_MAX_WRITE_BACK_REQUESTS)
        elif self._thread.pending_call_count:
            return  # the storage is slower than the copy: the next request covers more bytes
        self._request_write_back()

    def wait_for_write_back(self) -> None:
        """Wait for all write-back requests, after the last write. Raise ``Problem``.

        Bytes that no request covers are brought to storage by the sync at the end of the job, unless their pages must
        be dropped here.
        """
        if self._drops_pages and self._start >= 0:
            self._request_write_back()
        self._thread.wait()
        if self._previous is not None and self._drops_pages:
            self._drop_stored_pages(*self._previous)

    def _request_write_back(self) -> None:
        """Make the helper thread start the write-back of the bytes that were written since the last request."""
        self._thread.submit_call(self._start_write_back, self._start, self._end - self._start)
        self._start = self._end

    def _start_write_back(self, start: int, length: int) -> None:
        """Start the write-back of ``length`` bytes from the offset ``start`` on. If pages are dropped, also wait until
        the bytes of the request before are on storage, and drop their pages. Runs in the helper thread.
        """
        _sync_range(self._target, start, length, libc.SYNC_RANGE_WRITE)
        if self._drops_pages:
            if self._previous is not None:
                self._drop_stored_pages(*self._previous)
            self._previous = start, length

    def _drop_stored_pages(self, start: int, length: int) -> None:
        """Wait until ``length`` bytes from the offset ``start`` on are on storage, and remove their pages from the page
        cache, those of source and target.
        """
        _sync_range(
            self._target,
            start,
            length,
            libc.SYNC_RANGE_WAIT_BEFORE | libc.SYNC_RANGE_WRITE | libc.SYNC_RANGE_WAIT_AFTER,
        )
        drop_cached_pages(self._target, start, length)
        drop_cached_pages(self._source, start, length)


class _ThreadedDigest:
    """A digest (``IncrementalDigest``) that a helper thread computes: ``update`` and ``add_zero_bytes`` return
    immediately. The caller must not change the data until that thread has processed them.
    """

    def __init__(self, digest: IncrementalDigest, thread: HelperThread) -> None:
        self._digest = digest
        self._thread = thread

    def update(self, data: memoryview | bytes) -> None:
        self._thread.submit_call(self._digest.update, data)

    def add_zero_bytes(self, count: int) -> None:
        self._thread.submit_call(self._digest.add_zero_bytes, count)


def write_all(target: int, data: memoryview | bytes, offset: int) -> None:
    """Write all of ``data`` to the file ``target`` at ``offset``. If the file is open with O_DIRECT and the write is
    refused, write through the page cache. Raise ``Problem``.
    """
    view = memoryview(data)
    while view:
        try:
            written = os.pwrite(target, view, offset)
        except OSError as error:
            if error.errno == errno.EINVAL and disable_direct_io(target):
                continue
            raise Problem.from_error("write", error) from error
        if not written:
            raise Problem("write", errno.EIO, text="the system call wrote 0 bytes")
        view = view[written:]
        offset += written


def _read_until_buffer_is_full(source: int, piece: memoryview, at: int) -> None:
    """Read from the offset ``at`` of the file ``source`` until the buffer ``piece`` is full. Raise ``Problem``, also if
    the file ends before that.
    """
    filled = 0
    while filled < len(piece):
        try:
            count = call_with_retries(lambda: os.preadv(source, [piece[filled:]], at + filled))  # noqa: B023 (called in this iteration)
        except OSError as error:
            if error.errno == errno.EINVAL and disable_direct_io(source):
                continue
            raise Problem.from_error("read", error, on_source=True) from error
        if not count:
            raise early_end_of_file_problem("read", at + filled, on_source=True)
        filled += count


def _sync_range(target: int, start: int, length: int, flags: int) -> None:
    """Call sync_file_range(2) with ``flags`` for ``length`` bytes of the file ``target`` from the offset ``start`` on.
    Raise ``Problem`` if write-back failed, since the system reports lost data only once.

    If the call is not supported, nothing is done: the sync at the end of the job brings everything to storage.
    """
    try:
        libc.sync_file_range(target, start, length, flags)
    except OSError as error:
        if error.errno not in _WRITE_BACK_UNSUPPORTED_ERRNOS:
            raise Problem.from_error("sync_file_range", error) from error


@contextmanager
def _borrowed_helper_thread() -> Iterator[HelperThread]:
    """Context manager: yield a helper thread that has no work. At the end of the block, wait until its calls are
    finished, and keep the thread for the next use.
    """
    aide = _idle_threads.pop() if _idle_threads else HelperThread()
    try:
        yield aide
    finally:
        aide.wait_for_calls_ignoring_errors()
        _idle_threads.append(aide)
