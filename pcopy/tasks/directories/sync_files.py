"""``SyncFileSystems`` brings the file systems of the destination to stable storage.

A sync takes as long as the storage needs. So it runs in a thread, while the rank continues to receive messages, such as
a request to stop.
"""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Callable, Generator
from contextlib import suppress
from functools import partial

from pcopy.background import run_in_background
from pcopy.errors import SYNC_FAILED_CODE, SYNC_FAILED_TEXT
from pcopy.fsio.close import close_ignoring_errors
from pcopy.fsio.layout import TargetDirectory
from pcopy.fsio.problem import Problem, errors_as_problem
from pcopy.fsio.syncer import open_file_system_for_sync
from pcopy.tasks.base import counts
from pcopy.tasks.base.kind import TaskKind, TaskSteps
from pcopy.tasks.base.phases import Phase
from pcopy.tasks.base.rank import Rank
from pcopy.tasks.base.result import TaskResult
from pcopy.tasks.base.values import NO_DIRECTORY_IDENTITY, Place
from pcopy.tasks.files.layouts import LayoutPoliciesAndCounts, target_layout_policy

SYNC_POLL_SECONDS = 0.005
"""Seconds for which the task waits for a sync before it yields, so that the rank can handle messages."""

SYNC_PROCESS_MIN_JOB_SECONDS = 1.0
"""Seconds after which a job counts as long enough to start a separate process for its syncs (``pcopy.fsio.syncer``)."""


SyncKey = tuple[int, int]
"""Identifies what is synced by one call: st_dev of a file system, and the number of one of its metadata servers (0
except on Lustre; ``pcopy.fsio.layout``).
"""


class SyncFileSystems(TaskKind, code=7, doing="syncing the destination", is_note=False):
    """Task that brings file systems to stable storage: the one of the target directory ``place``; or, if ``place`` is
    None, those of the targets of all roots.

    The task contains a directory instead of an st_dev, because device numbers may differ in another run.
    """

    place: Place | None

    def subject(self) -> tuple[Place, bytes] | None:
        return None if self.place is None else (self.place, b"")

    def run(self, rank: Rank, result: TaskResult) -> TaskSteps:
        """Sync the file systems. Report and count those that cannot be synced.

        In the phase STORE, before temporary files get their final names, each rank syncs all file systems that it has
        written to. If that fails, the job stops: a file that is not on stable storage must not get its final name.
        """
        file_systems = rank.shared_instance(TargetFileSystems)
        for keys_of in self._file_system_openers(rank, result.phase):
            try:
                for key in keys_of():
                    anchor, reason = file_systems.descriptor_for_server_sync(key)
                    if reason:
                        whole = (
                            Place(0, b"", NO_DIRECTORY_IDENTITY, NO_DIRECTORY_IDENTITY, False, False)
                            if self.place is None
                            else self.place
                        )
                        text = f"synced by syncfs(2) only: no file to sync could be created on all servers: {reason}"
                        result.warn_about_item(whole, b"", text)
                    yield from _wait_for_sync(rank, file_systems.descriptors[key], anchor)
            except Problem as problem:
                if result.phase == Phase.STORE:
                    rank.request_stop(f"{SYNC_FAILED_TEXT}: {problem.strerror}", SYNC_FAILED_CODE)
                result.defer_task_completion()  # not recorded as done, so that a resumed job syncs again
                result.count(counts.UNSYNCED)
                place = self.place
                shown = rank.path_for_display(place, b"", on_source=False) if place else rank.job.roots[0].target_shown
                result.report_failure(shown, problem)

    def _file_system_openers(self, rank: Rank, phase: int) -> list[Callable[[], list[SyncKey]]]:
        """Return a function for each file system that this task must sync. The function opens the file system and
        returns its keys in ``TargetFileSystems.descriptors``, or raises ``Problem``.
        """
        met = rank.shared_instance(TargetFileSystems)
        if self.place is not None:
            return [partial(met.open_target_file_system, self.place)]
        root_keys = met.root_of_key if rank.number in rank.first_ranks else ()
        other_keys = met.descriptors.keys() - met.root_of_key.keys() if phase == Phase.STORE else ()
        return [partial(met.open_file_system_of_key, key) for key in (*root_keys, *other_keys)]


