"""LinkNote, GroupLinks and InodeCopied: the names of one inode meet at one rank, wherever they were found.

Notes are kept in buckets by inode, in spools outside memory; in the link phase each bucket is gathered on its own, so
that memory holds a small part of all names at a time. They are taken in the order of their paths: which of them is
copied, and what stays of those that exist, must not depend on who found them first. A resumed job may find names of an
inode that has been copied, in a directory that could not be read: they become links to that copy.
"""

from __future__ import annotations

from pcopy.engine.driver import Slices
from pcopy.engine.task import Task
from pcopy.fsio.problem import Problem
from pcopy.tasks import counts
from pcopy.tasks.codec import decode, encode
from pcopy.tasks.context import CALL_COST, Context
from pcopy.tasks.phases import Phase
from pcopy.tasks.result import Result
from pcopy.tasks.targets import look
from pcopy.tasks.values import (
    GroupLinks,
    InodeCopied,
    LinkGroup,
    LinkNote,
    MakeLinks,
    Place,
    unpack_names,
    unpack_numbers,
)


def link_note(task: LinkNote, context: Context, result: Result) -> Slices:
    """Puts the names into their bucket."""
    _put(task, context, result)
    return result.outcome()
    yield


def inode_copied(task: InodeCopied, context: Context, result: Result) -> Slices:
    """A note for a resumed job, which puts it into its bucket; held if anything has failed that is tried again then."""
    if result.id[0] < context.job.run:
        _put(task, context, result)
    elif context.begun_with()[counts.FAILED] or context.counters[counts.FAILED]:
        result.hold()
    return result.outcome()
    yield


def _put(task: LinkNote | InodeCopied, context: Context, result: Result) -> None:
    result.hold()
    if task.bucket not in context.links:
        gathered = Phase.REPAIR_LINK if result.phase >= Phase.REPAIR else Phase.LINK
        result.spawn(GroupLinks(task.bucket), phase=max(gathered, result.phase), owner=context.rank)
    context.bucket(task.bucket).append(Task(result.id, int(Phase.LINK), encode(task), 0))


def group_links(task: GroupLinks, context: Context, result: Result) -> Slices:
    """One bucket: everything known of its inodes is here now."""
    groups: dict[tuple[int, int, bool], tuple[int, list[int], list[tuple[Place, bytes]]]] = {}
    copies: dict[tuple[int, int], list[MakeLinks]] = {}
    backlog = context.links.pop(task.bucket)
    while backlog.count:
        for packed in backlog.take_frame():
            note: LinkNote | InodeCopied = decode(packed.payload)
            if isinstance(note, InodeCopied):  # it is not settled: this run may leave something to the next one
                copies.setdefault((note.links.group.mount, note.links.group.inode), []).append(note.links)
                continue
            result.settle((packed.id,))
            columns = (unpack_names(note.names), unpack_numbers(note.mounts), unpack_numbers(note.inodes))
            for name, mount, inode, size in zip(*columns, unpack_numbers(note.sizes), strict=True):
                _, attempts, names = groups.setdefault((mount, inode, note.attempt > 0), (size, [note.attempt], []))
                attempts[0] = min(attempts[0], note.attempt)
                names.append((note.place, name))
        yield
    backlog.close()
    for (mount, inode, _), (size, (attempt,), names) in groups.items():
        copy = next((links for links in copies.get((mount, inode), ()) if _is_there(context, links)), None)
        if copy is not None:
            links = copy._replace(group=copy.group._replace(names=(*copy.group.names, *names)))
            result.spawn(links, len(names) * CALL_COST)
            continue
        if not attempt:
            result.count(counts.FOUND_BYTES, size)
        result.spawn(LinkGroup(mount, inode, size, tuple(sorted(names)), attempt), size + len(names) * CALL_COST)
    return result.outcome()


def _is_there(context: Context, links: MakeLinks) -> bool:
    """Is the copy that names are to be linked to still in its place?"""
    place, name = links.group.names[0]
    try:
        present = look(context.open_target(place), context.new_name(place, name))
    except Problem:
        return False
    return present is not None and present.st_ino == links.made
