"""Archives that another program has compressed as one stream, which can only be read from its start to its end.

To list such an archive, one process reads the stream. To extract it, one process first writes the decompressed contents
to a file without a name, which all ranks then read as an uncompressed archive. A damaged stream is reported, and
nothing after the damage is used.
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

from pcopy.archive.member import TAR_BLOCK_BYTES
from pcopy.archive.reader import is_valid_header
from pcopy.fsio.problem import Problem, errors_as_problem
from pcopy.fsio.retries import call_with_retries
from pcopy.fsio.seekable_zstd import TrailingGarbageProblem, read_decompressed_pieces
from pcopy.fsio.source import status_of_open_item
from pcopy.libc import free_space_in_bytes

COMPRESSION_MAGICS = {
    b"\x28\xb5\x2f\xfd": "zstd",
    b"\x1f\x8b": "gzip",
    b"\xfd7zXZ": "xz",
    b"BZh": "bzip2",
    b"\x04\x22\x4d\x18": "lz4",
}
"""The first bytes of a compressed file, and the program that has compressed it."""
_GZIP_MEMBER_START = b"\x1f\x8b\x08"
"""First bytes of each member of gzip: the magic number, and the only compression method (RFC 1952)."""
_SKIPPABLE_FRAME_START = re.compile(rb"[\x50-\x5f]\x2a\x4d\x18")
"""First bytes of a skippable frame of zstd (RFC 8878), which holds no contents. The program pzstd writes one before
each other frame.
"""
MAX_KEPT_BYTES = 32 << 20
"""Bytes of decompressed data that are kept, so that a reader can go back. Headers are read in windows, and no header is
longer than half of this number.
"""
_READ_PIECE_BYTES = 1 << 20
"""Bytes of one read, and largest number of bytes that one call of zlib decompresses."""
_SPACE_CHECK_INTERVAL = 64 << 20
"""Largest number of bytes that are written before the free space is determined again."""


def compression_program_name(beginning: bytes) -> str:
    """Return the program that has compressed a file, given its first block (``beginning``); empty if it is not
    compressed. A tar archive is not, whatever the name of its first member is: its first block is a header.
    """
    if len(beginning) == TAR_BLOCK_BYTES and is_valid_header(beginning):
        return ""
    if _SKIPPABLE_FRAME_START.match(beginning):
        return "zstd"
    return next((program for magic, program in COMPRESSION_MAGICS.items() if beginning.startswith(magic)), "")


def decompressed_stream(descriptor: int, program: str) -> Iterator[bytes]:
    """Yield the decompressed contents of the open file, a stream of ``program`` ("gzip" or "zstd"), in pieces of a few
    MiB.

    Raise ``Problem`` if the stream is damaged, or if its contents are compressed once more.
    """
    size = status_of_open_item(descriptor, on_source=True).st_size
    is_first = True
    for piece in _gunzip_stream(descriptor) if program == "gzip" else read_decompressed_pieces(descriptor, size):
        if is_first and piece:
            is_first = False
            if inner := compression_program_name(piece[:TAR_BLOCK_BYTES]):
                raise _damaged_stream_problem(f"its contents are compressed themselves, by {inner}")
        yield piece


def _gunzip_stream(descriptor: int) -> Iterator[bytes]:
    """Yield the contents of the members of gzip (RFC 1952) in the open file. Zeros may follow them, as after the last
    block of a tape.

    Raise ``Problem`` if the data are damaged, and ``TrailingGarbageProblem`` if anything else follows the last member.
    """
    packed = _CompressedFile(descriptor)
    packed.refill()
    while packed.data:
        if packed.data_offset and not _GZIP_MEMBER_START.startswith(packed.peek(len(_GZIP_MEMBER_START))):
            raise TrailingGarbageProblem.from_offset(packed.data_offset, "gzip")
        unzip = zlib.decompressobj(wbits=31)
        while not unzip.eof:
            if not packed.refill():
                raise _damaged_stream_problem("it is cut short")
            try:
                piece = unzip.decompress(packed.data, _READ_PIECE_BYTES)
            except zlib.error as error:
                raise _damaged_stream_problem(f"the gzip stream is damaged: {zlib_error_reason(error)}") from error
            packed.data = unzip.unused_data if unzip.eof else unzip.unconsumed_tail
            if piece:
                yield piece
        packed.skip_zeros()


class _CompressedFile:
    """A compressed file that is read from its start to its end. ``data`` is what was read and not yet used."""

    def __init__(self, descriptor: int) -> None:
        self.data = b""
        self._descriptor, self._at = descriptor, 0

    @property
    def data_offset(self) -> int:
        """The offset of ``data`` in the file."""
        return self._at - len(self.data)

    def peek(self, size: int) -> bytes:
        """Return the next ``size`` bytes of the file without removing them from ``data``; fewer at the end of the file.

        Raise ``Problem`` if the file cannot be read.
        """
        while len(self.data) < size and (more := self._read()):
            self.data += more
        return self.data[:size]

    def refill(self) -> bytes:
        """Read on if ``data`` is empty. Return ``data``; it is empty at the end of the file. Raise ``Problem`` if the
        file cannot be read.
        """
        if not self.data:
            self.data = self._read()
        return self.data

    def _read(self) -> bytes:
        """Return the next bytes of the file, empty at its end, and advance. Raise ``Problem`` if the file cannot be
        read.
        """
        with errors_as_problem("read", on_source=True):
            data = call_with_retries(partial(os.pread, self._descriptor, _READ_PIECE_BYTES, self._at))
        self._at += len(data)
        return data

    def skip_zeros(self) -> None:
        """Skip bytes of zero. Raise ``Problem`` if the file cannot be read."""
        while self.refill() and not self.data.strip(b"\0"):
            self.data = b""
        self.data = self.data.lstrip(b"\0")


def zlib_error_reason(error: zlib.error) -> str:
    """Return the reason that an error of zlib states, without the number and the operation that zlib puts before it."""
    return str(error).rpartition(": ")[2]


def _damaged_stream_problem(why: str) -> Problem:
    """Return the error for a damaged stream; ``why`` is the reason."""
    return Problem("decompress", errno.EBADMSG, on_source=True, text=why)


class StreamReader:
    """Reads the contents of a stream at any offsets; it is fast if these mostly increase.

    To go back by more than ``MAX_KEPT_BYTES``, it decompresses the stream again from its start.
    """

    def __init__(self, descriptor: int, program: str) -> None:
        self._descriptor, self._program = descriptor, program
        self.garbage = ""
        """Text of a warning that data follow the contents and are ignored; empty if there are none. It is known after
        ``check_stream_to_end``.
        """
        self._restart()

    def _restart(self) -> None:
        """Go back to the start of the stream."""
        self.pieces = self._stream_contents()
        """The decompressed data that were not read yet."""
        self._kept = deque[bytes]()
        self._start = self._end = 0

    def _stream_contents(self) -> Iterator[bytes]:
        """Yield the contents. If garbage follows them, store the warning in ``garbage``; nothing is raised, because the
        contents before it are good.
        """
        try:
            yield from decompressed_stream(self._descriptor, self._program)
        except TrailingGarbageProblem as garbage:
            self.garbage = garbage.strerror or ""

    def read(self, offset: int, size: int) -> bytes:
        """Return ``size`` bytes of the contents from ``offset`` on; fewer at their end
        (``pcopy.archive.reader.ReadFunction``). Raise ``Problem`` if the stream is damaged.
        """
        if offset < self._start:
            self._restart()
        while self._end < offset + size and (piece := next(self.pieces, None)) is not None:
            self._kept.append(piece)
            self._end += len(piece)
            while (
                self._end - self._start - len(self._kept[0]) > MAX_KEPT_BYTES
                and self._start + len(self._kept[0]) <= offset
            ):
                self._start += len(self._kept.popleft())
        parts, at = [], self._start
        for piece in self._kept:
            if at + len(piece) > offset and at < offset + size:
                parts.append(piece[max(0, offset - at) : offset + size - at])
            at += len(piece)
        return b"".join(parts)

    def check_stream_to_end(self) -> None:
        """Read the stream to its end, where its checksum is. Raise ``Problem`` if the stream is damaged."""
        while self.read(self._end, 1):
            pass

    @property
    def size(self) -> int:
        """Bytes of contents that were read so far; after ``check_stream_to_end`` the size of the contents."""
        return self._end


def decompress_to_unnamed_file(descriptor: int, program: str, directory: bytes) -> tuple[int, str]:
    """Decompress the open file ``descriptor``, a stream of ``program`` ("gzip" or "zstd"), into a file without a name
    on the file system of ``directory``.

    Return the descriptor of the new file, and the text of a warning that data follow the contents and are ignored (""
    if there are none).

    The file takes at most half of the free space. So there is space for the files that are extracted from it, and a
    small stream with an excessive amount of contents cannot fill the file system. Raise ``Problem`` if the contents
    would take more, or if anything else fails.
    """
    from tempfile import TemporaryFile

    with errors_as_problem("create"), TemporaryFile(dir=directory, prefix=b".pcopy-", buffering=0) as aside:
        written = room = 0
        stream = StreamReader(descriptor, program)
        for piece in stream.pieces:
            if written >= room:
                free = _free_space_bytes(aside.fileno())
                if free < written:
                    text = f"its contents would take more than half of the free space, {written + free:,} bytes"
                    raise Problem("write", errno.ENOSPC, text=text)
                room = written + min(_SPACE_CHECK_INTERVAL, (free - written) // 2)
            with errors_as_problem("write"):
                rest = memoryview(piece)
                while rest:
                    rest = rest[aside.write(rest) :]
            written += len(piece)
        return os.dup(aside.fileno()), stream.garbage


def _free_space_bytes(descriptor: int) -> int:
    """Return the bytes of free space on the file system of ``descriptor``; if that is unknown, more than is ever
    needed. Raise ``Problem`` if fstatvfs(2) fails.
    """
    with errors_as_problem("statvfs"):
        status = os.fstatvfs(descriptor)
    try:
        return free_space_in_bytes(status)
    except OSError:
        return sys.maxsize
