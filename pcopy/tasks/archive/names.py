"""Names of members: where each member goes, which ones contradict one another, and what a hard link means.

``ptar -x`` spreads these steps over ranks, ``ptar -t`` does them in one process; both decide by the functions here.

1. ``NameRecords`` makes a record of each member, and marks for the names of directories and the targets of links. Both
   are sorted by name, and by place in the archive.
2. ``compared`` goes through both. It finds the names that are a file's and a directory's (``RivalName``), and the links
   that do not simply refer to the only file of a name (``LinkRival``).
3. ``followed`` finds the meaning of these links: the name of another member, a member whose name a later one takes, or
   nothing.

Memory does not grow with the number of members of one name, but by 16 bytes for each stretch of the archive in which a
name is that of a file, and by 34 bytes for each ``LinkRival``.
"""

from __future__ import annotations

import marshal
import zlib
from array import array
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Iterator
from itertools import groupby
from typing import BinaryIO

from pcopy.archive.member import DIRECTORY, LINK, Member, NumberPairs, safe_path
from pcopy.fsio.problem import Problem
from pcopy.named import NamedTuple
from pcopy.signature.sorting import KeyValue
from pcopy.tasks.archive.to_unpack import ToUnpack, is_plain, key_of, path_in
from pcopy.text import shown

DIRECTORY_NAME, BELOW, LINKED = b"D", b"B", b"L"
"""Marks of a name: a directory has it; a member is below it; a link refers to it, and follows the mark, packed."""
END = 1 << 62
"""Of a stretch that goes on to the end of the archive."""
Stretch = tuple[int, int]
"""Of the archive: where it begins, and where it ends."""
_MARKED_LEVELS = 64
"""So many directories above a member are marked, of those that no member describes."""
_ITEMS_PER_SLICE = 1024
"""Names, marks or links after which a generator yields None, so that its caller can do other work."""


class NameRecords:
    """Records and marks of members, by the number of the rank that owns their directory."""

    def __init__(self, ranks: int) -> None:
        self._ranks = ranks
        self.members: defaultdict[int, list[KeyValue]] = defaultdict(list)
        self.marks: defaultdict[int, list[KeyValue]] = defaultdict(list)
        self.below = set[bytes]()
        """Directories that are marked."""
        self.around = set[bytes]()
        """Directories in which there may be such."""

    def add(self, path: bytes, member: Member, at: int, value: bytes) -> None:
        """Add the ``member`` that goes to ``path``; its data stand ``at`` this place, and it is packed as ``value``."""
        directory, _, last = path.rpartition(b"/")
        self.below.discard(path)
        self.mark_above(directory, at)
        if member.kind == DIRECTORY:
            if path:
                self._mark(path, DIRECTORY_NAME, at)
            directory, last = path, b""
        elif member.kind == LINK:
            target = safe_path(member.link)
            if target == path:  # it takes the place of nothing
                at = 0
            else:
                self._mark(target, LINKED + value, at)
        self.members[self.owner(directory)].append((key_of(directory, last, at), value))

    def owner(self, directory: bytes) -> int:
        """Return the number of the rank that owns the members of a directory."""
        return zlib.crc32(directory) % self._ranks

    def _mark(self, path: bytes, mark: bytes, at: int) -> None:
        directory, _, last = path.rpartition(b"/")
        self.marks[self.owner(directory)].append((key_of(directory, last, at), mark))

    def mark_above(self, directory: bytes, at: int) -> None:
        """Mark the directories above a member once, until another member has the name."""
        for _ in range(_MARKED_LEVELS):
            if not directory or directory in self.below:
                return
            self.below.add(directory)
            self._mark(directory, BELOW, at)
            directory = directory.rpartition(b"/")[0]
            self.around.add(directory)


class RivalName(NamedTuple):
    """A path that is a file's and a directory's: ``stretches`` of the archive where it is a file's, as packed
    ``NumberPairs``."""

    path: bytes
    stretches: bytes


class LinkRival(NamedTuple):
    """A link at ``at`` of the archive, packed as ``link``, to ``path``, which has several members, none, or a link.

    The link refers to the ``version`` (packed; empty if there is none) of ``path`` that stands at ``version_at``.
    """

    at: int
    link: bytes
    path: bytes
    version_at: int
    is_last: bool
    version: bytes

    @property
    def record(self) -> KeyValue:
        """The record by which links are sorted as they stand in the archive."""
        return b"%016x" % self.at, marshal.dumps(tuple(self))


def _name_of(record: KeyValue) -> bytes:
    return record[0][:-17]


def _at(record: KeyValue) -> int:
    return int(record[0][-16:], 16)


