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
import time
from array import array
from collections.abc import Sequence
from functools import partial
from itertools import count

from pcopy.engine.ticket import Stepwise
from pcopy.fsio.identity import Identity
from pcopy.fsio.kernel.batches import Listed
from pcopy.fsio.kernel.columns import INODE, MODE, Code, Rows, Verdicts, pack_names, unpack_names
from pcopy.fsio.kernel.directory_batches import DoneWithin, RemoveWithin
from pcopy.fsio.mounted import mount_number
from pcopy.fsio.problem import Problem, failing
from pcopy.fsio.source import status_of
from pcopy.named import NamedTuple
from pcopy.signature.items import DIRECTORY
from pcopy.tasks.base import counts
from pcopy.tasks.base.kind import Note, OfPlace, Steps
from pcopy.tasks.base.ledger import Awaited, Ledger
from pcopy.tasks.base.rank import CALL_COST, SCAN_COST, Rank
from pcopy.tasks.base.result import Result
from pcopy.tasks.base.siblings import LONG, AtOnce, are_entered_at_once, shares
from pcopy.tasks.base.values import NOWHERE, Place, pack_numbers, unpack_numbers
from pcopy.tasks.directories.access import let_us_into
from pcopy.tasks.remove.protected import without_protected
from pcopy.tasks.remove.removal_counts import RemovalCounts, only_looks
from pcopy.tasks.remove.stopping import Deletion
from pcopy.tasks.remove.visitor import RemoveVisitor, problem_of, remove_batch
from pcopy.walk.listing import NAMES_AT_ONCE, Listing, NamesSpool, begin_list, spread, unpack_listed
from pcopy.walk.visitor import visit

NOBODY = (-1, -1, -1)
"""A PATH of the command line: nobody waits for it."""

ELSEWHERE = "something is mounted here: it stays"


class _Part(OfPlace):
    """A part of the directory ``place``, or all of it, for whose end a rank may wait: that rank, a number under which
    it does, and the run. In a later run nobody waits any more: who has waited begins anew then."""

    awaited: tuple[int, int, int]
    is_found_anew = True
    counts_when_cut = True

    def settled(self, rank: Rank, result: Result, *, left: bool) -> None:
        """All that was found in it has gone, on whatever rank, or something is ``left``."""
        self.end(rank, result, left=left)

    def end(self, rank: Rank, result: Result, *, left: bool) -> None:
        owner, number, run = self.awaited
        if run == rank.job.run:
            result.spawn(PartRemoved(number, left, run), owner=owner)


class RemoveNames(_Part, code=80, doing="removing files of", is_note=False):
    """Removes ``names`` (joined by slashes) of a directory, with all that is below them. ``awaited``: the rank that
    waits for their end, and the number under which it does. ``kinds`` and ``inodes`` as in ``Listed``, or empty."""

    names: bytes
    kinds: bytes = b""
    inodes: bytes = b""

    @property
    def effort(self) -> int:
        return self.operation_count * (self.names.count(b"/") + 1)

    def run(self, rank: Rank, result: Result) -> Steps:
        if rank.options.delete and rank.own(Deletion).is_stopped:
            self.end(rank, result, left=True)
            return
        try:
            directory, device = _enter(rank, self.place)
        except Problem as problem:
            has_gone = problem.errno == errno.ENOENT
            tally = RemovalCounts(rank, result)
            for name in () if has_gone else unpack_names(self.names):
                tally.found()
                tally.failed(self.place, name, problem)
            self.end(rank, result, left=not has_gone)
            return
        listed = Listed(Verdicts(1), self.names, 0, self.kinds, unpack_numbers(self.inodes))
        if (yield from _remove_names(rank, result, directory, device, listed, self)):
            self.end(rank, result, left=False)


