"""Gives the rows of one batch other owners, groups, modes and ACLs, in plain Python, one after the other.

Each item is opened with O_PATH and changed through that descriptor: it is the item that was looked at, whatever its
name leads to by then. System calls per item: open, fstat, chown, chmod, stat after a set-gid bit, close. The
descriptor is named by its path below /proc, since Python has no call that takes an O_PATH descriptor.
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

_NO_PROC = "/proc is not mounted, and this kernel has no other call that changes an open item: mount it"
_NOT_SET = "the set-gid bit is for members of the group, and for root: it was not set"


class MendRows(Changing):
    """Each gets what is wanted for it."""

    def __init__(self, batch: Mend, result: Judged | None = None) -> None:
        self._batch = batch
        self._names = unpack_names(batch.names)
        self.result = result or Judged(Verdicts(len(batch)))

    def _change(self, row: int) -> Code:
        batch, wanted = self._batch, self._batch.wanted
        with held_open(open_node(batch.directory, self._names[row], on_source=False)) as held:
            status = status_of(held)
            if not (batch.rows.is_item(row, status) and batch.rows.has_owner_and_mode(row, status)):
                return Code.ANEW
            _give(held, wanted.uid[row], wanted.gid[row], wanted.mode[row])
            if batch.acls is not None:
                self._give_acls(handle_of(held), *batch.acls, is_directory=stat.S_ISDIR(batch.rows.mode[row]))
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
    """All get the same."""

    def __init__(self, batch: MendPlain, result: Mended | None = None) -> None:
        self._batch = batch
        self._names = unpack_names(batch.names)
        self.result: Mended = result or Mended(Verdicts(len(batch)), Rows(len(batch), MODE | SIZE))

    def _change(self, row: int) -> Code:
        batch, seen = self._batch, self.result.seen
        with held_open(open_node(batch.directory, self._names[row], on_source=False)) as held:
            status = status_of(held)
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
            _give(held, uid, gid, wanted)
        return Code.DONE


def mending(batch: Mend | MendPlain) -> MendRows | MendPlainRows:
    """What does the rows of a batch."""
    return MendRows(batch) if isinstance(batch, Mend) else MendPlainRows(batch)


def after_chown(mode: int) -> int:
    """What the kernel leaves of a mode when the owner or group changes. (A set-gid bit without x for the group marks a
    file for mandatory locks.)"""
    if stat.S_ISDIR(mode) or stat.S_ISLNK(mode):
        return mode
    mode &= ~stat.S_ISUID
    return mode & ~stat.S_ISGID if mode & stat.S_IXGRP else mode


class _through_proc(failing):  # noqa: N801 (as ``failing``)
    """As ``failing``, for a call whose path is the handle of a descriptor: ENOENT means that there is no /proc.

    The item exists, since it is open, so it must not be taken for one that was removed meanwhile.
    """

    __slots__ = ()

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, OSError) and error.errno == errno.ENOENT:
            raise Problem(self._operation, errno.ENOSYS, text=_NO_PROC) from error
        super().__exit__(kind, error, trace)


def _give(held: int, uid: int, gid: int, mode: int) -> None:
    """To what is open; raises ``Problem``."""
    owner = -1 if uid == KEEP else uid, -1 if gid == KEEP else gid
    if owner != (-1, -1):
        with _through_proc("chown"):
            os.chown(handle_of(held), *owner)
    if mode != KEEP:
        with _through_proc("chmod"):
            os.chmod(handle_of(held), mode)
        if mode & stat.S_ISGID and stat.S_IMODE(status_of(held).st_mode) != mode:
            raise Problem("chmod", errno.EPERM, text=_NOT_SET)
