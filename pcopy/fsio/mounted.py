"""Checks that the mounts below a root are those that all hosts saw when the job began.

A mount may be missing, on one host or in a later run. Then a rank would copy the directory that the mount should hide,
or write into it, without an error. So all code that opens a directory, on either side, checks it here.

A file system that is mounted while the job runs is not part of the job: another host, or a later run, may see the
directory below the mount point instead. The exception is automounts: file systems that are mounted when a directory is
entered (autofs, or a file system of an NFS server below another one). Every host gets them when it enters the
directory. With several hosts, the exception does not apply to file systems that belong to one machine, since each host
would have its own.

A mount is identified by its *root*: the type of the file system, its id, and inode number and mark of the root
directory (``pcopy.fsio.identity``). The name of its server is not compared, since one server may have two names.
Between hosts the id is not compared, since many file systems derive it from something that only one host knows. A part
that one side cannot read is not compared.

These file systems belong to one machine and cannot be the same on two: those on a block device (except cluster file
systems), those in memory, and overlays. On its machine, such a file system has one device number and one id.
"""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress

from pcopy import libc
from pcopy.fsio.close import held_open
from pcopy.fsio.identity import OVERLAY, Identity, Likeness, mark_of, place_of
from pcopy.fsio.patience import NO_DESCRIPTORS, open_patiently, patiently
from pcopy.fsio.problem import Problem, failing
from pcopy.fsio.source import status_of
from pcopy.named import NamedTuple

AUTOFS = 0x187
"""File system type of the mount point of an automounter (f_type of statfs(2))."""
_CLUSTERS = (0x01161970, 0x7461636F, 0x47504653)  # GFS2, OCFS2, GPFS
"""Types of cluster file systems, on block devices that several machines share."""
_OWN = (0x01021994, 0x858458F6, 0x9123683E, 0x2FC12FC1, OVERLAY)  # tmpfs, ramfs, btrfs, ZFS
"""Types of file systems that belong to one machine although their st_dev is not that of a block device."""
_NESTING = (b"nfs", b"nfs4", b"cifs", b"smb3", b"afs", b"zfs", b"autofs")
"""Types of file systems below which the operating system mounts others when a directory is entered.

Below autofs it mounts any type, below the rest only the same type.
"""
_ESCAPED = rb"\\([0-7]{3})"
"""An octal escape in /proc/self/mountinfo."""

PlainRoot = tuple[int, int, int, bytes]
"""The fields of a ``MountRoot`` as a tuple of primitives."""


class MountRoot(NamedTuple):
    """The root of a mount: type and id of the file system, inode number and mark of the root directory.

    ``kind`` is the f_type, ``number`` the id; 0: unknown. The special value ``LEFT_OUT`` has zeros only.
    """

    kind: int
    number: int
    inode: int
    mark: bytes

    def is_same(self, other: MountRoot) -> bool:
        """Return True if ``other`` may be the same root in another run, as far as both sides are known."""
        return self.is_alike(other) and (self.number == other.number or 0 in (self.number, other.number))

    def is_alike(self, other: MountRoot) -> bool:
        """Return True if ``other`` may be the same root on another host, as far as both sides are known."""
        if self.kind != other.kind:
            return False
        this_root, other_root = Identity(0, self.inode, self.mark), Identity(0, other.inode, other.mark)
        return this_root.compare(other_root) is not Likeness.OTHER

    def label(self, device: int) -> bytes:
        """Return bytes that distinguish this file system from others, the same on all hosts and in all runs.

        ``device`` is its st_dev on this host.
        """
        number = self.number if is_of_one_machine(self.kind, device) else 0
        return b"%d %d %d %b" % (self.kind, number, self.inode, self.mark)

    def __str__(self) -> str:
        if self == LEFT_OUT:
            return "another file system than that of the parent directory"
        return f"type {self.kind:#x}, id {self.number:#x}, inode {self.inode}"


LEFT_OUT = MountRoot(0, 0, 0, b"")
"""Stands for any file system other than that of the parent directory.

It is expected at a mount point whose contents the job leaves out.
"""


