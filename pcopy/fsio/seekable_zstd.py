"""Zstandard in independent frames, and the table by which they are found (the seekable format of its authors).

A seekable file is frames, one behind the other, and behind them a skippable frame with their sizes, which other readers
skip. Each frame has its content size and checksum. What is read here was written by anybody: a table has to fit its
file to the byte, a frame has to hold exactly what the table says, and a frame that is cut, damaged or too large is a
``Problem``.
"""

from __future__ import annotations

import errno
import os
import struct
import sys
from array import array
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from functools import cache, partial
from itertools import accumulate
from typing import TYPE_CHECKING

from pcopy.fsio.patience import patiently
from pcopy.fsio.problem import Problem, failing
from pcopy.named import NamedTuple

if TYPE_CHECKING:
    from zstandard import ZstdCompressor, ZstdDecompressor

LARGEST_FRAME = 64 << 20
"""Bytes of contents of a frame that is read as a whole, in memory. A file with larger ones is read as a stream."""
MOST_FRAMES = 1 << 22
"""Of a table: it takes 64 MiB of memory then. A file with more is read as a stream."""
LARGEST_WINDOW = 1 << 27
"""Bytes of memory that a stream may want, as ``zstd -d`` allows by itself."""

_FRAME, _BLOCKS_HEADER = 0xFD2FB528, 3
_SKIPPABLE, _SKIPPABLE_MASK = 0x184D2A50, 0xFFFFFFF0
_TABLE = 0x184D2A5E
"""Magic numbers of frames: with contents, to be skipped (the last four bits may be anything), and that of a table."""
_END = struct.Struct("<IBI")
"""The last bytes of a table: number of frames, flags, magic number."""
_END_MAGIC = 0x8F92EAB1
"""Of a table, at its end."""
_WITH_CHECKSUMS, _RESERVED = 0x80, 0x7C
"""Flags of a table: an entry has a checksum, too; bits that have to be 0."""
_HEAD = struct.Struct("<II")
"""How each frame begins that is to be skipped: magic number, bytes that follow."""
_LONGEST_HEADER = 18
"""Bytes of the header of a frame with contents, at most (RFC 8878)."""
_PIECE = 1 << 20
"""Bytes of contents that are handed on at once."""
_RLE, _RESERVED_TYPE = 1, 3
"""Types of blocks: one byte that is repeated; none that exists."""


class Frame(NamedTuple):
    """Bytes of a frame in the file, and of the contents that are in it."""

    compressed: int
    size: int


class SeekTable(NamedTuple):
    """Where the frames of a file are: the first byte of each, and behind the last one the first byte after it
    (``at``, in the file; ``contents_at``, in the contents). ``checksums`` of the contents, where the table has them."""

    at: array[int]
    contents_at: array[int]
    checksums: Sequence[int] = ()

    @property
    def frames(self) -> int:
        """How many there are."""
        return len(self.at) - 1

    @property
    def size(self) -> int:
        """Bytes of the contents."""
        return self.contents_at[-1]

    @classmethod
    def of(cls, frames: Sequence[Frame]) -> SeekTable:
        return cls(_sums([frame.compressed for frame in frames]), _sums([frame.size for frame in frames]))

    @classmethod
    def read(cls, descriptor: int, size: int) -> SeekTable | None:
        """The table at the end of a file of ``size`` bytes; None if it has none that fits it, or one that is too large.

        Raises ``Problem``.
        """
        if size < _HEAD.size + _END.size:
            return None
        frames, flags, magic = _END.unpack(_read(descriptor, size - _END.size, _END.size))
        if magic != _END_MAGIC or flags & _RESERVED or frames > MOST_FRAMES:
            return None
        width = 3 if flags & _WITH_CHECKSUMS else 2
        begin = size - _END.size - 4 * width * frames - _HEAD.size
        if begin < 0:
            return None
        packed = _read(descriptor, begin, size - _END.size - begin)
        if _HEAD.unpack_from(packed) != (_TABLE, size - begin - _HEAD.size):
            return None
        entries = array("I", packed[_HEAD.size :])
        if sys.byteorder == "big":
            entries.byteswap()
        compressed, sizes = entries[::width], entries[1::width]
        if sum(compressed) != begin or 0 in compressed or max(sizes, default=0) > LARGEST_FRAME:
            return None
        return cls(_sums(compressed), _sums(sizes), entries[2::width] if width == 3 else ())

    def frames_of(self, offset: int, length: int) -> range:
        """The frames that hold ``length`` bytes of the contents from ``offset`` on."""
        if length <= 0:
            return range(0)
        first = bisect_right(self.contents_at, offset) - 1
        last = bisect_right(self.contents_at, min(offset + length, self.size) - 1)
        return range(first, last)


def compress_frame(data: bytes | memoryview, level: int) -> bytes:
    """One frame with these contents; it has its content size and checksum."""
    return _compressor(level).compress(data)


def seek_table(frames: Sequence[Frame]) -> bytes:
    """What stands behind these ``frames`` in a seekable file; ``ValueError`` if one of them is too large for it."""
    if any(max(frame) >= 1 << 32 for frame in frames) or len(frames) > MOST_FRAMES:
        raise ValueError("frames that no table can hold")
    entries = struct.pack(f"<{2 * len(frames)}I", *(number for frame in frames for number in frame))
    return _HEAD.pack(_TABLE, len(entries) + _END.size) + entries + _END.pack(len(frames), 0, _END_MAGIC)


