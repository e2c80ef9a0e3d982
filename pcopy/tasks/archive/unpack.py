"""Extraction: ``Unpack`` divides the members that a rank owns into tasks, and ``ExtractMembers`` extracts some of one
directory.

A directory is created when something is to be extracted into it, with the mode 0700. It gets its metadata at the end
(``finish_members``). A directory that no member describes gets the default mode of a new directory.

Every path is resolved from the descriptor of the target, one component at a time, and without following symbolic links.
So no member can be written outside the target, whatever is in the target, or is created there meanwhile.
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
"""Errors of opening a directory whose name another item has."""
_LONG = 0.02
"""Seconds after which the remaining members are left to another task."""
BATCH_BYTES = 4 << 20
"""Bytes of contents with which a task gets no more members."""
_NO_ROWS = range(0)


class Unpack(Kind, code=145, doing="sorting members", is_note=False):
    """Task of each rank: spawn the tasks that extract the members of its directories."""

    def about(self) -> None:
        return None

    def run(self, rank: Rank, result: Result) -> None:
        tasks = (task for found in rank.own(FoundMembers).by_directory() for task in _batches(found))
        result.spawn_each(tasks, BATCH_BYTES // 4, expands=False)


def _batches(found: InDirectory) -> Iterator[ExtractMembers]:
    """Yield the tasks that extract the members of a directory or of a portion of it.

    Simple members and others are divided separately; a task gets a batch of each.
    """
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
    """Yield ranges of rows whose ``sizes`` sum up to about ``BATCH_BYTES``."""
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
    """Task that extracts members of the directory ``path``.

    Fields:
      values: members that are not simple, packed.
      superseded: the number of earlier members of the same names, which are counted as skipped.
      path: the directory below the target.
      names: the names of the simple members.
      plain: the simple members, packed.

    If a job stops, its tasks are dropped between two slices, and the counts of a dropped task are lost. So a task that
    has created something ends without another slice, and leaves the remaining members to a new task.
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
        has_directory = bool(members) and not members[0].name
        try:
            directory = open_or_make(rank, result, path, replaces=has_directory)
            status = status_of(directory)
            inherits = bool(path) and may_inherit_acl(directory, status.st_uid)
            rank.learn_times(directory, status.st_dev, result.notices)
        except Problem as problem:
            _not_opened(rank, result, _left(path, members, plain), problem)
            return
        if has_directory:
            result.count(counts.DIRECTORIES)
            result.items.did(Action.COPY, place_of(path), b"", type_of(members[0].member.st_mode))
            finish_later(rank, result, members.pop(0))
        remaining = yield from make_plain(rank, result, directory, path, plain, inherits=inherits)
        if remaining.unbegun:
            result.spawn(_left(path, [], plain.chosen(remaining.unbegun)), len(remaining.unbegun) * CALL_COST)
        members += plain.chosen(remaining.care).members(path)
        has_begun = bool(remaining.made or has_directory or self.superseded or rivals)
        yield from _unpack_each(rank, result, directory, path, members, inherits=inherits, has_begun=has_begun)


def _unpack_each(
    rank: Rank, result: Result, directory: int, path: bytes, members: list[ToUnpack], *, inherits: bool, has_begun: bool
) -> Steps:
    """Extract the ``members`` of the open ``directory`` that need the slow path.

    ``has_begun`` is true if the task has created something before.
    """
    extracting = Extracting(rank, result, directory, path, inherits=inherits)
    until, links = time.monotonic() + _LONG, [each for each in members if each.member.kind == LINK]
    rest = [each for each in members if each.member.kind != LINK]
    rest.sort(key=lambda each: -each.data)  # the last one is extracted first: so they are read in order
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
    """Return a task for members that remain."""
    values = marshal.dumps([each.packed() for each in members])
    return ExtractMembers(values, 0, path, pack_names(plain.names), plain.packed)


