"""LinkNote and GroupLinks: the names of one inode meet at one rank, wherever they were found.

Notes are kept in buckets by inode, in spools outside memory; in the link phase each bucket is gathered on its own, so
that memory holds a small part of all names at a time.
"""

from __future__ import annotations

from pcopy.engine.driver import Slices
from pcopy.engine.task import Task
from pcopy.tasks import counts
from pcopy.tasks.codec import decode, encode
from pcopy.tasks.context import CALL_COST, Context
from pcopy.tasks.phases import Phase
from pcopy.tasks.result import Result
from pcopy.tasks.values import GroupLinks, LinkGroup, LinkNote, Place, unpack_names, unpack_numbers


def link_note(task: LinkNote, context: Context, result: Result) -> Slices:
    """Puts the names into their bucket."""
    result.hold()
    if task.bucket not in context.links:
        gathered = Phase.REPAIR_LINK if result.phase >= Phase.REPAIR else Phase.LINK
        result.spawn(GroupLinks(task.bucket), phase=max(gathered, result.phase), owner=context.rank)
    context.bucket(task.bucket).append(Task(result.id, Phase.LINK, encode(task), 0))
    return result.outcome()
    yield


def group_links(task: GroupLinks, context: Context, result: Result) -> Slices:
    """One bucket: everything known of its inodes is here now."""
    groups: dict[tuple[int, int, int], tuple[int, list[tuple[Place, bytes]]]] = {}
    backlog = context.links.pop(task.bucket)
    while backlog.count:
        for packed in backlog.take_frame():
            result.settle((packed.id,))
            note: LinkNote = decode(packed.payload)
            columns = (unpack_names(note.names), unpack_numbers(note.mounts), unpack_numbers(note.inodes))
            for name, mount, inode, size in zip(*columns, unpack_numbers(note.sizes), strict=True):
                groups.setdefault((mount, inode, note.attempt), (size, []))[1].append((note.place, name))
        yield
    backlog.close()
    for (mount, inode, attempt), (size, names) in groups.items():
        if not attempt:
            result.count(counts.FOUND_BYTES, size)
        result.spawn(LinkGroup(mount, inode, size, tuple(names), attempt), size + len(names) * CALL_COST)
    return result.outcome()
