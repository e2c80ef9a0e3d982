"""Names of members: conflicts between them, and the targets of hard links.

``ptar -x`` runs these steps on all ranks, ``ptar -t`` in one process. Both use the functions here, so both decide
alike.

1. ``NameRecords`` makes a record of each member, and marks for names that are used as directories or as targets of
links. Both are sorted by name, and then by offset in the archive.

2. ``name_conflicts`` merges the two. It finds names that belong to a file and to a directory (``NameConflict``), and
links that do not simply refer to the only file of a name (``LinkToResolve``).

3. ``resolved_links`` finds out what each of these links refers to: the name of another member, a member whose name a
later member takes, or nothing.

Memory does not grow with the number of members of one name. It grows by 16 bytes for each stretch (range) of the
archive in which a name is that of a file, and by 34 bytes for each ``LinkToResolve``.
"""

from __future__ import annotations

import marshal
import zlib
from array import array
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Iterator
from itertools import chain, groupby
from typing import BinaryIO

from pcopy.archive.member import DIRECTORY, HARD_LINK_MEMBER, ArchiveMember, NumberPairs, safe_member_path
from pcopy.fast_named_tuple import NamedTuple
from pcopy.fsio.problem import Problem
from pcopy.signature.sorting import SortRecord
from pcopy.tasks.archive.members_to_extract import (
    MemberToExtract,
    is_packed_directory,
    is_packed_simple_member,
    member_sort_key,
    offset_in_sort_key,
    path_in_sort_key,
)
from pcopy.text import printable_path

DIRECTORY_NAME, HAS_MEMBER_BELOW, IS_LINK_TARGET = b"D", b"B", b"L"
"""Marks of a name: a member describes it as a directory (D); a member is below it, so it must be a directory (B); a
link refers to it (L, followed by the packed link).
"""
ARCHIVE_END = 1 << 62
"""End of a stretch that extends to the end of the archive: greater than any offset."""
ArchiveRange = tuple[int, int]
"""A range of the archive: the offset at which it begins, and the offset at which it ends."""
_MARKED_LEVELS = 64
"""A member marks at most this number of directories above itself as directories."""
LEAF_LEVELS = 64
"""Paths of leaves (directories without subdirectories) have at most this number of components."""
_ITEMS_PER_SLICE = 1024
"""Number of names, marks or links after which a generator yields None, so that its caller can do other work."""


