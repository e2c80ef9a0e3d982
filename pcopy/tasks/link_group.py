"""LinkGroup and MakeLinks: of the names of one inode, one is copied and the others are linked to it.

If the one can't be copied, it has failed and the next takes its place.
"""

from __future__ import annotations

import errno
import os
import stat
from contextlib import suppress

from pcopy.engine.driver import Slices
from pcopy.fsio.close import let_go
from pcopy.fsio.identity import Identity
from pcopy.fsio.kernel import SMALL_FILE
from pcopy.fsio.nodes import handle_of
from pcopy.fsio.problem import MetadataProblem, Problem, changed
from pcopy.fsio.source import Version, source_status, status_of
from pcopy.fsio.temporary import remove, verify_name
from pcopy.tasks import counts
from pcopy.tasks.context import CALL_COST, Context
from pcopy.tasks.copy_anew import anew
from pcopy.tasks.copy_files import count_settled
from pcopy.tasks.copy_nodes import copy_one_node
from pcopy.tasks.hashing import SOCKET, kind_of
from pcopy.tasks.naming import Naming, discard
from pcopy.tasks.phases import Phase
from pcopy.tasks.read_items import read_too, skipped
from pcopy.tasks.read_values import VerifyLinks
from pcopy.tasks.result import Result, Tried
from pcopy.tasks.retry import failed_or_retried, is_tried_again
from pcopy.tasks.targets import hold_copy, look, looked_at_again, may_replace, put_over, refuse_anothers
from pcopy.tasks.unnamed import name_later
from pcopy.tasks.values import (
    CopyAnew,
    FailedName,
    InodeCopied,
    Known,
    LinkGroup,
    MakeLinks,
    Place,
    SplitFile,
    Unnamed,
    bucket_of,
)
from pcopy.tasks.whole_file import Settled, copy_whole


def link_group(task: LinkGroup, context: Context, result: Result) -> Slices:
    """Copies the first name that is not kept as it is; its links follow when it is there.

    Those that are kept are left behind here, one after the other: a task for each would carry all names that follow.
    """
    for index, (found, name) in enumerate(task.names):
        place, links = found, task.names[index + 1 :]
        split = SplitFile(place, name, task.mount, task.inode, task.size, task.attempt, links, task.failed)
        try:
            if task.attempt:
                place = looked_at_again(context, place)
                split = split._replace(place=place)
            status = source_status(context.open_source(place), name, follow=context.options.dereference)
            if status.st_ino != task.inode or context.source_device(place, task.mount) not in (None, status.st_dev):
                raise changed("stat", "another item has taken its name")
            if not stat.S_ISREG(status.st_mode):
                settled = copy_one_node(context, result, place, name, task.inode, alone=not links, linked=True)
            elif task.size > SMALL_FILE:
                result.spawn(split, task.size)
                break
            else:
                settled = yield from copy_whole(context, result, place, name, task.mount, task.inode, linked=True)
                count_settled(context, result, place, name, settled, alone=not links)
            if links and _is_kept(settled):
                yield
                continue
            after_settled(context, result, split, settled)
        except Problem as problem:
            representative_failed(context, result, split, problem)
        break
    return result.outcome()


def _is_kept(settled: Settled) -> bool:
    """Was it there, and stays, so that it gets no further names?"""
    return settled.unnamed is None and not (settled.alike and settled.made is not None)


def representative_failed(context: Context, result: Result, task: SplitFile, problem: Problem) -> None:
    """The first name has failed, or waits to be tried again; the next takes its place.

    An inode that changes is tried again with all of its names: one that came later alone would be no link any more.
    """
    made = problem.made if isinstance(problem, MetadataProblem) and not context.keeps else None  # else it has no name
    there = _made(context, (task.place, task.name)) if made is not None else None
    if made is not None and there is not None:  # though not with all of its metadata
        known = Known(kind_of(there), task.size, b"", Version(task.inode, task.size, 0, 0))  # it has no digest
        after_representative(context, result, task, made, known, shortcoming=problem)
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
    elif task.links:
        next_represents(result, task, task.failed)
    elif task.failed:
        _all_failed(result, task, task.failed)


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


