"""Members that want care, one by one, in one open directory: files of any size, symbolic links, devices."""

from __future__ import annotations

import errno
import os
from collections.abc import Generator, Iterator

from pcopy.archive.member import FILE, Member
from pcopy.fsio.attributes import Applied
from pcopy.fsio.kernel.interface import SMALL_FILE
from pcopy.fsio.new_file import NewFile, NewNode
from pcopy.fsio.nodes import Node
from pcopy.fsio.passage import write_all
from pcopy.fsio.problem import Problem
from pcopy.fsio.throttle import throttled
from pcopy.signature.items import FILE as FILE_TYPE
from pcopy.signature.items import type_of
from pcopy.tasks.archive.opened import Ahead, OpenArchive, attributes_of, lookup_of
from pcopy.tasks.archive.to_unpack import ToUnpack, place_of
from pcopy.tasks.base import counts
from pcopy.tasks.base.hashing import NO_VERSION
from pcopy.tasks.base.rank import Rank
from pcopy.tasks.base.result import Result
from pcopy.tasks.base.storing import stored
from pcopy.tasks.base.values import Known
from pcopy.tasks.files.existing import look, name_to_make, stating_removal

AT_ONCE = SMALL_FILE // 4
"""Bytes of a file that is unpacked in one go."""
_ZEROS = memoryview(bytes(1 << 20))
KERNEL_PIECE = 8 << 20
"""Bytes that copy_file_range moves at once."""


class Extracting:
    """Makes items in one open ``directory``."""

    def __init__(self, rank: Rank, result: Result, directory: int, path: bytes, *, inherits: bool) -> None:
        self._rank = rank
        self._result = result
        self._directory = directory
        self._place = place_of(path)
        self._inherits = inherits
        self._archive = rank.own(OpenArchive)
        self._ahead = Ahead(self._archive.read)
        self._lookup = lookup_of(numeric=rank.options.numeric_owner)

    def is_quick(self, member: Member) -> bool:
        """Is it made in one slice? (A task that is told to stop between two slices tells nothing any more.)"""
        if self._rank.throttle.is_on:
            return False
        return member.kind != FILE or (member.extents is None and member.size <= AT_ONCE)

    def extract(self, each: ToUnpack) -> Generator[None, None, None]:
        """Raises ``Problem``; nothing of it is there then, unless that says so."""
        member = each.member
        new: NewFile
        if member.kind == FILE:
            new, present = self._new_file(each.name, is_quick=self.is_quick(member))
            with stating_removal(self._rank, self._directory, each.name, present), new:
                in_order = self._rank.options.sequential
                steps = _filled(self._archive, self._ahead, each, new, in_order=in_order)
                for moved in throttled(steps, self._rank.throttle):
                    self._rank.counters[counts.MOVED] += moved
                    if not self.is_quick(member):
                        yield None
                applied = self.dress(new, member)
                yield from stored(self._rank, new)
                self._name(new, each.name, present)
        else:
            node = Node(_status_of(member), attributes_of(self._lookup, member), member.link)
            present = look(self._directory, each.name)
            self._archive.spare(present)
            name = each.name if present is None else name_to_make(self._rank, self._directory, each.name, present)
            new = NewNode.made(self._directory, name, node, is_temporary=True)
            with new:
                applied = self.dress(new, member)
                self._name(new, each.name, present)
        self.tell(each, applied, new.shortcoming)

    def _new_file(self, name: bytes, *, is_quick: bool) -> tuple[NewFile, os.stat_result | None]:
        """Under its own name, if that is free and it is quick, or always in a destination that cannot rename; else
        beside it."""
        if is_quick:
            try:
                return NewFile.at(self._directory, name), None
            except Problem as problem:
                if problem.errno != errno.EEXIST:
                    raise
        present = look(self._directory, name)
        self._archive.spare(present)
        return NewFile.at(self._directory, name_to_make(self._rank, self._directory, name, present)), present

    def _name(self, new: NewFile, name: bytes, present: os.stat_result | None) -> None:
        if new.made_as == name:
            new.keep()
        else:
            new.commit(name, present, store=self._rank.options.sync)

    def dress(self, new: NewFile, member: Member) -> Applied:
        options = self._rank.options
        attributes = attributes_of(self._lookup, member)
        return new.dress(attributes, options.preserve, options.umask, inherits=self._inherits)

    def tell(self, each: ToUnpack, applied: Applied, shortcoming: Problem | None) -> None:
        """It is there. Raises ``Problem`` for what it lacks."""
        result, member, place = self._result, each.member, self._place
        if shortcoming is not None:
            text = "it is there without that, and its mode may be narrower than in the archive"
            raise Problem(shortcoming.operation, shortcoming.errno or 0, text=text)
        if each.trouble:
            raise Problem("extract", 0, text=f"it is there, but {each.trouble}")
        if applied.excused or applied.notices or applied.unknown:
            result.applied(place, each.name, applied)
        kind = FILE_TYPE if member.kind == FILE else type_of(member.st_mode)
        result.copied(place, each.name, Known(kind, member.size, b"", NO_VERSION), alone=False)


def _status_of(member: Member) -> os.stat_result:
    """What a new node is compared with."""
    fields = (member.st_mode, 0, 0, 1, member.uid, member.gid, 0, 0, 0, 0)
    return os.stat_result(fields, {"st_rdev": member.device})


def _filled(
    archive: OpenArchive, ahead: Ahead, each: ToUnpack, new: NewFile, *, in_order: bool = False
) -> Iterator[int]:
    """Gives the empty file its contents; yields the bytes that each step moved, raises ``Problem``. ``in_order``: with
    zeros in its holes."""
    member, at, target = each.member, each.data, new.descriptor
    if member.extents is None and member.size <= AT_ONCE:
        if member.size:
            data = ahead.read(at, member.size)
            write_all(target, data if len(data) == member.size else archive.read_all(at, member.size), 0)
            yield member.size
        return
    if member.extents is not None and not in_order:
        new.extend(member.size)
    end = 0
    for offset, length in ((0, member.size),) if member.extents is None else member.extents:
        if in_order:
            yield from _zeros(target, end, offset)
        yield from copied(archive, target, at, offset, length)
        at, end = at + length, offset + length
    if in_order:
        yield from _zeros(target, end, member.size)


def _zeros(target: int, start: int, end: int) -> Iterator[int]:
    """As ``copied``, for a hole."""
    for at in range(start, end, len(_ZEROS)):
        piece = _ZEROS[: end - at]
        write_all(target, piece, at)
        yield len(piece)


def copied(archive: OpenArchive, target: int, at: int, offset: int, length: int) -> Iterator[int]:
    """Bytes from ``at`` of the archive go to ``offset``; yields what each step moved, raises ``Problem``."""
    source = archive.plain_descriptor
    while length and source >= 0:
        try:
            moved = os.copy_file_range(source, target, min(KERNEL_PIECE, length), at, offset)
        except OSError:  # to read and write finds out whose fault it is
            break
        if not moved:
            break
        at, offset, length = at + moved, offset + moved, length - moved
        yield moved
    while length:
        data = archive.read_all(at, min(1 << 20, length))
        write_all(target, memoryview(data), offset)
        at, offset, length = at + len(data), offset + len(data), length - len(data)
        yield len(data)
