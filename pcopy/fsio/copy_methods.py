"""The fastest way to copy the bytes of a large file, by the types of the two file systems.

``TRAITS_BY_FILE_SYSTEM_TYPE``, the table of this module, is based on measurements: docs/operations/large_files.md has
the figures, and ``bench/large_probe.c`` repeats them. A type that is not in the table is treated as a file system with
many servers, where several writers of one file increase the speed.
"""

from __future__ import annotations

import os

from pcopy import libc
from pcopy.fast_named_tuple import NamedTuple
from pcopy.fsio.identity import OVERLAY_TYPE, XFS_TYPE
from pcopy.fsio.retries import open_with_retries


class FileSystemTransferTraits(NamedTuple):
    """What makes copies of large files to a file system of this type faster.

    Fields:
        is_local: its files have one inode lock on this host, so that several writers of one file only wait for each
            other.
        gains_by_preallocation: writes are cheaper if the space of the file is allocated before (fallocate).
        gains_by_early_write_back: starting write-back during the copy (sync_file_range) shortens the sync at the end.
        has_server_copy: copy_file_range lets the server copy. (On other types it copies page by page; on FUSE 64 KiB at
            a time.)
        keeps_times_on_close: closing a file after writing does not change its times (see ``pcopy.fsio.server``).
    """

    is_local: bool = False
    gains_by_preallocation: bool = False
    gains_by_early_write_back: bool = False
    has_server_copy: bool = False
    keeps_times_on_close: bool = False


_LOCAL_TRAITS = FileSystemTransferTraits(is_local=True, keeps_times_on_close=True)
"""Traits, for the copy of large files, of file systems in memory or with a cache of their own."""
_LOCAL_DISK_TRAITS = FileSystemTransferTraits(is_local=True, gains_by_early_write_back=True, keeps_times_on_close=True)
"""Traits, for the copy of large files, of local file systems that use the system's page cache."""
_ONE_SERVER_TRAITS = FileSystemTransferTraits(has_server_copy=True)
"""Traits, for the copy of large files, of network file systems on one server."""
_MANY_SERVERS_TRAITS = FileSystemTransferTraits(keeps_times_on_close=True)
"""Traits, for the copy of large files, of file systems that are distributed over many servers."""

TRAITS_BY_FILE_SYSTEM_TYPE = {
    0x01021994: _LOCAL_TRAITS,  # tmpfs
    0x858458F6: _LOCAL_TRAITS,  # ramfs
    0x2FC12FC1: _LOCAL_TRAITS,  # ZFS
    OVERLAY_TYPE: _LOCAL_TRAITS,
    0x4D44: _LOCAL_TRAITS,  # FAT
    0x2011BAB0: _LOCAL_TRAITS,  # exFAT
    0x7366746E: _LOCAL_TRAITS,  # NTFS
    0x3153464A: _LOCAL_TRAITS,  # JFS
    0xEF53: _LOCAL_DISK_TRAITS._replace(gains_by_preallocation=True),  # ext4, and ext2 and ext3
    XFS_TYPE: _LOCAL_DISK_TRAITS,
    0x9123683E: _LOCAL_DISK_TRAITS,  # btrfs
    0xF2F52010: _LOCAL_DISK_TRAITS,  # F2FS
    0xCA451A4E: _LOCAL_DISK_TRAITS,  # bcachefs
    0x6969: _ONE_SERVER_TRAITS,  # NFS
    0x00C36400: _ONE_SERVER_TRAITS,  # Ceph
    0xFF534D42: _ONE_SERVER_TRAITS,  # CIFS
    0xFE534D42: _ONE_SERVER_TRAITS,  # SMB
    0x0BD00BD0: _MANY_SERVERS_TRAITS,  # Lustre
    0x47504653: _MANY_SERVERS_TRAITS,  # GPFS
    0x19830326: _MANY_SERVERS_TRAITS,  # BeeGFS
    0x01161970: _MANY_SERVERS_TRAITS,  # GFS2
    0x7461636F: _MANY_SERVERS_TRAITS,  # OCFS2
}
"""What makes copies of large files faster, by the type of the file system (f_type of statfs(2)). FUSE and unlisted
types have the defaults of ``FileSystemTransferTraits``: all False.
"""


def supports_rename_and_random_writes(path: bytes) -> bool:
    """Return True if, judged by its type, the file system of the directory ``path`` can rename files and write them at
    any offset.

    Return False for a type that is not in ``TRAITS_BY_FILE_SYSTEM_TYPE``, such as FUSE: for it the caller has to test
    both (``pcopy.fsio.sequential.examine_supported_operations``). Return True if the type cannot be read: opening the
    directory for the job reports the error later.
    """
    kind = _file_system_type(path)
    return kind is None or kind in TRAITS_BY_FILE_SYSTEM_TYPE


def keeps_times_on_close(path: bytes) -> bool:
    """Return True if, judged by its type, the file system of the directory ``path`` does not change a file's times when
    the file is closed after writing.

    Also return True if the type cannot be read: opening the directory for the job reports the error later.
    """
    kind = _file_system_type(path)
    return kind is None or TRAITS_BY_FILE_SYSTEM_TYPE.get(kind, FileSystemTransferTraits()).keeps_times_on_close


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


class FileSystemTransferTraitsCache:
    """Remembers the traits of each file system that a rank has met, by st_dev."""

    def __init__(self) -> None:
        self._traits: dict[int, FileSystemTransferTraits] = {}

    def transfer_traits_of_file_system(self, device: int, descriptor: int) -> FileSystemTransferTraits:
        """Return the traits of the file system whose st_dev is ``device``; ``descriptor`` is open on it.

        If the type cannot be read, the traits are those of an unknown type: all False.
        """
        ways = self._traits.get(device)
        if ways is None:
            try:
                ways = TRAITS_BY_FILE_SYSTEM_TYPE.get(libc.type_of_file_system(descriptor), FileSystemTransferTraits())
            except OSError:
                ways = FileSystemTransferTraits()
            self._traits[device] = ways
        return ways

    def disable_preallocation(self, device: int) -> None:
        """Record that the file system with the st_dev ``device`` has refused fallocate(2), so that it is not tried
        again.
        """
        self._traits[device] = self._traits[device]._replace(gains_by_preallocation=False)
