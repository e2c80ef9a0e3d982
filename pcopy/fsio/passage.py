"""Copying of file contents through memory: read, digest, write, with helper threads for large files.

One thread writes, because two writers of a local file would only wait for each other's inode lock. For a large stretch
of a file up to three helper threads run: one reads ahead, one computes the digest, and one starts the write-back of
data while more is copied (``pcopy.fsio.ways``). Space is allocated before the copy where that is faster, but never for
holes.

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
from pcopy.fsio.aide import Aide
from pcopy.fsio.contents import (
    PIECE,
    SECTOR,
    SIZE,
    Digest,
    bypass_cache,
    cut_short,
    drop_pages,
    lent_buffer,
    read_some,
    use_cache,
)
from pcopy.fsio.patience import patiently
from pcopy.fsio.problem import Problem
from pcopy.fsio.throttle import Throttle
from pcopy.fsio.ways import KnownWays
from pcopy.named import NamedTuple

BESIDE_FROM = 8 << 20
"""Bytes from which on a stretch is worth a helper thread."""

_UNDIGESTED = 4
"""Number of buffers that are used in turn: filled, written, and read by the thread that computes the digest."""

STORED_AT_ONCE = 8 << 20
"""Bytes for which write-back is started by one call: enough for large requests to the storage, and few enough to start
early.
"""

_UNSTORED = 4
"""Maximum number of write-back requests that wait where pages are dropped; it limits the amount of cached data."""

DIRECT_PIECE = 4 << 20
"""Bytes of one direct read or write: each waits for the storage, which is faster with large requests."""

AHEAD_FROM = 64 << 20
"""Bytes from which on a stretch is read ahead by another thread.

