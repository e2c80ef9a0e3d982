"""LinkGroup and MakeLinks: of the names of one inode, one is copied and the others are linked to it.

If the one can't be copied, it has failed and the next takes its place.
"""

from __future__ import annotations

import errno
import os
import stat

from pcopy.engine.driver import Slices
from pcopy.fsio.kernel import SMALL_FILE
from pcopy.fsio.problem import MetadataProblem, Problem, changed
from pcopy.fsio.source import Version, source_status
from pcopy.fsio.temporary import put_in_place, remove, verify_name
from pcopy.tasks import counts
from pcopy.tasks.context import CALL_COST, Context
from pcopy.tasks.copy_files import count_settled
from pcopy.tasks.copy_nodes import copy_one_node
from pcopy.tasks.hashing import SOCKET, kind_of
from pcopy.tasks.phases import Phase
from pcopy.tasks.read_items import read_too, skipped
from pcopy.tasks.read_values import VerifyLinks
from pcopy.tasks.result import Result, Tried
from pcopy.tasks.retry import failed_or_retried, is_tried_again
from pcopy.tasks.targets import clear_way, look, looked_at_again, may_replace, refuse_anothers
from pcopy.tasks.values import FailedName, InodeCopied, Known, LinkGroup, MakeLinks, Place, SplitFile, bucket_of
from pcopy.tasks.whole_file import Settled, copy_whole


def link_group(task: LinkGroup, context: Context, result: Result) -> Slices:
    """Copies the first name; its links follow when it is there."""
    place, name = task.names[0]
    split = SplitFile(place, name, task.mount, task.inode, task.size, task.attempt, task.names[1:], task.failed)
    try:
        if task.attempt:
            place = looked_at_again(context, place)
            split = split._replace(place=place)
        status = source_status(context.open_source(place), name, follow=context.options.dereference)
        if status.st_ino != task.inode or context.source_device(place, task.mount) not in (None, status.st_dev):
            raise changed("stat", "another item has taken its name")
        if not stat.S_ISREG(status.st_mode):
            settled = copy_one_node(context, result, place, name, task.inode, alone=not split.links)
        elif task.size > SMALL_FILE:
            result.spawn(split, task.size)
            return result.outcome()
        else:
            settled = yield from copy_whole(context, result, place, name, task.mount, task.inode)
            count_settled(context, result, place, name, settled, alone=not split.links)
        after_settled(context, result, split, settled)
    except Problem as problem:
        representative_failed(context, result, split, problem)
    return result.outcome()


def representative_failed(context: Context, result: Result, task: SplitFile, problem: Problem) -> None:
    """The first name has failed, or waits to be tried again; the next takes its place.

    An inode that changes is tried again with all of its names: one that came later alone would be no link any more.
    """
    made = _made(context, (task.place, task.name)) if isinstance(problem, MetadataProblem) else None
    if made is not None:  # it is there, though not with all of its metadata
        known = Known(kind_of(made), task.size, b"", Version(task.inode, task.size, 0, 0))  # it has no digest
        after_representative(context, result, task, made.st_ino, known, shortcoming=problem)
    elif is_tried_again(problem, task.attempt) and task.links and _still_named(context, task):
        names = ((task.place, task.name), *task.links)
        group = LinkGroup(task.mount, task.inode, task.size, names, task.attempt + 1, task.failed)
        result.spawn(group, task.size + len(names) * CALL_COST, phase=max(Phase.LINK, result.phase))
    else:
        failed = task.failed
        if is_tried_again(problem, task.attempt) or not (failed or task.links):
            failed_or_retried(result, task.place, task.name, problem, task.attempt, task.size)
        else:
            failed = (*failed, (task.place, task.name, problem.plain))
        if task.links:
            _next_represents(result, task, failed)
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


def _next_represents(result: Result, task: SplitFile, failed: tuple[FailedName, ...]) -> None:
    if task.links:
        group = LinkGroup(task.mount, task.inode, task.size, task.links, task.attempt, failed)
        result.spawn(group, task.size + len(task.links) * CALL_COST)


def after_settled(context: Context, result: Result, task: SplitFile, settled: Settled) -> None:
    """The first name is copied, or was there and stays. The others become links to that only if it is the same:
    whoever keeps an old file wants no further names of it."""
    if settled.alike:
        after_representative(context, result, task, settled.inode, settled.known)
    elif task.links:
        _next_represents(result, task, task.failed)
    elif task.failed:
        _all_failed(result, task, task.failed)


