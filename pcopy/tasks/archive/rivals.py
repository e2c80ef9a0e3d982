"""Several members that claim one name, or the same inode: what tar does, which takes them in their order.

Of members of one kind the last one counts, and nobody has to be asked (``FoundMembers.by_directory``). Otherwise the
owner of a name compares: members called so, directories called so, and links to it, of which marks tell.

- A file and a directory: a directory takes the place of a file, a file that of an empty directory. So for some
  stretches of the archive the name is that of a file, and what is below it fails there. All ranks are told of these.
- Links to a name that a link has, or that several members have: rank 0 follows them to the member that each one means.
  One that means a member which a later one has taken the place of becomes a file of its own, with these contents.
"""

from __future__ import annotations

import marshal
import zlib
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from itertools import groupby

from pcopy.archive.member import DIRECTORY, LINK, Unsafe, safe_path
from pcopy.fsio.problem import Problem
from pcopy.signature.sorting import KeyValue
from pcopy.tasks.archive.found_members import BELOW, TOLD, FoundMembers, FoundNote
from pcopy.tasks.archive.opened import OpenArchive
from pcopy.tasks.archive.to_unpack import ToUnpack, key_of, path_in
from pcopy.tasks.base.kind import Kind, Note, Steps
from pcopy.tasks.base.rank import Rank
from pcopy.tasks.base.result import Result
from pcopy.text import shown

_ITEMS_PER_SLICE = 1024
END = 1 << 63
"""Of a stretch that goes on to the end of the archive."""

Stretch = tuple[int, int]
"""Of the archive: where it begins, and where it ends."""


class Rivals(dict[bytes, list[Stretch]]):
    """Of each path that is a file's and a directory's: the stretches of the archive where it is a file's."""

    def __init__(self, rank: Rank) -> None:
        super().__init__()

    def concern(self, path: bytes, names: Iterable[bytes], members: Iterable[ToUnpack]) -> bool:
        """Has anything of a directory, or what is above it, such a name?"""
        above = path
        while above:
            if above in self:
                return True
            above = above.rpartition(b"/")[0]
        start = path + b"/" if path else b""
        return any(start + name in self for name in (*names, *(each.name for each in members)))

    def refuse(self, each: ToUnpack) -> bool:
        """May it be unpacked? If not, a later member has taken its place. Raises ``Problem`` if it fails."""
        is_directory = each.member.kind == DIRECTORY
        path = each.path if is_directory or not each.path else each.path + b"/" + each.name
        path = path or each.name
        above = path
        while above := above.rpartition(b"/")[0]:
            if any(begin < each.data < end for begin, end in self.get(above, ())):
                raise Problem("extract", 0, text=f"a file has the name of the directory {shown(above)}")
        stretches = self.get(path)
        if stretches is None:
            return False
        last_begin, last_end = stretches[-1] if stretches else (0, 0)
        if is_directory:
            return last_end == END and each.data < last_begin
        if any(begin <= each.data < end for begin, end in stretches):
            return last_end != END
        raise Problem("extract", 0, text="a directory that is not empty has its name")


class CompareRivals(Kind, code=154, doing="comparing names", is_note=False):
    """Of one rank: the names that it owns, and what others have told of them."""

    def about(self) -> None:
        return None

    def run(self, rank: Rank, result: Result) -> Steps:
        with suppress(Problem):  # whoever reads it tells of that
            _ = rank.own(OpenArchive).contents  # before any member takes its name
        found = rank.own(FoundMembers)
        marks = groupby(found.marks.sorted(), lambda record: record[0][:-17])
        name, told = next(marks, (b"", iter(())))
        claims: list[KeyValue] = []
        for number, (key, value) in enumerate(found.members.sorted()):
            if number % _ITEMS_PER_SLICE == _ITEMS_PER_SLICE - 1:
                yield None
            mine = key[:-17]
            while name and name < mine:
                _compare(rank, result, name, claims, told)
                claims = []
                name, told = next(marks, (b"", iter(())))
            if not name:
                break
            if name == mine:
                claims.append((key, value))
        if name:
            _compare(rank, result, name, claims, told)