That takes a sixth more processor time. But such large files are usually few, and other processors are idle.
"""

_AHEAD = 2
"""Number of pieces that are read while another one is written."""

_NO_STORING = (errno.ENOSYS, errno.EPERM, errno.EINVAL, errno.ESPIPE, errno.EOPNOTSUPP)
"""Errors of sync_file_range(2) that mean that it is not supported."""
_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EROFS)
"""Errors of fallocate(2) that the following writes would meet, too."""

_spare_aides: list[Aide] = []
"""Idle helper threads of this process, to be used again."""
os.register_at_fork(after_in_child=_spare_aides.clear)  # threads do not survive a fork


class Manner(NamedTuple):
    """The user's choice for the page cache: bypass it (``direct``), or remove data from it after the copy
    (``drop_cache``).
    """

    direct: bool = False
    drop_cache: bool = False


AS_EVER = Manner()
"""The default: contents go through the page cache and stay there."""


class Passage:
    """A copy of bytes between two open files, for one task. Used as a context manager."""

    def __init__(
        self,
        source: int,
        target: int,
        length: int,
        digest: Digest | None,
        known: KnownWays,
        device: int,
        manner: Manner,
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
        self._known = known
        self._device = device
        self._manner = manner
        self._ways = known.of(device, target)
        self._lent = ExitStack()
        self._digester: Aide | None = None
        self._storer: Storer | None = None
        is_large = length >= BESIDE_FROM
        if digest is not None and is_large:
            self._digester = self._lent.enter_context(_lent_aide())
            digest = _DigestBeside(digest, self._digester)
        self.digest = digest
        """Receives the contents in order. It has processed all of them only after ``finish``."""
        self.throttle = Throttle()
        if manner.drop_cache or (is_large and self._ways.writes_back and not manner.direct):
            self._storer = Storer(source, target, self._lent.enter_context(_lent_aide()), drops=manner.drop_cache)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._lent.close()

    def move(self, start: int, end: int) -> Iterator[int]:
        """Copy the bytes from offset ``start`` to offset ``end``; yield the number of bytes of each step.

        Raise ``Problem``.
        """
        if end - start >= PIECE and self._ways.preallocates:
            self._preallocate(start, end)
        if self._manner.direct:
            yield from self._move_directly(start, end)
        elif end - start >= AHEAD_FROM and not self.throttle.is_on:
            yield from self._move_ahead(start, end, SIZE)
        else:
            yield from self._move_cached(start, end)

    def finish(self, start: int, end: int) -> None:
        """Wait for the helper threads after all bytes from ``start`` to ``end`` were copied. Raise ``Problem``."""
        if self._digester is not None:
            self._digester.wait()
        if self._storer is not None:
            self._storer.finish()
        if self._manner.drop_cache:
            drop_pages(self._source, start, end - start)

    def _preallocate(self, start: int, end: int) -> None:
        """Allocate the space of the stretch; if the file system refuses that, do not ask it again.

        Raise ``Problem`` if it is full.
        """
        try:
            libc.fallocate(self._target, start, end - start)
        except OSError as error:
            if error.errno in _NO_ROOM:
                raise Problem.of("fallocate", error) from error
            self._known.never_preallocate(self._device)
            self._ways = self._known.of(self._device, self._target)

    def _move_cached(self, start: int, end: int) -> Iterator[int]:
        """Copy a stretch through the page cache; yield the number of bytes of each step. Raise ``Problem``."""
        digester, storer = self._digester, self._storer
        with ExitStack() as lent:
            count = _UNDIGESTED if digester is not None else 1
            buffers = [lent.enter_context(lent_buffer()) for _ in range(count)]
            at, turn = start, 0
            while at < end:
                buffer = buffers[turn % count]
                turn += 1
                if digester is not None:
                    digester.wait(count - 1)  # until the previous contents of this buffer are digested
                size = min(PIECE, end - at)
                if self.throttle.is_on:
                    size = self.throttle.piece(size)
                    yield from self.throttle.moves(size)
                reading = read_some(self._source, buffer[:size], at, on_source=True)
                count_read = yield from reading
                if not count_read:
                    raise cut_short("read", at, on_source=True)
                piece = buffer[:count_read]
                if self.digest is not None:
                    self.digest.update(piece)
                write_all(self._target, piece, at)
                at += count_read
                if storer is not None:
                    storer.wrote(at - count_read, at)
                yield count_read
            if digester is not None:
                digester.wait()  # before the buffers are given back and used for other data

    def _move_directly(self, start: int, end: int) -> Iterator[int]:
        """Copy whole pages directly, reading and writing in parallel; copy the bytes before and after them through the
        cache.
        """
        first, last = -(-start // SECTOR) * SECTOR, end // SECTOR * SECTOR
        if first >= last:
            yield from self._move_cached(start, end)
            return
        yield from self._move_cached(start, first)
        bypass_cache(self._source)
        bypass_cache(self._target)
        try:
            yield from self._move_ahead(first, last, DIRECT_PIECE)
        finally:
            use_cache(self._source)
            use_cache(self._target)
        yield from self._move_cached(last, end)

    def _move_ahead(self, start: int, end: int, size: int) -> Iterator[int]:
        """Copy a stretch in pieces of ``size`` bytes while another thread reads the next ones. Raise ``Problem``."""
        step = self.throttle.piece(size)
        starts = range(start, end, step)
        count = _AHEAD + (1 if self._digester is None else 2)
        with ExitStack() as lent:
            buffers = [lent.enter_context(lent_buffer(size)) for _ in range(min(count, len(starts)))]
            reader = lent.enter_context(_lent_aide())  # entered last: it stops before the buffers are given back
            submitted = 0
            for number, at in enumerate(starts):
                if self._digester is not None:
                    # Until the previous contents of the buffer that is filled next are digested.
                    self._digester.wait(count - 1 - _AHEAD)
                while submitted < min(number + _AHEAD + 1, len(starts)):
                    ahead = starts[submitted]
                    piece = buffers[submitted % count][: min(step, end - ahead)]
                    reader.hand(_read_all, self._source, piece, ahead)
                    submitted += 1
                reader.wait(submitted - number - 1)
                piece = buffers[number % count][: min(step, end - at)]
                if self.throttle.is_on:
                    yield from self.throttle.moves(len(piece))
                if self.digest is not None:
                    self.digest.update(piece)
                write_all(self._target, piece, at)
                if self._storer is not None:
                    self._storer.wrote(at, at + len(piece))
                yield len(piece)
            if self._digester is not None:
                self._digester.wait()


class Storer:
    """Starts the write-back of data that was written while more is copied; with ``drops`` it then removes the pages
    from the cache.
    """

    def __init__(self, source: int, target: int, aide: Aide, *, drops: bool) -> None:
        self._source = source
        self._target = target
        self._aide = aide
        self._drops = drops
        self._start = self._end = -1
        self._before: tuple[int, int] | None = None

    def wrote(self, start: int, end: int) -> None:
        """Record that the bytes from ``start`` to ``end`` are in the cache, and start their write-back when they are
        enough.

        An error of the write-back is raised by a later call.
        """
        if self._start < 0:
            self._start = start
        self._end = end
        if end - self._start < STORED_AT_ONCE:
            return
        if self._drops:
            self._aide.wait(_UNSTORED)
        elif self._aide.under_way:
            return  # the storage is slower than the copy: the next request covers more bytes
        self._order()

    def finish(self) -> None:
        """Wait for the write-back requests after the last write. Raise ``Problem``.

        Bytes without a request are stored by the sync at the end, unless their pages must be dropped here.
        """
        if self._drops and self._start >= 0:
            self._order()
        self._aide.wait()
        if self._before is not None and self._drops:
            self._drop(*self._before)

    def _order(self) -> None:
        """Hand the bytes that were written since the last request to the helper thread."""
        self._aide.hand(self._store, self._start, self._end - self._start)
        self._start = self._end

    def _store(self, start: int, length: int) -> None:
        """Start the write-back of these bytes, and wait for the stretch before. Runs in the helper thread."""
        _sync_range(self._target, start, length, libc.WRITE)
        if self._drops:
            if self._before is not None:
                self._drop(*self._before)
            self._before = start, length

    def _drop(self, start: int, length: int) -> None:
        """Wait until these bytes are on storage, and remove their pages from the cache on both sides."""
        _sync_range(self._target, start, length, libc.WAIT_BEFORE | libc.WRITE | libc.WAIT_AFTER)
        drop_pages(self._target, start, length)
        drop_pages(self._source, start, length)


class _DigestBeside:
    """A digest that another thread computes. Data must stay unchanged until that thread has processed it."""

    def __init__(self, digest: Digest, aide: Aide) -> None:
        self._digest = digest
        self._aide = aide

    def update(self, data: memoryview | bytes) -> None:
        self._aide.hand(self._digest.update, data)

    def zeros(self, count: int) -> None:
        self._aide.hand(self._digest.zeros, count)


def write_all(target: int, data: memoryview | bytes, offset: int) -> None:
    """Write all of ``data`` at ``offset``, through the page cache if a direct write is refused. Raise ``Problem``."""
    view = memoryview(data)
    while view:
        try:
            written = os.pwrite(target, view, offset)
        except OSError as error:
            if error.errno == errno.EINVAL and use_cache(target):
                continue
            raise Problem.of("write", error) from error
        if not written:
            raise Problem("write", errno.EIO, text="nothing was written")
        view = view[written:]
        offset += written


def _read_all(source: int, piece: memoryview, at: int) -> None:
    """Fill ``piece`` from the offset ``at``. Raise ``Problem``, also if the file ends before."""
    filled = 0
    while filled < len(piece):
        try:
            count = patiently(lambda: os.preadv(source, [piece[filled:]], at + filled))  # noqa: B023 (called in this iteration)
        except OSError as error:
            if error.errno == errno.EINVAL and use_cache(source):
                continue
            raise Problem.of("read", error, on_source=True) from error
        if not count:
            raise cut_short("read", at + filled, on_source=True)
        filled += count


def _sync_range(target: int, start: int, length: int, flags: int) -> None:
    """Call sync_file_range(2) with ``flags``. Raise ``Problem`` for lost data, which the system reports only once.

    Nothing is done where the call is not supported: the sync at the end of the job stores everything.
    """
    try:
        libc.sync_file_range(target, start, length, flags)
    except OSError as error:
        if error.errno not in _NO_STORING:
            raise Problem.of("sync_file_range", error) from error


@contextmanager
def _lent_aide() -> Iterator[Aide]:
    """Lend an idle helper thread, which has finished all its work when the block ends."""
    aide = _spare_aides.pop() if _spare_aides else Aide()
    try:
        yield aide
    finally:
        aide.finish()
        _spare_aides.append(aide)
