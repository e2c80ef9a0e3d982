"""Brings whole file systems to stable storage."""

from __future__ import annotations

import ctypes
import errno
import os
from contextlib import suppress

from pcopy.fsio.problem import Problem


def open_for_sync(directory: int) -> int:
    """A descriptor of the file system of ``directory``, by which it can be synced; raises ``OSError``.

    What is open for searching only (O_PATH) can't serve. What may be written and not be read has a file without a name
    instead.
    """
    flags = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
    try:
        return os.open(".", flags, dir_fd=directory)
    except PermissionError:
        with suppress(OSError):
            return os.open(".", os.O_WRONLY | os.O_TMPFILE | os.O_CLOEXEC, 0o600, dir_fd=directory)
        raise


def sync_file_system(descriptor: int) -> None:
    """syncfs(2) for the file system of ``descriptor``; raises ``Problem``, also for what it could not write earlier.

    Since Linux 5.8 it reports each failed write-back once per open file description that was open at the time.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.syncfs(ctypes.c_int(descriptor)) != 0:
        number = ctypes.get_errno() or errno.EIO
        raise Problem("syncfs", number, text=os.strerror(number))
