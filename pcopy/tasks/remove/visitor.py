"""The visitor of a removal: removes files, links and special files in batches, and collects directories, which its
caller removes.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from functools import partial

from pcopy.engine.ticket import TicketGenerator
from pcopy.fsio.backend.batches import ListNamesResult, RemoveItemsBatch, RemoveItemsResult
from pcopy.fsio.backend.columns import (
    INODE_COLUMN,
    BatchOutcomeColumns,
    ItemStatusColumns,
    OutcomeCode,
    pack_names,
    unpack_names,
)
from pcopy.fsio.backend.item_rows import RemoveItemsBatchProcessor
from pcopy.fsio.close import closing_descriptor
from pcopy.fsio.mounted import mount_id_of
from pcopy.fsio.problem import Problem
from pcopy.fsio.retries import open_with_retries
from pcopy.signature.items import FILE, type_byte
from pcopy.tasks.base import counts
from pcopy.tasks.base.job_filters import JobFilter
from pcopy.tasks.base.kind import TaskSteps
from pcopy.tasks.base.rank import Rank
from pcopy.tasks.base.result import TaskResult
from pcopy.tasks.base.tree_walk import directory_below
from pcopy.tasks.base.values import Place
from pcopy.tasks.files.existing import item_status_or_none
from pcopy.tasks.remove.removal_counts import RemovalCounts, is_only_counting
from pcopy.walk.visitor import FoundItems

_ITEM_REPLACED_TEXT = "another item has taken its name since it was found: not removed"
"""Error text for an item that is not removed because it is not the one that the scan has found."""
OTHER_DEVICE_TEXT = "another file system is mounted here, or it is a subvolume: not removed"
"""Message for a directory that lies on another device than the directory that contains it."""


def remove_items_in_batch(
    rank: Rank,
    directory: int,
    packed: bytes,
    rows: ItemStatusColumns,
    count: Callable[[RemoveItemsResult], None] = lambda removed: None,
) -> TicketGenerator[RemoveItemsResult]:
    """Remove some items of a directory by one call of the backend; return what became of each.

    Args:
        directory: descriptor of the directory.
        packed: names of the items, joined by slashes.
        rows: status of each item as it was found. An item that has changed since is not removed.
        count: function that is called with the result, even if the task is dropped before the generator is resumed.
    """
    batch = RemoveItemsBatch(directory, packed, rows, rank.deletion_counter() if rank.copy_options.delete else None)
    # A single item is usually a directory. To submit a batch for it would take longer than the system call itself.
    if len(rows) == 1 and rank.backend.runs_in_poll:
        alone = RemoveItemsBatchProcessor(batch)
        alone.run(0, 1)
        count(alone.result)
        return alone.result
    return (yield from rank.execute_batch_counting_changes(batch, count))


def removal_problem(verdicts: BatchOutcomeColumns, row: int) -> Problem | None:
    """Return the reason why item ``row`` of a batch was not removed, as a ``Problem``; None if it was removed.
    ``verdicts`` are the results of the batch.
    """
    code = verdicts.codes[row]
    if code == OutcomeCode.DONE:
        return None
    return Problem("unlink", 0, text=_ITEM_REPLACED_TEXT) if code == OutcomeCode.DECIDE_AGAIN else verdicts.problem(row)


_COUNTERS_OF_LISTED_TYPES = {ord("f"): counts.FILES, ord("l"): counts.SYMLINKS}
"""Type letters of items that are removed without a stat(2), because the listing says enough about them; each with its
counter.
"""


_SIZED_TYPES = (stat.S_IFREG, stat.S_IFDIR)
"""File types to which a size filter applies: it selects regular files; directories must pass because they are
entered.
"""


class RemoveVisitor:
    """Visitor that removes the items of one directory, except sub-directories, which it collects in ``subdirectories``.
    ``has_remaining`` becomes True if any item is not removed.
    """

    needs_sorted_names = False
    separates_linked = False

    def __init__(self, rank: Rank, result: TaskResult, place: Place, directory: int, device: int) -> None:
        """``directory`` and ``device``: descriptor and device number of the directory ``place``."""
        self._rank = rank
        self._result = result
        self._place = place
        self._directory = directory
        self._counts = RemovalCounts(rank, result)
        self.device: int | None = device
        self.selected = rank.shared_instance(JobFilter)
        self._is_command_line = not (rank.copy_options.delete or place.path)
        """True if the names are the PATHs of prm's command line."""
        self._below_path = place.path if rank.copy_options.delete else place.path.partition(b"/")[2]
        """Path of the directory, as filters see it: relative to the top directory of the source in a copy job, relative
        to the PATH of the command line in prm.
        """
        self.subdirectories: list[Place] = []
        self.kept_directories: set[Place] = set()
        """Those of ``subdirectories`` of which only the contents may be removed, because of the directory's age."""
        self.has_remaining = False
        self._items: list[tuple[FoundItems, Sequence[int]]] = []

    def visit_unstatted_item(self, name: bytes, problem: Problem) -> None:
        """Count and report an item that could not be statted. A missing item is ignored; one that filters exclude
        counts as excluded.
        """
        if problem.errno == errno.ENOENT:
            return
        self._counts.count_found_items()
        if not self._is_command_line and self.selected.excludes_as_any_type(os.path.join(self._below_path, name)):
            self._count_excluded_items(1)
            self._counts.report_kept_item(self._place, name, b"")
        else:
            self._report_failure(name, problem)

    def _count_excluded_items(self, items: int) -> None:
        """Count ``items`` (a number) as excluded by filters; these items remain in the directory."""
        self.has_remaining = True
        self._counts.count_excluded_items(items)

    def _report_failure(self, name: bytes, problem: Problem, size: int = 0) -> None:
        """Count and report an item that could not be removed. In a copy job, a mount point only causes a warning."""
        self.has_remaining = True
        if problem.errno == errno.EBUSY and self._rank.copy_options.delete and self._is_mount_point(name):
            self._result.warn_about_item(self._place, name, OTHER_DEVICE_TEXT)
            return
        self._counts.report_failed_removal(self._place, name, problem, size)

    def rows_to_visit(self, found: FoundItems) -> Iterable[int]:
        """Return the rows of the items to remove; count all others as excluded by the filters."""
        if not self.selected.has_filters:
            return range(len(found))
        rows = [
            *filter(
                partial(self._is_to_be_removed, found, {*self.selected.selected_rows(self._below_path, found)}),
                range(len(found)),
            )
        ]
        excluded = len(found) - len(found.problems) - sum(row not in found.problems for row in rows)
        if excluded:
            self._counts.count_found_items(excluded)
            self._count_excluded_items(excluded)
            self._counts.report_excluded_items(self._rank, self._place, found, rows)
        return rows

    def _is_to_be_removed(self, found: FoundItems, selected: set[int], row: int) -> bool:
        """Return True if item ``row`` is to be removed. A directory that is a PATH of the command line always is. Size
        filters exclude everything but regular files and directories.

        Args:
            selected: rows of the items that the filters select.
        """
        mode = found.rows.mode[row]
        if stat.S_ISDIR(mode) and self._is_command_line:
            return True
        return row in selected and not (self.selected.select.has_size_limit and stat.S_IFMT(mode) not in _SIZED_TYPES)

    def visit_directories(self, found: FoundItems, rows: Sequence[int]) -> None:
        """Collect directories, which the caller removes later. Report mount points instead."""
        self._counts.count_found_items(len(rows))
        for row in rows:
            name = found.names[row]
            if found.rows.device[row] != self.device:
                self._report_mount_point(name, Problem("stat", 0, text=OTHER_DEVICE_TEXT))
                continue
            below = directory_below(self._place, name, found.rows.inode[row])
            self.subdirectories.append(below)
            if not self.selected.may_remove_directory(found.rows.exact_time_of_row("mtime", row)):
                self.kept_directories.add(below)

    def _report_mount_point(self, name: bytes, problem: Problem) -> None:
        """Report that a file system is mounted on ``name``, so that it is not removed: as a warning in a copy job, as
        the failure ``problem`` in prm.
        """
        if self._rank.copy_options.delete:
            self.has_remaining = True
            self._result.warn_about_item(self._place, name, OTHER_DEVICE_TEXT)
        else:
            self._report_failure(name, problem)

    def _is_mount_point(self, name: bytes) -> bool:
        """Return True if something is mounted on the item ``name``; False also if it cannot be examined."""
        flags = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC
        with suppress(OSError), closing_descriptor(open_with_retries(name, flags, dir_fd=self._directory)) as file:
            return mount_id_of(file) != mount_id_of(self._directory)
        return False

    def visit_small_files(self, found: FoundItems, rows: Sequence[int]) -> None:
        self._items.append((found, rows))

    visit_large_files = visit_special_files = visit_hard_linked_items = visit_small_files

    def process_collected_items(self) -> TaskSteps:
        """Remove the items that were collected."""
        for found, rows in self._items:
            if len(rows) == len(found):
                yield from self._remove_items(found.packed, found.rows)
            else:
                yield from self._remove_items(
                    pack_names(map(found.names.__getitem__, rows)), found.rows.columns_of_selected_rows(rows)
                )

    def remove_listed_files(self, listed: ListNamesResult) -> TicketGenerator[bytes]:
        """Remove files and symbolic links without a stat(2) by the caller: the listing states their types and inode
        numbers. Return the names that are left, packed; the caller must stat these.

        Among them are all directories and special files. So is a name whose inode number is no longer the listed one:
        it is a mount point, or another item has taken the name.
        """
        kinds, names = listed.kinds, listed.names
        direct = [row for row, kind in enumerate(kinds) if kind in _COUNTERS_OF_LISTED_TYPES]
        if not direct:
            return names
        rows, other_names = ItemStatusColumns(len(kinds), INODE_COLUMN), b""
        rows.inode = listed.inodes
        if len(direct) < len(kinds):
            each = unpack_names(names)
            other_names = pack_names(
                name for name, kind in zip(each, kinds, strict=True) if kind not in _COUNTERS_OF_LISTED_TYPES
            )
            names, rows = pack_names(map(each.__getitem__, direct)), rows.columns_of_selected_rows(direct)
            kinds = bytes(map(kinds.__getitem__, direct))
        verdicts = (
            yield from remove_items_in_batch(
                self._rank, self._directory, names, rows, partial(self._count_items_removed_without_stat, kinds)
            )
        ).verdicts
        if verdicts.codes.count(OutcomeCode.DONE) == len(rows):
            return other_names
        each, remaining = unpack_names(names), [other_names] if other_names else []
        for row, code in enumerate(verdicts.codes):
            if code == OutcomeCode.DECIDE_AGAIN:
                remaining.append(each[row])
            elif code != OutcomeCode.DONE:
                self.visit_unstatted_item(each[row], verdicts.problem(row))
        return pack_names(remaining)

    def _count_items_removed_without_stat(self, kinds: bytes, removed: RemoveItemsResult) -> None:
        """Count the items that were removed without a stat(2); ``kinds`` are their type letters."""
        done, sizes = removed.verdicts.rows_with_code(OutcomeCode.DONE), removed.observed.size
        size = sum(map(sizes.__getitem__, done))
        self._counts.count_found_items(len(done), size)
        self._counts.count_removed_items(map(_COUNTERS_OF_LISTED_TYPES.__getitem__, map(kinds.__getitem__, done)), size)

    def _remove_items(self, packed: bytes, rows: ItemStatusColumns) -> TaskSteps:
        """Remove the items ``packed`` (names joined by slashes); ``rows`` are their statuses. Count and report each."""
        kinds = [type_byte(mode) for mode in rows.mode]
        sizes = [size if kind == FILE else 0 for kind, size in zip(kinds, rows.size, strict=True)]
        self._counts.count_found_items(len(rows), sum(sizes))
        problems: dict[int, Problem] = {}

        def count_removed(done: Sequence[int]) -> None:
            self._counts.count_removed_items(
                (counts.copied_counter(kinds[row]) for row in done), sum(map(sizes.__getitem__, done))
            )

        if is_only_counting(self._rank):
            count_removed(range(len(rows)))
        elif self._rank.copy_options.backup:
            problems = yield from self._move_to_backup(unpack_names(packed), rows)
            count_removed([row for row in range(len(rows)) if row not in problems])
        else:
            verdicts = (
                yield from remove_items_in_batch(
                    self._rank,
                    self._directory,
                    packed,
                    rows,
                    lambda removed: count_removed(removed.verdicts.rows_with_code(OutcomeCode.DONE)),
                )
            ).verdicts
            problems = {
                row: problem for row in range(len(rows)) if (problem := removal_problem(verdicts, row)) is not None
            }
        for row, problem in problems.items():
            if problem.errno == errno.ENOENT:
                self._counts.count_found_items(-1, -sizes[row])
            else:
                self._report_failure(unpack_names(packed)[row], problem, sizes[row])
        if self._result.item_recorder.is_recording:
            names, removed_rows = unpack_names(packed), [row for row in range(len(rows)) if row not in problems]
            reported_sizes = [sizes[row] for row in removed_rows]
            self._counts.report_removed_items(
                self._place, [names[row] for row in removed_rows], [kinds[row] for row in removed_rows], reported_sizes
            )

    def _move_to_backup(self, names: list[bytes], rows: ItemStatusColumns) -> TicketGenerator[dict[int, Problem]]:
        """Put the items into the ``--backup`` directory, one by one, by a hard link, a rename or a copy. Then remove
        each name that still exists. Return the problems of the items that remain, by row.

        Args:
            names, rows: names and statuses of the items.
        """
        from pcopy.tasks.files.backup import BackupDirectory

        problems: dict[int, Problem] = {}
        for row, name in enumerate(names):
            try:
                status = item_status_or_none(self._directory, name)
                if status is None:
                    raise Problem("stat", errno.ENOENT)
                if not rows.is_same_item(row, status):
                    raise Problem("unlink", 0, text=_ITEM_REPLACED_TEXT)
                if not self._rank.shared_instance(BackupDirectory).back_up_item(
                    self._place, self._directory, name, status
                ):
                    verdicts = (
                        yield from remove_items_in_batch(
                            self._rank, self._directory, name, rows.columns_of_selected_rows([row])
                        )
                    ).verdicts
                    problem = removal_problem(verdicts, 0)
                    if problem is not None:
                        raise problem
                elif (
                    deleted := self._rank.deletion_counter()
                ) is not None:  # the item was renamed into the backup: it counts as deleted
                    deleted[1] += 1
            except Problem as problem:
                problems[row] = problem
            yield None
        return problems

    def end_directory_visit(self) -> None:
        """Do nothing: ``process_collected_items``, which is called before, has removed all items."""
