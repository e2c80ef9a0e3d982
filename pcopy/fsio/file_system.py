"""Which file system does a descriptor lie on? The answer can be compared later, and on another host.

A device number can't: a file system may come back under another one. The file system's id (fsid, of statfs(2)) stays
the same with most kinds. But XFS makes it from the device number; there the UUID is taken. (Elsewhere it is not: all
subvolumes and snapshots of one btrfs have one UUID, and differ in their fsid only.)
"""

from __future__ import annotations

import errno
import fcntl
import os

from pcopy.libc import type_of_file_system

FUSE = 0x65735546
OVERLAY = 0x794C7630
XFS = 0x58465342
"""Types (f_type, statfs(2))."""

_XFS_IOC_FSGEOMETRY_V1 = 0x80705864  # the request that all kernels know
_GEOMETRY_BYTES = 112
"""Of struct xfs_fsop_geom_v1."""
_UUID = slice(64, 80)  # in struct xfs_fsop_geom_v1


def place_of(descriptor: int) -> tuple[int, int]:
    """Type and id of its file system: the fsid, on XFS the UUID as a number, 0 where that can't be told.

    XFS tells only those who may read ``descriptor``, or another item of the same file system. Raises ``OSError``.
    """
    kind = type_of_file_system(descriptor)
    return kind, _uuid_of_xfs(descriptor) if kind == XFS else os.fstatvfs(descriptor).f_fsid


def _uuid_of_xfs(descriptor: int) -> int:
    try:
        told = fcntl.ioctl(descriptor, _XFS_IOC_FSGEOMETRY_V1, bytes(_GEOMETRY_BYTES))
    except OSError as error:
        if error.errno != errno.EBADF:  # it is open for searching only
            raise
        return 0
    return int.from_bytes(told[_UUID], "big")
