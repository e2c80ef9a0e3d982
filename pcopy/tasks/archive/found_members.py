"""Members that were found are sorted: each is asked for, or not, and has its place.

What is found comes to the owner of its directory (``FoundNote``), so that of several members of one name the last one
counts, and only one rank says what is in a directory.
"""

from __future__ import annotations

import marshal
from collections.abc import Iterator
from itertools import pairwise
from typing import TYPE_CHECKING

from pcopy.archive.incomplete import NOTHING, Incomplete
from pcopy.archive.member import DIRECTORY, FILE, LINK, Member, refusal, safe_path
from pcopy.archive.reader import Damage, FoundMember
from pcopy.fsio.problem import Problem
from pcopy.signature.sorting import ExternalSorter
from pcopy.tasks.archive.names import InDirectory, NameRecords, by_directory
from pcopy.tasks.archive.opened import OpenArchive, attributes_of, lookup_of
from pcopy.tasks.archive.to_unpack import packed_at, packed_plain, path_in, place_of
from pcopy.tasks.archive.wanted_names import WantedOfRank
from pcopy.tasks.base import counts
from pcopy.tasks.base.kind import Note
from pcopy.tasks.base.rank import Rank
from pcopy.tasks.base.result import Result, Tried
from pcopy.tasks.base.selected import Selected

if TYPE_CHECKING:
    from pcopy.fsio.kernel.native_tar import PlainMembers

ITEMS_PER_SLICE = 64
"""Members of which headers are read in one slice."""
PART_MEMBERS = 256
"""Members of one directory that are handed on together."""
SORT_BUDGET = 32 << 20
"""Bytes of memory for the members of a rank; what is more waits in a spool."""


class Sorting:
    """Says of each member where it goes, and whether it is wanted."""

    items_per_slice = ITEMS_PER_SLICE

    def __init__(self, rank: Rank, result: Result) -> None:
        self._rank = rank
        self._result = result
        self._strip = rank.options.strip_components
        self._selected = rank.own(Selected)
        self._wanted = rank.own(WantedOfRank)
        self._records = NameRecords(rank.size)
        self._found = self._found_bytes = 0
        self._incomplete = incomplete_of(rank)
        self.takes_plain = not (self._strip or self._wanted or self._selected.anything or self._incomplete)
        """Is there nothing to ask of a plain member?"""
        self._lookup = lookup_of(numeric=rank.options.numeric_owner)

    def take_plain(self, found: PlainMembers) -> None:
        """Members that are found in C."""
        keys, values, records = found.keys, found.values, self._records
        self._found += len(keys)
        self._found_bytes += found.bytes
        for begin, end in pairwise([*found.begins, len(keys)]):
            key = keys[begin]
            directory = key.partition(b"\0\0")[0].replace(b"\0", b"/")
            if directory in records.around:
                records.below.difference_update(path_in(key[:-17]) for key in keys[begin:end])
            records.mark_above(directory, int(key[-16:], 16))
            records.members[records.owner(directory)] += zip(keys[begin:end], values[begin:end], strict=True)

    def damaged(self, damage: Damage) -> None:
        result = self._result
        result.count(counts.FOUND)
        problem = Problem("extract", 0, text=f"at byte {damage.offset:,} of the archive: {damage.text}")
        if damage.name:
            result.fail(place_of(b""), damage.name, problem, retry=Tried.NEVER)
        else:
            result.count(counts.FAILED)
            result.report(self._rank.options.archive_file, problem)

    def take(self, found: FoundMember) -> bool:
        """Is it a plain one?"""
        member, result = found.member, self._result
        asked_as = member.name
        if self._strip:
            member = member._replace(name=_stripped(member, self._strip))
            if member.kind == LINK:
                member = member._replace(link=stripped(member.link, self._strip))
        if not self._wanted.selects(member, self._selected, asked_as):
            for counter in (counts.FOUND, counts.SKIPPED, counts.EXCLUDED):
                result.count(counter)
            return False
        self._found += 1
        if self._strip and member.name == b"" and member.kind != DIRECTORY:
            result.count(counts.SKIPPED)
            return False
        if problem := refusal(member):
            result.fail(place_of(b""), asked_as, Problem("extract", 0, text=problem), retry=Tried.NEVER)
            return False
        self._found_bytes += member.size
        path = safe_path(member.name)
        if found.remark:
            result.warn(place_of(b""), path, found.remark)
        found = found._replace(trouble=self._incomplete.trouble(found.member.name, found.trouble))
        return self._keep(path, member, found)

    def _keep(self, path: bytes, member: Member, found: FoundMember) -> bool:
        """For the owner of its directory. Is it a plain one?"""
        value, is_plain = b"", member.kind == FILE and not (found.trouble or member.xattrs) and member.extents is None
        if is_plain:
            attributes = attributes_of(self._lookup, member)
            value = packed_plain(found.data, member, attributes.uid, attributes.gid)
        self._records.add(path, member, found.data, value or packed_at(path, member, found.data, found.trouble))
        return is_plain

    def end(self) -> None:
        self._wanted.tell(self._result)
        self._result.count(counts.FOUND, self._found)
        self._result.count(counts.FOUND_BYTES, self._found_bytes)
        members, marks = self._records.members, self._records.marks
        for owner in members.keys() | marks.keys():
            note = FoundNote(marshal.dumps((members[owner], marks[owner])))
            self._result.spawn(note, owner=owner)


def incomplete_of(rank: Rank) -> Incomplete:
    """Return the files of the archive that are incomplete; none if the list is damaged, which rank 0 reports."""
    try:
        return rank.own(OpenArchive).incomplete
    except Problem:
        return NOTHING


def _stripped(member: Member, parts: int) -> bytes:
    """Return the name of a member without its first parts, with a slash at its end if it had one."""
    name = stripped(member.name, parts)
    return name + b"/" if name and member.name.endswith(b"/") else name


def stripped(name: bytes, parts: int) -> bytes:
    """Without its first parts, as tar counts them; empty if nothing is left."""
    names = [part for part in name.split(b"/") if part]
    return b"/".join(names[parts:])


class FoundMembers:
    """Those of the directories of one rank, sorted by directory, name, and place in the archive."""

    def __init__(self, rank: Rank) -> None:
        self.members = ExternalSorter(rank.open_spool, SORT_BUDGET)
        self.marks = ExternalSorter(rank.open_spool, SORT_BUDGET // 4)

    def close(self) -> None:
        self.members.close()
        self.marks.close()

    def by_directory(self) -> Iterator[InDirectory]:
        """The last member of each name; of a large directory there are several."""
        return by_directory(self.members.sorted(), PART_MEMBERS)


class FoundNote(Note, code=144, doing="noting members"):
    """Members for the rank that owns their directories, and marks of their names, packed."""

    records: bytes

    def run(self, rank: Rank, result: Result) -> None:
        found = rank.own(FoundMembers)
        for sorter, records in zip((found.members, found.marks), marshal.loads(self.records), strict=True):
            sorter.extend(records)
