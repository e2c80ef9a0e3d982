"""Brings whole file systems to stable storage."""

from __future__ import annotations

import ctypes
import errno
import os
from contextlib import suppress

from pcopy.fsio.problem import Problem

_GIVEN_UP = (errno.EROFS, errno.EIO, errno.EUCLEAN)


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
    _refuse_given_up(descriptor)


def _refuse_given_up(descriptor: int) -> None:
    """Raises ``Problem`` if the file system takes no changes any more, though it was mounted for that.

    Once it has given up its journal, or has made itself read-only, after an error, nothing is left to be written, and
    syncfs(2) reports success for what is lost. A file without a name, where there are any, asks for the journal.
    """
    try:
        os.close(os.open(".", os.O_WRONLY | os.O_TMPFILE | os.O_CLOEXEC, 0o600, dir_fd=descriptor))
    except OSError as error:
        if error.errno in _GIVEN_UP and not _is_mounted_read_only(descriptor):
            raise Problem.of("syncfs", error) from error


def _is_mounted_read_only(descriptor: int) -> bool:
    """By whoever has mounted it, which the mount tells, where the file system's own state does not show there."""
    try:
        with open(f"/proc/self/fdinfo/{descriptor}", "rb") as known:
            mount = next((line.split()[1] for line in known if line.startswith(b"mnt_id:")), b"")
        with open("/proc/self/mountinfo", "rb") as mounts:
            return any(fields[0] == mount and b"ro" in fields[5].split(b",") for fields in map(bytes.split, mounts))
    except OSError:  # there is no /proc
        return False
