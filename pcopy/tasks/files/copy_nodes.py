"""CopyNodes copies a batch of symbolic links, FIFOs, sockets and devices of one directory."""

from __future__ import annotations

import os
import stat
import time

from pcopy.fsio.existing import alike, same_link
from pcopy.fsio.identity import Identity, mark_of
from pcopy.fsio.kernel.columns import unpack_names
from pcopy.fsio.new_file import NewNode
from pcopy.fsio.nodes import read_node
from pcopy.fsio.problem import Problem, TargetChanged, changed
from pcopy.fsio.source import Version, source_status
from pcopy.tasks.base.actions import Action, How
from pcopy.tasks.base.attempts import failed_or_retried
from pcopy.tasks.base.hashing import kind_of
from pcopy.tasks.base.kind import Divisible, Steps
from pcopy.tasks.base.rank import Rank
from pcopy.tasks.base.result import Result
from pcopy.tasks.base.values import Item, Known, Unnamed, unpack_numbers
from pcopy.tasks.files.existing import (
    EXAMINATIONS,
    Existing,
    existing,
    inherits_acl,
    may_be_marked,
    mends,
    name_to_make,
)
from pcopy.tasks.files.name_items import Waiting
from pcopy.tasks.files.whole_file import Settled, would_be
from pcopy.tasks.verify.read_items import skipped


class CopyNodes(Divisible, code=11, doing="copying links and nodes of", is_note=False):
    """Task that copies symbolic links, FIFOs, sockets and devices of one directory."""

    inodes: bytes
    attempt: int

    columns = ("inodes",)

    def run(self, rank: Rank, result: Result) -> Steps:
        """Copy the items one by one.

        Each is created by one system call, so a new one needs no temporary name, unless it is named in NAME.
        """
        place = self.place
        waiting = Waiting(rank, place, self.attempt)
        with waiting.spawned(result):
            for name, inode in zip(unpack_names(self.names), unpack_numbers(self.inodes), strict=True):
                item = Item(place.source_id.mount, inode, 0, ((place, name),), self.attempt)
                try:
                    settled = copy_one_node(rank, result, item, linked=False)
                    if settled.unnamed is not None:
                        waiting.add(result, item, settled)
                except Problem as problem:
                    failed_or_retried(result, place, name, problem, self.attempt)
                yield None


def copy_one_node(rank: Rank, result: Result, item: Item, *, linked: bool) -> Settled:
    """Copy one item, and count it unless it is still ``unnamed``. Raise ``Problem``; the existing item is unchanged
    then.

    Args:
        linked: True if further names of the inode may be found later. An item with further names is verified together
            with its links.
    """
    began = time.monotonic_ns()
    place, name = item.names[0]
    source, new_name, options = rank.open_source(place), rank.new_name(place, name), rank.options
    status = source_status(source, name, follow=options.dereference)
    if status.st_ino != item.inode or stat.S_ISREG(status.st_mode) or stat.S_ISDIR(status.st_mode):
        raise changed("stat", "another item has taken its name")
    present = existing(rank, place, name)
    present, stays = _settled_already(result, item, present, source, status, linked=linked)
    if stays is not None:
        return stays
    present_status = None if present is None else present.status
    if options.dry_run:
        known = Known(kind_of(status), 0, b"", Version.of(status))
        result.copied(place, name, known, how=How.over(present))
        return would_be(known)
    target = rank.open_target(place)
    is_alike = present_status is not None and stat.S_IFMT(present_status.st_mode) == stat.S_IFMT(status.st_mode)
    kept = present.kept_from(status) if present is not None and is_alike else None
    inherits = inherits_acl(rank, place, target)
    node = read_node(source, name, item.inode, options.preserve, follow=options.dereference)
    is_new = present is None and not rank.keeps
    made_as = new_name if is_new else name_to_make(rank, target, new_name, present_status, status)
    with NewNode.made(target, made_as, node, is_temporary=made_as != new_name) as new:
        mark = mark_of(new.descriptor, made=True) if linked or rank.keeps else b""
        applied = new.dress(node.attributes, options.preserve, options.umask, kept=kept, inherits=inherits)
        if present is None or rank.keeps or made_as == new_name:
            new.keep()
        else:
            _commit(new, new_name, present, status)
    identity = Identity(place.target_id.mount, new.status.st_ino, mark)
    unnamed = Unnamed(made_as, identity.inode, mark) if rank.keeps else None
    if new.shortcoming is not None and unnamed is None:
        new.shortcoming.made = identity
        raise new.shortcoming
    result.applied(place, name, applied)
    rank.succeeded()
    digest = rank.hashing.node(node.status, node.link) if rank.digests else b""
    known = Known(kind_of(node.status), 0, digest, Version.of(node.status))
    how = How.over(present, time.monotonic_ns() - began)
    if unnamed is None:
        result.copied(place, name, known, alone=not item.links, how=how)
    return Settled(known, identity, unnamed, new.shortcoming, how)