def _not_opened(rank: Rank, result: Result, task: ExtractMembers, problem: Problem) -> None:
    """Handle the error that the directory of a ``task`` could not be opened or created.

    If another item has its name, the task is spawned again for the phase UNPACK_AGAIN: the directory can exist by then,
    if a member describes it. Otherwise all members of the task are reported as failed.
    """
    members = list(map(ToUnpack.unpacked, marshal.loads(task.values)))
    plain = PlainRows(unpack_names(task.names, len(task.plain)), task.plain)
    if problem.errno in _IN_THE_WAY and result.phase == UNPACK:
        result.count(counts.FOR_LINK)
        result.spawn(task, (len(members) + len(plain)) * CALL_COST, phase=UNPACK_AGAIN)
        return
    of_members = _of_what_lies_in(problem, task.path)
    if of_members is not problem and not (
        members and not members[0].name
    ):  # no member of the task reports the failure of this directory
        parent, _, name = task.path.rpartition(b"/")
        rank.failed(problem, place_of(parent), name)
    for each in [*members, *plain.members(task.path)]:
        why = of_members if each.name else problem
        result.fail(place_of(each.path), each.name, why, each.member.size, retry=Tried.NEVER)


def _of_what_lies_in(problem: Problem, path: bytes) -> Problem:
    """Return the error of members whose directory ``path`` could not be created because of ``problem``.

    It has another operation than mkdir. A full file system stops a job after some failures of operations that need
    space, and the members must not count as such.
    """
    if problem.operation != "mkdir":
        return problem
    text = f"the directory {shown(path)} could not be created"
    return Problem("open", problem.errno or errno.EIO, text=text)


def _allowed(rivals: Rivals, members: Iterable[ToUnpack], result: Result) -> Iterator[ToUnpack]:
    """Yield the members that conflicts of names do not exclude. Others are counted as skipped or failed."""
    for each in members:
        try:
            if rivals.refuse(each):
                result.count(counts.SKIPPED)
            else:
                yield each
        except Problem as problem:
            result.fail(place_of(each.path), each.name, problem, each.member.size, retry=Tried.NEVER)


def open_or_make(rank: Rank, result: Result, path: bytes, *, replaces: bool = False) -> int:
    """Return a descriptor of the directory ``path`` below the target; create it, and missing ones above it.

    Raise ``Problem`` if that fails.

    Args:
      replaces: True if a member describes the directory, so that an item of its name that is no directory is removed,
          as tar does.
    """
    directory = _opened(rank, path)
    if directory >= 0:
        return directory
    at, parent = b"", rank.targets[0].open(b"")
    for name in path.split(b"/"):
        at = at + b"/" + name if at else name
        directory = _opened(rank, at)
        if directory >= 0:
            parent = directory
            continue
        try:
            parent = _made(rank, result, parent, at, replaces=replaces and at == path)
        except Problem as problem:
            raise problem if at == path else _of_what_lies_in(problem, at) from None
    return parent


def _opened(rank: Rank, path: bytes) -> int:
    """Return a descriptor of the directory ``path``; -1 if it does not exist or is no directory. Raise ``Problem``
    otherwise."""
    try:
        return rank.targets[0].open(path)
    except Problem as problem:
        if not path or problem.errno not in (errno.ENOENT, *_IN_THE_WAY):
            raise
        return -1


def _chmod(directory: Handle, mode: int) -> None:
    """Set the permission bits of a directory. Raise ``Problem`` if that fails."""
    with failing("chmod"):
        os.chmod(directory, mode)


def _made(rank: Rank, result: Result, parent: int, path: bytes, *, replaces: bool) -> int:
    """Create the directory ``path`` in the open directory ``parent``, and return its descriptor.

    It is no error if another rank has created it meanwhile. Raise ``Problem`` if it cannot be created. ``replaces`` as
    for ``open_or_make``.
    """
    name = path.rpartition(b"/")[2]
    present = look(parent, name)
    if present is not None and not stat.S_ISDIR(present.st_mode):
        if not replaces:
            existing_item = "a symbolic link" if stat.S_ISLNK(present.st_mode) else "a file"
            raise Problem("open", errno.ENOTDIR, text=f"{existing_item} has the name of the directory {shown(path)}")
        rank.own(OpenArchive).spare(present)
        with failing("unlink"), suppress(FileNotFoundError):
            os.unlink(name, dir_fd=parent)
    made = False
    try:
        # Only this user may enter it until all members in it were extracted.
        os.mkdir(name, 0o700, dir_fd=parent)
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
        except Problem as problem:  # its members can be extracted nevertheless
            result.warn(place_of(path), b"", f"its mode {mode:04o} could not be set: {problem.strerror}")
    return directory
