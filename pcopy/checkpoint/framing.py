"""Records in files that only grow at their end, so that a reader knows which ones were written whole.

A frame is the length of its payload (8 bytes, big-endian), the BLAKE2b digest of 16 bytes over length and payload, and
the payload, one or more pickles of protocol 5. Each frame is on stable storage before the next one is begun. So only
the last frame can be torn by a crash, and a whole frame behind a bad place proves that the place was good once:

- a frame that is cut off by the end of the file, or has a wrong digest and nothing behind it, or nothing but zeros (as
  file systems leave after a power loss), is a torn tail: the file ends before it. So is one that begins with zeros for
  its length, which no frame has: its first page never got to storage, and those behind it may have;
- unless a whole frame follows. That, and anything else, is damage, and refused.

The search for a frame that follows sets out from the two bytes with which each payload begins, since a damaged length
says nothing of where the next frame is.
"""

from __future__ import annotations

import errno
import os
import struct
from _blake2 import blake2b  # hashlib would load OpenSSL, too, which takes as long as a hundred small files
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
"""How a pickle of protocol 5 begins."""

_HEAD = 4096
"""More bytes than the head of a record takes."""

_BLOCK = 1 << 20
"""Bytes that are read at once behind a torn frame."""


class Frame(NamedTuple):
    """A whole frame: where it begins in its file, in bytes, and what it holds."""

    offset: int
    payload: bytes


def write_frame(file: BinaryIO, payload: bytes) -> None:
    """Appends a frame; ``payload`` is a pickle of protocol 5, or several. Raises ``OSError``; syncs nothing."""
    for data in (_HEADER.pack(len(payload), _digest(payload)), payload):
        view = memoryview(data)
        while view:  # an unbuffered file may take less than all at once
            view = view[file.write(view) :]


def frames(path: Path) -> Iterator[Frame]:
    """A file's frames, one at a time in memory; a torn tail is ignored.

    Raises ``Refused`` for a file that cannot be trusted or read, and for damage, with path and offset.
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
    """As ``frames``, but of each payload the first bytes only, and without a look at its digest; may raise
    ``OSError``, too.
    """
    with opened_file(os.fsencode(path)) as file:
        at, end = 0, os.fstat(file.fileno()).st_size
        while end - at > _HEADER.size:
            file.seek(at)
            header = file.read(_HEADER.size)
            if len(header) < _HEADER.size:  # its writer has taken back a record that it could not write
                return
            length, _ = _HEADER.unpack(header)
            if not length or at + _HEADER.size + length > end:
                return
            yield Frame(at, file.read(min(length, _HEAD)))
            at += _HEADER.size + length


def damaged(path: Path, offset: int, why: str) -> Refused:
    """What to raise for a frame at ``offset`` that is not as it was written."""
    return Refused(f"{shown(os.fsencode(path))}: damaged at byte {offset}: {why}")


@contextmanager
def as_damage(path: Path, offset: int) -> Iterator[None]:
    """What reads a frame at ``offset`` raises ``ValueError``: that is told as ``damaged``."""
    try:
        yield
    except ValueError as error:
        raise damaged(path, offset, str(error)) from None


def _digest(payload: bytes) -> bytes:
    digest = blake2b(len(payload).to_bytes(8, "big"), digest_size=16)
    digest.update(payload)
    return digest.digest()


def _whole(file: BinaryIO, at: int, end: int) -> bytes | None:
    """The payload of the frame at ``at``, or None if there is no whole one."""
    if end - at < _HEADER.size:
        return None
    file.seek(at)
    length, digest = _HEADER.unpack(file.read(_HEADER.size))
    if length > end - at - _HEADER.size:
        return None
    payload = file.read(length)
    return payload if len(payload) == length and _digest(payload) == digest else None


def _check_torn(file: BinaryIO, path: bytes, at: int, end: int) -> None:
    """Raises ``Refused`` unless what begins at ``at`` and is no whole frame is a torn tail."""
    if end - at <= _HEADER.size:
        return
    file.seek(at)
    length, _ = _HEADER.unpack(file.read(_HEADER.size))
    if length and not _zeros_only(file, min(at + _HEADER.size + length, end)):
        raise damaged(path, at, "a wrong digest")
    if _frame_follows(file, at + 1, end):
        raise damaged(path, at, "no whole record, but there is one behind it")


def _zeros_only(file: BinaryIO, at: int) -> bool:
    """Whether everything from ``at`` on is zeros."""
    file.seek(at)
    while block := file.read(_BLOCK):
        if block.count(0) != len(block):
            return False
    return True


def _frame_follows(file: BinaryIO, start: int, end: int) -> bool:
    """Whether a whole frame begins anywhere from ``start`` on."""
    at = start + _HEADER.size
    while at < end - 1:
        file.seek(at)
        block = file.read(_BLOCK)
        found = block.find(_MARK)
        while found >= 0:
            if _whole(file, at + found - _HEADER.size, end) is not None:
                return True
            found = block.find(_MARK, found + 1)
        at += max(len(block) - 1, 1)  # the mark may lie across two blocks
    return False


class SegmentWriter:
    """A rank's facts in one run on stable storage: a file that grows by a record with each cut.

    Rule: an error is final. After a failed write or fsync nobody knows what the file holds behind the last good record
    (the kernel may have dropped pages, and reports that once only), so nothing is ever written behind it. Not for two
    threads at once.
    """

    def __init__(self, job_dir: Path, run: int, rank: int) -> None:
        self._directory = os.path.join(os.fsencode(job_dir), run_name(run))
        self._rank = rank
        self._file: BinaryIO | None = None
        self._length = 0
        self._failed = False

    def append(self, record: Record) -> None:
        """Writes ``record``, and returns once it is on stable storage.

        Raises ``OSError``; once it has, each further call does so too.
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
                with suppress(OSError):  # half a record takes room, and readers ignore it
                    os.ftruncate(self._file.fileno(), self._length)
            raise

    def close(self) -> None:
        """Closes the file; what was appended is durable already."""
        if self._file is not None:
            self._file.close()
            self._file = None
            self._failed = True
