"""LinkNote, GroupLinks and InodeCopied: the names of one inode meet at one rank, wherever they were found.

Notes are kept in buckets by inode, in spools outside memory; in the link phase each bucket is gathered on its own, so
that memory holds a small part of all names at a time. They are taken in the order of their paths: which of them is
copied, and what stays of those that exist, must not depend on who found them first. A resumed job may find names of an
inode that has been copied, in a directory that could not be read: they become links to that copy, also if this waits
for its name yet (``NameGroup``).
"""

from __future__ import annotations

from pcopy.engine.driver import Slices
from pcopy.engine.task import Task
from pcopy.fsio.close import let_go
from pcopy.fsio.half_written import find
from pcopy.fsio.problem import Problem
from pcopy.tasks import counts
from pcopy.tasks.codec import decode, encode
from pcopy.tasks.context import CALL_COST, Context
from pcopy.tasks.finish_again import finish_again
from pcopy.tasks.phases import Phase
from pcopy.tasks.result import Result
from pcopy.tasks.targets import hold_copy, look
from pcopy.tasks.values import (
    GroupLinks,
    InodeCopied,
    LinkGroup,
    LinkNote,
    MakeLinks,
    NameGroup,
    Place,
    bucket_of,
    unpack_names,
    unpack_numbers,
)


def link_note(task: LinkNote, context: Context, result: Result) -> Slices:
    """Puts the names into their bucket."""
    put(task, context, result)
    return result.outcome()
    yield


def inode_copied(task: InodeCopied, context: Context, result: Result) -> Slices:
    """A note for a resumed job, which puts it into its bucket: held to the end, since names may have to be made anew
    though nothing has failed."""
    if result.id[0] < context.job.run:
        put(task, context, result)
    else:
        result.hold()
    return result.outcome()
    yield


def put(task: LinkNote | InodeCopied | NameGroup, context: Context, result: Result) -> None:
    """Puts a task that knows of an inode's names into its bucket, until LINK."""
    result.hold()
    number = bucket_of(task.split.inode) if isinstance(task, NameGroup) else task.bucket
    if number not in context.links:
        gathered = Phase.REPAIR_LINK if result.phase >= Phase.REPAIR else Phase.LINK
        result.spawn(GroupLinks(number), phase=max(gathered, result.phase), owner=context.rank)
    context.bucket(number).append(Task(result.id, int(Phase.LINK), encode(task), 0))


def group_links(task: GroupLinks, context: Context, result: Result) -> Slices:
    """One bucket: everything known of its inodes is here now."""
    groups: dict[tuple[int, int], tuple[int, list[int], list[tuple[Place, bytes]]]] = {}
    copies: dict[tuple[int, int], list[MakeLinks]] = {}
    unnamed: list[NameGroup] = []
    backlog = context.links.pop(task.bucket)
    while backlog.count:
        for packed in backlog.take_frame():
            note: LinkNote | InodeCopied | NameGroup = decode(packed.payload)
            if isinstance(note, InodeCopied):  # it is not settled: this run may leave something to the next one
                copies.setdefault((note.links.group.mount, note.links.group.inode), []).append(note.links)
                continue
            result.settle((packed.id,))
            if isinstance(note, NameGroup):
                unnamed.append(note)
                continue
            columns = (unpack_names(note.names), unpack_numbers(note.mounts), unpack_numbers(note.inodes))
            for name, mount, inode, size in zip(*columns, unpack_numbers(note.sizes), strict=True):
                _, attempts, names = groups.setdefault((mount, inode), (size, [], []))
                attempts.append(note.attempt)
                names.append((note.place, name))
        yield
    backlog.close()
    for waiting in unnamed:
        _, _, names = groups.pop((waiting.split.mount, waiting.split.inode), (0, [], []))
        split = waiting.split._replace(links=(*waiting.split.links, *sorted(names)))
        result.spawn(waiting._replace(split=split), CALL_COST, phase=Phase.NAME)
    for (mount, inode), (size, attempts, names) in groups.items():
        names.sort()
        is_new = not any(attempts)  # else its size has been counted
        known = copies.get((mount, inode), [])
        links = None
        if any(_has_failed(context, each, names) for each in known):
            _add_linked(context, result, known, names)
        else:
            links = next(filter(None, (_linked(context, each, names) for each in known)), None)
        if links is not None:
            if is_new and any((place[:2], name) == _named(links.copied) for place, name in names):
                result.count(counts.FOUND_BYTES, size, names[0][0])
            result.spawn(links, len(names) * CALL_COST)
            continue
        if is_new:
            result.count(counts.FOUND_BYTES, size, names[0][0])
        result.spawn(LinkGroup(mount, inode, size, tuple(names), min(attempts)), size + len(names) * CALL_COST)
    return result.outcome()


def _named(item: tuple[Place, bytes] | None) -> tuple[tuple[int, bytes], bytes] | None:
    return (item[0][:2], item[1]) if item else None


def _has_failed(context: Context, links: MakeLinks, names: list[tuple[Place, bytes]]) -> bool:
    """Is the copy itself to be made again, and still marked? ``--inplace`` could not bring it to storage then."""
    place, name = copy = links.group.names[0]
    if not context.options.inplace or _named(copy) not in map(_named, names):
        return False
    try:
        directory, new_name = context.open_target(place), context.new_name(place, name)
        present = look(directory, new_name)
        return present is not None and find(directory, new_name, present) is not None
    except Problem:
        return True


def _add_linked(context: Context, result: Result, copies: list[MakeLinks], names: list[tuple[Place, bytes]]) -> None:
    """To ``names`` of an inode that is copied anew those that were linked to an earlier copy, and counted."""
    there = set(map(_named, names))
    for place, name in (item for links in copies for item in links.group.names):
        if _named((place, name)) not in there:
            there.add(_named((place, name)))
            names.append((place, name))
            result.count(counts.HARDLINKS, -1, place)
            finish_again(context, result, place, result.phase)
    names.sort()


def _linked(context: Context, links: MakeLinks, names: list[tuple[Place, bytes]]) -> MakeLinks | None:
    """What makes ``names`` further names of a copy that is there; None if nothing is left of that."""
    known = links.group.names
    for place, name in known:
        try:
            let_go(hold_copy(context, place, name, links.made)[0])
        except Problem:
            continue
        group = links.group._replace(names=((place, name), *names))
        return links._replace(group=group, copied=known[0])
    return None
