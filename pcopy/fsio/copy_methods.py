"""The fastest way to copy the bytes of a large file, by the types of the two file systems.

The table is based on measurements: docs/operations/large_files.md has the figures, and ``bench/large_probe.c`` repeats
them. A type that is not in the table is treated as a file system with many servers, where several writers of one file
increase the speed.
"""

from __future__ import annotations

import os

from pcopy import libc
from pcopy.fast_named_tuple import NamedTuple
from pcopy.fsio.identity import OVERLAY_TYPE, XFS_TYPE
from pcopy.fsio.retries import open_with_retries


class TransferTraits(NamedTuple):
    """Properties of a file system.

    Fields:
        is_local: its files have one inode lock on this host, so that several writers of a file only wait for each
            other.
        gains_by_preallocation: allocating the space of a file before it is written (fallocate) makes the writes
            cheaper.
        gains_by_early_write_back: starting write-back while more is copied (sync_file_range) saves that time in the
            sync at the end.
        has_server_copy: copy_file_range lets the server copy. (Elsewhere it copies page by page; on FUSE 64 KiB at a
            time.)
        keeps_times_on_close: closing a file does not change its times (``pcopy.fsio.server``).
    """

    is_local: bool = False
    gains_by_preallocation: bool = False
    gains_by_early_write_back: bool = False
    has_server_copy: bool = False
    keeps_times_on_close: bool = False


_LOCAL = TransferTraits(is_local=True, keeps_times_on_close=True)
"""File systems in memory, or with a cache of their own."""
_ON_DISK = TransferTraits(is_local=True, gains_by_early_write_back=True, keeps_times_on_close=True)
"""File systems that use the page cache of the system."""
_ON_ONE_SERVER = TransferTraits(has_server_copy=True)
"""File systems on one server."""
_ON_MANY_SERVERS = TransferTraits(keeps_times_on_close=True)
"""File systems on many servers."""

TRANSFER_TRAITS = {
    0x01021994: _LOCAL,  # tmpfs
    0x858458F6: _LOCAL,  # ramfs
    0x2FC12FC1: _LOCAL,  # ZFS
    OVERLAY_TYPE: _LOCAL,
    0x4D44: _LOCAL,  # FAT
    0x2011BAB0: _LOCAL,  # exFAT
    0x7366746E: _LOCAL,  # NTFS
    0x3153464A: _LOCAL,  # JFS
    0xEF53: _ON_DISK._replace(gains_by_preallocation=True),  # ext4, and ext2 and ext3
    XFS_TYPE: _ON_DISK,
    0x9123683E: _ON_DISK,  # btrfs
    0xF2F52010: _ON_DISK,  # F2FS
    0xCA451A4E: _ON_DISK,  # bcachefs
    0x6969: _ON_ONE_SERVER,  # NFS
    0x00C36400: _ON_ONE_SERVER,  # Ceph
    0xFF534D42: _ON_ONE_SERVER,  # CIFS
    0xFE534D42: _ON_ONE_SERVER,  # SMB
    0x0BD00BD0: _ON_MANY_SERVERS,  # Lustre
    0x47504653: _ON_MANY_SERVERS,  # GPFS
    0x19830326: _ON_MANY_SERVERS,  # BeeGFS
    0x01161970: _ON_MANY_SERVERS,  # GFS2
    0x7461636F: _ON_MANY_SERVERS,  # OCFS2
}
"""Properties by f_type (statfs(2)). FUSE and types that are not listed have none of them."""


def supports_rename_and_random_writes(path: bytes) -> bool:
    """Return True if files can be renamed, and written at any offset, in the directory ``path``, as far as its type
    shows.

    That is not known for other types, such as FUSE (``pcopy.fsio.sequential``). Also return True if the type cannot be
    read: opening the directory for the job reports the error.
    """
    kind = _file_system_type(path)
    return kind is None or kind in TRANSFER_TRAITS


def keeps_times_on_close(path: bytes) -> bool:
    """Return True if closing a file does not change its times in the directory ``path``, as far as its type shows.

    Also return True if the type cannot be read.
    """
    kind = _file_system_type(path)
    return kind is None or TRANSFER_TRAITS.get(kind, TransferTraits()).keeps_times_on_close


def _file_system_type(path: bytes) -> int | None:
    """Return the f_type of the file system of the directory ``path``, or None if it cannot be read."""
    try:
        descriptor = open_with_retries(path, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            return libc.type_of_file_system(descriptor)
        finally:
            os.close(descriptor)
    except OSError:
        return None


class TransferTraitsCache:
    """Cache of the properties of the file systems that a rank has met, by their st_dev."""

    def __init__(self) -> None:
        self._traits: dict[int, TransferTraits] = {}

    def traits_of(self, device: int, descriptor: int) -> TransferTraits:
        """Return the properties of the file system ``device``, on which ``descriptor`` is open.

        If its type cannot be read, it is treated as an unknown type.
        """
        ways = self._traits.get(device)
        if ways is None:
            try:
                ways = TRANSFER_TRAITS.get(libc.type_of_file_system(descriptor), TransferTraits())
            except OSError:
                ways = TransferTraits()
            self._traits[device] = ways
        return ways

    def disable_preallocation(self, device: int) -> None:
        """Record that the file system ``device`` has refused fallocate(2)."""
        self._traits[device] = self._traits[device]._replace(gains_by_preallocation=False)
