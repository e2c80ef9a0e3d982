"""CopyNodes: a batch of symbolic links, FIFOs, sockets and devices of one directory."""

from __future__ import annotations

import os
import stat

from pcopy.engine.driver import Slices
from pcopy.fsio.compare import same_link
from pcopy.fsio.existing import alike
from pcopy.fsio.nodes import copy_node
from pcopy.fsio.problem import Problem
from pcopy.fsio.source import Version, source_status
from pcopy.fsio.temporary import put_in_place, remove
from pcopy.tasks import counts
from pcopy.tasks.context import Context
from pcopy.tasks.hashing import kind_of
from pcopy.tasks.read_items import skipped
from pcopy.tasks.result import Result
from pcopy.tasks.retry import failed_or_retried
from pcopy.tasks.targets import clear_way, kept_from, look, may_replace
from pcopy.tasks.values import CopyNodes, Known, Place, unpack_names, unpack_numbers
from pcopy.tasks.whole_file import Settled


def copy_nodes(task: CopyNodes, context: Context, result: Result) -> Slices:
    """One after the other; each is made in one system call, so a new one needs no temporary name."""
    for name, inode in zip(unpack_names(task.names), unpack_numbers(task.inodes), strict=True):
        try:
            copy_one_node(context, result, task.place, name, inode)
        except Problem as problem:
            failed_or_retried(result, task.place, name, problem, task.attempt)
        yield
    return result.outcome()


def copy_one_node(
    context: Context, result: Result, place: Place, name: bytes, inode: int, *, alone: bool = True
) -> Settled:
    """Copies and counts one; raises ``Problem``, and leaves the old target then.

    One that is not ``alone`` is verified with its links.
    """
    source, target = context.open_source(place), context.open_target(place)
    new_name = context.new_name(place, name)
    follow = context.options.dereference
    status = source_status(source, name, follow=follow)
    present = look(target, new_name)
    if present is not None and not _gives_way(context, place, source, name, status, target, new_name, present):
        known = Known(kind_of(status), 0, b"", Version.of(status))
        skipped(context, result, place, name, known)
        contents = context.options.checksum
        same = alike(status, present, context.options.modify_window, contents=contents)
        return Settled(False, known, present.st_ino, same)
    made_as = new_name if present is None else context.temporary_names.next()
    preserve, umask = context.options.preserve, context.options.umask
    kept = present if present is not None and stat.S_IFMT(present.st_mode) == stat.S_IFMT(status.st_mode) else None
    kept = kept_from(context, place, status, target, new_name, kept)
    try:
        made = copy_node(
            source, name, inode, target, made_as, preserve, umask, inherits=place.inherits, kept=kept, follow=follow
        )
        if present is not None:
            clear_way(target, new_name, present)
            put_in_place(target, made_as, new_name, made.status.st_ino)
    except Problem:
        if present is not None:  # a temporary name is ours alone
            remove(target, made_as)
        raise
    if made.shortcoming is not None:
        raise made.shortcoming
    result.applied(place, name, made.applied)
    context.succeeded()
    known = Known(kind_of(made.source), 0, b"", Version.of(made.source))
    if context.digests:
        known = known._replace(digest=context.hashing.node(made.source, made.link))
    counter = counts.of_kind(known.kind)
    result.count(counter)
    result.digested(place, name, known, counter, verify=alone)
    return Settled(True, known, made.status.st_ino)


def _gives_way(
    context: Context,
    place: Place,
    source: int,
    name: bytes,
    status: os.stat_result,
    target: int,
    new_name: bytes,
    present: os.stat_result,
) -> bool:
    """Is what is there replaced? Raises ``Problem``."""
    if may_replace(context, place, status, target, new_name, present):
        return True
    is_compared = context.options.checksum and stat.S_ISLNK(status.st_mode)
    return is_compared and not same_link(source, name, target, new_name)
