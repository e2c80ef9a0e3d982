"""What is mounted where, told so that two hosts, and two runs of a job, can compare it.

A mount is known by its *root*: type of the file system, its id, the root's inode and mark (``pcopy.fsio.identity``).
Where a mount comes from is no matter: two names may be one server's. Nor is the id between hosts, since many file
systems make it of what one host only knows. What one side can't tell is not compared.

A file system that belongs to one machine can't be the same one on two: that on a block device (but for those made for
clusters), in memory, or on an overlay. On one machine such a file system has one device number, and one id.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from typing import NamedTuple

from pcopy.fsio.file_system import OVERLAY, place_of
from pcopy.fsio.identity import Identity, Likeness, mark_of

AUTOFS = 0x187
_CLUSTERS = (0x01161970, 0x7461636F, 0x47504653)  # GFS2, OCFS2, GPFS: on devices that several machines share
_OWN = (0x01021994, 0x858458F6, 0x9123683E, 0x2FC12FC1, OVERLAY)  # tmpfs, ramfs, btrfs, ZFS: without a device's number
_NESTING = (b"nfs", b"nfs4", b"cifs", b"smb3", b"afs", b"zfs", b"autofs")
"""File systems below which the kernel mounts others of their kind, or any (autofs), when these are entered."""
_ESCAPED = re.compile(rb"\\([0-7]{3})")

Plain = tuple[int, int, int, bytes]
"""A ``MountRoot`` as primitives."""


class MountRoot(NamedTuple):
    """``kind`` and ``number`` are type and id of the file system (0: not told); all 0 stand for any other file system
    than that of the directory around, which is all that is asked of what is left out."""

    kind: int
    number: int
    inode: int
    mark: bytes

    def is_same(self, other: MountRoot) -> bool:
        """Is it, as far as both can tell, the root that ``other`` was in another run?"""
        return self.is_alike(other) and (self.number == other.number or 0 in (self.number, other.number))

    def is_alike(self, other: MountRoot) -> bool:
        """As ``is_same``, on another host."""
        if self.kind != other.kind:
            return False
        mine, theirs = Identity(0, self.inode, self.mark), Identity(0, other.inode, other.mark)
        return mine.compare(theirs) is not Likeness.OTHER

    def label(self, device: int) -> bytes:
        """What sets it apart from others, alike on all hosts and in all runs; ``device`` is its st_dev here."""
        number = self.number if is_of_one_machine(self.kind, device) else 0
        return b"%d %d %d %b" % (self.kind, number, self.inode, self.mark)

    def __str__(self) -> str:
        if self == LEFT_OUT:
            return "another file system than around it"
        return f"type {self.kind:#x}, id {self.number:#x}, inode {self.inode}"


LEFT_OUT = MountRoot(0, 0, 0, b"")


def root_of(descriptor: int) -> MountRoot:
    """What the open root of a mount is; raises ``OSError``."""
    kind, number = place_of(descriptor)
    if kind == AUTOFS:  # each host makes and numbers its own
        return MountRoot(kind, 0, 0, b"")
    return MountRoot(kind, number, os.fstat(descriptor).st_ino, mark_of(descriptor, made=False))


def is_of_one_machine(kind: int, device: int) -> bool:
    """Does a file system of that f_type, on that st_dev, belong to one machine?"""
    return kind in _OWN or (os.major(device) != 0 and kind not in _CLUSTERS)


class MountPoint(NamedTuple):
    """A place where something is mounted; ``number`` is the mount's own (mnt_id). ``automatic``: entering it is all
    that it takes."""

    number: int
    path: bytes
    automatic: bool


def mount_points() -> Iterator[MountPoint]:
    """All that this process can see, by real paths, some perhaps hidden by others; raises ``OSError``."""
    with open("/proc/self/mountinfo", "rb") as file:
        lines = [line.split(b" ") for line in file]
    kinds = {fields[0]: _kind(fields) for fields in lines}
    for fields in lines:
        around = kinds.get(fields[1], b"")
        automatic = around in _NESTING and (around == b"autofs" or around == _kind(fields))
        path = _ESCAPED.sub(lambda found: bytes((int(found[1], 8),)), fields[4])
        yield MountPoint(int(fields[0]), path, automatic)


def mount_point_of(descriptor: int) -> MountPoint | None:
    """Where that is mounted in which something open lies; None if this process can't see it. Raises ``OSError``."""
    with open(f"/proc/self/fdinfo/{descriptor}", "rb") as file:
        number = next((int(line.split()[1]) for line in file if line.startswith(b"mnt_id:")), -1)
    return next((point for point in mount_points() if point.number == number), None)


def _kind(fields: list[bytes]) -> bytes:
    return fields[fields.index(b"-", 6) + 1]