def read_at(descriptor: int, table: SeekTable, offset: int, length: int) -> bytes:
    """``length`` bytes of the contents from ``offset`` on, fewer at their end; raises ``Problem``."""
    joined = []
    for number in table.frames_of(offset, length):
        begin = table.contents_at[number]
        frame = read_frame(descriptor, table, number)
        joined.append(frame[max(offset - begin, 0) : offset + length - begin])
    return b"".join(joined)


def read_frame(descriptor: int, table: SeekTable, number: int) -> bytes:
    """The contents of one frame, which are as the table says; raises ``Problem``."""
    import zstandard

    at, size = table.at[number], table.contents_at[number + 1] - table.contents_at[number]
    packed = _read(descriptor, at, table.at[number + 1] - at)
    try:
        claimed = zstandard.get_frame_parameters(packed[:_LONGEST_HEADER]).content_size
        if claimed in (size, zstandard.CONTENTSIZE_UNKNOWN):  # before memory is taken for what it claims to hold
            contents = _decompressor().decompress(packed, max_output_size=size, allow_extra_data=False)
        else:
            contents = b""
    except zstandard.ZstdError as error:
        raise _damaged(at, str(error)) from error
    if len(contents) != size:
        raise _damaged(at, "it does not hold as many bytes as the seek table says")
    if table.checksums:
        import xxhash

        if xxhash.xxh64_intdigest(contents) & 0xFFFFFFFF != table.checksums[number]:
            raise _damaged(at, "its contents do not have the checksum that the seek table tells")
    return contents


def read_frames(descriptor: int, size: int) -> Iterator[bytes]:
    """The contents of a file of ``size`` bytes, in pieces of up to 1 MiB, with a table or without.

    Raises ``Problem``, also where anything but whole frames is in it.
    """
    at = 0
    while at < size:
        after = _after_frame(descriptor, at, size)
        if after > size:
            raise _damaged(at, "it is cut short")
        if not _is_skippable(descriptor, at):
            yield from _contents(descriptor, at, after)
        at = after
    if not size:
        raise _damaged(0, "the file is empty")


def _is_skippable(descriptor: int, at: int) -> bool:
    return bool(int.from_bytes(_read(descriptor, at, 4), "little") & _SKIPPABLE_MASK == _SKIPPABLE)


def _after_frame(descriptor: int, at: int, size: int) -> int:
    """The first byte behind the frame that begins at ``at``, or any after ``size`` if it is cut; raises ``Problem``."""
    import zstandard

    head = _read_some(descriptor, at, min(_LONGEST_HEADER, size - at))
    if len(head) < _HEAD.size:
        raise _damaged(at, "it is cut short")
    magic, follow = _HEAD.unpack_from(head)
    if magic & _SKIPPABLE_MASK == _SKIPPABLE:
        return at + _HEAD.size + int(follow)
    if magic != _FRAME:
        raise Problem("decompress", errno.EBADMSG, on_source=True, text=f"no zstd frame begins at byte {at}")
    try:
        has_checksum = zstandard.get_frame_parameters(head).has_checksum
        at += zstandard.frame_header_size(head)
    except zstandard.ZstdError as error:
        raise _damaged(at, str(error)) from error
    begin, is_last = at, False
    while not is_last:
        if at + _BLOCKS_HEADER > size:
            return size + 1
        block = int.from_bytes(_read(descriptor, at, _BLOCKS_HEADER), "little")
        is_last, sort, length = block & 1 == 1, block >> 1 & 3, block >> 3
        if sort == _RESERVED_TYPE:
            raise _damaged(begin, "it has a block of no known type")
        at += _BLOCKS_HEADER + (1 if sort == _RLE else length)
    return at + (4 if has_checksum else 0)


class _Stretch:
    """A stretch of a file, as the library reads it."""

    def __init__(self, descriptor: int, at: int, after: int) -> None:
        self._descriptor, self._at, self._after = descriptor, at, after

    def read(self, size: int) -> bytes:
        data = _read(self._descriptor, self._at, min(size, self._after - self._at))
        self._at += len(data)
        return data


def _contents(descriptor: int, at: int, after: int) -> Iterator[bytes]:
    """The contents of one whole frame."""
    import zstandard

    reader = _decompressor().stream_reader(_Stretch(descriptor, at, after), read_across_frames=False)  # type: ignore[arg-type]
    try:
        while data := reader.read(_PIECE):
            yield data
    except zstandard.ZstdError as error:
        raise _damaged(at, str(error)) from error


def _damaged(at: int, why: str) -> Problem:
    text = f"the zstd frame that begins at byte {at} is damaged: {why}"
    return Problem("decompress", errno.EBADMSG, on_source=True, text=text)


def _sums(numbers: Sequence[int]) -> array[int]:
    return array("Q", accumulate(numbers, initial=0))


def _read(descriptor: int, at: int, length: int) -> bytes:
    """Exactly these bytes; raises ``Problem``."""
    data = _read_some(descriptor, at, length)
    if len(data) != length:
        text = f"the file ended at byte {at + len(data)}, before its size"
        raise Problem("read", 0, on_source=True, text=text, changed=True)
    return data


def _read_some(descriptor: int, at: int, length: int) -> bytes:
    """These bytes, or those up to the end of the file; raises ``Problem``."""
    data = b""
    with failing("read", on_source=True):
        while len(data) < length:
            more = patiently(partial(os.pread, descriptor, length - len(data), at + len(data)))
            if not more:
                break
            data += more
    return data


@cache
def _compressor(level: int) -> ZstdCompressor:
    import zstandard

    return zstandard.ZstdCompressor(level=level, write_checksum=True, write_content_size=True)


@cache
def _decompressor() -> ZstdDecompressor:
    import zstandard

    return zstandard.ZstdDecompressor(max_window_size=LARGEST_WINDOW)
