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
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from itertools import zip_longest
from operator import itemgetter

from pcopy.archive.member import LINK
from pcopy.fsio.attributes import Handle, drop_inherited_acls, has_default_acl, may_inherit_acl
from pcopy.fsio.kernel.columns import pack_names, unpack_names
from pcopy.fsio.nodes import with_handle
from pcopy.fsio.problem import Problem, failing
from pcopy.fsio.source import status_of
from pcopy.signature.items import type_of
from pcopy.tasks.archive.extracting import Extracting
from pcopy.tasks.archive.finish_members import finish_later
from pcopy.tasks.archive.foresee import foresee_unpacked
from pcopy.tasks.archive.found_members import FoundMembers
from pcopy.tasks.archive.link_members import LinkMembers
from pcopy.tasks.archive.make_members import make_plain
from pcopy.tasks.archive.names import InDirectory, Rivals
from pcopy.tasks.archive.opened import OpenArchive
from pcopy.tasks.archive.phases import LINKS, UNPACK, UNPACK_AGAIN
from pcopy.tasks.archive.to_unpack import NO_ROWS, PlainRows, ToUnpack, is_plain, place_of
from pcopy.tasks.archive.unpack_parts import begin_parts, in_parts
from pcopy.tasks.base import counts
from pcopy.tasks.base.actions import Action
from pcopy.tasks.base.kind import Kind, Steps
from pcopy.tasks.base.rank import CALL_COST, Rank
from pcopy.tasks.base.result import Result, Tried
from pcopy.tasks.files.existing import look
from pcopy.text import shown

_IN_THE_WAY = (errno.ENOTDIR, errno.ELOOP)
_LONG = 0.02
"""Seconds after which the other members are left to a further task."""
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
    ``superseded`` ones, which later ones of their name have taken the place of.

    A job that is told to stop drops a task between two of its slices, and nothing of that is told. So a task that has
    made something ends without a further slice, and leaves the other members to a new one.
    """

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
        if rank.options.dry_run:
            foresee_unpacked(rank, result, [*members, *plain.members(path)])
            return
        if not members and not plain:
            return
        is_told = bool(members) and not members[0].name
        try:
            directory = open_or_make(rank, result, path, replaces=is_told)
            status = status_of(directory)
            inherits = bool(path) and may_inherit_acl(directory, status.st_uid)
            rank.learn_times(directory, status.st_dev, result.notices)
        except Problem as problem:
            _not_opened(rank, result, _left(path, members, plain), problem)
            return
        if is_told:
            result.count(counts.DIRECTORIES)
            result.items.did(Action.COPY, place_of(path), b"", type_of(members[0].member.st_mode))
            finish_later(rank, result, members.pop(0))
        left = yield from make_plain(rank, result, directory, path, plain, inherits=inherits)
        if left.unbegun:
            result.spawn(_left(path, [], plain.chosen(left.unbegun)), len(left.unbegun) * CALL_COST)
        members += plain.chosen(left.care).members(path)
        has_begun = bool(left.made or is_told or self.superseded or rivals)
        yield from _unpack_each(rank, result, directory, path, members, inherits=inherits, has_begun=has_begun)


def _unpack_each(
    rank: Rank, result: Result, directory: int, path: bytes, members: list[ToUnpack], *, inherits: bool, has_begun: bool
) -> Steps:
    """Those ``members`` of the open ``directory`` that want care; ``has_begun``: has the task made something before?"""
    extracting = Extracting(rank, result, directory, path, inherits=inherits)
    until, links = time.monotonic() + _LONG, [each for each in members if each.member.kind == LINK]
    rest = [each for each in members if each.member.kind != LINK]
    rest.sort(key=lambda each: -each.data)  # as they are read, whatever they are called
    while rest:
        each = rest[-1]
        if has_begun and (time.monotonic() > until or not extracting.is_quick(each.member)):
            size = sum(each.member.size for each in rest)
            result.spawn(_left(path, rest, NO_ROWS), size + len(rest) * CALL_COST)
            break
        rest.pop()
        has_begun = True
        try:
            if in_parts(rank, directory, each.member):
                begin_parts(rank, result, directory, each)
            else:
                yield from extracting.extract(each)
        except Problem as problem:
            result.fail(place_of(path), each.name, problem, each.member.size, retry=Tried.NEVER)
    if links:
        packed = marshal.dumps([each.packed() for each in links])
        result.spawn(LinkMembers(packed), len(links) * CALL_COST, phase=LINKS)


def _left(path: bytes, members: Sequence[ToUnpack], plain: PlainRows) -> ExtractMembers:
    values = marshal.dumps([each.packed() for each in members])
    return ExtractMembers(values, 0, path, pack_names(plain.names), plain.packed)


def _not_opened(rank: Rank, result: Result, task: ExtractMembers, problem: Problem) -> None:
    """The directory of what the task unpacks, which may be there when all directories are that a member tells of."""
    members = list(map(ToUnpack.unpacked, marshal.loads(task.values)))
    plain = PlainRows(unpack_names(task.names, len(task.plain)), task.plain)
    if problem.errno in _IN_THE_WAY and result.phase == UNPACK:
        result.count(counts.FOR_LINK)
        result.spawn(task, (len(members) + len(plain)) * CALL_COST, phase=UNPACK_AGAIN)
        return
    of_members = _of_what_lies_in(problem, task.path)
    if of_members is not problem and not (members and not members[0].name):  # perhaps no member is this directory
        parent, _, name = task.path.rpartition(b"/")
        rank.failed(problem, place_of(parent), name)
    for each in [*members, *plain.members(task.path)]:
        why = of_members if each.name else problem
        result.fail(place_of(each.path), each.name, why, each.member.size, retry=Tried.NEVER)


def _of_what_lies_in(problem: Problem, path: bytes) -> Problem:
    """Return the ``Problem`` of what is to be unpacked into the directory ``path``, which could not be made.

    Its operation is none that a full file system refuses: the members do not count towards the end of the job.
    """
    if problem.operation != "mkdir":
        return problem
    text = f"the directory {shown(path)} could not be made"
    return Problem("open", problem.errno or errno.EIO, text=text)


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


def open_or_make(rank: Rank, result: Result, path: bytes, *, replaces: bool = False) -> int:
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
        if directory >= 0:
            around = directory
            continue
        try:
            around = _made(rank, result, around, at, replaces=replaces and at == path)
        except Problem as problem:
            raise problem if at == path else _of_what_lies_in(problem, at) from None
    return around


def _opened(rank: Rank, path: bytes) -> int:
    """-1 if it is no directory, or not there."""
    try:
        return rank.targets[0].open(path)
    except Problem as problem:
        if not path or problem.errno not in (errno.ENOENT, *_IN_THE_WAY):
            raise
        return -1


def _chmod(directory: Handle, mode: int) -> None:
    with failing("chmod"):
        os.chmod(directory, mode)


def _made(rank: Rank, result: Result, around: int, path: bytes, *, replaces: bool) -> int:
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
        mode = status_of(directory).st_mode & stat.S_ISGID | 0o777 & ~rank.options.umask
        try:
            with_handle(directory, lambda handle: _chmod(handle, mode))
        except Problem as problem:  # what lies in it is unpacked nevertheless
            result.warn(place_of(path), b"", f"its mode {mode:04o} could not be set: {problem.strerror}")
    return directory
