"""Atomic and durable replacement of pcopy's own files, and syncs of directories.

Whenever the process or the machine stops, either the old or the new file is there, and complete. For that the new file
is written under a temporary name in the same directory, synced, closed and renamed, and then the directory is synced.
After a rename(2) alone, a loss of power may leave an empty file.
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
"""Bytes that are buffered for one write."""


class Synced(Enum):
    """Durability of the file at the end of ``replacing``.

    - ``NOTHING``: nothing is synced.
    - ``CONTENTS``: the contents of the new file are on stable storage. After a loss of power, the name may still lead
      to the old file.
    - ``NAME``: the contents and the name are on stable storage.
    """

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
    """Yield a stream for the new contents of the file ``name`` in an open directory; replace the file at the end.

    After an error the temporary file is removed and ``name`` is unchanged. Raise ``Problem``.

    Args:
        temporary: the name under which the file is written; it must not exist.
        mode: permission bits of the file, less the umask.
        synced: what must be on stable storage at the end.
        unnamed: create the file with O_TMPFILE where that is supported, and give it the name ``temporary`` only when it
            is complete. Then nothing is left behind if the process is killed.
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
                # Only a link to /proc/self/fd/N gives a name to an O_TMPFILE file without privileges (open(2)).
                with failing("link"):
                    os.link(_PATH % descriptor, temporary, dst_dir_fd=directory, follow_symlinks=True)
                is_named = True
            with failing("close"):
                stream.close()
            with explained("rename", "cannot rename files"):
                os.rename(temporary, name, src_dir_fd=directory, dst_dir_fd=directory)
        finally:
            with suppress(OSError):  # closing flushes the buffer; a second failure must not hide the first
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
    """Raise ``Problem`` for an ``OSError`` of the block.

    If the error means that the file system does not support ``operation``, the text says so: "the file system" and
    ``lacking``.
    """
    with failing(operation):
        try:
            yield
        except OSError as error:
            if error.errno not in (errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL):
                raise
            raise Problem(operation, error.errno, text=f"the file system {lacking} ({error.strerror})") from error


def _unnamed(directory: int, mode: int) -> int:
    """Return the descriptor of a new file without a name (O_TMPFILE).

    Return -1 if the file system does not support that, or if the file could not be linked later because /proc is
    missing.
    """
    try:
        descriptor = open_patiently(b".", os.O_WRONLY | os.O_TMPFILE | os.O_CLOEXEC, mode, dir_fd=directory)
    except OSError:
        return -1
    if os.path.exists(_PATH % descriptor):
        return descriptor
    os.close(descriptor)
    return -1


def sync_directory(directory: int) -> None:
    """Make the names in an open directory durable, as far as its file system supports that; raise ``Problem``.

    If the directory is open for searching only (O_PATH), its file system is synced.
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
    """Make the names in the directory ``path`` durable, as ``sync_directory`` does; raise ``OSError``."""
    with held_open(open_patiently(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)) as descriptor:
        sync_directory(descriptor)


boots_of_job: set[str] = set()
"""Boot ids of all hosts on which ranks of this job run. Filled on rank 0 only."""


def boot_id() -> str:
    """Return the random id of this boot of the host (/proc/sys/kernel/random/boot_id); empty if there is none."""
    with suppress(OSError), open("/proc/sys/kernel/random/boot_id", encoding="utf-8") as file:
        return file.read().strip()
    return ""
