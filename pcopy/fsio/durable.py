"""Atomic and durable replacement of pcopy's own files (records, reports, signatures), and syncs of directories.

Whenever the process or the machine stops, either the old or the new file exists, and is complete. To achieve this, the
new file is written under a temporary name in the same directory, synced, closed and renamed, and then the directory is
synced. After a rename(2) alone, a loss of power may leave an empty file.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from enum import Enum
from typing import BinaryIO

from pcopy.fsio.close import closing_descriptor
from pcopy.fsio.problem import Problem, errors_as_problem
from pcopy.fsio.retries import open_with_retries
from pcopy.fsio.syncer import (
    SYNC_UNSUPPORTED_ERRNOS,
    open_file_system_for_sync,
    sync_file,
    sync_file_if_supported,
    sync_file_system,
)
from pcopy.fsio.temporary import CREATE_FLAGS

_PROC_FD_PATH = b"/proc/self/fd/%d"
_BUFFER_BYTES = 1 << 18
"""Bytes that are buffered for one write."""


class Durability(Enum):
    """What is on stable storage at the end of ``replacing_file``.

    - ``NOTHING``: nothing is synced.
    - ``CONTENTS``: the contents of the new file are on stable storage. After a loss of power, the name may still lead
      to the old file.
    - ``NAME``: the contents and the name are on stable storage.
    """

    NOTHING = "nothing"
    CONTENTS = "contents"
    NAME = "name"


@contextmanager
def replacing_file(
    directory: int,
    name: bytes,
    temporary: bytes,
    *,
    mode: int = 0o600,
    durability: Durability = Durability.NAME,
    uses_unnamed_file: bool = False,
) -> Iterator[BinaryIO]:
    """Context manager: yield a stream for the new contents of the file ``name``, and replace the file by them at the
    end of the block.

    After an error the temporary file is removed and ``name`` is unchanged. Raise ``Problem``.

    Args:
        directory: the open directory that contains the file.
        name: name of the file.
        temporary: the name under which the new file is written; it must not exist.
        mode: permission bits of the new file, less the umask.
        durability: what must be on stable storage at the end.
        uses_unnamed_file: create the file with O_TMPFILE where that is supported, and give it the name ``temporary``
            only when it is complete. Then nothing is left behind if the process is killed.
    """
    descriptor = _create_unnamed_file(directory, mode) if uses_unnamed_file else -1
    is_named = descriptor < 0
    with unsupported_errors_as_problem("create", "cannot create files with a leading dot"):
        if is_named:
            descriptor = open_with_retries(temporary, CREATE_FLAGS, mode, dir_fd=directory)
    with errors_as_problem("create"):
        stream = open(descriptor, "wb", buffering=_BUFFER_BYTES)  # noqa: SIM115
    try:
        try:
            yield stream
            with errors_as_problem("write"):
                stream.flush()
            if durability is not Durability.NOTHING:
                with errors_as_problem("fsync"):
                    sync_file_if_supported(stream.fileno())
            if not is_named:
                # Only a link to /proc/self/fd/N gives a name to an O_TMPFILE file without privileges (open(2)).
                with errors_as_problem("link"):
                    os.link(_PROC_FD_PATH % descriptor, temporary, dst_dir_fd=directory, follow_symlinks=True)
                is_named = True
            with errors_as_problem("close"):
                stream.close()
            with unsupported_errors_as_problem("rename", "cannot rename files"):
                os.rename(temporary, name, src_dir_fd=directory, dst_dir_fd=directory)
        finally:
            with suppress(OSError):  # closing flushes the buffer; a second failure must not hide the first
                stream.close()
    except BaseException:
        if is_named:
            with suppress(OSError):
                os.unlink(temporary, dir_fd=directory)
        raise
    if durability is Durability.NAME:
        sync_directory(directory)


@contextmanager
def unsupported_errors_as_problem(operation: str, lacking: str) -> Iterator[None]:
    """Context manager: turn an ``OSError`` of the block into a ``Problem`` of the operation ``operation``.

    If the errno is one by which file systems refuse an unsupported operation (ENOSYS, EOPNOTSUPP, EINVAL), the text of
    the problem is "the file system" and ``lacking``, for example "cannot rename files".
    """
    with errors_as_problem(operation):
        try:
            yield
        except OSError as error:
            if error.errno not in (errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL):
                raise
            raise Problem(operation, error.errno, text=f"the file system {lacking} ({error.strerror})") from error


def _create_unnamed_file(directory: int, mode: int) -> int:
    """Create a file without a name (O_TMPFILE) with the permission bits ``mode`` on the file system of the open
    ``directory``; return its descriptor.

    Return -1 if the file system does not support that, or if the file could not get a name later because /proc is
    missing.
    """
    try:
        descriptor = open_with_retries(b".", os.O_WRONLY | os.O_TMPFILE | os.O_CLOEXEC, mode, dir_fd=directory)
    except OSError:
        return -1
    if os.path.exists(_PROC_FD_PATH % descriptor):
        return descriptor
    os.close(descriptor)
    return -1


def sync_directory(directory: int) -> None:
    """Bring the names in an open directory to stable storage, as far as its file system supports that; raise
    ``Problem``.

    If the directory is open for searching only (O_PATH), its file system is synced.
    """
    try:
        sync_file(directory)
    except OSError as error:
        if error.errno == errno.EBADF:
            with errors_as_problem("open"), closing_descriptor(open_file_system_for_sync(directory)) as opened:
                sync_file_system(opened)
        elif error.errno not in SYNC_UNSUPPORTED_ERRNOS:
            raise Problem.from_error("fsync", error) from error


def sync_directory_at(path: bytes) -> None:
    """Bring the names in the directory ``path`` to stable storage, as far as its file system supports that; raise
    ``OSError``.
    """
    with closing_descriptor(open_with_retries(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)) as descriptor:
        sync_directory(descriptor)


boot_ids_of_job: set[str] = set()
"""Boot ids (``boot_id``) of all hosts on which ranks of this job run. It is filled on rank 0 only."""


def boot_id() -> str:
    """Return the random id of this boot of the host (/proc/sys/kernel/random/boot_id); empty if there is none."""
    with suppress(OSError), open("/proc/sys/kernel/random/boot_id", encoding="utf-8") as file:
        return file.read().strip()
    return ""
