"""Large files in a job directory, read as a stream; what holds for directories holds for them.

Rule: a job directory decides what is copied and what is taken as done, so nobody but its owner may have had a hand in
it. A file is used only if it belongs to the caller and nobody else may write it; links are not followed, and a FIFO
that lies where a file should be is not waited for.
"""

from __future__ import annotations

import errno
import os
import stat
from contextlib import suppress
from typing import BinaryIO, TypeAlias

from pcopy.checkpoint.directory import open_directory, opened, refuse_strange, sync
from pcopy.errors import Refused
from pcopy.text import shown

Path: TypeAlias = str | bytes | os.PathLike[str] | os.PathLike[bytes]


def check_directory(path: bytes) -> None:
    """Raises ``Refused`` unless ``path`` is a directory of the caller's that nobody else may write."""
    os.close(open_directory(path))


def open_file(path: bytes) -> BinaryIO:
    """``path`` for reading; raises ``Refused`` unless it is a regular file of the caller's that only he may write."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY)
    except FileNotFoundError:
        raise Refused(f"{shown(path)}: is missing; without it the job cannot be resumed") from None
    except OSError as error:
        reason = "is a symbolic link" if error.errno == errno.ELOOP else f"cannot be opened: {error.strerror}"
        raise Refused(f"{shown(path)}: {reason}") from None
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise Refused(f"{shown(path)}: is no regular file")
        refuse_strange(path, status)
    except BaseException:
        os.close(descriptor)
        raise
    return os.fdopen(descriptor, "rb")


def create(path: bytes, directory: int | None = None) -> BinaryIO:
    """A new file of mode 0600, unbuffered; raises ``OSError`` (``FileExistsError`` for whatever has the name)."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
    return os.fdopen(os.open(path, flags, 0o600, dir_fd=directory), "wb", buffering=0)


def sync_path(path: bytes) -> None:
    """Makes the names in a directory durable; raises ``OSError``."""
    with opened(path) as descriptor:
        sync(descriptor)


def remove_run(path: bytes) -> None:
    """Removes a run's directory with its files, if there is one; raises ``OSError``."""
    with suppress(FileNotFoundError):
        if not stat.S_ISDIR(os.lstat(path).st_mode):
            os.unlink(path)
            return
        for name in os.listdir(path):
            os.unlink(os.path.join(path, name))
        os.rmdir(path)
