"""Replaces files of pcopy's own: whatever stops the process or the machine, the old one or the new one is there, whole.

Rule: write under another name beside it, fsync, close, rename, fsync the directory (rename(2) alone may leave an empty
file after a power loss).
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from enum import Enum
from typing import BinaryIO

from pcopy.fsio.close import held_open
from pcopy.fsio.patience import open_patiently
from pcopy.fsio.problem import Problem, failing
from pcopy.fsio.syncer import NO_SYNC, open_for_sync, sync_file, sync_file_system, sync_written
from pcopy.fsio.temporary import NEW

_PATH = b"/proc/self/fd/%d"
_BUFFER = 1 << 18
"""Bytes that are gathered for one write."""


class Synced(Enum):
    """What is on stable storage when a file has been replaced. Without its name the old contents may come back."""

    NOTHING = "nothing"
    CONTENTS = "contents"
    NAME = "name"


@contextmanager
def replacing(
    directory: int,
    name: bytes,
    temporary: bytes,
    *,
    mode: int = 0o600,
    synced: Synced = Synced.NAME,
    unnamed: bool = False,
) -> Iterator[BinaryIO]:
    """A stream for the new contents of ``name`` in an open directory, written as ``temporary``, which must be free.

    The file gets ``mode`` less the umask. On an error it is removed and ``name`` is as before. ``unnamed``: it gets the
    name ``temporary`` only when it is whole, where the file system has files without a name; then nothing is left of it
    if the process is killed. Raises ``Problem``.
    """
    descriptor = _unnamed(directory, mode) if unnamed else -1
    is_named = descriptor < 0
    with explained("create", "cannot create files with a leading dot"):
        if is_named:
            descriptor = open_patiently(temporary, NEW, mode, dir_fd=directory)
    with failing("create"):
        stream = open(descriptor, "wb", buffering=_BUFFER)  # noqa: SIM115
    try:
        try:
            yield stream
            with failing("write"):
                stream.flush()
            if synced is not Synced.NOTHING:
                with failing("fsync"):
                    sync_written(stream.fileno())
            if not is_named:
                with failing("link"):
                    os.link(_PATH % descriptor, temporary, dst_dir_fd=directory, follow_symlinks=True)
                is_named = True
            with failing("close"):
                stream.close()
            with explained("rename", "cannot rename files"):
                os.rename(temporary, name, src_dir_fd=directory, dst_dir_fd=directory)
        finally:
            with suppress(OSError):  # it may fail again to write what it holds, and must not hide the first error
                stream.close()
    except BaseException:
        if is_named:
            with suppress(OSError):
                os.unlink(temporary, dir_fd=directory)
        raise
    if synced is Synced.NAME:
        sync_directory(directory)


@contextmanager
def explained(operation: str, lacking: str) -> Iterator[None]:
    """Raise ``Problem`` for an ``OSError``. If the file system does not support ``operation``, the text states that."""
    with failing(operation):
        try:
            yield
        except OSError as error:
            if error.errno not in (errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL):
                raise
            raise Problem(operation, error.errno, text=f"the file system {lacking} ({error.strerror})") from error


def _unnamed(directory: int, mode: int) -> int:
    """A descriptor of a new file without a name; -1 where that is impossible, or it could not be named later."""
    try:
        descriptor = open_patiently(b".", os.O_WRONLY | os.O_TMPFILE | os.O_CLOEXEC, mode, dir_fd=directory)
    except OSError:
        return -1
    if os.path.exists(_PATH % descriptor):
        return descriptor
    os.close(descriptor)
    return -1


def sync_directory(directory: int) -> None:
    """Make the names in an open directory durable, as far as its file system can; raise ``Problem``.

    For one that is open for searching only (O_PATH) the file system is synced.
    """
    try:
        sync_file(directory)
    except OSError as error:
        if error.errno == errno.EBADF:
            with failing("open"), held_open(open_for_sync(directory)) as opened:
                sync_file_system(opened)
        elif error.errno not in NO_SYNC:
            raise Problem.of("fsync", error) from error


def sync_directory_at(path: bytes) -> None:
    """As ``sync_directory``, for the directory ``path``; raises ``OSError``."""
    with held_open(open_patiently(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)) as descriptor:
        sync_directory(descriptor)


boots_of_job: set[str] = set()
"""Boot ids of all hosts on which ranks of this job run, if this process is rank 0."""


def boot_id() -> str:
    """Return the number that identifies this start of the host; empty if the system has none."""
    with suppress(OSError), open("/proc/sys/kernel/random/boot_id", encoding="utf-8") as file:
        return file.read().strip()
    return ""
