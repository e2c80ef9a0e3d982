"""CopyNodes: a batch of symbolic links, FIFOs, sockets and devices of one directory."""

from __future__ import annotations

import errno
import stat

from pcopy.engine.driver import Slices
from pcopy.fsio.existing import alike
from pcopy.fsio.nodes import copy_node
from pcopy.fsio.problem import MetadataProblem, Problem
from pcopy.fsio.source import source_status
from pcopy.fsio.temporary import put_in_place, remove
from pcopy.tasks import counts
from pcopy.tasks.context import Context, Result
from pcopy.tasks.retry import failed_or_retried
from pcopy.tasks.targets import clear_way, look, may_replace
from pcopy.tasks.values import CopyNodes, Place, unpack_names, unpack_numbers
from pcopy.tasks.whole_file import Settled


def copy_nodes(task: CopyNodes, context: Context, result: Result) -> Slices:
    """One after the other; each is made in one system call, so a new one needs no temporary name."""
    for name, inode in zip(unpack_names(task.names), unpack_numbers(task.inodes), strict=True):
        try:
            copy_one_node(context, result, task.place, name, inode)
        except Problem as problem:
            failed_or_retried(context, result, task.place, name, problem, task.attempt)
        yield
    return result.outcome()


def copy_one_node(context: Context, result: Result, place: Place, name: bytes, inode: int) -> Settled:
    """Copies and counts one; raises ``Problem``, and leaves the old target then."""
    source, target = context.open_source(place), context.open_target(place)
    new_name = context.new_name(place, name)
    status = source_status(source, name)
    present = look(target, new_name)
    if present is not None and not may_replace(context, place, status, present):
        result.count(counts.SKIPPED)
        return Settled(False, 0, present.st_ino, alike(status, present, context.options.modify_window))
    made_as = new_name if present is None else context.temporary_names.next()
    preserve, umask = context.options.preserve, context.options.umask
    shortcoming: MetadataProblem | None = None
    try:
        try:
            applied = copy_node(source, name, inode, target, made_as, preserve, umask, inherits=place.inherits)
            result.applied(place, name, applied)
        except MetadataProblem as problem:
            shortcoming = problem
        made = look(target, made_as)
        if made is None:
            raise Problem("stat", errno.ENOENT)
        if present is not None:
            clear_way(target, new_name, present)
            put_in_place(target, made_as, new_name, made.st_ino)
    except Problem:
        if present is not None:  # a temporary name is ours alone
            remove(target, made_as)
        raise
    if shortcoming is not None:
        raise shortcoming
    context.succeeded()
    result.count(counts.SYMLINKS if stat.S_ISLNK(made.st_mode) else counts.SPECIAL)
    return Settled(True, 0, made.st_ino)
