"""LinkMembers gives items further names, once all of these are there."""

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
"""Seconds after which the rest is left to a further task."""
_NOT_LINKED = "the file system refuses this hard link: the name is a copy of its own"


class LinkMembers(Kind, code=147, doing="making hard links", is_note=False):
    """Packed members of one directory, which are links to items that are there."""

    values: bytes

    def about(self) -> None:
        return None

    def run(self, rank: Rank, result: Result) -> None:
        """In one slice, so that all is told that is done; the rest is left to a further task."""
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
    return status.st_size if stat.S_ISREG(status.st_mode) else 0


def _link(rank: Rank, each: ToUnpack) -> os.stat_result | None:
    """Return None if the link was made, or was there; the status of the item if a copy was made in its place, since the
    file system refuses the link. Raises ``Problem``.
    """
    first = safe_path(each.member.link)
    targets = rank.targets[0]
    around, _, name = first.rpartition(b"/")
    try:
        source, directory = targets.open(around), targets.open(each.path)
        there = look(source, name)
    except Problem as problem:
        raise Problem("link", problem.errno or errno.EIO) from problem
    if there is None:
        text = f"its first name {shown(first)} is not there: it has failed, or was not to be unpacked"
        raise Problem("link", errno.ENOENT, text=each.trouble or text)
    present = look(directory, each.name)
    if present is not None and (present.st_dev, present.st_ino) == (there.st_dev, there.st_ino):
        return None
    rank.own(OpenArchive).spare(present)
    made_as = each.name if present is None else name_to_make(rank, directory, each.name, present)
    copied = _link_or_copy(rank, source, name, there, directory, made_as)
    if made_as != each.name:
        try:
            put_in_place(directory, made_as, each.name, there.st_ino if copied is None else copied)
        except Problem:
            with suppress(Problem):
                remove(directory, made_as)
            raise
    return None if copied is None else there


def _link_or_copy(
    rank: Rank, source: int, name: bytes, there: os.stat_result, directory: int, made_as: bytes
) -> int | None:
    """Make ``made_as``, which is free, a link to the item ``there``; or a copy, whose inode number is returned."""
    try:
        os.link(name, made_as, src_dir_fd=source, dst_dir_fd=directory, follow_symlinks=False)
        return None
    except OSError as error:
        if error.errno not in LINK_REFUSALS or stat.S_ISDIR(there.st_mode):  # of which no link can be made
            raise Problem.of("link", error) from error
    from pcopy.tasks.files.second_copy import copy_item

    return copy_item(rank, source, name, there, directory, made_as)
