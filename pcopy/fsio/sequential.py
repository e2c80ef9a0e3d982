"""Detection of directories where files can only be written sequentially, by one process, and under their final names.

S3 mounts and other file systems over object stores cannot rename, refuse names with a leading dot, or accept writes
only at the end of a new file. pcopy renames temporary files to their final names, and several ranks write to one large
file.

``examine`` finds out whether that is possible in a directory: it creates, writes, renames and removes one small file.
It is called once for a destination, and only on file systems that are not known to support all of this
(``pcopy.fsio.ways``).
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
"""Errors of an operation that a file system does not support.

Other errors, as of a full disk, say nothing about that.
"""

_Found = TypeVar("_Found")
_NAME_REFUSED = _UNSUPPORTED | {errno.ENOENT, errno.EIO}
"""Errors of open(2) by which a file system may refuse a name with a leading dot."""
_APART = 1 << 16
"""Offset of the last byte of the test file, which is written before the first one."""


NAME = PREFIX + b"examination"
"""Name of the test file.

It is the same each time, so that test files do not accumulate where files cannot be removed. A name without a leading
dot could be one of the user's; therefore such a test file has a new name each time.
"""


class Examined(NamedTuple):
    """Result of an examination.

    Fields:
        unsupported: the operation that is not possible in the directory, with the error; empty if all are possible.
        leftover_path: path of a test file that could not be removed; empty if there is none.
    """

    lacking: str = ""
    left: str = ""

    @property
    def refusal(self) -> str:
        """Reason, for a message, why finished files cannot be renamed here; empty if they can."""
        leftover_note = f" ({self.left} is left there)" if self.left else ""
        return f"the file system {self.lacking}{leftover_note}" if self.lacking else ""


def examine(path: bytes, *, writes: bool = True) -> Examined:
    """Find out which operation is impossible in the directory ``path``, and whether closing a file changes its times
    there.

    The times are recorded by ``pcopy.fsio.server.determine_close_times``. The test is made in the parent directory, if
    that is on the same file system and writable, so that the ctime of ``path`` remains unchanged if there is nothing to
    copy. A property that cannot be determined, for example on a full disk, is assumed to be supported: the copy reports
    the error. No exception is raised.

    ``writes``: also test whether a file can be written in any order.
    """
    return _in_place(path, partial(_examined, writes=writes)) or Examined()


def examine_times(path: bytes) -> None:
    """As ``examine``, but only find out whether closing a file changes its times."""
    _in_place(path, _learn_times)


def _in_place(path: bytes, find_out: Callable[[int], _Found | None]) -> _Found | None:
    """Return the result of ``find_out`` for the parent directory of ``path``, if it is on the same file system, else
    for ``path``.

    Return None if neither can be examined. The directory keeps its modification time, even if an operation fails later.
    """
    for place in (os.path.join(path, b".."), path):
        with (
            suppress(OSError),
            held_open(open_patiently(place, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)) as directory,
        ):
            status = os.fstat(directory)
            if status.st_dev != os.stat(path).st_dev:
                continue
            result = find_out(directory)
            with suppress(OSError):
                if os.fstat(directory).st_mtime_ns != status.st_mtime_ns:
                    os.utime(directory, ns=(status.st_atime_ns, status.st_mtime_ns))
            if result is not None:
                return result
    return None


def _learn_times(directory: int) -> bool | None:
    """Return True if it is known whether closing a file changes its times, None if not."""
    device = os.fstat(directory).st_dev
    if device not in late_times:
        with suppress(Problem):  # The file cannot be removed: the first rank reports that of its own file.
            learn_times(directory, device, _free_name())
    return device in late_times or None


def _free_name() -> bytes:
    """Return a random name for a test file."""
    return b"%b-%b" % (NAME, os.urandom(5).hex().encode())


def _examined(directory: int, *, writes: bool) -> Examined | None:
    """Examine an open directory. Return None if no file can be created in it."""
    result = _tried(directory, NAME, writes=writes)
    if result is None:  # another job examines the directory at the same time
        result = _tried(directory, _free_name(), writes=writes)
    if result is not None and not result.lacking:  # else closing is assumed to change the times
        _learn_times(directory)
    return result


def _tried(directory: int, name: bytes, *, writes: bool) -> Examined | None:
    """Create, write, rename and remove the file ``name``, and return the result.

    Return None if the file could not be created, or if another job has removed it.
    """
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
    """As ``_tried``, after the error ``refused``: create a file whose name has no leading dot."""
    name, lacking = _free_name().removeprefix(b"."), _lacking("refuses names with a leading dot", refused)
    if refused.errno not in _NAME_REFUSED:
        return None
    try:
        abandon(open_patiently(name, NEW, 0o600, dir_fd=directory))
    except OSError:
        return None
    return _removed(directory, name, lacking)


def _removed(directory: int, name: bytes, lacking: str) -> Examined:
    """Remove the test file, and return the result of the examination."""
    try:
        remove(directory, name)
    except Problem as problem:
        return Examined(lacking or _lacking("cannot remove files", problem), _path(directory, name))
    return Examined(lacking)


def _path(directory: int, name: bytes) -> str:
    """Return the path of ``name`` in the open directory, for a message."""
    return shown(os.path.join(os.readlink(b"/proc/self/fd/%d" % directory), name))


def _created(directory: int, name: bytes) -> int:
    """Create the test file ``name``, and remove one that a killed process has left behind.

    Raise ``OSError``; raise ``Problem`` if the old file cannot be removed.
    """
    with suppress(FileExistsError):
        return open_patiently(name, NEW, 0o600, dir_fd=directory)
    remove(directory, name)
    return open_patiently(name, NEW, 0o600, dir_fd=directory)


def _written(descriptor: int, *, writes: bool) -> str:
    """Write to the test file and close it; return the operation that is not possible, or an empty text."""
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
    """Return the text of an ``operation`` that is not possible, with the reason."""
    return f"{operation} ({error.strerror})"
