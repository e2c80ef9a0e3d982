"""The mounts that have to be there below a root, as all hosts have seen them when the job began.

A mount may be missing: on one host, or in a later run. Then a rank would copy the directory that the mount hides, or
write into it, and nothing would fail. So all code that opens a directory, on either side, asks here.

A file system that is mounted while the job runs is no part of it: another host, or a later run, may see the directory
below it. There is one exception, file systems that are mounted by being entered (autofs, those of an NFS server below
another one): every host gets them when it enters. With several hosts it does not hold for file systems that belong to
one machine, since each host has its own.

A mount is known by its *root*: type of the file system, its id, the root's inode and mark (``pcopy.fsio.identity``).
The name of its server is not compared, since one server may have two names. Between hosts the id is not compared,
since many file systems make it of something that only one host knows. If one side can't tell a part, that part is not
compared.

A file system on a block device (but for those made for clusters), in memory, or on an overlay belongs to one machine:
it can't be the same on two. On its machine it has one device number, and one id.
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
"""The type of a mount point of an automounter (f_type, statfs(2))."""
_CLUSTERS = (0x01161970, 0x7461636F, 0x47504653)  # GFS2, OCFS2, GPFS: on devices that several machines share
_OWN = (0x01021994, 0x858458F6, 0x9123683E, 0x2FC12FC1, OVERLAY)  # tmpfs, ramfs, btrfs, ZFS: without a device's number
_NESTING = (b"nfs", b"nfs4", b"cifs", b"smb3", b"afs", b"zfs", b"autofs")
"""File systems below which the kernel mounts others of their kind, or any (autofs), when these are entered."""
_ESCAPED = rb"\\([0-7]{3})"

PlainRoot = tuple[int, int, int, bytes]
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
    with patiently(lambda: open("/proc/self/mountinfo", "rb"), NO_DESCRIPTORS) as file:
        lines = [line.split(b" ") for line in file]
    kinds = {fields[0]: _kind(fields) for fields in lines}
    for fields in lines:
        around = kinds.get(fields[1], b"")
        automatic = around in _NESTING and (around == b"autofs" or around == _kind(fields))
        path = re.sub(_ESCAPED, lambda found: bytes((int(found[1], 8),)), fields[4])
        yield MountPoint(int(fields[0]), path, automatic)


def mount_number(descriptor: int) -> int:
    """The mount (mnt_id) in which something open lies, -1 if that is not told; raises ``OSError``."""
    with suppress(OSError):
        if (number := libc.mount_of(descriptor)) >= 0:
            return number
    with patiently(lambda: open(f"/proc/self/fdinfo/{descriptor}", "rb"), NO_DESCRIPTORS) as file:
        return next((int(line.split()[1]) for line in file if line.startswith(b"mnt_id:")), -1)


def mount_point_of(descriptor: int) -> MountPoint | None:
    """Where that is mounted in which something open lies; None if this process can't see it. Raises ``OSError``."""
    number = mount_number(descriptor)
    return next((point for point in mount_points() if point.number == number), None)


def _kind(fields: list[bytes]) -> bytes:
    return fields[fields.index(b"-", 6) + 1]


