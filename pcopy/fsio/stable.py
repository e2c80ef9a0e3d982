"""Brings whole file systems to stable storage."""

from __future__ import annotations

import ctypes
import errno
import os

from pcopy.fsio.problem import Problem


def sync_file_system(descriptor: int) -> None:
    """syncfs(2) for the file system of ``descriptor``; raises ``Problem``, also for what it could not write earlier.

    Since Linux 5.8 it reports each failed write-back once per open file description that was open at the time.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.syncfs(ctypes.c_int(descriptor)) != 0:
        number = ctypes.get_errno() or errno.EIO
        raise Problem("syncfs", number, text=os.strerror(number))
