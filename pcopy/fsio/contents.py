"""Reads the contents of regular files, piece by piece and without their holes.

Pieces are small enough to stay in the processor's cache, so that whoever digests and writes one does not wait for
memory twice. A read that ends before the file's size means that the file has changed.
"""

from __future__ import annotations

import errno
import fcntl
import mmap
import os
from collections import defaultdict
from collections.abc import Generator, Iterator
from contextlib import contextmanager, suppress
from typing import Protocol

from pcopy.fsio.patience import PASSING, PAUSES, naps
from pcopy.fsio.problem import Problem, changed, failing
from pcopy.fsio.throttle import Unmoved
from pcopy.libc import type_of_file_system

SIZE = 1 << 20
"""Bytes of each buffer, and of one read of what is only digested: with nothing to write, less cache is wanted."""

_spare: defaultdict[int, list[memoryview]] = defaultdict(list)
"""Buffers that nobody has, by their size."""


@contextmanager
def lent_buffer(size: int = SIZE) -> Iterator[memoryview]:
    """``size`` bytes of anything, for as long as the block takes; raises ``Problem``.

    They begin with a page: into others the kernel copies at half the speed on some processors. O_DIRECT wants it, too.
    """
    with failing("mmap"):
        buffer = _spare[size].pop() if _spare[size] else memoryview(mmap.mmap(-1, size))
    try:
        yield buffer
    finally:
        _spare[size].append(buffer)


PIECE = 512 << 10
"""Bytes of one read: large enough to cost nothing in calls, small enough to stay in cache."""

SECTOR = 4096
"""Bytes of which lengths and offsets are multiples that go past the page cache (open(2), O_DIRECT)."""


class Digest(Protocol):
    """Takes the contents of a file in their order; ``zeros`` stands for so many bytes of a hole."""

    def update(self, data: memoryview | bytes) -> None: ...

    def zeros(self, count: int) -> None: ...


def has_holes(status: os.stat_result) -> bool:
    """May the file have holes? (Compressed files look alike; asking for their holes does no harm.)"""
    return status.st_blocks * 512 < status.st_size


def data_extents(descriptor: int, start: int, end: int, *, on_source: bool = True) -> Iterator[tuple[int, int]]:
    """The stretches (first byte, byte after the last) between ``start`` and ``end`` that hold data. See lseek(2)."""
    at = start
    while at < end:
        try:
            first = os.lseek(descriptor, at, os.SEEK_DATA)
        except OSError as error:
            if error.errno == errno.ENXIO:  # nothing but a hole up to the end of the file, wherever that is now
                with failing("lseek", on_source=on_source):
                    size = os.lseek(descriptor, 0, os.SEEK_END)
                if size < end:
                    raise cut_short("lseek", size, on_source) from error
                return
            if error.errno == errno.EINVAL:  # a file system that doesn't know holes
                yield at, end
                return
            raise Problem.of("lseek", error, on_source=on_source) from error
        if first >= end:
            return
        try:
            after = os.lseek(descriptor, first, os.SEEK_HOLE)
        except OSError as error:
            if error.errno == errno.ENXIO:  # there was data a moment ago
                raise cut_short("lseek", first, on_source) from error
            raise Problem.of("lseek", error, on_source=on_source) from error
        yield first, min(after, end)
        at = after


def skip_hole(start: int, end: int, digest: Digest | None) -> Iterator[int]:
    """A hole is digested without being read, and counts as moved."""
    if end > start:
        if digest is not None:
            digest.zeros(end - start)
        yield Unmoved(end - start)


def digest_contents(
    descriptor: int, start: int, end: int, digest: Digest, *, holes: bool, on_source: bool = True, direct: bool = False
) -> Generator[int, None, None]:
    """Digests the bytes from ``start`` to ``end``; holes, if there may be some, are not read.

    Yields the bytes that each step digested; raises ``Problem``.
    """
    at = start
    extents = data_extents(descriptor, start, end, on_source=on_source) if holes else iter([(start, end)])
    for first, after in extents:
        yield from skip_hole(at, first, digest)
        for _, piece in pieces(descriptor, first, after, size=SIZE, on_source=on_source, direct=direct):
            digest.update(piece)
            yield len(piece)
        at = after
    yield from skip_hole(at, end, digest)


