"""Mount codes: numbers of file systems that mean the same on all hosts.

st_dev is a host's own number: two hosts that mount one file system may give it different ones. So ranks send each other
*mount codes*. A directory has its parent's code if it lies on the same device. Else it is a mount point, and its code
is made from its path, which is the same on all hosts, and from its file system's own properties (``MountRoot.label``),
because two hosts may have mounted different ones at one path while the job ran. As it walks, each rank learns which
device has which code.

A file on another device than its directory is mounted on its own, or lies on an overlay, which belongs to one host: its
code is made from its device, so that the links of one file have one code.

Where symbolic links are followed, a path may enter a file system again and again. Then a directory has the code of the
nearest one above it on the same device, or of a root there; so links are kept wherever a path leads within the roots'
file systems. On any other, the links of one file have one code only if the job is on one host, whose
device numbers serve; device numbers of several hosts may mean different file systems.
"""

from __future__ import annotations

import zlib

from pcopy.named import NamedTuple

_FIRST_BELOW = 1 << 32  # codes below are those of roots
_FIRST_OF_FILES = 1 << 62  # so far from any root's that they can't meet


class Followed(NamedTuple):
    """What is known where symbolic links are followed: the codes of all roots by st_dev, and whether no other host
    takes part."""

    bases: dict[int, int]
    one_host: bool


class Mounts:
    """The codes of one root's side. ``base`` is its own code, ``device`` this host's st_dev for it."""

    def __init__(self, base: int, device: int, followed: Followed | None = None) -> None:
        """``followed`` is given where symbolic links are followed."""
        self.base = base
        self._followed = followed
        others = {} if followed is None else followed.bases
        self._devices = {**{code: there for there, code in others.items()}, base: device}
        self._around: dict[int, int] = {}

    def code(self, path: bytes, device: int, around: int, label: bytes = b"") -> int:
        """The code of ``path``, here on st_dev ``device``, in a directory that has the code ``around``.

        ``label`` tells what it is if another file system begins there; empty as long as nobody has entered it.
        """
        if self._devices.get(around) == device:
            return around
        if self._followed is not None and (known := self._entered_before(device, around)) is not None:
            return known
        code = (self.base + 1) * _FIRST_BELOW + zlib.crc32(label, zlib.crc32(path))
        self._devices[code] = device
        if self._followed is not None:
            self._around[code] = around
        return code

    def _entered_before(self, device: int, around: int | None) -> int | None:
        """The code of the nearest directory around that is on ``device``, or of a root. The same on all hosts."""
        while around is not None:
            if self._devices.get(around) == device:
                return around
            around = self._around.get(around)
        assert self._followed is not None
        return self._followed.bases.get(device)

    def file_code(self, device: int, around: int, path: bytes = b"") -> int:
        """The code of a file, here on st_dev ``device``, in a directory that has the code ``around``.

        Its ``path`` counts only where links are followed.
        """
        if self._followed is not None:
            if (code := self._followed.bases.get(device)) is not None:
                return code
            if not self._followed.one_host:
                return self.code(path, device, around)
            return _FIRST_OF_FILES + device
        return around if self._devices.get(around) == device else _FIRST_OF_FILES + device

    def device(self, code: int) -> int | None:
        """This host's st_dev for a code, None if this rank has not been there."""
        if code >= _FIRST_OF_FILES and self._followed is not None:
            return code - _FIRST_OF_FILES
        return self._devices.get(code)
