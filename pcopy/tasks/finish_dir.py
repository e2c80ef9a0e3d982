"""FinishDir, SealDir and SealDirs: directories get their metadata when everything in them is there.

The order among directories doesn't matter (a child's mode and times don't touch its parent's), but for those that
their owner can't enter any more: they come last, the deepest first.
"""

from __future__ import annotations

from collections.abc import Iterator

from pcopy.engine.driver import Slices
from pcopy.fsio.attributes import apply_attributes, drop_other_xattrs
from pcopy.fsio.problem import Problem
from pcopy.fsio.source import status_of
from pcopy.tasks import counts
from pcopy.tasks.context import Context, Result
from pcopy.tasks.phases import Phase
from pcopy.tasks.values import FinishDir, SealDir, SealDirs


def finish_dir(task: FinishDir, context: Context, result: Result) -> Slices:
    """One directory."""
    _finish(task, context, result)
    return result.outcome()
    yield


def seal_dir(task: SealDir, context: Context, result: Result) -> Slices:
    """Keeps a directory for the end."""
    if not context.sealed:
        result.spawn(SealDirs(), phase=Phase.SEAL, owner=context.rank)
    context.sealed.append(task)
    return result.outcome()
    yield


def seal_dirs(task: SealDirs, context: Context, result: Result) -> Slices:
    """All that were kept."""
    for sealed in _deepest_first(context.sealed):
        _finish(sealed.finish, context, result)
        yield
    context.sealed.clear()
    return result.outcome()


def _deepest_first(sealed: list[SealDir]) -> Iterator[SealDir]:
    def depth(task: SealDir) -> int:
        path = task.finish.place.path
        return path.count(b"/") + 1 if path else 0

    return iter(sorted(sealed, key=depth, reverse=True))


def _finish(task: FinishDir, context: Context, result: Result) -> None:
    place, attributes = task.place, task.attributes
    preserve = context.options.preserve
    try:
        target = context.open_target(place)
        kept = None if place.fresh else status_of(target)
        if kept is not None:
            drop_other_xattrs(target, attributes, preserve)
        applied = apply_attributes(target, attributes, preserve, context.options.umask, kept=kept)
        result.applied(place, b"", applied)
    except Problem as problem:
        if task.counted:
            result.fail(place, b"", problem)
        else:  # the item has failed before, and counts once
            result.report(context.shown(place, b"", on_source=False), problem)
        return
    if task.counted:
        result.count(counts.DIRECTORIES)