class Mounted:
    """``roots``: by the paths below ``base`` (a descriptor), of directories and of files."""

    def __init__(self, base: int, roots: Mapping[bytes, MountRoot], *, on_source: bool, one_host: bool) -> None:
        self._base = base
        self._roots = roots
        self._one_host = one_host
        self._on_source = on_source
        self._found: dict[bytes, tuple[int, int]] = {}
        self._accepted: set[int] = set()
        """Mounts (mnt_id) that ``check_mount`` has found to be part of the job."""
        self._names: dict[bytes, set[bytes]] = {}
        for path in roots:
            directory, _, name = path.rpartition(b"/")
            self._names.setdefault(directory, set()).add(name)

    def __contains__(self, path: bytes) -> bool:
        return path in self._roots

    @property
    def any(self) -> bool:
        """Is anything mounted below the root?"""
        return bool(self._roots)

    @property
    def paths(self) -> Iterable[bytes]:
        """Return the paths below the root at which something has to be mounted."""
        return self._roots.keys()

    def points(self) -> list[bytes]:
        """Return the paths below the root at which something is mounted now, perhaps hidden; raises ``Problem``."""
        with failing("open /proc/self/mountinfo", on_source=self._on_source):
            base = self._base_path()
            return [point.path[len(base) :] for point in mount_points() if point.path.startswith(base)]

    def check_mount(self, descriptor: int) -> None:
        """Raise ``Problem`` if the open directory lies on a mount that was added since the job began.

        The file system may be that of the root, so that ``check`` sees no other device.
        """
        with failing("statx", on_source=self._on_source):
            number = mount_number(descriptor)
            text = "" if number in self._accepted else self._refuse_new(descriptor, os.fstat(descriptor))
        if text:
            raise Problem("open", errno.ESTALE, on_source=self._on_source, text=text)
        self._accepted.add(number)

    def concerns(self, directory: bytes) -> bool:
        """Is something mounted at a directory, or in it?"""
        return directory in self._roots or directory in self._names

    def names_in(self, directory: bytes) -> set[bytes]:
        """Those names in ``directory`` at which something has to be mounted."""
        return self._names.get(directory, set())

    def check(self, path: bytes, descriptor: int, status: os.stat_result, around: int | None) -> None:
        """Raises ``Problem`` if something else, or nothing, is mounted at ``path``, which is open; or if that has come
        since the job began.

        ``around``: the st_dev of the directory that it lies in, as far as that is known.
        """
        wanted = self._roots.get(path)
        if (wanted is None and status.st_dev == around) or self._found.get(path) == (status.st_dev, status.st_ino):
            return
        with failing("statfs", on_source=self._on_source):
            text = (
                self._refuse_new(descriptor, status) if wanted is None else _differs(wanted, descriptor, status, around)
            )
        if text:
            raise Problem("open", errno.ESTALE, on_source=self._on_source, text=text)
        self._found[path] = status.st_dev, status.st_ino

    def _refuse_new(self, descriptor: int, status: os.stat_result) -> str:
        """Why what begins here, which is not known of, is not taken. It may be no mount, or lie elsewhere (``-L``)."""
        point = mount_point_of(descriptor)
        base = self._base_path()
        if point is None or not point.path.startswith(base) or point.path[len(base) :] in self._roots:
            return ""
        if not point.automatic:
            return "this was mounted after the job began: unmount it and resume the job, or start anew"
        if not self._one_host and is_of_one_machine(root_of(descriptor).kind, status.st_dev):
            return "what was mounted here after the job began is each host's own: it cannot be the same on all hosts"
        return ""

    def _base_path(self) -> bytes:
        """Return the real path of the root, with a slash at its end; raises ``OSError``."""
        return os.readlink(b"/proc/self/fd/%d" % self._base).rstrip(b"/") + b"/"

    def label(self, path: bytes, descriptor: int, device: int) -> bytes:
        """What sets apart the file system that begins at ``path``, which is open on st_dev ``device``."""
        with failing("statfs", on_source=self._on_source):
            return (self._roots.get(path) or root_of(descriptor)).label(device)

    def check_file(self, path: bytes, directory: int, name: bytes) -> None:
        """As ``check``, for the file ``name`` in a directory (a descriptor)."""
        with failing("open", on_source=self._on_source):
            held = open_patiently(name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=directory)
        with held_open(held):
            status, around = (status_of(opened, on_source=self._on_source) for opened in (held, directory))
            self.check(path, held, status, around.st_dev)


def _differs(wanted: MountRoot, descriptor: int, status: os.stat_result, around: int | None) -> str:
    """What is wrong with the open directory, where ``wanted`` has to be mounted."""
    found = root_of(descriptor)
    if status.st_dev == around if wanted == LEFT_OUT else not found.is_same(wanted):
        return f"what was mounted here when the job began is not: that was {wanted}, this is {found}"
    return ""
