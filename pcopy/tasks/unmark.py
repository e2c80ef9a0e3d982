"""Unmark: files that were written over (``--inplace``) lose their marks, once their contents are on stable storage.

That is a task of LINK, recorded with what has filled them: until then a resumed job knows them by their marks, however
the first run has ended. Where the job is on record their data is durable by then, and the fsync costs next to nothing.
"""

from __future__ import annotations

from pcopy.engine.driver import Slices
from pcopy.fsio.in_place import settle
from pcopy.fsio.problem import Problem
from pcopy.tasks import counts
from pcopy.tasks.context import Context
from pcopy.tasks.result import Result
from pcopy.tasks.targets import look
from pcopy.tasks.values import Place, Unmark, unpack_names, unpack_numbers


def unmark(task: Unmark, context: Context, result: Result) -> Slices:
    """One after the other. What can't be brought to storage has failed, though it has been counted as copied."""
    place = task.place
    for name, inode in zip(unpack_names(task.names), unpack_numbers(task.inodes), strict=True):
        try:
            target = context.open_target(place)
            settle(target, context.new_name(place, name), inode, context.job.name, sync=context.options.sync)
        except Problem as problem:
            if task.failed:
                result.warn(place, name, f"it keeps its mark: {problem.operation}: {problem.strerror}")
                continue
            size = _size(context, place, name)
            result.count(counts.FILES, -1)
            result.count(counts.BYTES, -size)
            result.fail(place, name, problem, size, touched=True)
        yield
    return result.outcome()


def _size(context: Context, place: Place, name: bytes) -> int:
    try:
        present = look(context.open_target(place), context.new_name(place, name))
    except Problem:
        return 0
    return present.st_size if present is not None else 0
