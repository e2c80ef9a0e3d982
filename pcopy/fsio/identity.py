"""Identities of items (files, directories, links), by which a later task, another rank or another run recognises them.

An inode number alone is not enough, since ext4 reuses the number of a removed inode immediately. So an *identity*
consists of the mount code (a number for the file system, ``pcopy.fsio.mounts``), the inode number, and a *mark*, some
bytes. Any later item with the same inode number has another mark. The mark is made from the file handle
(name_to_handle_at(2)), which contains the inode's generation, or Lustre's FID: nobody can choose it, any user may read
it, and all hosts get the same. If the file system has no handles, the mark is made from the time of birth, which comes
from a coarse clock. If it has neither, the mark is empty, and two identities with the same number cannot be
distinguished.

``identity_of_open_item`` and ``identity_mark_of`` take an open descriptor, O_PATH or not (some 3 us). While a
descriptor is open, its inode number is not reused; so a name with the same st_dev and st_ino leads to that very item.
An identity is needed for items that are opened again later. Compare identities with ``compare_with_identity``, which
has a third result for "unknown". ``==`` only shows whether two values are equal.

Rules:
- FUSE assigns new inode numbers whenever the operating system has dropped an inode from its cache, and its handles
  contain the number. So no handle is read there.
- On an overlay, handle and time of birth of an item in a lower layer change with the first write to it. So only items
  that this job has created (``created_by_job``) have a mark there: they never were in a lower layer.
"""

from __future__ import annotations

import errno
import fcntl
import os
import struct
from enum import Enum

from pcopy import libc
from pcopy.fast_named_tuple import NamedTuple

FUSE_TYPE = libc.FUSE_TYPE
"""File system type of FUSE (f_type of statfs(2))."""
OVERLAY_TYPE = 0x794C7630
"""File system type of overlays (f_type of statfs(2))."""
XFS_TYPE = 0x58465342
"""File system type of XFS (f_type of statfs(2))."""

_XFS_IOC_FSGEOMETRY_V1 = 0x80705864  # supported by all Linux versions
_XFS_GEOMETRY_BYTES = 112
"""Size of struct xfs_fsop_geom_v1."""
_XFS_UUID_SLICE = slice(64, 80)  # in struct xfs_fsop_geom_v1

_HANDLE_TYPE = struct.Struct("=i")
_FUSE_OR_XFS_HANDLE = _HANDLE_TYPE.pack(0x81)  # FILEID_INO64_GEN, used by FUSE and XFS
_OVERLAY_HANDLES = (_HANDLE_TYPE.pack(0xF8), _HANDLE_TYPE.pack(0xFB))  # OVL_FILEID_V1 and V0


class IdentityComparison(Enum):
    """Result of comparing two identities of items (``ItemIdentity``).

    - ``SAME``: both identify the same item.
    - ``OTHER``: they identify two different items.
    - ``UNKNOWN``: mount code and inode number are equal, but a mark is missing, or the marks are of different kinds.
    """

    SAME = "same"
    OTHER = "other"
    UNKNOWN = "untold"


class ItemIdentity(NamedTuple):
    """Identifies an item: mount code (a number for its file system), inode number, and mark (bytes that differ for a
    later item with the same number; may be empty).

    An identity is sent to other ranks in tasks. It has the same meaning on all hosts.
    """

    mount_code: int
    inode: int
    mark: bytes = b""

    def compare_with_identity(self, other: ItemIdentity) -> IdentityComparison:
        """Return whether ``other``, which was read at another time or by another host, identifies the same item."""
        if self[:2] != other[:2]:
            return IdentityComparison.OTHER
        if not self.mark or _identity_mark_kind(self.mark) != _identity_mark_kind(other.mark):
            return IdentityComparison.UNKNOWN
        return IdentityComparison.SAME if self.mark == other.mark else IdentityComparison.OTHER


