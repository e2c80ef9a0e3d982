"""Reading of the contents of regular files, in pieces and without reading their holes.

A piece is small enough to stay in the processor's cache, so that digesting and writing it does not load it from memory
again. If a read ends before the file's size, the file has changed.
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

from pcopy.fsio.problem import Problem, errors_as_problem, source_changed_problem
from pcopy.fsio.retries import RETRY_PAUSES, TRANSIENT_ERRNOS, sleep_in_steps
from pcopy.fsio.throttle import UntransferredBytes
from pcopy.libc import type_of_file_system

BUFFER_BYTES = 1 << 20
"""Bytes of each buffer, and of one read of contents that are only digested.

These reads are larger than ``BYTES_PER_READ``, since no written data take up the processor's cache as well.
"""

_free_buffers: defaultdict[int, list[memoryview]] = defaultdict(list)
"""Buffers for reading files that are not in use at present, by their size in bytes."""


@contextmanager
def borrowed_buffer(size: int = BUFFER_BYTES) -> Iterator[memoryview]:
    """Context manager: yield a buffer of ``size`` bytes with arbitrary contents, which the block may use until its end;
    raise ``Problem`` if there is no memory.

    The buffer is aligned to a page: O_DIRECT requires that, and on some processors reads into an unaligned buffer have
    half the speed.
    """
    with errors_as_problem("mmap"):
        buffer = _free_buffers[size].pop() if _free_buffers[size] else memoryview(mmap.mmap(-1, size))
    try:
        yield buffer
    finally:
        _free_buffers[size].append(buffer)


BYTES_PER_READ = 512 << 10
"""Bytes of one read: large enough that system calls cost little, small enough to stay in the processor's cache."""

DIRECT_IO_ALIGNMENT = 4096
"""Lengths and offsets of direct reads and writes are multiples of this number of bytes (open(2), O_DIRECT)."""


class IncrementalDigest(Protocol):
    """Protocol of an object that computes the digest of a file's contents, which are passed to it in order: ``update``
    adds data, ``add_zero_bytes`` adds ``count`` zero bytes, the contents of a hole.
    """

    def update(self, data: memoryview | bytes) -> None: ...

    def add_zero_bytes(self, count: int) -> None: ...


def may_have_holes(status: os.stat_result) -> bool:
    """Return True if the file with this ``status`` may have holes: it occupies fewer blocks than its size needs.

    Files that the file system stores compressed do, too. Searching such a file for holes does no harm.
    """
    return status.st_blocks * 512 < status.st_size


def data_extents(descriptor: int, start: int, end: int, *, on_source: bool = True) -> Iterator[tuple[int, int]]:
    """Generator: yield the extents of a file between the offsets ``start`` and ``end`` that hold data and are not
    holes, as pairs (offset of the first byte, offset after the last byte).

    The extents are found by lseek(2) with SEEK_DATA and SEEK_HOLE. On a file system without holes, the whole range is
    one extent. Raise ``Problem``, also if the file ends before ``end``. ``on_source``: True if the file is a source,
    False if it is a copy in the target.
    """
    at = start
    while at < end:
        try:
            first = os.lseek(descriptor, at, os.SEEK_DATA)
        except OSError as error:
            if error.errno == errno.ENXIO:  # only a hole up to the end of the file, or the file has become shorter
                with errors_as_problem("lseek", on_source=on_source):
                    size = os.lseek(descriptor, 0, os.SEEK_END)
                if size < end:
                    raise early_end_of_file_problem("lseek", size, on_source) from error
                return
            if error.errno == errno.EINVAL:  # the file system does not support SEEK_DATA
                yield at, end
                return
            raise Problem.from_error("lseek", error, on_source=on_source) from error
        if first >= end:
            return
        try:
            after = os.lseek(descriptor, first, os.SEEK_HOLE)
        except OSError as error:
            if error.errno == errno.ENXIO:  # the file has become shorter since the call before
                raise early_end_of_file_problem("lseek", first, on_source) from error
            raise Problem.from_error("lseek", error, on_source=on_source) from error
        yield first, min(after, end)
        at = after


def digest_hole(start: int, end: int, digest: IncrementalDigest | None) -> Iterator[int]:
    """Generator: add the hole from offset ``start`` to ``end`` (if its length is not 0) to ``digest``, as zeros and
    without reading it. Yield its length in bytes as ``UntransferredBytes``, because limits on bytes per second do not
    apply to it.
    """
    if end > start:
        if digest is not None:
            digest.add_zero_bytes(end - start)
        yield UntransferredBytes(end - start)