class RemoveDir(_Part, code=81, doing="removing", is_note=False):
    """Removes the directory ``place``, which lies in ``parent``, with all that is in it, unless that has gone already:
    then it ``is_empty``. ``awaited`` as for ``RemoveNames``. It ``stays`` if only what is in it is selected."""

    parent: Place
    is_empty: bool = False
    stays: bool = False

    def run(self, rank: Rank, result: Result) -> Steps:
        unread = None
        if rank.options.delete and not self.is_empty and rank.own(Deletion).is_stopped:
            self.end(rank, result, left=True)
            return
        if not self.is_empty:
            RemovalCounts(rank, result).unread(-1)
            try:
                directory, device = _enter(rank, self.place)
                listing = yield from begin_list(rank.kernel, directory, detailed=True)
                if listing.is_large:
                    yield from _spread(rank, result, listing, self)
                    return
                yield from rank.throttle.spend(operations=2 * listing.number)
            except Problem as problem:
                if problem.errno != errno.EACCES:
                    self._failed(rank, result, problem)
                    return
                unread = problem  # what can't be read may be empty
            else:
                if not (yield from _remove_names(rank, result, directory, device, listing.listed, self)):
                    return
        if self.stays and unread is None:
            self._stays(rank, result, left=False)
            return
        problem_met = unread if only_looks(rank) else (yield from self._remove(rank))
        if problem_met is None:
            removal = RemovalCounts(rank, result)
            removal.tell(self.place, [b""], [DIRECTORY], [0])
            removal.gone((counts.DIRECTORIES,))
            self.end(rank, result, left=False)
        else:
            self._failed(rank, result, unread if unread and problem_met.errno == errno.ENOTEMPTY else problem_met)

    def _remove(self, rank: Rank) -> Stepwise[Problem | None]:
        place, parent = self.place, self.parent
        try:
            if rank.options.backup:
                from pcopy.tasks.files.backup import Backup

                rank.own(Backup).keep_directory(place, opened(rank, place))
            forget(rank, place)
            around = opened(rank, parent)
        except Problem as problem:
            return problem
        rows = Rows(1, MODE | INODE)
        rows.mode[0], rows.inode[0] = stat.S_IFDIR, place.source_id.inode
        removed = yield from remove_batch(rank, around, os.path.basename(place.path), rows)
        return problem_of(removed.verdicts, 0)

    def _stays(self, rank: Rank, result: Result, *, left: bool) -> None:
        """Which is no failure of its own: something is ``left`` in it, or it is not selected itself."""
        removal = RemovalCounts(rank, result)
        if left:
            removal.stays()
        else:
            removal.excluded()
        self.end(rank, result, left=True)

    def _failed(self, rank: Rank, result: Result, problem: Problem) -> None:
        """It could not be removed, unless it has gone by itself."""
        has_gone = problem.errno == errno.ENOENT
        if has_gone:
            RemovalCounts(rank, result).found(-1)
        elif rank.options.delete and problem.strerror == ELSEWHERE:
            result.warn(self.place, b"", ELSEWHERE)
        else:
            RemovalCounts(rank, result).failed(self.place, b"", problem)
        self.end(rank, result, left=not has_gone)

    def settled(self, rank: Rank, result: Result, *, left: bool) -> None:
        if left or self.stays:
            self._stays(rank, result, left=left)
        else:
            result.spawn(self._replace(is_empty=True))


class RemoveDirs(_Part, code=86, doing="removing directories of", is_note=False):
    """Removes the directories ``names`` of ``place``, which have these ``inodes`` (8 bytes each), with all that is in
    them: at once those that hold nothing but files, the others one by one. ``awaited`` as for ``RemoveNames``."""

    names: bytes
    inodes: bytes

    @property
    def effort(self) -> int:
        return self.operation_count * (self.names.count(b"/") + 1)

    def run(self, rank: Rank, result: Result) -> Steps:
        names, inodes = unpack_names(self.names), unpack_numbers(self.inodes)
        at, left = 0, list[int]()
        try:
            directory, device = _enter(rank, self.place)
        except Problem:  # which each tells by itself
            at, left = len(names), [*range(len(names))]
        end, at_once = time.monotonic() + LONG, rank.own(AtOnce)
        while at < len(names) and (not at or (are_entered_at_once(rank) and time.monotonic() < end)):
            some, began = slice(at, at + at_once.number), time.monotonic()
            numbers = array("Q", inodes[some])
            batch = RemoveWithin(directory, pack_names(names[some]), numbers, device, NAMES_AT_ONCE - 1)
            done = yield from rank.counted(batch, partial(_count, RemovalCounts(rank, result)))
            at_once.took(time.monotonic() - began)
            left += [at + row for row, code in enumerate(done.verdicts.codes) if code != Code.DONE]
            at = some.stop
        self._leave(rank, result, names, inodes, left, at)

    def _leave(
        self, rank: Rank, result: Result, names: Sequence[bytes], inodes: Sequence[int], left: Sequence[int], at: int
    ) -> None:
        """The directories in the rows ``left``, and all from the row ``at``, are for other tasks."""
        rest = [slice(at + some.start, at + some.stop) for some in shares(rank, len(names) - at)]
        if not (left or rest):
            self.end(rank, result, left=False)
            return
        awaited, around = rank.own(PartLedger).wait(self, len(left) + len(rest), result), self.place
        for row in left:
            identity = Identity(around.source_id.mount, inodes[row])
            below = Place(around.root, os.path.join(around.path, names[row]), identity, NOWHERE, False, False)
            result.spawn(RemoveDir(below, awaited, around), SCAN_COST, expands=True)
        for some in rest:
            others = RemoveDirs(around, awaited, pack_names(names[some]), pack_numbers([*inodes[some]]))
            result.spawn(others, len(names[some]) * SCAN_COST, expands=True)


def _count(removal: RemovalCounts, done: DoneWithin) -> None:
    """Directories were found before."""
    sums = done.sums
    removal.found(sums.files + sums.links + sums.others, sums.bytes)
    removal.unread(-sums.directories)
    numbers = {
        counts.FILES: sums.files,
        counts.SYMLINKS: sums.links,
        counts.SPECIAL: sums.others,
        counts.DIRECTORIES: sums.directories,
    }
    removal.gone(numbers, sums.bytes)


