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
from pcopy.signature.sorting import ExternalSorter, KeyValue
from pcopy.tasks.archive.found_members import FoundMembers, FoundNote
from pcopy.tasks.archive.names import RivalName, Rivals, compared, followed
from pcopy.tasks.archive.opened import OpenArchive
from pcopy.tasks.archive.to_unpack import key_of
from pcopy.tasks.base.kind import Kind, Note, Steps
from pcopy.tasks.base.rank import Rank
from pcopy.tasks.base.result import Result

_AT_ONCE = 256
"""Number of links that are sent together."""


class CompareRivals(Kind, code=154, doing="comparing names", is_note=False):
    """Task of each rank: compare the members and the marks of the names that it owns, and report the conflicts."""

    def about(self) -> None:
        return None

    def run(self, rank: Rank, result: Result) -> Steps:
        # Open the archive before any extracted member can replace it under its name. An error is reported
        # by the tasks that read it.
        with suppress(Problem):
            _ = rank.own(OpenArchive).contents
        found, links = rank.own(FoundMembers), list[KeyValue]()
        for rival in compared(found.members.sorted(), found.marks.sorted()):
            if rival is None:
                yield None
            elif isinstance(rival, RivalName):
                for owner in range(rank.size):
                    result.spawn(RivalNote(*rival), owner=owner)
            else:
                links.append(rival.record)
                if len(links) >= _AT_ONCE:
                    result.spawn(LinkRivalNote(marshal.dumps(links)), owner=0)
                    links = []
        if links:
            result.spawn(LinkRivalNote(marshal.dumps(links)), owner=0)


class RivalNote(Note, code=155, doing="recording names"):
    """Note to each rank: ``path`` is a file in the packed ``stretches`` of the archive, and a directory elsewhere."""

    path: bytes
    stretches: bytes

    def run(self, rank: Rank, result: Result) -> None:
        rank.own(Rivals)[self.path] = NumberPairs.unpacked(self.stretches)


class LinkRivalNote(Note, code=156, doing="recording hard links"):
    """Note to rank 0: records of links that it must resolve, packed."""

    links: bytes

    def run(self, rank: Rank, result: Result) -> None:
        rank.own(LinkRivals).links.extend(marshal.loads(self.links))


class LinkRivals:
    """The records of links to be resolved, on rank 0, sorted by their offsets in the archive."""

    def __init__(self, rank: Rank) -> None:
        self.links = ExternalSorter(rank.open_spool)

    def close(self) -> None:
        """Close the sorter and its spool."""
        self.links.close()


class FollowLinks(Kind, code=157, doing="following hard links", is_note=False):
    """Task of rank 0: resolve links, and send the results to the owners of their directories."""

    def about(self) -> None:
        return None

    def run(self, rank: Rank, result: Result) -> Steps:
        rivals = rank.own(LinkRivals)
        records: defaultdict[int, list[KeyValue]] = defaultdict(list)
        with rank.open_spool() as spool:
            for meaning in followed(rivals.links.sorted(), spool):
                if meaning is None:
                    yield None
                    continue
                at, each, _ = meaning
                owner = zlib.crc32(each.path) % rank.size
                records[owner].append((key_of(each.path, each.name, at | 1), each.packed()))
                if len(records[owner]) >= _AT_ONCE:
                    result.spawn(FoundNote(marshal.dumps((records.pop(owner), []))), owner=owner)
        for owner, some in records.items():
            result.spawn(FoundNote(marshal.dumps((some, []))), owner=owner)
        rivals.close()
