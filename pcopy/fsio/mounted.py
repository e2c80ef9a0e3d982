"""Checks that the mounts below a root directory of the job are those that all hosts saw when the job began.

A mount may be missing, on one host or in a later run. Then a rank would copy the directory below the mount point, or
write into it, without an error. So all code that opens a directory, in source or target, uses the checks of this
module.

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
from pcopy.fast_named_tuple import NamedTuple
from pcopy.fsio.close import closing_descriptor
from pcopy.fsio.identity import OVERLAY_TYPE, IdentityComparison, ItemIdentity, file_system_id, identity_mark_of
from pcopy.fsio.problem import Problem, errors_as_problem
from pcopy.fsio.retries import TOO_MANY_OPEN_FILES_ERRNOS, call_with_retries, open_with_retries
from pcopy.fsio.source import status_of_open_item

AUTOFS_TYPE = 0x187
"""File system type of the mount point of an automounter (f_type of statfs(2))."""
_CLUSTER_FILE_SYSTEM_TYPES = (0x01161970, 0x7461636F, 0x47504653)  # GFS2, OCFS2, GPFS
"""Types of cluster file systems, on block devices that several machines share."""
_LOCAL_FILE_SYSTEM_TYPES = (0x01021994, 0x858458F6, 0x9123683E, 0x2FC12FC1, OVERLAY_TYPE)  # tmpfs, ramfs, btrfs, ZFS
"""Types of file systems that belong to one machine although their st_dev is not that of a block device."""
_AUTOMOUNTING_FILE_SYSTEM_TYPES = (b"nfs", b"nfs4", b"cifs", b"smb3", b"afs", b"zfs", b"autofs")
"""Types of file systems below which the operating system mounts others when a directory is entered.

Below autofs it mounts any type, below the rest only the same type.
"""
_OCTAL_ESCAPE_PATTERN = rb"\\([0-7]{3})"
"""Pattern of an octal escape in a path in /proc/self/mountinfo."""

MountRootTuple = tuple[int, int, int, bytes]
"""The fields of a ``MountRootIdentity`` as a tuple: f_type, id of the file system, inode number, mark."""


class MountRootIdentity(NamedTuple):
    """Identifies a mounted file system: its type and id, and inode number and mark of its root directory.

    ``file_system_type`` is the f_type, ``file_system_id`` the id; 0: unknown. The special value
    ``ANY_OTHER_FILE_SYSTEM`` has zeros only.
    """

    file_system_type: int
    file_system_id: int
    inode: int
    mark: bytes

    def may_be_same_mount(self, other: MountRootIdentity) -> bool:
        """Return True unless this and ``other`` are certainly the roots of different mounts. ``other`` was read on the
        same host, perhaps in an earlier run of the job.
        """
        return self.may_be_same_mount_on_other_host(other) and (
            self.file_system_id == other.file_system_id or 0 in (self.file_system_id, other.file_system_id)
        )

    def may_be_same_mount_on_other_host(self, other: MountRootIdentity) -> bool:
        """Return True unless this and ``other`` are certainly the roots of different mounts. ``other`` was read on
        another host, so the ids of the file systems are not compared: they may differ between hosts.
        """
        if self.file_system_type != other.file_system_type:
            return False
        this_root, other_root = ItemIdentity(0, self.inode, self.mark), ItemIdentity(0, other.inode, other.mark)
        return this_root.compare_with_identity(other_root) is not IdentityComparison.OTHER

    def host_independent_file_system_id(self, device: int) -> bytes:
        """Return bytes that distinguish this file system from others, and are the same on all hosts and in all runs of
        the job. ``device`` is its st_dev on this host.
        """
        number = self.file_system_id if is_file_system_local_to_machine(self.file_system_type, device) else 0
        return b"%d %d %d %b" % (self.file_system_type, number, self.inode, self.mark)

    def __str__(self) -> str:
        if self == ANY_OTHER_FILE_SYSTEM:
            return "another file system than that of the parent directory"
        return f"type {self.file_system_type:#x}, id {self.file_system_id:#x}, inode {self.inode}"


ANY_OTHER_FILE_SYSTEM = MountRootIdentity(0, 0, 0, b"")
"""Stands for any file system other than that of the parent directory.

