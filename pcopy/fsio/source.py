"""Opens files for reading without side effects, and tells whether they are still what they were.

O_NONBLOCK and O_NOFOLLOW, because the name may have been given to a FIFO or a symbolic link meanwhile; O_NOATIME where
it is allowed, because reading shall leave no traces. With ``follow`` (``--dereference``) a name may be a
symbolic link; the opened item must still be the one that was found.
"""

from __future__ import annotations

import errno
import os
import stat

from pcopy.fsio.patience import PASSING, open_patiently, patiently
from pcopy.fsio.problem import Problem, changed, failing
from pcopy.libc import type_of_file_system
from pcopy.named import NamedTuple

FLAGS = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC

CONSUMED = frozenset((b"kmsg", b"trace_pipe", b"trace_pipe_raw", b"snapshot_raw", b"free_buffer"))
"""Names of files in which the kernel keeps messages and traces that go away as soon as they are read, or, for root, as
soon as the file was opened. ``is_consumed`` of the kernel in C has the same list."""

_KEEPING = (0x9FA0, 0x74726163)
"""Types of the file systems that have such files: proc, tracefs."""


class Version(NamedTuple):
    """What must stay the same while a file is copied; times in nanoseconds."""

    inode: int
    size: int
    mtime: int
    ctime: int

    @classmethod
    def of(cls, status: os.stat_result) -> Version:
        return cls(status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)


def open_to_read(directory: int | None, name: bytes, *, follow: bool = False) -> int:
    """A descriptor for reading an item of either side without a trace where that is allowed; raises ``OSError``."""
    flags = FLAGS & ~os.O_NOFOLLOW if follow else FLAGS
    try:
        return open_patiently(name, flags | os.O_NOATIME, dir_fd=directory, passing=PASSING)
    except PermissionError as error:
        if error.errno != errno.EPERM:  # O_NOATIME is for owners
            raise
        return open_patiently(name, flags, dir_fd=directory, passing=PASSING)


def refuse_consumed(directory: int, name: bytes) -> None:
    """Raise ``Problem`` for a file of the open ``directory`` whose contents would go away; nothing is opened."""
    if name in CONSUMED:
        with failing("statfs", on_source=True):
            kind = type_of_file_system(directory)
        if kind in _KEEPING:
            text = "it is not read, since that would take away what the kernel keeps in it"
            raise Problem("open", 0, on_source=True, text=text)


def open_source(directory: int, name: bytes, *, follow: bool = False) -> int:
    """A descriptor for reading; raises ``Problem`` (``changed`` if the name is gone or no file any more)."""
    refuse_consumed(directory, name)
    try:
        return open_to_read(directory, name, follow=follow)
    except OSError as error:
        if error.errno in (errno.ENOENT, errno.ELOOP, errno.ENXIO, errno.ESTALE):
            raise Problem("open", error.errno, on_source=True, changed=True) from error
        raise Problem.of("open", error, on_source=True) from error


def status_of(descriptor: int, *, on_source: bool = False) -> os.stat_result:
    """The status of what is open; raises ``Problem`` (a server may have forgotten the file meanwhile: ESTALE)."""
    try:
        return patiently(lambda: os.fstat(descriptor))
    except OSError as error:
        raise Problem.of("fstat", error, on_source=on_source) from error


def source_status(directory: int, name: bytes, *, follow: bool = False) -> os.stat_result:
    """The status of ``name`` itself in a source directory; raises ``Problem`` (``changed`` if it is gone)."""
    try:
        return patiently(lambda: os.stat(name, dir_fd=directory, follow_symlinks=follow))
    except OSError as error:
        gone = error.errno == errno.ENOENT
        raise Problem("stat", error.errno or errno.EIO, on_source=True, changed=gone) from error


def check_found(status: os.stat_result, device: int | None, inode: int) -> None:
    """Raises ``Problem`` unless ``status`` is a regular file, the one that was found (``device`` None: anywhere)."""
    if not stat.S_ISREG(status.st_mode) or status.st_ino != inode or device not in (None, status.st_dev):
        raise changed("open", "another file has taken its name")


def check_unchanged(descriptor: int, version: Version) -> None:
    """Raises ``Problem`` unless the file is still of that ``version``."""
    if Version.of(status_of(descriptor, on_source=True)) != version:
        raise changed("read", "the file changed while it was copied")
