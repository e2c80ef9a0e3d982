"""CopyNodes: a batch of symbolic links, FIFOs, sockets and devices of one directory."""

from __future__ import annotations

import os
import stat
from collections.abc import Generator

from pcopy.engine.driver import Slices
from pcopy.fsio.compare import same_link
from pcopy.fsio.existing import alike
from pcopy.fsio.identity import Identity
from pcopy.fsio.nodes import copy_node
from pcopy.fsio.problem import Problem, changed
from pcopy.fsio.source import Version, source_status
from pcopy.fsio.temporary import remove
from pcopy.tasks.context import Context
from pcopy.tasks.hashing import kind_of
from pcopy.tasks.read_items import skipped
from pcopy.tasks.result import Result
from pcopy.tasks.retry import failed_or_retried
from pcopy.tasks.targets import inherits_acl, is_linkable, kept_from, kept_identity, look, may_replace, put_over
from pcopy.tasks.unnamed import Waiting
from pcopy.tasks.values import CopyNodes, Known, Place, SplitFile, Unnamed, unpack_names, unpack_numbers
from pcopy.tasks.whole_file import Settled


def copy_nodes(task: CopyNodes, context: Context, result: Result) -> Slices:
    """One after the other; each is made in one system call, so a new one needs no temporary name, but for what is to be
    named last."""
    waiting = Waiting(context, task.place, task.attempt)
    with waiting.spawned(result):
        yield from _copy(task, context, result, waiting)
    return result.outcome()


def _copy(task: CopyNodes, context: Context, result: Result, waiting: Waiting) -> Generator[None, None, None]:
    place = task.place
    for name, inode in zip(unpack_names(task.names), unpack_numbers(task.inodes), strict=True):
        try:
            settled = copy_one_node(context, result, place, name, inode)
            if settled.unnamed is not None:
                split = SplitFile(place, name, place.source_id[0], inode, 0, task.attempt)
                waiting.add(result, split, settled.unnamed, settled.known, settled.shortcoming)
        except Problem as problem:
            failed_or_retried(result, task.place, name, problem, task.attempt)
        yield


def copy_one_node(
    context: Context, result: Result, place: Place, name: bytes, inode: int, *, alone: bool = True, linked: bool = False
) -> Settled:
    """Copies one, and counts it unless it is ``unnamed`` yet; raises ``Problem``, and leaves the old target then.

    One that is not ``alone`` is verified with its links. ``linked``: there may be further names of it.
    """
    source, target = context.open_source(place), context.open_target(place)
    new_name = context.new_name(place, name)
    follow = context.options.dereference
    status = source_status(source, name, follow=follow)
    if status.st_ino != inode or stat.S_ISREG(status.st_mode) or stat.S_ISDIR(status.st_mode):
        raise changed("stat", "another item has taken its name")
    present = look(target, new_name)
    if present is not None and not _gives_way(context, place, source, name, status, target, new_name, present):
        known = Known(kind_of(status), 0, b"", Version.of(status))
        skipped(context, result, place, name, known)
        options = context.options
        same = options.compares and alike(status, present, options.modify_window, contents=options.checksum)
        same = same and is_linkable(context, status, present)
        return Settled(False, known, kept_identity(place, target, new_name, present) if linked and same else None, same)
    made_as = new_name if present is None and not context.keeps else context.temporary_names.next()
    preserve, umask = context.options.preserve, context.options.umask
    kept = present if present is not None and stat.S_IFMT(present.st_mode) == stat.S_IFMT(status.st_mode) else None
    kept = kept_from(context, place, status, target, new_name, kept)
    try:
        made = copy_node(
            source,
            name,
            inode,
            target,
            made_as,
            preserve,
            umask,
            inherits=inherits_acl(context, place, target),
            kept=kept,
            follow=follow,
            marked=linked or context.keeps,
        )
        item = Unnamed(made_as, made.status.st_ino, made.mark) if context.keeps else None
        if present is not None and item is None:
            put_over(context, target, made_as, new_name, made.status.st_ino, present)
    except Problem:
        if made_as != new_name:  # a temporary name is ours alone
            remove(target, made_as)
        raise
    identity = Identity(place.target_id.mount, made.status.st_ino, made.mark)
    if made.shortcoming is not None and item is None:
        made.shortcoming.made = identity
        raise made.shortcoming
    result.applied(place, name, made.applied)
    context.succeeded()
    known = Known(kind_of(made.source), 0, b"", Version.of(made.source))
    if context.digests:
        known = known._replace(digest=context.hashing.node(made.source, made.link))
    if item is not None:
        return Settled(True, known, identity, unnamed=item, shortcoming=made.shortcoming)
    result.copied(place, name, known, alone=alone)
    return Settled(True, known, identity)


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
