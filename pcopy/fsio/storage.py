"""Brings the data that a rank has written to stable storage, before its tasks are recorded as done in the job's
records.

Whole file systems are synced by syncfs(2), each through a descriptor that was opened before anything was written there.
So the system reports every failed write-back to this rank, even if another process has seen the error.

That is not enough on FUSE, where syncfs does not reach the server (except virtiofs), nor before Linux 5.8, where syncfs
reports no errors. There each file is synced before it is closed, and each directory in which a task may have created
names is synced before the task counts as done.

Rule: after one directory could not be synced, every later sync of this rank fails, so that no task is recorded as done.
"""

from __future__ import annotations

import errno
import os
from collections import OrderedDict
from collections.abc import Callable

from pcopy.fsio.close import close_ignoring_errors
from pcopy.fsio.identity import FUSE_TYPE
from pcopy.fsio.layout import LayoutPolicy, TargetDirectory
from pcopy.fsio.problem import Problem, errors_as_problem
from pcopy.fsio.retries import TOO_MANY_OPEN_FILES_ERRNOS
from pcopy.fsio.syncer import SYNC_UNSUPPORTED_ERRNOS, SyncHelperProcess, open_file_system_for_sync

_FIRST_LINUX_WITH_SYNCFS_ERRORS = (5, 8)
"""The first Linux version whose syncfs(2) reports errors of write-back."""

_MAX_UNSYNCED_DIRECTORIES = 32
"""Maximum number of directories of a task that wait for their sync. If there are more, the least recently used one is
synced immediately.
"""

_IGNORED_SYNC_ERRNOS = (*SYNC_UNSUPPORTED_ERRNOS, errno.EBADF)
"""Errors of fsync(2) for a directory that are ignored: its file system cannot sync directories, or it was opened with
O_PATH.
"""

_NOT_WRITABLE_ERRNOS = (errno.EACCES, errno.EPERM, errno.EROFS)
"""Errors that mean that no file may be created in a directory."""

_NO_LAYOUT_POLICY = LayoutPolicy()


class UnsyncedDirectories(OrderedDict[tuple[int, int], int]):
    """The directories in which one task creates names, and which are synced one by one when the task ends, because
    syncfs(2) is not sufficient for them. Each is kept open.

    The keys are (st_dev, inode number), the values are descriptors, and the least recently used directory comes first.
    """

    def close(self) -> None:
        """Close all directories without a sync; for use when the task does not write to them any longer."""
        while self:
            close_ignoring_errors(self.popitem()[1])


