"""Identities of items, by which an item is recognised later, by another rank or in another run.

An inode number alone is not enough, since ext4 reuses the number of a removed inode immediately. So an *identity*
consists of the mount code of the file system (``pcopy.fsio.mounts``), the inode number, and a *mark*. A later item with
the same number has another mark. The mark is made from the file handle (name_to_handle_at(2)), which contains the
inode's generation, or Lustre's FID: nobody can choose it, any user may read it, and all hosts get the same. If the file
system has no handles, the mark is made from the time of birth, which comes from a coarse clock. If it has neither, the
mark is empty, and two identities with the same number cannot be told apart.

``identity_of`` and ``mark_of`` take an open descriptor, O_PATH or not (some 3 us). While a descriptor is open, its
inode number is not reused; so a name with the same st_dev and st_ino leads to that very item. An identity is needed for
items that are opened again later. Compare identities with ``compare``, which has a third answer for "unknown". ``==``
only shows whether two values are equal.

Rules:
- FUSE assigns new inode numbers whenever the operating system has dropped an inode from its cache, and its handles
  contain the number. So no handle is read there.
- On an overlay, handle and time of birth of an item in a lower layer change with the first write to it. So only items
  that this job has created (``made``) have a mark there: they never were in a lower layer.
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
    """Result of comparing two identities.

    - ``SAME``: they are those of one item.
    - ``OTHER``: they are those of two items.
    - ``UNTOLD``: unknown; the inode numbers are equal, and at least one mark is missing or cannot be compared.
    """

    SAME = "same"
    OTHER = "other"
    UNKNOWN = "untold"


class Identity(NamedTuple):
    """Mount code, inode number and mark of an item (see the module's description).

    It is made of primitives, since it is sent in tasks, and means the same on all hosts.
    """

    mount_code: int
    inode: int
    mark: bytes = b""

    def compare(self, other: Identity) -> IdentityComparison:
        """Compare with the identity ``other``, which was read at another time or by another host."""
        if self[:2] != other[:2]:
            return IdentityComparison.OTHER
        if not self.mark or _mark_kind(self.mark) != _mark_kind(other.mark):
            return IdentityComparison.UNKNOWN
        return IdentityComparison.SAME if self.mark == other.mark else IdentityComparison.OTHER


def identity_of(descriptor: int, status: os.stat_result, mount: int, *, created_by_job: bool) -> Identity:
    """Return the identity of an open item.

    Args:
        status: its status.
        mount: mount code of the item, or of the directory that contains it.
        created_by_job: True if this job created the item; other items have no mark on an overlay.
    """
    return Identity(mount, status.st_ino, mark_of(descriptor, created_by_job=created_by_job))


def mark_of(descriptor: int, *, created_by_job: bool) -> bytes:
    """Return the identity mark of an open item, made from its file handle or time of birth. Raises nothing.

    It is empty if neither is available. ``created_by_job``: True if this job created the item.
    """
    try:
        handle = libc.file_handle(descriptor)
    except OSError:
        handle = b""
    kind = handle[:4]  # the handle's type
    # A handle of FUSE contains the inode number, which changes: the time of birth is used there.
    if handle and not (kind == _FUSE_OR_XFS_HANDLE and may_be_on_file_system(FUSE_TYPE, descriptor)):
        return b"" if kind in _OVERLAY_HANDLES and not created_by_job else b"H" + handle
    if not created_by_job and may_be_on_file_system(OVERLAY_TYPE, descriptor):
        return b""
    born = birth_time(descriptor)
    return b"B%d" % born if born else b""


def _mark_kind(mark: bytes) -> bytes:
    """Return the kind of a mark; marks of different kinds cannot be compared.

    Hosts differ in kind if one of them cannot read handles, or has mounted the file system in another way.
    """
    return b"%b%d" % (mark[:5], len(mark)) if mark[:1] == b"H" else mark[:1]


def birth_time(directory: int, name: bytes = b"") -> int:
    """Return the time of birth of ``name`` in ``directory`` (a descriptor), or of ``directory`` if no name is given.

    It is in nanoseconds since 1970, and nothing that is done to the item later changes it. It is 0 if it is not
    available.
    """
    try:
        return libc.birth_time(directory, name)
    except OSError:
        return 0


def may_be_on_file_system(kind: int, descriptor: int) -> bool:
    """Return True if the open item is on a file system of type ``kind`` (f_type), or if the type cannot be read."""
    try:
        return libc.type_of_file_system(descriptor) == kind
    except OSError:
        return True


def file_system_id(descriptor: int) -> tuple[int, int]:
    """Return type and id of the file system of an open item, which can be compared later and on another host.

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
