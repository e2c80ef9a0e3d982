"""File systems, numbered so that all hosts mean the same.

st_dev is a host's own number: two hosts that mount one file system may give it different ones. So what travels between
ranks is a *mount code*. A directory has its parent's code if it lies on the same device, else one made from its path,
which is the mount point's and the same everywhere. Each rank learns as it walks which device it has for a code.

A file on another device than its directory is mounted on its own, or lies on an overlay, which belongs to one host: its
code is made from its device, so that the links of one file have one code.
"""

from __future__ import annotations

import zlib

Identity = tuple[int, int]
"""A file's (mount code, inode)."""

_FIRST_BELOW = 1 << 32  # codes below are those of roots
_FIRST_OF_FILES = 1 << 62  # so far from any root's that they can't meet


class Mounts:
    """The codes of one root's side. ``base`` is its own code, ``device`` this host's st_dev for it."""

    def __init__(self, base: int, device: int) -> None:
        self.base = base
        self._devices = {base: device}

    def code(self, path: bytes, device: int, around: int) -> int:
        """The code of ``path``, here on st_dev ``device``, in a directory that has the code ``around``."""
        if self._devices.get(around) == device:
            return around
        code = (self.base + 1) * _FIRST_BELOW + zlib.crc32(path)
        self._devices[code] = device
        return code

    def file_code(self, device: int, around: int) -> int:
        """The code of a file, here on st_dev ``device``, in a directory that has the code ``around``."""
        return around if self._devices.get(around) == device else _FIRST_OF_FILES + device

    def device(self, code: int) -> int | None:
        """This host's st_dev for a code, None if this rank has not been there."""
        return self._devices.get(code)
