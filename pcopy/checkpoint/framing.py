"""Files of frames that only grow at their end, so that a reader knows which frames were written completely.

A frame consists of the length of its payload (8 bytes, big-endian), the BLAKE2b digest (16 bytes) of length and
payload, and the payload, which is one or more pickles of protocol 5. Each frame is on stable storage before the next
one is begun. So a crash can leave only the last frame incomplete, and a complete frame behind a bad one proves that the
bad one was complete once. A bad frame is a *torn tail*, the harmless result of a crash, if no complete frame follows it
and one of these conditions holds:

- the file ends before the frame does;
- its digest is wrong, and only zeros follow it, or nothing (file systems leave zeros after a loss of power);
- its length is zero, which no frame has: its first page never reached storage, although later pages may have.

A reader ignores a torn tail. Any other bad frame is damage, and the file is refused.

A damaged length does not show where the next frame begins. So the search for a following frame looks for the two bytes
with which each payload begins.
"""

from __future__ import annotations

import errno
import os
import struct
from _blake2 import blake2b  # hashlib would also load OpenSSL, which takes as long as copying a hundred small files
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from itertools import chain
from typing import BinaryIO

from pcopy.checkpoint.directory import AnyPath, create_file, opened_trusted_file
from pcopy.checkpoint.layout import run_directory_name, task_record_file_name
from pcopy.checkpoint.record import EpochTaskRecord, SpooledTasks
from pcopy.errors import RequestRefused, path_refused
from pcopy.fast_named_tuple import NamedTuple
from pcopy.fsio.durable import sync_directory_at
from pcopy.fsio.syncer import sync_file_if_supported

_FRAME_HEADER = struct.Struct(">Q16s")
"""Format of the header of a frame (a part of a file that is written at once): length and digest of the data that
follow.
"""
_PICKLE_START = b"\x80\x05"
"""First bytes of a pickle of protocol 5."""

_READ_HEAD_BYTES = 4096
"""Number of bytes that ``read_frame_heads`` reads of the data in each frame: enough for the head of a record, which has
its numbers without the tasks.
"""

_SPOOL_BLOCK_BYTES = 1 << 20
"""Bytes of the temporary file with tasks of a record that are read, and written to the file of the record, at once."""

_SEARCH_BYTES = 1 << 20
"""Bytes of the file that are read in one call when a complete frame is searched behind a damaged one."""


class RecordFrame(NamedTuple):
    """A part of a file that was written completely (a frame): its offset in the file in bytes, and the data in it."""

    offset: int
    payload: bytes


def write_record_frame(file: BinaryIO, *pickles: bytes, spooled: SpooledTasks | None = None) -> None:
    """Append a payload, which consists of ``pickles`` of protocol 5 and behind them the contents of ``spooled``, to
    ``file``, after a header with its length and a digest, by which a reader recognizes data that are incomplete or
    damaged. Do not sync the file, which is unbuffered. Raise ``OSError``.
    """
    length = sum(map(len, pickles)) + (spooled.size if spooled else 0)
    digest = _frame_digest(length, chain(pickles, _blocks_of_spool(spooled)))
    for data in chain((_FRAME_HEADER.pack(length, digest), *pickles), _blocks_of_spool(spooled)):
        view = memoryview(data)
        while view:  # a write to an unbuffered file may be partial
            view = view[file.write(view) :]


def _blocks_of_spool(spooled: SpooledTasks | None) -> Iterator[bytes]:
    """Yield the contents of ``spooled`` block by block. Raise ``OSError``, also if the temporary file is too short."""
    if spooled is None:
        return
    spooled.file.seek(0)
    for at in range(0, spooled.size, _SPOOL_BLOCK_BYTES):
        size = min(_SPOOL_BLOCK_BYTES, spooled.size - at)
        block = spooled.file.read(size)
        if len(block) < size:
            raise OSError(errno.EIO, "a temporary file is incomplete")
        yield block


def read_record_frames(path: AnyPath) -> Iterator[RecordFrame]:
    """Yield the frames (parts with a digest, as ``write_record_frame`` writes them) of a file, one at a time in memory.
    Ignore an incomplete last frame, which a crash may leave.

    Raise ``RequestRefused``, with path and offset, if the file is damaged or cannot be read, does not belong to the
    caller, or if another user may write to it.
    """
    name = os.fsencode(path)
    with opened_trusted_file(name) as file:
        at, end = 0, os.fstat(file.fileno()).st_size
        while at < end:
            try:
                payload = _payload_if_complete(file, at, end)
                if payload is None:
                    _refuse_unless_incomplete_tail(file, name, at, end)
                    return
            except OSError as error:
                raise damaged_file_error(name, at, f"cannot be read: {error.strerror}") from None
            yield RecordFrame(at, payload)
            at += _FRAME_HEADER.size + len(payload)


def read_frame_heads(path: AnyPath) -> Iterator[RecordFrame]:
    """Yield the frames (parts with a digest, as ``write_record_frame`` writes them) of a file, but only the first bytes
    of each, and without verifying the digests. For displays that must not read whole files. Stop at the first frame
    that is incomplete.

    Raise ``RequestRefused`` if the file does not belong to the caller, or another user may write to it. Raise
    ``OSError`` if it cannot be read.
    """
    with opened_trusted_file(os.fsencode(path)) as file:
        at, end = 0, os.fstat(file.fileno()).st_size
        while end - at > _FRAME_HEADER.size:
            file.seek(at)
            header = file.read(_FRAME_HEADER.size)
            if len(header) < _FRAME_HEADER.size:  # the writer has truncated the file after a failed write
                return
            length, _ = _FRAME_HEADER.unpack(header)
            if not length or at + _FRAME_HEADER.size + length > end:
                return
            yield RecordFrame(at, file.read(min(length, _READ_HEAD_BYTES)))
            at += _FRAME_HEADER.size + length


