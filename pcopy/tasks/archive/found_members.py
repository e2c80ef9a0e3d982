"""Members that were found in an archive are filtered, and sent to the ranks that own their directories.

Each member goes to the rank that owns its directory (``FoundMembersNote``). So the last one of several members of the
same name is used, and only one rank decides what is in a directory.

A *simple* member is a regular file whose headers state only name, mode, owner, mtime and size.
"""

from __future__ import annotations

import marshal
from collections.abc import Iterator
from itertools import pairwise
from typing import TYPE_CHECKING

from pcopy.archive.incomplete import NONE_INCOMPLETE, IncompleteNames
from pcopy.archive.member import DIRECTORY, FILE, LINK, Member, refusal_reason, safe_path
from pcopy.archive.reader import Damage, FoundMember
from pcopy.fsio.problem import Problem
from pcopy.signature.sorting import ExternalSorter
from pcopy.tasks.archive.members_to_extract import pack_member, pack_simple, path_in_key, target_place
from pcopy.tasks.archive.names import DirectoryMembers, NameRecords, members_by_directory
from pcopy.tasks.archive.open_archive import OpenArchive, member_attributes, owner_lookup
from pcopy.tasks.archive.wanted_names import RankWantedNames
from pcopy.tasks.base import counts
from pcopy.tasks.base.job_filters import JobFilter
from pcopy.tasks.base.kind import Note
from pcopy.tasks.base.rank import Rank
from pcopy.tasks.base.result import RetryMode, TaskResult

if TYPE_CHECKING:
    from pcopy.fsio.backend.native_tar import SimpleMembers

ITEMS_PER_SLICE = 64
"""Number of members whose headers are read in one slice of a task."""
MAX_MEMBERS_PER_TASK = 256
"""Largest number of members of one directory that one task extracts."""
SORT_BUDGET = 32 << 20
"""Bytes of memory for sorting the members of a rank. Further members are spilled to a spool."""


class MemberSorter:
    """Consumer of the members of a span: it filters them, and prepares records for the ranks that own their
    directories.

    It implements ``pcopy.tasks.archive.read_headers.SpanConsumer``.
    """

    items_per_slice = ITEMS_PER_SLICE

    def __init__(self, rank: Rank, result: TaskResult) -> None:
        self._rank = rank
        self._result = result
        self._strip = rank.options.strip_components
        self._selected = rank.instance(JobFilter)
        self._wanted = rank.instance(RankWantedNames)
        self._records = NameRecords(rank.size)
        self._found = self._found_bytes = 0
        self._incomplete = incomplete_files(rank)
        self.takes_simple = not (self._strip or self._wanted or self._selected.has_filters or self._incomplete)
        """True if simple members that the C backend finds can be recorded unchanged: no filter, option or list concerns
        them."""
        self._lookup = owner_lookup(numeric=rank.options.numeric_owner)

    def take_simple(self, found: SimpleMembers) -> None:
        """Record simple members that the C backend has found."""
        keys, values, records = found.keys, found.values, self._records
        self._found += len(keys)
        self._found_bytes += found.bytes
        for begin, end in pairwise([*found.directory_starts, len(keys)]):
            key = keys[begin]
            directory = key.partition(b"\0\0")[0].replace(b"\0", b"/")
            if directory in records.marked_parents:
                records.marked_directories.difference_update(path_in_key(key[:-17]) for key in keys[begin:end])
            records.mark_parents(directory, int(key[-16:], 16))
            records.members[records.owner_of(directory)] += zip(keys[begin:end], values[begin:end], strict=True)

    def take_damage(self, damage: Damage) -> None:
        """Report a damaged place of the archive as failed."""
        result = self._result
        result.count(counts.FOUND)
        problem = Problem("extract", 0, text=f"at byte {damage.offset:,} of the archive: {damage.text}")
        if damage.name:
            result.fail(target_place(b""), damage.name, problem, retry=RetryMode.NEVER)
        else:
            result.count(counts.FAILED)
            result.report_failure(self._rank.options.archive_file, problem)

    def take_member(self, found: FoundMember) -> bool:
        """Filter and record the member ``found``; return True if it is a simple one."""
        member, result = found.member, self._result
        name_in_archive = member.name
        if self._strip:
            member = member._replace(name=_stripped_member_name(member, self._strip))
            if member.kind == LINK:
                member = member._replace(link=strip_components(member.link, self._strip))
        if not self._wanted.is_included(member, self._selected, name_in_archive):
            for counter in (counts.FOUND, counts.SKIPPED, counts.EXCLUDED):
                result.count(counter)
            return False
        self._found += 1
        if self._strip and member.name == b"" and member.kind != DIRECTORY:
            result.count(counts.SKIPPED)
            return False
        if problem := refusal_reason(member):
            result.fail(target_place(b""), name_in_archive, Problem("extract", 0, text=problem), retry=RetryMode.NEVER)
            return False
        self._found_bytes += member.size
        path = safe_path(member.name)
        if found.warning:
            result.warn(target_place(b""), path, found.warning)
        found = found._replace(problem_text=self._incomplete.problem_text(found.member.name, found.problem_text))
        return self._record_member(path, member, found)

    def _record_member(self, path: bytes, member: Member, found: FoundMember) -> bool:
        """Record a member for the rank that owns its directory; return True if it is a simple one."""
        value, is_simple = (
            b"",
            member.kind == FILE and not (found.problem_text or member.xattrs) and member.extents is None,
        )
        if is_simple:
            attributes = member_attributes(self._lookup, member)
            value = pack_simple(found.data, member, attributes.uid, attributes.gid)
        self._records.add_member(
            path, member, found.data, value or pack_member(path, member, found.data, found.problem_text)
        )
        return is_simple

    def send_records(self) -> None:
        """Send the records of the span to the ranks that own the directories, and report the counts."""
        self._wanted.send_found(self._result)
        self._result.count(counts.FOUND, self._found)
        self._result.count(counts.FOUND_BYTES, self._found_bytes)
        members, marks = self._records.members, self._records.marks
        for owner in members.keys() | marks.keys():
            note = FoundMembersNote(marshal.dumps((members[owner], marks[owner])))
            self._result.spawn(note, owner=owner)