class NameRecords:
    """Collects records of members and marks of names, to be sent to the ranks that own the directories. A mark says
    that a name is used as a directory, or as the target of a hard link.

    ``members`` and ``marks`` map the number of each rank to its records.
    """

    def __init__(self, ranks: int) -> None:
        self._ranks = ranks
        self.members: defaultdict[int, list[SortRecord]] = defaultdict(list)
        self.marks: defaultdict[int, list[SortRecord]] = defaultdict(list)
        self.marked_directories = set[bytes]()
        """Directories for which a mark ``HAS_MEMBER_BELOW`` was added already, so that no other one is needed."""
        self.marked_parents = set[bytes]()
        """Directories that contain at least one of ``marked_directories``."""
        self._parents = set[bytes]()
        """Directories of which a record says that they contain a directory."""

    def add_member(self, path: bytes, member: ArchiveMember, at: int, value: bytes) -> None:
        """Add a record of ``member``, which is extracted to ``path``, and the marks of names that it causes: for the
        directories above it, and for the target of a hard link.

        Args:
            at: offset of its contents in the archive.
            value: the packed member.
        """
        directory, _, last = path.rpartition(b"/")
        self.marked_directories.discard(path)
        self.mark_parent_directories(directory, at)
        if member.kind == DIRECTORY:
            self.mark_as_directory(path, at)
            directory, last = path, b""
        elif member.kind == HARD_LINK_MEMBER:
            target = safe_member_path(member.link)
            if target == path:  # a link to itself replaces no earlier member
                at = 0
            else:
                self._add_name_use_record(target, IS_LINK_TARGET + value, at)
        self.members[self.owning_rank_of(directory)].append((member_sort_key(directory, last, at), value))

    def owning_rank_of(self, directory: bytes) -> int:
        """Return the number of the rank that owns the members of a directory."""
        return zlib.crc32(directory) % self._ranks

    def mark_as_directory(self, path: bytes, at: int) -> None:
        """Record that a member at the offset ``at`` describes ``path`` as a directory."""
        if path:
            self._add_name_use_record(path, DIRECTORY_NAME, at)

    def _add_name_use_record(self, path: bytes, mark: bytes, at: int) -> None:
        """Add a record that says how the name ``path`` is used: ``mark`` is such a use (directory, directory with a
        member below it, or target of a link), and ``at`` the offset of the member that uses it.
        """
        directory, _, last = path.rpartition(b"/")
        self.marks[self.owning_rank_of(directory)].append((member_sort_key(directory, last, at), mark))

    def record_parents(self, directory: bytes) -> None:
        """Record of the directories above ``directory`` that they contain a directory. It is recorded of those whose
        paths have up to ``LEAF_LEVELS`` components. The record is an empty one that precedes the members of the
        directory.
        """
        if directory.count(b"/") > LEAF_LEVELS:
            directory = b"/".join(directory.split(b"/", LEAF_LEVELS + 1)[: LEAF_LEVELS + 1])
        while directory:
            directory = directory.rpartition(b"/")[0]
            if directory in self._parents:
                return
            self._parents.add(directory)
            self.members[self.owning_rank_of(directory)].append((member_sort_key(directory, b"", 0), b""))

    def mark_parent_directories(self, directory: bytes, at: int) -> None:
        """Mark ``directory``, which contains a member at the offset ``at``, and those above it as directories.

        A directory gets only one mark, until another member has its name.
        """
        for _ in range(_MARKED_LEVELS):
            if not directory or directory in self.marked_directories:
                return
            self.marked_directories.add(directory)
            self._add_name_use_record(directory, HAS_MEMBER_BELOW, at)
            directory = directory.rpartition(b"/")[0]
            self.marked_parents.add(directory)


class NameConflict(NamedTuple):
    """A path that is a file in some stretches (ranges) of the archive, and a directory in others.

    ``stretches`` are those in which it is a file, as packed ``NumberPairs``.
    """

    path: bytes
    stretches: bytes


class LinkToResolve(NamedTuple):
    """A hard link that does not simply refer to the only member of a name: its target ``path`` has several members or
    none, or is a link itself.

    Fields:
      at: the offset of the link in the archive.
      link: the packed link.
      path: the name that the link refers to.
      version_at: the offset of the member of that name that the link refers to; -1 if there is no such member.
      is_last: True if no later member has that name.
      version: the member at ``version_at``, packed; empty if there is none.
    """

    at: int
    link: bytes
    path: bytes
    version_at: int
    is_last: bool
    version: bytes

    @property
    def record_for_sorting(self) -> SortRecord:
        """The record (key and value) of the link. Keys sort in the order of the archive."""
        return b"%016x" % self.at, marshal.dumps(tuple(self))


def _key_without_offset(record: SortRecord) -> bytes:
    """Return the key of a record without the offset: the part that all members of one name share."""
    return record[0][:-17]


def _offset_in_key(record: SortRecord) -> int:
    """Return the offset in the archive that the key of a record contains."""
    return offset_in_sort_key(record[0])


def name_conflicts(
    members: Iterable[SortRecord], marks: Iterable[SortRecord]
) -> Iterator[NameConflict | LinkToResolve | None]:
    """Merge the sorted ``members`` with the sorted ``marks``, and yield conflicts of names and links to be resolved.

    Yield None from time to time, so that the caller can do other work.
    """
    marked = groupby(marks, _key_without_offset)
    name, name_marks = next(marked, (None, iter(())))
    for number, (member_name, same_name) in enumerate(groupby(members, _key_without_offset)):
        if number % _ITEMS_PER_SLICE == _ITEMS_PER_SLICE - 1:
            yield None
        while name is not None and name < member_name:
            yield from _links_to_missing_name(name, name_marks)
            name, name_marks = next(marked, (None, iter(())))
        if name is None:
            return
        if name == member_name:
            yield from _MembersWithSameName(path_in_sort_key(name), same_name).conflicts_with_name_uses(name_marks)
            name, name_marks = next(marked, (None, iter(())))
    while name is not None:
        yield from _links_to_missing_name(name, name_marks)
        name, name_marks = next(marked, (None, iter(())))