class WrittenFileSystems:
    """The file systems that one rank writes to. Its methods bring what was written there to stable storage.

    ``sync`` may be called by another thread; all other methods only by the thread that writes.

    An *anchor* is an open file without a name that has data on all servers of a Lustre file system; syncing it makes
    these servers bring everything to storage.
    """

    def __init__(
        self,
        type_of: Callable[[int], int],
        syncer: SyncHelperProcess,
        layout_of: Callable[[int, int], LayoutPolicy] | None = None,
    ) -> None:
        """Create the object without any file system; ``register_file_system`` adds them.

        Args:
            type_of: returns the f_type (statfs(2)) of a descriptor's file system; raises ``OSError``.
            syncer: makes the calls that sync. Its creator closes it.
            layout_of: returns the ``LayoutPolicy`` of a file system, given its st_dev and an open directory on it;
                raises ``Problem``.
        """
        self._layout_of = layout_of or (lambda device, directory: _NO_LAYOUT_POLICY)
        self.per_file_devices: set[int] = set()
        """The st_dev of file systems on which each file is synced before it is closed, and each directory at the end of
        a task.
        """
        self._type_of = type_of
        self._descriptors: dict[tuple[int, int], int] = {}
        """Descriptors for syncfs(2), by st_dev and index of the metadata server."""
        self._anchors: dict[tuple[int, int], int] = {}
        """Descriptors of anchors, by st_dev and index of the metadata server."""
        self._missing_anchors: set[tuple[int, int]] = set()
        """Pairs of device and metadata server whose anchor could not be created yet; a later directory may allow it."""
        self._always_per_file: set[int] = set()
        """The st_dev of file systems that stay in ``per_file_devices``: FUSE, any on Linux before 5.8, or without a
        possible anchor.
        """
        self._sync_failure: Problem | None = None
        """First error of the sync of a directory; None if there was none."""
        self._syncer = syncer

    def register_file_system(self, directory: int, device: int, inode: int, changed: UnsyncedDirectories) -> None:
        """Register the file system of the open ``directory``, to which a task is about to write, so that ``sync``
        includes it. Raise ``Problem``.

        Args:
            directory: the open directory.
            device: its st_dev; it is passed because fstat(2) would be a request to the file server each time.
            inode: its inode number, passed for the same reason.
            changed: directories of that task that wait for their sync; ``directory`` is added if it has to be synced by
                itself.
        """
        layout = self._layout_of(device, directory)
        for server in layout.metadata_server_indices(TargetDirectory(directory, inode)):
            key = device, server
            if key not in self._descriptors:
                self._open_file_system(directory, key, layout)
            elif key in self._missing_anchors:
                self._create_unnamed_file_for_sync(directory, key, layout)
        if device in self.per_file_devices:
            self._add_unsynced_directory(directory, (device, inode), changed)

    def _open_file_system(self, directory: int, key: tuple[int, int], layout: LayoutPolicy) -> None:
        """Open the descriptor through which a file system is synced, when it is written to for the first time.
        ``directory`` is an open directory on it, ``key`` is (st_dev, index of the metadata server). Raise ``Problem``.
        """
        device = key[0]
        try:
            descriptor = open_file_system_for_sync(directory)
        except OSError as error:
            if not os.access(".", os.W_OK, dir_fd=directory, effective_ids=True):
                return  # no file can be created in this directory; try the next one on the device
            raise Problem.from_error("open", error) from error
        self._descriptors[key] = descriptor
        with errors_as_problem("statfs"):
            is_fuse = self._type_of(descriptor) == FUSE_TYPE
        if is_fuse or linux_version() < _FIRST_LINUX_WITH_SYNCFS_ERRORS:
            self._always_per_file.add(device)
            self.per_file_devices.add(device)
        self._create_unnamed_file_for_sync(directory, key, layout)

    def _create_unnamed_file_for_sync(self, directory: int, key: tuple[int, int], layout: LayoutPolicy) -> None:
        """Create the anchor (an open file without a name by which all servers are synced) for ``key``, (st_dev, index
        of the metadata server), if ``layout`` says that the file system needs one. ``directory`` is an open directory
        on it.

        If that fails, files and directories on this file system are synced one by one.
        """
        device = key[0]
        try:
            anchor = layout.create_file_on_all_data_servers(directory, key[1])
        except OSError as error:
            self.per_file_devices.add(device)
            if error.errno in _NOT_WRITABLE_ERRNOS:  # try again in the next directory
                self._missing_anchors.add(key)
            else:
                self._missing_anchors.discard(key)
                self._always_per_file.add(device)
            return
        self._missing_anchors.discard(key)
        if anchor >= 0:
            self._anchors[key] = anchor
        if device not in self._always_per_file and not any(each[0] == device for each in self._missing_anchors):
            self.per_file_devices.discard(device)

    def descriptor_for_server_sync(self, key: tuple[int, int]) -> int:
        """Return the descriptor of the anchor (an open file without a name by which all servers are synced) for
        ``key``, (st_dev, index of the metadata server), or -1 if there is none. The caller must not close it.
        """
        return self._anchors.get(key, -1)

    def _add_unsynced_directory(self, directory: int, identity: tuple[int, int], changed: UnsyncedDirectories) -> None:
        """Add the open ``directory`` to ``changed``, the directories of a task that wait for their sync. ``identity``
        is its (st_dev, inode number).

        A duplicate of the descriptor is kept, because the caller may close its own earlier.
        """
        if identity not in changed:
            changed[identity] = self._duplicate_descriptor(directory, changed)
        changed.move_to_end(identity)
        if len(changed) > _MAX_UNSYNCED_DIRECTORIES:
            self._sync_and_close_oldest_directory(changed)

    def _duplicate_descriptor(self, directory: int, changed: UnsyncedDirectories) -> int:
        """Return a duplicate of the descriptor ``directory``. Raise ``Problem``.

        If this process has too many open files, directories in ``changed``, which wait for their sync, are synced and
        closed first.
        """
        while changed:
            try:
                return os.dup(directory)
            except OSError as error:
                if error.errno not in TOO_MANY_OPEN_FILES_ERRNOS:
                    break
                self._sync_and_close_oldest_directory(changed)
        with errors_as_problem("dup"):
            return os.dup(directory)

    def sync_directories(self, changed: UnsyncedDirectories) -> None:
        """Sync the directories ``changed``, in which a finished task has created names.

        Raise ``Problem``, also if the sync of another directory failed before.
        """
        while changed:
            self._sync_and_close_oldest_directory(changed)
        if self._sync_failure is not None:
            raise self._sync_failure

    def record_sync_failure(self, problem: Problem) -> None:
        """Record ``problem``, the error of syncing a directory, so that every later sync fails. An error which only
        means that the sync is not supported is ignored.
        """
        if problem.errno not in _IGNORED_SYNC_ERRNOS:
            self._sync_failure = self._sync_failure or problem

    def _sync_and_close_oldest_directory(self, changed: UnsyncedDirectories) -> None:
        """Sync and close the least recently used of the directories ``changed``. An error is not raised but recorded,
        and makes later syncs fail.
        """
        descriptor = changed.popitem(last=False)[1]
        try:
            os.fsync(descriptor)
        except OSError as error:
            self.record_sync_failure(Problem.from_error("fsync", error))
        finally:
            close_ignoring_errors(descriptor)

    def sync(self) -> None:
        """Bring everything on all registered file systems to stable storage. Raise ``Problem`` for the first error,
        after all have been tried; also raise an earlier error of syncing a directory.
        """
        self._syncer.start()
        problem: Problem | None = None
        for key, descriptor in tuple(self._descriptors.items()):
            try:
                self._syncer.sync(descriptor, self.descriptor_for_server_sync(key))
            except Problem as error:
                problem = problem or error
        problem = problem or self._sync_failure
        if problem is not None:
            raise problem

    def close(self) -> None:
        """Close all descriptors; for use when this rank does not write any longer."""
        for opened in (self._descriptors, self._anchors):
            while opened:
                close_ignoring_errors(opened.popitem()[1])


def linux_version() -> tuple[int, int]:
    """Return the first two numbers of the release of the running Linux."""
    major, minor = os.uname().release.split(".")[:2]
    return int(major), int(minor)
