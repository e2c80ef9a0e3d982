"""Metadata of extracted directories, which they get after everything in them was extracted.

A directory that got its final mode earlier might not be writable, and its mtime would change.
"""

from __future__ import annotations

from pcopy.fsio.attributes import apply_attributes, may_inherit_acl
from pcopy.fsio.nodes import with_handle
from pcopy.fsio.problem import Problem
from pcopy.fsio.source import status_of
from pcopy.tasks.archive.opened import attributes_of, lookup_of
from pcopy.tasks.archive.phases import FINISH
from pcopy.tasks.archive.to_unpack import ToUnpack, place_of
from pcopy.tasks.base import counts
from pcopy.tasks.base.kind import Kind, Note
from pcopy.tasks.base.rank import Rank, RankSet
from pcopy.tasks.base.result import Result, Tried
from pcopy.tasks.directories.scan_dir import may_be_entered


def finish_later(rank: Rank, result: Result, member: ToUnpack) -> None:
    """Spawn the task that gives a directory its metadata at the end of the job.

    If its final mode does not let this process enter it, that happens last (``SealMembers``), so that directories below
    it can still be reached.
    """
    value = member.packed()
    if may_be_entered(attributes_of(lookup_of(numeric=rank.options.numeric_owner), member.member)):
        result.spawn(FinishMember(value), phase=FINISH)
    else:
        result.count(counts.FOR_SEAL)
        result.spawn(SealMembers(value), owner=0)


class FinishMember(Kind, code=148, doing="finishing", is_note=False):
    """Task that gives one extracted directory its metadata. ``value`` is the packed ``ToUnpack``."""

    value: bytes

    def about(self) -> None:
        return None

    def run(self, rank: Rank, result: Result) -> None:
        finish(rank, result, ToUnpack.unpacked(self.value))


class SealMembers(Note, code=149, doing="finishing"):
    """Note to rank 0 about a directory that this process cannot enter once it has its metadata.

    ``value`` is the packed ``ToUnpack``. A note with an empty ``value`` makes rank 0 finish all these directories, the
    deepest first.
    """

    value: bytes

    def run(self, rank: Rank, result: Result) -> None:
        sealed = rank.own(SealedMembers)
        if self.value:
            sealed.add(self.value)
            return
        for member in sorted(map(ToUnpack.unpacked, sealed), key=lambda member: -member.path.count(b"/")):
            finish(rank, result, member)


class SealedMembers(RankSet[bytes]):
    """The directories that rank 0 finishes last, as packed ``ToUnpack``."""


def finish(rank: Rank, result: Result, member: ToUnpack) -> None:
    """Apply the metadata of a directory, and report the directory as failed if that is not possible."""
    place, options = place_of(member.path), rank.options
    attributes = attributes_of(lookup_of(numeric=options.numeric_owner), member.member)
    try:
        directory = rank.targets[0].open(member.path)
        status = status_of(directory)
        inherits = may_inherit_acl(directory, status.st_uid)
        preserve, umask = options.preserve, options.umask
        applied = with_handle(
            directory, lambda handle: apply_attributes(handle, attributes, preserve, umask, inherits=inherits)
        )
        if member.trouble:
            raise Problem("extract", 0, text=f"it was extracted, but {member.trouble}")
    except Problem as problem:
        result.count(counts.DIRECTORIES, -1)
        result.fail(place, b"", problem, retry=Tried.NEVER)
        return
    if applied.excused or applied.notices or applied.unknown:
        result.applied(place, b"", applied)
