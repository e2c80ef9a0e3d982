"""Small things that tests do to files, and ask of them."""

from __future__ import annotations

import os
import stat
from pathlib import Path

NOW = 1_700_000_000 * 10**9
"""Nanoseconds: when files of tests were modified, if not at another time."""


def write(path: Path, content: bytes | bytearray, mtime: int = NOW) -> None:
    """A file with the directories that it lies in."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    os.utime(path, ns=(mtime, mtime))


def mode_of(path: Path) -> int:
    return stat.S_IMODE(path.lstat().st_mode)


def replace_by_fifo(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def replace_by_link(path: Path) -> None:
    """A symbolic link that leads to what was there."""
    path.rename(path.with_name("aside"))
    path.symlink_to("aside")
