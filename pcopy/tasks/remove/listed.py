"""The visitor of a removal by a list (prm --from): removes the listed items and nothing else.

Listed directories are removed last, the deepest first, and only if they are empty by then. A directory that is not
empty counts as failed. With the option ``whole_directories``, listed directories are removed with all their contents,
as PATHs of the command line are.
"""

from __future__ import annotations

import errno
from collections.abc import Sequence

from pcopy.fsio.backend.columns import ItemStatusColumns, unpack_names
from pcopy.fsio.problem import Problem
from pcopy.fsio.source import status_of_open_item
from pcopy.signature.items import DIRECTORY
from pcopy.tasks.base import counts
from pcopy.tasks.base.job import RemoveOptions
from pcopy.tasks.base.kind import TaskSteps
from pcopy.tasks.base.rank import SCAN_COST, Rank
from pcopy.tasks.base.result import TaskResult
from pcopy.tasks.base.tree_walk import directory_below
from pcopy.tasks.base.values import Place
from pcopy.tasks.listed.deepest_first import defer_directories
from pcopy.tasks.remove.ledger import NO_WAITER
from pcopy.tasks.remove.removal_counts import is_only_counting
from pcopy.tasks.remove.remove_tree import RemoveDir, is_on_root_mount
from pcopy.tasks.remove.visitor import OTHER_DEVICE_TEXT, RemoveVisitor, removal_problem, remove_items_in_batch
from pcopy.walk.visitor import FoundItems

_NEVER_REMOVED_TEXT = "is the working directory, or one above it, which is never removed"
"""Message for a listed directory that is not removed because it is the working directory, or above it."""
_OTHER_MOUNT_TEXT = "is on another file system than most of the list: not removed; remove it with a list of its own"
"""Message for a listed directory that was to be removed with all its contents, but lies on another file system than the
directory that contains all listed paths.
"""


class _ProtectedDirectories:
    """The directories that are never removed (the working directory and those above it), each as a pair of device
    number and inode number on this host; one object per rank.
    """

    def __init__(self, rank: Rank) -> None:
        """Determine the directories from the options. Raise ``Problem`` if the top directory of the job cannot be
        examined.

        The device numbers in the options are those of the host that recorded them. The number of the top directory's
        device is replaced by the number that it has on this host.
        """
        recorded_device = rank.job.roots[0].source_id[0]
        device_here = status_of_open_item(rank.sources[0].open(b"", None)).st_dev
        pairs = rank.program_options(RemoveOptions).never_removed
        self.directories = {(device_here if device == recorded_device else device, inode) for device, inode in pairs}


class ListedRemovalVisitor(RemoveVisitor):
    """Visitor that removes the listed items of one directory. Listed directories are only recorded; they are removed
    later (``visit_deferred_directories``), when their contents have been removed.
    """

    def __init__(self, rank: Rank, result: TaskResult, place: Place, attempt: int) -> None:
        """Open the directory ``place``. Raise ``Problem`` if it cannot be opened."""
        directory = rank.open_source_directory(place)
        super().__init__(rank, result, place, directory, status_of_open_item(directory).st_dev)
        self._protected = rank.shared_instance(_ProtectedDirectories).directories

    def visit_unstatted_item(self, name: bytes, problem: Problem) -> None:
        """Count and report an item that could not be statted. A missing item is ignored if the option
        ``missing_is_fine`` is set.
        """
        if problem.errno != errno.ENOENT or not self._rank.program_options(RemoveOptions).missing_is_fine:
            self._counts.count_found_items()
            self._report_failure(name, problem)

    def rows_to_visit(self, found: FoundItems) -> Sequence[int]:
        """Return the rows of all items that were found: filters do not apply to a list."""
        return range(len(found))

    def visit_directories(self, found: FoundItems, rows: Sequence[int]) -> None:
        """Defer the removal of directories until their contents have been removed. Report those that are on another
        device, and those that are never removed.
        """
        self._counts.count_found_items(len(rows))
        accepted = []
        for row in rows:
            identity = device, _ = found.rows.device[row], found.rows.inode[row]
            if device == self.device and identity not in self._protected:
                accepted.append(row)
            else:
                text = OTHER_DEVICE_TEXT if device != self.device else _NEVER_REMOVED_TEXT
                self._report_failure(found.names[row], Problem("stat", 0, text=text))
        if self._rank.program_options(RemoveOptions).whole_directories:
            self._remove_directories_with_contents(found, accepted)
        elif accepted:
            defer_directories(
                self._result,
                self._place,
                [found.names[row] for row in accepted],
                found.rows.columns_of_selected_rows(accepted),
            )

    def _remove_directories_with_contents(self, found: FoundItems, rows: Sequence[int]) -> None:
        """Spawn tasks that remove the directories in ``rows`` with their contents. If they lie on another mount than
        the top directory of the job, report each as failed instead.
        """
        if rows and not is_on_root_mount(self._rank, self._place, found.directory):
            for row in rows:
                self._report_failure(found.names[row], Problem("stat", 0, text=_OTHER_MOUNT_TEXT))
            return
        for row in rows:
            below = directory_below(self._place, found.names[row], found.rows.inode[row])
            self._result.spawn_task(RemoveDir(below, NO_WAITER, self._place), SCAN_COST, expands=True)
        self._counts.count_unread_directories(len(rows))

    def visit_deferred_directories(self, directory: int, names: bytes, rows: ItemStatusColumns) -> TaskSteps:
        """Remove those of the directories ``names`` that are empty by now; the others count as failed. A dry run
        assumes that all of them are empty.
        """
        removed = [*range(len(rows))]
        all_names = unpack_names(names)
        if not is_only_counting(self._rank):
            verdicts = (yield from remove_items_in_batch(self._rank, directory, names, rows)).verdicts
            problems = {row: problem for row in removed if (problem := removal_problem(verdicts, row)) is not None}
            removed = [row for row in removed if row not in problems]
            for row, problem in problems.items():
                if problem.errno == errno.ENOENT:
                    self._counts.count_found_items(-1)
                else:
                    self._report_failure(all_names[row], problem)
        self._counts.count_removed_items([counts.DIRECTORIES] * len(removed))
        kinds, sizes = [DIRECTORY] * len(removed), [0] * len(removed)
        self._counts.report_removed_items(self._place, [all_names[row] for row in removed], kinds, sizes)
