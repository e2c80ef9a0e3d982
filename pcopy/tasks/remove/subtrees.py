"""Removal of subtrees by single calls of the backend (``RemoveTreesBatch``)."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from functools import partial

from pcopy.engine.ticket import TicketGenerator
from pcopy.fast_named_tuple import NamedTuple
from pcopy.fsio.backend.batches import ALL_LEVELS
from pcopy.fsio.backend.columns import OutcomeCode, pack_names
from pcopy.fsio.backend.walk_batches import RemoveTreesBatch, SubtreeFrontier, WalkResult
from pcopy.fsio.identity import FUSE_TYPE, OVERLAY_TYPE, may_be_on_file_system_type
from pcopy.tasks.base import counts
from pcopy.tasks.base.job import RemoveOptions
from pcopy.tasks.base.rank import Rank
from pcopy.tasks.base.result import TaskResult
from pcopy.tasks.base.sibling_directories import call_deadline
from pcopy.tasks.remove.removal_counts import RemovalCounts

MAX_NAMES_IN_SUBTREE = 1000
"""Largest number of names of a directory that is removed together with others in one call. The names of a larger one
are divided among tasks.
"""


class DirectoryToEmpty(NamedTuple):
    """An open directory whose items are removed: its descriptor, device number, and mount id (``mount_id_of``)."""

    descriptor: int
    device: int
    mount: int


class SubtreesOutcome(NamedTuple):
    """What remains of directories that one call of the backend was to remove.

    Fields:
        deferred: rows (indices) of those that the backend does not handle; nothing was removed in them.
        not_begun: rows of those for which the time was over.
        frontiers: for each of the others that was not removed, what remains in it and below.
    """

    deferred: Sequence[int]
    not_begun: Sequence[int]
    frontiers: Sequence[SubtreeFrontier]


def may_remove_subtrees(rank: Rank) -> bool:
    """Return True if one call of the backend may remove subtrees.

    Return False if the backend has threads, because these can remove the items of one directory in parallel. Return
    False also with a limit (--oplimit), because then each item is counted against the limit, and in copy jobs.
    """
    backend = rank.backend
    return (
        backend.has_directory_batches
        and backend.runs_in_poll
        and not rank.throttle.is_on
        and not rank.copy_options.delete
    )


def remove_subtrees(
    rank: Rank, result: TaskResult, directory: DirectoryToEmpty, names: Sequence[bytes], inodes: Sequence[int]
) -> TicketGenerator[SubtreesOutcome]:
    """Remove directories with everything in them and below by one call of the backend, and count what was removed.

    Args:
        directory: the directory that contains them.
        names, inodes: the directories, as they are listed. They are counted as found, except those that are deferred.
    """
    batch = RemoveTreesBatch(
        directory.descriptor,
        pack_names(names),
        array("Q", inodes),
        directory.device,
        MAX_NAMES_IN_SUBTREE,
        ALL_LEVELS,
        call_deadline(rank),
        directory.mount,
        _removes_by_type(rank, directory.descriptor),
    )
    count = partial(_count_removed, RemovalCounts(rank, result))
    removed = yield from rank.execute_batch_counting_changes(batch, count)
    codes = removed.verdicts.codes
    deferred = [row for row, code in enumerate(codes) if code == OutcomeCode.SLOW_PATH]
    not_begun = [row for row, code in enumerate(codes) if code == OutcomeCode.CANCELLED]
    return SubtreesOutcome(deferred, not_begun, [*removed.frontiers.values()])


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
