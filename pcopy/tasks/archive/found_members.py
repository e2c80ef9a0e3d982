"""Members are found: rank 0 goes through the headers, or takes the index; spans of them are read by all ranks.

What is found comes to the owner of its directory (``FoundNote``), so that of several members of one name the last one
counts, and only one rank says what is in a directory.
"""

from __future__ import annotations

import marshal
import zlib
from collections import defaultdict
from collections.abc import Iterator
from contextlib import suppress
from itertools import pairwise

from pcopy.archive.index import SUFFIX
from pcopy.archive.member import DIRECTORY, LINK, Member, Unsafe, order_key, safe_path
from pcopy.archive.reader import Damage, FoundMember, members
from pcopy.archive.skim import skim
from pcopy.fsio.identity import Identity
from pcopy.fsio.problem import Problem
from pcopy.named import NamedTuple
from pcopy.signature.sorting import ExternalSorter, KeyValue
from pcopy.tasks.archive.opened import OpenArchive, number_of
from pcopy.tasks.base import counts
from pcopy.tasks.base.kind import Kind, Note, Steps
from pcopy.tasks.base.rank import CALL_COST, Rank
from pcopy.tasks.base.result import Result, Tried
from pcopy.tasks.base.selected import Selected
from pcopy.tasks.base.values import NOWHERE, Place
from pcopy.text import shown

SPAN_MEMBERS = 256
SPAN_BYTES = 1 << 20
"""Members and bytes with which a span is long enough for a task."""
SORT_BUDGET = 32 << 20
"""Bytes of memory for the members of a rank; what is more waits in a spool."""
_ITEMS_PER_SLICE = 64
"""Members after which a rank looks up from its work."""
TO_THE_END = -1
"""The end of a span that goes on to the end of the archive."""
_NONE = Identity(-1, -1)


TOLD, BELOW, LINKED = b"D", b"B", b"L"
"""Marks, which say of a name: it is that of a directory; something is below it; a link to it, which follows, packed."""
_MARKED_LEVELS = 64
"""So many directories above a member are marked, of those that no member tells of."""


def key_of(directory: bytes, name: bytes, at: int) -> bytes:
    """What members and marks are sorted by: ``at`` is their place in the archive."""
    return b"%b\0\0%b\0%016x" % (order_key(directory), name, at)


def path_in(key: bytes) -> bytes:
    """Of a key without its place."""
    directory, _, name = key.partition(b"\0\0")
    return directory.replace(b"\0", b"/") + b"/" + name if directory else name


def place_of(path: bytes) -> Place:
    return Place(0, path, _NONE, NOWHERE, False, False)


class ToUnpack(NamedTuple):
    """A member, called ``name`` in the directory ``path`` below the target (``b""``: that directory itself), whose
    contents stand at ``data`` of the archive. ``trouble``: what of its metadata can't be had."""

    path: bytes
    name: bytes
    data: int
    member: Member
    trouble: str = ""

    def packed(self) -> bytes:
        return marshal.dumps((self.path, self.name, self.data, tuple(self.member), self.trouble))

    @classmethod
    def unpacked(cls, packed: bytes) -> ToUnpack:
        path, name, data, member, trouble = marshal.loads(packed)
        return cls(path, name, data, Member(*member), trouble)


class ReadHeaders(Kind, code=142, doing="looking for members", is_note=False):
    """Rank 0 looks for places from which others can read members: in the index, or header by header."""

    def about(self) -> None:
        return None

    def run(self, rank: Rank, result: Result) -> Steps:
        archive = rank.own(OpenArchive)
        known = None
        try:
            known = archive.contents.index()
        except ValueError as error:
            result.notices.append(f"{shown(rank.options.archive_file + SUFFIX)}: is not used: {error}")
        except Problem as problem:
            rank.stop(f"the archive cannot be read: {problem.operation}: {problem.strerror}")
            return
        if known is not None:
            for start, end in pairwise([*known.points, known.end]):
                result.spawn(ReadSpan(start, end), end - start)
            result.spawn(ReadSpan(known.end, TO_THE_END), CALL_COST)
            return
        start, number = 0, 0
        try:
            for offset in skim(archive.read):
                number += 1
                if offset is None:  # what stands there says something of all that follows, or is damaged
                    break
                if offset - start >= (SPAN_BYTES if number >= SPAN_MEMBERS else 4 * SPAN_BYTES):
                    result.spawn(ReadSpan(start, offset), offset - start)
                    start, number = offset, 0
                if not number % _ITEMS_PER_SLICE:
                    yield None
        except Problem:  # whoever reads what follows tells of it
            pass
        result.spawn(ReadSpan(start, TO_THE_END), SPAN_BYTES)


