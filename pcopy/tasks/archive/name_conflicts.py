"""Conflicts between members that have the same name, and hard links to such names. They are resolved as tar does by
extracting members in order.

If all members of a name are of one type, the last one is used (``FoundMembers.by_directory``). Otherwise the owner of
the name compares three things: the members of that name, the directories of that name, and the links to it. The latter
two are known by marks (``pcopy.tasks.archive.names``).

- A file and a directory have the same name. A later directory replaces a file, and a later file replaces an empty
  directory. So in some stretches of the archive the name is that of a file, and members below it fail there. These
  stretches are sent to all ranks.
- A link refers to the name of another link, or to a name that several members have. Rank 0 finds out which member each
  one refers to. If a later member has replaced that one, the link becomes a regular file with the contents of the
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
from pcopy.tasks.archive.members_to_extract import member_key
from pcopy.tasks.archive.names import ConflictingNames, NameConflict, name_conflicts, resolved_links
from pcopy.tasks.archive.open_archive import OpenArchive
from pcopy.tasks.base.kind import Note, Steps, TaskKind
from pcopy.tasks.base.rank import Rank
from pcopy.tasks.base.result import TaskResult

_LINKS_PER_NOTE = 256
"""Number of links that are sent together."""


class CompareMemberNames(TaskKind, code=154, doing="comparing names", is_note=False):
    """Task of each rank: compare the members and the marks of the names that it owns, and report the conflicts."""

    def subject(self) -> None:
        return None

    def run(self, rank: Rank, result: TaskResult) -> Steps:
        # Open the archive before any extracted member can replace it under its name. An error is reported
        # by the tasks that read it.
        with suppress(Problem):
            _ = rank.instance(OpenArchive).contents
        found, links = rank.instance(FoundMembers), list[SortRecord]()
        for rival in name_conflicts(found.members.sorted(), found.marks.sorted()):
            if rival is None:
                yield None
            elif isinstance(rival, NameConflict):
                for owner in range(rank.size):
                    result.spawn(NameConflictNote(*rival), owner=owner)
            else:
                links.append(rival.record)
                if len(links) >= _LINKS_PER_NOTE:
                    result.spawn(LinksToResolveNote(marshal.dumps(links)), owner=0)
                    links = []
        if links:
            result.spawn(LinksToResolveNote(marshal.dumps(links)), owner=0)


class NameConflictNote(Note, code=155, doing="recording names"):
    """Note to each rank: ``path`` is a file in the packed ``stretches`` of the archive, and a directory elsewhere."""

    path: bytes
    stretches: bytes

    def run(self, rank: Rank, result: TaskResult) -> None:
        rank.instance(ConflictingNames)[self.path] = NumberPairs.from_bytes(self.stretches)


class LinksToResolveNote(Note, code=156, doing="recording hard links"):
    """Note to rank 0: records of links that it must resolve, packed."""

    links: bytes

    def run(self, rank: Rank, result: TaskResult) -> None:
        rank.instance(LinksToResolve).links.extend(marshal.loads(self.links))


class LinksToResolve:
    """The records of links to be resolved, on rank 0, sorted by their offsets in the archive."""

    def __init__(self, rank: Rank) -> None:
        self.links = ExternalSorter(rank.open_spool)

    def close(self) -> None:
        """Close the sorter and its spool."""
        self.links.close()


class ResolveLinks(TaskKind, code=157, doing="following hard links", is_note=False):
    """Task of rank 0: resolve links, and send the results to the owners of their directories."""

    def subject(self) -> None:
        return None

    def run(self, rank: Rank, result: TaskResult) -> Steps:
        rivals = rank.instance(LinksToResolve)
        records: defaultdict[int, list[SortRecord]] = defaultdict(list)
        with rank.open_spool() as spool:
            for meaning in resolved_links(rivals.links.sorted(), spool):
                if meaning is None:
                    yield None
                    continue
                at, each, _ = meaning
                owner = zlib.crc32(each.path) % rank.size
                records[owner].append((member_key(each.path, each.name, at | 1), each.pack()))
                if len(records[owner]) >= _LINKS_PER_NOTE:
                    result.spawn(FoundMembersNote(marshal.dumps((records.pop(owner), []))), owner=owner)
        for owner, some in records.items():
            result.spawn(FoundMembersNote(marshal.dumps((some, []))), owner=owner)
        rivals.close()
