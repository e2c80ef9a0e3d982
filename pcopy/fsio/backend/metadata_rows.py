"""Processes the batches ``SetMetadataBatch`` and ``SetUniformMetadataBatch`` in the Python backend: sets owners,
groups, modes and ACLs of existing items, one by one.

Each item is opened with O_PATH and changed through that descriptor. So the item that changes is the one that was
examined, even if its name refers to another item by then. Python has no call that changes an item through an O_PATH
descriptor, so the item is named by the path /proc/self/fd/N.

System calls per item: open, fstat, chown, chmod, a stat if a set-gid bit was set, close.
"""

from __future__ import annotations

import errno
import os
import stat

from pcopy.fsio.attribute_names import ACCESS_ACL_XATTR, DEFAULT_ACL_XATTR
from pcopy.fsio.attributes import remove_xattr
from pcopy.fsio.backend.batches import (
    UNCHANGED_VALUE,
    BatchResult,
    SetMetadataBatch,
    SetUniformMetadataBatch,
    SetUniformMetadataResult,
)
from pcopy.fsio.backend.columns import (
    MODE_COLUMN,
    SIZE_COLUMN,
    BatchOutcomeColumns,
    ItemStatusColumns,
    OutcomeCode,
    unpack_names,
)
from pcopy.fsio.backend.item_rows import ChangeItemsBatchProcessor
from pcopy.fsio.close import closing_descriptor
from pcopy.fsio.nodes import open_o_path_descriptor, proc_path_of_descriptor
from pcopy.fsio.problem import Problem, errors_as_problem
from pcopy.fsio.source import status_of_open_item

_NO_PROC_TEXT = "/proc is not mounted, and this system has no other call that changes an open item: mount /proc"
_SET_GID_REFUSED_TEXT = "the set-gid bit was not set: only root and members of the group may set it"


class SetMetadataBatchProcessor(ChangeItemsBatchProcessor):
    """A ``SetMetadataBatch`` in progress: each item gets its own values."""

    def __init__(self, batch: SetMetadataBatch, result: BatchResult | None = None) -> None:
        self._batch = batch
        self._names = unpack_names(batch.names)
        self.result = result or BatchResult(BatchOutcomeColumns(len(batch)))

    def _change_item(self, row: int) -> OutcomeCode:
        batch, wanted = self._batch, self._batch.wanted
        with closing_descriptor(open_o_path_descriptor(batch.directory, self._names[row], on_source=False)) as item:
            status = status_of_open_item(item)
            if not (batch.rows.is_same_item(row, status) and batch.rows.has_owner_and_mode(row, status)):
                return OutcomeCode.DECIDE_AGAIN
            _set_owner_and_mode(item, wanted.uid[row], wanted.gid[row], wanted.mode[row])
            if batch.acls is not None:
                self._set_acls(
                    proc_path_of_descriptor(item), *batch.acls, is_directory=stat.S_ISDIR(batch.rows.mode[row])
                )
        return OutcomeCode.DONE

    def _set_acls(self, handle: bytes, access: bytes, default: bytes, *, is_directory: bool) -> None:
        with _proc_errors_as_problem(f"setxattr {ACCESS_ACL_XATTR}"):
            os.setxattr(handle, ACCESS_ACL_XATTR, access)
        if is_directory and default:
            with _proc_errors_as_problem(f"setxattr {DEFAULT_ACL_XATTR}"):
                os.setxattr(handle, DEFAULT_ACL_XATTR, default)
        elif is_directory:
            remove_xattr(handle, DEFAULT_ACL_XATTR)


