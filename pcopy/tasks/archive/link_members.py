"""LinkMembers gives items further names, once all of these are there."""

from __future__ import annotations

import errno
import marshal
import os
import time
from contextlib import suppress

from pcopy.archive.member import safe_path
from pcopy.fsio.problem import Problem, failing
from pcopy.fsio.temporary import put_in_place, remove
from pcopy.tasks.archive.opened import OpenArchive
from pcopy.tasks.archive.to_unpack import ToUnpack, place_of
from pcopy.tasks.base import counts
from pcopy.tasks.base.actions import HARD_LINK, Action
from pcopy.tasks.base.kind import Kind
from pcopy.tasks.base.rank import CALL_COST, Rank
from pcopy.tasks.base.result import Result, Tried
from pcopy.tasks.files.existing import look, name_to_make

_LONG = 0.02
"""Seconds after which the rest is left to a further task."""


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
                _link(rank, each)
            except Problem as problem:
                result.fail(place, each.name, problem, retry=Tried.NEVER)
            else:
                result.count(counts.HARDLINKS)
                result.items.did(Action.COPY, place, each.name, HARD_LINK)


def _link(rank: Rank, each: ToUnpack) -> None:
    """Raises ``Problem``."""
    first = safe_path(each.member.link)
    targets = rank.targets[0]
    around, _, name = first.rpartition(b"/")
    try:
        source, directory = targets.open(around), targets.open(each.path)
        there = look(source, name)
    except Problem as problem:
        raise Problem("link", problem.errno or errno.EIO) from problem
    if there is None:
        raise Problem("link", errno.ENOENT, text=each.trouble)
    present = look(directory, each.name)
    if present is not None and (present.st_dev, present.st_ino) == (there.st_dev, there.st_ino):
        return
    rank.own(OpenArchive).spare(present)
    made_as = each.name if present is None else name_to_make(rank, directory, each.name, present)
    with failing("link"):
        os.link(name, made_as, src_dir_fd=source, dst_dir_fd=directory, follow_symlinks=False)
    if made_as != each.name:
        try:
            put_in_place(directory, made_as, each.name, there.st_ino)
        except Problem:
            with suppress(Problem):
                remove(directory, made_as)
            raise
