"""Members that were found in an archive are filtered, and sent to the ranks that own their directories.

Each directory is owned by one rank, which receives all its members (``FoundMembersNote``). So the last one of several
members of the same name is used, and one rank alone decides what is in a directory.

A *simple* member is a regular file whose headers state only name, mode, owner, mtime and size.
"""

from __future__ import annotations

import marshal
from collections.abc import Iterator
from itertools import pairwise
from typing import TYPE_CHECKING

from pcopy.archive.incomplete import NONE_INCOMPLETE, NamesOfIncompleteFiles
from pcopy.archive.member import (
    DIRECTORY,
    FILE,
    HARD_LINK_MEMBER,
    ArchiveMember,
    extraction_refusal_reason,
    safe_member_path,
)
from pcopy.archive.reader import ArchiveDamage, FoundMember
from pcopy.fsio.problem import Problem
from pcopy.signature.items import type_byte
from pcopy.signature.sorting import ExternalSorter
from pcopy.tasks.archive.members_to_extract import (
    directory_place_in_target,
    is_packed_directory,
    offset_in_sort_key,
    pack_member,
    pack_simple_member,
    path_in_sort_key,
)
from pcopy.tasks.archive.names import DirectoryMembers, NameRecords, members_by_directory
from pcopy.tasks.archive.open_archive import OpenedArchive, extracted_member_metadata, owner_id_lookup
from pcopy.tasks.archive.wanted_names import WantedNamesOnRank
from pcopy.tasks.base import counts
from pcopy.tasks.base.actions import ItemAction
from pcopy.tasks.base.job import ArchiveOptions
from pcopy.tasks.base.job_filters import JobFilter
from pcopy.tasks.base.kind import TaskWithoutDirectory
from pcopy.tasks.base.rank import Rank
from pcopy.tasks.base.result import RetryMode, TaskResult

if TYPE_CHECKING:
    from pcopy.fsio.backend.native_tar import SimpleTarMembers

ITEMS_PER_SLICE = 64
"""Number of members after which a task that reads headers yields, so that its rank can do other work."""
MAX_MEMBERS_PER_TASK = 256
"""Largest number of members of one directory that one task extracts."""
_EXTRACTION_SORT_BYTES = 32 << 20
"""Bytes of memory in which a rank sorts the members to extract. If they take more, they are spilled to a temporary
file.
"""


class MemberRecordDistributor:
    """Filters the members of a span (a range of the archive), and makes records of them for the ranks that own their
    directories.

    It is a ``pcopy.tasks.archive.read_headers.SpanMemberConsumer``: the code that reads the headers passes each member
    to it.
    """

    items_per_slice = ITEMS_PER_SLICE

    def __init__(self, rank: Rank, result: TaskResult) -> None:
        self._rank = rank
        self._result = result
        self._strip = rank.program_options(ArchiveOptions).strip_components
        self._selected = rank.shared_instance(JobFilter)
        self._wanted = rank.shared_instance(WantedNamesOnRank)
        self._records = NameRecords(rank.size)
        self._found = self._found_bytes = 0
        self._incomplete = names_of_incomplete_files(rank)
        self.takes_simple = not (self._strip or self._wanted or self._selected.has_filters or self._incomplete)
        """True if simple members that the C backend has found need no look in Python: they can be recorded unchanged,
        since there is neither --strip-components, nor a filter, nor a list of wanted names or of incomplete files.
        """
        self._lookup = owner_id_lookup(numeric=rank.program_options(ArchiveOptions).numeric_owner)

    def handle_simple_members(self, found: SimpleTarMembers) -> None:
        """Add simple members that the C backend has found to the records that are sent to the ranks that own their
        directories. C has made the keys and values already.
        """
        keys, values, records = found.keys, found.values, self._records
        self._found += len(keys)
        self._found_bytes += found.bytes
        for first, end in pairwise([*found.directory_starts, len(keys)]):
            directory = keys[first].partition(b"\0\0")[0].replace(b"\0", b"/")
            begin = first + is_packed_directory(values[first])
            if begin > first:
                self._add_simple_directory(directory, keys[first], values[first])
            if begin == end:
                continue
            if directory in records.marked_parents:
                records.marked_directories.difference_update(path_in_sort_key(key[:-17]) for key in keys[begin:end])
            records.mark_parent_directories(directory, offset_in_sort_key(keys[begin]))
            records.record_parents(directory)
            records.members[records.owning_rank_of(directory)] += zip(keys[begin:end], values[begin:end], strict=True)

    def _add_simple_directory(self, path: bytes, key: bytes, value: bytes) -> None:
        """Add the directory ``path``, of which C has made ``key`` and ``value``, to the records."""
        records, offset = self._records, offset_in_sort_key(key)
        records.marked_directories.discard(path)
        records.mark_parent_directories(path.rpartition(b"/")[0], offset)
        records.mark_as_directory(path, offset)
        records.record_parents(path)
        records.members[records.owning_rank_of(path)].append((key, value))

    def handle_archive_damage(self, damage: ArchiveDamage) -> None:
        """Report a damaged place of the archive, ``damage``, as a failed item."""
        result = self._result
        result.count(counts.FOUND)
        problem = Problem("extract", 0, text=f"at byte {damage.offset:,} of the archive: {damage.text}")
        if damage.name:
            result.count_item_as_failed(directory_place_in_target(b""), damage.name, problem, retry=RetryMode.NEVER)
        else:
            result.count(counts.FAILED)
            result.report_failure(self._rank.program_options(ArchiveOptions).archive_file, problem)

    def handle_member(self, found: FoundMember) -> bool:
        """Filter the member ``found``, and add it to the records that are sent if it is to be extracted. Return True if
        it is a simple one (a regular file whose headers state only name, mode, owner, mtime and size).
        """
        member, result = found.member, self._result
        name_in_archive = member.name
        if self._strip:
            member = member._replace(name=_stripped_member_name(member, self._strip))
            if member.kind == HARD_LINK_MEMBER:
                member = member._replace(link=strip_components(member.link, self._strip))
        if not self._wanted.is_wanted_and_selected(member, self._selected, name_in_archive):
            result.count_excluded_items()
            parent, _, name = name_in_archive.rstrip(b"/").rpartition(b"/")
            place, kind = directory_place_in_target(parent), type_byte(member.st_mode)
            result.item_recorder.record_item_outcome(ItemAction.SKIP, place, name, kind)
            return False
        self._found += 1
        if self._strip and member.name == b"":
            result.count(counts.SKIPPED)
            return False
        if problem := extraction_refusal_reason(member):
            result.count_item_as_failed(
                directory_place_in_target(b""),
                name_in_archive,
                Problem("extract", 0, text=problem),
                retry=RetryMode.NEVER,
            )
            return False
        self._found_bytes += member.size
        path = safe_member_path(member.name)
        if found.warning:
            result.warn_about_item(directory_place_in_target(b""), path, found.warning)
        found = found._replace(
            problem_text=self._incomplete.error_text_if_incomplete(found.member.name, found.problem_text)
        )
        return self._add_member_record(path, member, found)

    def _add_member_record(self, path: bytes, member: ArchiveMember, found: FoundMember) -> bool:
        """Add a member to the records for the rank that owns its directory. Return True if it is a simple one (a
        regular file whose headers state only name, mode, owner, mtime and size).

        Args:
            path: the path to which it is extracted.
            member: the member under that path; ``found.member`` has the name in the archive.
            found: the member as it was read from the archive.
        """
        value, is_simple = (
            b"",
            member.kind == FILE and not (found.problem_text or member.xattrs) and member.extents is None,
        )
        if is_simple:
            attributes = extracted_member_metadata(self._lookup, member)
            value = pack_simple_member(found.data, member, attributes.uid, attributes.gid)
        self._records.record_parents(path if member.kind == DIRECTORY else path.rpartition(b"/")[0])
        self._records.add_member(
            path, member, found.data, value or pack_member(path, member, found.data, found.problem_text)
        )
        return is_simple

    def send_records(self) -> None:
        """Send the records of the span to the ranks that own the directories, and report the counts."""
        self._wanted.send_found_names(self._result)
        self._result.count(counts.FOUND, self._found)
        self._result.count(counts.FOUND_BYTES, self._found_bytes)
        members, marks = self._records.members, self._records.marks
        for owner in members.keys() | marks.keys():
            note = FoundMembersNote(marshal.dumps((members[owner], marks[owner])))
            self._result.spawn_task(note, owner=owner)


