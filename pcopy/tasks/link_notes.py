"""LinkNote and GroupLinks: the names of one inode meet at one rank, wherever they were found.

Notes are kept in buckets by inode, in spools outside memory; in the link phase each bucket is gathered on its own, so
that memory holds a small part of all names at a time.
"""

from __future__ import annotations

from pcopy.engine.driver import Slices
from pcopy.engine.task import Task
from pcopy.tasks import counts
from pcopy.tasks.context import CALL_COST, Context, Result
from pcopy.tasks.phases import Phase
from pcopy.tasks.values import (
    GroupLinks,
    LinkGroup,
    LinkNote,
    Place,
    decode,
    encode,
    pack_names,
    pack_numbers,
    unpack_names,
    unpack_numbers,
)

BUCKETS = 64


def link_note(task: LinkNote, context: Context, result: Result) -> Slices:
    """Puts the names into the buckets of their inodes."""
    rows: dict[int, list[tuple[bytes, int, int, int]]] = {}
    columns = (unpack_names(task.names), unpack_numbers(task.mounts), unpack_numbers(task.inodes))
    for name, mount, inode, size in zip(*columns, unpack_numbers(task.sizes), strict=True):
        rows.setdefault(inode // context.size % BUCKETS, []).append((name, mount, inode, size))
    for bucket, entries in rows.items():
        names, mounts, inodes, sizes = (list(column) for column in zip(*entries, strict=True))
        packed = (pack_names(names), pack_numbers(mounts), pack_numbers(inodes), pack_numbers(sizes))
        note = LinkNote(task.place, *packed, task.attempt)
        if bucket not in context.links:
            result.spawn(GroupLinks(bucket), phase=max(Phase.LINK, result.phase), owner=context.rank)
        context.bucket(bucket).append(Task((0, 0, 0), Phase.LINK, encode(note), 0))
    return result.outcome()
    yield


def group_links(task: GroupLinks, context: Context, result: Result) -> Slices:
    """One bucket: everything known of its inodes is here now."""
    groups: dict[tuple[int, int, int], tuple[int, list[tuple[Place, bytes]]]] = {}
    backlog = context.links.pop(task.bucket)
    while backlog.count:
        for packed in backlog.take_frame():
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