class PartRemoved(Note, code=83, doing="noting what is removed"):
    """Tells the rank that waits under ``number`` that a part is settled; ``left``: something of it stays. Nobody waits
    in another run than that ``of_run``."""

    number: int
    left: bool
    of_run: int
    is_found_anew = True

    def run(self, rank: Rank, result: Result) -> None:
        if self.of_run == rank.job.run:
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

    def wait(self, part: _Part, parts: int, result: Result, *, left: bool = False) -> tuple[int, int, int]:
        """From now on so many ``parts`` of ``part`` are awaited, by this rank; returns what they have to know."""
        number = next(self._numbers)
        self.open(number, _Waiting(part, left), parts, result)
        return self._rank.number, number, self._rank.job.run

    def noted(self, awaited: Awaited[_Waiting], note: PartRemoved) -> None:
        if note.left:
            awaited.opened = awaited.opened._replace(left=True)

    def ended(self, awaited: Awaited[_Waiting], result: Result) -> None:
        awaited.opened.part.settled(self._rank, result, left=awaited.opened.left)


def opened(rank: Rank, place: Place) -> int:
    """The directory of which something is removed: of a copy job that of the target, which has the ``source_id`` of
    such a place; raises ``Problem``."""
    if rank.options.delete:
        return rank.targets[place.root].open(rank.below_target(place.root, place.path), place.source_id)
    return rank.sources[place.root].open(place.path, place.source_id)


def forget(rank: Rank, place: Place) -> None:
    """It is not kept open any more."""
    if rank.options.delete:
        rank.targets[place.root].forget(rank.below_target(place.root, place.path))
    else:
        rank.sources[place.root].forget(place.path)


def is_within(rank: Rank, place: Place, directory: int) -> bool:
    """Does the open directory lie on the mount of its root? Raises ``Problem``."""
    top = rank.descriptors[place.root]
    with failing("open"):
        return mount_number(directory) == mount_number(top.target if rank.options.delete else top.source)


def _enter(rank: Rank, place: Place) -> tuple[int, int]:
    """The directory, open, and its device; raises ``Problem`` if another one is there, or another mount.

    One of ours from which a copy job is to delete may lack permissions for us, which we add.
    """
    if rank.options.delete and not only_looks(rank):
        let_us_into(rank, place)
    directory = opened(rank, place)
    if not is_within(rank, place, directory):
        forget(rank, place)
        raise Problem("open", 0, text=ELSEWHERE)
    return directory, status_of(directory).st_dev


def _remove_names(
    rank: Rank, result: Result, directory: int, device: int, listed: Listed, part: _Part
) -> Stepwise[bool]:
    """Removes what is no directory at once; the directories among the names are waited for. Has all gone now?"""
    visitor = RemoveVisitor(rank, result, part.place, directory, device)
    if rank.options.delete:
        deletable = without_protected(rank, result, part.place, listed)
        visitor.left, listed = deletable is not listed, deletable
    packed = listed.names
    each_alone = only_looks(rank) or result.items.is_wanted or rank.options.backup
    if listed.kinds and not each_alone and not visitor.selected.anything:
        packed = yield from visitor.remove_plain(listed)
    yield from visit(rank.kernel, directory, packed, visitor, follow=False)
    if visitor.below:
        RemovalCounts(rank, result).unread(len(visitor.below))
        if not each_alone and _go_at_once(rank, visitor):
            _spawn_dirs(rank, result, visitor, part)
        else:
            awaited = rank.own(PartLedger).wait(part, len(visitor.below), result, left=visitor.left)
            for place in visitor.below:
                below = RemoveDir(place, awaited, part.place, stays=place in visitor.staying)
                result.spawn(below, SCAN_COST, expands=True)
    elif visitor.left:
        part.settled(rank, result, left=True)
    return not (visitor.below or visitor.left)


def _go_at_once(rank: Rank, visitor: RemoveVisitor) -> bool:
    """Does the kernel remove several directories in one call?"""
    if len(visitor.below) < 2 or not are_entered_at_once(rank):
        return False
    return not (rank.options.delete or visitor.selected.anything)


def _spawn_dirs(rank: Rank, result: Result, visitor: RemoveVisitor, part: _Part) -> None:
    parts = [visitor.below[share] for share in shares(rank, len(visitor.below))]
    awaited = rank.own(PartLedger).wait(part, len(parts), result, left=visitor.left)
    for some in parts:
        inodes = pack_numbers([each.source_id.inode for each in some])
        names = pack_names(os.path.basename(each.path) for each in some)
        result.spawn(RemoveDirs(part.place, awaited, names, inodes), len(some) * SCAN_COST, expands=True)


def _spread(rank: Rank, result: Result, listing: Listing, part: RemoveDir) -> Steps:
    """All ranks remove the names of a large directory; raises ``Problem`` if it can't be read to its end."""
    spool = NamesSpool(rank.open_spool)
    yield from spread(listing, spool)
    awaited = rank.own(PartLedger).wait(part, spool.number, result)
    tasks = (RemoveNames(part.place, awaited, *each) for each in map(unpack_listed, spool))
    result.spawn_each(tasks, NAMES_AT_ONCE * CALL_COST, expands=True)