def _links_to_missing_name(name: bytes, marks: Iterator[SortRecord]) -> Iterator[NameConflict | LinkToResolve | None]:
    """Generator: yield the links among ``marks``, which refer to ``name``, the name of no member; and None from time to
    time.
    """
    for number, mark in enumerate(marks):
        if mark[1][:1] == IS_LINK_TARGET:
            members = _MembersWithSameName(path_in_sort_key(name), iter(()))
            yield from members.conflicts_with_name_uses(chain((mark,), marks))
            return
        if number % _ITEMS_PER_SLICE == _ITEMS_PER_SLICE - 1:
            yield None


class _MembersWithSameName:
    """Iterates over the members of one name, in the order of the archive, and finds the conflicts between them. At most
    two members are in memory.

    It records the stretches (ranges) of the archive in which the name is that of a file.
    """

    def __init__(self, path: bytes, claims: Iterator[SortRecord]) -> None:
        self._path = path
        self._members = claims
        self._ahead: list[SortRecord] = []
        self._version: SortRecord | None = None
        self._begin, self._is_non_empty_directory = -1, False
        self._stretches = array("q")
        self._has_members = False

    def conflicts_with_name_uses(self, marks: Iterable[SortRecord]) -> Iterator[NameConflict | LinkToResolve | None]:
        """Generator: compare the members with ``marks``, which say how other members use the same name; yield conflicts
        and links to be resolved, and None from time to time.
        """
        is_directory = False
        for number, mark in enumerate(marks):
            if number % _ITEMS_PER_SLICE == _ITEMS_PER_SLICE - 1:
                yield None
            yield from self._read_members_until(_offset_in_key(mark))
            if mark[1][:1] == IS_LINK_TARGET:
                if (rival := self._link_to_resolve(mark)) is not None:
                    yield rival
                continue
            is_directory = True
            if mark[1] == HAS_MEMBER_BELOW:
                self._is_non_empty_directory |= self._begin < 0
            elif self._begin >= 0:
                self._stretches.extend((self._begin, _offset_in_key(mark)))
                self._begin = -1
        yield from self._read_members_until(ARCHIVE_END)
        if is_directory and self._has_members:
            if self._begin >= 0:
                self._stretches.extend((self._begin, ARCHIVE_END))
            yield NameConflict(self._path, self._stretches.tobytes())

    def _read_members_until(self, at: int) -> Iterator[None]:
        """Read the members before the offset ``at``. Yield from time to time."""
        number = 0
        while self._read_ahead(1) and _offset_in_key(self._ahead[0]) < at:
            claim = self._ahead.pop(0)
            self._has_members = True
            if offset := _offset_in_key(claim):  # 0 means a link to itself, which replaces nothing, and is no target
                self._version = claim
                if self._begin < 0 and not self._is_non_empty_directory:
                    self._begin = offset
            number += 1
            if number % _ITEMS_PER_SLICE == 0:
                yield None

    def _read_ahead(self, number: int) -> bool:
        """Read ahead until ``number`` members are in memory. Return False if there are fewer."""
        while len(self._ahead) < number and (claim := next(self._members, None)) is not None:
            self._ahead.append(claim)
        return len(self._ahead) >= number

    def _link_to_resolve(self, mark: SortRecord) -> LinkToResolve | None:
        """Return the hard link that ``mark`` contains, as a ``LinkToResolve``. Return None if there is nothing to
        resolve: the link refers to the last member of this name, which is no link itself.
        """
        link = mark[1][len(IS_LINK_TARGET) :]
        version, following = self._version, 1
        if version is None:  # the link stands before its target
            if not self._read_ahead(1):
                return LinkToResolve(_offset_in_key(mark), link, self._path, -1, True, b"")
            version, following = self._ahead[0], 2
        is_last = not self._read_ahead(following)
        if is_last and not _is_hard_link(version[1]):
            return None
        return LinkToResolve(_offset_in_key(mark), link, self._path, _offset_in_key(version), is_last, version[1])


