"""SyncFiles: nothing counts as there before it is on stable storage.

A sync takes as long as the storage does. So a thread makes it, and the rank goes on listening: it may be told to stop.
"""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Callable, Generator
from contextlib import suppress
from functools import partial

from pcopy.beside import done_beside
from pcopy.errors import NOT_SYNCED, UNSYNCED
from pcopy.fsio.close import let_go
from pcopy.fsio.layout import Target
from pcopy.fsio.problem import Problem, failing
from pcopy.fsio.syncer import open_for_sync
from pcopy.tasks.base import counts
from pcopy.tasks.base.kind import Kind, Steps
from pcopy.tasks.base.phases import Phase
from pcopy.tasks.base.rank import Rank
from pcopy.tasks.base.result import Result
from pcopy.tasks.base.values import NOWHERE, Place
from pcopy.tasks.files.layouts import Layouts, layout_at

NAP = 0.005
"""Seconds that a slice waits for a sync."""

LONG = 1.0
"""Seconds after which a job is long enough to start a process for its syncs (``pcopy.fsio.syncer``)."""


Key = tuple[int, int]
"""Of what is synced by itself: st_dev, and the number of a metadata server (``pcopy.fsio.layout``)."""


class SyncFiles(Kind, code=7, doing="syncing the destination", is_note=False):
    """Brings a file system to stable storage: that of a target directory, or (None) those of the roots.

    A place and no st_dev, which means nothing in another run.
    """

    place: Place | None

    def about(self) -> tuple[Place, bytes] | None:
        return None if self.place is None else (self.place, b"")

    def run(self, rank: Rank, result: Result) -> Steps:
        """Before anything gets its name each rank syncs the file systems that it has met.

        If that fails, the job stops: what is not durable must not be named.
        """
        met = rank.own(FileSystems)
        for keys_of in self._wanted(rank, result.phase):
            try:
                for key in keys_of():
                    anchor, why = met.anchor(key)
                    if why:
                        whole = Place(0, b"", NOWHERE, NOWHERE, False, False) if self.place is None else self.place
                        text = f"synced by syncfs only, since not each server could be asked to: {why}"
                        result.warn(whole, b"", text)
                    yield from _synced(rank, met.opened[key], anchor)
            except Problem as problem:
                if result.phase == Phase.STORE:
                    rank.stop(f"{NOT_SYNCED}: {problem.strerror}", UNSYNCED)
                result.hold()  # a job that is resumed has to sync again
                result.count(counts.UNSYNCED)
                place = self.place
                shown = rank.shown(place, b"", on_source=False) if place else rank.job.roots[0].target_shown
                result.report(shown, problem)

    def _wanted(self, rank: Rank, phase: int) -> list[Callable[[], list[Key]]]:
        """What gives keys of file systems in ``FileSystems.opened``, or raises ``Problem``."""
        met = rank.own(FileSystems)
        if self.place is not None:
            return [partial(met.below, self.place)]
        of_roots = met.roots if rank.number in rank.leaders else ()
        others = met.opened.keys() - met.roots.keys() if phase == Phase.STORE else ()
        return [partial(met.of_device, key) for key in (*of_roots, *others)]


class FileSystems:
    """Those that this rank has met in the target, each with a descriptor that is kept for its sync.

    It has to be made before anything is written: what could not be written back is told to each descriptor that was
    open by then (``pcopy.fsio.syncer``).
    """

    def __init__(self, rank: Rank) -> None:
        self._rank = rank
        self.opened: dict[Key, int] = {}
        """Below a root that can only be searched, another directory may serve."""
        self.roots: dict[Key, int] = {}
        """The number of a root whose target is there."""
        self._anchors: dict[Key, int] = {}
        targets = {root.target: number for number, root in enumerate(rank.descriptors)}
        for target, number in targets.items():
            status = os.fstat(target)
            try:
                keys = self._keys(status.st_dev, status.st_ino, target)
            except Problem as problem:  # it ends this rank
                problem.filename = os.readlink(b"/proc/self/fd/%d" % target)
                raise
            for key in keys:
                self.roots[key] = number
                if key not in self.opened:
                    with suppress(OSError):
                        self.opened[key] = open_for_sync(target)

    def _keys(self, device: int, inode: int, directory: int) -> list[Key]:
        """Of the file system of an open directory."""
        layout = self._rank.own(Layouts).of(device, directory)
        return [(device, server) for server in layout.servers_of(Target(directory, inode))]

    def below(self, place: Place) -> list[Key]:
        """The keys for the file system of a target directory, which is opened to be synced; raises ``Problem``."""
        directory = self._rank.open_target(place)
        keys = self._keys(self._rank.target_device(place), place.target_id.inode, directory)
        for key in keys:
            if key not in self.opened:
                with failing("open"):
                    self.opened[key] = open_for_sync(directory)
        return keys

    def knows(self, place: Place) -> bool:
        """Is the file system of a target directory, which has been opened, going to be synced by this rank?"""
        layout, device = layout_at(self._rank, place), self._rank.target_device(place)
        if layout.is_plain:
            return (device, 0) in self.opened
        keys = self._keys(device, place.target_id.inode, self._rank.open_target(place))
        return all(key in self.opened for key in keys)

    def anchor(self, key: Key) -> tuple[int, str]:
        """Of a file system that is open, -1 if it needs none; and why it has none, if it needs one."""
        storage = self._rank.storage
        if key not in self._anchors and storage is not None and (anchor := storage.anchor_of(key)) >= 0:
            return anchor, ""
        if key not in self._anchors:
            directory = self.opened[key]
            try:
                self._anchors[key] = self._rank.own(Layouts).of(key[0], directory).anchor(directory, key[1])
            except OSError as error:
                return -1, "" if error.errno == errno.EROFS else error.strerror or ""
        return self._anchors[key], ""

    def of_device(self, key: Key) -> list[Key]:
        """That of a file system which was met, and is opened to be synced; raises ``Problem``.

        Where a root's target can only be searched, what has been copied to below it may do.
        """
        if key not in self.opened:
            number = self.roots[key]
            directory = self._rank.targets[number].open(self._rank.below_target(number, b""))
            try:
                self.opened[key] = open_for_sync(directory)
            except OSError as error:
                text = f"it cannot be opened to be synced: {error.strerror}"
                raise Problem("syncfs", error.errno or errno.EIO, text=text) from error
        return [key]

    def close(self) -> None:
        for opened in (self.opened, self._anchors):
            while opened:
                descriptor = opened.popitem()[1]
                if descriptor >= 0:
                    let_go(descriptor)


def _synced(rank: Rank, descriptor: int, anchor: int) -> Generator[None, None, None]:
    """Yields until the sync is over; raises ``Problem``. Closing it leaves the sync behind."""
    errors: list[Exception] = [Problem("syncfs", errno.ENOMEM)]  # unless the thread says something else
    if time.monotonic() > rank.began + LONG:
        rank.syncer.start()

    def sync() -> None:
        try:
            rank.syncer.sync(descriptor, anchor)
            errors.clear()
        except Exception as error:  # for the thread that runs tasks
            errors[:] = [error]

    yield from done_beside(sync, NAP)
    if errors:
        raise errors[0]
