"""Directories in which files can be written in one way only: in order, by one process, and under their own names.

S3 mounts and other file systems made of objects cannot rename, refuse names with a leading dot, or accept writes at the
end of a new file only. pcopy renames temporary files to their final names, and several ranks write to one large file.
``examine`` makes, writes, renames and removes one small file, and so finds out whether that is possible in a directory.
It is called once for a destination, and only on file systems that are not known to be ordinary (``pcopy.fsio.ways``).
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import TypeVar

from pcopy.fsio.close import abandon, held_open, late_times
from pcopy.fsio.patience import open_patiently
from pcopy.fsio.problem import Problem
from pcopy.fsio.server import learn_times
from pcopy.fsio.temporary import NEW, PREFIX, remove
from pcopy.named import NamedTuple
from pcopy.text import shown

_UNSUPPORTED = {errno.ENOSYS, errno.EOPNOTSUPP, errno.EPERM, errno.EACCES, errno.EINVAL, errno.ESPIPE, errno.EXDEV}
"""Errors of an operation that a file system does not support. Others, as of a full disk, say nothing about that."""

_Found = TypeVar("_Found")
_NAME_REFUSED = _UNSUPPORTED | {errno.ENOENT, errno.EIO}
_APART = 1 << 16
"""Where the last byte of the file is written, before the first one."""


NAME = PREFIX + b"examination"
"""The file that is made.

It has the same name each time, so that no second one is left where nothing can be removed. A name without a leading
dot may be one of the user's; therefore such a file has another name each time.
"""


class Examined(NamedTuple):
    """The operation that is not possible in a directory, with the error (empty: all are possible), and the path of a
    file that the examination has left, since it could not be removed."""

    lacking: str = ""
    left: str = ""

    @property
    def refusal(self) -> str:
        """Why a file cannot be renamed when it is whole, in words; empty if it can."""
        also = f" ({self.left} is left there)" if self.left else ""
        return f"the file system {self.lacking}{also}" if self.lacking else ""


def examine(path: bytes, *, writes: bool = True) -> Examined:
    """Find out what is not possible in the directory ``path``, and if times are lost there as files are closed
    (``pcopy.fsio.server.learn_times``).

    That is done in the directory around it, if it is on the same file system and may be written to: so the ctime of
    ``path`` stays where there is nothing to copy. ``writes``: files are to be written in any order. What cannot be
    found out, as on a full disk, is taken to be possible: the copy reports it. Raises nothing.
    """
    return _in_place(path, partial(_examined, writes=writes)) or Examined()


def examine_times(path: bytes) -> None:
    """As ``examine``, but of the times only."""
    _in_place(path, _learn_times)


def _in_place(path: bytes, find_out: Callable[[int], _Found | None]) -> _Found | None:
    """Return what is found out in the directory around ``path``, if both are on the same file system, or else in
    ``path``; None if neither can be examined.

    A directory keeps its time of modification: whatever is refused later has left it as it was.
    """
    for place in (os.path.join(path, b".."), path):
        with (
            suppress(OSError),
            held_open(open_patiently(place, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)) as directory,
        ):
            before = os.fstat(directory)
            if before.st_dev != os.stat(path).st_dev:
                continue
            found = find_out(directory)
            with suppress(OSError):
                if os.fstat(directory).st_mtime_ns != before.st_mtime_ns:
                    os.utime(directory, ns=(before.st_atime_ns, before.st_mtime_ns))
            if found is not None:
                return found
    return None


def _learn_times(directory: int) -> bool | None:
    """Return True if the times are known now, and None if not."""
    device = os.fstat(directory).st_dev
    if device not in late_times:
        with suppress(Problem):  # it cannot be removed, which the first rank reports of a file of its own
            learn_times(directory, device, _free_name())
    return device in late_times or None


def _free_name() -> bytes:
    return b"%b-%b" % (NAME, os.urandom(5).hex().encode())


def _examined(directory: int, *, writes: bool) -> Examined | None:
    """Return what is not possible in an open directory; None if no file can be made there."""
    found = _tried(directory, NAME, writes=writes)
    if found is None:  # another job examines the directory at the same time
        found = _tried(directory, _free_name(), writes=writes)
    if found is not None and not found.lacking:  # else they are assumed to be lost
        _learn_times(directory)
    return found


def _tried(directory: int, name: bytes, *, writes: bool) -> Examined | None:
    """Make, write, rename and remove the file ``name``; None if it could not be made, or another job has removed it."""
    try:
        descriptor = _created(directory, name)
    except Problem as problem:
        return Examined(_lacking("cannot remove files", problem), _path(directory, name))
    except FileExistsError:
        return None
    except OSError as error:
        return _without_dot(directory, error)
    lacking, renamed = _written(descriptor, writes=writes), name + b"-renamed"
    if not lacking:
        try:
            os.rename(name, renamed, src_dir_fd=directory, dst_dir_fd=directory)
            name = renamed
        except FileNotFoundError:
            return None
        except OSError as error:
            if error.errno in _UNSUPPORTED:
                lacking = _lacking("cannot rename files", error)
    return _removed(directory, name, lacking)


def _without_dot(directory: int, refused: OSError) -> Examined | None:
    """As ``_tried``, where the file was ``refused``: make one whose name has no leading dot."""
    name, lacking = _free_name().removeprefix(b"."), _lacking("refuses names with a leading dot", refused)
    if refused.errno not in _NAME_REFUSED:
        return None
    try:
        abandon(open_patiently(name, NEW, 0o600, dir_fd=directory))
    except OSError:
        return None
    return _removed(directory, name, lacking)


def _removed(directory: int, name: bytes, lacking: str) -> Examined:
    """Remove the file."""
    try:
        remove(directory, name)
    except Problem as problem:
        return Examined(lacking or _lacking("cannot remove files", problem), _path(directory, name))
    return Examined(lacking)


def _path(directory: int, name: bytes) -> str:
    return shown(os.path.join(os.readlink(b"/proc/self/fd/%d" % directory), name))


def _created(directory: int, name: bytes) -> int:
    """Create the file, and remove one that a killed process has left; raise ``OSError``, and ``Problem`` if that one
    cannot be removed."""
    with suppress(FileExistsError):
        return open_patiently(name, NEW, 0o600, dir_fd=directory)
    remove(directory, name)
    return open_patiently(name, NEW, 0o600, dir_fd=directory)


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
