"""Buffers for the contents of files, kept from one file to the next.

They begin with a page: into others the kernel copies at half the speed on some processors, and O_DIRECT wants it so.
"""

from __future__ import annotations

import mmap
from collections.abc import Iterator
from contextlib import contextmanager

from pcopy.fsio.problem import Problem

SIZE = 1 << 20
"""Bytes of each buffer."""

_spare: list[memoryview] = []


@contextmanager
def lent_buffer() -> Iterator[memoryview]:
    """``SIZE`` bytes of anything, for as long as the block takes; raises ``Problem``."""
    buffer = _spare.pop() if _spare else _new()
    try:
        yield buffer
    finally:
        _spare.append(buffer)


def _new() -> memoryview:
    try:
        return memoryview(mmap.mmap(-1, SIZE))
    except OSError as error:
        raise Problem.of("mmap", error) from error