def _commit(new: NewNode, name: bytes, present: Existing, source: os.stat_result) -> None:
    """Rename the new item to ``name``, in place of the item ``present``. Raise ``Problem`` on failure."""
    present.back_up(source)
    new.commit(name, present.status, marked=may_be_marked(present.rank, present))


def _settled_already(
    result: Result, item: Item, present: Existing | None, source: int, status: os.stat_result, *, linked: bool
) -> tuple[Existing | None, Settled | None]:
    """Do the same as ``whole_file.settled_already`` for the first name of ``item`` in the open directory ``source``."""
    for examination in range(1, EXAMINATIONS + 1):
        if present is None:
            break
        try:
            return present, _stays(result, item, present, source, status, linked=linked)
        except TargetChanged:
            if examination == EXAMINATIONS:
                raise
        present = present.examined_again()
    return None, None


def _stays(
    result: Result, item: Item, present: Existing, source: int, status: os.stat_result, *, linked: bool
) -> Settled | None:
    """Count the item as skipped if the existing item ``present`` is kept, and return the outcome; return None if it is
    replaced. Raise ``Problem`` on failure.
    """
    (place, name), rank, options = item.names[0], present.rank, present.rank.options
    if _gives_way(present, source, name, status):
        return None
    is_link = stat.S_ISLNK(status.st_mode)  # the texts of both were compared already, and are equal
    same = options.compares and (is_link or alike(status, present.status, options.modify_window))
    may_link = linked and same and present.is_linkable(status)  # decided before its metadata is updated
    action = Action.SKIP
    if mends(rank):
        from pcopy.tasks.files.mend import is_copied_for_links, is_dressed, mended

        if not is_dressed(rank, place, name, status, present):
            if linked and same and not may_link and is_copied_for_links(present, status):
                return None
            node = read_node(source, name, item.inode, options.preserve, follow=options.dereference)
            updated = mended(result, name, present, node.attributes)
            if updated is None:
                return None
            present, action = updated
    made = present.identity() if may_link else None
    known = Known(kind_of(status), 0, b"", Version.of(status))
    skipped(rank, result, place, name, known, action)
    return Settled(known, made)


def _gives_way(present: Existing, source: int, name: bytes, status: os.stat_result) -> bool:
    """Return True if ``present`` is replaced by the item ``name`` of the open directory ``source``. Raise ``Problem``
    on failure.

    A symbolic link that would be kept is replaced if its target text differs, which its length and time do not show.
    """
    if not present.may_replace(status):
        return present.has_other_text(status, source, name)
    is_link = stat.S_ISLNK(status.st_mode) and stat.S_ISLNK(present.status.st_mode)
    if not is_link or not mends(present.rank) or present.is_own():
        return True
    return not same_link(source, name, present.directory, present.name)  # if equal, only its time differs
