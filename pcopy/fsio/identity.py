"""Which item is it? An inode's number alone doesn't tell: ext4 gives a freed one out again at once.

An item is known by its *identity*: the mount code of its file system (``pcopy.fsio.mounts``), the inode's number, and a
*mark*. A later item with the same number has another mark. The mark is made from the file handle
(name_to_handle_at(2)), which holds the inode's generation, or Lustre's FID: nobody can choose it, any user may ask for
it, and all hosts get the same. If the file system has no handles, the mark is made from the time of birth, which comes
from a coarse clock. If it has neither, the mark is empty: then whether two items are the same *can't be told*.

``identity_of`` and ``mark_of`` ask an open descriptor, O_PATH or not (some 3 us). As long as a descriptor is open, its
inode's number is given to no other item; so a name with the same st_dev and st_ino is that very item. An identity is
for items that are opened again later, by another rank, or in another run. ``compare`` also answers "can't be told".
``==`` doesn't; it is only for two copies of one value.

Rules:
- FUSE gives its items new numbers whenever the kernel has forgotten them, and its handles contain the number. So no
  handle is asked for there.
- On an overlay, if an item lies in a lower layer, both its handle and its time of birth change with the first write
  into it. So there only items that this job has made itself (``made``) have a mark: they never lay in a lower layer.
"""

from __future__ import annotations

import errno
import fcntl
import os
import struct
from enum import Enum

from pcopy import libc
from pcopy.named import NamedTuple

FUSE = libc.FUSE
OVERLAY = 0x794C7630
XFS = 0x58465342
"""Types of file systems (f_type, statfs(2))."""

_XFS_IOC_FSGEOMETRY_V1 = 0x80705864  # the request that all kernels know
_GEOMETRY_BYTES = 112
"""Of struct xfs_fsop_geom_v1."""
_UUID = slice(64, 80)  # in struct xfs_fsop_geom_v1

_TYPE = struct.Struct("=i")
_MAYBE_FUSE = _TYPE.pack(0x81)  # FILEID_INO64_GEN; XFS has it, too
_OF_OVERLAYS = (_TYPE.pack(0xF8), _TYPE.pack(0xFB))  # OVL_FILEID_V1 and V0


class Likeness(Enum):
    """What two identities tell of their items; ``UNTOLD``: the same number, and one side at least can't tell more."""

    SAME = "same"
    OTHER = "other"
    UNTOLD = "untold"


class Identity(NamedTuple):
    """Made of primitives: it travels in tasks and means the same on all hosts. ``mark``: see above."""

    mount: int
    inode: int
    mark: bytes = b""

    def compare(self, other: Identity) -> Likeness:
        """Is it the same item as ``other``, which has been identified at another time, or by another host?"""
        if self[:2] != other[:2]:
            return Likeness.OTHER
        if not self.mark or _kind(self.mark) != _kind(other.mark):
            return Likeness.UNTOLD
        return Likeness.SAME if self.mark == other.mark else Likeness.OTHER


def identity_of(descriptor: int, status: os.stat_result, mount: int, *, made: bool) -> Identity:
    """What is open, and has that ``status``. ``mount`` is the code of the directory that it lies in, or its own.

    ``made``: this job has made the item; what was there before the job isn't marked on an overlay.
    """
    return Identity(mount, status.st_ino, mark_of(descriptor, made=made))


def mark_of(descriptor: int, *, made: bool) -> bytes:
    """The mark of what is open; empty if that can't be told. Raises nothing."""
    try:
        handle = libc.file_handle(descriptor)
    except OSError:
        handle = b""
    kind = handle[:4]  # its type
    if handle and not (kind == _MAYBE_FUSE and lies_on(FUSE, descriptor)):
        return b"" if kind in _OF_OVERLAYS and not made else b"H" + handle
    if not made and lies_on(OVERLAY, descriptor):
        return b""
    born = birth_of(descriptor)
    return b"B%d" % born if born else b""


def _kind(mark: bytes) -> bytes:
    """Marks of other kinds can't be compared: one host was told of handles, or mounts in another way."""
    return b"%b%d" % (mark[:5], len(mark)) if mark[:1] == b"H" else mark[:1]


def birth_of(directory: int, name: bytes = b"") -> int:
    """When ``name`` in the directory (a descriptor), or without a name that itself, was made.

    In nanoseconds since 1970, and nothing that is done to the item later changes it; 0 where nobody can tell.
    """
    try:
        return libc.birth_of(directory, name)
    except OSError:
        return 0


def lies_on(kind: int, descriptor: int) -> bool:
    """On a file system with that f_type, as far as that can't be excluded?"""
    try:
        return libc.type_of_file_system(descriptor) == kind
    except OSError:
        return True


def place_of(descriptor: int) -> tuple[int, int]:
    """Which file system does a descriptor lie on? Its type and id can be compared later, and on another host.

    A device number can't: a file system may come back under another one. The id (fsid, of statfs(2)) stays the same
    with most kinds. But XFS makes it from the device number; there it is the UUID, as a number. (Elsewhere it is not:
    all subvolumes and snapshots of one btrfs have one UUID, and differ in their fsid only.) It is 0 where that can't be
    told: XFS tells only those who may read ``descriptor``, or another item of the same file system. Raises ``OSError``.
    """
    kind = libc.type_of_file_system(descriptor)
    if kind != XFS:
        return kind, _id_of(descriptor)
    try:
        told = fcntl.ioctl(descriptor, _XFS_IOC_FSGEOMETRY_V1, bytes(_GEOMETRY_BYTES))
    except OSError as error:
        if error.errno != errno.EBADF:  # it is open for searching only
            raise
        return kind, 0
    return kind, int.from_bytes(told[_UUID], "big")


def _id_of(descriptor: int) -> int:
    """Return the fsid of statfs(2), or 0 where that is not implemented."""
    try:
        return os.fstatvfs(descriptor).f_fsid
    except OSError as error:
        if error.errno != errno.ENOSYS:
            raise
        return 0
