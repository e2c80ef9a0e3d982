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
from pcopy.fsio.temporary import NEW, PREFIX
from pcopy.named import NamedTuple

_UNSUPPORTED = frozenset(
    (
        *(errno.ENOSYS, errno.EOPNOTSUPP, errno.EPERM, errno.EACCES, errno.EINVAL, errno.ESPIPE),
        errno.EXDEV,
    )
)
"""Errors of an operation that a file system does not support. A full disk, for instance, says nothing of that."""

_NAME_REFUSED = _UNSUPPORTED | {errno.ENOENT, errno.EIO}
_APART = 1 << 16
"""Where the last byte of the file is written, before the first one."""


class Examined(NamedTuple):
    """What is not possible in a directory, with the error (empty: nothing was found), and the name of a file that the
    examination has left there, since it could not be removed."""

    lacking: str = ""
    left: str = ""


def examine(path: bytes, job: str) -> Examined:
    """Find out what is not possible in the directory ``path``. ``job`` is part of the names that are used there.

    What cannot be found out, as on a full disk, is taken to be possible: the copy reports it. Raises nothing.
    """
    with suppress(OSError), held_open(os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)) as directory:
        before = os.fstat(directory)
        try:
            return _examined(directory, job.encode())
        finally:
            with suppress(OSError):  # whatever is refused later has left the directory as it was
                os.utime(directory, ns=(before.st_atime_ns, before.st_mtime_ns))
    return Examined()


def _examined(directory: int, job: bytes) -> Examined:
    stem = b"%s%s-1-0." % (PREFIX, job)  # ``remove_leftovers`` finds what a kill leaves
    name = stem + b"made"
    try:
        descriptor = os.open(name, NEW, 0o600, dir_fd=directory)
    except OSError as error:
        plain = name.removeprefix(b".")
        if error.errno not in _NAME_REFUSED or not _is_makeable(directory, plain):
            return Examined()
        return Examined(_told("refuses names with a leading dot", error), _removed(directory, plain))
    lacking = ""
    try:
        os.ftruncate(descriptor, _APART + 1)
        os.pwrite(descriptor, b"1", _APART)
        os.pwrite(descriptor, b"0", 0)
        closing, descriptor = descriptor, -1
        os.close(closing)  # some file systems report only here what they do not support
    except OSError as error:
        if error.errno in _UNSUPPORTED:
            lacking = _told("accepts writes only in order, to new files", error)
    if descriptor >= 0:
        abandon(descriptor)
    if not lacking:
        renamed = stem + b"renamed"
        try:
            os.rename(name, renamed, src_dir_fd=directory, dst_dir_fd=directory)
            name = renamed
        except OSError as error:
            if error.errno in _UNSUPPORTED:
                lacking = _told("cannot rename files", error)
    return Examined(lacking, _removed(directory, name))


def _is_makeable(directory: int, name: bytes) -> bool:
    """Create an empty file; return True if that was possible."""
    try:
        os.close(os.open(name, NEW, 0o600, dir_fd=directory))
    except OSError:
        return False
    return True


def _removed(directory: int, name: bytes) -> str:
    """Remove a file; return its name and why not, if it stays."""
    try:
        os.unlink(name, dir_fd=directory)
    except FileNotFoundError:
        pass
    except OSError as error:
        return f"{os.fsdecode(name)} ({error.strerror})"
    return ""


def _told(what: str, error: OSError) -> str:
    return f"{what} ({error.strerror})"