def incomplete_files(rank: Rank) -> IncompleteNames:
    """Return the names of the files that are incomplete in the archive; none if the list is damaged, which rank 0
    reports."""
    try:
        return rank.instance(OpenArchive).incomplete
    except Problem:
        return NONE_INCOMPLETE


def _stripped_member_name(member: Member, parts: int) -> bytes:
    """Return the name of ``member`` without its first ``parts`` components; a slash at its end is kept."""
    name = strip_components(member.name, parts)
    return name + b"/" if name and member.name.endswith(b"/") else name


def strip_components(name: bytes, parts: int) -> bytes:
    """Return ``name`` without its first ``parts`` components, as tar counts these; empty if none remain."""
    names = [part for part in name.split(b"/") if part]
    return b"/".join(names[parts:])


class FoundMembers:
    """The members of the directories that this rank owns, sorted by directory, name, and offset in the archive.

    ``members`` are their records, ``marks`` the marks of their names (``pcopy.tasks.archive.names``).
    """

    def __init__(self, rank: Rank) -> None:
        self.members = ExternalSorter(rank.open_spool, SORT_BUDGET)
        self.marks = ExternalSorter(rank.open_spool, SORT_BUDGET // 4)

    def close(self) -> None:
        """Close the sorters and their spools."""
        self.members.close()
        self.marks.close()

    def by_directory(self) -> Iterator[DirectoryMembers]:
        """Yield the last member of each name, by directories; a large directory comes in several portions."""
        return members_by_directory(self.members.sorted(), MAX_MEMBERS_PER_TASK)


class FoundMembersNote(Note, code=144, doing="recording members"):
    """Note to the rank that owns directories: records of members in these, and marks of their names, packed."""

    records: bytes

    def run(self, rank: Rank, result: TaskResult) -> None:
        found = rank.instance(FoundMembers)
        for sorter, records in zip((found.members, found.marks), marshal.loads(self.records), strict=True):
            sorter.extend(records)
