"""LinkGroup: of the names of one inode, one is copied; then ``MakeLinks`` links the others to it.

If the one can't be copied, it has failed and the next takes its place.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Generator

from pcopy.engine.driver import Slices
from pcopy.fsio.identity import Identity
from pcopy.fsio.kernel import SMALL_FILE
from pcopy.fsio.problem import MetadataProblem, Problem, changed
from pcopy.fsio.source import Version, source_status
from pcopy.tasks.context import CALL_COST, Context
from pcopy.tasks.copy_files import count_settled
from pcopy.tasks.copy_nodes import copy_one_node
from pcopy.tasks.hashing import kind_of
from pcopy.tasks.phases import Phase
from pcopy.tasks.result import Result, Tried
from pcopy.tasks.retry import failed_or_retried, is_tried_again
from pcopy.tasks.targets import look, looked_at_again
from pcopy.tasks.unnamed import name_later
from pcopy.tasks.values import (
    FailedName,
    InodeCopied,
    Known,
    LinkGroup,
    MakeLinks,
    Place,
    SplitFile,
    bucket_of,
)
from pcopy.tasks.whole_file import Settled, copy_whole, what_stays


def link_group(task: LinkGroup, context: Context, result: Result) -> Slices:
    """Copies the first name that can be copied, and is not kept as it is; its links follow when it is there.

    The names before it are left behind here: a task for each would carry all that follow.
    """
    failed = task.failed
    for index, (found, name) in enumerate(task.names):
        place, alone = found, index + 1 == len(task.names)
        try:
            if task.attempt:
                place = looked_at_again(context, place)
            settled = yield from _copied(task, place, name, context, result, alone=alone)
            if settled is not None and _is_kept(settled) and not alone:
                yield
                continue
            split = _split(task, place, index, failed)
            if settled is None:
                result.spawn(split, task.size)
            else:
                after_settled(context, result, split, settled)
        except Problem as problem:
            left = _left_behind(context, result, split := _split(task, place, index, failed), problem)
            if left is not None and not alone:
                failed = left
                yield
                continue
            _pass_on(result, split, left)
        break
    return result.outcome()


def _split(task: LinkGroup, place: Place, index: int, failed: tuple[FailedName, ...]) -> SplitFile:
    """The name that comes now, with those that follow."""
    links = task.names[index + 1 :]
    return SplitFile(place, task.names[index][1], task.mount, task.inode, task.size, task.attempt, links, failed)


def _copied(
    task: LinkGroup, place: Place, name: bytes, context: Context, result: Result, *, alone: bool
) -> Generator[None, None, Settled | None]:
    """Copies and counts one name, if that is wanted; None for a large file, which is copied by a task of its own.

    Raises ``Problem``.
    """
    status = source_status(context.open_source(place), name, follow=context.options.dereference)
    if status.st_ino != task.inode or context.source_device(place, task.mount) not in (None, status.st_dev):
        raise changed("stat", "another item has taken its name")
    if not stat.S_ISREG(status.st_mode):
        return copy_one_node(context, result, place, name, task.inode, alone=alone, linked=True)
    settled: Settled | None
    if task.size <= SMALL_FILE:
        settled = yield from copy_whole(context, result, place, name, task.mount, task.inode, linked=True)
    elif context.options.checksum:  # it is read once
        settled = None
    else:
        settled = yield from what_stays(context, place, name, task.mount, task.inode)
    if settled is not None:
        count_settled(context, result, place, name, settled, alone=alone)
    return settled


def _is_kept(settled: Settled) -> bool:
    """Was it there, and stays, so that it gets no further names?"""
    return settled.unnamed is None and not (settled.alike and settled.made is not None)


def representative_failed(context: Context, result: Result, task: SplitFile, problem: Problem) -> None:
    """The first name has failed, or waits to be tried again; the next takes its place."""
    _pass_on(result, task, _left_behind(context, result, task, problem))


def _left_behind(context: Context, result: Result, task: SplitFile, problem: Problem) -> tuple[FailedName, ...] | None:
    """The names that have failed, if the next one takes the first one's place, else None.

    An inode that changes is tried again with all of its names: one that came later alone would be no link any more.
    """
    made = problem.made if isinstance(problem, MetadataProblem) and not context.keeps else None  # else it has no name
    there = _made(context, (task.place, task.name)) if made is not None else None
    if made is not None and there is not None:  # though not with all of its metadata
        known = Known(kind_of(there), task.size, b"", Version(task.inode, task.size, 0, 0))  # it has no digest
        after_representative(context, result, task, made, known, shortcoming=problem)
        return None
    is_again = is_tried_again(problem, task.attempt)
    if is_again and task.links and _still_named(context, task):
        names = ((task.place, task.name), *task.links)
        group = LinkGroup(task.mount, task.inode, task.size, names, task.attempt + 1, task.failed)
        result.spawn(group, task.size + len(names) * CALL_COST, phase=max(Phase.LINK, result.phase))
        return None
    if is_again or not (task.failed or task.links):
        failed_or_retried(result, task.place, task.name, problem, task.attempt, task.size)
        return task.failed
    return (*task.failed, (task.place, task.name, problem.plain))


def _pass_on(result: Result, task: SplitFile, failed: tuple[FailedName, ...] | None) -> None:
    """The next name takes the first one's place, or there is none; nothing if ``failed`` is None."""
    if failed is None:
        return
    if task.links:
        next_represents(result, task, failed)
    elif failed:
        _all_failed(result, task, failed)


