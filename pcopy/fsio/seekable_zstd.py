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
from collections.abc import Generator, Iterable, Iterator, Sequence
from functools import cache, partial
from itertools import accumulate
from typing import TYPE_CHECKING

from pcopy.fsio.patience import patiently
from pcopy.fsio.problem import Problem, failing
from pcopy.named import NamedTuple
from pcopy.units import show_size

if TYPE_CHECKING:
    from zstandard import ZstdCompressor, ZstdDecompressor

LARGEST_FRAME = 64 << 20
"""Bytes of contents of a frame that is read as a whole, in memory. A file with larger ones is read as a stream."""
_LARGEST_COMPRESSED = LARGEST_FRAME + (LARGEST_FRAME >> 8) + 64
"""Bytes that such a frame has in the file, at most (ZSTD_compressBound in zstd.h); one of 0 bytes, too."""
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
_OR_THE_TABLE = " (if zstd -d, which reads no seek table, finds no fault, the table is wrong)"
_PIECE = 1 << 20
"""Bytes of contents that are handed on at once."""
_AT_ONCE = 1 << 18
"""Bytes of a file that are gone through at once, at most."""
_LARGEST_BLOCK = 128 << 10
"""Bytes of contents of a block."""
_RLE, _COMPRESSED = 1, 2
"""Types of blocks: one byte that is repeated, and the usual one."""


class TrailingGarbage(Problem):
    """Bytes follow whole frames (or members of gzip) and begin none. All contents have been read by then."""

    @classmethod
    def at(cls, offset: int, program: str) -> TrailingGarbage:
        """Return the problem of the bytes from ``offset`` on of a file that ``program`` has compressed."""
        text = f"the bytes from {offset} on were not compressed by {program}, and are ignored"
        return cls("decompress", errno.EBADMSG, on_source=True, text=text)


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
    def of(cls, frames: Iterable[tuple[int, int]]) -> SeekTable:
        """Return the table of frames of which the bytes in the file and those of the contents are given."""
        at, contents_at = array("Q", [0]), array("Q", [0])
        for compressed, size in frames:
            at.append(at[-1] + compressed)
            contents_at.append(contents_at[-1] + size)
        return cls(at, contents_at)

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
        too_large = max(sizes, default=0) > LARGEST_FRAME or max(compressed, default=0) > _LARGEST_COMPRESSED
        if sum(compressed) != begin or 0 in compressed or too_large:
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
    """Return the table that stands behind these ``frames`` in a seekable file.

    It is empty if there are more frames than readers accept: the file is one stream then. Raises ``ValueError`` if a
    frame is too large.
    """
    if any(max(frame) >= 1 << 32 for frame in frames):
        raise ValueError("frames that no table can hold")
    if len(frames) > MOST_FRAMES:
        return b""
    entries = struct.pack(f"<{2 * len(frames)}I", *(number for frame in frames for number in frame))
    return _HEAD.pack(_TABLE, len(entries) + _END.size) + entries + _END.pack(len(frames), 0, _END_MAGIC)


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
        raise _damaged(at, f"{error}{_OR_THE_TABLE}") from error
    if len(contents) != size:
        raise _damaged(at, f"it does not hold as many bytes as the seek table says{_OR_THE_TABLE}")
    if table.checksums:
        import xxhash

        if xxhash.xxh64_intdigest(contents) & 0xFFFFFFFF != table.checksums[number]:
            raise _damaged(at, f"its contents do not have the checksum that the seek table tells{_OR_THE_TABLE}")
    return contents