def make_links(task: MakeLinks, context: Context, result: Result) -> Slices:
    """Links each further name to the first, which is held, so that it can't become another one meanwhile."""
    first, *others = task.group.names
    linked, failed = [first], list(task.group.failed)
    held, lost = -1, None
    try:
        held, is_known = _hold_any(context, task)
        if not is_known:
            text = "cannot be told from a later file with its inode's number: further names of it are copied again"
            _copy_again(result, task, others, text)
            others = []
        before = status_of(held)
    except Problem as problem:
        if context.keeps:  # it may well have been replaced since: the user's stays, and the others get a second copy
            _copy_again(result, task, others, "has been replaced since it was copied: further names are copied again")
            others = []
        else:
            lost = problem
    try:
        for index, (place, name) in enumerate(others):
            try:
                if lost is not None:
                    raise lost
                if _link(context, result, task, held, before, place, name):
                    linked.append((place, name))
            except Problem as problem:
                if problem.errno == errno.EMLINK:  # full up: a second copy takes the others
                    text = "its inode can take no more links: further names of it are linked to a second copy"
                    _copy_again(result, task, others[index:], text)
                    break
                if failed:
                    failed.append((place, name, problem.plain))
                else:
                    alone = task._replace(group=task.group._replace(names=(first, (place, name))), more=True)
                    result.fail(place, name, problem, retry=alone)
            yield
    finally:
        if held >= 0:
            let_go(held)
    if failed:
        _fail_together(context, result, task, linked, failed)
        return result.outcome()
    if len(linked) > 1 or not task.more:
        names = tuple(dict.fromkeys((task.copied or first, *linked)))
        note_copied(context, result, task._replace(group=task.group._replace(names=names), more=True, copied=None))
    if context.options.verify and task.known.digest and len(linked) > task.more:
        names = tuple(linked[task.more :])
        group = task.group._replace(names=names)
        counter = counts.HARDLINKS if task.more and not _is_copied(task, *names[0]) else counts.of_kind(task.known.kind)
        verify = VerifyLinks(group, task.made.inode, task.known, counter, task.chunk, task.writers)
        for number, (place, _) in enumerate(names):
            result.to_verify(1, 0 if number else task.known.size, place)
        result.spawn_elsewhere(verify, task.known.size, task.writers[0], phase=result.verify_phase)
    return result.outcome()


def _hold_any(context: Context, task: MakeLinks) -> tuple[int, bool]:
    """As ``hold_copy`` of the first name, or of one that an earlier run has made (else it would seem the user's)."""
    for place, name in task.group.names if context.keeps and context.job.run > 1 and task.made.mark else ():
        with suppress(Problem):
            return hold_copy(context, place, name, task.made)
    return hold_copy(context, *task.group.names[0], task.made)


def _copy_again(result: Result, task: MakeLinks, names: list[tuple[Place, bytes]], why: str) -> None:
    """The first of ``names`` is copied, and the others linked to it."""
    if names:
        group = task.group
        result.warn(*group.names[0], why)
        rest = LinkGroup(group.mount, group.inode, group.size, tuple(names), group.attempt)
        result.spawn(rest, group.size + len(names) * CALL_COST)


def _is_copied(task: MakeLinks, place: Place, name: bytes) -> bool:
    """Does this name, which is made, count as the copy?"""
    return task.copied is not None and (place[:2], name) == (task.copied[0][:2], task.copied[1])


