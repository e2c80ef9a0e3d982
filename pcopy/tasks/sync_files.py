"""SyncFiles: nothing counts as there before it is on stable storage.

A sync takes as long as the storage does. So a thread makes it, and the rank goes on listening: it may be told to stop.
"""

from __future__ import annotations

import errno
import time
from collections.abc import Callable, Generator, Iterator
from functools import partial

from pcopy.beside import Beside
from pcopy.engine.driver import Slices
from pcopy.errors import NOT_SYNCED
from pcopy.fsio.problem import Problem
from pcopy.fsio.stable import open_for_sync
from pcopy.tasks import counts
from pcopy.tasks.context import Context
from pcopy.tasks.phases import Phase
from pcopy.tasks.result import Result
from pcopy.tasks.values import SyncFiles

NAP = 0.005
"""Seconds that a slice waits for a sync."""

LONG = 1.0
"""Seconds after which a job is long enough to start a process for its syncs (``pcopy.fsio.syncer``)."""


def sync_files(task: SyncFiles, context: Context, result: Result) -> Slices:
    """The file systems of all roots, or one that was met below them.

    Before anything gets its name each rank syncs those that it has met. If that fails, the job stops: what is not
    durable must not be named.
    """
    for descriptor_of in _wanted(task, context, result.phase):
        try:
            yield from _synced(context, descriptor_of())
        except Problem as problem:
            if result.phase == Phase.STORE:
                context.stop(f"{NOT_SYNCED}: {problem.strerror}")
            result.hold()  # a job that is resumed has to sync again
            result.count(counts.UNSYNCED)
            place = task.place
            shown = context.shown(place, b"", on_source=False) if place else context.job.roots[0].target_shown
            result.report(shown, problem)
    return result.outcome()


def _wanted(task: SyncFiles, context: Context, phase: int) -> Iterator[Callable[[], int]]:
    """What gives the descriptor of each file system, or raises ``Problem``."""
    if task.place is not None:
        yield partial(context.open_for_sync, task.place)
        return
    if context.rank in context.leaders:
        for device, number in context.root_devices.items():
            yield partial(_of_root, context, device, number)
    if phase == Phase.STORE:
        for device, descriptor in tuple(context.synced.items()):
            if device not in context.root_devices:
                yield partial(int, descriptor)


def _of_root(context: Context, device: int, number: int) -> int:
    """Where a target can only be searched, what has been copied to below it may do."""
    if device not in context.synced:
        directory = context.targets[number].open(context.below_target(number, b""))
        try:
            context.synced[device] = open_for_sync(directory)
        except OSError as error:
            text = f"it cannot be opened to be synced: {error.strerror}"
            raise Problem("syncfs", error.errno or errno.EIO, text=text) from error
    return context.synced[device]


def _synced(context: Context, descriptor: int) -> Generator[None, None, None]:
    """Yields until the sync is over; raises ``Problem``. Closing it leaves the sync behind."""
    errors: list[Exception] = [Problem("syncfs", errno.ENOMEM)]  # unless the thread says something else
    if time.monotonic() > context.began + LONG:
        context.syncer.start()

    def sync() -> None:
        try:
            context.syncer.sync(descriptor)
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