class SetUniformMetadataBatchProcessor(ChangeItemsBatchProcessor):
    """A ``SetUniformMetadataBatch`` in progress: all items get the same owner and group, and modes by one table."""

    def __init__(self, batch: SetUniformMetadataBatch, result: SetUniformMetadataResult | None = None) -> None:
        self._batch = batch
        self._names = unpack_names(batch.names)
        self.result: SetUniformMetadataResult = result or SetUniformMetadataResult(
            BatchOutcomeColumns(len(batch)), ItemStatusColumns(len(batch), MODE_COLUMN | SIZE_COLUMN)
        )

    def _change_item(self, row: int) -> OutcomeCode:
        batch, seen = self._batch, self.result.observed
        with closing_descriptor(open_o_path_descriptor(batch.directory, self._names[row], on_source=False)) as item:
            status = status_of_open_item(item)
            mode = status.st_mode
            if not batch.rows.is_same_item(row, status) or stat.S_ISDIR(mode):
                return OutcomeCode.DECIDE_AGAIN
            seen.mode[row] = mode
            seen.size[row] = status.st_size if stat.S_ISREG(mode) else 0
            uid = UNCHANGED_VALUE if batch.uid == status.st_uid else batch.uid
            gid = UNCHANGED_VALUE if batch.gid == status.st_gid else batch.gid
            bits = stat.S_IMODE(mode if (uid, gid) == (UNCHANGED_VALUE, UNCHANGED_VALUE) else mode_after_chown(mode))
            wanted = UNCHANGED_VALUE if stat.S_ISLNK(mode) or batch.modes[bits] == bits else batch.modes[bits]
            if (uid, gid, wanted) == (UNCHANGED_VALUE, UNCHANGED_VALUE, UNCHANGED_VALUE):
                return OutcomeCode.SKIPPED
            _set_owner_and_mode(item, uid, gid, wanted)
        return OutcomeCode.DONE


def metadata_batch_processor(
    batch: SetMetadataBatch | SetUniformMetadataBatch,
) -> SetMetadataBatchProcessor | SetUniformMetadataBatchProcessor:
    """Return the object that processes the rows (items) of ``batch`` in the Python backend."""
    return (
        SetMetadataBatchProcessor(batch)
        if isinstance(batch, SetMetadataBatch)
        else SetUniformMetadataBatchProcessor(batch)
    )


def mode_after_chown(mode: int) -> int:
    """Return the mode that an item with the mode ``mode`` has after a change of its owner or group.

    The operating system clears the set-uid and set-gid bits of files then. It keeps a set-gid bit without execute
    permission for the group, which marks a file for mandatory locking.
    """
    if stat.S_ISDIR(mode) or stat.S_ISLNK(mode):
        return mode
    mode &= ~stat.S_ISUID
    return mode & ~stat.S_ISGID if mode & stat.S_IXGRP else mode


class _proc_errors_as_problem(errors_as_problem):  # noqa: N801 (like ``errors_as_problem``)
    """Context manager for a call with a path below /proc/self/fd. It turns an ``OSError`` into a ``Problem``, as its
    base class does, but ENOENT into a ``Problem`` with ENOSYS which says that /proc is not mounted.

    The item exists, because it is open. So ENOENT must not be reported as an item that was removed in the meantime.
    """

    __slots__ = ()

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, OSError) and error.errno == errno.ENOENT:
            raise Problem(self._operation, errno.ENOSYS, text=_NO_PROC_TEXT) from error
        super().__exit__(kind, error, trace)


def _set_owner_and_mode(item: int, uid: int, gid: int, mode: int) -> None:
    """Set owner, group and mode of the item that the O_PATH descriptor ``item`` has open; a value of
    ``UNCHANGED_VALUE`` is not set. Raise ``Problem`` if that fails.
    """
    # The owner is set first, because the operating system clears set-id bits when the owner changes.
    owner = -1 if uid == UNCHANGED_VALUE else uid, -1 if gid == UNCHANGED_VALUE else gid
    if owner != (-1, -1):
        with _proc_errors_as_problem("chown"):
            os.chown(proc_path_of_descriptor(item), *owner)
    if mode != UNCHANGED_VALUE:
        with _proc_errors_as_problem("chmod"):
            os.chmod(proc_path_of_descriptor(item), mode)
        if mode & stat.S_ISGID and stat.S_IMODE(status_of_open_item(item).st_mode) != mode:
            raise Problem("chmod", errno.EPERM, text=_SET_GID_REFUSED_TEXT)