def _all_failed(result: Result, task: SplitFile, failed: tuple[FailedName, ...]) -> None:
    """A resumed job tries them together, so that they become links of each other."""
    names = tuple((place, name) for place, name, _ in failed)
    retry: LinkGroup | Tried = LinkGroup(task.mount, task.inode, task.size, names, max(1, task.attempt))
    touched = not all(result.is_untouched(place, Problem.from_plain(problem)) for place, _, problem in failed)
    for place, name, problem in failed:
        result.fail(place, name, Problem.from_plain(problem), task.size, retry=retry, touched=touched)
        retry = Tried.WITH_ANOTHER


def _made(context: Context, item: tuple[Place, bytes]) -> os.stat_result | None:
    """What a name is in the target; None if that can't be told."""
    place, name = item
    try:
        return look(context.open_target(place), context.new_name(place, name))
    except Problem:
        return None


def _still_named(context: Context, task: SplitFile) -> bool:
    """Is the first name still one of this inode?"""
    try:
        source = context.open_source(task.place)
        return source_status(source, task.name, follow=context.options.dereference).st_ino == task.inode
    except Problem:
        return False


def next_represents(result: Result, task: SplitFile, failed: tuple[FailedName, ...]) -> None:
    """The first of the links, if there are any, is copied, and the others linked to that."""
    if task.links:
        group = LinkGroup(task.mount, task.inode, task.size, task.links, task.attempt, failed)
        result.spawn(group, task.size + len(task.links) * CALL_COST)


def after_settled(context: Context, result: Result, task: SplitFile, settled: Settled) -> None:
    """The first name is copied, or was there and stays. The others become links to that only if it is the same:
    whoever keeps an old file wants no further names of it."""
    if settled.unnamed is not None:
        name_later(context, result, task, settled.unnamed, settled.known, shortcoming=settled.shortcoming)
    elif not _is_kept(settled) and settled.made is not None:
        after_representative(context, result, task, settled.made, settled.known)
    else:
        _pass_on(result, task, task.failed)


def after_representative(
    context: Context,
    result: Result,
    task: SplitFile,
    made: Identity,
    known: Known,
    *,
    chunk: int = 0,
    writers: bytes = b"",
    shortcoming: Problem | None = None,
) -> None:
    """The first name is there, but for the metadata that had the ``shortcoming``; spawns the making of the others.

    ``chunk`` and ``writers``: see ``pcopy.tasks.read_values.Contents``; without them this host has written it.
    """
    if shortcoming is not None and not (task.links or task.failed):
        result.fail(task.place, task.name, shortcoming, task.size)
        return
    writers = writers or bytes((context.hosts.here,))
    first = task.place, task.name
    failed = () if shortcoming is None else ((*first, shortcoming.plain), *task.failed)
    if task.links or failed:
        group = LinkGroup(task.mount, task.inode, task.size, (first, *task.links), task.attempt, failed)
        result.spawn(MakeLinks(group, made, known, chunk, writers, False), len(group.names) * CALL_COST)
    if failed:
        return
    alone = LinkGroup(task.mount, task.inode, task.size, (first,), task.attempt)
    if not task.links and (task.failed or _has_more_names(context, task)):
        note_copied(context, result, MakeLinks(alone, made, known, chunk, writers, True))
    for place, name, problem in task.failed:
        group = alone._replace(names=(first, (place, name)))
        retry = MakeLinks(group, made, known, chunk, writers, True)
        result.fail(place, name, Problem.from_plain(problem), task.size, retry=retry)


def note_copied(context: Context, result: Result, links: MakeLinks) -> None:
    """For a job that is resumed, and finds more names of the inode."""
    if context.job.began and context.options.preserve.links:
        note = InodeCopied(links, bucket_of(links.group.inode))
        result.spawn(note, phase=max(Phase.FINISH, result.phase), owner=note.bucket % context.size)


def _has_more_names(context: Context, task: SplitFile) -> bool:
    """Has the inode names that were not found?"""
    if not (context.job.began and context.options.preserve.links):
        return False
    try:
        source = context.open_source(task.place)
        status = source_status(source, task.name, follow=context.options.dereference)
    except Problem:
        return False
    return status.st_nlink > 1
