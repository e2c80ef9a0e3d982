"""FinishDir, SealDir and SealDirs: directories get their metadata when everything in them is there.

The order among directories doesn't matter (a child's mode and times don't touch its parent's), but for those that
their owner can't enter any more: they come last, the deepest first.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress

from pcopy.engine.driver import Slices
from pcopy.fsio.attributes import Attributes, apply_attributes, drop_other_xattrs, read_attributes
from pcopy.fsio.directories import count_entries
from pcopy.fsio.problem import Problem
from pcopy.fsio.source import status_of
from pcopy.tasks import counts
from pcopy.tasks.context import Context
from pcopy.tasks.entering import let_us_into
from pcopy.tasks.fail_dir import directory_failed, directory_failed_again
from pcopy.tasks.look_again import lost_since
from pcopy.tasks.phases import Phase
from pcopy.tasks.result import Result
from pcopy.tasks.targets import look
from pcopy.tasks.values import FinishDir, Place, SealDir, SealDirs


def finish_dir(task: FinishDir, context: Context, result: Result) -> Slices:
    """One directory."""
    lost = yield from lost_since(context, task.place)
    _finish(task, context, result, lost)
    return result.outcome()


def seal_dir(task: SealDir, context: Context, result: Result) -> Slices:
    """Keeps a directory for the end."""
    result.hold()
    if not context.sealed:
        result.spawn(SealDirs(), phase=max(Phase.SEAL, result.phase), owner=context.rank)
    context.sealed.append((result.id, task))
    return result.outcome()
    yield


def seal_dirs(task: SealDirs, context: Context, result: Result) -> Slices:
    """All that were kept."""
    result.settle(task_id for task_id, _ in context.sealed)
    deepest_first = list(_deepest_first([sealed for _, sealed in context.sealed]))
    if context.job.run > 1:  # an earlier run may have sealed some, and was stopped before that was on record
        for sealed in reversed(deepest_first):
            with suppress(Problem):  # which will be met again, and told
                let_us_into(context, sealed.finish.place)
    for sealed in deepest_first:
        lost = yield from lost_since(context, sealed.finish.place)
        _finish(sealed.finish, context, result, lost)
        yield
    context.sealed.clear()
    return result.outcome()


def _deepest_first(sealed: list[SealDir]) -> Iterator[SealDir]:
    def depth(task: SealDir) -> int:
        path = task.finish.place.path
        return path.count(b"/") + 1 if path else 0

    return iter(sorted(sealed, key=depth, reverse=True))


def _finish(task: FinishDir, context: Context, result: Result, lost: Problem | None) -> None:
    place, preserve = task.place, context.options.preserve
    try:
        attributes = task.attributes or _attributes_now(context, place)
        target = context.open_target(place)
        lost = context.remove_leftovers(target) or lost
        kept = None if place.fresh else status_of(target)
        more = _holds_more(task, context, target)  # before its times are set: looking changes them
        if kept is not None or context.job.run > 1:  # since it was made, anybody may have given it ACLs
            drop_other_xattrs(target, attributes, preserve)
        applied = apply_attributes(target, attributes, preserve, context.options.umask, kept=kept)
        if lost is not None:
            raise lost
        if not task.again:  # else it was told, and counted, when it was finished first
            result.applied(place, b"", applied)
    except Problem as problem:
        if task.counted:
            result.count(counts.DIRECTORIES, 1, place)
            directory_failed(context, result, place, problem, task)
        elif task.again and problem.on_source and task.was is not None and result.phase < Phase.SEAL:
            result.spawn(task, phase=Phase.SEAL)  # by then it has been finished first
        elif task.again and problem.on_source and _is_as_it_was(task, context):
            pass  # nothing was put into it, and whatever its source is now, it has been finished
        elif task.again:
            directory_failed_again(context, result, place, problem, task._replace(counted=True))
        else:  # the item has failed before, and counts once
            result.report(context.shown(place, b"", on_source=False), problem)
        return
    if more:
        result.count(counts.EXTRA, 1, place)
    if task.counted:
        result.count(counts.DIRECTORIES, 1, place)
        if context.options.verify and result.phase < Phase.REPAIR and not task.again:  # once is enough
            result.digested(place, b"", context.hashing.directory, counts.DIRECTORIES)


def _attributes_now(context: Context, place: Place) -> Attributes:
    source = context.open_source(place)
    return read_attributes(source, status_of(source, on_source=True), context.options.preserve)


def _is_as_it_was(task: FinishDir, context: Context) -> bool:
    try:
        return status_of(context.open_target(task.place)).st_mtime_ns == task.was
    except Problem:
        return False


def _holds_more(task: FinishDir, context: Context, target: int) -> bool:
    """Are there more entries than the source has? Of DST itself no task knows, if several sources go into it.

    Sockets, and what is the job's own in the source, are no part of a dataset. They are told apart only where there are
    more names in all.
    """
    place = task.place
    shared = len(context.job.roots) > 1 and not context.below_target(place.root, place.path)
    if task.entries < 0 or shared:
        return False
    own = [os.path.basename(path) for root, path in context.job.own if (root, os.path.dirname(path)) == place[:2]]
    try:
        if count_entries(target, sockets=True) <= task.entries - len(own):
            return False
        source = context.open_source(place)
        expected = count_entries(source, sockets=False) - sum(look(source, name) is not None for name in own)
        return count_entries(target, sockets=False) > expected
    except (OSError, Problem):  # one may not be read
        return False
