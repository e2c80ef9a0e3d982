"""Helpers for copies that compress or decompress the contents of files (recode them): frame sizes, reads and writes.

The zstd format itself is in ``pcopy.fsio.seekable_zstd``.
"""

from __future__ import annotations

import os
from functools import partial

from pcopy.fsio.contents import early_end_of_file_problem
from pcopy.fsio.memory_copy import write_all
from pcopy.fsio.problem import errors_as_problem
from pcopy.fsio.retries import call_with_retries
from pcopy.fsio.seekable_zstd import MAX_FRAME_SIZE

USUAL_FRAME_SIZE = 4 << 20
"""Bytes of uncompressed contents in one zstd frame, unless the file or its stripes are very large
(``compression_frame_size_for_file``).

Larger frames compress slightly better, but more data must be decompressed to read any byte in them.
"""
_MAX_USUAL_FRAMES = 1 << 20
"""Maximum number of frames of ``USUAL_FRAME_SIZE`` bytes.

A file that would need more gets larger frames, because a long seek table takes long to read.
"""
_HOLE_BLOCK_SIZE = 16 << 10
"""Length and alignment, in bytes, of blocks of zeros that are left as holes."""
_ZEROS = bytes(_HOLE_BLOCK_SIZE)


def compression_frame_size_for_file(size: int, stripe: int) -> int:
    """Return how many bytes of contents each frame (separately compressed part) holds when a file of ``size`` bytes is
    compressed.

    ``stripe`` is the stripe size of the file in bytes (0: unknown). A frame is a whole multiple or a whole fraction of
    a stripe, so that frames begin and end at the boundaries of stripes. The exception are stripes that are too large
    for one frame and not divisible by the usual frame size.
    """
    span = USUAL_FRAME_SIZE
    if stripe > span or (stripe and span % stripe):
        whole = -(-span // stripe) * stripe
        span = whole if whole <= MAX_FRAME_SIZE else span
    while span * _MAX_USUAL_FRAMES < size and 2 * span <= MAX_FRAME_SIZE:
        span *= 2
    return span


def max_compressed_size(size: int, frames: int) -> int:
    """Return the maximum number of bytes that ``size`` bytes take after they are compressed in this number of
    ``frames`` (ZSTD_compressBound in zstd.h).
    """
    return size + (size >> 8) + 64 * frames


def read_source_range(descriptor: int, at: int, length: int, *, to_end: bool = False) -> bytes:
    """Return ``length`` bytes of the open source file ``descriptor`` from the offset ``at`` on.

    Raise ``Problem``, also if the file ends before that range does. If ``to_end`` is True, the result is shorter in
    that case instead.
    """
    data = b""
    while len(data) < length:
        with errors_as_problem("read", on_source=True):
            part = call_with_retries(partial(os.pread, descriptor, length - len(data), at + len(data)))
        if not part:
            if to_end:
                break
            raise early_end_of_file_problem("read", at + len(data), True)
        data = data + part if data else part
    return data


def write_without_filling_holes(target: int, data: bytes, at: int, *, sparse: bool) -> int:
    """Write ``data`` at the offset ``at`` of the open file ``target``, which has a hole there; return the number of
    bytes written. Raise ``Problem``.

    If ``sparse`` is True, blocks of zeros are not written, so that the hole remains there.
    """
    if not sparse:
        write_all(target, data, at)
        return len(data)
    data_start = position = hole_bytes = 0
    while position < len(data):
        block_end = min(position + _HOLE_BLOCK_SIZE - (at + position) % _HOLE_BLOCK_SIZE, len(data))
        if not data[position] and data[position:block_end] == _ZEROS[: block_end - position]:
            write_all(target, memoryview(data)[data_start:position], at + data_start)
            hole_bytes += block_end - position
            data_start = block_end
        position = block_end
    write_all(target, memoryview(data)[data_start:], at + data_start)
    return len(data) - hole_bytes
