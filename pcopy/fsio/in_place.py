"""Writing over existing files (``--inplace``), instead of replacing them by new ones.

Only a regular file with a single link is written over, and only the one that was looked at. Before it is emptied it is
made ours and nobody else's, as a new file is: whoever may read the new contents is decided when they are whole. But it
keeps all the time what is not preserved of owner, group and mode: after a crash nobody would know them any more.
"""

from __future__ import annotations

import errno
import os
import stat

from pcopy.fsio.attributes import SET_ID, Attributes, drop_other_xattrs
from pcopy.fsio.close import abandon
from pcopy.fsio.data import set_size
from pcopy.fsio.preserve import Preserve
from pcopy.fsio.problem import MetadataProblem, Problem
from pcopy.fsio.source import status_of

_FLAGS = os.O_WRONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
_NOT_OURS = (errno.EACCES, errno.EPERM, errno.ETXTBSY, errno.EAGAIN)  # EAGAIN: somebody has a lease on it
_NOT_THE_SAME = (errno.ENOENT, errno.ELOOP, errno.ENXIO, errno.EISDIR)


def open_over(
    directory: int, name: bytes, present: os.stat_result, source: os.stat_result, preserve: Preserve
) -> int | None:
    """A descriptor for writing of ``name``, which had the status ``present``, emptied; raises ``Problem``.

    None where it has to be replaced: it is no regular file, has other links, is the ``source`` itself (reached through
    a symbolic link), may not be written, or is no longer what it was.
    """
    if not stat.S_ISREG(present.st_mode) or present.st_nlink != 1:
        return None
    identity = present.st_dev, present.st_ino
    if identity == (source.st_dev, source.st_ino):
        return None
    try:
        descriptor = os.open(name, _FLAGS, dir_fd=directory)
    except OSError as error:
        if error.errno in _NOT_OURS or error.errno in _NOT_THE_SAME:
            return None
        raise Problem.of("open", error) from error
    try:
        status = status_of(descriptor)
        is_same = (status.st_dev, status.st_ino) == identity and stat.S_ISREG(status.st_mode) and status.st_nlink == 1
        if not is_same or not _take(descriptor, status, preserve):
            abandon(descriptor)
            return None
        set_size(descriptor, 0)
    except Problem:
        abandon(descriptor)
        raise
    return descriptor


def _take(descriptor: int, status: os.stat_result, preserve: Preserve) -> bool:
    """Makes the file ours, as far as it may be; False if that is not permitted. Raises ``Problem``."""
    uid, gid, mode = while_written(status, preserve)
    try:
        if (status.st_uid, status.st_gid) != (uid, gid):
            os.fchown(descriptor, uid, gid)
        os.fchmod(descriptor, mode)  # also where it stays as it is: who may not do that can't finish the file
    except OSError as error:
        if error.errno == errno.EPERM:
            return False
        raise Problem.of("chown", error) from error
    return True


def while_written(before: os.stat_result, preserve: Preserve) -> tuple[int, int, int]:
    """Owner, group and permission bits that the file has from before it is emptied until it is whole.

    Set-id bits were not given to contents that are neither old nor new.
    """
    ours = os.geteuid(), os.getegid()
    uid, gid = (
        our if preserve.ownership or told >= 0 else was
        for our, told, was in zip(ours, preserve.chown, (before.st_uid, before.st_gid), strict=True)
    )
    return uid, gid, 0o600 if preserve.mode else stat.S_IMODE(before.st_mode) & ~SET_ID


def status_before(over: tuple[int, ...]) -> os.stat_result:
    """The mode, owner and group that a file had before it was made ours, as a status with nothing else in it."""
    mode, uid, gid = over
    return os.stat_result((mode, 0, 0, 1, uid, gid, 0, 0, 0, 0))


def drop_old_xattrs(descriptor: int, attributes: Attributes, preserve: Preserve) -> None:
    """Removes what the file had and the source has not; raises ``MetadataProblem``, since its contents are whole."""
    try:
        drop_other_xattrs(descriptor, attributes, preserve)
    except Problem as problem:
        raise MetadataProblem(problem.operation, problem.errno or errno.EIO) from problem


def incomplete(problem: Problem) -> Problem:
    """``problem`` for a file that was being written over: what is there now is neither old nor new."""
    if isinstance(problem, MetadataProblem):
        return problem
    text = "the file in the destination is incomplete"
    if problem.strerror != os.strerror(problem.errno or 0):
        text = f"{problem.strerror}; {text}"
    return Problem(
        problem.operation, problem.errno or 0, on_source=problem.on_source, text=text, changed=problem.changed
    )