It is the expected root at a mount point whose contents the job does not process.
"""


def mount_root_of(descriptor: int) -> MountRootIdentity:
    """Return the ``MountRootIdentity`` that identifies the mounted file system whose root directory ``descriptor`` has
    open; raise ``OSError``.
    """
    kind, number = file_system_id(descriptor)
    if kind == AUTOFS_TYPE:  # each host has its own autofs mount with other numbers
        return MountRootIdentity(kind, 0, 0, b"")
    return MountRootIdentity(
        kind, number, os.fstat(descriptor).st_ino, identity_mark_of(descriptor, created_by_job=False)
    )


def is_file_system_local_to_machine(kind: int, device: int) -> bool:
    """Return True if a file system with the f_type ``kind`` and the st_dev ``device`` belongs to one machine, so that
    no other host can have mounted it.
    """
    return kind in _LOCAL_FILE_SYSTEM_TYPES or (os.major(device) != 0 and kind not in _CLUSTER_FILE_SYSTEM_TYPES)


class MountPoint(NamedTuple):
    """A mount point that this process sees in /proc/self/mountinfo.

    Fields:
    - ``mount_id``: the id of the mount (mnt_id) on this host.
    - ``path``: absolute path of the mount point.
    - ``is_automount``: True if the operating system mounts the file system when the directory is entered.
    """

    mount_id: int
    path: bytes
    is_automount: bool


def mount_points() -> Iterator[MountPoint]:
    """Generator: yield all mount points that this process can see, by real paths; raise ``OSError``.

    Some may be hidden by other mounts.
    """
    with call_with_retries(lambda: open("/proc/self/mountinfo", "rb"), TOO_MANY_OPEN_FILES_ERRNOS) as file:
        lines = [line.split(b" ") for line in file]
    kinds = {fields[0]: _file_system_type_in_line(fields) for fields in lines}
    for fields in lines:
        parent_type = kinds.get(fields[1], b"")
        automatic = parent_type in _AUTOMOUNTING_FILE_SYSTEM_TYPES and (
            parent_type == b"autofs" or parent_type == _file_system_type_in_line(fields)
        )
        path = re.sub(_OCTAL_ESCAPE_PATTERN, lambda found: bytes((int(found[1], 8),)), fields[4])
        yield MountPoint(int(fields[0]), path, automatic)


def mount_id_of(descriptor: int) -> int:
    """Return the id (mnt_id) of the mount on which the open item ``descriptor`` lies, -1 if it is not available; raise
    ``OSError``.
    """
    with suppress(OSError):
        if (number := libc.mount_id(descriptor)) >= 0:
            return number
    with call_with_retries(lambda: open(f"/proc/self/fdinfo/{descriptor}", "rb"), TOO_MANY_OPEN_FILES_ERRNOS) as file:
        return next((int(line.split()[1]) for line in file if line.startswith(b"mnt_id:")), -1)


def mount_point_of(descriptor: int) -> MountPoint | None:
    """Return the mount point of the mount on which the open item ``descriptor`` lies; None if this process cannot see
    the mount point. Raise ``OSError``.
    """
    number = mount_id_of(descriptor)
    return next((point for point in mount_points() if point.mount_id == number), None)


def _file_system_type_in_line(fields: list[bytes]) -> bytes:
    """Return the file system type in a line of /proc/self/mountinfo. ``fields`` are the words of the line."""
    return fields[fields.index(b"-", 6) + 1]


class ExpectedMounts:
    """The mounts that must exist below one root directory of the job, by path. Its methods check open items against
    them.

    A mount point may be a directory or a file.
    """

    def __init__(self, base: int, roots: Mapping[bytes, MountRootIdentity], *, on_source: bool, one_host: bool) -> None:
        """Store the arguments; nothing is checked yet.

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
        self._accepted_items: dict[bytes, tuple[int, int]] = {}
        """St_dev and inode number of the items that ``check_item_is_on_expected_mount`` has accepted, by path; they are
        not checked again.
        """
        self._accepted_mount_ids: set[int] = set()
        """The mnt_id of mounts that ``check_mount_is_not_new`` has accepted as part of the job."""
        self._mount_names: dict[bytes, set[bytes]] = {}
        """Names of expected mount points, by the path of the directory that contains them."""
        for path in roots:
            directory, _, name = path.rpartition(b"/")
            self._mount_names.setdefault(directory, set()).add(name)

    def __contains__(self, path: bytes) -> bool:
        return path in self._roots

    @property
    def has_any_expected_mount(self) -> bool:
        """True if at least one mount must exist below the root."""
        return bool(self._roots)

    @property
    def expected_mount_paths(self) -> Iterable[bytes]:
        """The paths below the root at which a mount must exist."""
        return self._roots.keys()

    def mounted_paths(self) -> list[bytes]:
        """Return the paths below the root at which something is mounted now, perhaps hidden; raise ``Problem``."""
        with errors_as_problem("open /proc/self/mountinfo", on_source=self._on_source):
            base = self._real_path_of_root()
            return [point.path[len(base) :] for point in mount_points() if point.path.startswith(base)]

    def check_mount_is_not_new(self, descriptor: int) -> None:
        """Raise ``Problem`` if the open directory ``descriptor`` lies on a mount that was added after the job began.

        The mount may be one of the root's own file system (a bind mount), which ``check_item_is_on_expected_mount``
        does not notice, because st_dev is the same.
        """
        with errors_as_problem("statx", on_source=self._on_source):
            number = mount_id_of(descriptor)
            text = (
                "" if number in self._accepted_mount_ids else self._new_mount_refusal(descriptor, os.fstat(descriptor))
            )
        if text:
            raise Problem("open", errno.ESTALE, on_source=self._on_source, text=text)
        self._accepted_mount_ids.add(number)

    def has_expected_mount_at_or_in(self, directory: bytes) -> bool:
        """Return True if a mount must exist at the path ``directory``, or directly below it."""
        return directory in self._roots or directory in self._mount_names

    def has_expected_mount_at_or_below(self, directory: bytes) -> bool:
        """Return True if a mount must exist at the path ``directory``, or at any path below it."""
        prefix = directory + b"/" if directory else b""
        return directory in self._roots or any(path.startswith(prefix) for path in self._roots)

    def names_of_expected_mounts_in(self, directory: bytes) -> set[bytes]:
        """Return the names in ``directory`` at which a mount must exist."""
        return self._mount_names.get(directory, set())

    def check_item_is_on_expected_mount(
        self, path: bytes, descriptor: int, status: os.stat_result, parent: int | None
    ) -> None:
        """Raise ``Problem`` if the open item at ``path`` is not on the mount that is expected there, or is on a mount
        that was added after the job began.

        Args:
            path: path of the item below the root.
            descriptor: the open item.
            status: its status.
            parent: st_dev of the directory that contains the item; None if unknown.
        """
        wanted = self._roots.get(path)
        if (wanted is None and status.st_dev == parent) or self._accepted_items.get(path) == (
            status.st_dev,
            status.st_ino,
        ):
            return
        with errors_as_problem("statfs", on_source=self._on_source):
            text = (
                self._new_mount_refusal(descriptor, status)
                if wanted is None
                else _mount_difference(wanted, descriptor, status, parent)
            )
        if text:
            raise Problem("open", errno.ESTALE, on_source=self._on_source, text=text)
        self._accepted_items[path] = status.st_dev, status.st_ino

    def _new_mount_refusal(self, descriptor: int, status: os.stat_result) -> str:
        """Return, for a message, why the open item ``descriptor`` may not be used although it is on another mount than
        its parent directory, and none is expected there; empty if it may be used. ``status`` is the status of the item.

        The item may be used in these cases:
        - It lies on an expected mount, or on a mount outside the root (with ``-L`` a symbolic link may lead elsewhere).
        - It lies on an automount. If several hosts work with this root, its file system must not be one that belongs to
          one machine.
        """
        point = mount_point_of(descriptor)
        base = self._real_path_of_root()
        if point is None or not point.path.startswith(base) or point.path[len(base) :] in self._roots:
            return ""
        if not point.is_automount:
            return "this was mounted after the job began: unmount it and resume the job, or start a new job"
        if not self._one_host and is_file_system_local_to_machine(
            mount_root_of(descriptor).file_system_type, status.st_dev
        ):
            return "since the job began, each host has mounted a file system of its own here, with other files"
        return ""

    def _real_path_of_root(self) -> bytes:
        """Return the real path of the root directory, with a slash at its end; raise ``OSError``."""
        return os.readlink(b"/proc/self/fd/%d" % self._base).rstrip(b"/") + b"/"

    def host_independent_file_system_id(self, path: bytes, descriptor: int, device: int) -> bytes:
        """Return bytes that distinguish the file system at ``path`` from others, and are the same on all hosts; raise
        ``Problem``.

        ``descriptor`` is the open item at ``path``, ``device`` its st_dev on this host.
        """
        with errors_as_problem("statfs", on_source=self._on_source):
            return (self._roots.get(path) or mount_root_of(descriptor)).host_independent_file_system_id(device)

    def check_file_is_on_expected_mount(self, path: bytes, directory: int, name: bytes) -> None:
        """Raise ``Problem`` if the file ``name`` in the open ``directory`` is not on the mount that is expected there,
        or is on a mount that was added after the job began. (A file may be a mount point, too.) ``path`` is the path of
        the file below the root.
        """
        with errors_as_problem("open", on_source=self._on_source):
            path_only = open_with_retries(name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=directory)
        with closing_descriptor(path_only):
            status, parent_status = (
                status_of_open_item(opened, on_source=self._on_source) for opened in (path_only, directory)
            )
            self.check_item_is_on_expected_mount(path, path_only, status, parent_status.st_dev)


def _mount_difference(wanted: MountRootIdentity, descriptor: int, status: os.stat_result, parent: int | None) -> str:
    """Return, for a message, how an open item differs from ``wanted``, the root of the mount that is expected at its
    path; empty if it does not.

    Args:
        wanted: the expected root of a mount.
        descriptor: the open item.
        status: its status.
        parent: st_dev of the directory that contains the item; None if unknown.
    """
    found = mount_root_of(descriptor)
    if status.st_dev == parent if wanted == ANY_OTHER_FILE_SYSTEM else not found.may_be_same_mount(wanted):
        return f"not the file system that was mounted here when the job began: that was {wanted}, this is {found}"
    return ""
