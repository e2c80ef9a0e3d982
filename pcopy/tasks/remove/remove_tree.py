"""RemoveNames, RemoveDir and PartRemoved: remove names in batches, and a directory once it is empty.

Any rank may run the task for a batch or a directory. The rank that has found directories inside a part waits for a note
(``PartRemovedNote``) about each of them. After the last note it removes the empty directory, and notifies the rank that
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

from pcopy.engine.ticket import TicketGenerator
from pcopy.fast_named_tuple import NamedTuple
from pcopy.fsio.backend.batches import ListResult
from pcopy.fsio.backend.columns import INODE, MODE, RowCode, Rows, Verdicts, pack_names, unpack_names
from pcopy.fsio.backend.directory_batches import ContentsResult, RemoveDirectories
from pcopy.fsio.identity import Identity
from pcopy.fsio.mounted import mount_id_of
from pcopy.fsio.problem import Problem, as_problem
from pcopy.fsio.source import status_of
from pcopy.signature.items import DIRECTORY
from pcopy.tasks.base import counts
from pcopy.tasks.base.kind import DirectoryTask, Note, Steps
from pcopy.tasks.base.ledger import AwaitedParts, CompletionLedger
from pcopy.tasks.base.rank import CALL_COST, SCAN_COST, Rank
from pcopy.tasks.base.result import TaskResult
from pcopy.tasks.base.sibling_directories import (
    MAX_TASK_SECONDS,
    DirectoriesPerCall,
    enters_several_per_call,
    task_slices,
)
from pcopy.tasks.base.values import NO_DIRECTORY, Place, pack_numbers, unpack_numbers
from pcopy.tasks.directories.access import regrant_owner_access
from pcopy.tasks.remove.protected import without_protected
from pcopy.tasks.remove.removal_counts import RemovalCounts, is_only_counting
from pcopy.tasks.remove.stop_deletion import DeletionState
from pcopy.tasks.remove.visitor import RemoveVisitor, removal_problem, remove_batch
from pcopy.walk.listing import NAMES_PER_BATCH, DirectoryListing, NameQueue, list_directory, spool_names, unpack_listed
from pcopy.walk.visitor import stat_and_visit

NO_WAITER = (-1, -1, -1)
"""Value of ``awaited`` for a PATH of the command line, for which no rank waits."""

MOUNTED_HERE_TEXT = "a file system is mounted here: not removed"
"""The message for a directory on which another file system is mounted."""


class _RemovalPart(DirectoryTask):
    """A task that removes the directory ``place``, or a part of it, and for whose end a rank may wait.

    ``waiter`` names that rank, the number under which it waits, and the run. In a later run no rank waits any more,
    since the waiting task is started again there.
    """

    waiter: tuple[int, int, int]
    is_respawned_on_resume = True
    is_counted_if_unfinished = True

    def finish_contents(self, rank: Rank, result: TaskResult, *, has_remaining: bool) -> None:
        """Complete this part after all directories found in it were processed, on whatever rank. ``has_remaining`` is
        True if any item was not removed.
        """
        self.notify_waiter(rank, result, has_remaining=has_remaining)

    def notify_waiter(self, rank: Rank, result: TaskResult, *, has_remaining: bool) -> None:
        """Notify the waiting rank that this part is complete."""
        owner, number, run = self.waiter
        if run == rank.job.run:
            result.spawn(PartRemovedNote(number, has_remaining, run), owner=owner)


class RemoveNames(_RemovalPart, code=80, doing="removing files of", is_note=False):
    """Removes ``names`` (joined by slashes) of a directory, with all that is below them.

    ``waiter`` as in ``_RemovalPart``. ``kinds`` and ``inodes`` are as in ``Listed``, or empty.
    """

    names: bytes
    kinds: bytes = b""
    inodes: bytes = b""

    @property
    def estimated_operations(self) -> int:
        return self.operations_per_item * (self.names.count(b"/") + 1)

    def run(self, rank: Rank, result: TaskResult) -> Steps:
        """Remove the names, and notify the waiting rank if nothing is pending then."""
        if rank.options.delete and rank.instance(DeletionState).is_stopped:
            self.notify_waiter(rank, result, has_remaining=True)
            return
        try:
            directory, device = _open_checked(rank, self.place)
        except Problem as problem:
            is_missing = problem.errno == errno.ENOENT
            tally = RemovalCounts(rank, result)
            for name in () if is_missing else unpack_names(self.names):
                tally.count_found()
                tally.report_failed(self.place, name, problem)
            self.notify_waiter(rank, result, has_remaining=not is_missing)
            return
        listed = ListResult(Verdicts(1), self.names, 0, self.kinds, unpack_numbers(self.inodes))
        if (yield from _remove_names(rank, result, directory, device, listed, self)):
            self.notify_waiter(rank, result, has_remaining=False)


class RemoveDir(_RemovalPart, code=81, doing="removing", is_note=False):
    """Removes the directory ``place``, which lies in ``parent``, with its contents.

    Fields:

    - ``waiter``: as in ``_RemovalPart``.
    - ``is_empty``: the contents have been removed already.
    - ``keeps_directory``: only the contents are selected for removal, not the directory itself.
    """

    parent: Place
    is_empty: bool = False
    keeps_directory: bool = False

    def run(self, rank: Rank, result: TaskResult) -> Steps:
        """Remove the contents, and the directory itself if nothing is pending then; notify the waiting rank."""
        unread = None
        if rank.options.delete and not self.is_empty and rank.instance(DeletionState).is_stopped:
            self.notify_waiter(rank, result, has_remaining=True)
            return
        if not self.is_empty:
            RemovalCounts(rank, result).count_unread(-1)
            try:
                directory, device = _open_checked(rank, self.place)
                listing = yield from list_directory(rank.backend, directory, detailed=True)
                if listing.may_have_more:
                    yield from _spawn_names(rank, result, listing, self)
                    return
                yield from rank.throttle.charge_and_wait(operations=2 * listing.number)
            except Problem as problem:
                if problem.errno != errno.EACCES:
                    self._finish_failed(rank, result, problem)
                    return
                unread = problem  # a directory without read permission may be empty: try to remove it
            else:
                if not (yield from _remove_names(rank, result, directory, device, listing.listed, self)):
                    return
        if self.keeps_directory and unread is None:
            self._finish_kept(rank, result, has_remaining=False)
            return
        problem_met = unread if is_only_counting(rank) else (yield from self._remove_empty(rank))
        if problem_met is None:
            removal = RemovalCounts(rank, result)
            removal.report(self.place, [b""], [DIRECTORY], [0])
            removal.count_removed((counts.DIRECTORIES,))
            self.notify_waiter(rank, result, has_remaining=False)
        else:
            self._finish_failed(
                rank, result, unread if unread and problem_met.errno == errno.ENOTEMPTY else problem_met
            )

    def _remove_empty(self, rank: Rank) -> TicketGenerator[Problem | None]:
        """Remove the empty directory; return a ``Problem`` if that failed, else None."""
        place, parent = self.place, self.parent
        try:
            if rank.options.backup:
                from pcopy.tasks.files.backup import BackupDirectory

                rank.instance(BackupDirectory).set_directory_metadata(place, open_for_removal(rank, place))
            close_cached(rank, place)
            parent_fd = open_for_removal(rank, parent)
        except Problem as problem:
            return problem
        rows = Rows(1, MODE | INODE)
        rows.mode[0], rows.inode[0] = stat.S_IFDIR, place.source_id.inode
        removed = yield from remove_batch(rank, parent_fd, os.path.basename(place.path), rows)
        return removal_problem(removed.verdicts, 0)

    def _finish_kept(self, rank: Rank, result: TaskResult, *, has_remaining: bool) -> None:
        """Count the directory as not removed, because an item in it remains (``has_remaining``) or it is not selected
        itself. This is no failure.
        """
        removal = RemovalCounts(rank, result)
        if has_remaining:
            removal.count_kept()
        else:
            removal.count_excluded()
        self.notify_waiter(rank, result, has_remaining=True)

    def _finish_failed(self, rank: Rank, result: TaskResult, problem: Problem) -> None:
        """Count and report that the directory could not be removed, unless it vanished meanwhile."""
        is_missing = problem.errno == errno.ENOENT
        if is_missing:
            RemovalCounts(rank, result).count_found(-1)
        elif rank.options.delete and problem.strerror == MOUNTED_HERE_TEXT:
            result.warn(self.place, b"", MOUNTED_HERE_TEXT)
        else:
            RemovalCounts(rank, result).report_failed(self.place, b"", problem)
        self.notify_waiter(rank, result, has_remaining=not is_missing)

    def finish_contents(self, rank: Rank, result: TaskResult, *, has_remaining: bool) -> None:
        if has_remaining or self.keeps_directory:
            self._finish_kept(rank, result, has_remaining=has_remaining)
        else:
            result.spawn(self._replace(is_empty=True))


class RemoveDirs(_RemovalPart, code=86, doing="removing directories of", is_note=False):
    """Removes the sub-directories ``names`` of ``place`` with their contents; ``inodes`` are their inode numbers (8
    bytes each).

    Directories that contain only files are removed by a batch of the backend, the others one by one. ``waiter`` as in
    ``_RemovalPart``.
    """

    names: bytes
    inodes: bytes

    @property
    def estimated_operations(self) -> int:
        return self.operations_per_item * (self.names.count(b"/") + 1)

    def run(self, rank: Rank, result: TaskResult) -> Steps:
        """Remove directories in batches of the backend; those that it cannot remove become tasks of their own."""
        names, inodes = unpack_names(self.names), unpack_numbers(self.inodes)
        at, remaining = 0, list[int]()
        try:
            directory, device = _open_checked(rank, self.place)
        except Problem:  # the task of each directory reports it
            at, remaining = len(names), [*range(len(names))]
        end, at_once = time.monotonic() + MAX_TASK_SECONDS, rank.instance(DirectoriesPerCall)
        while at < len(names) and (not at or (enters_several_per_call(rank) and time.monotonic() < end)):
            batch_rows, began = slice(at, at + at_once.number), time.monotonic()
            numbers = array("Q", inodes[batch_rows])
            batch = RemoveDirectories(directory, pack_names(names[batch_rows]), numbers, device, NAMES_PER_BATCH - 1)
            done = yield from rank.execute_counting(batch, partial(_count_within, RemovalCounts(rank, result)))
            at_once.adapt(time.monotonic() - began)
            remaining += [at + row for row, code in enumerate(done.verdicts.codes) if code != RowCode.DONE]
            at = batch_rows.stop
        self._spawn_remaining(rank, result, names, inodes, remaining, at)

    def _spawn_remaining(
        self,
        rank: Rank,
        result: TaskResult,
        names: Sequence[bytes],
        inodes: Sequence[int],
        remaining: Sequence[int],
        at: int,
    ) -> None:
        """Spawn tasks for the directories in the rows ``remaining``, and for all from the row ``at`` on. If there are
        none, notify the waiting rank.
        """
        rest = [slice(at + rows.start, at + rows.stop) for rows in task_slices(rank, len(names) - at)]
        if not (remaining or rest):
            self.notify_waiter(rank, result, has_remaining=False)
            return
        awaited, parent = rank.instance(PartLedger).expect(self, len(remaining) + len(rest), result), self.place
        for row in remaining:
            identity = Identity(parent.source_id.mount_code, inodes[row])
            below = Place(parent.root, os.path.join(parent.path, names[row]), identity, NO_DIRECTORY, False, False)
            result.spawn(RemoveDir(below, awaited, parent), SCAN_COST, expands=True)
        for rows in rest:
            task = RemoveDirs(parent, awaited, pack_names(names[rows]), pack_numbers([*inodes[rows]]))
            result.spawn(task, len(names[rows]) * SCAN_COST, expands=True)


def _count_within(removal: RemovalCounts, done: ContentsResult) -> None:
    """Count the removed contents of directories; the directories themselves were counted as found before."""
    sums = done.counts
    removal.count_found(sums.files + sums.links + sums.other_items, sums.bytes)
    removal.count_unread(-sums.directories)
    numbers = {
        counts.FILES: sums.files,
        counts.SYMLINKS: sums.links,
        counts.SPECIAL: sums.other_items,
        counts.DIRECTORIES: sums.directories,
    }
    removal.count_removed(numbers, sums.bytes)


class PartRemovedNote(Note, code=83, doing="recording removals in"):
    """A note for the rank that waits under ``number``: a part is complete; ``has_remaining`` is True if an item of it
    was not removed.

    It is ignored in any other run than ``of_run``, since no rank waits there.
    """

    number: int
    has_remaining: bool
    of_run: int
    is_respawned_on_resume = True

    def run(self, rank: Rank, result: TaskResult) -> None:
        if self.of_run == rank.job.run:
            rank.instance(PartLedger).count_part(self.number, self, result)


class _WaitingPart(NamedTuple):
    """A ``part`` with incomplete directories. ``has_remaining`` is True if an item of them was not removed."""

    part: _RemovalPart
    has_remaining: bool


class PartLedger(CompletionLedger[int, _WaitingPart, PartRemovedNote]):
    """The parts for which a rank waits, by numbers that it assigns."""

    def __init__(self, rank: Rank) -> None:
        super().__init__(rank)
        self._numbers = count()

    def expect(
        self, part: _RemovalPart, parts: int, result: TaskResult, *, has_remaining: bool = False
    ) -> tuple[int, int, int]:
        """Wait for this many ``parts`` of ``part``; return the value of ``awaited`` for their tasks."""
        number = next(self._numbers)
        self.open(number, _WaitingPart(part, has_remaining), parts, result)
        return self._rank.number, number, self._rank.job.run

    def record_part(self, awaited: AwaitedParts[_WaitingPart], note: PartRemovedNote) -> None:
        if note.has_remaining:
            awaited.opened = awaited.opened._replace(has_remaining=True)

    def act_when_complete(self, awaited: AwaitedParts[_WaitingPart], result: TaskResult) -> None:
        awaited.opened.part.finish_contents(self._rank, result, has_remaining=awaited.opened.has_remaining)


def open_for_removal(rank: Rank, place: Place) -> int:
    """Return the descriptor of the directory whose contents are removed; raise ``Problem``.

    In a copy job this is a directory of the target, whose identity stands in ``place.source_id``.
    """
    if rank.options.delete:
        return rank.targets[place.root].open(rank.path_below_target(place.root, place.path), place.source_id)
    return rank.sources[place.root].open(place.path, place.source_id)


def close_cached(rank: Rank, place: Place) -> None:
    """Close the cached descriptor of the directory."""
    if rank.options.delete:
        rank.targets[place.root].discard(rank.path_below_target(place.root, place.path))
    else:
        rank.sources[place.root].discard(place.path)


def is_on_root_mount(rank: Rank, place: Place, directory: int) -> bool:
    """Return True if the open directory lies on the mount of its root; raise ``Problem``."""
    top = rank.descriptors[place.root]
    with as_problem("open"):
        return mount_id_of(directory) == mount_id_of(top.target if rank.options.delete else top.source)


def _open_checked(rank: Rank, place: Place) -> tuple[int, int]:
    """Open the directory and return its descriptor and device; raise ``Problem`` if another directory or mount is
    there.

    In a copy job that deletes, missing owner permissions are added first if this process owns the directory.
    """
    if rank.options.delete and not is_only_counting(rank):
        regrant_owner_access(rank, place)
    directory = open_for_removal(rank, place)
    if not is_on_root_mount(rank, place, directory):
        close_cached(rank, place)
        raise Problem("open", 0, text=MOUNTED_HERE_TEXT)
    return directory, status_of(directory).st_dev


def _remove_names(
    rank: Rank, result: TaskResult, directory: int, device: int, listed: ListResult, part: _RemovalPart
) -> TicketGenerator[bool]:
    """Remove the listed items that are no directories, and spawn tasks for the directories; return True if nothing
    remains or is pending.
    """
    visitor = RemoveVisitor(rank, result, part.place, directory, device)
    if rank.options.delete:
        deletable = without_protected(rank, result, part.place, listed)
        visitor.has_remaining, listed = deletable is not listed, deletable
    packed = listed.names
    each_alone = is_only_counting(rank) or result.item_recorder.is_recording or rank.options.backup
    if listed.kinds and not each_alone and not visitor.selected.has_filters:
        packed = yield from visitor.remove_listed_files(listed)
    yield from stat_and_visit(rank.backend, directory, packed, visitor, follow=False)
    if visitor.subdirectories:
        RemovalCounts(rank, result).count_unread(len(visitor.subdirectories))
        if not each_alone and _may_batch_directories(rank, visitor):
            _spawn_dirs(rank, result, visitor, part)
        else:
            awaited = rank.instance(PartLedger).expect(
                part, len(visitor.subdirectories), result, has_remaining=visitor.has_remaining
            )
            for place in visitor.subdirectories:
                below = RemoveDir(place, awaited, part.place, keeps_directory=place in visitor.kept_directories)
                result.spawn(below, SCAN_COST, expands=True)
    elif visitor.has_remaining:
        part.finish_contents(rank, result, has_remaining=True)
    return not (visitor.subdirectories or visitor.has_remaining)


def _may_batch_directories(rank: Rank, visitor: RemoveVisitor) -> bool:
    """Return True if the backend may remove several directories in one call."""
    if len(visitor.subdirectories) < 2 or not enters_several_per_call(rank):
        return False
    return not (rank.options.delete or visitor.selected.has_filters)


def _spawn_dirs(rank: Rank, result: TaskResult, visitor: RemoveVisitor, part: _RemovalPart) -> None:
    """Spawn ``RemoveDirs`` tasks for the directories that ``visitor`` has found."""
    parts = [visitor.subdirectories[share] for share in task_slices(rank, len(visitor.subdirectories))]
    awaited = rank.instance(PartLedger).expect(part, len(parts), result, has_remaining=visitor.has_remaining)
    for directories in parts:
        inodes = pack_numbers([each.source_id.inode for each in directories])
        names = pack_names(os.path.basename(each.path) for each in directories)
        result.spawn(RemoveDirs(part.place, awaited, names, inodes), len(directories) * SCAN_COST, expands=True)


def _spawn_names(rank: Rank, result: TaskResult, listing: DirectoryListing, part: RemoveDir) -> Steps:
    """Spawn tasks for all names of a large directory; raise ``Problem`` if it cannot be read completely."""
    spool = NameQueue(rank.open_spool)
    yield from spool_names(listing, spool)
    awaited = rank.instance(PartLedger).expect(part, spool.batches_added, result)
    tasks = (RemoveNames(part.place, awaited, *each) for each in map(unpack_listed, spool))
    result.spawn_each(tasks, NAMES_PER_BATCH * CALL_COST, expands=True)
