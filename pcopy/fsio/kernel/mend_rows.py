"""The rows of ``Mend`` and ``MendPlain`` in the Python backend: sets owners, groups, modes and ACLs, item by item.

Each item is opened with O_PATH and changed through that descriptor. So the item that changes is the one that was
examined, even if its name refers to another item by then. Python has no call that changes an O_PATH descriptor; the
descriptor is named by its path below /proc/self/fd.

System calls per item: open, fstat, chown, chmod, a stat if a set-gid bit was set, close.
"""

from __future__ import annotations

import errno
import os
import stat

from pcopy.fsio.attribute_names import ACCESS_ACL, DEFAULT_ACL
from pcopy.fsio.attributes import drop_xattr
from pcopy.fsio.close import held_open
from pcopy.fsio.kernel.batches import KEEP, Judged, Mend, Mended, MendPlain
from pcopy.fsio.kernel.columns import MODE, SIZE, Code, Rows, Verdicts, unpack_names
from pcopy.fsio.kernel.item_rows import Changing
from pcopy.fsio.nodes import handle_of, open_node
from pcopy.fsio.problem import Problem, failing
from pcopy.fsio.source import status_of

_NO_PROC = "/proc is not mounted, and this system has no other call that changes an open item: mount /proc"
_NOT_SET = "the set-gid bit was not set: only root and members of the group may set it"


class MendRows(Changing):
    """A ``Mend`` batch in progress: each item gets its own values."""

    def __init__(self, batch: Mend, result: Judged | None = None) -> None:
        self._batch = batch
        self._names = unpack_names(batch.names)
        self.result = result or Judged(Verdicts(len(batch)))

    def _change(self, row: int) -> Code:
        batch, wanted = self._batch, self._batch.wanted
        with held_open(open_node(batch.directory, self._names[row], on_source=False)) as item:
            status = status_of(item)
            if not (batch.rows.is_item(row, status) and batch.rows.has_owner_and_mode(row, status)):
                return Code.ANEW
            _give(item, wanted.uid[row], wanted.gid[row], wanted.mode[row])
            if batch.acls is not None:
                self._give_acls(handle_of(item), *batch.acls, is_directory=stat.S_ISDIR(batch.rows.mode[row]))
        return Code.DONE

    def _give_acls(self, handle: bytes, access: bytes, default: bytes, *, is_directory: bool) -> None:
        with _through_proc(f"setxattr {ACCESS_ACL}"):
            os.setxattr(handle, ACCESS_ACL, access)
        if is_directory and default:
            with _through_proc(f"setxattr {DEFAULT_ACL}"):
                os.setxattr(handle, DEFAULT_ACL, default)
        elif is_directory:
            drop_xattr(handle, DEFAULT_ACL)


class MendPlainRows(Changing):
    """A ``MendPlain`` batch in progress: all items get the same owner and group, and modes by one table."""

    def __init__(self, batch: MendPlain, result: Mended | None = None) -> None:
        self._batch = batch
        self._names = unpack_names(batch.names)
        self.result: Mended = result or Mended(Verdicts(len(batch)), Rows(len(batch), MODE | SIZE))

    def _change(self, row: int) -> Code:
        batch, seen = self._batch, self.result.seen
        with held_open(open_node(batch.directory, self._names[row], on_source=False)) as item:
            status = status_of(item)
            mode = status.st_mode
            if not batch.rows.is_item(row, status) or stat.S_ISDIR(mode):
                return Code.ANEW
            seen.mode[row] = mode
            seen.size[row] = status.st_size if stat.S_ISREG(mode) else 0
            uid = KEEP if batch.uid == status.st_uid else batch.uid
            gid = KEEP if batch.gid == status.st_gid else batch.gid
            bits = stat.S_IMODE(mode if (uid, gid) == (KEEP, KEEP) else after_chown(mode))
            wanted = KEEP if stat.S_ISLNK(mode) or batch.modes[bits] == bits else batch.modes[bits]
            if (uid, gid, wanted) == (KEEP, KEEP, KEEP):
                return Code.SKIPPED
            _give(item, uid, gid, wanted)
        return Code.DONE


def mending(batch: Mend | MendPlain) -> MendRows | MendPlainRows:
    """Return the code that processes the rows of the batch."""
    return MendRows(batch) if isinstance(batch, Mend) else MendPlainRows(batch)


def after_chown(mode: int) -> int:
    """Return the mode that the operating system leaves after a change of owner or group.

    It clears the set-uid and set-gid bits of files. It keeps a set-gid bit without execute permission for the group,
    which marks a file for mandatory locking.
    """
    if stat.S_ISDIR(mode) or stat.S_ISLNK(mode):
        return mode
    mode &= ~stat.S_ISUID
    return mode & ~stat.S_ISGID if mode & stat.S_IXGRP else mode


class _through_proc(failing):  # noqa: N801 (as ``failing``)
    """The context manager ``failing`` for a call whose path is a descriptor below /proc: ENOENT means that /proc is not
    mounted.

    The item exists, because it is open. So ENOENT must not be reported as an item that was removed meanwhile; a
    ``Problem`` with ENOSYS is raised instead.
    """

    __slots__ = ()

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, OSError) and error.errno == errno.ENOENT:
            raise Problem(self._operation, errno.ENOSYS, text=_NO_PROC) from error
        super().__exit__(kind, error, trace)


def _give(item: int, uid: int, gid: int, mode: int) -> None:
    """Set owner, group and mode of an open item, except those that are ``KEEP``. Raise ``Problem`` if that fails."""
    # The owner is set first, because the operating system clears set-id bits when the owner changes.
    owner = -1 if uid == KEEP else uid, -1 if gid == KEEP else gid
    if owner != (-1, -1):
        with _through_proc("chown"):
            os.chown(handle_of(item), *owner)
    if mode != KEEP:
        with _through_proc("chmod"):
            os.chmod(handle_of(item), mode)
        if mode & stat.S_ISGID and stat.S_IMODE(status_of(item).st_mode) != mode:
            raise Problem("chmod", errno.EPERM, text=_NOT_SET)
