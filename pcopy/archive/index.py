"""The index of an archive: offsets of some of its members, so that many ranks can read it at the same time.

The index is only a hint: a reader verifies that there is a valid header in the archive at each offset that it uses
(``docs/formats/ptar_index.md``).

A compressed gzip archive is divided into *parts*, each of which can be decompressed alone. An index line calls a part
``frame``.
"""

from __future__ import annotations

import re
from array import array
from collections.abc import Sequence
from typing import BinaryIO

from pcopy.archive.member import NumberPairs
from pcopy.archive.records import NUMBER_LIMIT
from pcopy.fast_named_tuple import NamedTuple
from pcopy.fsio.seekable_zstd import MAX_FRAME_SIZE, MAX_FRAMES

INDEX_SUFFIX = b".idx"
"""Ending of the file name of an index, after the name of the archive."""
INDEX_MAGIC, INDEX_VERSION = b"#pcopy-tar-index", 1
"""First word of an index; the version of its format follows."""
MAX_INDEX_OFFSETS = 1 << 22
"""Maximum number of offsets in an index, which take 32 MiB of memory. An index with more is refused. ``ptar -c`` writes
at most one for each MiB.
"""
MAX_GZIP_MEMBERS_IN_PART = 1024
"""Maximum number of gzip members in one part of an archive that can be decompressed alone. A reader needs some time for
each member, even if it is empty.
"""
MAX_COMPRESSED_PART_BYTES = MAX_FRAME_SIZE + (MAX_FRAME_SIZE >> 8) + 64 * MAX_GZIP_MEMBERS_IN_PART
"""Maximum number of compressed bytes of a part of a gzip archive that can be decompressed alone. Even contents that
deflate cannot compress do not grow beyond it.
"""
_MAX_INDEX_LINE_BYTES = 100
"""Maximum number of bytes that are read of a line; no valid line is longer."""
_PART_LINE_PATTERN = re.compile(rb"frame ([0-9]{1,10}) ([0-9]{1,10})")
_OFFSET_LINE_PATTERN = re.compile(rb"[0-9]{1,19}")


class ArchiveIndex(NamedTuple):
    """The index of an archive of ``size`` bytes with this ``mtime`` (nanoseconds since 1970).

    Fields:
      offsets: offsets of some members in the uncompressed archive, in increasing order, beginning with 0.
      end: the offset at which the last member ends.
      frames: for a gzip archive: for each part its number of compressed and of uncompressed bytes. A part consists of
          one or several gzip members. Empty for other archives; a zstd archive has a table of its parts itself.
    """

    size: int
    mtime: int
    offsets: Sequence[int]
    end: int
    frames: Sequence[tuple[int, int]] = ()


