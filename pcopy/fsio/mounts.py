"""Mount codes: numbers for file systems that mean the same on all hosts.

st_dev is not suitable: two hosts that mount one file system may give it different device numbers. So ranks send each
other *mount codes*. A directory has the code of its parent if it is on the same device. Otherwise it is a mount point.
Its code is then made from its path, which is the same on all hosts, and from properties of its file system
(``MountRootIdentity.host_independent_file_system_id``), because two hosts may have mounted different file systems at
one path while the job ran. Each rank learns which device has which code as it walks the tree.

A file on another device than its directory is a mount point of its own, or lies on an overlay, which belongs to one
host. Its code is made from its device number, so that all hard links of one file have one code.

If symbolic links are followed, a path may enter a file system again and again. Then a directory has the code of the
nearest directory above it on the same device, or of a root on that device. So hard links are recognised wherever a path
leads within the roots' file systems. On other file systems, the hard links of one file have one code only if the job is
on one host, whose device numbers are used then; the device numbers of several hosts may mean different file systems.
"""

from __future__ import annotations

import zlib

from pcopy.fast_named_tuple import NamedTuple

_FIRST_MOUNT_CODE_BELOW_ROOTS = 1 << 32  # codes below are those of roots
_FIRST_MOUNT_CODE_OF_FILES = 1 << 62  # codes from here on are those of files; no root has such a large one


class LinkFollowingData(NamedTuple):
    """Data by which mount codes (numbers for file systems) are determined if symbolic links are followed.

    Fields:
    - ``root_codes``: the mount codes of all roots, by st_dev.
    - ``one_host``: True if no other host takes part in the job.
    """

    root_codes: dict[int, int]
    one_host: bool


class MountCodeTable:
    """The mount codes on one side (source or target) of a root.

    A mount code is a number for a file system that means the same on all hosts. At first only the code of the root
    directory (``root_code``) is known; codes of other file systems are added as the tree is walked.
    """

    def __init__(self, base: int, device: int, followed: LinkFollowingData | None = None) -> None:
        """Create the object; it knows only the code of the root directory.

        Args:
            base: mount code of the root directory.
            device: st_dev of the root directory on this host.
            followed: data that are needed if symbolic links are followed; None if they are not.
        """
        self.root_code = base
        self._followed = followed
        root_codes = {} if followed is None else followed.root_codes
        self._devices = {**{code: root_device for root_device, code in root_codes.items()}, base: device}
        """The st_dev on this host, by mount code."""
        self._parent_codes: dict[int, int] = {}
        """Mount code of the directory that contains a mount point, by the code of the mount point."""

    def mount_code_of_directory(self, path: bytes, device: int, parent_code: int, label: bytes = b"") -> int:
        """Return the mount code of the directory ``path``, a number for its file system that is the same on all hosts.

        Args:
            path: path of the directory below the root.
            device: its st_dev on this host.
            parent_code: mount code of the directory that contains it.
            label: bytes that identify the file system if ``path`` is a mount point
                (``MountRootIdentity.host_independent_file_system_id``); empty if no rank has opened it yet.
        """
        if self._devices.get(parent_code) == device:
            return parent_code
        if self._followed is not None and (known := self._mount_code_above(device, parent_code)) is not None:
            return known
        code = (self.root_code + 1) * _FIRST_MOUNT_CODE_BELOW_ROOTS + zlib.crc32(label, zlib.crc32(path))
        self._devices[code] = device
        if self._followed is not None:
            self._parent_codes[code] = parent_code
        return code

    def _mount_code_above(self, device: int, start: int | None) -> int | None:
        """Return the mount code of the nearest directory above that is on ``device`` (st_dev), else of a root directory
        on it, else None.

        ``start`` is the code of the directory where the search begins. The result is the same on all hosts.
        """
        while start is not None:
            if self._devices.get(start) == device:
                return start
            start = self._parent_codes.get(start)
        assert self._followed is not None
        return self._followed.root_codes.get(device)

    def mount_code_of_file(self, device: int, parent_code: int, path: bytes = b"") -> int:
        """Return the mount code of a file, a number for its file system. All hard links to the file have the same code.

        Args:
            device: its st_dev on this host.
            parent_code: mount code of the directory that contains it.
            path: its path, used only if symbolic links are followed.
        """
        if self._followed is not None:
            if (code := self._followed.root_codes.get(device)) is not None:
                return code
            if not self._followed.one_host:
                return self.mount_code_of_directory(path, device, parent_code)
            return _FIRST_MOUNT_CODE_OF_FILES + device
        return parent_code if self._devices.get(parent_code) == device else _FIRST_MOUNT_CODE_OF_FILES + device

    def device_of_mount_code(self, code: int) -> int | None:
        """Return this host's st_dev of the file system whose mount code is ``code``; None if this rank has not met that
        file system.
        """
        if code >= _FIRST_MOUNT_CODE_OF_FILES and self._followed is not None:
            return code - _FIRST_MOUNT_CODE_OF_FILES
        return self._devices.get(code)
