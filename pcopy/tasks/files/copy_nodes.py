"""CopyNodes: a batch of symbolic links, FIFOs, sockets and devices of one directory."""

from __future__ import annotations

import os
import stat
from collections.abc import Generator

from pcopy.fsio.existing import alike, same_link
from pcopy.fsio.identity import Identity, mark_of
from pcopy.fsio.kernel.columns import unpack_names
from pcopy.fsio.new_file import NewNode
from pcopy.fsio.nodes import read_node
from pcopy.fsio.problem import Problem, changed
from pcopy.fsio.source import Version, source_status
from pcopy.tasks.base.hashing import kind_of
from pcopy.tasks.base.kind import OfPlace, Steps
from pcopy.tasks.base.rank import Rank
from pcopy.tasks.base.result import Result, failed_or_retried
from pcopy.tasks.base.values import Item, Known, Place, Unnamed, unpack_numbers
from pcopy.tasks.files.existing import Existing, existing, inherits_acl, may_be_marked
from pcopy.tasks.files.name_items import Waiting
from pcopy.tasks.files.whole_file import Settled
from pcopy.tasks.verify.read_items import skipped


class CopyNodes(OfPlace, code=11, doing="copying links and nodes of", is_note=False):
    """Symbolic links, FIFOs, sockets and devices of one directory."""

    names: bytes
    inodes: bytes
    attempt: int

    def run(self, rank: Rank, result: Result) -> Steps:
        """One after the other; each is made in one system call, so a new one needs no temporary name, but for what is
        to be named last."""
        waiting = Waiting(rank, self.place, self.attempt)
        with waiting.spawned(result):
            yield from _copy(self, rank, result, waiting)


def _copy(task: CopyNodes, rank: Rank, result: Result, waiting: Waiting) -> Generator[None, None, None]:
    place = task.place
    for name, inode in zip(unpack_names(task.names), unpack_numbers(task.inodes), strict=True):
        try:
            settled = copy_one_node(rank, result, place, name, inode)
            if settled.unnamed is not None:
                item = Item(place.source_id.mount, inode, 0, ((place, name),), task.attempt)
                waiting.add(result, item, settled.unnamed, settled.known, settled.shortcoming)
        except Problem as problem:
            failed_or_retried(result, task.place, name, problem, task.attempt)
        yield


def copy_one_node(
    rank: Rank, result: Result, place: Place, name: bytes, inode: int, *, alone: bool = True, linked: bool = False
) -> Settled:
    """Copies one, and counts it unless it is ``unnamed`` yet; raises ``Problem``, and leaves the old target then.

    One that is not ``alone`` is verified with its links. ``linked``: there may be further names of it.
    """
    source, target = rank.open_source(place), rank.open_target(place)
    new_name = rank.new_name(place, name)
    follow = rank.options.dereference
    status = source_status(source, name, follow=follow)
    if status.st_ino != inode or stat.S_ISREG(status.st_mode) or stat.S_ISDIR(status.st_mode):
        raise changed("stat", "another item has taken its name")
    present = existing(rank, place, name)
    there = None if present is None else present.status
    if present is not None and not _gives_way(present, source, name, status):
        known = Known(kind_of(status), 0, b"", Version.of(status))
        skipped(rank, result, place, name, known)
        options = rank.options
        same = options.compares and alike(status, present.status, options.modify_window, contents=options.checksum)
        same = same and present.is_linkable(status)
        return Settled(known, present.identity() if linked and same else None, same)
    made_as = new_name if present is None and not rank.keeps else rank.temporary_names.next()
    preserve, umask = rank.options.preserve, rank.options.umask
    is_alike = there is not None and stat.S_IFMT(there.st_mode) == stat.S_IFMT(status.st_mode)
    kept = present.kept_from(status) if present is not None and is_alike else None
    inherits = inherits_acl(rank, place, target)
    node = read_node(source, name, inode, preserve, follow=follow)
    with NewNode.made(target, made_as, node, is_temporary=made_as != new_name) as new:
        mark = mark_of(new.descriptor, made=True) if linked or rank.keeps else b""
        applied = new.dress(node.attributes, preserve, umask, kept=kept, inherits=inherits)
        if present is None or rank.keeps:
            new.keep()
        else:
            new.commit(new_name, there, marked=may_be_marked(rank, present))
    identity = Identity(place.target_id.mount, new.status.st_ino, mark)
    item = Unnamed(made_as, identity.inode, mark) if rank.keeps else None
    if new.shortcoming is not None and item is None:
        new.shortcoming.made = identity
        raise new.shortcoming
    result.applied(place, name, applied)
    rank.succeeded()
    known = Known(kind_of(node.status), 0, b"", Version.of(node.status))
    if rank.digests:
        known = known._replace(digest=rank.hashing.node(node.status, node.link))
    if item is not None:
        return Settled(known, identity, unnamed=item, shortcoming=new.shortcoming)
    result.copied(place, name, known, alone=alone)
    return Settled(known, identity)


def _gives_way(present: Existing, source: int, name: bytes, status: os.stat_result) -> bool:
    if present.may_replace(status):
        return True
    is_compared = present.rank.options.checksum and stat.S_ISLNK(status.st_mode)
    return is_compared and not same_link(source, name, present.directory, present.name)
