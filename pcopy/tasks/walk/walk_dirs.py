"""WalkCommandLinePath, WalkDirectories and WalkNamesOfLargeDirectory: list directories and pass on their items.

The ``FoundItemReporter`` receives the items and reports them.

A task enters the directories that it finds as long as the other ranks have work, too. Otherwise it leaves them to new
tasks, which idle ranks can take. The names of a large directory are divided into several tasks.

Rules: A directory is entered from its parent, never through a symbolic link, and only if it is the one that was found
(same inode). A directory that cannot be listed, for example because it vanished or was replaced meanwhile, is reported
like any other item, but counts as failed, and neither as reported nor as skipped: each item counts once.
"""

from __future__ import annotations

import os
import stat
from bisect import bisect_left
from collections.abc import Sequence
from functools import partial

from pcopy.engine.ticket import TicketGenerator
from pcopy.fsio.backend.batches import MAX_NAMES_IN_ROW, ListNamesResult
from pcopy.fsio.backend.columns import BatchOutcomeColumns, ItemStatusColumns, unpack_names
from pcopy.fsio.backend.walk_batches import ListItemsBatch, ListItemsResult, ListPathsBatch, ListPathsResult, WalkResult
from pcopy.fsio.identity import ItemIdentity
from pcopy.fsio.problem import Problem
from pcopy.tasks.base import counts
from pcopy.tasks.base.job import mount_codes
from pcopy.tasks.base.kind import DivisibleTask, TaskKind, TaskSteps
from pcopy.tasks.base.rank import Rank
from pcopy.tasks.base.result import RetryMode, TaskResult
from pcopy.tasks.base.sibling_directories import Siblings
from pcopy.tasks.base.tree_walk import TreeWalk, directory_below, spawn_tasks_for_names, walk_rows
from pcopy.tasks.base.values import NO_DIRECTORY_IDENTITY, Place, unpack_numbers
from pcopy.tasks.walk.finder import WORKING_DIRECTORY, FoundItemReporter, depth_of_contents, type_letter
from pcopy.tasks.walk.report_found import MAX_TASK_OUTPUT
from pcopy.walk.listing import NAMES_PER_BATCH, list_directory
from pcopy.walk.matching import DIRECTORY, UNKNOWN, DirectoryItems

MAX_NAMES_PER_THREAD = 32
"""Maximum number of entries of a directory whose statuses are read by one thread, one after the other, if the backend
has threads. The statuses of a larger directory are read by several threads.
"""


class WalkCommandLinePath(TaskKind, code=100, doing="walking", is_note=False):
    """Task of rank 0 that stats the PATH number ``number`` of the command line, and walks it. Only rank 0 can do so:
    PATHs are relative to the user's working directory, and only rank 0 has that one.
    """

    number: int

    def subject(self) -> tuple[Place, bytes]:
        return Place(self.number, b"", NO_DIRECTORY_IDENTITY, NO_DIRECTORY_IDENTITY, False, False), b""

    def run(self, rank: Rank, result: TaskResult) -> TaskSteps:
        """Stat the PATH, report it if the find expression selects it, and walk it if it is a directory."""
        root, finder = rank.job.roots[self.number], rank.shared_instance(FoundItemReporter)
        place = Place(
            self.number, b"", ItemIdentity(mount_codes(rank.job.roots)[self.number][0], root.source_id[1]),
            NO_DIRECTORY_IDENTITY,
            False,
            False,
        )  # fmt: skip
        walk = _DirectoryWalk(rank, result)
        result.count(counts.FOUND)
        try:
            status = os.lstat(root.source_shown)
        except OSError as error:
            result.count_item_as_failed(place, root.item, Problem.from_error("stat", error), retry=RetryMode.NEVER)
            return
        is_directory = stat.S_ISDIR(status.st_mode) and not root.item
        items = DirectoryItems(
            WORKING_DIRECTORY,
            b"",
            [root.source_shown],
            bytes((type_letter(status.st_mode),)),
            ItemStatusColumns.from_statuses([status], finder.mask),
        )
        number = finder.report_command_line_path(result, items, walk.output)
        result.count(counts.SKIPPED, 1 - number)
        if number and root.item and finder.summing is not None:
            yield from finder.summing.add_layout_of_root(result, place, root.item, items)
        if is_directory and finder.enters_directories_at_depth(0) and not items.pruned:
            yield from walk.list_directory(place)
        yield from walk.enter_directories_while_others_work()