def _fail_together(
    context: Context, result: Result, task: MakeLinks, linked: list[tuple[Place, bytes]], failed: list[FailedName]
) -> None:
    """The first name, and with it the inode, lacks some of its metadata; others have failed, too.

    A resumed job copies and links all names anew, also those that count as made.
    """
    group = task.group
    names = (*linked, *((place, name) for place, name, _ in failed[1:]))
    again = LinkGroup(group.mount, group.inode, group.size, names, 1)
    retry: LinkGroup | CopyAnew | Tried = (
        anew(context, again, task.made.inode, task.made.mark) if context.keeps else again
    )
    for place, name, problem in failed:
        known = Problem.from_plain(problem)
        result.fail(place, name, known, group.size, retry=retry, touched=True)
        retry = Tried.WITH_ANOTHER
    for place, _ in linked[1:]:
        result.link_again(place)


def _link(
    context: Context,
    result: Result,
    task: MakeLinks,
    held: int,
    before: os.stat_result,
    place: Place,
    source_name: bytes,
) -> bool:
    """Makes and counts one link to what is ``held``, or counts as skipped what is there; returns whether it was made.

    ``before``: its status when the task began. In a resumed job a file that stays has links of the job's own only if it
    had been touched then; making one touches it.
    """
    target, name = context.open_target(place), context.new_name(place, source_name)
    present = look(target, name)
    if context.keeps:
        if not _link_unasked(context, result, task, held, place, source_name, present):
            skipped(context, result, place, source_name, task.known)
            return False
    elif present is None:
        _make(held, target, name)
        verify_name(target, name, status_of(held).st_ino)
    else:
        like = status_of(held)
        linked = (present.st_dev, present.st_ino) == (like.st_dev, like.st_ino)
        refuse_anothers(context, place, target, name, present)
        if not (linked and context.job.run > 1 and context.is_ours(place, before)):
            if linked or not _may_relink(context, place, target, name, present, like):
                skipped(context, result, place, source_name, task.known)
                return False
            temporary = context.temporary_names.next()
            _make(held, target, temporary)
            try:
                put_over(context, target, temporary, name, status_of(held).st_ino, present)
            except Problem:
                remove(target, temporary)
                raise
    context.succeeded()
    counter = counts.of_kind(task.known.kind) if _is_copied(task, place, source_name) else counts.HARDLINKS
    result.count(counter, 1, place)
    if counter == counts.FILES:
        result.count(counts.BYTES, task.known.size, place)
    if task.known.digest:
        result.digested(place, source_name, task.known, counter, verify=False)
    elif (context.signs or context.verifies_skipped) and task.known.kind != SOCKET and not task.group.failed:
        read_too(result, place, source_name, task.known, counter)
    return True


def _link_unasked(
    context: Context,
    result: Result,
    task: MakeLinks,
    held: int,
    place: Place,
    source_name: bytes,
    present: os.stat_result | None,
) -> bool:
    """Makes a link where nothing is replaced unasked; False if what is there, or comes meanwhile, stays."""
    target, name = context.open_target(place), context.new_name(place, source_name)
    if present is None:
        try:
            _make(held, target, name)
            return True
        except Problem as problem:
            if problem.errno != errno.EEXIST:
                raise
    item = Unnamed(context.temporary_names.next(), task.made.inode, task.made.mark)
    _make(held, target, item.temporary)
    named = False
    try:
        named = Naming(context, item, task.known).give(place, source_name)
    finally:
        if not named:
            discard(context, place, item, result)
    return named


def _may_relink(
    context: Context, place: Place, target: int, name: bytes, present: os.stat_result, like: os.stat_result
) -> bool:
    """A name that has its own copy is no hard link: only who wants to keep what exists keeps that."""
    if context.options.existing == "changed" and not place.fresh:
        return True
    return may_replace(context, place, like, target, name, present)


def _make(held: int, target: int, name: bytes) -> None:
    """A further name of the very item that is held. (AT_EMPTY_PATH, which needs no /proc, is for root alone.)"""
    try:
        os.link(handle_of(held), name, dst_dir_fd=target, follow_symlinks=True)
    except OSError as error:
        raise Problem.of("link", error) from error