def _is_hard_link(value: bytes) -> bool:
    """Return True if the packed member ``value`` is a hard link."""
    is_other = not (is_packed_simple_member(value) or is_packed_directory(value))
    return is_other and bool(marshal.loads(value)[3][1] == HARD_LINK_MEMBER)


_REFERS_TO_NAME, _REFERS_TO_REPLACED, _HAS_NO_TARGET, _REFERS_TO_LINK = range(4)
"""What a link refers to: a name, whose last member it means; a member whose name a later member takes, so that its
contents are needed; nothing; another link, which is not resolved yet.
"""


class ResolvedLink(NamedTuple):
    """How to extract the hard link at the offset ``at`` of the archive, now that its target is known.

    ``each`` is what is extracted in its place: a hard link to a member that is no link, or a link with an error in
    ``problem_text``. If a later member takes the name of its target, ``each`` becomes a regular file with the same
    contents, or a link to such a file. Then ``copied_from`` is the name and the offset of the original target;
    otherwise it is None.
    """

    at: int
    each: MemberToExtract
    copied_from: tuple[bytes, int] | None


def resolved_links(unresolved_links: Iterable[SortRecord], spool: BinaryIO) -> Iterator[ResolvedLink | None]:
    """Generator: find out what hard links refer to; yield a ``ResolvedLink`` for each, and None from time to time.

    Args:
        unresolved_links: the links, as records of ``LinkToResolve``, in the order of the archive.
        spool: an empty file for temporary data.
    """
    links = _LinkTable(spool)
    for number, (_, value) in enumerate(unresolved_links):
        links.add_link(LinkToResolve(*marshal.loads(value)))
        if number % _ITEMS_PER_SLICE == _ITEMS_PER_SLICE - 1:
            yield None
    for number in range(len(links)):
        links.resolve_link(number)
        yield links.resolved_link(number)
        if number % _ITEMS_PER_SLICE == _ITEMS_PER_SLICE - 1:
            yield None


class _LinkTable:
    """Links to be resolved. Each takes few bytes of memory; the rest is in a temporary file.

    The links are numbered in the order of the archive. ``_resolutions`` says of each what it refers to.
    """

    def __init__(self, spool: BinaryIO) -> None:
        self._spool = spool
        self._offsets, self._file_offsets = array("q"), array("q", [0])
        self._resolutions = bytearray()
        self._sources = array("q")
        """For each link: the number of the link whose record contains the target (its own number, if it refers to no
        other link). For a link to another link that is not resolved yet: the offset of that one in the archive.
        """
        self._is_last = bytearray()

    def __len__(self) -> int:
        return len(self._offsets)

    def add_link(self, unresolved: LinkToResolve) -> None:
        """Add the link ``unresolved``, which follows all earlier ones in the archive."""
        packed = marshal.dumps(tuple(unresolved))
        self._spool.write(packed)
        self._file_offsets.append(self._file_offsets[-1] + len(packed))
        meant, of = _REFERS_TO_NAME, len(self._offsets)
        if not unresolved.version:
            meant = _HAS_NO_TARGET
        elif _is_hard_link(unresolved.version):
            meant, of = _REFERS_TO_LINK, unresolved.version_at
        elif not unresolved.is_last:
            meant = _REFERS_TO_REPLACED
        self._offsets.append(unresolved.at)
        self._resolutions.append(meant)
        self._sources.append(of)
        self._is_last.append(unresolved.is_last)

    def _read_link(self, number: int) -> LinkToResolve:
        """Return the link ``number``, read from the temporary file."""
        self._spool.seek(self._file_offsets[number])
        return LinkToResolve(
            *marshal.loads(self._spool.read(self._file_offsets[number + 1] - self._file_offsets[number]))
        )

    def resolve_link(self, number: int) -> None:
        """Follow the chain of links that begins with the link ``number`` to its end, and store for all links in it what
        they refer to. None of them is ``_REFERS_TO_LINK`` afterwards.
        """
        chain = list[int]()
        while self._resolutions[number] == _REFERS_TO_LINK:
            chain.append(number)
            self._resolutions[number] = _HAS_NO_TARGET  # this remains if the chain is a cycle
            self._sources[number], at = number, self._sources[number]
            following = self._link_number_at(at)
            if following < 0:  # the target is a link to the last file of its name
                self._resolutions[number] = _REFERS_TO_NAME
                chain.pop()
                break
            number = following
        meant, of = self._resolutions[number], self._sources[number]
        for each in reversed(chain):
            if (
                meant == _REFERS_TO_REPLACED and self._is_last[each]
            ):  # the link that ``each`` refers to becomes a file and keeps its name
                meant, of = _REFERS_TO_NAME, each
            self._resolutions[each], self._sources[each] = meant, of

    def resolved_link(self, number: int) -> ResolvedLink:
        """Return how the link ``number`` is to be extracted. ``resolve_link`` must have been called for it before."""
        link, meant = MemberToExtract.unpack(self._read_link(number).link), self._resolutions[number]
        rival, at = self._read_link(self._sources[number]), self._offsets[number]
        if meant == _REFERS_TO_REPLACED:
            each = MemberToExtract.unpack(rival.version)._replace(path=link.path, name=link.name, at=link.at)
            return ResolvedLink(at, each, (rival.path, rival.version_at))
        name, copied = rival.path, None
        if meant == _REFERS_TO_NAME and _is_hard_link(rival.version):
            source = self._link_number_at(rival.version_at)
            if source < 0:
                name = safe_member_path(MemberToExtract.unpack(rival.version).member.link)
            else:
                source_rival = self._read_link(self._sources[source])
                copied = source_rival.path, source_rival.version_at
        trouble = missing_link_target_text(name) if meant == _HAS_NO_TARGET else link.problem_text
        return ResolvedLink(at, link._replace(member=link.member._replace(link=name), problem_text=trouble), copied)

    def _link_number_at(self, at: int) -> int:
        """Return the number of the link at the offset ``at`` of the archive; -1 if there is no link to be resolved at
        that offset.
        """
        number = bisect_left(self._offsets, at)
        return number if number < len(self._offsets) and self._offsets[number] == at else -1


