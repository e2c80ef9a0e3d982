"""The index of an archive: where some of its members begin, so that many ranks can read it at once.

It is a hint, and trusted for nothing else: what stands at these offsets is read from the archive, and has to be headers
(``docs/formats/ptar_index.md``).
"""

from __future__ import annotations

import re
from array import array
from collections.abc import Sequence
from itertools import takewhile

from pcopy.archive.records import LARGEST
from pcopy.named import NamedTuple

SUFFIX = b".idx"
"""Behind the name of the archive."""
MAGIC, VERSION = b"#pcopy-tar-index", 1
MOST_BYTES = 1 << 30
"""Of an index: that of the largest archive is far smaller."""
_FRAME = re.compile(rb"frame ([0-9]{1,10}) ([0-9]{1,10})")
_LINE = re.compile(rb"[0-9]{1,19}")


class Index(NamedTuple):
    """Of an archive of ``size`` bytes that was last changed at ``mtime`` (nanoseconds since 1970): ``points`` are
    offsets of members in their order, the first of which is 0; the last member ends at ``end``. ``frames`` are the
    sizes of the parts of an archive that is made of parts and has no table of its own: compressed, and before."""

    size: int
    mtime: int
    points: Sequence[int]
    end: int
    frames: Sequence[tuple[int, int]] = ()


def packed(index: Index) -> bytes:
    lines = [b"%b %d %d %d" % (MAGIC, VERSION, index.size, index.mtime)]
    lines += [b"frame %d %d" % (compressed, size) for compressed, size in index.frames]
    lines += [b"%d" % point for point in index.points]
    lines += [b"end %d" % index.end, b""]
    return b"\n".join(lines)


def unpacked(text: bytes, size: int, mtime: int) -> Index:
    """The index of an archive that has this ``size`` and ``mtime``; raises ``ValueError`` if it is none of that."""
    first, *lines = text.split(b"\n")
    words = first.split(b" ")
    if words[0] != MAGIC or len(words) != 4:
        raise ValueError("it is no index of an archive")
    if words[1] != b"%d" % VERSION:
        raise ValueError("it has another version")
    if words[2:] != [b"%d" % size, b"%d" % mtime]:
        raise ValueError("the archive has changed since it was made")
    if len(lines) < 2 or lines[-1] or not lines[-2].startswith(b"end ") or not _LINE.fullmatch(lines[-2][4:]):
        raise ValueError("it has no end")
    matches = [*takewhile(bool, map(_FRAME.fullmatch, lines))]
    frames = [(int(found[1]), int(found[2])) for found in matches if found]
    lines = lines[len(frames) :]
    if frames and sum(compressed for compressed, _ in frames) != size:
        raise ValueError("its parts are not those of the archive")
    if not all(map(_LINE.fullmatch, lines[:-2])):
        raise ValueError("it holds what is no offset")
    points, end = array("Q", map(int, lines[:-2])), int(lines[-2][4:])
    if end >= LARGEST:
        raise ValueError("it ends behind the archive")
    _check_order(points, end)
    return Index(size, mtime, points, end, frames)


def _check_order(points: Sequence[int], end: int) -> None:
    """Raises ``ValueError`` unless they cover all of the archive up to its end."""
    at = -1
    for point in points:
        if point <= at or point % 512 or point >= end:
            raise ValueError("its offsets are out of order")
        at = point
    if points[0] != 0 if points else end:
        raise ValueError("its offsets are out of order")
