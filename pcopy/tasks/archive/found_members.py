"""Members that were found are sorted: each is asked for, or not, and has its place.

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
from typing import TYPE_CHECKING

from pcopy.archive.member import DIRECTORY, FILE, LINK, Member, Unsafe, safe_path
from pcopy.archive.reader import Damage, FoundMember
from pcopy.fsio.problem import Problem
from pcopy.named import NamedTuple
from pcopy.signature.sorting import ExternalSorter, KeyValue
from pcopy.tasks.archive.opened import attributes_of, lookup_of
from pcopy.tasks.archive.to_unpack import ToUnpack, key_of, packed_plain, path_in, place_of
from pcopy.tasks.archive.wanted_names import WantedOfRank, is_selected
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

TOLD, BELOW, LINKED = b"D", b"B", b"L"
"""Marks, which say of a name: it is that of a directory; something is below it; a link to it, which follows, packed."""
_MARKED_LEVELS = 64
"""So many directories above a member are marked, of those that no member tells of."""


class Sorting:
    """Says of each member where it goes, and whether it is wanted."""

    items_per_slice = ITEMS_PER_SLICE

    def __init__(self, rank: Rank, result: Result) -> None:
        self._rank = rank
        self._result = result
        self._strip = rank.options.strip_components
        self._selected = rank.own(Selected)
        self._wanted = rank.own(WantedOfRank)
        self._records: defaultdict[int, list[KeyValue]] = defaultdict(list)
        self._marks: defaultdict[int, list[KeyValue]] = defaultdict(list)
        self._below = set[bytes]()
        """Directories that are marked."""
        self._around = set[bytes]()
        """Directories in which there may be such."""
        self._found = self._found_bytes = 0
        self.takes_plain = not (self._strip or self._wanted or self._selected.anything)
        """Is there nothing to ask of a plain member?"""
        self._lookup = lookup_of(numeric=rank.options.numeric_owner)

    def take_plain(self, found: PlainMembers) -> None:
        """Members that are found in C."""
        keys, values = found.keys, found.values
        self._found += len(keys)
        self._found_bytes += found.bytes
        for begin, end in pairwise([*found.begins, len(keys)]):
            key = keys[begin]
            directory = key.partition(b"\0\0")[0].replace(b"\0", b"/")
            if directory in self._around:
                self._below.difference_update(path_in(key[:-17]) for key in keys[begin:end])
            self._mark_above(directory, int(key[-16:], 16))
            self._records[self._owner(directory)] += zip(keys[begin:end], values[begin:end], strict=True)

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
            return False
        if not self._is_wanted(path, member):
            return False
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
            return False
        return self._keep(path, member, found)

    def _keep(self, path: bytes, member: Member, found: FoundMember) -> bool:
        """For the owner of its directory. Is it a plain one?"""
        directory, _, last = path.rpartition(b"/")
        kind, at = member.kind, found.data
        self._below.discard(path)
        self._mark_above(directory, at)
        if kind == DIRECTORY:
            if path:
                self._mark(path, TOLD, at)
            directory, last = path, b""
        value, is_plain = b"", kind == FILE and not (found.trouble or member.xattrs) and member.extents is None
        if is_plain:
            attributes = attributes_of(self._lookup, member)
            value = packed_plain(at, member, attributes.uid, attributes.gid)
        if not value:
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
        return is_plain

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
            self._around.add(directory)

    def _is_wanted(self, path: bytes, member: Member) -> bool:
        if self._wanted and not self._wanted.takes(member.name):
            return False
        if is_selected(member, path, self._selected):
            return True
        for counter in (counts.FOUND, counts.SKIPPED, counts.EXCLUDED):
            self._result.count(counter)
        return False

    def end(self) -> None:
        self._wanted.tell(self._result)
        self._result.count(counts.FOUND, self._found)
        self._result.count(counts.FOUND_BYTES, self._found_bytes)
        for owner in self._records.keys() | self._marks.keys():
            note = FoundNote(marshal.dumps((self._records[owner], self._marks[owner])))
            self._result.spawn(note, owner=owner)


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
        prefix, start = b"", 0
        names, values, others = list[bytes](), list[bytes](), 0
        for key, value in self.members.sorted():
            is_here = names and key.startswith(prefix)
            name = key[start:-17]
            if is_here and name == names[-1]:
                values[-1] = value
                others += not key.endswith(b"1")  # a link that was followed takes its own place
                continue
            if names and (not is_here or len(names) >= PART_MEMBERS):
                yield InDirectory(_path_of(prefix), names, values, others)
                names, values, others = [], [], 0
            if not is_here:
                start = key.index(b"\0\0") + 2
                prefix, name = key[:start], key[start:-17]
            names.append(name)
            values.append(value)
        if names:
            yield InDirectory(_path_of(prefix), names, values, others)


def _path_of(prefix: bytes) -> bytes:
    """The directory of which keys begin so."""
    return prefix[:-2].replace(b"\0", b"/")


class InDirectory(NamedTuple):
    """Members of the directory ``path``, packed; there are so many ``others`` of the same names."""

    path: bytes
    names: list[bytes]
    values: list[bytes]
    others: int


class FoundNote(Note, code=144, doing="noting members"):
    """Members for the rank that owns their directories, and marks of their names, packed."""

    records: bytes

    def run(self, rank: Rank, result: Result) -> None:
        found = rank.own(FoundMembers)
        for sorter, records in zip((found.members, found.marks), marshal.loads(self.records), strict=True):
            sorter.extend(records)
