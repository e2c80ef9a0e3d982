"""Several members that claim one name, or the same inode: what tar does, which takes them in their order.

Of members of one kind the last one counts, and nobody has to be asked (``FoundMembers.by_directory``). Otherwise the
owner of a name compares: members called so, directories called so, and links to it, for which there are marks
(``pcopy.tasks.archive.names``).

- A file and a directory: a directory takes the place of a file, a file that of an empty directory. So for some
  stretches of the archive the name is that of a file, and what is below it fails there. All ranks are told of these.
- Links to a name that a link has, or that several members have: rank 0 follows them to the member that each one means.
  One that means a member which a later one has taken the place of becomes a file of its own, with these contents.
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
"""Links that are handed on together."""


class CompareRivals(Kind, code=154, doing="comparing names", is_note=False):
    """Of one rank: the names that it owns, and what others have told of them."""

    def about(self) -> None:
        return None

    def run(self, rank: Rank, result: Result) -> Steps:
        with suppress(Problem):  # whoever reads it tells of that
            _ = rank.own(OpenArchive).contents  # before any member takes its name
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


class RivalNote(Note, code=155, doing="noting names"):
    """A path that is a file's and a directory's, and packed, the stretches of the archive where it is a file's."""

    path: bytes
    stretches: bytes

    def run(self, rank: Rank, result: Result) -> None:
        rank.own(Rivals)[self.path] = NumberPairs.unpacked(self.stretches)


class LinkRivalNote(Note, code=156, doing="noting hard links"):
    """Records of links that rank 0 has to follow, packed."""

    links: bytes

    def run(self, rank: Rank, result: Result) -> None:
        rank.own(LinkRivals).links.extend(marshal.loads(self.links))


class LinkRivals:
    """On rank 0: records of links, sorted by their places in the archive."""

    def __init__(self, rank: Rank) -> None:
        self.links = ExternalSorter(rank.open_spool)

    def close(self) -> None:
        self.links.close()


class FollowLinks(Kind, code=157, doing="following hard links", is_note=False):
    """Rank 0 finds the meaning of each link, and sends it to the owner of the link's directory."""

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
