"""The seekable format of Zstandard: independent frames, and a table that tells where each one is.

A seekable file consists of frames, one behind the other, followed by a skippable frame with their sizes, which ordinary
decompressors skip. Each frame has its content size and a checksum.

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
from pcopy.fsio.problem import Problem, as_problem
from pcopy.fsio.retries import with_retries
from pcopy.units import format_size

if TYPE_CHECKING:
    from zstandard import ZstdCompressor, ZstdDecompressor

MAX_FRAME_SIZE = 64 << 20
"""Maximum bytes of contents of a frame that is decompressed as a whole, in memory.

A file with larger ones is read as a stream.
"""
_MAX_COMPRESSED_SIZE = MAX_FRAME_SIZE + (MAX_FRAME_SIZE >> 8) + 64
"""Maximum bytes of such a frame in the file (ZSTD_compressBound in zstd.h), even if it has no contents."""
MAX_FRAMES = 1 << 22
"""Maximum number of frames in a table, which then takes 64 MiB of memory. A file with more is read as a stream."""
MAX_WINDOW_SIZE = 1 << 27
"""Maximum bytes of memory that a stream may need for its window; the default limit of ``zstd -d``."""

_FRAME_MAGIC, _BLOCK_HEADER_SIZE = 0xFD2FB528, 3
"""Magic number of a frame with contents, and bytes of the header of each of its blocks."""
_SKIPPABLE_MAGIC, _SKIPPABLE_MASK = 0x184D2A50, 0xFFFFFFF0
"""Magic number of a skippable frame, and the mask for it: its last four bits may have any value."""
_TABLE_MAGIC = 0x184D2A5E
"""Magic number of the skippable frame that holds a seek table."""
_TABLE_FOOTER = struct.Struct("<IBI")
"""The last bytes of a table: number of frames, flags, magic number."""
_TABLE_FOOTER_MAGIC = 0x8F92EAB1
"""Magic number at the end of a seek table."""
_WITH_CHECKSUMS, _RESERVED_BITS = 0x80, 0x7C
"""Flags of a table: its entries have checksums; bits that must be 0."""
_SKIPPABLE_HEADER = struct.Struct("<II")
"""Header of a skippable frame: magic number, number of bytes that follow."""
_MAX_HEADER_SIZE = 18
"""Maximum bytes of the header of a frame with contents (RFC 8878)."""
_WRONG_TABLE_HINT = " (if zstd -d, which reads no seek table, finds no fault, the table is wrong)"
_PIECE_SIZE = 1 << 20
"""Bytes of contents that are yielded in one piece, about."""
_MAX_STEP_SIZE = 1 << 18
"""Maximum bytes of the file that are processed between two yields."""
_MAX_BLOCK_SIZE = 128 << 10
"""Maximum bytes of contents of a block."""
_RLE_BLOCK, _COMPRESSED_BLOCK = 1, 2
"""Types of blocks: one repeated byte, and the usual compressed block."""


class TrailingGarbage(Problem):
    """Bytes that follow the last frame (or member of gzip) and do not begin another one.

    All contents have been read by then.
    """

    @classmethod
    def from_offset(cls, offset: int, program: str) -> TrailingGarbage:
        """Return the problem of unknown bytes from ``offset`` on, in a file that ``program`` has compressed."""
        text = f"the bytes from {offset} on were not compressed by {program}, and are ignored"
        return cls("decompress", errno.EBADMSG, on_source=True, text=text)


class Frame(NamedTuple):
    """Size of a frame in bytes: ``compressed_size``, as it is in the file, and ``content_size``, of its contents."""

    compressed_size: int
    content_size: int


class SeekTable(NamedTuple):
    """The positions of the frames of a file.

    Fields:
        offsets: offset of each frame in the file; the last element is the end of the last frame.
        content_offsets: offset of each frame's contents; the last element is the size of all contents.
        checksums: checksum of each frame's contents; empty if the table has none.
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
    def from_sizes(cls, frames: Iterable[tuple[int, int]]) -> SeekTable:
        """Return the table of frames that are given as pairs: bytes in the file, bytes of contents."""
        at, contents_at = array("Q", [0]), array("Q", [0])
        for compressed, size in frames:
            at.append(at[-1] + compressed)
            contents_at.append(contents_at[-1] + size)
        return cls(at, contents_at)

    @classmethod
    def read(cls, descriptor: int, size: int) -> SeekTable | None:
        """Return the table at the end of a file of ``size`` bytes. Raise ``Problem``.

        Return None if there is no table, if it does not match the file, or if it is too large.
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
        """Return the numbers of the frames that hold ``length`` bytes of the contents from ``offset`` on."""
        if length <= 0:
            return range(0)
        first = bisect_right(self.content_offsets, offset) - 1
        last = bisect_right(self.content_offsets, min(offset + length, self.content_size) - 1)
        return range(first, last)


def compress_frame(data: bytes | memoryview, level: int) -> bytes:
    """Return ``data`` as one compressed frame, which has its content size and checksum."""
    return _compressor(level).compress(data)


def packed_seek_table(frames: Sequence[Frame]) -> bytes:
    """Return the table that is written behind these ``frames`` in a seekable file.

    It is empty if there are more frames than readers accept: the file can then be read only as one stream. Raise
    ``ValueError`` if a frame is too large.
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
    """Return the contents of frame ``number``, checked against the table. Raise ``Problem``."""
    import zstandard

    at, size = table.offsets[number], table.content_offsets[number + 1] - table.content_offsets[number]
    packed = _read_exactly(descriptor, at, table.offsets[number + 1] - at)
    try:
        claimed = zstandard.get_frame_parameters(packed[:_MAX_HEADER_SIZE]).content_size
        # Checked before the library allocates as much memory as the frame claims to need.
        if claimed in (size, zstandard.CONTENTSIZE_UNKNOWN):
            contents = _decompressor().decompress(packed, max_output_size=size, allow_extra_data=False)
        else:
            contents = b""
    except zstandard.ZstdError as error:
        raise _damaged_frame(at, f"{error}{_WRONG_TABLE_HINT}") from error
    if len(contents) != size:
        raise _damaged_frame(at, f"it does not hold as many bytes as the seek table says{_WRONG_TABLE_HINT}")
    if table.checksums:
        import xxhash

        if xxhash.xxh64_intdigest(contents) & 0xFFFFFFFF != table.checksums[number]:
            raise _damaged_frame(at, f"its contents do not match the checksum in the seek table{_WRONG_TABLE_HINT}")
    return contents