def pieces(
    descriptor: int, start: int, end: int, *, size: int = PIECE, on_source: bool = True, direct: bool = False
) -> Iterator[tuple[int, memoryview]]:
    """The bytes from ``start`` to ``end`` in pieces of ``size``, each with its offset and good until the next one.

    A piece may be empty, while a read is waited for; raises ``Problem``, also for a file that ends before ``end``.
    At most ``SIZE`` bytes make a piece.
    ``direct``: the file is open with O_DIRECT, and ``start`` is a multiple of 4096.
    """
    if start == end:
        return
    with lent_buffer() as buffer:
        at = start
        while at < end:
            wanted = min(size, end - at)
            length = -(-wanted // SECTOR) * SECTOR if direct else wanted
            reading = read_some(descriptor, buffer[:length], at, on_source)
            try:
                while True:
                    yield at, buffer[: next(reading)]
            except StopIteration as read:
                got = min(read.value, wanted)
            if not got:
                raise cut_short("read", at, on_source)
            yield at, buffer[:got]
            at += got


def pieces_to_end(descriptor: int) -> Iterator[tuple[int, bytes]]:
    """As ``pieces``, of a file whose size says 0 but which may have contents nevertheless (/proc)."""
    at = 0
    while True:
        with failing("read", on_source=True):
            data = os.read(descriptor, PIECE)
        if not data:
            return
        yield at, data
        at += len(data)


def digest_to_end(descriptor: int, digest: Digest) -> Iterator[int]:
    """As ``digest_contents``, of such a file."""
    return digest_pieces(pieces_to_end(descriptor), digest)


def digest_pieces(found: Iterator[tuple[int, bytes]], digest: Digest) -> Iterator[int]:
    for _, data in found:
        digest.update(data)
        yield len(data)


def bypass_cache(descriptor: int) -> bool:
    """From now on the file is read and written past the page cache (O_DIRECT); returns False where it can't be."""
    try:
        fcntl.fcntl(descriptor, fcntl.F_SETFL, fcntl.fcntl(descriptor, fcntl.F_GETFL) | os.O_DIRECT)
    except OSError:
        return False
    return True


def use_cache(descriptor: int) -> bool:
    """Takes that back; returns False if it was not so."""
    flags = fcntl.fcntl(descriptor, fcntl.F_GETFL)
    if not flags & os.O_DIRECT:
        return False
    fcntl.fcntl(descriptor, fcntl.F_SETFL, flags & ~os.O_DIRECT)
    return True


def drop_pages(descriptor: int, start: int = 0, length: int = 0) -> None:
    """Gives up what the page cache holds of the file and has been written (posix_fadvise(2)); 0: all of it.

    It is advice: a file system that has no page cache, or doesn't know it, is none the worse for it.
    """
    with suppress(OSError):
        if length and start + length >= os.fstat(descriptor).st_size:
            length = 0  # up to the end of a page that reaches beyond the file's
        os.posix_fadvise(descriptor, start, length, os.POSIX_FADV_DONTNEED)


def read_some(descriptor: int, piece: memoryview, at: int, on_source: bool) -> Generator[int, None, int]:
    """Reads into ``piece`` from offset ``at``, patiently; returns the number of bytes, 0 at the end of the file."""
    for pause in (*PAUSES, None):
        try:
            return os.preadv(descriptor, [piece], at)
        except OSError as error:
            if pause is None or error.errno not in PASSING:
                raise Problem.of("read", error, on_source=on_source) from error
        for _ in naps(pause):
            yield 0
    raise AssertionError("the last try returns or raises")


def cut_short(operation: str, at: int, on_source: bool) -> Problem:
    """A read met the end of the file at the byte ``at``, before its size."""
    text = f"the file ended at byte {at}, before its size"
    return changed(operation, text) if on_source else Problem(operation, errno.EIO, text=text)


GENERATED = frozenset((
    0x9FA0,  # proc
    0x62656572,  # sysfs
    0x27E0EB, 0x63677270,  # cgroup, cgroup2
    0x74726163,  # tracefs
    0x64626720,  # debugfs
    0x73636673,  # securityfs
    0x62656570,  # configfs
    0xF97CFF8C,  # selinuxfs
    0x43415D53,  # smackfs
    0x5A3C69F0,  # apparmorfs
    0x42494E4D,  # binfmt_misc
    0x65735543,  # fusectl
    0x07655821,  # resctrl
))  # fmt: skip
"""Types of file systems (f_type, statfs(2))."""

LARGEST = 64 << 20
"""Bytes of the largest file that is read there: /proc/kcore and trace_pipe have no end that is ever reached."""


class Generated:
    """The types of file systems by st_dev; statfs(2) is called once for each."""

    def __init__(self) -> None:
        self._known: dict[int, bool] = {}

    def is_on(self, descriptor: int, device: int) -> bool:
        """Return True if the open item, which lies on ``device``, is generated as it is read; raises ``Problem``."""
        known = self._known.get(device)
        if known is None:
            with failing("statfs", on_source=True):
                known = self._known[device] = type_of_file_system(descriptor) in GENERATED
        return known


def generated_pieces(descriptor: int, size: int) -> Iterator[tuple[int, bytes]]:
    """Read the contents of a generated file whose st_size is ``size``: yield pieces with their offsets.

    Raises ``Problem``, also if more would have to be waited for (EAGAIN), or there is no end within ``LARGEST`` bytes.
    """
    at = 0
    while not size or at < size:
        with failing("read", on_source=True):
            data = os.read(descriptor, min(PIECE, size - at) if size else PIECE)
        if not data:
            return
        at += len(data)
        if at > LARGEST:
            text = f"no end within {LARGEST >> 20} MiB, though the kernel generates this file: it is not copied"
            raise Problem("read", 0, on_source=True, text=text)
        yield at - len(data), data


def generated_contents(descriptor: int, size: int) -> bytes:
    """Return the contents of a generated file whose st_size is ``size``; raises as ``generated_pieces``."""
    return b"".join(data for _, data in generated_pieces(descriptor, size))