class TargetFileSystems:
    """The file systems of the target that this rank writes to, each with a descriptor that is kept open for the sync.

    The descriptor must be opened before anything is written: the system reports a write-back error only to descriptors
    that were open when the error occurred (``pcopy.fsio.syncer``).
    """

    def __init__(self, rank: Rank) -> None:
        self._rank = rank
        self.descriptors: dict[SyncKey, int] = {}
        """Descriptor by which each file system is synced. Usually it is that of a root's target; if that may not be
        read, it may be that of another directory of the same file system.
        """
        self.root_of_key: dict[SyncKey, int] = {}
        """For each file system that contains the target of a root: the index of such a root."""
        self._anchors: dict[SyncKey, int] = {}
        targets = {root.target: number for number, root in enumerate(rank.descriptors)}
        for target, number in targets.items():
            status = os.fstat(target)
            try:
                keys = self._sync_keys_of_directory(status.st_dev, status.st_ino, target)
            except Problem as problem:  # the error ends this rank: its message shall contain the path
                problem.filename = os.readlink(b"/proc/self/fd/%d" % target)
                raise
            for key in keys:
                self.root_of_key[key] = number
                if key not in self.descriptors:
                    with suppress(OSError):
                        self.descriptors[key] = open_file_system_for_sync(target)

    def _sync_keys_of_directory(self, device: int, inode: int, directory: int) -> list[SyncKey]:
        """Return the keys of all parts of a file system that must be synced separately, one for each metadata server of
        Lustre, else one. ``directory`` is a descriptor of a directory on it, ``device`` and ``inode`` are its numbers.
        Raise ``Problem`` on failure.
        """
        layout = self._rank.shared_instance(LayoutPoliciesAndCounts).layout_policy_of_device(device, directory)
        return [(device, server) for server in layout.metadata_server_indices(TargetDirectory(directory, inode))]

    def open_target_file_system(self, place: Place) -> list[SyncKey]:
        """Open the file system of the target directory of ``place`` for the sync, unless it is open, and return its
        keys. Raise ``Problem`` on failure.
        """
        directory = self._rank.open_target_directory(place)
        keys = self._sync_keys_of_directory(self._rank.target_device(place), place.target_id.inode, directory)
        for key in keys:
            if key not in self.descriptors:
                with errors_as_problem("open"):
                    self.descriptors[key] = open_file_system_for_sync(directory)
        return keys

    def will_sync_file_system(self, place: Place) -> bool:
        """Return True if this rank has already opened the file system of the target directory of ``place``, so that it
        will be synced. Raise ``Problem`` on failure.
        """
        layout, device = target_layout_policy(self._rank, place), self._rank.target_device(place)
        if layout.uses_only_default:
            return (device, 0) in self.descriptors
        keys = self._sync_keys_of_directory(device, place.target_id.inode, self._rank.open_target_directory(place))
        return all(key in self.descriptors for key in keys)

    def descriptor_for_server_sync(self, key: SyncKey) -> tuple[int, str]:
        """Return the anchor of an open file system, or -1; and the reason why it has none. An anchor is the descriptor
        of an unnamed file that lies on all data servers of the file system: to sync that file makes all of them store
        their data. The caller must not close it.

        The reason is empty if no anchor is needed; else it says why none could be created.
        """
        storage = self._rank.storage
        if (
            key not in self._anchors
            and storage is not None
            and (anchor := storage.descriptor_for_server_sync(key)) >= 0
        ):
            return anchor, ""
        if key not in self._anchors:
            directory = self.descriptors[key]
            try:
                self._anchors[key] = (
                    self._rank.shared_instance(LayoutPoliciesAndCounts)
                    .layout_policy_of_device(key[0], directory)
                    .create_file_on_all_data_servers(directory, key[1])
                )
            except OSError as error:
                return -1, "" if error.errno == errno.EROFS else error.strerror or ""
        return self._anchors[key], ""

    def open_file_system_of_key(self, key: SyncKey) -> list[SyncKey]:
        """Open the file system ``key`` for the sync, unless it is open already. Return a list that contains only
        ``key``. Raise ``Problem`` on failure.

        It need not be opened again if the target of the root may be searched but not read, and the job has opened a
        directory below it for the sync.
        """
        if key not in self.descriptors:
            number = self.root_of_key[key]
            directory = self._rank.targets[number].open(self._rank.path_below_target(number, b""))
            try:
                self.descriptors[key] = open_file_system_for_sync(directory)
            except OSError as error:
                text = f"cannot be opened to be synced: {error.strerror}"
                raise Problem("syncfs", error.errno or errno.EIO, text=text) from error
        return [key]

    def close(self) -> None:
        """Close all descriptors, those of anchors as well."""
        for opened in (self.descriptors, self._anchors):
            while opened:
                descriptor = opened.popitem()[1]
                if descriptor >= 0:
                    close_ignoring_errors(descriptor)


def _wait_for_sync(rank: Rank, descriptor: int, anchor: int) -> Generator[None, None, None]:
    """Yield until the file system of ``descriptor``, and the unnamed file ``anchor`` (-1 for none), are synced. Raise
    ``Problem`` if that fails.

    If this generator is closed, the sync continues in its thread, and nobody waits for it.
    """
    errors: list[Exception] = [Problem("syncfs", errno.ENOMEM)]  # remains if the thread cannot be started
    if time.monotonic() > rank.began + SYNC_PROCESS_MIN_JOB_SECONDS:
        rank.syncer.start()

    def sync() -> None:
        try:
            rank.syncer.sync(descriptor, anchor)
            errors.clear()
        except Exception as error:  # raised below, in the thread that runs tasks
            errors[:] = [error]

    yield from run_in_background(sync, SYNC_POLL_SECONDS)
    if errors:
        raise errors[0]
