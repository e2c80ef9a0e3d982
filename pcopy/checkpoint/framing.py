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

from pcopy.checkpoint.directory import Path, create, opened_file
from pcopy.checkpoint.layout import facts_name, run_name
from pcopy.checkpoint.record import Record
from pcopy.errors import Refused
from pcopy.fsio.durable import sync_directory_at
from pcopy.fsio.syncer import sync_written
from pcopy.named import NamedTuple
from pcopy.text import shown

_HEADER = struct.Struct(">Q16s")
_MARK = b"\x80\x05"
"""First bytes of a pickle of protocol 5."""

_HEAD = 4096
"""Number of bytes that surely contain the head of a record."""

_BLOCK = 1 << 20
"""Bytes read in one call behind a bad frame."""


class Frame(NamedTuple):
    """A complete frame: its offset in the file in bytes, and its payload."""

    offset: int
    payload: bytes


def write_frame(file: BinaryIO, payload: bytes) -> None:
    """Append a frame to ``file``. ``payload`` is one or more pickles of protocol 5. Raise ``OSError``. Does not sync
    the file.
    """
    for data in (_HEADER.pack(len(payload), _digest(payload)), payload):
        view = memoryview(data)
        while view:  # write of an unbuffered file may be partial
            view = view[file.write(view) :]


def frames(path: Path) -> Iterator[Frame]:
    """Yield the frames of a file, one at a time in memory. A torn tail is ignored.

    Raise ``Refused``, with path and offset, if the file is damaged, cannot be read or is not trusted.
    """
    name = os.fsencode(path)
    with opened_file(name) as file:
        at, end = 0, os.fstat(file.fileno()).st_size
        while at < end:
            try:
                payload = _whole(file, at, end)
                if payload is None:
                    _check_torn(file, name, at, end)
                    return
            except OSError as error:
                raise damaged(name, at, f"cannot be read: {error.strerror}") from None
            yield Frame(at, payload)
            at += _HEADER.size + len(payload)


def heads(path: Path) -> Iterator[Frame]:
    """Yield the frames of a file with only the first bytes of each payload, and without verifying the digests.

    Raise ``Refused`` if the file is not trusted, and ``OSError``.
    """
    with opened_file(os.fsencode(path)) as file:
        at, end = 0, os.fstat(file.fileno()).st_size
        while end - at > _HEADER.size:
            file.seek(at)
            header = file.read(_HEADER.size)
            if len(header) < _HEADER.size:  # the writer has truncated the file after a failed write
                return
            length, _ = _HEADER.unpack(header)
            if not length or at + _HEADER.size + length > end:
                return
            yield Frame(at, file.read(min(length, _HEAD)))
            at += _HEADER.size + length


def damaged(path: Path, offset: int, why: str) -> Refused:
    """Return the error to raise for a damaged frame at ``offset``, with the reason ``why``."""
    return Refused(f"{shown(os.fsencode(path))}: damaged at byte {offset}: {why}")


@contextmanager
def as_damage(path: Path, offset: int) -> Iterator[None]:
    """Convert a ``ValueError`` of the body into the error for a damaged frame at ``offset``."""
    try:
        yield
    except ValueError as error:
        raise damaged(path, offset, str(error)) from None


def _digest(payload: bytes) -> bytes:
    """Return the digest of a frame."""
    digest = blake2b(len(payload).to_bytes(8, "big"), digest_size=16)
    digest.update(payload)
    return digest.digest()


def _whole(file: BinaryIO, at: int, end: int) -> bytes | None:
    """Return the payload of the frame at ``at``, or None if there is no complete frame."""
    if end - at < _HEADER.size:
        return None
    file.seek(at)
    length, digest = _HEADER.unpack(file.read(_HEADER.size))
    if length > end - at - _HEADER.size:
        return None
    payload = file.read(length)
    return payload if len(payload) == length and _digest(payload) == digest else None


def _check_torn(file: BinaryIO, path: bytes, at: int, end: int) -> None:
    """Raise ``Refused`` unless the bad frame at ``at`` is a torn tail."""
    if end - at <= _HEADER.size:
        return
    file.seek(at)
    length, _ = _HEADER.unpack(file.read(_HEADER.size))
    if length and not _zeros_only(file, min(at + _HEADER.size + length, end)):
        raise damaged(path, at, "a wrong digest")
    if _frame_follows(file, at + 1, end):
        raise damaged(path, at, "the record is not complete, but a complete one follows")


def _zeros_only(file: BinaryIO, at: int) -> bool:
    """Return True if the file holds only zeros from ``at`` on."""
    file.seek(at)
    while block := file.read(_BLOCK):
        if block.count(0) != len(block):
            return False
    return True


def _frame_follows(file: BinaryIO, start: int, end: int) -> bool:
    """Return True if a complete frame begins anywhere from ``start`` on."""
    at = start + _HEADER.size
    while at < end - 1:
        file.seek(at)
        block = file.read(_BLOCK)
        found = block.find(_MARK)
        while found >= 0:
            if _whole(file, at + found - _HEADER.size, end) is not None:
                return True
            found = block.find(_MARK, found + 1)
        at += max(len(block) - 1, 1)  # blocks overlap by one byte, since the two bytes may lie in two blocks
    return False


class SegmentWriter:
    """Writer of the file in which the records of one rank and run are stored durably. Each cut appends one record.

    An error is final. After a failed write or fsync the contents of the file behind the last good record are unknown:
    the kernel may have dropped pages, and reports that only once. So nothing is written behind it any more. Not
    thread-safe.
    """

    def __init__(self, job_dir: Path, run: int, rank: int) -> None:
        self._directory = os.path.join(os.fsencode(job_dir), run_name(run))
        self._rank = rank
        self._file: BinaryIO | None = None
        self._length = 0
        self._failed = False

    def append(self, record: Record) -> None:
        """Append ``record``; return once it is on stable storage.

        Raise ``OSError``. After the first error every further call raises it, too.
        """
        if self._failed:
            raise OSError(errno.EIO, "an earlier record could not be written")
        try:
            if self._file is None:
                self._file = create(os.path.join(self._directory, facts_name(self._rank)))
            write_frame(self._file, record.pack())
            sync_written(self._file.fileno())
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
