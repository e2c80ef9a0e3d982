"""Creation of the hard links of an archive, after all other items were extracted."""

from __future__ import annotations

import errno
import marshal
import os
import stat
import time
from contextlib import suppress

from pcopy.archive.member import safe_path
from pcopy.fsio.problem import LINK_REFUSALS, Problem
from pcopy.fsio.temporary import put_in_place, remove
from pcopy.tasks.archive.opened import OpenArchive
from pcopy.tasks.archive.to_unpack import ToUnpack, place_of
from pcopy.tasks.base import counts
from pcopy.tasks.base.actions import HARD_LINK, Action
from pcopy.tasks.base.hashing import NO_VERSION, kind_of
from pcopy.tasks.base.kind import Kind
from pcopy.tasks.base.rank import CALL_COST, Rank
from pcopy.tasks.base.result import Result, Tried
from pcopy.tasks.base.values import Known
from pcopy.tasks.files.existing import look, name_to_make
from pcopy.text import shown

_LONG = 0.02
"""Seconds after which the remaining links are left to another task."""
_NOT_LINKED = "the file system refuses this hard link: the name is a copy of its own"


class LinkMembers(Kind, code=147, doing="making hard links", is_note=False):
    """Task that creates hard links to extracted items.

    ``values`` are packed ``ToUnpack`` of links in one directory.
    """

    values: bytes

    def about(self) -> None:
        return None

    def run(self, rank: Rank, result: Result) -> None:
        """Create the links in one slice, so that everything that was done is counted even if the job stops."""
        until, values = time.monotonic() + _LONG, marshal.loads(self.values)
        for number, value in enumerate(values):
            if number and time.monotonic() > until:
                rest = values[number:]
                result.spawn(LinkMembers(marshal.dumps(rest)), len(rest) * CALL_COST)
                break
            each = ToUnpack.unpacked(value)
            place = place_of(each.path)
            try:
                copied = _link(rank, each)
            except Problem as problem:
                result.fail(place, each.name, problem, retry=Tried.NEVER)
            else:
                if copied is None:
                    result.count(counts.HARDLINKS)
                    result.items.did(Action.COPY, place, each.name, HARD_LINK)
                else:
                    result.warn_once(place, each.name, _NOT_LINKED)
                    known = Known(kind_of(copied), _size_of(copied), b"", NO_VERSION)
                    result.copied(place, each.name, known, alone=False)


def _size_of(status: os.stat_result) -> int:
    """Return the size to be counted for an item with this ``status``; 0 unless it is a regular file."""
    return status.st_size if stat.S_ISREG(status.st_mode) else 0


def _link(rank: Rank, each: ToUnpack) -> os.stat_result | None:
    """Create the hard link of ``each``, replacing an existing item.

    Return None if the link was created or existed already. Return the status of the target of the link if a copy was
    made instead, because the file system refuses the link. Raise ``Problem`` if neither is possible.
    """
    first = safe_path(each.member.link)
    targets = rank.targets[0]
    parent, _, name = first.rpartition(b"/")
    try:
        source, directory = targets.open(parent), targets.open(each.path)
        target_status = look(source, name)
    except Problem as problem:
        raise Problem("link", problem.errno or errno.EIO) from problem
    if target_status is None:
        text = f"its target {shown(first)} does not exist: it failed, or was not selected"
        raise Problem("link", errno.ENOENT, text=each.trouble or text)
    present = look(directory, each.name)
    if present is not None and (present.st_dev, present.st_ino) == (target_status.st_dev, target_status.st_ino):
        return None
    rank.own(OpenArchive).spare(present)
    made_as = each.name if present is None else name_to_make(rank, directory, each.name, present)
    copied = _link_or_copy(rank, source, name, target_status, directory, made_as)
    if made_as != each.name:
        try:
            put_in_place(directory, made_as, each.name, target_status.st_ino if copied is None else copied)
        except Problem:
            with suppress(Problem):
                remove(directory, made_as)
            raise
    return None if copied is None else target_status


def _link_or_copy(
    rank: Rank, source: int, name: bytes, status: os.stat_result, directory: int, made_as: bytes
) -> int | None:
    """Create ``made_as``, a free name, as a hard link to the item ``name``, or as a copy if the file system refuses the
    link.

    Return None for a link, and the inode number of a copy. ``status`` is the status of the item. Raise ``Problem`` if
    neither is possible.
    """
    try:
        os.link(name, made_as, src_dir_fd=source, dst_dir_fd=directory, follow_symlinks=False)
        return None
    except OSError as error:
        if error.errno not in LINK_REFUSALS or stat.S_ISDIR(status.st_mode):  # no hard link to a directory is possible
            raise Problem.of("link", error) from error
    from pcopy.tasks.files.second_copy import copy_item

    return copy_item(rank, source, name, status, directory, made_as)