class WalkDirectories(DivisibleTask, code=101, doing="walking", is_note=False):
    """Task that walks the directories ``names`` (joined by slashes) of ``place`` with everything below them. ``inodes``
    are their inode numbers (8 bytes each). ``are_simple`` is false if the backend could not list them.
    """

    inodes: bytes
    are_simple: bool = True

    columns = ("inodes",)
    min_items_per_portion = 2

    def run(self, rank: Rank, result: TaskResult) -> TaskSteps:
        walk = _DirectoryWalk(rank, result)
        inodes = unpack_numbers(self.inodes)
        walk.put_back(Siblings(self.place, unpack_names(self.names), inodes, are_simple=self.are_simple))
        yield from walk.enter_directories_while_others_work()


class WalkNamesOfLargeDirectory(DivisibleTask, code=102, doing="walking", is_note=False):
    """Task that tests some ``names`` (joined by slashes) of a large directory, reports those that are selected, and
    enters the directories among them. ``kinds`` (type letters) and ``inodes`` (8 bytes each) come from the listing of
    the directory.
    """

    kinds: bytes
    inodes: bytes

    columns = ("kinds", "inodes")
    operations_per_item = 1
    min_items_per_portion = 64

    def run(self, rank: Rank, result: TaskResult) -> TaskSteps:
        """Test and report the names, and enter the directories among them."""
        walk = _DirectoryWalk(rank, result)
        try:
            directory = rank.open_source_directory(self.place)
        except Problem as problem:
            names = unpack_names(self.names)
            result.count(counts.FOUND, len(names))
            for name in names:
                result.count_item_as_failed(self.place, name, problem, retry=RetryMode.NEVER)
            return
        listed = ListNamesResult(BatchOutcomeColumns(1), self.names, 0, self.kinds, unpack_numbers(self.inodes))
        yield from walk.report_names_passing_tests(self.place, directory, listed)
        yield from walk.enter_directories_while_others_work()


