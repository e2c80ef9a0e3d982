"""File systems in memory for measurements: tmpfs, and loop-mounted images on a tmpfs. Mounting requires root.

Each is unmounted and removed when its context ends, also after an exception, an interrupt or SIGTERM.
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

FILE_SYSTEM_TYPES = ("tmpfs", "ext4", "xfs")
"""The supported types of file systems."""

MIN_IMAGE_SIZE = 1 << 30
"""The minimum size in bytes of an image (a file that contains a file system). It leaves room for the journal, and XFS
requires some hundred MiB.
"""

_BYTES_PER_INODE = 8192

_MKFS_COMMANDS = {
    # Without the lazy options, ext4 initialises tables in the background, which would disturb measurements.
    "ext4": ["mkfs.ext4", "-q", "-F", "-i", str(_BYTES_PER_INODE), "-E", "lazy_itable_init=0,lazy_journal_init=0"],
    "xfs": ["mkfs.xfs", "-q", "-f"],
}


def image_size(size: int, files: int) -> int:
    """Return the size in bytes of an image for two copies of ``files`` files with ``size`` bytes in total."""
    blocks = 2 * (size + files * 4096)
    return MIN_IMAGE_SIZE + max(blocks + blocks // 8, 2 * files * _BYTES_PER_INODE)


@contextmanager
def mounted_file_system(kind: str, size: int, memory: Path) -> Iterator[Path]:
    """Context manager: create and mount an empty file system of the type ``kind``, and yield a directory on it; unmount
    it at the end.

    Args:
        size: its size in bytes.
        memory: a directory on a tmpfs.

    Raise ``CalledProcessError`` if it cannot be created or mounted.
    """
    if kind not in FILE_SYSTEM_TYPES:
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
        _run([*_MKFS_COMMANDS[kind], str(image)])
        point = base / "mounted"
        point.mkdir()
        stack.callback(_unmount, point)
        _run(["mount", "-o", "loop", str(image), str(point)])
        yield point


def _unmount(point: Path) -> None:
    """Unmount ``point``, a mount point; if a process still has a file open there, do so lazily (``umount -l``)."""
    if not os.path.ismount(point):
        return
    if subprocess.run(["umount", str(point)], check=False).returncode:
        # A process still has it open: it is removed from the tree now, and from memory when that process closes it.
        _run(["umount", "--lazy", str(point)])


def _run(words: list[str]) -> None:
    subprocess.run(words, check=True, stdout=subprocess.DEVNULL)


def exit_on_sigterm() -> None:
    """Make SIGTERM raise ``SystemExit``, so that context managers unmount and remove what they have created."""

    def end(number: int, _frame: FrameType | None) -> None:
        sys.exit(128 + number)

    signal.signal(signal.SIGTERM, end)
