"""The seekable format of Zstandard: frames (separately compressed parts of the contents), and a table of their sizes.

A seekable file consists of frames, one behind the other. A skippable frame follows, which ordinary decompressors
ignore: it holds the seek table, the sizes of all frames. Each frame has its content size and a checksum.

The input is not trusted, because any program may have written it. A table must match its file to the byte, and a frame
must hold exactly what the table says. A frame that is truncated, damaged or too large is a ``Problem``.
"""

from __future__ import annotations

import errno
import os
import struct
import sys
from array import array
from bisect import bisect_right
from collections.abc import Generator, Iterable, Iterator, Sequence
from functools import cache, partial
from itertools import accumulate
from typing import TYPE_CHECKING

from pcopy.fast_named_tuple import NamedTuple
from pcopy.fsio.problem import Problem, errors_as_problem
from pcopy.fsio.retries import call_with_retries
from pcopy.units import format_size

if TYPE_CHECKING:
    from zstandard import ZstdCompressor, ZstdDecompressor

MAX_FRAME_SIZE = 64 << 20
"""Maximum bytes of contents of a frame that is decompressed as a whole, in memory.

A file with larger frames is read as one stream, from its beginning.
"""
_MAX_COMPRESSED_SIZE = MAX_FRAME_SIZE + (MAX_FRAME_SIZE >> 8) + 64
"""Maximum compressed bytes of a frame that is decompressed as a whole (ZSTD_compressBound of ``MAX_FRAME_SIZE``,
zstd.h). A seek table with a larger frame is not used.
"""
MAX_FRAMES = 1 << 22
"""Maximum number of frames in a table, which then takes 64 MiB of memory. A file with more frames is read as one
stream.
"""
MAX_WINDOW_SIZE = 1 << 27
"""Maximum window size, in bytes of memory, of a frame that is read as a stream; ``zstd -d`` has the same limit."""

_FRAME_MAGIC, _BLOCK_HEADER_SIZE = 0xFD2FB528, 3
"""Magic number of a frame with contents, and bytes of the header of each of its blocks."""
_SKIPPABLE_MAGIC, _SKIPPABLE_MASK = 0x184D2A50, 0xFFFFFFF0
"""Magic number of a skippable frame, and the mask for it: its last four bits may have any value."""
_TABLE_MAGIC = 0x184D2A5E
"""Magic number of the skippable frame that holds a seek table."""
_TABLE_FOOTER = struct.Struct("<IBI")
"""Format of the last bytes of a seek table: number of frames, flags, magic number."""
_TABLE_FOOTER_MAGIC = 0x8F92EAB1
"""Magic number at the end of a seek table."""
_WITH_CHECKSUMS, _RESERVED_BITS = 0x80, 0x7C
"""Flags of a seek table: the bit for "entries have checksums", and the bits that must be 0."""
_SKIPPABLE_HEADER = struct.Struct("<II")
"""Format of the header of a skippable frame: magic number, number of bytes that follow."""
_MAX_HEADER_SIZE = 18
"""Maximum bytes of the header of a frame with contents (RFC 8878)."""
_WRONG_TABLE_HINT = " (if zstd -d, which reads no seek table, finds no fault, the table is wrong)"
_PIECE_SIZE = 1 << 20
"""Approximate number of bytes of uncompressed contents that a generator yields in one piece."""
_MAX_STEP_SIZE = 1 << 18
"""Maximum compressed bytes of a frame that are processed before the generator yields again, so that the caller can do
other work.
"""
_MAX_BLOCK_SIZE = 128 << 10
"""Maximum bytes of uncompressed contents of a zstd block (RFC 8878)."""
_RLE_BLOCK, _COMPRESSED_BLOCK = 1, 2
"""Types of the blocks in a zstd frame: one repeated byte, and the usual compressed block."""


class TrailingGarbageProblem(Problem):
    """Error of a compressed file: bytes follow its last frame (or its last member, with gzip) and do not begin another
    one.

    All contents before these bytes have been read and yielded.
    """

    @classmethod
    def from_offset(cls, offset: int, program: str) -> TrailingGarbageProblem:
        """Return the error for a file compressed by ``program`` ("zstd" or "gzip") in which unknown bytes follow from
        ``offset`` on.
        """
        text = f"the bytes from {offset} on were not compressed by {program}, and are ignored"
        return cls("decompress", errno.EBADMSG, on_source=True, text=text)


class ZstdFrame(NamedTuple):
    """Sizes of a frame in bytes: ``compressed_size`` (in the file) and ``content_size`` (of its contents)."""

    compressed_size: int
    content_size: int


