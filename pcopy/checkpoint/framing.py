"""Files of frames that only grow at their end, so that a reader knows which frames were written completely.

A frame consists of the length of its payload (8 bytes, big-endian), the BLAKE2b digest (16 bytes) of length and
payload, and the payload, which is one or more pickles of protocol 5. Each frame is on stable storage before the next
one is begun. So a crash can leave only the last frame incomplete, and a complete frame behind a bad one proves that the
bad one was complete once. A bad frame is a *torn tail* if no complete frame follows it and one of these holds:

- the end of the file cuts it off;
- its digest is wrong, and only zeros follow it, or nothing (file systems leave zeros after a loss of power);
- its length is zero, which no frame has: its first page never reached storage, although later pages may have.

A file ends before its torn tail. Any other bad frame is damage, and the file is refused.

The search for a following frame looks for the two bytes with which each payload begins, since a damaged length does not
tell where the next frame is.
"""

from __future__ import annotations

import errno
import os
import struct
from _blake2 import blake2b  # hashlib would also load OpenSSL, which takes as long as copying a hundred small files
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import BinaryIO

from pcopy.checkpoint.directory import AnyPath, create_file, opened_file
from pcopy.checkpoint.layout import facts_file_name, run_directory_name
from pcopy.checkpoint.record import FactRecord
from pcopy.errors import RequestRefused
from pcopy.fast_named_tuple import NamedTuple
from pcopy.fsio.durable import sync_directory_at
from pcopy.fsio.syncer import sync_if_supported
from pcopy.text import printable_path

_FRAME_HEADER = struct.Struct(">Q16s")
_PICKLE_START = b"\x80\x05"
"""First bytes of a pickle of protocol 5."""

_RECORD_HEAD_BYTES = 4096
"""Number of bytes that surely contain the head of a record."""

_SEARCH_BYTES = 1 << 20
"""Bytes read in one call behind a bad frame."""


class Frame(NamedTuple):
    """A complete frame: its offset in the file in bytes, and its payload."""

    offset: int
    payload: bytes


def write_frame(file: BinaryIO, payload: bytes) -> None:
    """Append a frame to ``file``. ``payload`` is one or more pickles of protocol 5. Raise ``OSError``. Does not sync
    the file.
    """
    for data in (_FRAME_HEADER.pack(len(payload), _frame_digest(payload)), payload):
        view = memoryview(data)
        while view:  # write of an unbuffered file may be partial
            view = view[file.write(view) :]


def read_frames(path: AnyPath) -> Iterator[Frame]:
    """Yield the frames of a file, one at a time in memory. A torn tail is ignored.

    Raise ``RequestRefused``, with path and offset, if the file is damaged, cannot be read or is not trusted.
    """
    name = os.fsencode(path)
    with opened_file(name) as file:
        at, end = 0, os.fstat(file.fileno()).st_size
        while at < end:
            try:
                payload = _complete_payload(file, at, end)
                if payload is None:
                    _check_torn_tail(file, name, at, end)
                    return
            except OSError as error:
                raise damage_error(name, at, f"cannot be read: {error.strerror}") from None
            yield Frame(at, payload)
            at += _FRAME_HEADER.size + len(payload)


def read_frame_heads(path: AnyPath) -> Iterator[Frame]:
    """Yield the frames of a file with only the first bytes of each payload, and without verifying the digests.

    Raise ``RequestRefused`` if the file is not trusted, and ``OSError``.
    """
    with opened_file(os.fsencode(path)) as file:
        at, end = 0, os.fstat(file.fileno()).st_size
        while end - at > _FRAME_HEADER.size:
            file.seek(at)
            header = file.read(_FRAME_HEADER.size)
            if len(header) < _FRAME_HEADER.size:  # the writer has truncated the file after a failed write
                return
            length, _ = _FRAME_HEADER.unpack(header)
            if not length or at + _FRAME_HEADER.size + length > end:
                return
            yield Frame(at, file.read(min(length, _RECORD_HEAD_BYTES)))
            at += _FRAME_HEADER.size + length


