"""Unpack hands on what belongs into the directories of one rank; ExtractMembers unpacks some of one directory.

Directories are made when something is to be put into them, ours alone (0700), and get their metadata last
(``finish_members``); one that no member tells of gets the mode that any new one has. Everything is reached from the
target's descriptor, a name at a time, following no link: so no member leaves the target, whatever lies in it or is put
into it meanwhile.
"""

from __future__ import annotations

import errno
import marshal
import os
import stat
from collections.abc import Generator, Iterable, Iterator, Sequence
from contextlib import suppress
from itertools import zip_longest
from operator import itemgetter

from pcopy.archive.member import FILE, LINK, Member
from pcopy.fsio.attributes import Applied, drop_inherited_acls, has_default_acl, may_inherit_acl
from pcopy.fsio.data import set_size
from pcopy.fsio.kernel.columns import pack_names, unpack_names
from pcopy.fsio.kernel.interface import SMALL_FILE
from pcopy.fsio.new_file import NewFile, NewNode
from pcopy.fsio.nodes import Node
from pcopy.fsio.passage import write_all
from pcopy.fsio.problem import Problem, failing
from pcopy.fsio.source import status_of
from pcopy.fsio.throttle import throttled
from pcopy.signature.items import FILE as FILE_TYPE
from pcopy.signature.items import type_of
from pcopy.tasks.archive.finish_members import finish_later
from pcopy.tasks.archive.found_members import FoundMembers, InDirectory
from pcopy.tasks.archive.link_members import LinkMembers
from pcopy.tasks.archive.make_members import make_plain
from pcopy.tasks.archive.opened import OpenArchive, ReadAhead, attributes_of, lookup_of
from pcopy.tasks.archive.phases import LINKS, UNPACK, UNPACK_AGAIN
from pcopy.tasks.archive.rivals import Rivals
from pcopy.tasks.archive.to_unpack import NO_ROWS, PlainRows, ToUnpack, is_plain, place_of
from pcopy.tasks.base import counts
from pcopy.tasks.base.actions import Action
from pcopy.tasks.base.hashing import NO_VERSION
from pcopy.tasks.base.kind import Kind, Steps
from pcopy.tasks.base.rank import CALL_COST, Rank
from pcopy.tasks.base.result import Result, Tried
from pcopy.tasks.base.values import Known
from pcopy.tasks.files.existing import look
from pcopy.text import shown

_IN_THE_WAY = (errno.ENOTDIR, errno.ELOOP)
KERNEL_PIECE = 8 << 20
"""Bytes that copy_file_range moves at once."""
BATCH_BYTES = 4 << 20
"""Bytes with which a task gets no more members."""
_NO_ROWS = range(0)