def missing_link_target_text(name: bytes) -> str:
    """Return the error text for a link to ``name``, if no selected member is a file of that name."""
    return f"is a hard link to {printable_path(name)}, and no selected member is a file of that name"


class ConflictingNames(dict[bytes, NumberPairs]):
    """Paths that are a file in some stretches (ranges) of the archive and a directory in others. The values are the
    stretches in which each is a file.
    """

    def __init__(self, _: object = None) -> None:
        super().__init__()
        self._lengths: list[int] = []
        """Lengths of the paths, in ascending order, each once."""

    def __setitem__(self, path: bytes, stretches: NumberPairs) -> None:
        super().__setitem__(path, stretches)
        at = bisect_left(self._lengths, len(path))
        if self._lengths[at : at + 1] != [len(path)]:
            self._lengths.insert(at, len(path))

    def _ancestors_with_conflicts(self, path: bytes) -> Iterator[bytes]:
        """Generator: yield the directories above ``path`` that are conflicting paths, the deepest first. Few of the
        directories above a long path are looked up: those whose lengths conflicting paths have.
        """
        for length in reversed(self._lengths):
            if path[length : length + 1] == b"/" and (above := path[:length]) in self:
                yield above

    def may_affect(self, path: bytes, names: Iterable[bytes], members: Iterable[MemberToExtract]) -> bool:
        """Return True if a conflict of names can concern the directory ``path`` or the items in it. That is so if one
        of the conflicting paths is this directory, a directory above it, or one of its items (``names`` or
        ``members``).
        """
        if not self:
            return False
        if (path and path in self) or any(self._ancestors_with_conflicts(path)):
            return True
        start = path + b"/" if path else b""
        return any(start + name in self for name in (*names, *(each.name for each in members)))

    def is_superseded(self, each: MemberToExtract) -> bool:
        """Return True if the member ``each`` is not extracted because a later member of the archive takes its place.

        Raise ``Problem`` if the member cannot be extracted: a member that is a file has the name of a directory above
        it, or its own name is that of a directory with members in it.
        """
        if not self:
            return False
        is_directory = each.member.kind == DIRECTORY
        path = each.path if is_directory or not each.path else each.path + b"/" + each.name
        path = path or each.name
        for above in self._ancestors_with_conflicts(path):
            begin, end = self._last_range_as_file_before(above, each.at)
            if begin < each.at < end:
                text = f"a member that is no directory has the name of the directory {printable_path(above)}"
                raise Problem("extract", 0, text=text)
        stretches = self.get(path)
        if stretches is None:
            return False
        last_begin, last_end = stretches[-1] if stretches else (0, 0)
        if is_directory:
            return last_end == ARCHIVE_END and each.at < last_begin
        begin, end = self._last_range_as_file_before(path, each.at)
        if begin <= each.at < end:
            return last_end != ARCHIVE_END
        raise Problem("extract", 0, text="a directory that is not empty has its name")

    def _last_range_as_file_before(self, path: bytes, at: int) -> ArchiveRange:
        """Return the last stretch in which ``path`` is a file, of those that begin at the offset ``at`` or before.

        Return an empty stretch (its end before its begin) if there is none.
        """
        stretches = self.get(path, ())
        number = bisect_left(stretches, at + 1, key=lambda stretch: stretch[0])
        return stretches[number - 1] if number else (at + 1, at)

    def is_directory_after_extraction(self, path: bytes) -> bool:
        """Return True if ``path`` is a directory after the whole archive was extracted, although a file has that name
        in an earlier part.
        """
        stretches = self.get(path)
        return stretches is not None and (not stretches or stretches[-1][1] != ARCHIVE_END)


