"""The index of an archive: where some of its members begin, so that many ranks can read it at once.

It is a hint, and trusted for nothing else: what stands at these offsets is read from the archive, and has to be headers
(``docs/formats/ptar_index.md``).
"""

from __future__ import annotations

import re
from array import array
from collections.abc import Sequence
from typing import BinaryIO

from pcopy.archive.member import NumberPairs
from pcopy.archive.records import LARGEST
from pcopy.fsio.seekable_zstd import LARGEST_FRAME, MOST_FRAMES
from pcopy.named import NamedTuple

SUFFIX = b".idx"
"""Behind the name of the archive."""
MAGIC, VERSION = b"#pcopy-tar-index", 1
MOST_POINTS = 1 << 22
"""Offsets of an index: they take 32 MiB of memory. ``ptar -c`` writes one for each MiB, at most."""
MOST_MEMBERS = 1024
"""Members of gzip in one part: each costs a reader some time, also if it is empty."""
LARGEST_COMPRESSED = LARGEST_FRAME + (LARGEST_FRAME >> 8) + 64 * MOST_MEMBERS
"""Bytes of a part in the archive: contents that deflate cannot compress grow by less."""
_LONGEST = 100
"""Bytes of a line, at most."""
_FRAME = re.compile(rb"frame ([0-9]{1,10}) ([0-9]{1,10})")
_LINE = re.compile(rb"[0-9]{1,19}")


class Index(NamedTuple):
    """Of an archive of ``size`` bytes that was last changed at ``mtime`` (nanoseconds since 1970): ``points`` are
    offsets of members in their order, the first of which is 0; the last member ends at ``end``. ``frames`` are the
    sizes of the parts of an archive that is made of parts and has no table of its own: compressed, and before. A part
    is one member of gzip, or several."""

    size: int
    mtime: int
    points: Sequence[int]
    end: int
    frames: Sequence[tuple[int, int]] = ()


def joined(frames: Sequence[tuple[int, int]]) -> NumberPairs:
    """Return ``frames``, of which neighbours are one part if there are more than ``MOST_FRAMES``.

    Members of gzip that stand behind one another decompress to their contents behind one another. The result has more
    than ``MOST_FRAMES`` parts only if larger ones would be needed.
    """
    most = min(MOST_MEMBERS, -(-len(frames) // MOST_FRAMES))
    parts, members = array("q"), most
    for compressed, size in frames:
        if members < most and parts[-1] + size <= LARGEST_FRAME:
            parts[-2] += compressed
            parts[-1] += size
            members += 1
        else:
            parts.extend((compressed, size))
            members = 1
    return NumberPairs(parts)


def packed(index: Index) -> bytes:
    lines = [b"%b %d %d %d" % (MAGIC, VERSION, index.size, index.mtime)]
    lines += [b"frame %d %d" % (compressed, size) for compressed, size in index.frames]
    lines += [b"%d" % point for point in index.points]
    lines += [b"end %d" % index.end, b""]
    return b"\n".join(lines)


def unpacked(stream: BinaryIO, size: int, mtime: int, contents: int | None = None) -> Index:
    """Return the index in ``stream``, of an archive that has this ``size`` and ``mtime``.

    Line 1 is checked before anything else is read, and no line may be longer than any valid one. So memory is taken for
    numbers only: 8 bytes for each offset, 16 for each part. Reading ends at the first offset that does not lie in the
    archive, so that the time is bounded by the size of the archive, too. Raises ``ValueError`` if it is no index, or
    not that of this archive, and ``OSError``.

    Args:
        contents: bytes of the archive, decompressed. If it is None, the parts in the index say how many these are.
    """
    _check_first(stream.readline(_LONGEST), size, mtime)
    line, frames = _frames(stream, size)
    limit = sum(each for _, each in frames) if frames else LARGEST if contents is None else contents
    points = array("Q")
    while line[:1] != b"e":
        points.append(_point(line, points[-1] if points else -1, limit))
        if len(points) > MOST_POINTS:
            raise ValueError(f"it has more than {MOST_POINTS:,} offsets, which is the limit")
        line = _line(stream)
    if not line.startswith(b"end ") or not _LINE.fullmatch(line[4:]) or stream.read(1):
        raise ValueError("it has no end")
    end = int(line[4:])
    if end > limit or end >= LARGEST:
        raise ValueError("it ends behind the archive")
    if (points[0] != 0 or points[-1] >= end) if points else end:
        raise ValueError("its offsets are out of order")
    return Index(size, mtime, points, end, frames)


def _frames(stream: BinaryIO, size: int) -> tuple[bytes, NumberPairs]:
    """Return the first line that describes no part of the archive, and the parts. Raises ``ValueError``."""
    line, frames, compressed = _line(stream), NumberPairs(array("q")), 0
    while (found := _FRAME.fullmatch(line)) is not None and compressed <= size:
        if len(frames) == MOST_FRAMES:
            raise ValueError(f"it has more than {MOST_FRAMES:,} parts, which is the limit")
        if not int(found[1]):  # nothing would limit their number
            raise ValueError("its parts are not those of the archive")
        compressed += int(found[1])
        frames.numbers.extend((int(found[1]), int(found[2])))
        line = _line(stream)
    if frames and compressed != size:
        raise ValueError("its parts are not those of the archive")
    return line, frames


def _point(line: bytes, before: int, limit: int) -> int:
    """Return the offset in a line, which is greater than the one ``before`` and less than ``limit``.

    Raises ``ValueError``.
    """
    if not _LINE.fullmatch(line):
        raise ValueError("it holds what is no offset")
    point = int(line)
    if point <= before or point % 512:
        raise ValueError("its offsets are out of order")
    if point >= limit:
        raise ValueError("it ends behind the archive")
    return point


def _check_first(line: bytes, size: int, mtime: int) -> None:
    """Raises ``ValueError``."""
    words = line.rstrip(b"\n").split(b" ")
    if words[0] != MAGIC or len(words) != 4 or not line.endswith(b"\n"):
        raise ValueError("it is no index of an archive")
    if words[1] != b"%d" % VERSION:
        raise ValueError("it has another version")
    if words[2:] != [b"%d" % size, b"%d" % mtime]:
        raise ValueError("the archive has changed since it was made")


def _line(stream: BinaryIO) -> bytes:
    """Return the next line, without its newline. Raises ``ValueError``."""
    line = stream.readline(_LONGEST)
    if not line.endswith(b"\n"):
        raise ValueError("it has a line that is too long" if len(line) == _LONGEST else "it has no end")
    return line[:-1]
