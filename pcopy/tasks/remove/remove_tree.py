"""RemoveNamedItems, RemoveDir and RemoveDirs: remove names in batches, then the empty directory.

A part is the removal of one directory, or of some of its names. Any rank may run the task for a part. If a part
contains directories that other tasks remove, or that remain empty, the rank that has found them waits for the end of
these tasks (``RemovalLedger``). After the last one it removes the directory, which is empty now.

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
from collections import Counter
from collections.abc import Sequence
from functools import partial

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
from pcopy.fsio.backend.walk_batches import RemainingItems, RemoveTreesBatch, SubtreeFrontier, WalkResult
from pcopy.fsio.identity import FUSE_TYPE, OVERLAY_TYPE, may_be_on_file_system_type
from pcopy.fsio.mounted import mount_id_of
from pcopy.fsio.problem import Problem, errors_as_problem
from pcopy.fsio.source import status_of_open_item
from pcopy.signature.items import DIRECTORY
from pcopy.tasks.base import counts
from pcopy.tasks.base.job import RemoveOptions
from pcopy.tasks.base.job_filters import JobFilter
from pcopy.tasks.base.kind import DirectoryTask, TaskSteps
from pcopy.tasks.base.rank import CALL_COST, SCAN_COST, Rank
from pcopy.tasks.base.result import TaskResult
from pcopy.tasks.base.sibling_directories import Siblings, shares_per_task, spawn_tasks_for_siblings
from pcopy.tasks.base.tree_walk import (
    directory_below,
    may_enter_subtrees,
    remaining_rows,
    spawn_tasks_for_names,
    walk_rows,
)
from pcopy.tasks.base.values import Place, unpack_numbers
from pcopy.tasks.directories.access import regrant_owner_access
from pcopy.tasks.remove.ledger import AwaitingRemoval, RelativePath, RemovalLedger, Waiter
from pcopy.tasks.remove.protected import listing_without_protected_names
from pcopy.tasks.remove.removal_counts import RemovalCounts, is_only_counting
from pcopy.tasks.remove.stop_deletion import DeletionState
from pcopy.tasks.remove.visitor import RemoveVisitor, removal_problem, remove_items_in_batch
from pcopy.walk.listing import NAMES_PER_BATCH, list_directory
from pcopy.walk.visitor import stat_and_visit_names

MOUNTED_HERE_TEXT = "a file system is mounted here: not removed"
"""Message for a directory on which another file system is mounted, or which is not on the mount on which its tree
begins.
"""


class DirectoryToEmpty(NamedTuple):
    """An open directory whose items are removed: its descriptor, device number, and mount id (``mount_id_of``)."""

    descriptor: int
    device: int
    mount: int


class _RemovalTask(DirectoryTask):
    """Base class of tasks that remove the directory ``place``, or some of its names. A rank may wait for the end of
    such a task, to remove the directory above it; ``waiter`` identifies that rank, or is ``NO_WAITER``.

    In a later run of the job no rank waits, because the task that has spawned this one is run again there.
    """

    waiter: tuple[int, int, int]
    is_respawned_on_resume = True
    is_counted_if_unfinished = True

    def run(self, rank: Rank, result: TaskResult) -> TaskSteps:
        """Do the work of this task, then remove the directories that have become empty by that."""
        yield from self.remove(rank, result)
        yield from rank.shared_instance(RemovalLedger).remove_emptied_directories(result)

    def remove(self, rank: Rank, result: TaskResult) -> TaskSteps:
        """Remove what this task is about. Notify the waiting rank at the end, unless other tasks still remove
        directories that were found: then it is notified after these.
        """
        raise NotImplementedError

    def finish_after_contents(self, rank: Rank, result: TaskResult, *, has_remaining: bool) -> None:
        """Finish this task after all sub-directories that were found in its directory have been processed, on any
        ranks. ``has_remaining`` is True if any item was not removed.
        """
        self.notify_waiter(rank, result, has_remaining=has_remaining)

    def part_to_await(self, ledger: RemovalLedger) -> AwaitingRemoval:
        """Return what the ledger contains while this task waits for others. (It finishes this task.)"""
        return self

    def notify_waiter(self, rank: Rank, result: TaskResult, *, has_remaining: bool) -> None:
        """Notify the rank that waits for this task that it is complete; do nothing if no rank waits in this run.
        ``has_remaining`` is True if any item was not removed.
        """
        rank.shared_instance(RemovalLedger).notify(self.waiter, result, has_remaining=has_remaining)


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

    def remove(self, rank: Rank, result: TaskResult) -> TaskSteps:
        if rank.copy_options.delete and rank.shared_instance(DeletionState).is_stopped:
            self.notify_waiter(rank, result, has_remaining=True)
            return
        try:
            directory = _open_checked_directory(rank, self.place)
        except Problem as problem:
            is_missing = problem.errno == errno.ENOENT
            tally = RemovalCounts(rank, result)
            for name in () if is_missing else unpack_names(self.names):
                tally.count_found_items()
                tally.report_failed_removal(self.place, name, problem)
            self.notify_waiter(rank, result, has_remaining=not is_missing)
            return
        inodes = unpack_numbers(self.inodes)
        listed = ListNamesResult(BatchOutcomeColumns(1), self.names, 0, self.kinds, inodes)
        if (yield from _remove_listed_items(rank, result, directory, listed, self)):
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

    def part_to_await(self, ledger: RemovalLedger) -> AwaitingRemoval:
        return _DirectoryAwaitingRemoval(self, ledger.awaiting_part(self.waiter))

    def remove(self, rank: Rank, result: TaskResult) -> TaskSteps:
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
                directory = _open_checked_directory(rank, self.place)
                listing = yield from list_directory(rank.backend, directory.descriptor, detailed=True)
                if listing.may_have_more_batches:
                    ledger = rank.shared_instance(RemovalLedger)
                    (waiter,) = ledger.new_waiters(1)
                    make_task = partial(RemoveNamedItems, self.place, waiter)
                    _, parts = yield from spawn_tasks_for_names(rank, result, listing, make_task, needs_all=True)
                    ledger.open_entry(waiter, self.part_to_await(ledger), parts, result)
                    return
                yield from rank.throttle.charge_limits_and_wait(operations=2 * listing.name_count)
            except Problem as problem:
                if problem.errno != errno.EACCES:
                    self._finish_failed_directory(rank, result, problem)
                    return
                unread = problem  # a directory without read permission may be empty: try to remove it
            else:
                if not (yield from _remove_listed_items(rank, result, directory, listing.listed, self)):
                    return
        if self.keeps_directory and unread is None:
            self._finish_kept_directory(rank, result, has_remaining=False)
            return
        yield from self.remove_empty_directory(rank, result, unread)

    def remove_empty_directory(self, rank: Rank, result: TaskResult, unread: Problem | None = None) -> TaskSteps:
        """Remove the directory, in which nothing remains, and notify the waiting rank. ``unread`` is the reason why the
        directory could not be read, if that is so.
        """
        problem = unread if is_only_counting(rank) else (yield from self._try_to_remove_directory(rank))
        if problem is None:
            removal = RemovalCounts(rank, result)
            removal.report_removed_items(self.place, [b""], [DIRECTORY], [0])
            removal.count_removed_items((counts.DIRECTORIES,))
            self.notify_waiter(rank, result, has_remaining=False)
        else:
            is_not_empty = problem.errno == errno.ENOTEMPTY
            self._finish_failed_directory(rank, result, unread if unread and is_not_empty else problem)

    def _try_to_remove_directory(self, rank: Rank) -> TicketGenerator[Problem | None]:
        """Remove the empty directory. Return the ``Problem`` if that failed, or None if it was removed."""
        place, parent = self.place, self.parent
        try:
            if rank.copy_options.backup:
                from pcopy.tasks.files.backup import BackupDirectory

                rank.shared_instance(BackupDirectory).set_directory_metadata(place, open_for_removal(rank, place))
            parent_fd = _open_parent_for_removal(rank, parent, place)
            close_cached_directory(rank, place)
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
        """Called when everything in the directory has been processed. If it is empty, have the directory itself
        removed. Otherwise (``has_remaining``), or if only its contents were selected, count it as not removed.
        """
        if has_remaining or self.keeps_directory:
            self._finish_kept_directory(rank, result, has_remaining=has_remaining)
        else:
            rank.shared_instance(RemovalLedger).add_emptied_directory(self._replace(is_empty=True), result)


class _DirectoryAwaitingRemoval:
    """A directory (``task``) in the ledger that is removed when everything in it was removed. Its path is stored
    relative to that of the directory above it, if that waits on this rank, too (``above``).
    """

    __slots__ = ("_task", "path")

    def __init__(self, task: RemoveDir, above: AwaitingRemoval | None) -> None:
        path, parent = task.place.path, task.parent.path
        self.path = RelativePath(path)
        if isinstance(above, _DirectoryAwaitingRemoval) and above.path.full_path() == parent:
            self.path = above.path.path_of(os.path.basename(path))
        self._task = task._replace(place=task.place._replace(path=b""), parent=task.parent._replace(path=b""))

    def finish_after_contents(self, rank: Rank, result: TaskResult, *, has_remaining: bool) -> None:
        task, path = self._task, self.path.full_path()
        place, parent = task.place._replace(path=path), task.parent._replace(path=os.path.dirname(path))
        task._replace(place=place, parent=parent).finish_after_contents(rank, result, has_remaining=has_remaining)


class RemoveDirs(RemoveNamedItems, code=86, doing="removing directories of", is_note=False):
    """Task that removes the sub-directories ``names`` of ``place``, as ``RemoveNamedItems`` does. They were counted
    when they were found, and are counted again by what is done with them.

    The backend removes whole subtrees, several per call. A directory that it does not handle gets its own task
    (``RemoveDir``).
    """

    def remove(self, rank: Rank, result: TaskResult) -> TaskSteps:
        removal = RemovalCounts(rank, result)
        removal.count_found_items(-len(self.kinds))
        removal.count_unread_directories(-len(self.kinds))
        yield from super().remove(rank, result)


class EnteredDirectory:
    """A directory that the backend has entered in a walk, and in or below which something remains. It is removed after
    that.

    Args:
        batch_parent: the parent directory of the batch, which contains the top directory of the frontier.
        frontier: what the walk has left.
        number: number of this directory in the frontier.
        waiters: identifies the entry of each directory of the frontier in the ledger of this rank.
        waiter: identifies the rank that waits for the top directory of the frontier.
    """

    __slots__ = ("_batch_parent", "_frontier", "_number", "_waiter", "_waiters")

    def __init__(
        self, batch_parent: Place, frontier: SubtreeFrontier, number: int, waiters: Sequence[Waiter], waiter: Waiter
    ) -> None:
        self._batch_parent = batch_parent
        self._frontier = frontier
        self._number = number
        self._waiters = waiters
        self._waiter = waiter

    def removal_task(self, *, is_empty: bool) -> RemoveDir:
        """Return the task that removes the directory with what is in it, or, with ``is_empty``, only the directory."""
        parent, waiter = self._batch_parent, self._waiter
        if self._number:
            above = self._frontier.parents[self._number]
            parent, waiter = place_in_frontier(self._batch_parent, self._frontier, above), self._waiters[above]
        return RemoveDir(place_in_frontier(self._batch_parent, self._frontier, self._number), waiter, parent, is_empty)

    def finish_after_contents(self, rank: Rank, result: TaskResult, *, has_remaining: bool) -> None:
        """Called when everything in the directory has been processed: have the directory itself removed, or count it as
        not removed (``has_remaining``).
        """
        task = self.removal_task(is_empty=True)
        if has_remaining:
            task.finish_after_contents(rank, result, has_remaining=True)
        else:
            rank.shared_instance(RemovalLedger).add_emptied_directory(task, result)


def place_in_frontier(batch_parent: Place, frontier: SubtreeFrontier, number: int) -> Place:
    """Return the directory ``number`` of a frontier. ``batch_parent`` contains number 0."""
    return directory_below(batch_parent, frontier.paths[number], frontier.inodes[number])


def open_for_removal(rank: Rank, place: Place) -> int:
    """Return a descriptor of the directory ``place`` whose contents are to be removed. Raise ``Problem`` if it cannot
    be opened.

    In a copy job that deletes, this is a directory of the target. Its inode number is in ``place.source_id``, as that
    of a source directory is in other jobs.
    """
    if rank.copy_options.delete:
        return rank.targets[place.root].open(rank.path_below_target(place.root, place.path), place.source_id)
    return rank.sources[place.root].open(place.path, place.source_id)


def _open_parent_for_removal(rank: Rank, parent: Place, place: Place) -> int:
    """Return a descriptor of ``parent``, the directory that contains ``place``. Raise ``Problem`` if it cannot be
    opened.
    """
    if rank.copy_options.delete:
        return open_for_removal(rank, parent)
    return rank.sources[parent.root].open_parent(parent.path, parent.source_id, place.path)


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
    with errors_as_problem("open"):
        return mount_id_of(directory) == _root_mount(rank, place)


def _root_mount(rank: Rank, place: Place) -> int:
    """Return the id of the mount on which the top directory of the tree of ``place`` lies. Raise ``OSError``."""
    top = rank.descriptors[place.root]
    return mount_id_of(top.target if rank.copy_options.delete else top.source)


def _open_checked_directory(rank: Rank, place: Place) -> DirectoryToEmpty:
    """Open the directory ``place``. Raise ``Problem`` if another directory or mount is there.

    In a copy job that deletes, the owner's missing permissions are added to the directory first, if this process owns
    it.
    """
    if rank.copy_options.delete and not is_only_counting(rank):
        regrant_owner_access(rank, place)
    directory = open_for_removal(rank, place)
    with errors_as_problem("open"):
        mount = mount_id_of(directory)
        is_mounted_here = mount != _root_mount(rank, place)
    if is_mounted_here:
        close_cached_directory(rank, place)
        raise Problem("open", 0, text=MOUNTED_HERE_TEXT)
    return DirectoryToEmpty(directory, status_of_open_item(directory).st_dev, mount)


def _remove_listed_items(
    rank: Rank, result: TaskResult, directory: DirectoryToEmpty, listed: ListNamesResult, part: _RemovalTask
) -> TicketGenerator[bool]:
    """Remove the listed items: files, and directories as far as the backend can do that in one call. Spawn tasks for
    the rest. Return True if everything was removed, so that neither an item nor a task is left.

    Args:
        directory: the directory. Sub-directories on other devices are not removed.
        listed: the names to remove.
        part: the task to which the names belong; it is finished after the tasks that are spawned here.
    """
    visitor = RemoveVisitor(rank, result, part.place, directory.descriptor, directory.device)
    if rank.copy_options.delete:
        deletable = listing_without_protected_names(rank, result, part.place, listed)
        visitor.has_remaining, listed = deletable is not listed, deletable
    packed, remaining = listed.names, _RemainingDirectories(rank, result, part.place)
    each_alone = is_only_counting(rank) or result.item_recorder.is_recording or rank.copy_options.backup
    has_filters = visitor.selected.has_filters
    may_walk = not each_alone and _may_remove_subtrees(rank) and bool(part.place.path or not has_filters)
    if listed.kinds and not each_alone:
        if not has_filters:
            packed = yield from visitor.remove_listed_files(listed)
        if may_walk:
            packed = yield from remaining.remove_subtrees(directory, listed, packed)
    yield from stat_and_visit_names(rank.backend, directory.descriptor, packed, visitor, follow=False)
    RemovalCounts(rank, result).count_unread_directories(len(visitor.subdirectories))
    for place in visitor.subdirectories:
        if may_walk and os.path.basename(place.path) not in remaining.deferred:
            remaining.add(os.path.basename(place.path), place.source_id.inode)
        else:
            remaining.alone.append((place, place in visitor.kept_directories))
    if remaining.is_empty and visitor.has_remaining:
        part.finish_after_contents(rank, result, has_remaining=True)
    elif not remaining.is_empty:
        remaining.spawn_tasks(part, has_remaining=visitor.has_remaining)
    return remaining.is_empty and not visitor.has_remaining


def _may_remove_subtrees(rank: Rank) -> bool:
    """Return True if one call of the backend may remove subtrees: not in copy jobs, and see ``may_enter_subtrees``. (A
    mount is recognised when a directory is opened.)
    """
    return not rank.copy_options.delete and may_enter_subtrees(rank)


def _remove_subtrees(
    rank: Rank, result: TaskResult, directory: DirectoryToEmpty, found: Siblings
) -> TicketGenerator[WalkResult]:
    """Remove directories with everything in them and below by one call of the backend, and count what was removed.

    Args:
        directory: the directory that contains them.
        found: the directories, as they are listed. They are counted as found, except those that are deferred.
    """
    batch = RemoveTreesBatch(
        *walk_rows(rank, directory.descriptor, directory.device, found, above=found.parent.path.partition(b"/")[2]),
        directory.mount,
        _removes_by_type(rank, directory.descriptor),
    )
    count = partial(_count_removed, RemovalCounts(rank, result))
    return rank.execute_batch_counting_changes(batch, count)


def _removes_by_type(rank: Rank, directory: int) -> bool:
    """Return True if items may be removed by name and type of the listing, without reading their status: their sizes
    are not shown, the user has given no list of paths, and the file system is one on which listings show the same inode
    numbers and types as stat(2).
    """
    if rank.program_options(RemoveOptions).counts_bytes or rank.job.listed:
        return False
    return not any(may_be_on_file_system_type(kind, directory) for kind in (FUSE_TYPE, OVERLAY_TYPE))


def _count_removed(removal: RemovalCounts, removed: WalkResult) -> None:
    """Count what the backend has removed, the directories that it has entered, and those that it has not begun."""
    sums, not_begun = removed.counts, removed.verdicts.codes.count(OutcomeCode.CANCELLED)
    entered = sum(len(frontier.paths) for frontier in removed.frontiers.values())
    items = sums.files + sums.links + sums.other_items
    removal.count_found_items(items + sums.directories + entered + not_begun, sums.bytes)
    removal.count_unread_directories(not_begun)
    numbers = {
        counts.FILES: sums.files,
        counts.SYMLINKS: sums.links,
        counts.SPECIAL: sums.other_items,
        counts.DIRECTORIES: sums.directories,
    }
    removal.count_removed_items(numbers, sums.bytes)


class _RemainingDirectories:
    """The sub-directories of one directory, ``place``, that remain to be removed by other tasks."""

    def __init__(self, rank: Rank, result: TaskResult, place: Place) -> None:
        self._rank = rank
        self._result = result
        self._place = place
        self.deferred: set[bytes] = set()
        """Names of those that the backend does not handle."""
        self.alone: list[tuple[Place, bool]] = []
        """Those that get a task of their own (``RemoveDir``), each with the value of ``keeps_directory``."""
        self._names: list[bytes] = []
        """Those that the backend may remove with everything in them and below."""
        self._inodes: list[int] = []
        """Their inode numbers."""
        self._frontiers: Sequence[SubtreeFrontier] = ()
        """What remains in and below those that the backend has entered."""

    @property
    def is_empty(self) -> bool:
        """True if no directory remains."""
        return not (self.alone or self._names or self._frontiers)

    def add(self, name: bytes, inode: int) -> None:
        """Add a directory that the backend may remove with everything in it and below."""
        self._names.append(name)
        self._inodes.append(inode)

    def remove_subtrees(
        self, directory: DirectoryToEmpty, listed: ListNamesResult, packed: bytes
    ) -> TicketGenerator[bytes]:
        """Remove the directories among the names ``packed`` (joined by slashes), with everything in them and below, by
        one call of the backend. Return the names that are left, packed: no directories, and those directories that the
        backend does not handle.

        ``listed`` are all names of the directory, with their types and inode numbers.
        """
        names = unpack_names(listed.names)
        found, _ = Siblings(self._place, names, listed.inodes, kinds=listed.kinds).divided_by_type()
        selects = self._rank.shared_instance(JobFilter).selects_directory
        above = self._place.path.partition(b"/")[2]
        found = found.selected([row for row, name in enumerate(found.names) if selects(os.path.join(above, name))])
        if not found.names:
            return packed
        removed = yield from _remove_subtrees(self._rank, self._result, directory, found)
        deferred, not_begun = remaining_rows(removed)
        self._frontiers, self.deferred = [*removed.frontiers.values()], {found.names[row] for row in deferred}
        for row in not_begun:
            self.add(found.names[row], found.inodes[row])
        directories = {*found.names} - self.deferred
        return pack_names(name for name in unpack_names(packed) if name not in directories)

    def spawn_tasks(self, part: _RemovalTask, *, has_remaining: bool) -> None:
        """Spawn the tasks. The task ``part``, which has found the directories, is finished after them; it has left an
        item if ``has_remaining`` is True.
        """
        rank, result, waiter = self._rank, self._result, part.waiter
        shares = shares_per_task(rank, Siblings(self._place, self._names, self._inodes))
        number = len(self.alone) + len(shares) + len(self._frontiers)
        if number > 1 or has_remaining or isinstance(part, RemoveDir):
            ledger = rank.shared_instance(RemovalLedger)
            (waiter,) = ledger.new_waiters(1)
            ledger.open_entry(waiter, part.part_to_await(ledger), number, result, has_remaining=has_remaining)
        for place, keeps_directory in self.alone:
            task = RemoveDir(place, waiter, self._place, keeps_directory=keeps_directory)
            result.spawn_task(task, SCAN_COST, expands=True)
        for share in shares:
            result.spawn_task(_task_for_siblings(waiter, share), len(share.names) * SCAN_COST, expands=True)
        for frontier in self._frontiers:
            _spawn_tasks_for_frontier(rank, result, self._place, frontier, waiter)


def _task_for_siblings(waiter: Waiter, found: Siblings) -> RemoveDirs:
    """Return a task that removes sub-directories of one directory."""
    place, names, inodes = found.packed()
    return RemoveDirs(place, waiter, names, found.letters, inodes)


def _spawn_tasks_for_frontier(
    rank: Rank, result: TaskResult, batch_parent: Place, frontier: SubtreeFrontier, waiter: Waiter
) -> None:
    """Spawn the tasks that remove what a walk of the backend has left. The directories that it has entered wait for
    them in the ledger.

    Args:
        batch_parent: the parent directory of the batch, which contains the top directory of the frontier.
        frontier: what it has left.
        waiter: identifies the rank that waits for the top directory of the frontier.
    """
    ledger = rank.shared_instance(RemovalLedger)
    waiters, parts = ledger.new_waiters(len(frontier.paths)), Counter(frontier.parents[1:])
    numbers = {path: number for number, path in enumerate(frontier.paths)}
    for items in frontier.remaining:
        number = numbers[items.directory]
        place = place_in_frontier(batch_parent, frontier, number)
        parts[number] += _spawn_tasks_for_items(rank, result, place, waiters[number], items)
    for number, opened in enumerate(waiters):
        entered = EnteredDirectory(batch_parent, frontier, number, waiters, waiter)
        if parts[number]:
            ledger.open_entry(opened, entered, parts[number], result)
        else:  # it could not be removed: the task reports why
            RemovalCounts(rank, result).count_unread_directories(1)
            result.spawn_task(entered.removal_task(is_empty=False), SCAN_COST, expands=True)


def _spawn_tasks_for_items(rank: Rank, result: TaskResult, place: Place, waiter: Waiter, items: RemainingItems) -> int:
    """Spawn tasks that remove the ``items`` of the directory ``place``, which a walk has left. Return their number."""
    found, removal = Siblings(place, items.names, items.inodes, kinds=items.kinds), RemovalCounts(rank, result)
    directories, others = found.divided_by_type()
    removal.count_found_items(len(directories.names))
    removal.count_unread_directories(len(directories.names))
    number = spawn_tasks_for_siblings(rank, result, directories, partial(_task_for_siblings, waiter))
    for start in range(0, len(others.names), NAMES_PER_BATCH):
        share = others.part(start, start + NAMES_PER_BATCH)
        _, names, inodes = share.packed()
        task = RemoveNamedItems(place, waiter, names, share.kinds, inodes)
        result.spawn_task(task, len(share.names) * CALL_COST, expands=True)
        number += 1
    return number
