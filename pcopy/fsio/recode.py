"""Contents on their way through zstd (``pcopy.fsio.seekable_zstd``) are read in spans, and written around holes."""

from __future__ import annotations

import os
from functools import partial

from pcopy.fsio.contents import cut_short
from pcopy.fsio.passage import write_all
from pcopy.fsio.patience import patiently
from pcopy.fsio.problem import failing
from pcopy.fsio.seekable_zstd import LARGEST_FRAME

SPAN = 4 << 20
"""Bytes of a file that make a frame, as a rule: a larger one is compressed better, by little, but more of it has to be
decompressed for any byte in it."""
_USUAL_FRAMES = 1 << 20
"""A file of more spans than that gets larger ones: its table would take long to read."""
_BLOCK = 16 << 10
"""Bytes of zeros that become a hole."""
_ZEROS = bytes(_BLOCK)


def span_of(size: int, stripe: int) -> int:
    """Bytes of each frame of a file of ``size`` whose stripes have ``stripe`` bytes (0: not known).

    No stripe lies in two frames, nor a frame in two stripes, unless it holds several whole ones; but for stripes of odd
    sizes that are too large for one frame.
    """
    span = SPAN
    if stripe > span or (stripe and span % stripe):
        whole = -(-span // stripe) * stripe
        span = whole if whole <= LARGEST_FRAME else span
    while span * _USUAL_FRAMES < size and 2 * span <= LARGEST_FRAME:
        span *= 2
    return span


def room_for(size: int, frames: int) -> int:
    """Bytes that compressed contents of ``size`` in so many frames have at most (ZSTD_compressBound in zstd.h)."""
    return size + (size >> 8) + 64 * frames


def read_span(descriptor: int, at: int, length: int, *, to_end: bool = False) -> bytes:
    """``length`` bytes of a file of the source from ``at`` on; ``to_end``: or those that there are. Raises ``Problem``,
    also for a file that ends before."""
    data = b""
    while len(data) < length:
        with failing("read", on_source=True):
            more = patiently(partial(os.pread, descriptor, length - len(data), at + len(data)))
        if not more:
            if to_end:
                break
            raise cut_short("read", at + len(data), True)
        data = data + more if data else more
    return data


def write_contents(target: int, data: bytes, at: int, *, sparse: bool) -> int:
    """Writes ``data`` at the byte ``at`` of a file that has a hole there; ``sparse``: zeros are left to the hole.

    Returns how many bytes were written; raises ``Problem``.
    """
    if not sparse:
        write_all(target, data, at)
        return len(data)
    begin = now = holes = 0
    while now < len(data):
        after = min(now + _BLOCK - (at + now) % _BLOCK, len(data))
        if not data[now] and data[now:after] == _ZEROS[: after - now]:
            write_all(target, memoryview(data)[begin:now], at + begin)
            holes += after - now
            begin = after
        now = after
    write_all(target, memoryview(data)[begin:], at + begin)
    return len(data) - holes
