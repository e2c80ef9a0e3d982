"""SyncFiles: nothing counts as there before it is on stable storage."""

from __future__ import annotations

from pcopy.engine.driver import Slices
from pcopy.fsio.problem import Problem
from pcopy.fsio.stable import sync_file_system
from pcopy.tasks import counts
from pcopy.tasks.context import Context
from pcopy.tasks.result import Result
from pcopy.tasks.values import SyncFiles


def sync_files(task: SyncFiles, context: Context, result: Result) -> Slices:
    """The file systems of all roots, or one that was met below them."""
    roots = {context.synced[device] for device in context.root_devices}
    for descriptor in roots if task.device < 0 else [context.synced[task.device]]:
        try:
            sync_file_system(descriptor)
        except Problem as problem:
            result.hold()  # a job that is resumed has to sync again
            result.count(counts.UNSYNCED)
            result.report(context.job.roots[0].target_shown, problem)
        yield
    return result.outcome()
