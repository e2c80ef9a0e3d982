"""Which file system a descriptor lies on, told so that it can be compared later, and on another host.

Device numbers serve for neither: a file system may come back under another one. Its id (fsid, of statfs(2)) stays the
same with most kinds; but XFS makes it of the device number. There the UUID is told, which XFS has for each of its own.
(btrfs has one UUID for all its subvolumes and snapshots, which differ in their fsid only.)
"""

from __future__ import annotations

import errno
import fcntl
import os
import sys

FUSE = 0x65735546
OVERLAY = 0x794C7630
XFS = 0x58465342
"""Types (f_type, statfs(2))."""

_STATFS_BYTES = 256  # more than struct statfs has anywhere
_XFS_IOC_FSGEOMETRY_V1 = 0x80705864  # the request that all kernels know
_GEOMETRY_BYTES = 112
_UUID = slice(64, 80)  # in struct xfs_fsop_geom_v1


def type_of_file_system(descriptor: int) -> int:
    """Its f_type; raises ``OSError``."""
    import ctypes

    libc = ctypes.CDLL(None, use_errno=True)
    buffer = ctypes.create_string_buffer(_STATFS_BYTES)
    while libc.fstatfs(ctypes.c_int(descriptor), buffer):
        number = ctypes.get_errno()
        if number != errno.EINTR:
            raise OSError(number, os.strerror(number))
    # f_type is the first field: a long, but on s390 an unsigned int.
    width = 4 if os.uname().machine.startswith("s390") else ctypes.sizeof(ctypes.c_long)
    return int.from_bytes(buffer.raw[:width], sys.byteorder)


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