class ReadSpan(Kind, code=143, doing="reading headers", is_note=False):
    """The members that begin from ``start`` on and before ``end``."""

    start: int
    end: int

    def about(self) -> None:
        return None

    def run(self, rank: Rank, result: Result) -> Steps:
        archive, sorting = rank.own(OpenArchive), Sorting(rank, result)
        end = None if self.end == TO_THE_END else self.end
        at = self.start
        known: dict[bytes, bytes] = {}
        try:
            found = members(archive.read, number_of, self.start, end, known)
            for number, each in enumerate(found):
                if isinstance(each, Damage):
                    sorting.damaged(each)
                    at = -1
                else:
                    sorting.take(each)
                    at = each.next
                if number % _ITEMS_PER_SLICE == _ITEMS_PER_SLICE - 1:
                    yield None
            if end is not None and at not in (end, -1):
                text = f"what begins at byte {self.start:,} ends at byte {at:,}, and not where the next one begins"
                sorting.damaged(Damage(self.start, b"", text))
            if end is not None and known:  # an index of ours has no offsets behind a global header
                text = "a header that says something of all that follows, which the index hides: remove the index"
                sorting.damaged(Damage(self.start, b"", text))
        except Problem as problem:
            sorting.damaged(Damage(at, b"", problem.strerror or ""))
        sorting.end()


class Sorting:
    """Says of each member where it goes, and whether it is wanted."""

    def __init__(self, rank: Rank, result: Result) -> None:
        self._rank = rank
        self._result = result
        self._strip = rank.options.strip_components
        self._selected = rank.own(Selected)
        self._wanted = rank.options.members
        self._records: defaultdict[int, list[KeyValue]] = defaultdict(list)
        self._marks: defaultdict[int, list[KeyValue]] = defaultdict(list)
        self._below = set[bytes]()
        """Directories that are marked."""
        self._found = self._found_bytes = 0

    def damaged(self, damage: Damage) -> None:
        result = self._result
        result.count(counts.FOUND)
        what = f"at byte {damage.offset:,} of the archive: {damage.text}"
        result.fail(place_of(b""), damage.name, Problem("extract", 0, text=what), retry=Tried.NEVER)

    def take(self, found: FoundMember) -> None:
        member, result = found.member, self._result
        name = member.name
        if self._strip:
            name = stripped(name, self._strip)
            if member.kind == LINK:
                member = member._replace(link=stripped(member.link, self._strip))
        try:
            path = safe_path(name)
        except Unsafe as unsafe:
            result.count(counts.FOUND)
            result.fail(place_of(b""), member.name, Problem("extract", 0, text=str(unsafe)), retry=Tried.NEVER)
            return
        if not self._is_wanted(name, path, member):
            return
        self._found += 1
        self._found_bytes += member.size
        if found.remark:
            result.warn(place_of(b""), path, found.remark)
        if not path and member.kind != DIRECTORY:
            if self._strip:
                result.count(counts.SKIPPED)
            else:
                result.fail(
                    place_of(b""), b"", Problem("extract", 0, text="a member without a name"), retry=Tried.NEVER
                )
            return
        self._keep(path, member, found)

    def _keep(self, path: bytes, member: Member, found: FoundMember) -> None:
        """For the owner of its directory."""
        directory, _, last = path.rpartition(b"/")
        kind, at = member.kind, found.data
        self._below.discard(path)
        if directory not in self._below:
            self._mark_above(directory, at)
        if kind == DIRECTORY:
            if path:
                self._mark(path, TOLD, at)
            directory, last = path, b""
        value = ToUnpack(directory, last, at, member, found.trouble).packed()
        if kind == LINK:
            target = b""
            with suppress(Unsafe):
                target = safe_path(member.link)
            if target == path:  # it takes the place of nothing
                at = 0
            elif target:
                self._mark(target, LINKED + value, at)
        self._records[self._owner(directory)].append((key_of(directory, last, at), value))

    def _owner(self, directory: bytes) -> int:
        return zlib.crc32(directory) % self._rank.size

    def _mark(self, path: bytes, mark: bytes, at: int) -> None:
        directory, _, last = path.rpartition(b"/")
        self._marks[self._owner(directory)].append((key_of(directory, last, at), mark))

    def _mark_above(self, directory: bytes, at: int) -> None:
        """Once, until another member has the name."""
        for _ in range(_MARKED_LEVELS):
            if not directory or directory in self._below:
                return
            self._below.add(directory)
            self._mark(directory, BELOW, at)
            directory = directory.rpartition(b"/")[0]

    def _is_wanted(self, name: bytes, path: bytes, member: Member) -> bool:
        if self._wanted and not any(is_below(member.name, each) for each in self._wanted):
            return False
        if not self._selected.anything:
            return True
        pattern = path + b"/" if member.kind == DIRECTORY else path
        taken = not self._selected.excludes_below(pattern)
        if taken and member.kind != DIRECTORY:
            taken = self._selected.takes_item(member.st_mode, member.size, member.mtime)
        if not taken:
            for counter in (counts.FOUND, counts.SKIPPED, counts.EXCLUDED):
                self._result.count(counter)
        return taken

    def end(self) -> None:
        self._result.count(counts.FOUND, self._found)
        self._result.count(counts.FOUND_BYTES, self._found_bytes)
        for owner in self._records.keys() | self._marks.keys():
            note = FoundNote(marshal.dumps((self._records[owner], self._marks[owner])))
            self._result.spawn(note, owner=owner)


