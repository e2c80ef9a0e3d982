"""Opening of source files without side effects, and checks whether they have changed since they were found.

Files are opened with O_NONBLOCK and O_NOFOLLOW, because the name may belong to a FIFO or a symbolic link by now.
O_NOATIME is used where it is permitted, so that reading leaves no traces. With ``follow`` (``--dereference``) a name
may be a symbolic link; the opened item must still be the one that was found.
"""

from __future__ import annotations

import errno
import os
import stat

from pcopy.fast_named_tuple import NamedTuple
from pcopy.fsio.problem import Problem, errors_as_problem, source_changed_problem
from pcopy.fsio.retries import TRANSIENT_ERRNOS, call_with_retries, open_with_retries
from pcopy.libc import type_of_file_system

READ_FLAGS = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
"""Flags of open(2) for reading a source file without side effects; O_NOATIME is added where permitted."""

FILE_NAMES_CONSUMED_BY_READING = frozenset((b"kmsg", b"trace_pipe", b"trace_pipe_raw", b"snapshot_raw", b"free_buffer"))
"""Names of files in /proc and tracefs whose contents are consumed by reading, or, for root, by opening them.

The kernel keeps messages and traces in them. ``is_consumed`` of the C backend has the same list.
"""

_CONSUMED_FILE_SYSTEMS = (0x9FA0, 0x74726163)
"""Types (f_type) of the file systems that have files of ``FILE_NAMES_CONSUMED_BY_READING``: proc, tracefs."""


class FileContentVersion(NamedTuple):
    """Properties of a file by which a change during its copy is noticed. ``size`` is in bytes, times are nanoseconds
    since 1970.
    """

    inode: int
    size: int
    mtime: int
    ctime: int

    @classmethod
    def from_status(cls, status: os.stat_result) -> FileContentVersion:
        """Return inode, size, mtime and ctime in ``status``."""
        return cls(status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)


def open_item_to_read(directory: int | None, name: bytes, *, follow: bool = False) -> int:
    """Return a descriptor for reading an item of source or target, with O_NOATIME where permitted. Raise ``OSError``.
    ``directory`` is the descriptor of the directory that contains ``name``; if it is None, ``name`` is a path. With
    ``follow`` a symbolic link is followed.
    """
    flags = READ_FLAGS & ~os.O_NOFOLLOW if follow else READ_FLAGS
    try:
        return open_with_retries(name, flags | os.O_NOATIME, dir_fd=directory, transient=TRANSIENT_ERRNOS)
    except PermissionError as error:
        if error.errno != errno.EPERM:  # EPERM: only the owner of a file may use O_NOATIME
            raise
        return open_with_retries(name, flags, dir_fd=directory, transient=TRANSIENT_ERRNOS)


def check_reading_keeps_contents(directory: int, name: bytes) -> None:
    """Raise ``Problem`` if reading the file ``name`` of the open ``directory`` would remove its contents.

    Nothing is opened.
    """
    if name in FILE_NAMES_CONSUMED_BY_READING:
        with errors_as_problem("statfs", on_source=True):
            kind = type_of_file_system(directory)
        if kind in _CONSUMED_FILE_SYSTEMS:
            text = "it is not read: reading would remove the messages that the kernel keeps in it"
            raise Problem("open", 0, on_source=True, text=text)


def open_source_file_to_read(directory: int, name: bytes, *, follow: bool = False) -> int:
    """Return a descriptor for reading the source file ``name`` in an open directory. With ``follow`` a symbolic link is
    followed. Raise ``Problem``.

    The problem is ``changed`` (the source changed since it was found) if the name does not exist any longer, or is that
    of a symbolic link or a device by now.
    """
    check_reading_keeps_contents(directory, name)
    try:
        return open_item_to_read(directory, name, follow=follow)
    except OSError as error:
        if error.errno in (errno.ENOENT, errno.ELOOP, errno.ENXIO, errno.ESTALE):
            raise Problem("open", error.errno, on_source=True, changed=True) from error
        raise Problem.from_error("open", error, on_source=True) from error


def status_of_open_item(descriptor: int, *, on_source: bool = False) -> os.stat_result:
    """Return the status of an open item. ``on_source``: True if the item is in the source.

    Raise ``Problem``, for example with ESTALE if the server has dropped the file.
    """
    try:
        return call_with_retries(lambda: os.fstat(descriptor))
    except OSError as error:
        raise Problem.from_error("fstat", error, on_source=on_source) from error


def source_item_status(directory: int, name: bytes, *, follow: bool = False) -> os.stat_result:
    """Return the status of the item ``name`` in an open source directory. With ``follow`` a symbolic link is followed.

    Raise ``Problem``; it is ``changed`` (the source changed since it was found) if the name does not exist any longer.
    """
    try:
        return call_with_retries(lambda: os.stat(name, dir_fd=directory, follow_symlinks=follow))
    except OSError as error:
        is_missing = error.errno == errno.ENOENT
        raise Problem("stat", error.errno or errno.EIO, on_source=True, changed=is_missing) from error


def check_is_file_found_by_scan(status: os.stat_result, device: int | None, inode: int) -> None:
    """Raise ``Problem`` if ``status``, the status of an opened source, is not that of the regular file that a scan
    found: with the inode number ``inode`` and the st_dev ``device`` (None: any).
    """
    if not stat.S_ISREG(status.st_mode) or status.st_ino != inode or device not in (None, status.st_dev):
        raise source_changed_problem("open", "another file has taken its name")


def check_file_is_unchanged(descriptor: int, version: FileContentVersion) -> None:
    """Raise ``Problem`` if inode, size or times of the open source file ``descriptor`` are no longer those of
    ``version``, which were read before.
    """
    if FileContentVersion.from_status(status_of_open_item(descriptor, on_source=True)) != version:
        raise source_changed_problem("read", "the file changed while it was copied")
