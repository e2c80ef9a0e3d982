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

from pcopy.beside import Beside
from pcopy.errors import NOT_SYNCED, UNSYNCED
from pcopy.fsio.close import let_go
from pcopy.fsio.problem import Problem, failing
from pcopy.fsio.syncer import open_for_sync
from pcopy.tasks.base import counts
from pcopy.tasks.base.kind import Kind, Steps
from pcopy.tasks.base.phases import Phase
from pcopy.tasks.base.rank import Rank
from pcopy.tasks.base.result import Result
from pcopy.tasks.base.values import Place

NAP = 0.005
"""Seconds that a slice waits for a sync."""

LONG = 1.0
"""Seconds after which a job is long enough to start a process for its syncs (``pcopy.fsio.syncer``)."""


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
        for descriptor_of in self._wanted(rank, result.phase):
            try:
                yield from _synced(rank, descriptor_of())
            except Problem as problem:
                if result.phase == Phase.STORE:
                    rank.stop(f"{NOT_SYNCED}: {problem.strerror}", UNSYNCED)
                result.hold()  # a job that is resumed has to sync again
                result.count(counts.UNSYNCED)
                place = self.place
                shown = rank.shown(place, b"", on_source=False) if place else rank.job.roots[0].target_shown
                result.report(shown, problem)

    def _wanted(self, rank: Rank, phase: int) -> list[Callable[[], int]]:
        """What gives the descriptor of each file system, or raises ``Problem``."""
        met = rank.own(FileSystems)
        if self.place is not None:
            return [partial(met.below, self.place)]
        of_roots = met.roots if rank.number in rank.leaders else ()
        others = met.opened.keys() - met.roots.keys() if phase == Phase.STORE else ()
        return [partial(met.of_device, device) for device in (*of_roots, *others)]


class FileSystems:
    """Those that this rank has met in the target, each with a descriptor that is kept for its sync.

    It has to be made before anything is written: what could not be written back is told to each descriptor that was
    open by then (``pcopy.fsio.syncer``).
    """

    def __init__(self, rank: Rank) -> None:
        self._rank = rank
        self.opened: dict[int, int] = {}
        """By st_dev. Below a root that can only be searched, another directory may serve."""
        self.roots: dict[int, int] = {}
        """By st_dev, the number of a root whose target is there."""
        for number, root in enumerate(rank.descriptors):
            device = os.fstat(root.target).st_dev
            self.roots[device] = number
            if device not in self.opened:
                with suppress(OSError):
                    self.opened[device] = open_for_sync(root.target)

    def below(self, place: Place) -> int:
        """The descriptor for the file system of a target directory; raises ``Problem``."""
        rank = self._rank
        device = rank.targets[place.root].mounts.device(place.target_id.mount)
        if device is None or device not in self.opened:
            directory = rank.open_target(place)
            device = rank.target_device(place)
            with failing("open"):
                self.opened[device] = open_for_sync(directory)
        return self.opened[device]

    def of_device(self, device: int) -> int:
        """That of a file system which was met; raises ``Problem``.

        Where a root's target can only be searched, what has been copied to below it may do.
        """
        if device not in self.opened:
            number = self.roots[device]
            directory = self._rank.targets[number].open(self._rank.below_target(number, b""))
            try:
                self.opened[device] = open_for_sync(directory)
            except OSError as error:
                text = f"it cannot be opened to be synced: {error.strerror}"
                raise Problem("syncfs", error.errno or errno.EIO, text=text) from error
        return self.opened[device]

    def close(self) -> None:
        while self.opened:
            let_go(self.opened.popitem()[1])


def _synced(rank: Rank, descriptor: int) -> Generator[None, None, None]:
    """Yields until the sync is over; raises ``Problem``. Closing it leaves the sync behind."""
    errors: list[Exception] = [Problem("syncfs", errno.ENOMEM)]  # unless the thread says something else
    if time.monotonic() > rank.began + LONG:
        rank.syncer.start()

    def sync() -> None:
        try:
            rank.syncer.sync(descriptor)
            errors.clear()
        except Exception as error:  # for the thread that runs tasks
            errors[:] = [error]

    try:
        thread = Beside(sync)
    except OSError:  # no thread is to be had: then it is waited for
        sync()
    else:
        while not thread.is_over(NAP):
            yield
    if errors:
        raise errors[0]
