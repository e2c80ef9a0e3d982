"""File systems in memory to measure on: plain tmpfs, and loop-mounted images that lie on one. Mounting needs root.

Each is unmounted and removed when its context ends, whatever ends it, an interrupt and SIGTERM included.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import FrameType

KINDS = ("tmpfs", "ext4", "xfs")

SMALLEST_IMAGE = 1 << 30
"""Bytes: room for the journal, and for XFS at all."""

_BYTES_PER_INODE = 8192

_MAKE = {
    # Nothing is left to be initialized in the background, while something else is measured.
    "ext4": ["mkfs.ext4", "-q", "-F", "-i", str(_BYTES_PER_INODE), "-E", "lazy_itable_init=0,lazy_journal_init=0"],
    "xfs": ["mkfs.xfs", "-q", "-f"],
}


def room_for(size: int, files: int) -> int:
    """Bytes of an image that holds ``files`` files of altogether ``size`` bytes twice: as source and as copy."""
    blocks = 2 * (size + files * 4096)
    return SMALLEST_IMAGE + max(blocks + blocks // 8, 2 * files * _BYTES_PER_INODE)


@contextmanager
def mounted(kind: str, size: int, memory: Path) -> Iterator[Path]:
    """A new, empty file system of ``kind`` and of ``size`` bytes; ``memory`` is a directory of a tmpfs.

    Yields a directory on it. Raises ``CalledProcessError`` if it can't be made or mounted.
    """
    if kind not in KINDS:
        raise ValueError(f"no such kind of file system: {kind}")
    with ExitStack() as stack:
        base = Path(tempfile.mkdtemp(prefix="pcopy-bench-", dir=memory))
        stack.callback(shutil.rmtree, base)
        if kind == "tmpfs":
            yield base
            return
        image = base / f"{kind}.image"
        with open(image, "xb") as file:
            file.truncate(size)
        _run([*_MAKE[kind], str(image)])
        point = base / "mounted"
        point.mkdir()
        stack.callback(_unmount, point)
        _run(["mount", "-o", "loop", str(image), str(point)])
        yield point


def _unmount(point: Path) -> None:
    if not os.path.ismount(point):
        return
    if subprocess.run(["umount", str(point)], check=False).returncode:
        # Somebody still has it open: gone from the tree now, and from memory when they are.
        _run(["umount", "--lazy", str(point)])


def _run(words: list[str]) -> None:
    subprocess.run(words, check=True, stdout=subprocess.DEVNULL)


def end_on_sigterm() -> None:
    """Makes SIGTERM raise ``SystemExit``, so that contexts end in order."""

    def end(number: int, _frame: FrameType | None) -> None:
        sys.exit(128 + number)

    signal.signal(signal.SIGTERM, end)