def read_frames(descriptor: int, size: int) -> Iterator[bytes]:
    """The contents of a file of ``size`` bytes, in pieces of some MiB at most, with a table or without. A piece is
    empty where much of the file had no contents, so that whoever reads it can do something else meanwhile.

    Raises ``Problem``, also where anything but whole frames is in it: ``TrailingGarbage`` if that follows them.
    """
    import zstandard

    if not size:
        raise _damaged(0, "the file is empty")
    ahead, decompressor = _Ahead(descriptor, size), zstandard.ZstdDecompressor(max_window_size=LARGEST_WINDOW)
    at = paused = 0
    while at < size:
        if at - paused >= _AT_ONCE:
            paused = at
            yield b""
        if at and not _may_begin(ahead.taken(at, min(at + 4, size), at)):
            raise TrailingGarbage.at(at, "zstd")
        magic, follow = _HEAD.unpack(ahead.taken(at, at + _HEAD.size, at))
        if magic & _SKIPPABLE_MASK != _SKIPPABLE:
            if magic != _FRAME:
                raise Problem("decompress", errno.EBADMSG, on_source=True, text=f"no zstd frame begins at byte {at}")
            at = yield from _contents(ahead, at, decompressor)
        elif at + _HEAD.size + follow > size:
            raise _damaged(at, "it is cut short")
        else:
            at += _HEAD.size + follow


def _may_begin(beginning: bytes) -> bool:
    """Return True if a frame begins with these 4 bytes, or with fewer at the end of a file that was cut."""
    frame, skippable = _FRAME.to_bytes(4, "little"), _SKIPPABLE.to_bytes(4, "little")
    first = bytes((beginning[0] & _SKIPPABLE_MASK & 0xFF,))
    return frame.startswith(beginning) or skippable.startswith(first + beginning[1:])


class _Ahead:
    """A file that is read from its beginning to its end: ``data`` are the bytes of it that are in memory."""

    def __init__(self, descriptor: int, size: int) -> None:
        self.data = b""
        self._descriptor, self._size, self._begin = descriptor, size, 0

    def index(self, at: int, end: int, frame: int) -> int:
        """Where in ``data`` the byte ``at`` is; those before ``end`` are in it, too. Raises ``Problem``, also if the
        file ends before, which cuts the ``frame`` that begins at this byte."""
        if at < self._begin or end > self._begin + len(self.data):
            if end > self._size:
                raise _damaged(frame, "it is cut short")
            self.data = _read(self._descriptor, at, min(max(_PIECE, end - at), self._size - at))
            self._begin = at
        return at - self._begin

    def taken(self, at: int, end: int, frame: int) -> bytes:
        index = self.index(at, end, frame)
        return self.data[index : index + end - at]

    def header(self, at: int) -> bytes:
        """Of a frame, and what is behind it."""
        return self.taken(at, min(at + _LONGEST_HEADER, self._size), at)


def _contents(ahead: _Ahead, at: int, decompressor: ZstdDecompressor) -> Generator[bytes, None, int]:
    """The contents of the frame that begins at ``at``; returns the first byte behind it. Raises ``Problem``.

    The library gets whole blocks, as many as cannot hold much more than one piece.
    """
    import zstandard

    begin, start, parameters = at, at, None
    try:
        head = ahead.header(at)
        parameters = zstandard.get_frame_parameters(head)
        has_checksum = parameters.has_checksum
        at += zstandard.frame_header_size(head)
        stream, is_last, room = decompressor.decompressobj(), False, 0
        while not is_last:
            here = ahead.index(start, at + _BLOCKS_HEADER, begin) + at - start
            block = int.from_bytes(ahead.data[here : here + _BLOCKS_HEADER], "little")
            is_last, sort, length = block & 1 == 1, block >> 1 & 3, block >> 3
            at += _BLOCKS_HEADER + (1 if sort == _RLE else length)
            room += _LARGEST_BLOCK if sort == _COMPRESSED else length
            if is_last:
                at += 4 if has_checksum else 0
            elif room < _PIECE and at - start < _AT_ONCE:
                continue
            contents = stream.decompress(ahead.taken(start, at, begin))
            if contents or not is_last:
                yield contents
            start, room = at, 0
    except zstandard.ZstdError as error:
        if parameters is not None and parameters.window_size > LARGEST_WINDOW:
            needs = f"needs {show_size(parameters.window_size)} of memory, and {show_size(LARGEST_WINDOW)} are allowed"
            text = f"the zstd frame that begins at byte {begin} {needs}; zstd -d --long=31 decompresses it"
            raise Problem("decompress", errno.ENOTSUP, on_source=True, text=text) from error
        raise _damaged(begin, str(error)) from error
    if not stream.eof:
        raise _damaged(begin, "its last block does not end it")
    return at


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
