"""Brings to stable storage what a rank has written, before it is recorded as done.

Whole file systems are synced (syncfs), each through a descriptor that was opened before anything was written there: so
the system reports each failed write-back to this rank too.

That is not enough on FUSE, where syncfs does not reach the server (virtiofs excepted), nor before Linux 5.8, where it
reports no error. There each file is synced before it is closed. Each directory in which a task may have made names is
synced before the task counts as done. Rule: once a directory could not be synced, no sync succeeds any more.
"""

from __future__ import annotations

import errno
import os
from collections import OrderedDict
from collections.abc import Callable

from pcopy.fsio.close import let_go
from pcopy.fsio.identity import FUSE
from pcopy.fsio.layout import Layout, Target
from pcopy.fsio.patience import NO_DESCRIPTORS
from pcopy.fsio.problem import Problem, failing
from pcopy.fsio.syncer import NO_SYNC, Syncer, open_for_sync

_REPORTS_ERRORS = (5, 8)
"""The first Linux whose syncfs does."""

_DIRECTORIES = 32
"""Directories that wait for their sync; those in which a name is being made are the last."""

_NOT_SYNCED = (*NO_SYNC, errno.EBADF)
"""Of directories that their file system does not sync, and of such that may be searched only."""

_MAY_NOT = (errno.EACCES, errno.EPERM, errno.EROFS)
"""Of a directory in which nothing may be made."""

_NO_LAYOUT = Layout()


class Changed(OrderedDict[tuple[int, int], int]):
    """Directories that one task has opened to make names in, as far as they are synced one by one; kept open."""

    def close(self) -> None:
        """Nothing is written to them any more."""
        while self:
            let_go(self.popitem()[1])


class Storage:
    """The file systems that one rank writes to. ``sync`` is for another thread, all else for the one that writes."""

    def __init__(
        self, type_of: Callable[[int], int], syncer: Syncer, layout_of: Callable[[int, int], Layout] | None = None
    ) -> None:
        """``type_of`` tells a descriptor's f_type; raises ``OSError``. ``syncer`` is closed by whoever has made it.
        ``layout_of`` gives the layout of a device, on which a directory is open; raises ``Problem``."""
        self._layout_of = layout_of or (lambda device, directory: _NO_LAYOUT)
        self.one_by_one: set[int] = set()
        """The devices on which each file is synced before it is closed, and each directory after its task."""
        self._type_of = type_of
        self._descriptors: dict[tuple[int, int], int] = {}
        """By device and metadata server, as the next two."""
        self._anchors: dict[tuple[int, int], int] = {}
        self._unanchored: set[tuple[int, int]] = set()
        """Those whose anchor could not be made in the directories that were met."""
        self._stays_one_by_one: set[int] = set()
        self._lost: Problem | None = None
        self._syncer = syncer

    def add(self, directory: int, device: int, inode: int, changed: Changed) -> None:
        """Before a task writes to the open ``directory``; raises ``Problem``.

        ``device`` and ``inode`` are those of the directory: to ask for them would be a request to the file server each
        time. ``changed`` are the directories of that task.
        """
        layout = self._layout_of(device, directory)
        for server in layout.servers_of(Target(directory, inode)):
            key = device, server
            if key not in self._descriptors:
                self._open(directory, key, layout)
            elif key in self._unanchored:
                self._anchor(directory, key, layout)
        if device in self.one_by_one:
            self._note(directory, (device, inode), changed)

    def _open(self, directory: int, key: tuple[int, int], layout: Layout) -> None:
        device = key[0]
        try:
            descriptor = open_for_sync(directory)
        except OSError as error:
            if not os.access(".", os.W_OK, dir_fd=directory, effective_ids=True):
                return  # nothing can be made in it; the next directory on the device may do
            raise Problem.of("open", error) from error
        self._descriptors[key] = descriptor
        with failing("statfs"):
            is_fuse = self._type_of(descriptor) == FUSE
        if is_fuse or kernel_version() < _REPORTS_ERRORS:
            self._stays_one_by_one.add(device)
            self.one_by_one.add(device)
        self._anchor(directory, key, layout)

    def _anchor(self, directory: int, key: tuple[int, int], layout: Layout) -> None:
        """Without an anchor that is needed no sync of the whole file system would do."""
        device = key[0]
        try:
            anchor = layout.anchor(directory, key[1])
        except OSError as error:
            self.one_by_one.add(device)
            if error.errno in _MAY_NOT:  # the next directory may do
                self._unanchored.add(key)
            else:
                self._unanchored.discard(key)
                self._stays_one_by_one.add(device)
            return
        self._unanchored.discard(key)
        if anchor >= 0:
            self._anchors[key] = anchor
        if device not in self._stays_one_by_one and not any(each[0] == device for each in self._unanchored):
            self.one_by_one.discard(device)

    def anchor_of(self, key: tuple[int, int]) -> int:
        """By device and metadata server; -1 if there is none."""
        return self._anchors.get(key, -1)

    def _note(self, directory: int, identity: tuple[int, int], changed: Changed) -> None:
        """The directory is kept open, since whoever has opened it may close it before it is synced."""
        if identity not in changed:
            changed[identity] = self._kept_open(directory, changed)
        changed.move_to_end(identity)
        if len(changed) > _DIRECTORIES:
            self._sync_directory(changed)

    def _kept_open(self, directory: int, changed: Changed) -> int:
        """Return another descriptor of the directory; where there is none left, those of the task are synced first."""
        while changed:
            try:
                return os.dup(directory)
            except OSError as error:
                if error.errno not in NO_DESCRIPTORS:
                    break
                self._sync_directory(changed)
        with failing("dup"):
            return os.dup(directory)

    def sync_directories(self, changed: Changed) -> None:
        """Syncs the directories of a task that is done; raises ``Problem``, also if an earlier one failed."""
        while changed:
            self._sync_directory(changed)
        if self._lost is not None:
            raise self._lost

    def note_unsynced(self, problem: Problem) -> None:
        """A directory could not be synced."""
        if problem.errno not in _NOT_SYNCED:
            self._lost = self._lost or problem

    def _sync_directory(self, changed: Changed) -> None:
        """The one that was added longest ago."""
        descriptor = changed.popitem(last=False)[1]
        try:
            os.fsync(descriptor)
        except OSError as error:
            self.note_unsynced(Problem.of("fsync", error))
        finally:
            let_go(descriptor)

    def sync(self) -> None:
        """All of them; raises ``Problem`` for the first that fails, after the others."""
        self._syncer.start()
        problem: Problem | None = None
        for key, descriptor in tuple(self._descriptors.items()):
            try:
                self._syncer.sync(descriptor, self.anchor_of(key))
            except Problem as error:
                problem = problem or error
        problem = problem or self._lost
        if problem is not None:
            raise problem

    def close(self) -> None:
        """Nothing is written any more."""
        for opened in (self._descriptors, self._anchors):
            while opened:
                let_go(opened.popitem()[1])


def kernel_version() -> tuple[int, int]:
    """The first two numbers of the kernel's release."""
    major, minor = os.uname().release.split(".")[:2]
    return int(major), int(minor)