class _DirectoryWalk(TreeWalk):
    """The visitor of pwalk: lists directories, and reports the items in them that are selected."""

    visits_on_entry = False

    def __init__(self, rank: Rank, result: TaskResult) -> None:
        super().__init__(rank, result)
        self._finder = rank.shared_instance(FoundItemReporter)
        self.output = self._finder.new_output_buffer

    def enter_directories_while_others_work(self) -> TaskSteps:
        """Enter directories as long as other ranks have work, leave the rest to new tasks, then pass the output to rank
        0.
        """
        yield from super().enter_directories_while_others_work()
        self.output.flush_to_rank_0(self._rank, self._result)

    def should_enter_more_directories(self) -> bool:
        return self.output.size < MAX_TASK_OUTPUT and super().should_enter_more_directories()

    def may_be_rows(self, found: Siblings) -> bool:
        """Return True if the backend may list the directories ``found`` in one call."""
        rank, finder, parent = self._rank, self._finder, found.parent
        if not rank.backend.has_directory_batches or rank.throttle.is_on or finder.opens_directories:
            return False
        if rank.sources[parent.root].expected_mounts.has_expected_mount_at_or_below(parent.path):
            return False
        depth = depth_of_contents(parent)
        return (
            len(found.names) > 1 or finder.are_all_paths_reported(depth + 1) or finder.levels_listed_at_once(depth) > 0
        )

    def process_in_backend(self, found: Siblings, directories: Sequence[int]) -> TicketGenerator[WalkResult]:
        """List the directories ``found``, and those below them, and report the items in them that are selected."""
        if self._finder.are_all_paths_reported(depth_of_contents(found.parent) + 1):
            return self._list_and_report_all_paths(found, directories[0])
        return self._list_and_test_items(found, directories[0])

    def _list_and_report_all_paths(self, found: Siblings, directory: int) -> TicketGenerator[ListPathsResult]:
        """List directories and those below them, and report all paths in them. This is used if every item is reported,
        and nothing of it but its path. ``directory`` is the descriptor of their parent.
        """
        finder, rank, parent = self._finder, self._rank, found.parent
        levels = finder.levels_below(depth_of_contents(parent))
        rows = walk_rows(rank, directory, rank.source_device(parent), found, depth=levels)
        written = yield from rank.execute_batch(ListPathsBatch(*rows, finder.path_prefix(parent)))
        finder.report_paths_written_by_backend(self._result, written.packed_paths, written.counts, self.output)
        return written

    def _list_and_test_items(self, found: Siblings, directory: int) -> TicketGenerator[ListItemsResult]:
        """List directories and those below them, test the items in them, and report those that are selected.
        ``directory`` is the descriptor of their parent.
        """
        finder, rank, parent = self._finder, self._rank, found.parent
        levels = finder.levels_listed_at_once(depth_of_contents(parent))
        wanted = finder.batch_listing_request(parent)
        max_names = self._max_names_per_directory(wanted[0], sums_up=wanted[2] is not None)
        rows = walk_rows(rank, directory, rank.source_device(parent), found, max_names, levels)
        if finder.summing is not None:  # the sums have the number of all items of a directory
            rows = *rows[:-1], None
        listed = yield from rank.execute_batch(ListItemsBatch(*rows, *wanted))
        self._result.count_excluded_items(listed.counts.excluded)
        if wanted[2] is not None:
            finder.add_summed_directories(self._result, parent, listed.entered())
        if finder.evaluates_several_directories(listed.kinds):
            yield from self._test_items_together(parent, listed, enters_directories=levels == 0)
        else:
            yield from self._test_items_by_directory(parent, listed, enters_directories=levels == 0)
        return listed

    def _max_names_per_directory(self, mask: int, *, sums_up: bool) -> int:
        """Return the largest number of names of a directory that the backend lists together with others, if it returns
        the status columns ``mask``, or adds the items to sums. A larger directory is listed by itself, and the statuses
        of its items are read by any rank, or by any thread.
        """
        if not mask:
            return MAX_NAMES_IN_ROW
        if not self._rank.backend.runs_in_poll:
            return MAX_NAMES_PER_THREAD
        return MAX_NAMES_IN_ROW if sums_up else NAMES_PER_BATCH - 1

    def _test_items_together(self, parent: Place, found: ListItemsResult, *, enters_directories: bool) -> TaskSteps:
        """Test all items that a call of the backend has found below ``parent``, and report those that are selected. Add
        the sub-directories among them to those to be entered, if ``enters_directories`` is set.
        """
        finder = self._finder
        items = DirectoryItems(-1, finder.path_prefix(parent), found.paths, found.kinds, found.rows)
        depth = depth_of_contents(parent) + 1
        rows = yield from finder.report_items_passing_tests(self._result, parent, items, depth, self.output)
        if not rows or not enters_directories:
            return
        for part in found.items_by_directory():
            inside = rows[bisect_left(rows, part.start) : bisect_left(rows, part.end)]
            if inside:
                names = [found.paths[row][len(part.directory) + 1 :] for row in inside]
                place = directory_below(parent, part.directory, part.directory_inode)
                self.add(Siblings(place, names, [found.inodes[row] for row in inside]))

    def _test_items_by_directory(self, parent: Place, found: ListItemsResult, *, enters_directories: bool) -> TaskSteps:
        """Do the same as ``_test_items_together``, directory by directory. If names decide which items are statted,
        only directories with such items are processed by themselves.
        """
        finder = self._finder
        rows: Sequence[int] | None = None
        if finder.summing is None and not enters_directories and UNKNOWN not in found.kinds:
            items = DirectoryItems(-1, finder.path_prefix(parent), found.paths, found.kinds)
            rows = finder.rows_passing_name_tests(items)
        for part in found.items_by_directory():
            if rows is not None and bisect_left(rows, part.start) == bisect_left(rows, part.end):
                finder.count_items_as_skipped(self._result, part.end - part.start)
                continue
            place = directory_below(parent, part.directory, part.directory_inode)
            items = DirectoryItems(
                -1,
                finder.path_prefix(place),
                [path[len(part.directory) + 1 :] for path in found.paths[part.start : part.end]],
                found.kinds[part.start : part.end],
                None if found.rows is None else found.rows.rows_in_range(part.start, part.end),
            )
            inodes = found.inodes[part.start : part.end] if enters_directories else None
            yield from self._process_listed_directory(place, items, inodes)

    def _process_listed_directory(self, place: Place, items: DirectoryItems, inodes: Sequence[int] | None) -> TaskSteps:
        """Process the items of directory ``place``, which the backend has listed: report those that are selected, and
        add sub-directories to those to be entered, if ``inodes`` has their inode numbers.
        """
        if items.kinds:
            try:
                yield from self._report_items_passing_tests(place, items, inodes)
            except Problem as problem:
                self._report_unlistable_directory(place, problem)
                return
        self._finder.record_listed_directory(place, len(items))

    def enter_directory(self, parent: Place, name: bytes, inode: int, other_inode: int) -> TaskSteps:
        """List the directory ``name`` of ``parent``, which was found with this inode number, and process its items."""
        rank, below = self._rank, directory_below(parent, name, inode)
        try:
            identity = rank.sources[parent.root].identity_of_listed_directory(
                below.path, inode, parent.source_id.mount_code
            )
        except Problem as problem:
            self._report_unlistable_directory(parent._replace(path=below.path), problem)
            return
        if self._finder.request.same_device and identity.mount_code != parent.source_id.mount_code:
            return
        yield from self.list_directory(below._replace(source_id=identity))

    def list_directory(self, place: Place) -> TaskSteps:
        """List the directory ``place`` and test its items. If it cannot be read, it counts as failed."""
        rank, result = self._rank, self._result
        self._has_begun = True
        try:
            yield from rank.throttle.charge_limits_and_wait(operations=2)
            directory = rank.open_source_directory(place)
            listing = yield from list_directory(rank.backend, directory, detailed=True)
            if listing.may_have_more_batches:
                report = partial(self._report_all_paths, place)
                make_task = partial(WalkNamesOfLargeDirectory, place)
                number, _ = yield from spawn_tasks_for_names(rank, result, listing, make_task, report)
            else:
                number = listing.name_count
                if number:
                    yield from self.report_names_passing_tests(place, directory, listing.listed)
        except Problem as problem:
            self._report_unlistable_directory(place, problem)
            return
        self._finder.record_listed_directory(place, number)

    def _report_all_paths(self, place: Place, listed: ListNamesResult) -> bool:
        """Report the paths of all listed names of directory ``place`` at once, without tests, and add the directories
        among them to those to be entered. That is possible if every item is reported, and only its path, and if this
        task has not reported too much yet. Return True if the names were reported, False if they must be tested.
        """
        finder, kinds, depth = self._finder, listed.kinds, depth_of_contents(place)
        if self.output.size >= MAX_TASK_OUTPUT or not finder.are_all_paths_reported(depth) or UNKNOWN in kinds:
            return False
        finder.report_all_paths(self._result, place, listed.names, kinds, self.output)
        if DIRECTORY in kinds and finder.enters_directories_at_depth(depth):
            self.add(Siblings(place, listed.names.split(b"/"), listed.inodes, kinds=kinds).divided_by_type()[0])
        return True

    def report_names_passing_tests(self, place: Place, directory: int, listed: ListNamesResult) -> TaskSteps:
        """Test the ``listed`` items of directory ``place``, report those that the find expression selects, and add the
        directories among them to those to be entered. ``directory`` is the descriptor of the directory.
        """
        self._has_begun = True
        if self._rank.throttle.is_on:
            yield from self._rank.throttle.charge_limits_and_wait(operations=len(listed.kinds))
        if not self._report_all_paths(place, listed):
            names = listed.names.split(b"/")
            items = DirectoryItems(directory, self._finder.path_prefix(place), names, listed.kinds)
            yield from self._report_items_passing_tests(place, items, listed.inodes)

    def _report_items_passing_tests(
        self, place: Place, items: DirectoryItems, inodes: Sequence[int] | None
    ) -> TaskSteps:
        """Test the ``items`` of directory ``place``, and report those that the find expression selects. If ``inodes``
        has their inode numbers, add the directories among them to those to be entered.
        """
        rows = yield from self._finder.report_items_passing_tests(
            self._result, place, items, depth_of_contents(place), self.output
        )
        if rows and inodes is not None:
            self.add(Siblings(place, items.names, inodes).selected(rows))

    def _report_unlistable_directory(self, place: Place, problem: Problem) -> None:
        """Report that the directory ``place`` cannot be listed. It was counted as reported or as skipped when it was
        found; it counts as failed instead.
        """
        self._result.count(counts.DIRECTORIES if self._finder.is_directory_reported(place) else counts.SKIPPED, -1)
        self._result.count_item_as_failed(place, b"", problem, retry=RetryMode.NEVER)

    def new_task(self, found: Siblings) -> WalkDirectories:
        return WalkDirectories(*found.packed(), found.are_simple)