def compared(members: Iterable[KeyValue], marks: Iterable[KeyValue]) -> Iterator[RivalName | LinkRival | None]:
    """Compare the sorted ``members`` with the sorted ``marks``. Yields None now and then, too."""
    marked = groupby(marks, _name_of)
    name, found = next(marked, (None, iter(())))
    for number, (mine, claims) in enumerate(groupby(members, _name_of)):
        if number % _ITEMS_PER_SLICE == _ITEMS_PER_SLICE - 1:
            yield None
        while name is not None and name < mine:
            yield from _Name(path_in(name), iter(())).compared(found)
            name, found = next(marked, (None, iter(())))
        if name is None:
            return
        if name == mine:
            yield from _Name(path_in(name), claims).compared(found)
            name, found = next(marked, (None, iter(())))
    while name is not None:
        yield from _Name(path_in(name), iter(())).compared(found)
        name, found = next(marked, (None, iter(())))


class _Name:
    """The members of one name, which are read in their order, up to two of them ahead."""

    def __init__(self, path: bytes, claims: Iterator[KeyValue]) -> None:
        self._path = path
        self._claims = claims
        self._ahead: list[KeyValue] = []
        self._version: KeyValue | None = None
        self._begin, self._is_full = -1, False
        self._stretches = array("q")
        self._has_claims = False

    def compared(self, marks: Iterable[KeyValue]) -> Iterator[RivalName | LinkRival | None]:
        """Compare the members with the ``marks`` of the name."""
        is_directory = False
        for number, mark in enumerate(marks):
            if number % _ITEMS_PER_SLICE == _ITEMS_PER_SLICE - 1:
                yield None
            yield from self._up_to(_at(mark))
            if mark[1][:1] == LINKED:
                if (rival := self._rival(mark)) is not None:
                    yield rival
                continue
            is_directory = True
            if mark[1] == BELOW:
                self._is_full |= self._begin < 0
            elif self._begin >= 0:
                self._stretches.extend((self._begin, _at(mark)))
                self._begin = -1
        yield from self._up_to(END)
        if is_directory and self._has_claims:
            if self._begin >= 0:
                self._stretches.extend((self._begin, END))
            yield RivalName(self._path, self._stretches.tobytes())

    def _up_to(self, at: int) -> Iterator[None]:
        """Pass the members before ``at``."""
        number = 0
        while self._fill(1) and _at(self._ahead[0]) < at:
            claim = self._ahead.pop(0)
            self._has_claims = True
            if self._begin < 0 and not self._is_full:
                self._begin = _at(claim)
            if _at(claim):  # a link to itself is no version
                self._version = claim
            number += 1
            if number % _ITEMS_PER_SLICE == 0:
                yield None

    def _fill(self, number: int) -> bool:
        """Have so many members in memory; return True if there are."""
        while len(self._ahead) < number and (claim := next(self._claims, None)) is not None:
            self._ahead.append(claim)
        return len(self._ahead) >= number

    def _rival(self, mark: KeyValue) -> LinkRival | None:
        """Return how the link of a ``mark`` is to be followed; None if it refers to the last file of this name."""
        link = mark[1][len(LINKED) :]
        version, following = self._version, 1
        if version is None:  # it stands before what it refers to
            if not self._fill(1):
                return LinkRival(_at(mark), link, self._path, -1, True, b"")
            version, following = self._ahead[0], 2
        is_last = not self._fill(following)
        if is_last and not _is_link(version[1]):
            return None
        return LinkRival(_at(mark), link, self._path, _at(version), is_last, version[1])


def _is_link(value: bytes) -> bool:
    return not is_plain(value) and bool(marshal.loads(value)[3][1] == LINK)


_NAME, _COPY, _MISSING, _CHAIN = range(4)
"""Meanings of a link: the name of a member, a member whose name a later one takes, nothing, that of another link."""


class Meaning(NamedTuple):
    """What the link at ``at`` becomes: a link to the name of a member that is no link, or a link with ``trouble``.

    If another member takes the name of the one it refers to, it becomes a file of its own, or a link to such a one.
    Then ``copied`` are the name and the place of the one that it refers to.
    """

    at: int
    each: ToUnpack
    copied: tuple[bytes, int] | None


def followed(rivals: Iterable[KeyValue], spool: BinaryIO) -> Iterator[Meaning | None]:
    """Yield the meanings of links, whose records come as they stand in the archive; None comes now and then.

    ``spool`` is an empty file that is used meanwhile.
    """
    links = _Links(spool)
    for number, (_, value) in enumerate(rivals):
        links.add(LinkRival(*marshal.loads(value)))
        if number % _ITEMS_PER_SLICE == _ITEMS_PER_SLICE - 1:
            yield None
    for number in range(len(links)):
        links.resolve(number)
        yield links.meaning(number)
        if number % _ITEMS_PER_SLICE == _ITEMS_PER_SLICE - 1:
            yield None