def damage_error(path: AnyPath, offset: int, why: str) -> RequestRefused:
    """Return the error to raise for a damaged frame at ``offset``, with the reason ``why``."""
    return RequestRefused(f"{printable_path(os.fsencode(path))}: damaged at byte {offset}: {why}")


@contextmanager
def reporting_damage(path: AnyPath, offset: int) -> Iterator[None]:
    """Convert a ``ValueError`` of the body into the error for a damaged frame at ``offset``."""
    try:
        yield
    except ValueError as error:
        raise damage_error(path, offset, str(error)) from None


def _frame_digest(payload: bytes) -> bytes:
    """Return the digest of a frame."""
    digest = blake2b(len(payload).to_bytes(8, "big"), digest_size=16)
    digest.update(payload)
    return digest.digest()


def _complete_payload(file: BinaryIO, at: int, end: int) -> bytes | None:
    """Return the payload of the frame at ``at``, or None if there is no complete frame."""
    if end - at < _FRAME_HEADER.size:
        return None
    file.seek(at)
    length, digest = _FRAME_HEADER.unpack(file.read(_FRAME_HEADER.size))
    if length > end - at - _FRAME_HEADER.size:
        return None
    payload = file.read(length)
    return payload if len(payload) == length and _frame_digest(payload) == digest else None


def _check_torn_tail(file: BinaryIO, path: bytes, at: int, end: int) -> None:
    """Raise ``RequestRefused`` unless the bad frame at ``at`` is a torn tail."""
    if end - at <= _FRAME_HEADER.size:
        return
    file.seek(at)
    length, _ = _FRAME_HEADER.unpack(file.read(_FRAME_HEADER.size))
    if length and not _has_only_zeros(file, min(at + _FRAME_HEADER.size + length, end)):
        raise damage_error(path, at, "a wrong digest")
    if _has_complete_frame(file, at + 1, end):
        raise damage_error(path, at, "the record is not complete, but a complete one follows")


def _has_only_zeros(file: BinaryIO, at: int) -> bool:
    """Return True if the file holds only zeros from ``at`` on."""
    file.seek(at)
    while block := file.read(_SEARCH_BYTES):
        if block.count(0) != len(block):
            return False
    return True


def _has_complete_frame(file: BinaryIO, start: int, end: int) -> bool:
    """Return True if a complete frame begins anywhere from ``start`` on."""
    at = start + _FRAME_HEADER.size
    while at < end - 1:
        file.seek(at)
        block = file.read(_SEARCH_BYTES)
        found = block.find(_PICKLE_START)
        while found >= 0:
            if _complete_payload(file, at + found - _FRAME_HEADER.size, end) is not None:
                return True
            found = block.find(_PICKLE_START, found + 1)
        at += max(len(block) - 1, 1)  # blocks overlap by one byte, since the two bytes may lie in two blocks
    return False


class RecordFileWriter:
    """Writer of the file in which the records of one rank and run are stored durably. Each cut appends one record.

    An error is final. After a failed write or fsync the contents of the file behind the last good record are unknown:
    the kernel may have dropped pages, and reports that only once. So nothing is written behind it any more. Not
    thread-safe.
    """

    def __init__(self, job_dir: AnyPath, run: int, rank: int) -> None:
        self._directory = os.path.join(os.fsencode(job_dir), run_directory_name(run))
        self._rank = rank
        self._file: BinaryIO | None = None
        self._length = 0
        self._failed = False

    def append(self, record: FactRecord) -> None:
        """Append ``record``; return once it is on stable storage.

        Raise ``OSError``. After the first error every further call raises it, too.
        """
        if self._failed:
            raise OSError(errno.EIO, "an earlier record could not be written")
        try:
            if self._file is None:
                self._file = create_file(os.path.join(self._directory, facts_file_name(self._rank)))
            write_frame(self._file, record.pack())
            sync_if_supported(self._file.fileno())
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
