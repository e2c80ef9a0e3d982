"""RemoveNames, RemoveDir and PartRemoved: remove names in batches, and a directory once it is empty.

Any rank may run the task for a batch or a directory. The rank that has found directories inside a part waits for a note
(``PartRemoved``) about each of them. After the last note it removes the empty directory, and notifies the rank that
waits for that one.

Rules:

- A directory is entered from its parent, never through a symbolic link, and only if it is the one that was found, on
  the mount of its root. Anything else is not removed and has failed.
- All names of a directory are listed before the first of them is removed, because readdir(3) may skip names while
  others are removed.
- An item is removed only if it is the one that was found. An item that vanished meanwhile does not count as found.
- A directory that contains items which could not be removed is not removed. It is no failure of its own: it counts as
  skipped.
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
"""Value of ``awaited`` for a PATH of the command line, for which no rank waits."""

ELSEWHERE = "a file system is mounted here: not removed"
"""The message for a directory on which another file system is mounted."""


class _Part(OfPlace):
    """A task that removes the directory ``place``, or a part of it, and for whose end a rank may wait.

    ``awaited`` names that rank, the number under which it waits, and the run. In a later run no rank waits any more,
    since the waiting task is started again there.
    """

    awaited: tuple[int, int, int]
    is_found_anew = True
    counts_when_cut = True

    def settled(self, rank: Rank, result: Result, *, left: bool) -> None:
        """Complete this part after all directories found in it were processed, on whatever rank. ``left`` is True if
        any item was not removed.
        """
        self.end(rank, result, left=left)

    def end(self, rank: Rank, result: Result, *, left: bool) -> None:
        """Notify the waiting rank that this part is complete."""
        owner, number, run = self.awaited
        if run == rank.job.run:
            result.spawn(PartRemoved(number, left, run), owner=owner)


class RemoveNames(_Part, code=80, doing="removing files of", is_note=False):
    """Removes ``names`` (joined by slashes) of a directory, with all that is below them.

    ``awaited`` as in ``_Part``. ``kinds`` and ``inodes`` are as in ``Listed``, or empty.
    """

    names: bytes
    kinds: bytes = b""
    inodes: bytes = b""

    @property
    def effort(self) -> int:
        return self.operation_count * (self.names.count(b"/") + 1)

    def run(self, rank: Rank, result: Result) -> Steps:
        """Remove the names, and notify the waiting rank if nothing is pending then."""
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
    """Removes the directory ``place``, which lies in ``parent``, with its contents.

    Fields:

    - ``awaited``: as in ``_Part``.
    - ``is_empty``: the contents have been removed already.
    - ``stays``: only the contents are selected for removal, not the directory itself.
    """

    parent: Place
    is_empty: bool = False
    stays: bool = False

    def run(self, rank: Rank, result: Result) -> Steps:
        """Remove the contents, and the directory itself if nothing is pending then; notify the waiting rank."""
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
                unread = problem  # a directory without read permission may be empty: try to remove it
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
        """Remove the empty directory; return a ``Problem`` if that failed, else None."""
        place, parent = self.place, self.parent
        try:
            if rank.options.backup:
                from pcopy.tasks.files.backup import Backup

                rank.own(Backup).keep_directory(place, opened(rank, place))
            forget(rank, place)
            parent_fd = opened(rank, parent)
        except Problem as problem:
            return problem
        rows = Rows(1, MODE | INODE)
        rows.mode[0], rows.inode[0] = stat.S_IFDIR, place.source_id.inode
        removed = yield from remove_batch(rank, parent_fd, os.path.basename(place.path), rows)
        return problem_of(removed.verdicts, 0)

    def _stays(self, rank: Rank, result: Result, *, left: bool) -> None:
        """Count the directory as not removed, because an item in it remains (``left``) or it is not selected itself.
        This is no failure.
        """
        removal = RemovalCounts(rank, result)
        if left:
            removal.stays()
        else:
            removal.excluded()
        self.end(rank, result, left=True)

    def _failed(self, rank: Rank, result: Result, problem: Problem) -> None:
        """Count and report that the directory could not be removed, unless it vanished meanwhile."""
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
    """Removes the sub-directories ``names`` of ``place`` with their contents; ``inodes`` are their inode numbers (8
    bytes each).

    Directories that contain only files are removed by a batch of the backend, the others one by one. ``awaited`` as in
    ``_Part``.
    """

    names: bytes
    inodes: bytes

    @property
    def effort(self) -> int:
        return self.operation_count * (self.names.count(b"/") + 1)

    def run(self, rank: Rank, result: Result) -> Steps:
        """Remove directories in batches of the backend; those that it cannot remove become tasks of their own."""
        names, inodes = unpack_names(self.names), unpack_numbers(self.inodes)
        at, remaining = 0, list[int]()
        try:
            directory, device = _enter(rank, self.place)
        except Problem:  # the task of each directory reports it
            at, remaining = len(names), [*range(len(names))]
        end, at_once = time.monotonic() + LONG, rank.own(AtOnce)
        while at < len(names) and (not at or (are_entered_at_once(rank) and time.monotonic() < end)):
            batch_rows, began = slice(at, at + at_once.number), time.monotonic()
            numbers = array("Q", inodes[batch_rows])
            batch = RemoveWithin(directory, pack_names(names[batch_rows]), numbers, device, NAMES_AT_ONCE - 1)
            done = yield from rank.counted(batch, partial(_count, RemovalCounts(rank, result)))
            at_once.took(time.monotonic() - began)
            remaining += [at + row for row, code in enumerate(done.verdicts.codes) if code != Code.DONE]
            at = batch_rows.stop
        self._leave(rank, result, names, inodes, remaining, at)

    def _leave(
        self,
        rank: Rank,
        result: Result,
        names: Sequence[bytes],
        inodes: Sequence[int],
        remaining: Sequence[int],
        at: int,
    ) -> None:
        """Spawn tasks for the directories in the rows ``remaining``, and for all from the row ``at`` on. If there are
        none, notify the waiting rank.
        """
        rest = [slice(at + rows.start, at + rows.stop) for rows in shares(rank, len(names) - at)]
        if not (remaining or rest):
            self.end(rank, result, left=False)
            return
        awaited, parent = rank.own(PartLedger).wait(self, len(remaining) + len(rest), result), self.place
        for row in remaining:
            identity = Identity(parent.source_id.mount, inodes[row])
            below = Place(parent.root, os.path.join(parent.path, names[row]), identity, NOWHERE, False, False)
            result.spawn(RemoveDir(below, awaited, parent), SCAN_COST, expands=True)
        for rows in rest:
            task = RemoveDirs(parent, awaited, pack_names(names[rows]), pack_numbers([*inodes[rows]]))
            result.spawn(task, len(names[rows]) * SCAN_COST, expands=True)


def _count(removal: RemovalCounts, done: DoneWithin) -> None:
    """Count the removed contents of directories; the directories themselves were counted as found before."""
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


class PartRemoved(Note, code=83, doing="recording removals in"):
    """A note for the rank that waits under ``number``: a part is complete; ``left`` is True if an item of it was not
    removed.

    It is ignored in any other run than ``of_run``, since no rank waits there.
    """

    number: int
    left: bool
    of_run: int
    is_found_anew = True

    def run(self, rank: Rank, result: Result) -> None:
        if self.of_run == rank.job.run:
            rank.own(PartLedger).take(self.number, self, result)


class _Waiting(NamedTuple):
    """A ``part`` whose directories are not complete yet; ``left`` is True if an item of them was not removed."""

    part: _Part
    left: bool


class PartLedger(Ledger[int, _Waiting, PartRemoved]):
    """The parts for which a rank waits, by numbers that it assigns."""

    def __init__(self, rank: Rank) -> None:
        super().__init__(rank)
        self._numbers = count()

    def wait(self, part: _Part, parts: int, result: Result, *, left: bool = False) -> tuple[int, int, int]:
        """Wait for this many ``parts`` of ``part``; return the value of ``awaited`` for their tasks."""
        number = next(self._numbers)
        self.open(number, _Waiting(part, left), parts, result)
        return self._rank.number, number, self._rank.job.run

    def noted(self, awaited: Awaited[_Waiting], note: PartRemoved) -> None:
        if note.left:
            awaited.opened = awaited.opened._replace(left=True)

    def ended(self, awaited: Awaited[_Waiting], result: Result) -> None:
        awaited.opened.part.settled(self._rank, result, left=awaited.opened.left)


def opened(rank: Rank, place: Place) -> int:
    """Return the descriptor of the directory whose contents are removed; raise ``Problem``.

    In a copy job this is a directory of the target, whose identity stands in ``place.source_id``.
    """
    if rank.options.delete:
        return rank.targets[place.root].open(rank.below_target(place.root, place.path), place.source_id)
    return rank.sources[place.root].open(place.path, place.source_id)


def forget(rank: Rank, place: Place) -> None:
    """Close the cached descriptor of the directory."""
    if rank.options.delete:
        rank.targets[place.root].forget(rank.below_target(place.root, place.path))
    else:
        rank.sources[place.root].forget(place.path)


def is_within(rank: Rank, place: Place, directory: int) -> bool:
    """Return True if the open directory lies on the mount of its root; raise ``Problem``."""
    top = rank.descriptors[place.root]
    with failing("open"):
        return mount_number(directory) == mount_number(top.target if rank.options.delete else top.source)


def _enter(rank: Rank, place: Place) -> tuple[int, int]:
    """Open the directory and return its descriptor and device; raise ``Problem`` if another directory or mount is
    there.

    In a copy job that deletes, missing owner permissions are added first if this process owns the directory.
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
    """Remove the listed items that are no directories, and spawn tasks for the directories; return True if nothing
    remains or is pending.
    """
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
    """Return True if the backend may remove several directories in one call."""
    if len(visitor.below) < 2 or not are_entered_at_once(rank):
        return False
    return not (rank.options.delete or visitor.selected.anything)


def _spawn_dirs(rank: Rank, result: Result, visitor: RemoveVisitor, part: _Part) -> None:
    """Spawn ``RemoveDirs`` tasks for the directories that ``visitor`` has found."""
    parts = [visitor.below[share] for share in shares(rank, len(visitor.below))]
    awaited = rank.own(PartLedger).wait(part, len(parts), result, left=visitor.left)
    for directories in parts:
        inodes = pack_numbers([each.source_id.inode for each in directories])
        names = pack_names(os.path.basename(each.path) for each in directories)
        result.spawn(RemoveDirs(part.place, awaited, names, inodes), len(directories) * SCAN_COST, expands=True)


def _spread(rank: Rank, result: Result, listing: Listing, part: RemoveDir) -> Steps:
    """Spawn tasks for all names of a large directory; raise ``Problem`` if it cannot be read completely."""
    spool = NamesSpool(rank.open_spool)
    yield from spread(listing, spool)
    awaited = rank.own(PartLedger).wait(part, spool.number, result)
    tasks = (RemoveNames(part.place, awaited, *each) for each in map(unpack_listed, spool))
    result.spawn_each(tasks, NAMES_AT_ONCE * CALL_COST, expands=True)