def joined_gzip_parts(frames: Sequence[tuple[int, int]]) -> NumberPairs:
    """Return the parts of a gzip archive in ``frames`` (compressed and uncompressed bytes of each), but join neighbours
    if there are more than ``MAX_FRAMES`` of them.

    Consecutive gzip members decompress to consecutive contents, so they can be one part. The result has more than
    ``MAX_FRAMES`` parts only if larger parts would exceed ``MAX_FRAME_SIZE`` uncompressed bytes.
    """
    most = min(MAX_GZIP_MEMBERS_IN_PART, -(-len(frames) // MAX_FRAMES))
    parts, members = array("q"), most
    for compressed, size in frames:
        if members < most and parts[-1] + size <= MAX_FRAME_SIZE:
            parts[-2] += compressed
            parts[-1] += size
            members += 1
        else:
            parts.extend((compressed, size))
            members = 1
    return NumberPairs(parts)


def pack_index(index: ArchiveIndex) -> bytes:
    """Return the contents of the file in which ``index`` is stored."""
    lines = [b"%b %d %d %d" % (INDEX_MAGIC, INDEX_VERSION, index.size, index.mtime)]
    lines += [b"frame %d %d" % (compressed, size) for compressed, size in index.frames]
    lines += [b"%d" % point for point in index.offsets]
    lines += [b"end %d" % index.end, b""]
    return b"\n".join(lines)


def read_index(stream: BinaryIO, size: int, mtime: int, contents: int | None = None) -> ArchiveIndex:
    """Return the index that ``stream`` contains, for an archive that has this ``size`` and ``mtime``.

    The first line is checked before anything else is read, and lines longer than a valid one are refused. So memory is
    used for numbers only: 8 bytes for each offset, 16 for each part. Reading stops at the first offset beyond the end
    of the archive, so that the time is bounded by the size of the archive.

    Raise ``ValueError`` if the stream is no valid index or belongs to another archive, and ``OSError`` if it cannot be
    read.

    Args:
      stream: the index file, opened for reading.
      size: size of the archive file in bytes.
      mtime: modification time of the archive file, in nanoseconds since 1970.
      contents: number of bytes of the uncompressed archive; None if only the parts in the index say it, or if it is
          unknown.
    """
    _check_first_index_line(stream.readline(_MAX_INDEX_LINE_BYTES), size, mtime)
    line, frames = _read_gzip_part_lines(stream, size)
    limit = sum(each for _, each in frames) if frames else NUMBER_LIMIT if contents is None else contents
    points = array("Q")
    while line[:1] != b"e":
        points.append(_parse_offset(line, points[-1] if points else -1, limit))
        if len(points) > MAX_INDEX_OFFSETS:
            raise ValueError(f"the index has more than {MAX_INDEX_OFFSETS:,} offsets, which is the limit")
        line = _read_index_line(stream)
    if not line.startswith(b"end ") or not _OFFSET_LINE_PATTERN.fullmatch(line[4:]) or stream.read(1):
        raise ValueError("the index is truncated: its last line, which begins with 'end', is missing or invalid")
    end = int(line[4:])
    if end > limit or end >= NUMBER_LIMIT:
        raise ValueError("the index extends beyond the end of the archive")
    if (points[0] != 0 or points[-1] >= end) if points else end:
        raise ValueError("the offsets in the index are out of order")
    return ArchiveIndex(size, mtime, points, end, frames)


def _read_gzip_part_lines(stream: BinaryIO, size: int) -> tuple[bytes, NumberPairs]:
    """Read the lines of an index that list the parts of a gzip archive. Return two values: the first line after these,
    and the parts. ``size`` is the size of the archive in bytes. Raise ``ValueError`` if the parts are invalid.
    """
    line, frames, compressed = _read_index_line(stream), NumberPairs(array("q")), 0
    while (found := _PART_LINE_PATTERN.fullmatch(line)) is not None and compressed <= size:
        if len(frames) == MAX_FRAMES:
            raise ValueError(f"the index has more than {MAX_FRAMES:,} parts, which is the limit")
        if not int(found[1]):  # otherwise an archive of any size could have an unlimited number of parts
            raise ValueError("the index does not match the archive: it lists an empty part")
        compressed += int(found[1])
        frames.numbers.extend((int(found[1]), int(found[2])))
        line = _read_index_line(stream)
    if frames and compressed != size:
        raise ValueError("the index does not match the archive: the parts that it lists have another total size")
    return line, frames


def _parse_offset(line: bytes, before: int, limit: int) -> int:
    """Return the offset in a ``line`` of the index. Raise ``ValueError`` unless it is greater than ``before``, the
    offset in the line before, and less than ``limit``.
    """
    if not _OFFSET_LINE_PATTERN.fullmatch(line):
        raise ValueError("the index has a line that is not an offset")
    point = int(line)
    if point <= before or point % 512:
        raise ValueError("the offsets in the index are out of order, or not multiples of 512")
    if point >= limit:
        raise ValueError("the index extends beyond the end of the archive")
    return point


def _check_first_index_line(line: bytes, size: int, mtime: int) -> None:
    """Raise ``ValueError`` unless ``line`` is the first line of an index of an archive with this ``size`` and
    ``mtime``."""
    words = line.rstrip(b"\n").split(b" ")
    if words[0] != INDEX_MAGIC or len(words) != 4 or not line.endswith(b"\n"):
        raise ValueError("the file is not an index of a tar archive")
    if words[1] != b"%d" % INDEX_VERSION:
        raise ValueError("the index has a format version that is not supported")
    if words[2:] != [b"%d" % size, b"%d" % mtime]:
        raise ValueError("the archive has changed since the index was made")


def _read_index_line(stream: BinaryIO) -> bytes:
    """Return the next line of an index, without its newline. Raise ``ValueError`` if it is too long, or has no newline
    because the file ends.
    """
    line = stream.readline(_MAX_INDEX_LINE_BYTES)
    if not line.endswith(b"\n"):
        raise ValueError(
            "the index has a line that is too long"
            if len(line) == _MAX_INDEX_LINE_BYTES
            else "the index is truncated within a line"
        )
    return line[:-1]