def stripped(name: bytes, parts: int) -> bytes:
    """Without its first parts, as tar counts them; empty if nothing is left."""
    names = [part for part in name.split(b"/") if part]
    return b"/".join(names[parts:])


def is_below(name: bytes, wanted: bytes) -> bool:
    """Is it the member that is ``wanted``, or below that?"""
    name, wanted = _bare(name), _bare(wanted)
    return name == wanted or name.startswith(wanted + b"/") or not wanted


def _bare(name: bytes) -> bytes:
    return b"/".join(part for part in name.split(b"/") if part not in (b"", b"."))


class FoundMembers:
    """Those of the directories of one rank, sorted by directory, name, and place in the archive."""

    def __init__(self, rank: Rank) -> None:
        self.members = ExternalSorter(rank.open_spool, SORT_BUDGET)
        self.marks = ExternalSorter(rank.open_spool, SORT_BUDGET // 4)

    def close(self) -> None:
        self.members.close()
        self.marks.close()

    def by_directory(self) -> Iterator[tuple[list[bytes], int]]:
        """Of each directory the last member of each name in it, packed, and how many others there are; of a large one
        in several parts."""
        directory, kept, others = b"", list[bytes](), 0
        last = b""
        for key, value in self.members.sorted():
            around, _, rest = key.partition(b"\0\0")
            name = rest[:-17]
            if kept and around == directory and name == last:
                kept[-1] = value
                others += not key.endswith(b"1")  # a link that was followed takes its own place
                continue
            if kept and (around != directory or len(kept) >= SPAN_MEMBERS):
                yield kept, others
                kept, others = [], 0
            directory, last = around, name
            kept.append(value)
        if kept:
            yield kept, others


class FoundNote(Note, code=144, doing="noting members"):
    """Members for the rank that owns their directories, and marks of their names, packed."""

    records: bytes

    def run(self, rank: Rank, result: Result) -> None:
        found = rank.own(FoundMembers)
        for sorter, records in zip((found.members, found.marks), marshal.loads(self.records), strict=True):
            for record in records:
                sorter.add(*record)
