"""How much room is left on a file system, from what statvfs(3) reports."""

from __future__ import annotations

import errno
import os


def free_bytes(there: os.statvfs_result, *, reserved: bool = False) -> int:
    """Return the bytes that are left; ``reserved``: with those that only root may use.

    Raises ``OSError`` if the file system reports that it has no blocks at all: its size is unknown, and it is not full.
    """
    if not there.f_blocks:
        raise OSError(errno.ENODATA, "the file system does not report its size")
    return (there.f_bfree if reserved else there.f_bavail) * there.f_frsize
