"""RemoveNamedItems, RemoveDir, RemoveDirs and RemovalEndedNote: remove names in batches, then the empty directory.

A part is the removal of one directory, or of some of its names. Any rank may run the task for a part. If a part
contains directories, the rank that has found them waits until each of them was removed: it gets a message
(``RemovalEndedNote``) about each. After the last message it removes the directory, which is empty now, and sends the
same message to the rank that waits for that directory.

Rules:

- A directory is entered from its parent, never through a symbolic link, and only if it is the one that was found (same
  inode), on the mount of its root. Any other directory is not removed and counts as failed.
- All names of a directory are listed before the first of them is removed, because readdir(3) may skip names while
  others are removed.
- An item is removed only if it is the one that was found. An item that vanished meanwhile does not count as found.
- A directory in which an item could not be removed stays. That is no failure of the directory: it counts as skipped.
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
from pcopy.fsio.backend.batches import ListNamesResult
from pcopy.fsio.backend.columns import (
    INODE_COLUMN,
    MODE_COLUMN,
    BatchOutcomeColumns,
    ItemStatusColumns,
    OutcomeCode,
    pack_names,
    unpack_names,
)
from pcopy.fsio.backend.directory_batches import DirectoryContentsResult, RemoveDirectoriesBatch
from pcopy.fsio.identity import ItemIdentity
from pcopy.fsio.mounted import mount_id_of
from pcopy.fsio.problem import Problem, errors_as_problem
from pcopy.fsio.source import status_of_open_item
from pcopy.signature.items import DIRECTORY
from pcopy.tasks.base import counts
from pcopy.tasks.base.kind import DirectoryTask, TaskSteps, TaskWithoutDirectory
from pcopy.tasks.base.ledger import CompletionLedger, ObjectAwaitingParts
from pcopy.tasks.base.rank import CALL_COST, SCAN_COST, Rank
from pcopy.tasks.base.result import TaskResult
from pcopy.tasks.base.sibling_directories import (
    MAX_TASK_SECONDS,
    DirectoriesPerCall,
    directory_slices_per_task,
    enters_several_per_call,
)
from pcopy.tasks.base.values import NO_DIRECTORY_IDENTITY, Place, pack_numbers, unpack_numbers
from pcopy.tasks.directories.access import regrant_owner_access
from pcopy.tasks.remove.protected import listing_without_protected_names
from pcopy.tasks.remove.removal_counts import RemovalCounts, is_only_counting
from pcopy.tasks.remove.stop_deletion import DeletionState
from pcopy.tasks.remove.visitor import RemoveVisitor, removal_problem, remove_items_in_batch
from pcopy.walk.listing import (
    NAMES_PER_BATCH,
    DirectoryListing,
    NameBatchQueue,
    list_directory,
    queue_names_of_directory,
    unpack_name_batch,
)
from pcopy.walk.visitor import stat_and_visit_names

NO_WAITER = (-1, -1, -1)
"""Value of ``waiter`` of a task for a PATH of the command line: no rank waits until the PATH has been removed."""

MOUNTED_HERE_TEXT = "a file system is mounted here: not removed"
"""Message for a directory on which another file system is mounted, or which is not on the mount on which its tree
begins.
"""


class _RemovalTask(DirectoryTask):
    """Base class of tasks that remove the directory ``place``, or some of its names. A rank may wait for the end of
    such a task, to remove the directory above it.

    ``waiter`` identifies that rank: its number, the number under which it waits (in its ``RemovalLedger``), and the run
    of the job (each resume is a new run). In a later run no rank waits, because the task that has spawned this one is
    run again there. ``NO_WAITER`` if no rank waits at all.
    """

    waiter: tuple[int, int, int]
    is_respawned_on_resume = True
    is_counted_if_unfinished = True

    def finish_after_contents(self, rank: Rank, result: TaskResult, *, has_remaining: bool) -> None:
        """Finish this task after all sub-directories that were found in its directory have been processed, on any
        ranks. ``has_remaining`` is True if any item was not removed.
        """
        self.notify_waiter(rank, result, has_remaining=has_remaining)

    def notify_waiter(self, rank: Rank, result: TaskResult, *, has_remaining: bool) -> None:
        """Tell the rank that waits for this task that it is complete; do nothing if no rank waits in this run.
        ``has_remaining`` is True if any item was not removed.
        """
        owner, number, run = self.waiter
        if run == rank.job.run:
            result.spawn_task(RemovalEndedNote(number, has_remaining, run), owner=owner)


class RemoveNamedItems(_RemovalTask, code=80, doing="removing files of", is_note=False):
    """Task that removes ``names`` (joined by slashes) of the directory ``place``, with everything below those that are
    directories.

    ``kinds`` (type letters) and ``inodes`` (8 bytes each) come from the listing of the directory; both are empty if
    they are unknown. ``waiter`` identifies the rank that is notified at the end.
    """

    names: bytes
    kinds: bytes = b""
    inodes: bytes = b""

    @property
    def estimated_operations(self) -> int:
        return self.operations_per_item * (self.names.count(b"/") + 1)

    def run(self, rank: Rank, result: TaskResult) -> TaskSteps:
        """Remove the names. Notify the waiting rank at the end, unless other tasks still remove directories among the
        names: then it is notified after these.
        """
        if rank.copy_options.delete and rank.shared_instance(DeletionState).is_stopped:
            self.notify_waiter(rank, result, has_remaining=True)
            return
        try:
            directory, device = _open_checked_directory(rank, self.place)
        except Problem as problem:
            is_missing = problem.errno == errno.ENOENT
            tally = RemovalCounts(rank, result)
            for name in () if is_missing else unpack_names(self.names):
                tally.count_found_items()
                tally.report_failed_removal(self.place, name, problem)
            self.notify_waiter(rank, result, has_remaining=not is_missing)
            return
        listed = ListNamesResult(BatchOutcomeColumns(1), self.names, 0, self.kinds, unpack_numbers(self.inodes))
        if (yield from _remove_listed_items(rank, result, directory, device, listed, self)):
            self.notify_waiter(rank, result, has_remaining=False)


class RemoveDir(_RemovalTask, code=81, doing="removing", is_note=False):
    """Task that removes the directory ``place``, which lies in the directory ``parent``, with its contents.

    Fields:

    - ``waiter``: identifies the rank that is notified at the end.
    - ``is_empty``: the contents have been removed already; only the directory itself remains.
    - ``keeps_directory``: only the contents are selected for removal, not the directory itself.
    """

    parent: Place
    is_empty: bool = False
    keeps_directory: bool = False

    def run(self, rank: Rank, result: TaskResult) -> TaskSteps:
        """Remove the contents, and then the directory itself unless other tasks still remove something in it. Notify
        the waiting rank.
        """
        unread = None
        if rank.copy_options.delete and not self.is_empty and rank.shared_instance(DeletionState).is_stopped:
            self.notify_waiter(rank, result, has_remaining=True)
            return
        if not self.is_empty:
            RemovalCounts(rank, result).count_unread_directories(-1)
            try:
                directory, device = _open_checked_directory(rank, self.place)
                listing = yield from list_directory(rank.backend, directory, detailed=True)
                if listing.may_have_more_batches:
                    yield from _spawn_tasks_for_names(rank, result, listing, self)
                    return
                yield from rank.throttle.charge_limits_and_wait(operations=2 * listing.name_count)
            except Problem as problem:
                if problem.errno != errno.EACCES:
                    self._finish_failed_directory(rank, result, problem)
                    return
                unread = problem  # a directory without read permission may be empty: try to remove it
            else:
                if not (yield from _remove_listed_items(rank, result, directory, device, listing.listed, self)):
                    return
        if self.keeps_directory and unread is None:
            self._finish_kept_directory(rank, result, has_remaining=False)
            return
        problem_met = unread if is_only_counting(rank) else (yield from self._remove_empty_directory(rank))
        if problem_met is None:
            removal = RemovalCounts(rank, result)
            removal.report_removed_items(self.place, [b""], [DIRECTORY], [0])
            removal.count_removed_items((counts.DIRECTORIES,))
            self.notify_waiter(rank, result, has_remaining=False)
        else:
            self._finish_failed_directory(
                rank, result, unread if unread and problem_met.errno == errno.ENOTEMPTY else problem_met
            )

    def _remove_empty_directory(self, rank: Rank) -> TicketGenerator[Problem | None]:
        """Remove the empty directory. Return the ``Problem`` if that failed, or None if it was removed."""
        place, parent = self.place, self.parent
        try:
            if rank.copy_options.backup:
                from pcopy.tasks.files.backup import BackupDirectory

                rank.shared_instance(BackupDirectory).set_directory_metadata(place, open_for_removal(rank, place))
            close_cached_directory(rank, place)
            parent_fd = open_for_removal(rank, parent)
        except Problem as problem:
            return problem
        rows = ItemStatusColumns(1, MODE_COLUMN | INODE_COLUMN)
        rows.mode[0], rows.inode[0] = stat.S_IFDIR, place.source_id.inode
        removed = yield from remove_items_in_batch(rank, parent_fd, os.path.basename(place.path), rows)
        return removal_problem(removed.verdicts, 0)

    def _finish_kept_directory(self, rank: Rank, result: TaskResult, *, has_remaining: bool) -> None:
        """Count the directory as not removed, which is no failure, and notify the waiting rank. The reason: an item in
        it remains (``has_remaining``), or filters do not select the directory itself.
        """
        removal = RemovalCounts(rank, result)
        if has_remaining:
            removal.count_kept_items()
        else:
            removal.count_excluded_items()
        removal.report_kept_item(self.place, b"", DIRECTORY)
        self.notify_waiter(rank, result, has_remaining=True)

    def _finish_failed_directory(self, rank: Rank, result: TaskResult, problem: Problem) -> None:
        """Count and report that the directory could not be removed, unless it vanished meanwhile; notify the waiting
        rank.
        """
        is_missing = problem.errno == errno.ENOENT
        if is_missing:
            RemovalCounts(rank, result).count_found_items(-1)
        elif rank.copy_options.delete and problem.strerror == MOUNTED_HERE_TEXT:
            result.warn_about_item(self.place, b"", MOUNTED_HERE_TEXT)
        else:
            RemovalCounts(rank, result).report_failed_removal(self.place, b"", problem)
        self.notify_waiter(rank, result, has_remaining=not is_missing)

    def finish_after_contents(self, rank: Rank, result: TaskResult, *, has_remaining: bool) -> None:
        """Called when everything in the directory has been processed. If it is empty, spawn a task that removes the
        directory itself. Otherwise (``has_remaining``), or if only its contents were selected, count it as not removed.
        """
        if has_remaining or self.keeps_directory:
            self._finish_kept_directory(rank, result, has_remaining=has_remaining)
        else:
            result.spawn_task(self._replace(is_empty=True))


class RemoveDirs(_RemovalTask, code=86, doing="removing directories of", is_note=False):
    """Task that removes the sub-directories ``names`` (joined by slashes) of ``place`` with their contents; ``inodes``
    are their inode numbers (8 bytes each).

    The backend removes directories that contain only files, several per call. Every other directory gets its own task
    (``RemoveDir``). ``waiter`` identifies the rank that is notified at the end.
    """

    names: bytes
    inodes: bytes

    @property
    def estimated_operations(self) -> int:
        return self.operations_per_item * (self.names.count(b"/") + 1)

    def run(self, rank: Rank, result: TaskResult) -> TaskSteps:
        """Let the backend remove directories, several per call and for at most ``MAX_TASK_SECONDS``. Spawn tasks for
        those that it cannot remove and for those that are left.
        """
        names, inodes = unpack_names(self.names), unpack_numbers(self.inodes)
        at, remaining = 0, list[int]()
        try:
            directory, device = _open_checked_directory(rank, self.place)
        except Problem:  # the task of each directory reports the error
            at, remaining = len(names), [*range(len(names))]
        end, at_once = time.monotonic() + MAX_TASK_SECONDS, rank.shared_instance(DirectoriesPerCall)
        while at < len(names) and (not at or (enters_several_per_call(rank) and time.monotonic() < end)):
            batch_rows, began = slice(at, at + at_once.number), time.monotonic()
            numbers = array("Q", inodes[batch_rows])
            batch = RemoveDirectoriesBatch(
                directory, pack_names(names[batch_rows]), numbers, device, NAMES_PER_BATCH - 1
            )
            done = yield from rank.execute_batch_counting_changes(
                batch, partial(_count_removed_contents, RemovalCounts(rank, result))
            )
            at_once.adapt_to_duration(time.monotonic() - began)
            remaining += [at + row for row, code in enumerate(done.verdicts.codes) if code != OutcomeCode.DONE]
            at = batch_rows.stop
        self._spawn_tasks_for_remaining(rank, result, names, inodes, remaining, at)

    def _spawn_tasks_for_remaining(
        self,
        rank: Rank,
        result: TaskResult,
        names: Sequence[bytes],
        inodes: Sequence[int],
        remaining: Sequence[int],
        at: int,
    ) -> None:
        """Spawn a task for each directory that the backend could not remove (in the rows ``remaining``), and tasks for
        the directories from row ``at`` on, which were not tried. If there are none, notify the waiting rank.
        """
        rest = [slice(at + rows.start, at + rows.stop) for rows in directory_slices_per_task(rank, len(names) - at)]
        if not (remaining or rest):
            self.notify_waiter(rank, result, has_remaining=False)
            return
        awaited, parent = (
            rank.shared_instance(RemovalLedger).await_tasks(self, len(remaining) + len(rest), result),
            self.place,
        )
        for row in remaining:
            identity = ItemIdentity(parent.source_id.mount_code, inodes[row])
            below = Place(
                parent.root, os.path.join(parent.path, names[row]), identity, NO_DIRECTORY_IDENTITY, False, False
            )
            result.spawn_task(RemoveDir(below, awaited, parent), SCAN_COST, expands=True)
        for rows in rest:
            task = RemoveDirs(parent, awaited, pack_names(names[rows]), pack_numbers([*inodes[rows]]))
            result.spawn_task(task, len(names[rows]) * SCAN_COST, expands=True)


def _count_removed_contents(removal: RemovalCounts, done: DirectoryContentsResult) -> None:
    """Count the items that the backend has removed inside directories, which the result ``done`` states. The
    directories themselves were counted as found before. ``removal`` is the object that counts.
    """
    sums = done.counts
    removal.count_found_items(sums.files + sums.links + sums.other_items, sums.bytes)
    removal.count_unread_directories(-sums.directories)
    numbers = {
        counts.FILES: sums.files,
        counts.SYMLINKS: sums.links,
        counts.SPECIAL: sums.other_items,
        counts.DIRECTORIES: sums.directories,
    }
    removal.count_removed_items(numbers, sums.bytes)


class RemovalEndedNote(TaskWithoutDirectory, code=83, doing="recording removals in"):
    """Message to a rank that waits until sub-directories have been removed: the task for one of them, or for some, is
    complete. ``has_remaining`` is True if that task has left an item.

    ``number`` is the number under which the rank waits. The rank ignores the message in any other run of the job than
    ``of_run``, since it does not wait there.
    """

    number: int
    has_remaining: bool
    of_run: int
    is_respawned_on_resume = True

    def run(self, rank: Rank, result: TaskResult) -> None:
        if self.of_run == rank.job.run:
            rank.shared_instance(RemovalLedger).count_part(self.number, self, result)


class _WaitingRemoval(NamedTuple):
    """A task (``part``) that is finished when all directories that it has found were removed or have failed.
    ``has_remaining`` is True if an item of the task was not removed.
    """

    part: _RemovalTask
    has_remaining: bool


class RemovalLedger(CompletionLedger[int, _WaitingRemoval, RemovalEndedNote]):
    """The removal tasks that are not finished because other ranks still remove directories that they have found. The
    keys are numbers that this rank assigns.
    """

    def __init__(self, rank: Rank) -> None:
        super().__init__(rank)
        self._numbers = count()

    def await_tasks(
        self, part: _RemovalTask, parts: int, result: TaskResult, *, has_remaining: bool = False
    ) -> tuple[int, int, int]:
        """Finish the task ``part`` only when ``parts`` other tasks, which remove what it has found, have ended. Return
        the value that the field ``waiter`` of these tasks must have. ``has_remaining`` is True if ``part`` itself has
        left an item.
        """
        number = next(self._numbers)
        self.open(number, _WaitingRemoval(part, has_remaining), parts, result)
        return self._rank.number, number, self._rank.job.run

    def record_part_result(self, awaited: ObjectAwaitingParts[_WaitingRemoval], note: RemovalEndedNote) -> None:
        """Record in ``awaited`` that one of the tasks that it waits for has ended, and whether that one has left an
        item (``note.has_remaining``).
        """
        if note.has_remaining:
            awaited.opened = awaited.opened._replace(has_remaining=True)

    def complete_awaited_object(self, awaited: ObjectAwaitingParts[_WaitingRemoval], result: TaskResult) -> None:
        """Finish the waiting task (``awaited``): all tasks that it waited for have ended."""
        awaited.opened.part.finish_after_contents(self._rank, result, has_remaining=awaited.opened.has_remaining)


def open_for_removal(rank: Rank, place: Place) -> int:
    """Return a descriptor of the directory ``place`` whose contents are to be removed. Raise ``Problem`` if it cannot
    be opened.

    In a copy job that deletes, this is a directory of the target. Its inode number is in ``place.source_id``, as that
    of a source directory is in other jobs.
    """
    if rank.copy_options.delete:
        return rank.targets[place.root].open(rank.path_below_target(place.root, place.path), place.source_id)
    return rank.sources[place.root].open(place.path, place.source_id)


def close_cached_directory(rank: Rank, place: Place) -> None:
    """Close the descriptor of the directory ``place`` if the cache of open directories has one."""
    if rank.copy_options.delete:
        rank.targets[place.root].discard_directory(rank.path_below_target(place.root, place.path))
    else:
        rank.sources[place.root].discard_directory(place.path)


def is_on_root_mount(rank: Rank, place: Place, directory: int) -> bool:
    """Return True if the open ``directory`` lies on the same mount as the top directory of its tree. Raise ``Problem``
    if that cannot be determined.
    """
    top = rank.descriptors[place.root]
    with errors_as_problem("open"):
        return mount_id_of(directory) == mount_id_of(top.target if rank.copy_options.delete else top.source)


def _open_checked_directory(rank: Rank, place: Place) -> tuple[int, int]:
    """Open the directory ``place``; return its descriptor and its device number. Raise ``Problem`` if another directory
    or mount is there.

    In a copy job that deletes, the owner's missing permissions are added to the directory first, if this process owns
    it.
    """
    if rank.copy_options.delete and not is_only_counting(rank):
        regrant_owner_access(rank, place)
    directory = open_for_removal(rank, place)
    if not is_on_root_mount(rank, place, directory):
        close_cached_directory(rank, place)
        raise Problem("open", 0, text=MOUNTED_HERE_TEXT)
    return directory, status_of_open_item(directory).st_dev


def _remove_listed_items(
    rank: Rank, result: TaskResult, directory: int, device: int, listed: ListNamesResult, part: _RemovalTask
) -> TicketGenerator[bool]:
    """Remove the listed items that are not directories, and spawn tasks for the directories. Return True if everything
    was removed, so that neither an item nor a task is left.

    Args:
        directory: descriptor of the directory.
        device: device number of the directory. Sub-directories on other devices are not removed.
        listed: the names to remove.
        part: the task to which the names belong; it is finished after the tasks that are spawned here.
    """
    visitor = RemoveVisitor(rank, result, part.place, directory, device)
    if rank.copy_options.delete:
        deletable = listing_without_protected_names(rank, result, part.place, listed)
        visitor.has_remaining, listed = deletable is not listed, deletable
    packed = listed.names
    each_alone = is_only_counting(rank) or result.item_recorder.is_recording or rank.copy_options.backup
    if listed.kinds and not each_alone and not visitor.selected.has_filters:
        packed = yield from visitor.remove_listed_files(listed)
    yield from stat_and_visit_names(rank.backend, directory, packed, visitor, follow=False)
    if visitor.subdirectories:
        RemovalCounts(rank, result).count_unread_directories(len(visitor.subdirectories))
        if not each_alone and _may_batch_directories(rank, visitor):
            _spawn_directory_tasks(rank, result, visitor, part)
        else:
            awaited = rank.shared_instance(RemovalLedger).await_tasks(
                part, len(visitor.subdirectories), result, has_remaining=visitor.has_remaining
            )
            for place in visitor.subdirectories:
                below = RemoveDir(place, awaited, part.place, keeps_directory=place in visitor.kept_directories)
                result.spawn_task(below, SCAN_COST, expands=True)
    elif visitor.has_remaining:
        part.finish_after_contents(rank, result, has_remaining=True)
    return not (visitor.subdirectories or visitor.has_remaining)


def _may_batch_directories(rank: Rank, visitor: RemoveVisitor) -> bool:
    """Return True if the backend may remove the sub-directories that ``visitor`` has found, several in one call: there
    are at least 2, no filter applies, and the job is no copy.
    """
    if len(visitor.subdirectories) < 2 or not enters_several_per_call(rank):
        return False
    return not (rank.copy_options.delete or visitor.selected.has_filters)


def _spawn_directory_tasks(rank: Rank, result: TaskResult, visitor: RemoveVisitor, part: _RemovalTask) -> None:
    """Spawn ``RemoveDirs`` tasks for the directories that ``visitor`` has found; the task ``part`` is finished after
    these tasks.
    """
    parts = [visitor.subdirectories[share] for share in directory_slices_per_task(rank, len(visitor.subdirectories))]
    awaited = rank.shared_instance(RemovalLedger).await_tasks(
        part, len(parts), result, has_remaining=visitor.has_remaining
    )
    for directories in parts:
        inodes = pack_numbers([each.source_id.inode for each in directories])
        names = pack_names(os.path.basename(each.path) for each in directories)
        result.spawn_task(RemoveDirs(part.place, awaited, names, inodes), len(directories) * SCAN_COST, expands=True)


def _spawn_tasks_for_names(rank: Rank, result: TaskResult, listing: DirectoryListing, part: RemoveDir) -> TaskSteps:
    """Spawn tasks for all names of a large directory; the task ``part`` is finished after these tasks. Raise
    ``Problem`` if the directory cannot be read to its end.
    """
    spool = NameBatchQueue(rank.open_spool)
    yield from queue_names_of_directory(listing, spool)
    awaited = rank.shared_instance(RemovalLedger).await_tasks(part, spool.batches_added, result)
    tasks = (RemoveNamedItems(part.place, awaited, *each) for each in map(unpack_name_batch, spool))
    result.spawn_tasks_lazily(tasks, NAMES_PER_BATCH * CALL_COST, expands=True)