def _compare(rank: Rank, result: Result, name: bytes, claims: Sequence[KeyValue], told: Iterable[KeyValue]) -> None:
    if not claims:
        return
    path = path_in(name)
    uses, links = list[tuple[int, bytes]](), list[tuple[int, bytes]]()
    for key, value in told:
        (uses if value in (TOLD, BELOW) else links).append((int(key[-16:], 16), value))
    if uses:
        files = [(int(key[-16:], 16), b"") for key, _ in claims]
        stretches = list(_stretches(sorted(files + uses)))
        for owner in range(rank.size):
            result.spawn(RivalNote(path, marshal.dumps(stretches)), owner=owner)
    if links and (len(claims) > 1 or ToUnpack.unpacked(claims[0][1]).member.kind == LINK):
        versions = [(int(key[-16:], 16), value) for key, value in claims]
        result.spawn(LinkRivalNote(path, marshal.dumps((versions, links))), owner=0)


def _stretches(events: Iterable[tuple[int, bytes]]) -> Iterator[Stretch]:
    """Where a name is that of a file. An event is where a member stands, and TOLD for a directory, BELOW for something
    in it, nothing for the rest."""
    begin, is_full = -1, False
    for at, what in events:
        if what == TOLD:
            if begin >= 0:
                yield begin, at
            begin = -1
        elif what == BELOW:
            is_full |= begin < 0
        elif begin < 0 and not is_full:
            begin = at
    if begin >= 0:
        yield begin, END


class RivalNote(Note, code=155, doing="noting names"):
    """A path that is a file's and a directory's, and packed, the stretches of the archive where it is a file's."""

    path: bytes
    stretches: bytes

    def run(self, rank: Rank, result: Result) -> None:
        rank.own(Rivals)[self.path] = marshal.loads(self.stretches)


class LinkRivalNote(Note, code=156, doing="noting hard links"):
    """A path, and packed, the members of that name, and the links to it, each with its place in the archive."""

    path: bytes
    members: bytes

    def run(self, rank: Rank, result: Result) -> None:
        rank.own(LinkRivals).append((self.path, *marshal.loads(self.members)))


class LinkRivals(list[tuple[bytes, list[tuple[int, bytes]], list[tuple[int, bytes]]]]):
    """On rank 0: of each ``LinkRivalNote`` what it holds."""

    def __init__(self, rank: Rank) -> None:
        super().__init__()


class FollowLinks(Kind, code=157, doing="following hard links", is_note=False):
    """Rank 0 says of each link what it means, in the order of the archive: what a link refers to has come before."""

    def about(self) -> None:
        return None

    def run(self, rank: Rank, result: Result) -> Steps:
        rivals = rank.own(LinkRivals)
        versions = {path: [(at, ToUnpack.unpacked(value)) for at, value in some] for path, some, _ in rivals}
        links = sorted((at, path, value) for path, _, some in rivals for at, value in some)
        meant: dict[int, bytes | ToUnpack] = {}
        records: defaultdict[int, list[KeyValue]] = defaultdict(list)
        for number, (at, path, value) in enumerate(links):
            meaning = meant[at] = _meaning(versions[path], meant, at, path)
            link = ToUnpack.unpacked(value[1:])
            if isinstance(meaning, bytes):
                record = link._replace(member=link.member._replace(link=meaning))
            else:
                record = meaning._replace(path=link.path, name=link.name)
            owner = zlib.crc32(link.path) % rank.size
            records[owner].append((key_of(link.path, link.name, at | 1), record.packed()))
            if number % _ITEMS_PER_SLICE == _ITEMS_PER_SLICE - 1:
                yield None
        for owner, some in records.items():
            result.spawn(FoundNote(marshal.dumps((some, []))), owner=owner)
        rivals.clear()


def _meaning(
    versions: Sequence[tuple[int, ToUnpack]], meant: dict[int, bytes | ToUnpack], at: int, path: bytes
) -> bytes | ToUnpack:
    """What a link at ``at`` to ``path`` means: the name of a member, or one whose name a later one takes."""
    number = max(0, bisect_left(versions, at, key=lambda version: version[0]) - 1)
    there, version = versions[number]
    if version.member.kind == LINK:
        first = version.member.link
        with suppress(Unsafe):
            first = safe_path(first)
        meaning = meant.get(there, first)
        return path if isinstance(meaning, ToUnpack) and number == len(versions) - 1 else meaning
    return path if number == len(versions) - 1 else version
