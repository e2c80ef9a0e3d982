"""Finds out which mode and owner a server shows for new files, and whether it changes a file's times when the file is
closed.

Servers may show other modes and owners than were set (CIFS, NFS with root_squash, mount options of FUSE). They may also
set the modification time when a written file is closed. A small temporary file shows that. Each property is determined
once for each file system (st_dev) to which this process writes.
"""

from __future__ import annotations

import errno
import os
import stat
from contextlib import suppress

from pcopy import libc
from pcopy.fast_named_tuple import NamedTuple
from pcopy.fsio.close import close_after_failure, closing_descriptor, is_mtime_set_on_close
from pcopy.fsio.problem import Problem
from pcopy.fsio.retries import open_with_retries
from pcopy.fsio.source import status_of_open_item
from pcopy.fsio.temporary import (
    create_private_file,
    is_private_file,
    remove_item_if_present,
    unusual_status_of_new_file,
)

_CREATE_UNSUPPORTED_ERRNOS = (errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP)
"""Errors of open(2) which mean that no temporary file can be created on this server, now or later."""

_PAST_TIME = 10**18
"""A time in 2001, in nanoseconds since 1970, that all file systems can store."""
_TIME_TOLERANCE = 86_400 * 10**9
"""Nanoseconds by which a stored time may differ from the one that was set, because the file system rounds times."""

_NEW_FILE_MODE = 0o600
"""Mode with which a new file is created (``pcopy.fsio.temporary.create_private_file``)."""


class NewFileStatus(NamedTuple):
    """What stat(2) shows for a new file of this process.

    Fields:
        mode: its permission bits.
        uid: its owner.
        has_unexpected_mode: True if stat(2) shows another mode than the one that was requested, also after chmod(2).
            An inherited ACL only changes the mode with which a file is created.
    """

    mode: int
    uid: int
    has_unexpected_mode: bool

    @property
    def has_unexpected_owner(self) -> bool:
        """True if stat(2) shows another owner than the effective user of this process."""
        return self.uid != os.geteuid()


_known_new_file_status: dict[int, NewFileStatus] = {}
"""Mode and owner that stat(2) shows for new files, by the st_dev of the file systems for which this is known."""


def new_file_status(directory: int, temporary: bytes) -> NewFileStatus:
    """Return the mode and owner that stat(2) shows for a new file in the open ``directory``. They may differ from the
    ones that were requested, because some servers show others. Raise ``Problem``.

    The first call for a file system creates such a file as ``temporary``, which must be free, and removes it.
    """
    device = status_of_open_item(directory).st_dev
    if device not in _known_new_file_status:
        try:
            made = create_private_file(directory, temporary)
        except Problem:  # the file system may refuse names with a leading dot
            temporary = temporary.removeprefix(b".")
            made = create_private_file(directory, temporary)
        try:
            _record_new_file_status(device, made)
        finally:
            close_after_failure(made)
            remove_item_if_present(directory, temporary)
    return _known_new_file_status[device]


def _record_new_file_status(device: int, made: int) -> None:
    """Record, for the file system with the st_dev ``device``, the mode and owner that stat(2) shows for the new file
    ``made``, an open descriptor. Raise ``Problem``.
    """
    status = status_of_open_item(made)
    changed = status
    if stat.S_IMODE(status.st_mode) != _NEW_FILE_MODE:
        with suppress(OSError):
            os.fchmod(made, _NEW_FILE_MODE)
        changed = status_of_open_item(made)
    _known_new_file_status[device] = NewFileStatus(
        stat.S_IMODE(status.st_mode), status.st_uid, stat.S_IMODE(changed.st_mode) != _NEW_FILE_MODE
    )


def looks_like_new_file(directory: int, status: os.stat_result, temporary: bytes) -> bool:
    """Return True if the type, mode and owner in ``status`` are those that the server shows for a new file in the open
    ``directory``. Raise ``Problem``.

    ``temporary``: a free name. A file with that name is created and removed if mode or owner in ``status`` are not the
    usual ones of a new file, to find out which ones the server shows.
    """
    if is_private_file(status) or not stat.S_ISREG(status.st_mode):
        return stat.S_ISREG(status.st_mode)
    shown = new_file_status(directory, temporary)
    return unusual_status_of_new_file(status) == (stat.S_IFREG | shown.mode, shown.uid)


def determine_if_close_sets_mtime(directory: int, device: int, temporary: bytes) -> None:
    """Find out whether the server sets the modification time of a file when the file is closed.

    The result is recorded in ``pcopy.fsio.close.is_mtime_set_on_close``. A file is created as ``temporary``, which must
    be free, written, given a time in the past, closed, examined and removed. If the file cannot be created or written,
    nothing is recorded, so that a later call with another directory tries again. If the server never supports such a
    file, the result is False. Raise ``Problem`` if the file cannot be removed.

    Args:
        directory: an open directory on the server.
        device: its st_dev.
        temporary: a free name.
    """
    try:
        made = create_private_file(directory, temporary)
    except Problem as problem:
        if problem.errno in _CREATE_UNSUPPORTED_ERRNOS:
            is_mtime_set_on_close[device] = False
        return
    try:
        is_mtime_set_on_close[device] = _test_whether_close_changes_mtime(made, device)
    except OSError:  # the files that are copied next meet the same error and report it
        return
    finally:
        remove_item_if_present(directory, temporary)


def _test_whether_close_changes_mtime(made: int, device: int) -> bool:
    """Write to the new file ``made`` (a descriptor), set its times to the past and close it. Return True if closing has
    changed the modification time. ``device`` is the st_dev of the file system. Raise ``OSError``.
    """
    try:
        _record_new_file_status(device, made)
        path_descriptor = open_with_retries(b"/proc/self/fd/%d" % made, os.O_PATH | os.O_CLOEXEC)
        with closing_descriptor(path_descriptor):
            os.write(made, b"pcopy")
            os.utime(made, ns=(_PAST_TIME, _PAST_TIME))
            closed, made = made, -1
            os.close(closed)
            return libc.mtime_on_server(path_descriptor) - _PAST_TIME > _TIME_TOLERANCE
    finally:
        if made >= 0:
            close_after_failure(made)
