"""An archive that another program has compressed as one stream: it can be read from its beginning to its end only.

Who lists it goes through the stream; to unpack it, one process first puts the contents into a file without a name,
which all ranks read as a plain archive. What is damaged in a stream is told, and nothing behind it is believed.
"""

from __future__ import annotations

import errno
import os
import re
import sys
import zlib
from collections import deque
from collections.abc import Iterator
from functools import partial

from pcopy.fsio.patience import patiently
from pcopy.fsio.problem import Problem, failing
from pcopy.fsio.seekable_zstd import TrailingGarbage, read_frames
from pcopy.fsio.source import status_of
from pcopy.libc import free_bytes

MAGICS = {
    b"\x28\xb5\x2f\xfd": "zstd",
    b"\x1f\x8b": "gzip",
    b"\xfd7zXZ": "xz",
    b"BZh": "bzip2",
    b"\x04\x22\x4d\x18": "lz4",
}
"""How files begin that these programs have written."""
_GZIP = b"\x1f\x8b\x08"
"""How each member of gzip begins: its magic number, and the only method of compression (RFC 1952)."""
_SKIPPABLE = re.compile(rb"[\x50-\x5f]\x2a\x4d\x18")
"""How a frame without contents begins (RFC 8878); ``pzstd`` writes one before each other frame."""
KEPT_BYTES = 32 << 20
"""Of what was decompressed, for who looks back: headers are read in windows, and no extension is longer than half."""
_PIECE = 1 << 20
_CHECKED_EACH = 64 << 20
"""Bytes after which the room that is left is looked at again."""


def compressed_by(beginning: bytes) -> str:
    """The program that has written a file that begins so; empty for none that is known."""
    if _SKIPPABLE.match(beginning):
        return "zstd"
    return next((program for magic, program in MAGICS.items() if beginning.startswith(magic)), "")


def contents_of(descriptor: int, program: str) -> Iterator[bytes]:
    """What is in a stream of gzip or zstd, in pieces of some MiB; raises ``Problem``, also where it is damaged."""
    size = status_of(descriptor, on_source=True).st_size
    is_first = True
    for piece in _gunzipped(descriptor) if program == "gzip" else read_frames(descriptor, size):
        if is_first and piece:
            is_first = False
            if inner := compressed_by(piece[:6]):
                raise _damaged(f"what is compressed in it was compressed before, by {inner}")
        yield piece


def _gunzipped(descriptor: int) -> Iterator[bytes]:
    """Members of gzip (RFC 1952), one behind the other; zeros may follow, as behind a tape's last block.

    Raises ``Problem``: ``TrailingGarbage`` if anything else follows.
    """
    packed = _Packed(descriptor)
    packed.fill()
    while packed.data:
        if packed.begin and not _GZIP.startswith(packed.first(len(_GZIP))):
            raise TrailingGarbage.at(packed.begin, "gzip")
        unzip = zlib.decompressobj(wbits=31)
        while not unzip.eof:
            if not packed.fill():
                raise _damaged("it is cut short")
            try:
                piece = unzip.decompress(packed.data, _PIECE)
            except zlib.error as error:
                raise _damaged(f"the gzip stream is damaged: {reason_of(error)}") from error
            packed.data = unzip.unused_data if unzip.eof else unzip.unconsumed_tail
            if piece:
                yield piece
        packed.skip_zeros()


class _Packed:
    """A file that is read from its beginning to its end: ``data`` comes next."""

    def __init__(self, descriptor: int) -> None:
        self.data = b""
        self._descriptor, self._at = descriptor, 0

    @property
    def begin(self) -> int:
        """Where ``data`` begins in the file."""
        return self._at - len(self.data)

    def first(self, size: int) -> bytes:
        """The next ``size`` bytes, which stay in ``data``; fewer at the end of the file. Raises ``Problem``."""
        while len(self.data) < size and (more := self._read()):
            self.data += more
        return self.data[:size]

    def fill(self) -> bytes:
        """What comes next, empty at the end of the file. Raises ``Problem``."""
        if not self.data:
            self.data = self._read()
        return self.data

    def _read(self) -> bytes:
        with failing("read", on_source=True):
            data = patiently(partial(os.pread, self._descriptor, _PIECE, self._at))
        self._at += len(data)
        return data

    def skip_zeros(self) -> None:
        """Raises ``Problem``."""
        while self.fill() and not self.data.strip(b"\0"):
            self.data = b""
        self.data = self.data.lstrip(b"\0")