def names_of_incomplete_files(rank: Rank) -> NamesOfIncompleteFiles:
    """Return the names of the files that are incomplete in the archive. Return none if the list in the archive is
    damaged; rank 0 reports that.
    """
    try:
        return rank.shared_instance(OpenedArchive).incomplete_file_names
    except Problem:
        return NONE_INCOMPLETE


def _stripped_member_name(member: ArchiveMember, parts: int) -> bytes:
    """Return the name of ``member`` without its first ``parts`` components; empty if none remain. A slash at its end
    stays.
    """
    name = strip_components(member.name, parts)
    return name + b"/" if name and member.name.endswith(b"/") else name


def strip_components(name: bytes, parts: int) -> bytes:
    """Return ``name`` without its first ``parts`` components, counted as tar does; empty if none remain."""
    names = [part for part in name.split(b"/") if part]
    return b"/".join(names[parts:])


class FoundMembers:
    """The members of the directories that this rank owns, sorted by directory, name, and offset in the archive.

    ``members`` are records of the members. ``marks`` are records about names, by which conflicts are found. A mark says
    that its name is used as a directory, or as the target of a hard link (``pcopy.tasks.archive.names``).
    """

    def __init__(self, rank: Rank) -> None:
        self.members = ExternalSorter(rank.open_spool, _EXTRACTION_SORT_BYTES)
        self.marks = ExternalSorter(rank.open_spool, _EXTRACTION_SORT_BYTES // 4)

    def close(self) -> None:
        """Close the sorters and their temporary files."""
        self.members.close()
        self.marks.close()

    def last_members_by_directory(self) -> Iterator[DirectoryMembers]:
        """Generator: yield the members to extract, directory by directory; a large directory comes in several portions.
        Of several members with one name, only the last one is yielded.
        """
        return members_by_directory(self.members.sorted(), MAX_MEMBERS_PER_TASK)


class FoundMembersNote(TaskWithoutDirectory, code=144, doing="recording members"):
    """Message to the rank that owns some directories: packed records of the members in these directories, and of their
    marks (uses of a name as a directory or as the target of a hard link).
    """

    records: bytes

    def run(self, rank: Rank, result: TaskResult) -> None:
        found = rank.shared_instance(FoundMembers)
        for sorter, records in zip((found.members, found.marks), marshal.loads(self.records), strict=True):
            sorter.extend(records)
