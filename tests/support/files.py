"""Small things that tests do to files, and ask of them."""

from __future__ import annotations

import functools
import os
import random
import stat
from pathlib import Path

NOW = 1_700_000_000 * 10**9
"""Nanoseconds: when files of tests were modified, if not at another time."""

_POOL, _PIECE = 8 << 20, 1 << 20


def noise(size: int) -> bytes:
    """Random bytes for large files, of which no part is like another at its place: pieces of what the system has given
    once. It takes 4 ms for a MiB, and was an eighth of what some tests took."""
    starts = (random.randrange(_POOL - _PIECE) for _ in range(-(-size // _PIECE)))
    return b"".join(_pool()[start : start + _PIECE] for start in starts)[:size]


@functools.cache
def _pool() -> bytes:
    return os.urandom(_POOL)


def write(path: Path, content: bytes | bytearray, mtime: int = NOW) -> None:
    """A file with the directories that it lies in."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    os.utime(path, ns=(mtime, mtime))


def same_contents(one: Path | bytes, other: Path | bytes) -> bool:
    """As ``filecmp.cmp`` without its cache, in pieces with which a GiB takes a third of the time."""
    with open(one, "rb", buffering=0) as left, open(other, "rb", buffering=0) as right:
        while (piece := left.read(_PIECE)) == right.read(_PIECE):
            if not piece:
                return True
    return False


def mode_of(path: Path) -> int:
    return stat.S_IMODE(path.lstat().st_mode)


def replace_by_fifo(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def replace_by_link(path: Path) -> None:
    """A symbolic link that leads to what was there."""
    path.rename(path.with_name("aside"))
    path.symlink_to("aside")
