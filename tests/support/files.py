"""Small operations on files for tests."""

from __future__ import annotations

import functools
import os
import random
import stat
from pathlib import Path

NOW = 1_700_000_000 * 10**9
"""Default modification time of files in tests, in nanoseconds."""

_POOL, _PIECE = 8 << 20, 1 << 20


def noise(size: int) -> bytes:
    """Random bytes for large files, composed of pieces of a pool so that no part equals another at its offset. A MiB
    takes 4 ms; system calls for random data took an eighth of the time of some tests.
    """
    starts = (random.randrange(_POOL - _PIECE) for _ in range(-(-size // _PIECE)))
    return b"".join(_pool()[start : start + _PIECE] for start in starts)[:size]


@functools.cache
def _pool() -> bytes:
    return os.urandom(_POOL)


def write(path: Path, content: bytes | bytearray, mtime: int = NOW) -> None:
    """Write a file and create its parent directories."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    os.utime(path, ns=(mtime, mtime))


def age_directories(top: Path) -> None:
    """Give a directory and all directories in it an old modification time: else whether it is that of their source
    depends on the resolution of the clock.
    """
    for path in (top, *top.rglob("*")):
        if path.is_dir() and not path.is_symlink():
            os.utime(path, (1, 1))


def same_contents(one: Path | bytes, other: Path | bytes) -> bool:
    """Like ``filecmp.cmp`` without its cache, with larger pieces: a GiB takes a third of the time."""
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
    """Replace an item by a symbolic link to it."""
    path.rename(path.with_name("aside"))
    path.symlink_to("aside")