def root_of(descriptor: int) -> MountRoot:
    """Return the ``MountRoot`` of the open root directory of a mount; raise ``OSError``."""
    kind, number = place_of(descriptor)
    if kind == AUTOFS:  # each host creates and numbers its own
        return MountRoot(kind, 0, 0, b"")
    return MountRoot(kind, number, os.fstat(descriptor).st_ino, mark_of(descriptor, made=False))


def is_of_one_machine(kind: int, device: int) -> bool:
    """Return True if a file system of type ``kind`` (f_type) on the st_dev ``device`` belongs to one machine."""
    return kind in _OWN or (os.major(device) != 0 and kind not in _CLUSTERS)


class MountPoint(NamedTuple):
    """A mount point that this process sees in /proc/self/mountinfo.

    Fields:
    - ``number``: the id of the mount (mnt_id).
    - ``automatic``: True if the operating system mounts the file system when the directory is entered.
    """

    number: int
    path: bytes
    automatic: bool


def mount_points() -> Iterator[MountPoint]:
    """Yield all mount points that this process can see, by real paths; raise ``OSError``.

    Some may be hidden by other mounts.
    """
    with patiently(lambda: open("/proc/self/mountinfo", "rb"), NO_DESCRIPTORS) as file:
        lines = [line.split(b" ") for line in file]
    kinds = {fields[0]: _kind(fields) for fields in lines}
    for fields in lines:
        parent_type = kinds.get(fields[1], b"")
        automatic = parent_type in _NESTING and (parent_type == b"autofs" or parent_type == _kind(fields))
        path = re.sub(_ESCAPED, lambda found: bytes((int(found[1], 8),)), fields[4])
        yield MountPoint(int(fields[0]), path, automatic)


def mount_number(descriptor: int) -> int:
    """Return the id (mnt_id) of the mount on which an open item lies, -1 if it is not available; raise ``OSError``."""
    with suppress(OSError):
        if (number := libc.mount_of(descriptor)) >= 0:
            return number
    with patiently(lambda: open(f"/proc/self/fdinfo/{descriptor}", "rb"), NO_DESCRIPTORS) as file:
        return next((int(line.split()[1]) for line in file if line.startswith(b"mnt_id:")), -1)


def mount_point_of(descriptor: int) -> MountPoint | None:
    """Return the mount point of the mount on which an open item lies; raise ``OSError``.

    Return None if this process cannot see the mount point.
    """
    number = mount_number(descriptor)
    return next((point for point in mount_points() if point.number == number), None)


def _kind(fields: list[bytes]) -> bytes:
    """Return the file system type of a line of /proc/self/mountinfo, which is split into ``fields``."""
    return fields[fields.index(b"-", 6) + 1]


