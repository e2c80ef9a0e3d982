"""Properties that the server of a destination gives to new files: the mode and owner that stat(2) shows, and late
times.

Servers may show other modes and owners than were set (CIFS, NFS with root_squash, mount options of FUSE). They may also
set the modification time when a written file is closed. One small temporary file shows that. Each fact is determined
once for each file system, by its st_dev, that this process writes to.
"""

from __future__ import annotations

import errno
import os
import stat

from pcopy import libc
from pcopy.fsio.close import abandon, held_open, late_times
from pcopy.fsio.patience import open_patiently
from pcopy.fsio.problem import Problem
from pcopy.fsio.source import status_of
from pcopy.fsio.temporary import create, is_undressed, remove, shown_by_server
from pcopy.named import NamedTuple

_NEVER_MADE = (errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP)
"""Errors that mean that no temporary file can ever be created on this server."""

_PAST = 10**18
"""A time in 2001, in nanoseconds since 1970, that all file systems can store."""
_DAY = 86_400 * 10**9
"""Nanoseconds by which a stored time may differ from the one that was set."""

_MODE = 0o600
"""Mode with which a new file is created (``pcopy.fsio.temporary.create_private_file``)."""


class NewFileShows(NamedTuple):
    """The permission bits and the owner that stat(2) shows for a new file of this process."""

    mode: int
    uid: int

    @property
    def has_other_mode(self) -> bool:
        """True if stat(2) shows another mode than the one with which the file was created."""
        return self.mode != _MODE

    @property
    def has_other_owner(self) -> bool:
        """True if stat(2) shows another owner than the effective user of this process."""
        return self.uid != os.geteuid()


_shown: dict[int, NewFileShows] = {}
"""The results so far, by the st_dev of the directory."""


def shown_of_new_file(directory: int, temporary: bytes) -> NewFileShows:
    """Return the mode and owner that stat(2) shows for a new file in ``directory``. Raise ``Problem``.

    The first call for a file system creates such a file as ``temporary``, which must be free, and removes it.
    """
    device = status_of(directory).st_dev
    if device not in _shown:
        try:
            made = create(directory, temporary)
        except Problem:  # the file system may refuse names with a leading dot
            temporary = temporary.removeprefix(b".")
            made = create(directory, temporary)
        try:
            _add(device, made)
        finally:
            abandon(made)
            remove(directory, temporary)
    return _shown[device]


def _add(device: int, made: int) -> None:
    """Record the mode and owner that stat(2) shows for the new file ``made``, an open descriptor. Raise ``Problem``."""
    status = status_of(made)
    _shown[device] = NewFileShows(stat.S_IMODE(status.st_mode), status.st_uid)


def looks_new(directory: int, status: os.stat_result, temporary: bytes) -> bool:
    """Return True if ``status`` shows the type, mode and owner of a new file in ``directory``. Raise ``Problem``.

    ``temporary`` is a free name, as for ``shown_of_new_file``, which is called only if mode and owner are not the ones
    that were set.
    """
    if is_undressed(status) or not stat.S_ISREG(status.st_mode):
        return stat.S_ISREG(status.st_mode)
    mode, uid = shown_of_new_file(directory, temporary)
    return shown_by_server(status) == (stat.S_IFREG | mode, uid)


def learn_times(directory: int, device: int, temporary: bytes) -> None:
    """Find out whether the server sets the modification time of a file when the file is closed.

    The result is recorded in ``pcopy.fsio.close.late_times``. A file is created as ``temporary``, which must be free,
    written, given a time in the past, closed, examined and removed. If that fails, the next directory is tried, unless
    such a file can never be created on this server. Raise ``Problem`` if the file cannot be removed.

    Args:
        directory: an open directory on the server.
        device: its st_dev.
        temporary: a free name.
    """
    try:
        made = create(directory, temporary)
    except Problem as problem:
        if problem.errno in _NEVER_MADE:
            late_times[device] = False
        return
    try:
        late_times[device] = _is_moved_by_close(made, device)
    except OSError:  # the files that are copied next meet the same error and report it
        return
    finally:
        remove(directory, temporary)


def _is_moved_by_close(made: int, device: int) -> bool:
    """Write to the new file ``made``, set its time and close it; return True if closing has changed the time."""
    try:
        _add(device, made)
        path_descriptor = open_patiently(b"/proc/self/fd/%d" % made, os.O_PATH | os.O_CLOEXEC)
        with held_open(path_descriptor):
            os.write(made, b"pcopy")
            os.utime(made, ns=(_PAST, _PAST))
            closed, made = made, -1
            os.close(closed)
            return libc.mtime_of(path_descriptor) - _PAST > _DAY
    finally:
        if made >= 0:
            abandon(made)
