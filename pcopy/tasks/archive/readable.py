"""Detection of files that may be unreadable, without opening each file.

A file that cannot be opened is left out of an archive, and that must be known before the offsets of members are
computed. For most files, their mode and the rights of this process show that they can be opened.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Sequence

from pcopy import libc
from pcopy.fsio.attribute_names import ACCESS_ACL_XATTR
from pcopy.fsio.identity import FUSE_TYPE
from pcopy.fsio.preserve import CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH, are_all_user_ids_mapped, has_capability
from pcopy.tasks.base.rank import Rank
from pcopy.walk.visitor import FoundItems

_NFS = 0x6969
"""Type of NFS in statfs(2). A server may restrict root (``root_squash``), but it decides by the modes that it shows."""
_TYPES_WITH_UNKNOWN_RIGHTS = (FUSE_TYPE, 0xFF534D42, 0xFE534D42)  # CIFS, SMB2
"""Types in statfs(2) of FUSE, CIFS and SMB. These file systems may refuse to open any file, and the modes that they
show may be invented.
"""


class ReadPermissions:
    """Tests whether this process may read a file, without opening it: by the mode of the file, the ids of the process,
    and the type of the file system. The types are cached.
    """

    def __init__(self, rank: Rank) -> None:
        self._user, self._groups = os.geteuid(), {os.getegid(), *os.getgroups()}
        self._reads_all = are_all_user_ids_mapped() and (
            has_capability(CAP_DAC_READ_SEARCH) or has_capability(CAP_DAC_OVERRIDE)
        )
        self._file_system_types: dict[int, int] = {}
        """The type in statfs(2) of each file system, by device number."""

    def possibly_unreadable_rows(self, found: FoundItems, rows: Sequence[int]) -> Sequence[int]:
        """Return those of ``rows``, all regular files, that may be unreadable. An empty file is not among them: nothing
        of it is read.
        """
        if not rows:
            return ()
        columns = found.rows
        kinds = {self._file_system_type(device, found.directory) for device in {columns.device[row] for row in rows}}
        if kinds.intersection(_TYPES_WITH_UNKNOWN_RIGHTS):
            return [row for row in rows if columns.size[row]]
        if self._reads_all and _NFS not in kinds:
            return ()
        return [row for row in rows if columns.size[row] and not self._mode_allows_reading(found, row)]

    def reads_all_files(self, device: int, directory: int) -> bool | None:
        """Return True if this process may read all files of the file system with the number ``device``, on which the
        open ``directory`` lies; False if their modes decide; None if that is not known before they are opened.
        """
        kind = self._file_system_type(device, directory)
        return None if kind in _TYPES_WITH_UNKNOWN_RIGHTS else self._reads_all and kind != _NFS

    def may_be_unreadable(self, found: FoundItems, row: int, xattrs: Sequence[tuple[str, bytes]]) -> bool:
        """Return True if the file in ``row`` may be unreadable. ``xattrs`` are its extended attributes: an ACL may deny
        what the mode allows.
        """
        has_acl = not self._reads_all and found.rows.size[row] and any(name == ACCESS_ACL_XATTR for name, _ in xattrs)
        return bool(has_acl or self.possibly_unreadable_rows(found, (row,)))

    def _file_system_type(self, device: int, descriptor: int) -> int:
        """Return the type of the file system with the number ``device``, on which the directory ``descriptor`` lies;
        that of FUSE if it cannot be determined.
        """
        kind = self._file_system_types.get(device)
        if kind is None:
            try:
                if os.fstat(descriptor).st_dev != device:  # the file itself is a mount point
                    return FUSE_TYPE
                kind = self._file_system_types[device] = libc.type_of_file_system(descriptor)
            except OSError:
                return FUSE_TYPE
        return kind

    def _mode_allows_reading(self, found: FoundItems, row: int) -> bool:
        """Return True if the mode of the file in ``row`` lets this process read it."""
        mode, columns = found.rows.mode[row], found.rows
        if columns.uid[row] == self._user:
            return bool(mode & stat.S_IRUSR)
        return bool(mode & (stat.S_IRGRP if columns.gid[row] in self._groups else stat.S_IROTH))