class DirectoryMembers(NamedTuple):
    """Members of the directory ``path``: the ``names``, and for each the last member of that name, packed (``values``).

    ``superseded`` is the number of earlier members of these names. ``is_leaf`` is True if the directory has no other
    members, and no subdirectories.
    """

    path: bytes
    names: list[bytes]
    values: list[bytes]
    superseded: int
    is_leaf: bool


def members_by_directory(members: Iterable[SortRecord], most: int) -> Iterator[DirectoryMembers]:
    """Generator: divide ``members``, which are sorted by directory and name, into portions of at most ``most`` members
    of one directory. Of several members with one name, only the last one is yielded.
    """
    prefix, start = b"", 0
    names, values, others = list[bytes](), list[bytes](), 0
    parent = divided = b""
    for key, value in members:
        if not value:  # ``NameRecords.record_parents``
            following = key[:-17]
            if names and prefix != following:
                yield DirectoryMembers(
                    _directory_path(prefix), names, values, others, _is_leaf(prefix, parent, divided)
                )
                names, values, others = [], [], 0
            parent = following
            continue
        is_here = names and key.startswith(prefix)
        name = key[start:-17]
        if is_here and name == names[-1]:
            values[-1] = value
            others += not key.endswith(
                b"1"
            )  # an odd offset: the resolution of a link, which replaces the record of that link
            continue
        if names and (not is_here or len(names) >= most):
            if is_here:
                divided = prefix
            yield DirectoryMembers(_directory_path(prefix), names, values, others, _is_leaf(prefix, parent, divided))
            names, values, others = [], [], 0
        if not is_here:
            start = key.index(b"\0\0") + 2
            prefix, name = key[:start], key[start:-17]
        names.append(name)
        values.append(value)
    if names:
        yield DirectoryMembers(_directory_path(prefix), names, values, others, _is_leaf(prefix, parent, divided))


def _is_leaf(prefix: bytes, parent: bytes, divided: bytes) -> bool:
    """Return True if the directory whose keys begin with ``prefix`` is a leaf. ``parent`` is the prefix of the last
    directory that contains others, ``divided`` that of the last one that was divided into portions.
    """
    return prefix not in (parent, divided) and prefix.count(b"\0") <= LEAF_LEVELS


def _directory_path(prefix: bytes) -> bytes:
    """Return the path of the directory whose keys begin with ``prefix``."""
    return prefix[:-2].replace(b"\0", b"/")


def link_problem_text(each: MemberToExtract, conflicting_names: ConflictingNames) -> str:
    """Return why the hard link ``each`` cannot be created in an empty target; "" if it can be created.
    ``conflicting_names`` are the paths that belong to a file and to a directory in the archive.
    """
    target = safe_member_path(each.member.link)
    path = each.path + b"/" + each.name if each.path else each.name
    if each.problem_text or target == path or conflicting_names.is_directory_after_extraction(target):
        return each.problem_text or missing_link_target_text(target)
    return ""