def read_frames(descriptor: int, size: int) -> Iterator[bytes]:
    """Yield the contents of a file of ``size`` bytes, with or without a table, in pieces of a few MiB at most.

    A piece is empty after a long part of the file without contents, so that the caller can do other work in between.

    Raise ``Problem``, also if the file does not consist of whole frames: ``TrailingGarbage`` if other bytes follow
    them.
    """
    import zstandard

    if not size:
        raise _damaged_frame(0, "the file is empty")
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
            raise TrailingGarbage.from_offset(at, "zstd")
        magic, follow = _SKIPPABLE_HEADER.unpack(ahead.read_range(at, at + _SKIPPABLE_HEADER.size, at))
        if magic & _SKIPPABLE_MASK != _SKIPPABLE_MAGIC:
            if magic != _FRAME_MAGIC:
                raise Problem("decompress", errno.EBADMSG, on_source=True, text=f"no zstd frame begins at byte {at}")
            at = yield from _frame_contents(ahead, at, decompressor)
        elif at + _SKIPPABLE_HEADER.size + follow > size:
            raise _damaged_frame(at, "it is cut short")
        else:
            at += _SKIPPABLE_HEADER.size + follow


def _may_begin_frame(beginning: bytes) -> bool:
    """Return True if a frame begins with these 4 bytes; or with fewer, at the end of a truncated file."""
    frame, skippable = _FRAME_MAGIC.to_bytes(4, "little"), _SKIPPABLE_MAGIC.to_bytes(4, "little")
    first = bytes((beginning[0] & _SKIPPABLE_MASK & 0xFF,))
    return frame.startswith(beginning) or skippable.startswith(first + beginning[1:])


