"""Contents pass through memory: read, digested and written, with threads beside for what need not be waited for.

One thread writes: two writers of a local file would only wait for each other. Of a large stretch another thread reads
ahead, one computes the digest, and one begins to store what was written while more is copied (``pcopy.fsio.ways``).
What a stretch needs is allocated before, where that helps; holes never are.

With ``--direct`` both sides are moved past the page cache. What does not begin and end with a page, and what a file
system refuses to move that way, goes through the cache. With ``--drop-cache`` each part leaves the cache on both sides
as soon as it is on storage.
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
"""Bytes that are worth a thread beside."""

_UNDIGESTED = 4
"""Buffers that are in turn filled, written, and read by the thread that digests."""

STORED_AT_ONCE = 8 << 20
"""Bytes of which storing is asked for at once: many for one request to the storage, few enough to begin soon."""

_UNSTORED = 4
"""Orders to store that may wait where pages are dropped: so much stays in the cache."""

DIRECT_PIECE = 4 << 20
"""Bytes of one direct read or write: each waits for the storage, which likes large ones."""

AHEAD_FROM = 64 << 20
"""Bytes of a stretch that is worth a thread that reads ahead: it takes a sixth of the processor time more, but of such
large files there are few as a rule, and other processors are idle."""

_AHEAD = 2
"""Pieces that are read while another one is written."""

_NO_STORING = (errno.ENOSYS, errno.EPERM, errno.EINVAL, errno.ESPIPE, errno.EOPNOTSUPP)
_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EROFS)

_spare_aides: list[Aide] = []
os.register_at_fork(after_in_child=_spare_aides.clear)  # their threads are not in the child


class Manner(NamedTuple):
    """How the user wants contents to move: past the page cache; and out of it again."""

    direct: bool = False
    drop_cache: bool = False


AS_EVER = Manner()


class Passage:
    """Between two open files, for one task; ``length`` bytes pass at most. Use as a context."""

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
        """Takes the contents in their order; what is known by then is complete after ``finish``."""
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
        """Copies the bytes from ``start`` to ``end``; yields how many each step moved. Raises ``Problem``."""
        if end - start >= PIECE and self._ways.preallocates:
            self._preallocate(start, end)
        if self._manner.direct:
            yield from self._move_directly(start, end)
        elif end - start >= AHEAD_FROM and not self.throttle.is_on:
            yield from self._move_ahead(start, end, SIZE)
        else:
            yield from self._move_cached(start, end)

    def finish(self, start: int, end: int) -> None:
        """All from ``start`` to ``end`` has passed: waits for what is done beside; raises ``Problem``."""
        if self._digester is not None:
            self._digester.wait()
        if self._storer is not None:
            self._storer.finish()
        if self._manner.drop_cache:
            drop_pages(self._source, start, end - start)

    def _preallocate(self, start: int, end: int) -> None:
        try:
            libc.fallocate(self._target, start, end - start)
        except OSError as error:
            if error.errno in _NO_ROOM:
                raise Problem.of("fallocate", error) from error
            self._known.never_preallocate(self._device)
            self._ways = self._known.of(self._device, self._target)

    def _move_cached(self, start: int, end: int) -> Iterator[int]:
        digester, storer = self._digester, self._storer
        with ExitStack() as lent:
            count = _UNDIGESTED if digester is not None else 1
            buffers = [lent.enter_context(lent_buffer()) for _ in range(count)]
            at, turn = start, 0
            while at < end:
                buffer = buffers[turn % count]
                turn += 1
                if digester is not None:
                    digester.wait(count - 1)  # the piece that the buffer held is digested
                size = min(PIECE, end - at)
                if self.throttle.is_on:
                    size = self.throttle.piece(size)
                    yield from self.throttle.moves(size)
                reading = read_some(self._source, buffer[:size], at, on_source=True)
                got = yield from reading
                if not got:
                    raise cut_short("read", at, on_source=True)
                piece = buffer[:got]
                if self.digest is not None:
                    self.digest.update(piece)
                write_all(self._target, piece, at)
                at += got
                if storer is not None:
                    storer.wrote(at - got, at)
                yield got
            if digester is not None:
                digester.wait()  # before somebody else gets the buffers

    def _move_directly(self, start: int, end: int) -> Iterator[int]:
        """Whole pages directly, with reading and writing at once; what lies before and after them as usual."""
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
        """Another thread reads the next pieces of ``size`` while this one writes."""
        step = self.throttle.piece(size)
        starts = range(start, end, step)
        count = _AHEAD + (1 if self._digester is None else 2)
        with ExitStack() as lent:
            buffers = [lent.enter_context(lent_buffer(size)) for _ in range(min(count, len(starts)))]
            reader = lent.enter_context(_lent_aide())  # it ends before the buffers are given back
            handed = 0
            for number, at in enumerate(starts):
                if self._digester is not None:
                    self._digester.wait(count - 1 - _AHEAD)  # what was in the buffer that comes next is digested
                while handed < min(number + _AHEAD + 1, len(starts)):
                    ahead = starts[handed]
                    piece = buffers[handed % count][: min(step, end - ahead)]
                    reader.hand(_read_all, self._source, piece, ahead)
                    handed += 1
                reader.wait(handed - number - 1)
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
    """Has what was written stored while more is written; pages that are on storage are dropped if it ``drops``."""

    def __init__(self, source: int, target: int, aide: Aide, *, drops: bool) -> None:
        self._source = source
        self._target = target
        self._aide = aide
        self._drops = drops
        self._start = self._end = -1
        self._before: tuple[int, int] | None = None

    def wrote(self, start: int, end: int) -> None:
        """What lies between them is in the cache; an error of storing it is raised at some later time."""
        if self._start < 0:
            self._start = start
        self._end = end
        if end - self._start < STORED_AT_ONCE:
            return
        if self._drops:
            self._aide.wait(_UNSTORED)
        elif self._aide.under_way:
            return  # the storage is slower than the copying: the next order takes more
        self._order()

    def finish(self) -> None:
        """Nothing more is written. What was not ordered yet is left to the sync, unless it is to be dropped."""
        if self._drops and self._start >= 0:
            self._order()
        self._aide.wait()
        if self._before is not None and self._drops:
            self._drop(*self._before)

    def _order(self) -> None:
        self._aide.hand(self._store, self._start, self._end - self._start)
        self._start = self._end

    def _store(self, start: int, length: int) -> None:
        """In the other thread: begins to store these bytes, and waits for those before."""
        _sync_range(self._target, start, length, libc.WRITE)
        if self._drops:
            if self._before is not None:
                self._drop(*self._before)
            self._before = start, length

    def _drop(self, start: int, length: int) -> None:
        _sync_range(self._target, start, length, libc.WAIT_BEFORE | libc.WRITE | libc.WAIT_AFTER)
        drop_pages(self._target, start, length)
        drop_pages(self._source, start, length)


class _DigestBeside:
    """Hands on what is to be digested; a piece must stay as it is until that is done."""

    def __init__(self, digest: Digest, aide: Aide) -> None:
        self._digest = digest
        self._aide = aide

    def update(self, data: memoryview | bytes) -> None:
        self._aide.hand(self._digest.update, data)

    def zeros(self, count: int) -> None:
        self._aide.hand(self._digest.zeros, count)


def write_all(target: int, data: memoryview | bytes, offset: int) -> None:
    """Writes all of ``data`` at ``offset``, through the cache where it can't be done directly; raises ``Problem``."""
    view = memoryview(data)
    while view:
        try:
            put = os.pwrite(target, view, offset)
        except OSError as error:
            if error.errno == errno.EINVAL and use_cache(target):
                continue
            raise Problem.of("write", error) from error
        if not put:
            raise Problem("write", errno.EIO, text="nothing was written")
        view = view[put:]
        offset += put


def _read_all(source: int, piece: memoryview, at: int) -> None:
    """Fills ``piece`` from the offset ``at``; raises ``Problem``."""
    got = 0
    while got < len(piece):
        try:
            more = patiently(lambda: os.preadv(source, [piece[got:]], at + got))  # noqa: B023 (called at once)
        except OSError as error:
            if error.errno == errno.EINVAL and use_cache(source):
                continue
            raise Problem.of("read", error, on_source=True) from error
        if not more:
            raise cut_short("read", at + got, on_source=True)
        got += more


def _sync_range(target: int, start: int, length: int, flags: int) -> None:
    """Where there is no such call, the sync at the end does it all. Another error is lost data, told only once."""
    try:
        libc.sync_file_range(target, start, length, flags)
    except OSError as error:
        if error.errno not in _NO_STORING:
            raise Problem.of("sync_file_range", error) from error


@contextmanager
def _lent_aide() -> Iterator[Aide]:
    """An idle one, which has done everything when the block ends."""
    aide = _spare_aides.pop() if _spare_aides else Aide()
    try:
        yield aide
    finally:
        aide.finish()
        _spare_aides.append(aide)