def identity_of_open_item(descriptor: int, status: os.stat_result, mount: int, *, created_by_job: bool) -> ItemIdentity:
    """Return the identity of an open item: mount code, inode number and mark.

    Args:
        status: its status.
        mount: mount code of the item, or of the directory that contains it.
        created_by_job: True if this job created the item; other items have no mark on an overlay.
    """
    return ItemIdentity(mount, status.st_ino, identity_mark_of(descriptor, created_by_job=created_by_job))


def identity_mark_of(descriptor: int, *, created_by_job: bool) -> bytes:
    """Return the identity mark of an open item, bytes that distinguish it from a later item with the same inode number.
    They are made from its file handle or its time of birth. Raise nothing.

    The mark is empty if neither is available. ``created_by_job``: True if this job created the item; other items have
    no mark on an overlay file system.
    """
    try:
        handle = libc.kernel_file_handle(descriptor)
    except OSError:
        handle = b""
    kind = handle[:4]  # the handle's type
    # A handle of FUSE contains the inode number, which changes: the time of birth is used there.
    if handle and not (kind == _FUSE_OR_XFS_HANDLE and may_be_on_file_system_type(FUSE_TYPE, descriptor)):
        return b"" if kind in _OVERLAY_HANDLES and not created_by_job else b"H" + handle
    if not created_by_job and may_be_on_file_system_type(OVERLAY_TYPE, descriptor):
        return b""
    born = birth_time(descriptor)
    return b"B%d" % born if born else b""


def _identity_mark_kind(mark: bytes) -> bytes:
    """Return the kind of an identity mark: file handle (with the handle's type and length) or time of birth. Marks of
    different kinds cannot be compared.

    Two hosts make marks of different kinds if one of them cannot read file handles, or has mounted the file system in
    another way.
    """
    return b"%b%d" % (mark[:5], len(mark)) if mark[:1] == b"H" else mark[:1]


def birth_time(directory: int, name: bytes = b"") -> int:
    """Return the time of birth of the item ``name`` in an open ``directory``; if ``name`` is empty, that of the open
    item ``directory`` itself.

    The time is in nanoseconds since 1970; 0: not available. No later change of the item changes it.
    """
    try:
        return libc.birth_time(directory, name)
    except OSError:
        return 0


def may_be_on_file_system_type(kind: int, descriptor: int) -> bool:
    """Return True if an open item is on a file system of the type ``kind`` (f_type of statfs(2)), or if the type cannot
    be read.
    """
    try:
        return libc.type_of_file_system(descriptor) == kind
    except OSError:
        return True


def file_system_id(descriptor: int) -> tuple[int, int]:
    """Return f_type and an id of the file system of an open item. Both can be compared later and on another host.

    A device number is not suitable, since a file system may get another one when it is mounted again. The id is the
    fsid of statfs(2), which does not change for most types. XFS derives the fsid from the device number, so the UUID
    serves as the id there. (It would not for other types: all subvolumes and snapshots of one btrfs have one UUID, and
    differ only in their fsid.)

    The id is 0 if it cannot be read: XFS requires ``descriptor`` to be open for reading, not O_PATH. Raise ``OSError``.
    """
    kind = libc.type_of_file_system(descriptor)
    if kind != XFS_TYPE:
        return kind, _fsid(descriptor)
    try:
        geometry = fcntl.ioctl(descriptor, _XFS_IOC_FSGEOMETRY_V1, bytes(_XFS_GEOMETRY_BYTES))
    except OSError as error:
        if error.errno != errno.EBADF:  # O_PATH descriptor
            raise
        return kind, 0
    return kind, int.from_bytes(geometry[_XFS_UUID_SLICE], "big")


def _fsid(descriptor: int) -> int:
    """Return the fsid of statfs(2), or 0 where that is not implemented."""
    try:
        return os.fstatvfs(descriptor).f_fsid
    except OSError as error:
        if error.errno != errno.ENOSYS:
            raise
        return 0