class _SequentialReader:
    """A file that is read sequentially. ``data`` is the part that is in memory."""

    def __init__(self, descriptor: int, size: int) -> None:
        self.data = b""
        self._descriptor, self._size, self._begin = descriptor, size, 0

    def index_of(self, at: int, end: int, frame: int) -> int:
        """Return the index in ``data`` of the byte at the offset ``at``; the bytes up to ``end`` are in ``data``, too.

        Raise ``Problem``, also if the file ends before ``end``: then the frame that begins at the offset ``frame`` is
        truncated.
        """
        if at < self._begin or end > self._begin + len(self.data):
            if end > self._size:
                raise _damaged_frame(frame, "it is cut short")
            self.data = _read_exactly(self._descriptor, at, min(max(_PIECE_SIZE, end - at), self._size - at))
            self._begin = at
        return at - self._begin

    def read_range(self, at: int, end: int, frame: int) -> bytes:
        """Return the bytes from the offset ``at`` to ``end``. Raise ``Problem`` as ``index_of`` does."""
        index = self.index_of(at, end, frame)
        return self.data[index : index + end - at]

    def frame_header(self, at: int) -> bytes:
        """Return the longest possible header of the frame at the offset ``at``. Raise ``Problem``."""
        return self.read_range(at, min(at + _MAX_HEADER_SIZE, self._size), at)


def _frame_contents(ahead: _SequentialReader, at: int, decompressor: ZstdDecompressor) -> Generator[bytes, None, int]:
    """Yield the contents of the frame that begins at ``at``; return the offset of the first byte behind it.

    Raise ``Problem``. The library gets whole blocks, and so few of them that their contents are not much larger than
    one piece.
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
            index = ahead.index_of(start, at + _BLOCK_HEADER_SIZE, begin) + at - start
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
        raise _damaged_frame(begin, str(error)) from error
    if not stream.eof:
        raise _damaged_frame(begin, "it does not end with its last block")
    return at


def _damaged_frame(at: int, why: str) -> Problem:
    """Return the problem of the frame that begins at the offset ``at``."""
    text = f"the zstd frame that begins at byte {at} is damaged: {why}"
    return Problem("decompress", errno.EBADMSG, on_source=True, text=text)


def _running_sums(numbers: Sequence[int]) -> array[int]:
    """Return the running sums of ``numbers``, beginning with 0."""
    return array("Q", accumulate(numbers, initial=0))


def _read_exactly(descriptor: int, at: int, length: int) -> bytes:
    """Return exactly ``length`` bytes from the offset ``at`` on. Raise ``Problem``."""
    data = _read_up_to(descriptor, at, length)
    if len(data) != length:
        text = f"the file ended at byte {at + len(data)}, before its size"
        raise Problem("read", 0, on_source=True, text=text, changed=True)
    return data


def _read_up_to(descriptor: int, at: int, length: int) -> bytes:
    """Return ``length`` bytes from the offset ``at`` on, or fewer at the end of the file. Raise ``Problem``."""
    data = b""
    with as_problem("read", on_source=True):
        while len(data) < length:
            part = with_retries(partial(os.pread, descriptor, length - len(data), at + len(data)))
            if not part:
                break
            data += part
    return data


@cache
def _compressor(level: int) -> ZstdCompressor:
    """Return a compressor that writes the content size and a checksum; one for each ``level``."""
    import zstandard

    return zstandard.ZstdCompressor(level=level, write_checksum=True, write_content_size=True)


@cache
def _decompressor() -> ZstdDecompressor:
    """Return the decompressor for single frames."""
    import zstandard

    return zstandard.ZstdDecompressor(max_window_size=MAX_WINDOW_SIZE)
