"""Directories in which files can be written in one way only: in order, by one process, and under their own names.

S3 mounts and other file systems made of objects cannot rename, refuse names with a leading dot, or accept writes at the
end of a new file only. pcopy renames temporary files to their final names, and several ranks write to one large file.
``examine`` makes, writes, renames and removes one small file, and so finds out whether that is possible in a directory.
It is called once for a destination, and only on file systems that are not known to be ordinary (``pcopy.fsio.ways``).
"""

from __future__ import annotations

import errno
import os
from contextlib import suppress

from pcopy.fsio.close import abandon, held_open
from pcopy.fsio.problem import Problem
from pcopy.fsio.temporary import NEW, PREFIX, remove
from pcopy.named import NamedTuple

_UNSUPPORTED = {errno.ENOSYS, errno.EOPNOTSUPP, errno.EPERM, errno.EACCES, errno.EINVAL, errno.ESPIPE, errno.EXDEV}
"""Errors of an operation that a file system does not support. Others, as of a full disk, say nothing about that."""

_NAME_REFUSED = _UNSUPPORTED | {errno.ENOENT, errno.EIO}
_APART = 1 << 16
"""Where the last byte of the file is written, before the first one."""


NAME = PREFIX + b"examination"
"""The file that is made.

It has the same name each time, so that no second one is left where nothing can be removed.
"""


class Examined(NamedTuple):
    """The operation that is not possible in a directory, with the error (empty: all are possible), and the name of a
    file that the examination has left there, since it could not be removed."""

    lacking: str = ""
    left: str = ""

    @property
    def refusal(self) -> str:
        """Why a file cannot be renamed when it is whole, in words; empty if it can."""
        also = f" ({self.left} is left there)" if self.left else ""
        return f"the file system {self.lacking}{also}" if self.lacking else ""


def examine(path: bytes, *, writes: bool = True) -> Examined:
    """Find out which operation is not possible in the directory ``path``.

    ``writes``: files are to be written in any order. What cannot be examined, as on a full disk, counts as
    possible: the copy reports the error. Raises nothing.
    """
    with suppress(OSError), held_open(os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)) as directory:
        before = os.fstat(directory)
        try:
            return _examined(directory, writes=writes)
        finally:
            with suppress(OSError):  # a job that is refused later has changed nothing
                os.utime(directory, ns=(before.st_atime_ns, before.st_mtime_ns))
    return Examined()


def _examined(directory: int, *, writes: bool) -> Examined:
    try:
        descriptor = _created(directory, NAME)
    except Problem as problem:
        return Examined(_lacking("cannot remove files", problem), os.fsdecode(NAME))
    except OSError as error:
        return _without_dot(directory, error)
    lacking, name = _written(descriptor, writes=writes), NAME
    if not lacking:
        renamed = NAME + b"-renamed"
        try:
            os.rename(name, renamed, src_dir_fd=directory, dst_dir_fd=directory)
            name = renamed
        except OSError as error:
            if error.errno in _UNSUPPORTED:
                lacking = _lacking("cannot rename files", error)
    return _removed(directory, name, lacking)


def _without_dot(directory: int, refused: OSError) -> Examined:
    """As ``_examined``, where the file was ``refused``: make one whose name has no leading dot."""
    name, lacking = NAME.removeprefix(b"."), _lacking("refuses names with a leading dot", refused)
    try:
        if refused.errno not in _NAME_REFUSED:
            return Examined()
        abandon(_created(directory, name))
    except Problem:
        return Examined(lacking, os.fsdecode(name))
    except OSError:
        return Examined()
    return _removed(directory, name, lacking)


def _removed(directory: int, name: bytes, lacking: str) -> Examined:
    """Remove the file."""
    try:
        remove(directory, name)
    except Problem as problem:
        return Examined(lacking or _lacking("cannot remove files", problem), os.fsdecode(name))
    return Examined(lacking)


def _created(directory: int, name: bytes) -> int:
    """Create the file, and remove one that a killed process has left; raise ``OSError``, and ``Problem`` if that one
    cannot be removed."""
    with suppress(FileExistsError):
        return os.open(name, NEW, 0o600, dir_fd=directory)
    remove(directory, name)
    return os.open(name, NEW, 0o600, dir_fd=directory)


def _written(descriptor: int, *, writes: bool) -> str:
    """Write to the new file, and close it; return the operation that is not possible."""
    try:
        try:
            if writes:
                os.ftruncate(descriptor, _APART + 1)
                os.pwrite(descriptor, b"1", _APART)
            os.pwrite(descriptor, b"0", 0)
        except OSError:
            abandon(descriptor)
            raise
        os.close(descriptor)  # some file systems report only here what they do not support
    except OSError as error:
        if error.errno in _UNSUPPORTED:
            return _lacking("accepts writes only in order, to new files", error)
    return ""


def _lacking(operation: str, error: OSError) -> str:
    return f"{operation} ({error.strerror})"