def digest_contents(
    descriptor: int,
    start: int,
    end: int,
    digest: IncrementalDigest,
    *,
    may_have_holes: bool,
    on_source: bool = True,
    direct: bool = False,
) -> Generator[int, None, None]:
    """Generator: read the bytes of an open file from ``start`` to ``end``, and add them to ``digest``. Yield the number
    of bytes of each step; raise ``Problem``.

    Args:
        descriptor: the open file.
        start: offset of the first byte.
        end: offset after the last byte.
        digest: object that computes the digest.
        may_have_holes: True if the file may have holes; they are found by lseek(2) and not read.
        on_source: True if the file is a source, False if it is a copy in the target.
        direct: True if the file is open with O_DIRECT, and ``start`` is a multiple of ``DIRECT_IO_ALIGNMENT``.
    """
    at = start
    extents = data_extents(descriptor, start, end, on_source=on_source) if may_have_holes else iter([(start, end)])
    for first, after in extents:
        yield from digest_hole(at, first, digest)
        for _, piece in read_file_in_pieces(
            descriptor, first, after, size=BUFFER_BYTES, on_source=on_source, direct=direct
        ):
            digest.update(piece)
            yield len(piece)
        at = after
    yield from digest_hole(at, end, digest)


def read_file_in_pieces(
    descriptor: int, start: int, end: int, *, size: int = BYTES_PER_READ, on_source: bool = True, direct: bool = False
) -> Iterator[tuple[int, memoryview]]:
    """Generator: read the bytes of an open file from ``start`` to ``end``; yield pairs (offset, piece).

    Each piece is valid until the next one is requested. An empty piece is yielded during the pause before a failed read
    is tried again. Raise ``Problem``, also if the file ends before ``end``.

    Args:
        descriptor: the open file.
        start: offset of the first byte.
        end: offset after the last byte.
        size: bytes of a piece, at most ``BUFFER_BYTES``.
        on_source: True if the file is a source, False if it is a copy in the target.
        direct: True if the file is open with O_DIRECT, and ``start`` is a multiple of ``DIRECT_IO_ALIGNMENT``.
    """
    if start == end:
        return
    with borrowed_buffer() as buffer:
        at = start
        while at < end:
            wanted = min(size, end - at)
            length = -(-wanted // DIRECT_IO_ALIGNMENT) * DIRECT_IO_ALIGNMENT if direct else wanted
            reading = read_with_retries(descriptor, buffer[:length], at, on_source)
            try:
                while True:
                    yield at, buffer[: next(reading)]
            except StopIteration as read:
                got = min(read.value, wanted)
            if not got:
                raise early_end_of_file_problem("read", at, on_source)
            yield at, buffer[:got]
            at += got


def read_file_in_pieces_to_end(descriptor: int) -> Iterator[tuple[int, bytes]]:
    """Generator: read a file up to its end, whatever its st_size; yield pairs (offset, piece); raise ``Problem``.

    Files in /proc show the size 0 but have contents.
    """
    at = 0
    while True:
        with errors_as_problem("read", on_source=True):
            data = os.read(descriptor, BYTES_PER_READ)
        if not data:
            return
        yield at, data
        at += len(data)


def digest_file_to_end(descriptor: int, digest: IncrementalDigest) -> Iterator[int]:
    """Generator: read a file up to its end, whatever its st_size, and add its contents to ``digest``; yield the number
    of bytes of each step; raise ``Problem``.
    """
    return digest_pieces(read_file_in_pieces_to_end(descriptor), digest)


def digest_pieces(pieces_read: Iterator[tuple[int, bytes]], digest: IncrementalDigest) -> Iterator[int]:
    """Generator: add ``pieces_read``, pairs (offset, bytes) in the order of a file, to ``digest``; yield the number of
    bytes of each piece.
    """
    for _, data in pieces_read:
        digest.update(data)
        yield len(data)


def enable_direct_io(descriptor: int) -> bool:
    """Set O_DIRECT: reads and writes bypass the page cache from now on. Return False if that is not supported."""
    try:
        fcntl.fcntl(descriptor, fcntl.F_SETFL, fcntl.fcntl(descriptor, fcntl.F_GETFL) | os.O_DIRECT)
    except OSError:
        return False
    return True


def disable_direct_io(descriptor: int) -> bool:
    """Clear O_DIRECT: reads and writes use the page cache again. Return False if O_DIRECT was not set."""
    flags = fcntl.fcntl(descriptor, fcntl.F_GETFL)
    if not flags & os.O_DIRECT:
        return False
    fcntl.fcntl(descriptor, fcntl.F_SETFL, flags & ~os.O_DIRECT)
    return True


def drop_cached_pages(descriptor: int, start: int = 0, length: int = 0) -> None:
    """Drop the file's clean pages (those that are on storage) from the page cache (posix_fadvise(2)).

    Errors are ignored: this is advice, and a file system without a page cache does not need it.

    Args:
        start: offset of the first byte.
        length: number of bytes; 0: up to the end of the file.
    """
    with suppress(OSError):
        if length and start + length >= os.fstat(descriptor).st_size:
            length = 0  # 0 includes the last page, which reaches beyond the end of the file
        os.posix_fadvise(descriptor, start, length, os.POSIX_FADV_DONTNEED)


def read_with_retries(descriptor: int, piece: memoryview, at: int, on_source: bool) -> Generator[int, None, int]:
    """Generator: read from the offset ``at`` into the buffer ``piece``; return the number of bytes, 0 at the end of the
    file.

    A read that fails with a transient error is tried again after a pause. During the pause 0 is yielded several times,
    so that the caller can do other work. Raise ``Problem`` after the last attempt. ``on_source``: True if the file is a
    source, False if it is a copy in the target.
    """
    for pause in (*RETRY_PAUSES, None):
        try:
            return os.preadv(descriptor, [piece], at)
        except OSError as error:
            if pause is None or error.errno not in TRANSIENT_ERRNOS:
                raise Problem.from_error("read", error, on_source=on_source) from error
        for _ in sleep_in_steps(pause):
            yield 0
    raise AssertionError("unreachable: the last attempt returns or raises")


def early_end_of_file_problem(operation: str, at: int, on_source: bool) -> Problem:
    """Return the error for a file that ended at the offset ``at``, before its st_size, when it was read or searched for
    holes (``operation``). A source (``on_source``) counts as changed; for a target, the errno is EIO.
    """
    text = f"the file ends at byte {at}, earlier than its size says"
    return source_changed_problem(operation, text) if on_source else Problem(operation, errno.EIO, text=text)


GENERATED_FILE_SYSTEM_TYPES = frozenset((
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
"""File system types (f_type of statfs(2)) whose files the operating system generates while they are read."""

MAX_GENERATED_BYTES = 64 << 20
"""A generated file with more bytes than this is an error: reading some of them, such as trace_pipe, never ends."""


class PseudoFileSystemCache:
    """Remembers for each st_dev whether the operating system generates the files of that file system (such as /proc),
    so that statfs(2) is called once for each.
    """

    def __init__(self) -> None:
        self._is_generated: dict[int, bool] = {}

    def is_on_pseudo_file_system(self, descriptor: int, device: int) -> bool:
        """Return True if the item ``descriptor``, whose st_dev is ``device``, lies on a file system whose files are
        generated; raise ``Problem``.
        """
        is_generated = self._is_generated.get(device)
        if is_generated is None:
            with errors_as_problem("statfs", on_source=True):
                is_generated = self._is_generated[device] = (
                    type_of_file_system(descriptor) in GENERATED_FILE_SYSTEM_TYPES
                )
        return is_generated


def pieces_of_pseudo_file(descriptor: int, size: int) -> Iterator[tuple[int, bytes]]:
    """Generator: read a file that the operating system generates (such as one in /proc), and whose st_size is ``size``
    (0: unknown); yield pairs (offset, piece).

    Raise ``Problem``, also if a read would block (EAGAIN), or if the file does not end within ``MAX_GENERATED_BYTES``.
    """
    at = 0
    while not size or at < size:
        with errors_as_problem("read", on_source=True):
            data = os.read(descriptor, min(BYTES_PER_READ, size - at) if size else BYTES_PER_READ)
        if not data:
            return
        at += len(data)
        if at > MAX_GENERATED_BYTES:
            text = (
                f"no end within {MAX_GENERATED_BYTES >> 20} MiB of this file, which the kernel generates: it is not "
                "copied"
            )
            raise Problem("read", 0, on_source=True, text=text)
        yield at - len(data), data


def contents_of_pseudo_file(descriptor: int, size: int) -> bytes:
    """Return the contents of a file that the operating system generates (such as one in /proc), and whose st_size is
    ``size`` (0: unknown). Raise ``Problem``, also if the file does not end within ``MAX_GENERATED_BYTES``.
    """
    return b"".join(data for _, data in pieces_of_pseudo_file(descriptor, size))
