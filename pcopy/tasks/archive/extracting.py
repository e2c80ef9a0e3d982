"""Extraction of single members into one open directory, on the slow path.

It handles what ``make_members`` does not: files of any size, sparse files, symbolic links, FIFOs and devices.
"""

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
"""Largest size in bytes of a file that is extracted in one step."""
_ZEROS = memoryview(bytes(1 << 20))
KERNEL_PIECE = 8 << 20
"""Bytes that one call of copy_file_range(2) copies."""


class Extracting:
    """Extraction of members into one open ``directory``.

    Args:
      path: the path of the directory below the target.
      inherits: True if new items may inherit an ACL from the directory.
    """

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
        """Return True if ``member`` is extracted in one slice of the task.

        If a job stops, its tasks are dropped between two slices, and what a dropped task has made is not counted.
        """
        if self._rank.throttle.is_on:
            return False
        return member.kind != FILE or (member.extents is None and member.size <= AT_ONCE)

    def extract(self, each: ToUnpack) -> Generator[None, None, None]:
        """Extract a member, yielding between slices. Raise ``Problem`` if that fails.

        The item does not exist then, unless the text of the problem says so.
        """
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
        """Create a file for the member called ``name``; return it, and the status of the existing item that it will
        replace.

        The file is created under its final name if that is free and the member is quick (``is_quick``), or if the
        target file system cannot rename. Otherwise it is created under a temporary name in the same directory.
        """
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
        """Give a complete file or node its final ``name``, replacing the item ``present`` if there is one."""
        if new.made_as == name:
            new.keep()
        else:
            new.commit(name, present, store=self._rank.options.sync)

    def dress(self, new: NewFile, member: Member) -> Applied:
        """Apply the metadata of ``member`` to ``new``; return the result. Raise ``Problem`` if it fails altogether."""
        options = self._rank.options
        attributes = attributes_of(self._lookup, member)
        return new.dress(attributes, options.preserve, options.umask, inherits=self._inherits)

    def tell(self, each: ToUnpack, applied: Applied, shortcoming: Problem | None) -> None:
        """Count an extracted member. Raise ``Problem`` if it exists, but lacks metadata or contents."""
        result, member, place = self._result, each.member, self._place
        if shortcoming is not None:
            text = "it was extracted without this metadata; its mode may be narrower than in the archive"
            raise Problem(shortcoming.operation, shortcoming.errno or 0, text=text)
        if each.trouble:
            raise Problem("extract", 0, text=f"it was extracted, but {each.trouble}")
        if applied.excused or applied.notices or applied.unknown:
            result.applied(place, each.name, applied)
        kind = FILE_TYPE if member.kind == FILE else type_of(member.st_mode)
        result.copied(place, each.name, Known(kind, member.size, b"", NO_VERSION), alone=False)


def _status_of(member: Member) -> os.stat_result:
    """Return a status made of the fields of ``member``, with which the type of an existing node is compared."""
    fields = (member.st_mode, 0, 0, 1, member.uid, member.gid, 0, 0, 0, 0)
    return os.stat_result(fields, {"st_rdev": member.device})


def _filled(
    archive: OpenArchive, ahead: Ahead, each: ToUnpack, new: NewFile, *, in_order: bool = False
) -> Iterator[int]:
    """Write the contents of a member into the empty file ``new``; yield the bytes that each step has moved.

    Raise ``Problem`` if that fails. If ``in_order`` is true, write from the start to the end, with zeros for holes.
    """
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
    """Write zeros from ``start`` to ``end`` of the file ``target``; yield the bytes of each step."""
    for at in range(start, end, len(_ZEROS)):
        piece = _ZEROS[: end - at]
        write_all(target, piece, at)
        yield len(piece)


def copied(archive: OpenArchive, target: int, at: int, offset: int, length: int) -> Iterator[int]:
    """Copy ``length`` bytes from the offset ``at`` of the archive to ``offset`` of the file ``target``.

    Yield the bytes that each step has moved. Raise ``Problem`` if that fails.
    """
    source = archive.plain_descriptor
    while length and source >= 0:
        try:
            moved = os.copy_file_range(source, target, min(KERNEL_PIECE, length), at, offset)
        except OSError:  # read and write below show which side fails, or succeed
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
