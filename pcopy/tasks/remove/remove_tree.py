"""RemoveNames, RemoveDir and PartRemoved: names go in batches, and a directory once nothing is in it.

Any rank may run a batch or a directory. Whoever has found directories in one waits for a note about each of them. The
last note is the end of what was waited for: then an emptied directory goes, and the one who waits for that is told.

Rules:
- A directory is entered from the one around it, never through a symbolic link, and only if it is the one that was
  found, on the mount of its root. Anything else stays, and has failed.
- All names of a directory are listed before the first of them goes: a listing may skip names while others go.
- An item goes only if it is the one that was found. What has gone by itself was never found.
- A directory that holds what could not be removed stays, and is no failure of its own: it counts as skipped.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterable, Sequence
from itertools import count
from typing import NamedTuple

from pcopy.engine.ticket import Stepwise
from pcopy.fsio.identity import Identity
from pcopy.fsio.kernel.batches import Remove
from pcopy.fsio.kernel.columns import DEVICE, INODE, MODE, Code, Rows, pack_names, unpack_names
from pcopy.fsio.kernel.interface import waited
from pcopy.fsio.mounted import mount_number
from pcopy.fsio.problem import Problem, failing
from pcopy.fsio.source import status_of
from pcopy.signature.items import type_of
from pcopy.tasks.base import counts
from pcopy.tasks.base.kind import Note, OfPlace, Steps
from pcopy.tasks.base.ledger import Awaited, Ledger
from pcopy.tasks.base.rank import CALL_COST, SCAN_COST, Rank
from pcopy.tasks.base.result import Result, Tried
from pcopy.tasks.base.values import NOWHERE, Place
from pcopy.walk.listing import NAMES_AT_ONCE, Listing, NamesSpool, begin_list, spread
from pcopy.walk.visitor import Found, visit

BATCH_ITEMS = 256
"""Items that are handed to the kernel together."""

NOBODY = (-1, -1)
"""A PATH of the command line: nobody waits for it."""

_ELSEWHERE = "something is mounted here: it stays"
_OTHER_DEVICE = "another file system is mounted here, or it is a subvolume: it stays"
_REPLACED = "another item has taken its name since it was found: it stays"


class _Part(OfPlace):
    """A part of the directory ``place``, or all of it, for whose end a rank may wait."""

    awaited: tuple[int, int]

    def settled(self, result: Result, *, left: bool) -> None:
        """All that was found in it has gone, on whatever rank, or something is ``left``."""
        self.end(result, left=left)

    def end(self, result: Result, *, left: bool) -> None:
        if self.awaited != NOBODY:
            owner, number = self.awaited
            result.spawn(PartRemoved(number, left), owner=owner)


class RemoveNames(_Part, code=80, doing="removing files of", is_note=False):
    """Removes ``names`` (joined by slashes) of a directory, with all that is below them. ``awaited``: the rank that
    waits for their end, and the number under which it does."""

    names: bytes

    def run(self, rank: Rank, result: Result) -> Steps:
        names = unpack_names(self.names)
        try:
            directory, device = _enter(rank, self.place)
        except Problem as problem:
            has_gone = problem.errno == errno.ENOENT
            for name in () if has_gone else names:
                result.count(counts.FOUND)
                result.fail(self.place, name, problem, retry=Tried.NEVER)
            self.end(result, left=not has_gone)
            return
        if (yield from _remove_names(rank, result, directory, device, names, self)):
            self.end(result, left=False)


class RemoveDir(_Part, code=81, doing="removing", is_note=False):
    """Removes the directory ``place``, which lies in ``parent``, with all that is in it, unless that has gone already:
    then it ``is_empty``. ``awaited`` as for ``RemoveNames``."""

    parent: Place
    is_empty: bool = False

    def run(self, rank: Rank, result: Result) -> Steps:
        unread = None
        if not self.is_empty:
            result.count(counts.UNSCANNED, -1)
            try:
                directory, device = _enter(rank, self.place)
                listing = yield from begin_list(directory)
                if listing.is_large:
                    yield from _spread(rank, result, listing, self)
                    return
            except Problem as problem:
                if problem.errno != errno.EACCES:
                    self._failed(result, problem)
                    return
                unread = problem  # what can't be read may be empty
            else:
                if not (yield from _remove_names(rank, result, directory, device, listing.first, self)):
                    return
        problem_met = unread if rank.options.dry_run else (yield from self._remove(rank))
        if problem_met is None:
            result.count(counts.DIRECTORIES)
            self.end(result, left=False)
        else:
            self._failed(result, unread if unread and problem_met.errno == errno.ENOTEMPTY else problem_met)

    def _remove(self, rank: Rank) -> Stepwise[Problem | None]:
        place, parent = self.place, self.parent
        sources = rank.sources[place.root]
        sources.forget(place.path)
        rows = Rows(1, MODE | INODE)
        rows.mode[0], rows.inode[0] = stat.S_IFDIR, place.source_id.inode
        try:
            around = sources.open(parent.path, parent.source_id)
        except Problem as problem:
            return problem
        (problem_met,) = yield from _removed(rank, around, [os.path.basename(place.path)], rows)
        return problem_met

    def _failed(self, result: Result, problem: Problem) -> None:
        """It could not be removed, unless it has gone by itself."""
        has_gone = problem.errno == errno.ENOENT
        if has_gone:
            result.count(counts.FOUND, -1)
        else:
            result.fail(self.place, b"", problem, retry=Tried.NEVER)
        self.end(result, left=not has_gone)

    def settled(self, result: Result, *, left: bool) -> None:
        if left:  # it stays, which is no failure of its own
            result.count(counts.SKIPPED)
            self.end(result, left=True)
        else:
            result.spawn(self._replace(is_empty=True))


class PartRemoved(Note, code=83, doing="noting what is removed"):
    """Tells the rank that waits under ``number`` that a part is settled; ``left``: something of it stays."""

    number: int
    left: bool

    def run(self, rank: Rank, result: Result) -> None:
        rank.own(PartLedger).take(self.number, self, result)


class _Waiting(NamedTuple):
    """A ``part`` with directories in it; ``left``: something of them stays."""

    part: _Part
    left: bool


class PartLedger(Ledger[int, _Waiting, PartRemoved]):
    """What a rank waits for, by numbers of its own."""

    def __init__(self, rank: Rank) -> None:
        super().__init__(rank)
        self._numbers = count()

    def wait(self, part: _Part, parts: int, result: Result, *, left: bool = False) -> tuple[int, int]:
        """From now on so many ``parts`` of ``part`` are awaited: by this rank, and under the number that it returns."""
        number = next(self._numbers)
        self.open(number, _Waiting(part, left), parts, result)
        return self._rank.number, number

    def noted(self, awaited: Awaited[_Waiting], note: PartRemoved) -> None:
        if note.left:
            awaited.opened = awaited.opened._replace(left=True)

    def ended(self, awaited: Awaited[_Waiting], result: Result) -> None:
        awaited.opened.part.settled(result, left=awaited.opened.left)


def _enter(rank: Rank, place: Place) -> tuple[int, int]:
    """The directory, open, and its device; raises ``Problem`` if another one is there, or another mount."""
    sources = rank.sources[place.root]
    directory = sources.open(place.path, place.source_id)
    with failing("open"):
        is_within = mount_number(directory) == mount_number(rank.descriptors[place.root].source)
    if not is_within:
        sources.forget(place.path)
        raise Problem("open", 0, text=_ELSEWHERE)
    return directory, status_of(directory).st_dev


def _remove_names(
    rank: Rank, result: Result, directory: int, device: int, names: Sequence[bytes], part: _Part
) -> Stepwise[bool]:
    """Removes what is no directory at once; the directories among the ``names`` are waited for. Has all gone now?"""
    visitor = _Removing(rank, result, part.place, directory, device)
    yield from visit(directory, names, visitor, follow=False)
    if visitor.below:
        awaited = rank.own(PartLedger).wait(part, len(visitor.below), result, left=visitor.left)
        for place in visitor.below:
            result.spawn(RemoveDir(place, awaited, part.place), SCAN_COST, expands=True)
            result.count(counts.UNSCANNED)
    elif visitor.left:
        part.settled(result, left=True)
    return not (visitor.below or visitor.left)


def _spread(rank: Rank, result: Result, listing: Listing, part: RemoveDir) -> Steps:
    """All ranks remove the names of a large directory; raises ``Problem`` if it can't be read to its end."""
    spool = NamesSpool(rank.open_spool)
    found = yield from spread(listing, spool)
    awaited = rank.own(PartLedger).wait(part, -(-found // NAMES_AT_ONCE), result)
    tasks = (RemoveNames(part.place, awaited, packed) for packed in spool)
    result.spawn_each(tasks, NAMES_AT_ONCE * CALL_COST, expands=True)


def _removed(rank: Rank, directory: int, names: list[bytes], rows: Rows) -> Stepwise[list[Problem | None]]:
    """Why each of the ``names`` was not removed; None if it was."""
    ticket = rank.kernel.submit(Remove(directory, pack_names(names), rows))
    verdicts = (yield from waited(rank.kernel, ticket)).verdicts
    problems: list[Problem | None] = [None] * len(names)
    for row, code in enumerate(verdicts.codes):
        if code != Code.DONE:
            problems[row] = Problem("unlink", 0, text=_REPLACED) if code == Code.ANEW else verdicts.problem(row)
    return problems


def _size(status: os.stat_result) -> int:
    return status.st_size if stat.S_ISREG(status.st_mode) else 0


class _Removing:
    """A ``Visitor``: removes all but directories; those are ``below``. ``left``: something stays."""

    links_apart = False

    def __init__(self, rank: Rank, result: Result, place: Place, directory: int, device: int) -> None:
        self._rank = rank
        self._result = result
        self._place = place
        self._directory = directory
        self.device: int | None = device
        self.below: list[Place] = []
        self.left = False
        self._names: list[bytes] = []
        self._status: list[os.stat_result] = []

    def failed(self, name: bytes, problem: Problem) -> None:
        if problem.errno != errno.ENOENT:
            self._result.count(counts.FOUND)
            self._fail(name, problem)

    def _fail(self, name: bytes, problem: Problem, size: int = 0) -> None:
        self.left = True
        self._result.fail(self._place, name, problem, size, retry=Tried.NEVER)

    def chosen(self, found: Found) -> Iterable[int]:
        return range(len(found.names))

    def directories(self, found: Found, rows: Sequence[int]) -> None:
        self._result.count(counts.FOUND, len(rows))
        for row in rows:
            name = found.names[row]
            if found.device[row] != self.device:
                self._fail(name, Problem("stat", 0, text=_OTHER_DEVICE))
                continue
            path = os.path.join(self._place.path, name)
            identity = Identity(self._place.source_id.mount, found.inode[row])
            self.below.append(Place(self._place.root, path, identity, NOWHERE, False, False))

    def small_files(self, found: Found, rows: Sequence[int]) -> None:
        self._result.count(counts.FOUND, len(rows))
        for row in rows:
            self._names.append(found.names[row])
            self._status.append(found.status[row])
            self._result.count(counts.FOUND_BYTES, _size(found.status[row]))

    large_files = nodes = linked = small_files

    def settle(self, *, last: bool) -> Steps:
        if self._names and (last or len(self._names) >= BATCH_ITEMS):
            yield from self._remove()

    def _remove(self) -> Steps:
        names, statuses, self._names, self._status = self._names, self._status, [], []
        problems: list[Problem | None] = [None] * len(names)
        if not self._rank.options.dry_run:
            rows = Rows.of(statuses, MODE | INODE | DEVICE)
            problems = yield from _removed(self._rank, self._directory, names, rows)
        for name, status, problem in zip(names, statuses, problems, strict=True):
            size = _size(status)
            if problem is None:
                self._result.count(counts.of_kind(type_of(status.st_mode)))
                self._result.count(counts.BYTES, size)
            elif problem.errno == errno.ENOENT:
                self._result.count(counts.FOUND, -1)
                self._result.count(counts.FOUND_BYTES, -size)
            else:
                self._fail(name, problem, size)

    def finish(self) -> None:
        """What was handed over has gone."""