def damaged_file_error(path: AnyPath, offset: int, why: str) -> RequestRefused:
    """Return the error that refuses the file ``path`` because it is damaged at the byte ``offset``; ``why`` describes
    the damage.
    """
    return path_refused(os.fsencode(path), f"damaged at byte {offset}: {why}")


@contextmanager
def value_error_as_damaged_file_error(path: AnyPath, offset: int) -> Iterator[None]:
    """Context manager: if its block raises ``ValueError``, raise ``RequestRefused`` instead, which says that the file
    ``path`` is damaged at the byte ``offset``.
    """
    try:
        yield
    except ValueError as error:
        raise damaged_file_error(path, offset, str(error)) from None


def _frame_digest(length: int, payload: Iterable[bytes]) -> bytes:
    """Return the digest that the header of a frame contains: BLAKE2b of ``length``, the length of the payload, and of
    ``payload``, its parts.
    """
    digest = blake2b(length.to_bytes(8, "big"), digest_size=16)
    for part in payload:
        digest.update(part)
    return digest.digest()


def _payload_if_complete(file: BinaryIO, at: int, end: int) -> bytes | None:
    """Return the data of the frame (part of the file with a digest) at the offset ``at``; None if it is incomplete or
    its digest is wrong. ``end`` is the size of the file.
    """
    if end - at < _FRAME_HEADER.size:
        return None
    file.seek(at)
    length, digest = _FRAME_HEADER.unpack(file.read(_FRAME_HEADER.size))
    if length > end - at - _FRAME_HEADER.size:
        return None
    payload = file.read(length)
    return payload if len(payload) == length and _frame_digest(length, (payload,)) == digest else None


def _refuse_unless_incomplete_tail(file: BinaryIO, path: bytes, at: int, end: int) -> None:
    """Raise ``RequestRefused`` unless the frame at the offset ``at``, which is bad, is a torn tail: the incomplete end
    of a file that a crash leaves. ``end`` is the size of the file.
    """
    if end - at <= _FRAME_HEADER.size:
        return
    file.seek(at)
    length, _ = _FRAME_HEADER.unpack(file.read(_FRAME_HEADER.size))
    if length and not _has_only_zeros(file, min(at + _FRAME_HEADER.size + length, end)):
        raise damaged_file_error(path, at, "the record does not match its digest")
    if _has_complete_frame(file, at + 1, end):
        raise damaged_file_error(path, at, "the record is not complete, but a complete one follows")


def _has_only_zeros(file: BinaryIO, at: int) -> bool:
    """Return True if the file holds only zeros from ``at`` on."""
    file.seek(at)
    while block := file.read(_SEARCH_BYTES):
        if block.count(0) != len(block):
            return False
    return True


def _has_complete_frame(file: BinaryIO, start: int, end: int) -> bool:
    """Return True if the file has a complete frame (part with a valid digest) anywhere from the offset ``start`` on.
    ``end`` is the size of the file.
    """
    at = start + _FRAME_HEADER.size
    while at < end - 1:
        file.seek(at)
        block = file.read(_SEARCH_BYTES)
        found = block.find(_PICKLE_START)
        while found >= 0:
            if _payload_if_complete(file, at + found - _FRAME_HEADER.size, end) is not None:
                return True
            found = block.find(_PICKLE_START, found + 1)
        at += max(len(block) - 1, 1)  # blocks overlap by one byte, since the two bytes may lie in two blocks
    return False


class RecordFileWriter:
    """Writer of the file in which one rank records its tasks (spawned and done) in one run. Each record is on stable
    storage before the next one is written.

    After an error no record is accepted any longer. After a failed write or fsync the contents of the file behind the
    last good record are unknown: the kernel may have dropped pages, and reports that only once. So nothing may be
    written behind that record. Not thread-safe.
    """

    def __init__(self, job_dir: AnyPath, run: int, rank: int) -> None:
        self._directory = os.path.join(os.fsencode(job_dir), run_directory_name(run))
        self._rank = rank
        self._file: BinaryIO | None = None
        self._length = 0
        self._failed = False

    def append(self, record: EpochTaskRecord) -> None:
        """Append ``record`` to the file, which the first call creates; return once the record is on stable storage.

        Raise ``OSError``. After a first error every further call raises an ``OSError``, too.
        """
        if self._failed:
            raise OSError(errno.EIO, "an earlier record could not be written")
        try:
            if self._file is None:
                self._file = create_file(os.path.join(self._directory, task_record_file_name(self._rank)))
            write_record_frame(self._file, *record.pickles(), spooled=record.spooled)
            sync_file_if_supported(self._file.fileno())
            if not self._length:
                sync_directory_at(self._directory)
            self._length = self._file.tell()
        except OSError:
            self._failed = True
            if self._file is not None:
                with suppress(OSError):  # readers ignore an incomplete record; this only frees its space
                    os.ftruncate(self._file.fileno(), self._length)
            raise

    def close(self) -> None:
        """Close the file. The appended records are durable already."""
        if self._file is not None:
            self._file.close()
            self._file = None
            self._failed = True
