"""What the server of a destination makes of a new file: the mode and owner that it shows, and the time after the close.

Servers may show other modes and owners than were set (CIFS, NFS with root_squash, mount options of FUSE), and may set
the time of modification when a written file is closed. One small temporary file shows that. Each fact is found once for
each file system, by its st_dev, that this process writes to.
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
"""Errors of servers on which no temporary file can be made."""

_PAST = 10**18
_DAY = 86_400 * 10**9
"""A time in 2001, in nanoseconds since 1970, which all file systems can hold; and how exact such a time may be."""

_MODE = 0o600
"""The mode that a new file is made with (``pcopy.fsio.temporary.create``)."""


class NewFileShows(NamedTuple):
    """The permission bits and the owner that stat(2) shows for a new file of this process."""

    mode: int
    uid: int

    @property
    def has_other_mode(self) -> bool:
        return self.mode != _MODE

    @property
    def has_other_owner(self) -> bool:
        return self.uid != os.geteuid()


_shown: dict[int, NewFileShows] = {}
"""By the st_dev of the directory."""


def shown_of_new_file(directory: int, temporary: bytes) -> NewFileShows:
    """Return what stat(2) shows for a new file in ``directory``.

    The first time on its file system, such a file is made as ``temporary``, which must be free, and removed. Raises
    ``Problem``.
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
    """Add what the open new file ``made`` shows. Raises ``Problem``."""
    status = status_of(made)
    _shown[device] = NewFileShows(stat.S_IMODE(status.st_mode), status.st_uid)


def looks_new(directory: int, status: os.stat_result, temporary: bytes) -> bool:
    """Return True if ``status`` shows the type, mode and owner of a new file in ``directory``.

    ``temporary``: as in ``shown_of_new_file``, which is asked only if these are not the ones that were set. Raises
    ``Problem``.
    """
    if is_undressed(status) or not stat.S_ISREG(status.st_mode):
        return stat.S_ISREG(status.st_mode)
    mode, uid = shown_of_new_file(directory, temporary)
    return shown_by_server(status) == (stat.S_IFREG | mode, uid)


def learn_times(directory: int, device: int, temporary: bytes) -> None:
    """Find out if the server of ``directory``, which is on ``device``, sets the time of modification of a file when the
    file is closed (``pcopy.fsio.close.late_times``).

    A file is made as ``temporary``, which must be free, written, given a time in the past, closed, examined and
    removed. If that fails, the next directory is tried, unless such a file cannot be made on this server at all. Raises
    ``Problem`` if the file cannot be removed.
    """
    try:
        made = create(directory, temporary)
    except Problem as problem:
        if problem.errno in _NEVER_MADE:
            late_times[device] = False
        return
    try:
        late_times[device] = _is_moved_by_close(made, device)
    except OSError:  # as of the files that follow, which report it
        return
    finally:
        remove(directory, temporary)


def _is_moved_by_close(made: int, device: int) -> bool:
    """Write to the new file ``made``, give it a time and close it; return True if it has another time then."""
    try:
        _add(device, made)
        held = open_patiently(b"/proc/self/fd/%d" % made, os.O_PATH | os.O_CLOEXEC)
        with held_open(held):
            os.write(made, b"pcopy")
            os.utime(made, ns=(_PAST, _PAST))
            closed, made = made, -1
            os.close(closed)
            return libc.mtime_of(held) - _PAST > _DAY
    finally:
        if made >= 0:
            abandon(made)