class SeekTable(NamedTuple):
    """The seek table of a compressed file: where its frames (separately compressed parts) are, in the file and in the
    contents.

    Fields:
        offsets: offset of each frame in the file; the last element is the end of the last frame.
        content_offsets: offset of each frame's contents; the last element is the size of all contents.
        checksums: lower 32 bits of the XXH64 of each frame's contents; empty if the table has none.
    """

    offsets: array[int]
    content_offsets: array[int]
    checksums: Sequence[int] = ()

    @property
    def frame_count(self) -> int:
        """Number of frames."""
        return len(self.offsets) - 1

    @property
    def content_size(self) -> int:
        """Bytes of the contents of all frames."""
        return self.content_offsets[-1]

    @classmethod
    def from_frame_sizes(cls, frames: Iterable[tuple[int, int]]) -> SeekTable:
        """Return the table of ``frames``, given in order as (compressed bytes, bytes of contents)."""
        at, contents_at = array("Q", [0]), array("Q", [0])
        for compressed, size in frames:
            at.append(at[-1] + compressed)
            contents_at.append(contents_at[-1] + size)
        return cls(at, contents_at)

    @classmethod
    def read(cls, descriptor: int, size: int) -> SeekTable | None:
        """Return the seek table at the end of an open file of ``size`` bytes. Raise ``Problem`` if the file cannot be
        read.

        Return None if there is no table, if it does not match the size of the file, or if it has too many or too large
        frames.
        """
        if size < _SKIPPABLE_HEADER.size + _TABLE_FOOTER.size:
            return None
        frames, flags, magic = _TABLE_FOOTER.unpack(
            _read_exactly(descriptor, size - _TABLE_FOOTER.size, _TABLE_FOOTER.size)
        )
        if magic != _TABLE_FOOTER_MAGIC or flags & _RESERVED_BITS or frames > MAX_FRAMES:
            return None
        width = 3 if flags & _WITH_CHECKSUMS else 2
        begin = size - _TABLE_FOOTER.size - 4 * width * frames - _SKIPPABLE_HEADER.size
        if begin < 0:
            return None
        packed = _read_exactly(descriptor, begin, size - _TABLE_FOOTER.size - begin)
        if _SKIPPABLE_HEADER.unpack_from(packed) != (_TABLE_MAGIC, size - begin - _SKIPPABLE_HEADER.size):
            return None
        entries = array("I", packed[_SKIPPABLE_HEADER.size :])
        if sys.byteorder == "big":
            entries.byteswap()
        compressed, sizes = entries[::width], entries[1::width]
        too_large = max(sizes, default=0) > MAX_FRAME_SIZE or max(compressed, default=0) > _MAX_COMPRESSED_SIZE
        if sum(compressed) != begin or 0 in compressed or too_large:
            return None
        return cls(_running_sums(compressed), _running_sums(sizes), entries[2::width] if width == 3 else ())

    def frames_for_range(self, offset: int, length: int) -> range:
        """Return the numbers (from 0) of the frames that together hold ``length`` bytes of the contents, from the
        offset ``offset`` on.
        """
        if length <= 0:
            return range(0)
        first = bisect_right(self.content_offsets, offset) - 1
        last = bisect_right(self.content_offsets, min(offset + length, self.content_size) - 1)
        return range(first, last)


def compress_frame(data: bytes | memoryview, level: int) -> bytes:
    """Return ``data`` compressed as one frame, with the compression level ``level``; its header has the size of the
    contents, and a checksum follows them.
    """
    return _compressor(level).compress(data)


def packed_seek_table(frames: Sequence[ZstdFrame]) -> bytes:
    """Return the bytes of the seek table that is written after ``frames`` at the end of a seekable file.

    The result is empty if there are more than ``MAX_FRAMES`` frames: the file can then be read only as one stream.
    Raise ``ValueError`` if a frame is too large.
    """
    if any(max(frame) >= 1 << 32 for frame in frames):
        raise ValueError("frames that no table can hold")
    if len(frames) > MAX_FRAMES:
        return b""
    entries = struct.pack(f"<{2 * len(frames)}I", *(number for frame in frames for number in frame))
    return (
        _SKIPPABLE_HEADER.pack(_TABLE_MAGIC, len(entries) + _TABLE_FOOTER.size)
        + entries
        + _TABLE_FOOTER.pack(len(frames), 0, _TABLE_FOOTER_MAGIC)
    )


