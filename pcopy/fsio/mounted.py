"""What has to be mounted below a root, as all hosts have seen it when the job began.

Without that a host that lacks a mount, or a run after it was unmounted, would take the directory below for what is to
be copied, or write into it; and nothing would fail. So whatever opens a directory, on either side, asks here.

What comes later, while the job runs, is no part of it: another host, or a run after it was unmounted, would see what
lies below. Only what is mounted by being entered is taken (autofs, the file systems of an NFS server below another
one), since every host gets that when it enters; with several hosts not what belongs to one machine, of which each has
its own.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Mapping

from pcopy.fsio.close import let_go
from pcopy.fsio.mount_roots import LEFT_OUT, MountRoot, is_of_one_machine, mount_point_of, root_of
from pcopy.fsio.problem import Problem
from pcopy.fsio.source import status_of


class Mounted:
    """``roots``: by the paths below ``base`` (a descriptor), of directories and of files."""

    def __init__(self, base: int, roots: Mapping[bytes, MountRoot], *, on_source: bool, one_host: bool) -> None:
        self._base = base
        self._roots = roots
        self._one_host = one_host
        self._on_source = on_source
        self._found: dict[bytes, tuple[int, int]] = {}
        self._names: dict[bytes, set[bytes]] = {}
        for path in roots:
            directory, _, name = path.rpartition(b"/")
            self._names.setdefault(directory, set()).add(name)

    def __contains__(self, path: bytes) -> bool:
        return path in self._roots

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
        try:
            text = (
                self._refuse_new(descriptor, status) if wanted is None else _differs(wanted, descriptor, status, around)
            )
        except OSError as error:
            raise Problem.of("statfs", error, on_source=self._on_source) from error
        if text:
            raise Problem("open", errno.ESTALE, on_source=self._on_source, text=text)
        self._found[path] = status.st_dev, status.st_ino

    def _refuse_new(self, descriptor: int, status: os.stat_result) -> str:
        """Why what begins here, which is not known of, is not taken. It may be no mount, or lie elsewhere (``-L``)."""
        point = mount_point_of(descriptor)
        base = os.readlink(b"/proc/self/fd/%d" % self._base).rstrip(b"/") + b"/"
        if point is None or not point.path.startswith(base) or point.path[len(base) :] in self._roots:
            return ""
        if not point.automatic:
            return "this was mounted after the job began: unmount it and resume the job, or start anew"
        if not self._one_host and is_of_one_machine(root_of(descriptor).kind, status.st_dev):
            return "what was mounted here after the job began is each host's own: it cannot be the same on all hosts"
        return ""

    def label(self, path: bytes, descriptor: int, device: int) -> bytes:
        """What sets apart the file system that begins at ``path``, which is open on st_dev ``device``."""
        try:
            return (self._roots.get(path) or root_of(descriptor)).label(device)
        except OSError as error:
            raise Problem.of("statfs", error, on_source=self._on_source) from error

    def check_file(self, path: bytes, directory: int, name: bytes) -> None:
        """As ``check``, for the file ``name`` in a directory (a descriptor)."""
        try:
            held = os.open(name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=directory)
        except OSError as error:
            raise Problem.of("open", error, on_source=self._on_source) from error
        try:
            self.check(path, held, self._status(held), self._status(directory).st_dev)
        finally:
            let_go(held)

    def _status(self, descriptor: int) -> os.stat_result:
        return status_of(descriptor, on_source=self._on_source)


def _differs(wanted: MountRoot, descriptor: int, status: os.stat_result, around: int | None) -> str:
    """What is wrong with what is open, where ``wanted`` has to be mounted."""
    found = root_of(descriptor)
    if status.st_dev == around if wanted == LEFT_OUT else not found.is_same(wanted):
        return f"what was mounted here when the job began is not: that was {wanted}, this is {found}"
    return ""
