"""MakeLinks: the further names of an inode whose first name is there become links to that."""

from __future__ import annotations

import errno
import os
from contextlib import suppress

from pcopy.engine.driver import Slices
from pcopy.fsio.close import let_go
from pcopy.fsio.nodes import handle_of
from pcopy.fsio.problem import Problem
from pcopy.fsio.source import status_of
from pcopy.fsio.temporary import remove
from pcopy.tasks import counts
from pcopy.tasks.context import CALL_COST, Context
from pcopy.tasks.copy_anew import anew
from pcopy.tasks.hashing import SOCKET
from pcopy.tasks.link_group import note_copied
from pcopy.tasks.naming import Naming, discard
from pcopy.tasks.read_items import read_too, skipped
from pcopy.tasks.read_values import VerifyLinks
from pcopy.tasks.result import Result, Tried
from pcopy.tasks.targets import hold_copy, look, may_replace, put_over, refuse_anothers
from pcopy.tasks.values import (
    CopyAnew,
    FailedName,
    LinkGroup,
    MakeLinks,
    Place,
    Unnamed,
)


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
