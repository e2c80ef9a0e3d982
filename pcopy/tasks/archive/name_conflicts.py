"""Conflicts between members of the same name, and hard links to such names. The result is the one that tar gets by
extracting all members in order.

If all members of a name are of one type, the last one is used (``FoundMembers.last_members_by_directory``). Otherwise
the rank that owns the name compares the members of that name with its marks. A mark (``pcopy.tasks.archive.names``)
says that the name is used as a directory, or as the target of a hard link.

- A file and a directory have the same name. A later directory replaces a file, and a later file replaces an empty
  directory. So in some stretches (ranges) of the archive the name is that of a file, and members below it fail there.
  These stretches are sent to all ranks.
- A link refers to the name of another link, or to a name that several members have. Rank 0 finds out which member each
  such link refers to. If a later member has replaced that one, the link becomes a regular file with the contents of the
  replaced member.
"""

from __future__ import annotations

import marshal
import zlib
from collections import defaultdict
from contextlib import suppress

from pcopy.archive.member import NumberPairs
from pcopy.fsio.problem import Problem
from pcopy.signature.sorting import ExternalSorter, SortRecord
from pcopy.tasks.archive.found_members import FoundMembers, FoundMembersNote
from pcopy.tasks.archive.members_to_extract import MemberToExtract, is_packed_simple_member, member_sort_key
from pcopy.tasks.archive.names import ConflictingNames, NameConflict, name_conflicts, resolved_links
from pcopy.tasks.archive.open_archive import OpenedArchive
from pcopy.tasks.archive.replaced_items import ExistingDirectories
from pcopy.tasks.base.kind import TaskKind, TaskSteps, TaskWithoutDirectory
from pcopy.tasks.base.rank import Rank
from pcopy.tasks.base.result import TaskResult

_LINKS_PER_NOTE = 256
"""Number of links that are sent in one message."""


class CompareMemberNames(TaskKind, code=154, doing="comparing names", is_note=False):
    """Task of each rank: report conflicts between members, for the names that this rank owns.

    It compares the members of a name with its marks: they say whether other members use the name as a directory, or as
    the target of a hard link.
    """

    def subject(self) -> None:
        return None

    def run(self, rank: Rank, result: TaskResult) -> TaskSteps:
        # Open the archive now: later, an extracted member could have replaced it under its name. An error is
        # reported by the tasks that read the archive.
        with suppress(Problem):
            _ = rank.shared_instance(OpenedArchive).contents_of_archive
        found, links = rank.shared_instance(FoundMembers), list[SortRecord]()
        if rank.options.itemize and not rank.options.dry_run:
            yield from _examine_existing_directories(rank, found)
        for rival in name_conflicts(found.members.sorted(), found.marks.sorted()):
            if rival is None:
                yield None
            elif isinstance(rival, NameConflict):
                for owner in range(rank.size):
                    result.spawn_task(NameConflictNote(*rival), owner=owner)
            else:
                links.append(rival.record_for_sorting)
                if len(links) >= _LINKS_PER_NOTE:
                    result.spawn_task(LinksToResolveNote(marshal.dumps(links)), owner=0)
                    links = []
        if links:
            result.spawn_task(LinksToResolveNote(marshal.dumps(links)), owner=0)


def _examine_existing_directories(rank: Rank, found: FoundMembers) -> TaskSteps:
    """Examine the existing directories among the members that this rank owns, before anything is extracted."""
    existing = rank.shared_instance(ExistingDirectories)
    for members in found.last_members_by_directory():
        for value in members.values:
            if not is_packed_simple_member(value) and not (each := MemberToExtract.unpack(value, members.path)).name:
                existing.examine(each)
        yield None


class NameConflictNote(TaskWithoutDirectory, code=155, doing="recording names"):
    """Message to each rank: ``path`` is a file in the packed ``stretches`` (ranges of offsets) of the archive, and a
    directory elsewhere.
    """

    path: bytes
    stretches: bytes

    def run(self, rank: Rank, result: TaskResult) -> None:
        rank.shared_instance(ConflictingNames)[self.path] = NumberPairs.from_bytes(self.stretches)


class LinksToResolveNote(TaskWithoutDirectory, code=156, doing="recording hard links"):
    """Message to rank 0: packed records of hard links. Rank 0 must find out which member each of them refers to."""

    links: bytes

    def run(self, rank: Rank, result: TaskResult) -> None:
        rank.shared_instance(LinksToResolve).links.extend(marshal.loads(self.links))


class LinksToResolve:
    """On rank 0: the hard links of which it must find out to which member they refer, sorted by their offsets in the
    archive.
    """

    def __init__(self, rank: Rank) -> None:
        self.links = ExternalSorter(rank.open_spool)

    def close(self) -> None:
        """Close the sorter and its temporary file."""
        self.links.close()


class ResolveLinks(TaskKind, code=157, doing="following hard links", is_note=False):
    """Task of rank 0: find out what the links refer to, and send the results to the ranks that own their
    directories.
    """

    def subject(self) -> None:
        return None

    def run(self, rank: Rank, result: TaskResult) -> TaskSteps:
        rivals = rank.shared_instance(LinksToResolve)
        records: defaultdict[int, list[SortRecord]] = defaultdict(list)
        with rank.open_spool() as spool:
            for meaning in resolved_links(rivals.links.sorted(), spool):
                if meaning is None:
                    yield None
                    continue
                at, each, _ = meaning
                owner = zlib.crc32(each.path) % rank.size
                records[owner].append((member_sort_key(each.path, each.name, at | 1), each.pack_as_bytes()))
                if len(records[owner]) >= _LINKS_PER_NOTE:
                    result.spawn_task(FoundMembersNote(marshal.dumps((records.pop(owner), []))), owner=owner)
        for owner, some in records.items():
            result.spawn_task(FoundMembersNote(marshal.dumps((some, []))), owner=owner)
        rivals.close()