def after_representative(
    context: Context,
    result: Result,
    task: SplitFile,
    made: int,
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
    if _has_more_names(context, task):
        later = InodeCopied(MakeLinks(alone, made, known, chunk, writers, True), bucket_of(task.inode))
        result.spawn(later, phase=max(Phase.FINISH, result.phase), owner=later.bucket % context.size)
    for place, name, problem in task.failed:
        group = alone._replace(names=(first, (place, name)))
        retry = MakeLinks(group, made, known, chunk, writers, True)
        result.fail(place, name, Problem.from_plain(problem), task.size, retry=retry)


def _has_more_names(context: Context, task: SplitFile) -> bool:
    """Has the inode names that were not found, in a job that can be resumed?"""
    if not (context.job.began and context.options.preserve.links):
        return False
    try:
        source = context.open_source(task.place)
        status = source_status(source, task.name, follow=context.options.dereference)
    except Problem:
        return False
    return status.st_nlink > 1 + len(task.links) + len(task.failed)


def make_links(task: MakeLinks, context: Context, result: Result) -> Slices:
    """Links each further name to the first."""
    first, *others = task.group.names
    linked, failed = [first], list(task.group.failed)
    before = _made(context, first) if context.job.run > 1 else None
    for index, (place, name) in enumerate(others):
        try:
            if _link(context, result, task, before, place, name):
                linked.append((place, name))
        except Problem as problem:
            if problem.errno == errno.EMLINK:  # full up: a second copy takes the others
                rest = tuple(others[index:])
                group = LinkGroup(task.group.mount, task.group.inode, task.group.size, rest, task.group.attempt)
                result.spawn(group, task.group.size + len(rest) * CALL_COST)
                break
            if failed:
                failed.append((place, name, problem.plain))
            else:
                alone = task._replace(group=task.group._replace(names=(first, (place, name))), more=True)
                result.fail(place, name, problem, retry=alone)
        yield
    if failed:
        _fail_together(result, task.group, linked, failed)
    elif context.options.verify and task.known.digest and len(linked) > task.more:
        names = tuple(linked[task.more :])
        group = task.group._replace(names=names)
        counter = counts.HARDLINKS if task.more else counts.of_kind(task.known.kind)
        verify = VerifyLinks(group, task.made, task.known, counter, task.chunk, task.writers)
        result.to_verify(len(names), task.known.size)
        result.spawn_elsewhere(verify, task.known.size, task.writers[0], phase=result.verify_phase)
    return result.outcome()


def _fail_together(
    result: Result, group: LinkGroup, linked: list[tuple[Place, bytes]], failed: list[FailedName]
) -> None:
    """The first name, and with it the inode, lacks some of its metadata; others have failed, too.

    A resumed job copies and links all names anew, also those that count as made.
    """
    names = (*linked, *((place, name) for place, name, _ in failed[1:]))
    retry: LinkGroup | Tried = LinkGroup(group.mount, group.inode, group.size, names, 1)
    anew = len(linked) - 1
    for place, name, problem in failed:
        known = Problem.from_plain(problem)
        result.fail(place, name, known, group.size, retry=retry, links_anew=anew, touched=True)
        retry, anew = Tried.WITH_ANOTHER, 0


def _link(
    context: Context,
    result: Result,
    task: MakeLinks,
    before: os.stat_result | None,
    place: Place,
    source_name: bytes,
) -> bool:
    """Makes and counts one link, or counts as skipped what is there; returns whether it was made.

    ``before``: the status of the first name when the task began. A file that stays has links of the job's own only if
    it had been touched then; making one touches it.
    """
    first = task.group.names[0]
    target, name = context.open_target(place), context.new_name(place, source_name)
    old_directory = context.open_target(first[0])
    old_name = context.new_name(*first)
    present = look(target, name)
    if present is None:
        _make(old_directory, old_name, target, name)
        try:
            verify_name(target, name, task.made)
        except Problem:
            remove(target, name)
            raise
    else:
        like = look(old_directory, old_name)
        linked = like is not None and (present.st_dev, present.st_ino) == (like.st_dev, like.st_ino)
        linked = linked and present.st_ino == task.made
        refuse_anothers(context, place, target, name, present)
        if not (linked and before is not None and context.is_ours(place, before)):
            if linked or not _may_relink(context, place, target, name, present, like):
                skipped(context, result, place, source_name, task.known)
                return False
            temporary = context.temporary_names.next()
            _make(old_directory, old_name, target, temporary)
            try:
                clear_way(target, name, present)
                put_in_place(target, temporary, name, task.made)
            except Problem:
                remove(target, temporary)
                raise
    context.succeeded()
    result.count(counts.HARDLINKS)
    if task.known.digest:
        result.digested(place, source_name, task.known, counts.HARDLINKS, verify=False)
    elif (context.signs or context.verifies_skipped) and task.known.kind != SOCKET and not task.group.failed:
        read_too(result, place, source_name, task.known, counts.HARDLINKS)
    return True


def _may_relink(
    context: Context, place: Place, target: int, name: bytes, present: os.stat_result, like: os.stat_result | None
) -> bool:
    """A name that has its own copy is no hard link: only who wants to keep what exists keeps that."""
    if context.options.existing == "changed" and not place.fresh:
        return True
    return like is None or may_replace(context, place, like, target, name, present)


def _make(old_directory: int, old_name: bytes, target: int, name: bytes) -> None:
    try:
        os.link(old_name, name, src_dir_fd=old_directory, dst_dir_fd=target, follow_symlinks=False)
    except OSError as error:
        raise Problem.of("link", error) from error