def read_frame(descriptor: int, table: SeekTable, number: int) -> bytes:
    """Return the uncompressed contents of the frame ``number`` (from 0) of an open file, checked against ``table``, the
    seek table of the file. Raise ``Problem``.
    """
    import zstandard

    at, size = table.offsets[number], table.content_offsets[number + 1] - table.content_offsets[number]
    packed = _read_exactly(descriptor, at, table.offsets[number + 1] - at)
    try:
        claimed = zstandard.get_frame_parameters(packed[:_MAX_HEADER_SIZE]).content_size
        # Check the claimed size before the library allocates that much memory.
        if claimed in (size, zstandard.CONTENTSIZE_UNKNOWN):
            contents = _decompressor().decompress(packed, max_output_size=size, allow_extra_data=False)
        else:
            contents = b""
    except zstandard.ZstdError as error:
        raise _damaged_frame_problem(at, f"{error}{_WRONG_TABLE_HINT}") from error
    if len(contents) != size:
        raise _damaged_frame_problem(at, f"it does not hold as many bytes as the seek table says{_WRONG_TABLE_HINT}")
    if table.checksums:
        import xxhash

        if xxhash.xxh64_intdigest(contents) & 0xFFFFFFFF != table.checksums[number]:
            raise _damaged_frame_problem(
                at, f"its contents do not match the checksum in the seek table{_WRONG_TABLE_HINT}"
            )
    return contents


def read_decompressed_pieces(descriptor: int, size: int) -> Iterator[bytes]:
    """Generator: yield the contents of an open zstd file of ``size`` bytes, with or without a seek table, in pieces of
    a few MiB at most.

    A piece is empty after a long part of the file without contents, so that the caller can do other work in between.

    Raise ``Problem``, also if the file does not consist of whole frames: ``TrailingGarbageProblem`` if other bytes
    follow them.
    """
    import zstandard

    if not size:
        raise _damaged_frame_problem(0, "the file is empty")
    ahead, decompressor = (
        _SequentialReader(descriptor, size),
        zstandard.ZstdDecompressor(max_window_size=MAX_WINDOW_SIZE),
    )
    at = last_pause = 0
    while at < size:
        if at - last_pause >= _MAX_STEP_SIZE:
            last_pause = at
            yield b""
        if at and not _may_begin_frame(ahead.read_range(at, min(at + 4, size), at)):
            raise TrailingGarbageProblem.from_offset(at, "zstd")
        magic, follow = _SKIPPABLE_HEADER.unpack(ahead.read_range(at, at + _SKIPPABLE_HEADER.size, at))
        if magic & _SKIPPABLE_MASK != _SKIPPABLE_MAGIC:
            if magic != _FRAME_MAGIC:
                raise Problem("decompress", errno.EBADMSG, on_source=True, text=f"no zstd frame begins at byte {at}")
            at = yield from _frame_contents(ahead, at, decompressor)
        elif at + _SKIPPABLE_HEADER.size + follow > size:
            raise _damaged_frame_problem(at, "it is cut short")
        else:
            at += _SKIPPABLE_HEADER.size + follow


def _may_begin_frame(beginning: bytes) -> bool:
    """Return True if ``beginning``, the next 4 bytes of a file (or fewer, at the end of a truncated file), can be the
    beginning of a frame.
    """
    frame, skippable = _FRAME_MAGIC.to_bytes(4, "little"), _SKIPPABLE_MAGIC.to_bytes(4, "little")
    first = bytes((beginning[0] & _SKIPPABLE_MASK & 0xFF,))
    return frame.startswith(beginning) or skippable.startswith(first + beginning[1:])


class _SequentialReader:
    """Reads a file from its beginning to its end. ``data`` is the part of the file that is in memory."""

    def __init__(self, descriptor: int, size: int) -> None:
        self.data = b""
        self._descriptor, self._size, self._begin = descriptor, size, 0

    def buffer_index_of_range(self, at: int, end: int, frame: int) -> int:
        """Make sure that the bytes of the file from the offset ``at`` to ``end`` are in ``data``, and return the index
        in ``data`` of the first of them.

        Raise ``Problem``, also if the file ends before ``end``: then the frame that begins at the offset ``frame`` is
        truncated.
        """
        if at < self._begin or end > self._begin + len(self.data):
            if end > self._size:
                raise _damaged_frame_problem(frame, "it is cut short")
            self.data = _read_exactly(self._descriptor, at, min(max(_PIECE_SIZE, end - at), self._size - at))
            self._begin = at
        return at - self._begin

    def read_range(self, at: int, end: int, frame: int) -> bytes:
        """Return the bytes of the file from the offset ``at`` to ``end``. Raise ``Problem``, also if the file ends
        before ``end``: then the frame that begins at the offset ``frame`` is truncated.
        """
        index = self.buffer_index_of_range(at, end, frame)
        return self.data[index : index + end - at]

    def frame_header(self, at: int) -> bytes:
        """Return the first bytes of the frame at the offset ``at``: as many as the longest possible header has. Raise
        ``Problem``.
        """
        return self.read_range(at, min(at + _MAX_HEADER_SIZE, self._size), at)


