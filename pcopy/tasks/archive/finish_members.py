"""Directories that were unpacked get their metadata when everything in them is there."""

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


def finish_later(rank: Rank, result: Result, told: ToUnpack) -> None:
    """The directory gets its metadata at last, the very last if we cannot enter it then."""
    value = told.packed()
    if may_be_entered(attributes_of(lookup_of(numeric=rank.options.numeric_owner), told.member)):
        result.spawn(FinishMember(value), phase=FINISH)
    else:
        result.count(counts.FOR_SEAL)
        result.spawn(SealMembers(value), owner=0)


class FinishMember(Kind, code=148, doing="finishing", is_note=False):
    """One directory."""

    value: bytes

    def about(self) -> None:
        return None

    def run(self, rank: Rank, result: Result) -> None:
        finish(rank, result, ToUnpack.unpacked(self.value))


class SealMembers(Note, code=149, doing="finishing"):
    """A directory for rank 0, which finishes these last, the deepest first; without a ``value``: now."""

    value: bytes

    def run(self, rank: Rank, result: Result) -> None:
        sealed = rank.own(SealedMembers)
        if self.value:
            sealed.add(self.value)
            return
        for told in sorted(map(ToUnpack.unpacked, sealed), key=lambda told: -told.path.count(b"/")):
            finish(rank, result, told)


class SealedMembers(RankSet[bytes]):
    """Directories, packed."""


def finish(rank: Rank, result: Result, told: ToUnpack) -> None:
    place, options = place_of(told.path), rank.options
    attributes = attributes_of(lookup_of(numeric=options.numeric_owner), told.member)
    try:
        directory = rank.targets[0].open(told.path)
        status = status_of(directory)
        inherits = may_inherit_acl(directory, status.st_uid)
        preserve, umask = options.preserve, options.umask
        applied = with_handle(
            directory, lambda handle: apply_attributes(handle, attributes, preserve, umask, inherits=inherits)
        )
        if told.trouble:
            raise Problem("extract", 0, text=f"it is there, but {told.trouble}")
    except Problem as problem:
        result.count(counts.DIRECTORIES, -1)
        result.fail(place, b"", problem, retry=Tried.NEVER)
        return
    if applied.excused or applied.notices or applied.unknown:
        result.applied(place, b"", applied)