def reason_of(error: zlib.error) -> str:
    """Return why data cannot be decompressed, without the number and the activity that zlib puts before it."""
    return str(error).rpartition(": ")[2]


def _damaged(why: str) -> Problem:
    return Problem("decompress", errno.EBADMSG, on_source=True, text=why)


class StreamReader:
    """Reads what is in a stream at offsets that mostly grow; what lies far back is decompressed once more."""

    def __init__(self, descriptor: int, program: str) -> None:
        self._descriptor, self._program = descriptor, program
        self.garbage = ""
        """The error of what follows the contents, if anything does that is ignored; known after ``check_rest``."""
        self._begin()

    def _begin(self) -> None:
        self.pieces = self._contents()
        """What was not read yet."""
        self._kept = deque[bytes]()
        self._start = self._end = 0

    def _contents(self) -> Iterator[bytes]:
        try:
            yield from contents_of(self._descriptor, self._program)
        except TrailingGarbage as garbage:
            self.garbage = garbage.strerror or ""

    def read(self, offset: int, size: int) -> bytes:
        """As ``pcopy.archive.reader.Read``; raises ``Problem``."""
        if offset < self._start:
            self._begin()
        while self._end < offset + size and (piece := next(self.pieces, None)) is not None:
            self._kept.append(piece)
            self._end += len(piece)
            while (
                self._end - self._start - len(self._kept[0]) > KEPT_BYTES and self._start + len(self._kept[0]) <= offset
            ):
                self._start += len(self._kept.popleft())
        parts, at = [], self._start
        for piece in self._kept:
            if at + len(piece) > offset and at < offset + size:
                parts.append(piece[max(0, offset - at) : offset + size - at])
            at += len(piece)
        return b"".join(parts)

    def check_rest(self) -> None:
        """Read all that nobody has read. Raises ``Problem`` if it is damaged: the checksum stands at the end."""
        while self.read(self._end, 1):
            pass

    @property
    def size(self) -> int:
        """Bytes of the contents that were read until now."""
        return self._end


def put_aside(descriptor: int, program: str, directory: bytes) -> tuple[int, str]:
    """Put the contents of a stream into a file without a name, on the file system of ``directory``.

    Returns its descriptor, and the error of what follows the contents, if anything does that is ignored.

    It takes half of the room that is free there at most, so that what is unpacked from it has a place, and a small
    file that holds far too much harms nobody. Raises ``Problem``.
    """
    from tempfile import TemporaryFile

    with failing("create"), TemporaryFile(dir=directory, prefix=b".pcopy-", buffering=0) as aside:
        written = room = 0
        stream = StreamReader(descriptor, program)
        for piece in stream.pieces:
            if written >= room:
                free = _free(aside.fileno())
                if free < written:
                    text = f"its contents would take more than half of the room, {written + free:,} bytes"
                    raise Problem("write", errno.ENOSPC, text=text)
                room = written + min(_CHECKED_EACH, (free - written) // 2)
            with failing("write"):
                rest = memoryview(piece)
                while rest:
                    rest = rest[aside.write(rest) :]
            written += len(piece)
        return os.dup(aside.fileno()), stream.garbage


def _free(descriptor: int) -> int:
    """Return the bytes that are left; if that is unknown, more than are ever needed."""
    with failing("statvfs"):
        status = os.fstatvfs(descriptor)
    try:
        return free_bytes(status)
    except OSError:
        return sys.maxsize