def _frame_contents(ahead: _SequentialReader, at: int, decompressor: ZstdDecompressor) -> Generator[bytes, None, int]:
    """Generator: yield the contents of the frame that begins at the offset ``at``; return the offset of the first byte
    after the frame.

    Raise ``Problem``. The library decompresses whole blocks, and so few at a time that their contents are not much
    larger than one piece. ``ahead`` reads the file.
    """
    import zstandard

    begin, start, parameters = at, at, None
    try:
        head = ahead.frame_header(at)
        parameters = zstandard.get_frame_parameters(head)
        has_checksum = parameters.has_checksum
        at += zstandard.frame_header_size(head)
        stream, is_last, content_bound = decompressor.decompressobj(), False, 0
        while not is_last:
            index = ahead.buffer_index_of_range(start, at + _BLOCK_HEADER_SIZE, begin) + at - start
            block = int.from_bytes(ahead.data[index : index + _BLOCK_HEADER_SIZE], "little")
            is_last, block_type, length = block & 1 == 1, block >> 1 & 3, block >> 3
            at += _BLOCK_HEADER_SIZE + (1 if block_type == _RLE_BLOCK else length)
            content_bound += _MAX_BLOCK_SIZE if block_type == _COMPRESSED_BLOCK else length
            if is_last:
                at += 4 if has_checksum else 0
            elif content_bound < _PIECE_SIZE and at - start < _MAX_STEP_SIZE:
                continue
            contents = stream.decompress(ahead.read_range(start, at, begin))
            if contents or not is_last:
                yield contents
            start, content_bound = at, 0
    except zstandard.ZstdError as error:
        if parameters is not None and parameters.window_size > MAX_WINDOW_SIZE:
            needs = (
                f"needs {format_size(parameters.window_size)} of memory, and {format_size(MAX_WINDOW_SIZE)} are allowed"
            )
            text = f"the zstd frame that begins at byte {begin} {needs}; zstd -d --long=31 decompresses it"
            raise Problem("decompress", errno.ENOTSUP, on_source=True, text=text) from error
        raise _damaged_frame_problem(begin, str(error)) from error
    if not stream.eof:
        raise _damaged_frame_problem(begin, "it does not end with its last block")
    return at


def _damaged_frame_problem(at: int, why: str) -> Problem:
    """Return the error for a damaged frame that begins at the offset ``at``; ``why`` is the reason, a part of the
    message.
    """
    text = f"the zstd frame that begins at byte {at} is damaged: {why}"
    return Problem("decompress", errno.EBADMSG, on_source=True, text=text)


def _running_sums(numbers: Sequence[int]) -> array[int]:
    """Return the running sums of ``numbers``, beginning with 0."""
    return array("Q", accumulate(numbers, initial=0))


def _read_exactly(descriptor: int, at: int, length: int) -> bytes:
    """Return exactly ``length`` bytes of the open file ``descriptor`` from the offset ``at`` on. Raise ``Problem``,
    also if the file ends before that range does.
    """
    data = _read_up_to_length(descriptor, at, length)
    if len(data) != length:
        text = f"the file ends at byte {at + len(data)}, earlier than its size says"
        raise Problem("read", 0, on_source=True, text=text, changed=True)
    return data


def _read_up_to_length(descriptor: int, at: int, length: int) -> bytes:
    """Return ``length`` bytes of the open file ``descriptor`` from the offset ``at`` on, or fewer at the end of the
    file. Raise ``Problem``.
    """
    data = b""
    with errors_as_problem("read", on_source=True):
        while len(data) < length:
            part = call_with_retries(partial(os.pread, descriptor, length - len(data), at + len(data)))
            if not part:
                break
            data += part
    return data


@cache
def _compressor(level: int) -> ZstdCompressor:
    """Return the compressor for this ``level``, which writes the size and a checksum of the contents into each frame.
    It is created once for each level.
    """
    import zstandard

    return zstandard.ZstdCompressor(level=level, write_checksum=True, write_content_size=True)


@cache
def _decompressor() -> ZstdDecompressor:
    """Return the decompressor for single frames."""
    import zstandard

    return zstandard.ZstdDecompressor(max_window_size=MAX_WINDOW_SIZE)