class _Links:
    """Links that are to be followed: few bytes of memory for each, the rest waits in a file."""

    def __init__(self, spool: BinaryIO) -> None:
        self._spool = spool
        self._ats, self._places = array("q"), array("q", [0])
        self._meant = bytearray()
        self._of = array("q")
        """Of a meaning, the link that has it; of a chain, the place of the link that comes next."""
        self._is_last = bytearray()

    def __len__(self) -> int:
        return len(self._ats)

    def add(self, rival: LinkRival) -> None:
        packed = marshal.dumps(tuple(rival))
        self._spool.write(packed)
        self._places.append(self._places[-1] + len(packed))
        meant, of = _NAME, len(self._ats)
        if not rival.version:
            meant = _MISSING
        elif _is_link(rival.version):
            meant, of = _CHAIN, rival.version_at
        elif not rival.is_last:
            meant = _COPY
        self._ats.append(rival.at)
        self._meant.append(meant)
        self._of.append(of)
        self._is_last.append(rival.is_last)

    def _rival(self, number: int) -> LinkRival:
        self._spool.seek(self._places[number])
        return LinkRival(*marshal.loads(self._spool.read(self._places[number + 1] - self._places[number])))

    def resolve(self, number: int) -> None:
        """Follow a chain of links to its end; afterwards none of them is a part of a chain any more."""
        chain = list[int]()
        while self._meant[number] == _CHAIN:
            chain.append(number)
            self._meant[number] = _MISSING  # if it comes round to itself
            self._of[number], at = number, self._of[number]
            following = self._number_at(at)
            if following < 0:  # it refers to the last file of its name
                self._meant[number] = _NAME
                chain.pop()
                break
            number = following
        meant, of = self._meant[number], self._of[number]
        for each in reversed(chain):
            if meant == _COPY and self._is_last[each]:  # the link before has become a file, which has the name
                meant, of = _NAME, each
            self._meant[each], self._of[each] = meant, of

    def meaning(self, number: int) -> Meaning:
        """Return the meaning of a link that was resolved."""
        link, meant = ToUnpack.unpacked(self._rival(number).link), self._meant[number]
        rival, at = self._rival(self._of[number]), self._ats[number]
        if meant == _COPY:
            each = ToUnpack.unpacked(rival.version)._replace(path=link.path, name=link.name)
            return Meaning(at, each, (rival.path, rival.version_at))
        name, copied = rival.path, None
        if meant == _NAME and _is_link(rival.version):
            source = self._number_at(rival.version_at)
            if source < 0:
                name = safe_path(ToUnpack.unpacked(rival.version).member.link)
            else:
                source_rival = self._rival(self._of[source])
                copied = source_rival.path, source_rival.version_at
        trouble = no_file_of(name) if meant == _MISSING else link.trouble
        return Meaning(at, link._replace(member=link.member._replace(link=name), trouble=trouble), copied)

    def _number_at(self, at: int) -> int:
        """Return the number of the link at this place of the archive; -1 if none is to be followed there."""
        number = bisect_left(self._ats, at)
        return number if number < len(self._ats) and self._ats[number] == at else -1


def no_file_of(name: bytes) -> str:
    """Return why a link to ``name`` cannot be made."""
    return f"is a hard link to {shown(name)}, and no file of that name is there"


class Rivals(dict[bytes, NumberPairs]):
    """Of each path that is a file's and a directory's: the stretches of the archive where it is a file's."""

    def __init__(self, _: object = None) -> None:
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
            begin, end = self._stretch(above, each.data)
            if begin < each.data < end:
                raise Problem("extract", 0, text=f"a file has the name of the directory {shown(above)}")
        stretches = self.get(path)
        if stretches is None:
            return False
        last_begin, last_end = stretches[-1] if stretches else (0, 0)
        if is_directory:
            return last_end == END and each.data < last_begin
        begin, end = self._stretch(path, each.data)
        if begin <= each.data < end:
            return last_end != END
        raise Problem("extract", 0, text="a directory that is not empty has its name")

    def _stretch(self, path: bytes, at: int) -> Stretch:
        """Return the last stretch of ``path`` that begins at ``at`` or before; an empty one if there is none."""
        stretches = self.get(path, ())
        number = bisect_left(stretches, at + 1, key=lambda stretch: stretch[0])
        return stretches[number - 1] if number else (at + 1, at)

    def is_directory(self, path: bytes) -> bool:
        """Return True if the name is a directory's in the end, though it is a file's before."""
        stretches = self.get(path)
        return stretches is not None and (not stretches or stretches[-1][1] != END)


class InDirectory(NamedTuple):
    """Members of the directory ``path``, packed; ``others`` is the number of earlier members of the same names."""

    path: bytes
    names: list[bytes]
    values: list[bytes]
    others: int


def by_directory(members: Iterable[KeyValue], most: int) -> Iterator[InDirectory]:
    """The last member of each name, ``most`` at once: of a large directory there are several."""
    prefix, start = b"", 0
    names, values, others = list[bytes](), list[bytes](), 0
    for key, value in members:
        is_here = names and key.startswith(prefix)
        name = key[start:-17]
        if is_here and name == names[-1]:
            values[-1] = value
            others += not key.endswith(b"1")  # a link that was followed takes its own place
            continue
        if names and (not is_here or len(names) >= most):
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


def link_trouble(each: ToUnpack, rivals: Rivals) -> str:
    """Return why a hard link cannot be made in an empty directory; empty if it can be."""
    target = safe_path(each.member.link)
    path = each.path + b"/" + each.name if each.path else each.name
    if each.trouble or target == path or rivals.is_directory(target):
        return each.trouble or no_file_of(target)
    return ""