class Unpack(Kind, code=145, doing="sorting members", is_note=False):
    """Of one rank: all members of its directories."""

    def about(self) -> None:
        return None

    def run(self, rank: Rank, result: Result) -> None:
        tasks = (task for found in rank.own(FoundMembers).by_directory() for task in _batches(found))
        result.spawn_each(tasks, BATCH_BYTES // 4, expands=False)


def _batches(found: InDirectory) -> Iterator[ExtractMembers]:
    """Large files make batches alone, as far as others of their sort go."""
    names, values, others = found.names, found.values, found.others
    rest = list[bytes]()
    if any(map(itemgetter(0), values)):
        rest = [value for value in values if not is_plain(value)]
        names = [name for name, value in zip(names, values, strict=True) if is_plain(value)]
        values = list(filter(is_plain, values))
    plain = PlainRows(names, b"".join(values)).in_order()
    cuts = _cut(plain.sizes), _cut([ToUnpack.unpacked(value).member.size for value in rest])
    for part, of_rest in zip_longest(*cuts, fillvalue=_NO_ROWS):
        some = plain.chosen(part) if len(part) < len(plain) else plain
        packed = marshal.dumps([rest[at] for at in of_rest])
        yield ExtractMembers(packed, others, found.path, pack_names(some.names), some.packed)
        others = 0


def _cut(sizes: Sequence[int]) -> Iterator[range]:
    start = size = 0
    if sum(sizes) >= BATCH_BYTES:
        for at, each in enumerate(sizes):
            if at > start and size + each >= BATCH_BYTES:
                yield range(start, at)
                start, size = at, 0
            size += each
    if sizes:
        yield range(start, len(sizes))


class ExtractMembers(Kind, code=146, doing="unpacking", is_note=False):
    """Members of one directory: ``values``, packed, and the ``plain`` ones called ``names``. Besides there were
    ``superseded`` ones, which later ones of their name have taken the place of."""

    values: bytes
    superseded: int
    path: bytes
    names: bytes
    plain: bytes

    def about(self) -> None:
        return None

    def run(self, rank: Rank, result: Result) -> Steps:
        path, members = self.path, list(map(ToUnpack.unpacked, marshal.loads(self.values)))
        plain = PlainRows(unpack_names(self.names, len(self.plain)), self.plain)
        result.count(counts.SKIPPED, self.superseded)
        rivals = rank.own(Rivals)
        if rivals and rivals.concern(path, plain.names, members):
            members = list(_allowed(rivals, [*members, *plain.members(path)], result))
            plain = NO_ROWS
        if not members and not plain:
            return
        is_told = bool(members) and not members[0].name
        try:
            directory = open_or_make(rank, path, replaces=is_told)
            inherits = bool(path) and may_inherit_acl(directory, status_of(directory).st_uid)
        except Problem as problem:
            _not_opened(result, _left(path, members, plain), problem)
            return
        if is_told:
            result.count(counts.DIRECTORIES)
            result.items.did(Action.COPY, place_of(path), b"", type_of(members[0].member.st_mode))
            finish_later(rank, result, members.pop(0))
        left = yield from make_plain(rank, result, directory, path, plain, inherits=inherits)
        if left.unbegun:
            result.spawn(_left(path, [], plain.chosen(left.unbegun)), len(left.unbegun) * CALL_COST)
        members += plain.chosen(left.care).members(path)
        extracting = Extracting(rank, result, directory, path, inherits=inherits)
        links = []
        for each in sorted(members, key=lambda each: each.data):  # as they are read, whatever they are called
            if each.member.kind == LINK:
                links.append(each.packed())
                continue
            try:
                yield from extracting.extract(each)
            except Problem as problem:
                result.fail(place_of(path), each.name, problem, each.member.size, retry=Tried.NEVER)
        extracting.end()
        if links:
            result.spawn(LinkMembers(marshal.dumps(links)), len(links) * CALL_COST, phase=LINKS)


def _left(path: bytes, members: Sequence[ToUnpack], plain: PlainRows) -> ExtractMembers:
    values = marshal.dumps([each.packed() for each in members])
    return ExtractMembers(values, 0, path, pack_names(plain.names), plain.packed)


def _not_opened(result: Result, task: ExtractMembers, problem: Problem) -> None:
    """The directory of what the task unpacks, which may be there when all directories are that a member tells of."""
    members = list(map(ToUnpack.unpacked, marshal.loads(task.values)))
    plain = PlainRows(unpack_names(task.names, len(task.plain)), task.plain)
    if problem.errno in _IN_THE_WAY and result.phase == UNPACK:
        result.count(counts.FOR_LINK)
        result.spawn(task, (len(members) + len(plain)) * CALL_COST, phase=UNPACK_AGAIN)
        return
    for each in [*members, *plain.members(task.path)]:
        result.fail(place_of(each.path), each.name, problem, each.member.size, retry=Tried.NEVER)


def _allowed(rivals: Rivals, members: Iterable[ToUnpack], result: Result) -> Iterator[ToUnpack]:
    """Without those whose names are another's."""
    for each in members:
        try:
            if rivals.refuse(each):
                result.count(counts.SKIPPED)
            else:
                yield each
        except Problem as problem:
            result.fail(place_of(each.path), each.name, problem, each.member.size, retry=Tried.NEVER)


class Extracting:
    """Makes items in one open ``directory``."""

    def __init__(self, rank: Rank, result: Result, directory: int, path: bytes, *, inherits: bool) -> None:
        self._rank = rank
        self._result = result
        self._directory = directory
        self._place = place_of(path)
        self._inherits = inherits
        self._archive = rank.own(OpenArchive)
        self._window = ReadAhead(self._archive)
        self._lookup = lookup_of(numeric=rank.options.numeric_owner)
        self._files = self._bytes = 0

    def end(self) -> None:
        """Files count all at once."""
        if self._files:
            self._rank.succeeded()
            self._result.count(counts.FILES, self._files)
            self._result.count(counts.BYTES, self._bytes)

    def extract(self, each: ToUnpack) -> Generator[None, None, None]:
        """Raises ``Problem``; nothing of it is there then, unless that says so."""
        member = each.member
        new: NewFile
        if member.kind == FILE:
            new, present = self._new_file(each.name)
            with new:
                self._archive.spare(present)
                steps = _filled(self._archive, self._window, each, new.descriptor)
                for moved in throttled(steps, self._rank.throttle):
                    self._rank.counters[counts.MOVED] += moved
                    if moved > SMALL_FILE // 4:
                        yield None
                applied = self._dress(new, member)
                self._name(new, each.name, present)
        else:
            node = Node(_status_of(member), attributes_of(self._lookup, member), member.link)
            present = look(self._directory, each.name)
            self._archive.spare(present)
            name = each.name if present is None else self._rank.temporary_names.next()
            new = NewNode.made(self._directory, name, node, is_temporary=True)
            with new:
                applied = self._dress(new, member)
                self._name(new, each.name, present)
        self._tell(each, applied, new.shortcoming, present)
        if member.kind == FILE:
            yield None

    def _new_file(self, name: bytes) -> tuple[NewFile, os.stat_result | None]:
        """Under its own name, if that is free; else beside what has it."""
        try:
            return NewFile.at(self._directory, name), None
        except Problem as problem:
            if problem.errno != errno.EEXIST:
                raise
        return NewFile.at(self._directory, self._rank.temporary_names.next()), look(self._directory, name)

    def _name(self, new: NewFile, name: bytes, present: os.stat_result | None) -> None:
        if new.made_as == name:
            new.keep()
        else:
            new.commit(name, present)

    def _dress(self, new: NewFile, member: Member) -> Applied:
        options = self._rank.options
        attributes = attributes_of(self._lookup, member)
        return new.dress(attributes, options.preserve, options.umask, inherits=self._inherits)

    def _tell(
        self, each: ToUnpack, applied: Applied, shortcoming: Problem | None, present: os.stat_result | None
    ) -> None:
        result, member, place = self._result, each.member, self._place
        if shortcoming is not None:
            text = "it is there without that, and its mode may be narrower than in the archive"
            raise Problem(shortcoming.operation, shortcoming.errno or 0, text=text)
        if each.trouble:
            raise Problem("extract", 0, text=f"it is there, but {each.trouble}")
        if applied.excused or applied.notices or applied.unknown:
            result.applied(place, each.name, applied)
        if member.kind == FILE and not result.items.is_wanted:
            self._files += 1
            self._bytes += member.size
            return
        kind = FILE_TYPE if member.kind == FILE else type_of(member.st_mode)
        result.copied(place, each.name, Known(kind, member.size, b"", NO_VERSION), alone=False)


def _status_of(member: Member) -> os.stat_result:
    """What a new node is compared with."""
    fields = (member.st_mode, 0, 0, 1, member.uid, member.gid, 0, 0, 0, 0)
    return os.stat_result(fields, {"st_rdev": member.device})


def _filled(archive: OpenArchive, window: ReadAhead, each: ToUnpack, target: int) -> Iterator[int]:
    """Gives the empty file its contents; yields the bytes that each step moved, raises ``Problem``."""
    member, at = each.member, each.data
    if member.extents is None and member.size <= SMALL_FILE // 4:
        if member.size:
            write_all(target, window.bytes(at, member.size), 0)
            yield member.size
        return
    set_size(target, member.size)
    for offset, length in ((0, member.size),) if member.extents is None else member.extents:
        yield from _copied(archive, target, at, offset, length)
        at += length


def _copied(archive: OpenArchive, target: int, at: int, offset: int, length: int) -> Iterator[int]:
    source = archive.plain_descriptor
    while length and source >= 0:
        try:
            moved = os.copy_file_range(source, target, min(KERNEL_PIECE, length), at, offset)
        except OSError:  # to read and write finds out whose fault it is
            break
        if not moved:
            break
        at, offset, length = at + moved, offset + moved, length - moved
        yield moved
    while length:
        data = archive.read_all(at, min(1 << 20, length))
        write_all(target, memoryview(data), offset)
        at, offset, length = at + len(data), offset + len(data), length - len(data)
        yield len(data)


def open_or_make(rank: Rank, path: bytes, *, replaces: bool = False) -> int:
    """The directory ``path`` below the target, open; it is made, with all above it, if it is not there.

    ``replaces``: what else has its name is removed, as tar does. Raises ``Problem``.
    """
    directory = _opened(rank, path)
    if directory >= 0:
        return directory
    at, around = b"", rank.targets[0].open(b"")
    for name in path.split(b"/"):
        at = at + b"/" + name if at else name
        directory = _opened(rank, at)
        around = directory if directory >= 0 else _made(rank, around, at, replaces=replaces and at == path)
    return around


def _opened(rank: Rank, path: bytes) -> int:
    """-1 if it is no directory, or not there."""
    try:
        return rank.targets[0].open(path)
    except Problem as problem:
        if not path or problem.errno not in (errno.ENOENT, *_IN_THE_WAY):
            raise
        return -1


def _made(rank: Rank, around: int, path: bytes, *, replaces: bool) -> int:
    """As ``open_or_make``, in the open directory ``around``, where it was not a moment ago."""
    name = path.rpartition(b"/")[2]
    present = look(around, name)
    if present is not None and not stat.S_ISDIR(present.st_mode):
        if not replaces:
            what = "a symbolic link" if stat.S_ISLNK(present.st_mode) else "a file"
            raise Problem("open", errno.ENOTDIR, text=f"{what} has the name of the directory {shown(path)}")
        rank.own(OpenArchive).spare(present)
        with failing("unlink"), suppress(FileNotFoundError):
            os.unlink(name, dir_fd=around)
    made = False
    try:
        os.mkdir(name, 0o700, dir_fd=around)
        made = True
    except FileExistsError:
        pass
    except OSError as error:
        raise Problem.of("mkdir", error) from error
    directory = rank.targets[0].open(path)
    if made and has_default_acl(directory):
        drop_inherited_acls(directory)
    if made and not replaces:
        inherited = status_of(directory).st_mode & stat.S_ISGID
        with failing("chmod"):
            os.chmod(directory, inherited | 0o777 & ~rank.options.umask)
    return directory