class Mounted:
    """The mounts that must exist below one root, by path, and checks of open items against them.

    A mount point may be a directory or a file.
    """

    def __init__(self, base: int, roots: Mapping[bytes, MountRoot], *, on_source: bool, one_host: bool) -> None:
        """Check nothing yet.

        Args:
            base: descriptor of the root directory.
            roots: the expected mounts, by their paths below ``base``.
            on_source: True if the root is in the source.
            one_host: True if no other host works with this root.
        """
        self._base = base
        self._roots = roots
        self._one_host = one_host
        self._on_source = on_source
        self._found: dict[bytes, tuple[int, int]] = {}
        """St_dev and inode number of paths that ``check`` has accepted."""
        self._accepted: set[int] = set()
        """Mounts (mnt_id) that ``check_mount`` has accepted as part of the job."""
        self._names: dict[bytes, set[bytes]] = {}
        """Names of mount points, by the path of the directory that contains them."""
        for path in roots:
            directory, _, name = path.rpartition(b"/")
            self._names.setdefault(directory, set()).add(name)

    def __contains__(self, path: bytes) -> bool:
        return path in self._roots

    @property
    def any(self) -> bool:
        """True if a mount must exist below the root."""
        return bool(self._roots)

    @property
    def paths(self) -> Iterable[bytes]:
        """The paths below the root at which a mount must exist."""
        return self._roots.keys()

    def points(self) -> list[bytes]:
        """Return the paths below the root at which something is mounted now, perhaps hidden; raise ``Problem``."""
        with failing("open /proc/self/mountinfo", on_source=self._on_source):
            base = self._base_path()
            return [point.path[len(base) :] for point in mount_points() if point.path.startswith(base)]

    def check_mount(self, descriptor: int) -> None:
        """Raise ``Problem`` if the open directory lies on a mount that was added after the job began.

        The mount may be of the root's own file system (a bind mount), so that ``check`` sees no other device.
        """
        with failing("statx", on_source=self._on_source):
            number = mount_number(descriptor)
            text = "" if number in self._accepted else self._refuse_new(descriptor, os.fstat(descriptor))
        if text:
            raise Problem("open", errno.ESTALE, on_source=self._on_source, text=text)
        self._accepted.add(number)

    def concerns(self, directory: bytes) -> bool:
        """Return True if a mount must exist at the path ``directory``, or directly below it."""
        return directory in self._roots or directory in self._names

    def names_in(self, directory: bytes) -> set[bytes]:
        """Return the names in ``directory`` at which a mount must exist."""
        return self._names.get(directory, set())

    def check(self, path: bytes, descriptor: int, status: os.stat_result, parent: int | None) -> None:
        """Raise ``Problem`` if ``path`` is not on the expected mount, or is on one that was added after the job began.

        Args:
            descriptor: the open item at ``path``.
            status: its status.
            parent: st_dev of the directory that contains it; None if unknown.
        """
        wanted = self._roots.get(path)
        if (wanted is None and status.st_dev == parent) or self._found.get(path) == (status.st_dev, status.st_ino):
            return
        with failing("statfs", on_source=self._on_source):
            text = (
                self._refuse_new(descriptor, status) if wanted is None else _differs(wanted, descriptor, status, parent)
            )
        if text:
            raise Problem("open", errno.ESTALE, on_source=self._on_source, text=text)
        self._found[path] = status.st_dev, status.st_ino

    def _refuse_new(self, descriptor: int, status: os.stat_result) -> str:
        """Return why the open item, at which no mount is expected, is refused; an empty text if it is accepted.

        It is accepted in these cases:
        - It lies on an expected mount, or on none below the root (``-L`` may lead elsewhere).
        - It lies on an automount, which does not belong to one machine if the job has several hosts.
        """
        point = mount_point_of(descriptor)
        base = self._base_path()
        if point is None or not point.path.startswith(base) or point.path[len(base) :] in self._roots:
            return ""
        if not point.automatic:
            return "this was mounted after the job began: unmount it and resume the job, or start a new job"
        if not self._one_host and is_of_one_machine(root_of(descriptor).kind, status.st_dev):
            return "after the job began, each host mounted a file system of its own here: not the same on all hosts"
        return ""

    def _base_path(self) -> bytes:
        """Return the real path of the root, with a slash at its end; raise ``OSError``."""
        return os.readlink(b"/proc/self/fd/%d" % self._base).rstrip(b"/") + b"/"

    def label(self, path: bytes, descriptor: int, device: int) -> bytes:
        """Return bytes that distinguish the file system at ``path`` from others; raise ``Problem``.

        ``path`` is open, and its st_dev is ``device``.
        """
        with failing("statfs", on_source=self._on_source):
            return (self._roots.get(path) or root_of(descriptor)).label(device)

    def check_file(self, path: bytes, directory: int, name: bytes) -> None:
        """Do the same as ``check`` for the file ``name`` in a directory (a descriptor); ``path`` is its path."""
        with failing("open", on_source=self._on_source):
            path_only = open_patiently(name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=directory)
        with held_open(path_only):
            status, parent_status = (status_of(opened, on_source=self._on_source) for opened in (path_only, directory))
            self.check(path, path_only, status, parent_status.st_dev)


def _differs(wanted: MountRoot, descriptor: int, status: os.stat_result, parent: int | None) -> str:
    """Return how the open item differs from ``wanted``, the expected root of a mount; an empty text if it does not.

    ``parent`` is the st_dev of the directory that contains it; None if unknown.
    """
    found = root_of(descriptor)
    if status.st_dev == parent if wanted == LEFT_OUT else not found.is_same(wanted):
        return f"not the file system that was mounted here when the job began: that was {wanted}, this is {found}"
    return ""
