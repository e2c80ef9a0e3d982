"""Writing over existing files (``--inplace``), instead of replacing them by new ones.

Only a regular file with a single link is written over, and only the one that was looked at. Before it is emptied it is
marked (``pcopy.fsio.half_written``) and made ours and nobody else's, as a new file is: others may read the new
contents only when they are whole. The mark holds the file's owner, group and mode, for those that are not preserved.
"""

from __future__ import annotations

import errno
import os
import stat

from pcopy.fsio import half_written
from pcopy.fsio.attributes import Attributes, drop_other_xattrs
from pcopy.fsio.close import abandon, held_open
from pcopy.fsio.data import set_size
from pcopy.fsio.nodes import handle_of, open_node
from pcopy.fsio.patience import open_patiently
from pcopy.fsio.preserve import CAP_CHOWN, Preserve, capable
from pcopy.fsio.problem import MetadataProblem, Problem, failing
from pcopy.fsio.source import status_of
from pcopy.fsio.syncer import sync_written
from pcopy.named import NamedTuple

_FLAGS = os.O_WRONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
_NOT_OURS = (errno.EACCES, errno.EPERM, errno.ETXTBSY, errno.EAGAIN)  # EAGAIN: somebody has a lease on it
_NOT_THE_SAME = (errno.ENOENT, errno.ELOOP, errno.ENXIO, errno.EISDIR)


class Over(NamedTuple):
    """A file that is open for writing and empty; mode, owner and group are what it had before it was made ours."""

    descriptor: int
    before: tuple[int, int, int]


def open_over(
    directory: int,
    name: bytes,
    present: os.stat_result,
    source: os.stat_result,
    preserve: Preserve,
    job: str,
    temporary: bytes,
) -> Over | None:
    """The file ``name``, which had the status ``present``, marked as one that ``job`` writes over, and emptied.

    ``temporary`` is a free name. Raises ``Problem``. None where it has to be replaced: it is no regular file, has other
    links, is the ``source`` itself (reached through a symbolic link), may not be written, or is no longer what it was.
    """
    if not stat.S_ISREG(present.st_mode) or present.st_nlink != 1:
        return None
    identity = present.st_dev, present.st_ino
    if identity == (source.st_dev, source.st_ino):
        return None
    try:
        descriptor = open_patiently(name, _FLAGS, dir_fd=directory)
    except OSError as error:
        if error.errno in _NOT_OURS or error.errno in _NOT_THE_SAME:
            return None
        raise Problem.of("open", error) from error
    try:
        status = status_of(descriptor)
        is_same = (status.st_dev, status.st_ino) == identity and stat.S_ISREG(status.st_mode) and status.st_nlink == 1
        if not is_same or (status.st_uid != os.geteuid() and not capable(CAP_CHOWN)):
            abandon(descriptor)
            return None
        mark = half_written.before(directory, name, descriptor, status, job)
        half_written.leave(directory, name, descriptor, status, mark, temporary)
        if not _take(descriptor, status, preserve):
            half_written.clear(directory, name, descriptor)
            abandon(descriptor)
            return None
        set_size(descriptor, 0)
    except Problem:
        abandon(descriptor)
        raise
    return Over(descriptor, mark.before)


def _take(descriptor: int, status: os.stat_result, preserve: Preserve) -> bool:
    """Makes the file ours; False if that is not permitted. Raises ``Problem``.

    A group that is to stay does so for who could not give it back. With mode 0600 it is of no use meanwhile.
    """
    stays = not (preserve.ownership or preserve.chown[1] >= 0 or capable(CAP_CHOWN))
    ours = os.geteuid(), status.st_gid if stays else os.getegid()
    try:
        if (status.st_uid, status.st_gid) != ours:
            os.fchown(descriptor, *ours)
        os.fchmod(descriptor, 0o600)  # also where it stays as it is: who may not do that can't finish the file
    except OSError as error:
        if error.errno == errno.EPERM:
            return False
        raise Problem.of("chown", error) from error
    return True


def unmark(directory: int, name: bytes, inode: int, job: str, *, sync: bool) -> None:
    """The file ``name`` is whole: its contents are brought to stable storage if ``sync``, and the mark of ``job`` goes.

    If the name is another item's by now, no more than a file beside it goes, which tells of the one that was. Raises
    ``Problem``.
    """
    try:
        held = open_node(directory, name, on_source=False)
    except Problem as problem:
        if problem.errno == errno.ENOENT:
            half_written.drop_stale(directory, half_written.beside(name), job, is_filled=True)
            return
        raise
    with held_open(held), failing("chmod"):
        status = status_of(held)
        if status.st_ino != inode or not stat.S_ISREG(status.st_mode):
            half_written.drop_stale(directory, half_written.beside(name), job, is_filled=True)
            return
        try:
            _unmark(directory, name, held, sync)
        except Problem as problem:
            if problem.errno != errno.EACCES or status.st_uid != os.geteuid():
                raise
            handle, mode = handle_of(held), stat.S_IMODE(status.st_mode)
            os.chmod(handle, mode | 0o600)  # who is not root must be able to write to it, for a moment
            try:
                _unmark(directory, name, held, sync)
            finally:
                os.chmod(handle, mode)


def _unmark(directory: int, name: bytes, held: int, sync: bool) -> None:
    with failing("open"):
        descriptor = open_patiently(handle_of(held), os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    with held_open(descriptor):
        if sync:
            with failing("fsync"):
                sync_written(descriptor)
        half_written.clear(directory, name, descriptor)


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
    plain = problem.plain
    return Problem.from_plain((*plain[:2], text, *plain[3:]))
