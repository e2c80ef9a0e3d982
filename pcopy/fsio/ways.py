"""How the bytes of a large file are best moved, by the types of the two file systems.

The table is made of measurements: docs/operations/large_files.md has the figures, and ``bench/large_probe.c`` repeats
them. A type that is not in it is taken for one with many servers, which gain by many writers of one file.
"""

from __future__ import annotations

import os

from pcopy import libc
from pcopy.fsio.identity import OVERLAY, XFS
from pcopy.fsio.patience import open_patiently
from pcopy.named import NamedTuple


class Ways(NamedTuple):
    """What suits a file system.

    ``is_local``: its files have one inode lock on this host, for which several writers of a file only wait.
    ``preallocates``: room that is asked for at once (fallocate) makes the writes cheaper. ``writes_back``: to begin
    storing what was written while more is copied (sync_file_range) takes that time from the sync at the end.
    ``copies_itself``: copy_file_range lets the server copy. (Elsewhere it goes page by page; on FUSE 64 KiB at a time.)
    ``keeps_times``: the times of a file are not set when it is closed (``pcopy.fsio.server``).
    """

    is_local: bool = False
    preallocates: bool = False
    writes_back: bool = False
    copies_itself: bool = False
    keeps_times: bool = False


_LOCAL = Ways(is_local=True, keeps_times=True)
_ON_DISK = Ways(is_local=True, writes_back=True, keeps_times=True)
_SERVED = Ways(copies_itself=True)
_CLUSTER = Ways(keeps_times=True)
"""Kinds of file systems: in memory, or with a cache of their own; with the system's page cache; on a server; on
many."""

WAYS = {
    0x01021994: _LOCAL,  # tmpfs
    0x858458F6: _LOCAL,  # ramfs
    0x2FC12FC1: _LOCAL,  # ZFS
    OVERLAY: _LOCAL,
    0x4D44: _LOCAL,  # FAT
    0x2011BAB0: _LOCAL,  # exFAT
    0x7366746E: _LOCAL,  # NTFS
    0x3153464A: _LOCAL,  # JFS
    0xEF53: _ON_DISK._replace(preallocates=True),  # ext4, and ext2 and ext3
    XFS: _ON_DISK,
    0x9123683E: _ON_DISK,  # btrfs
    0xF2F52010: _ON_DISK,  # F2FS
    0xCA451A4E: _ON_DISK,  # bcachefs
    0x6969: _SERVED,  # NFS
    0x00C36400: _SERVED,  # Ceph
    0xFF534D42: _SERVED,  # CIFS
    0xFE534D42: _SERVED,  # SMB
    0x0BD00BD0: _CLUSTER,  # Lustre
    0x47504653: _CLUSTER,  # GPFS
    0x19830326: _CLUSTER,  # BeeGFS
    0x01161970: _CLUSTER,  # GFS2
    0x7461636F: _CLUSTER,  # OCFS2
}
"""By f_type (statfs(2)). FUSE and all others have none of it."""


def is_ordinary(path: bytes) -> bool:
    """Return True if files can be renamed, and written at any offset, in the directory ``path``, as its type shows.

    Of other types, such as FUSE, that is not known (``pcopy.fsio.sequential``). Also True if the type cannot be read:
    opening the directory for the job reports the error.
    """
    kind = _type_at(path)
    return kind is None or kind in WAYS


def keeps_times(path: bytes) -> bool:
    """Return True if files keep their times as they are closed in the directory ``path``, as its type shows.

    Also True if the type cannot be read.
    """
    kind = _type_at(path)
    return kind is None or WAYS.get(kind, Ways()).keeps_times


def _type_at(path: bytes) -> int | None:
    """Return the f_type of the file system of the directory ``path``; None if that is not known."""
    try:
        descriptor = open_patiently(path, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            return libc.type_of_file_system(descriptor)
        finally:
            os.close(descriptor)
    except OSError:
        return None


class KnownWays:
    """The ways of the file systems that a rank has met, by their st_dev."""

    def __init__(self) -> None:
        self._known: dict[int, Ways] = {}

    def of(self, device: int, descriptor: int) -> Ways:
        """Those of the file system ``device``, on which something is open; if it can't be asked, it may be any."""
        ways = self._known.get(device)
        if ways is None:
            try:
                ways = WAYS.get(libc.type_of_file_system(descriptor), Ways())
            except OSError:
                ways = Ways()
            self._known[device] = ways
        return ways

    def never_preallocate(self, device: int) -> None:
        """It was refused there."""
        self._known[device] = self._known[device]._replace(preallocates=False)
