"""Removal of subtrees by single calls of the backend (``RemoveTreesBatch``)."""

from __future__ import annotations

from functools import partial

from pcopy.engine.ticket import TicketGenerator
from pcopy.fast_named_tuple import NamedTuple
from pcopy.fsio.backend.columns import OutcomeCode
from pcopy.fsio.backend.walk_batches import RemoveTreesBatch, WalkResult
from pcopy.fsio.identity import FUSE_TYPE, OVERLAY_TYPE, may_be_on_file_system_type
from pcopy.tasks.base import counts
from pcopy.tasks.base.job import RemoveOptions
from pcopy.tasks.base.rank import Rank
from pcopy.tasks.base.result import TaskResult
from pcopy.tasks.base.tree_walk import Siblings, may_enter_subtrees, walk_rows
from pcopy.tasks.remove.removal_counts import RemovalCounts


class DirectoryToEmpty(NamedTuple):
    """An open directory whose items are removed: its descriptor, device number, and mount id (``mount_id_of``)."""

    descriptor: int
    device: int
    mount: int


def may_remove_subtrees(rank: Rank) -> bool:
    """Return True if one call of the backend may remove subtrees: not in copy jobs, and see ``may_enter_subtrees``. (A
    mount is recognised when a directory is opened.)
    """
    return not rank.copy_options.delete and may_enter_subtrees(rank)


def remove_subtrees(
    rank: Rank, result: TaskResult, directory: DirectoryToEmpty, found: Siblings
) -> TicketGenerator[WalkResult]:
    """Remove directories with everything in them and below by one call of the backend, and count what was removed.

    Args:
        directory: the directory that contains them.
        found: the directories, as they are listed. They are counted as found, except those that are deferred.
    """
    batch = RemoveTreesBatch(
        *walk_rows(rank, directory.descriptor, directory.device, found),
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
