"""The walk that programs on trees share: what one task does with directories that were found, and tasks for the others.

The backend processes simple directories, with everything below them, several in one call (the *fast path*). It returns
what it has not entered. A directory that it does not process is entered by Python, one by one (the *slow path*). While
all other ranks have work, too, a task continues with the directories that it finds. For the rest it spawns tasks.

A program is a subclass of ``TreeWalk``, its *visitor*: it says what is done in a directory and with names.
"""

from __future__ import annotations

import errno
import time
from abc import ABC, abstractmethod
from array import array
from collections.abc import Callable, Sequence
from typing import ClassVar

from pcopy.engine.ticket import TicketGenerator
from pcopy.fast_named_tuple import NamedTuple
from pcopy.fsio.backend.batches import ALL_LEVELS, MAX_NAMES_IN_ROW, BatchFilters, ListNamesResult
from pcopy.fsio.backend.columns import OutcomeCode, column_of_zeros, pack_names
from pcopy.fsio.backend.walk_batches import RemainingItems, WalkResult
from pcopy.fsio.directories import DirectoriesBelowRoot
from pcopy.fsio.identity import ItemIdentity
from pcopy.fsio.problem import Problem
from pcopy.tasks.base import counts
from pcopy.tasks.base.job_filters import JobFilter
from pcopy.tasks.base.kind import DivisibleTask, TaskKind, TaskSteps
from pcopy.tasks.base.rank import CALL_COST, Rank
from pcopy.tasks.base.result import TaskResult
from pcopy.tasks.base.sibling_directories import (
    DIRECTORIES_PER_CALL_WITH_THREADS,
    MAX_TASK_SECONDS,
    DirectoriesPerCall,
    Siblings,
    call_deadline,
    should_task_continue,
    spawn_tasks_for_siblings,
)
from pcopy.tasks.base.values import NO_DIRECTORY_IDENTITY, Place
from pcopy.walk.listing import (
    NAMES_PER_BATCH,
    DirectoryListing,
    NameBatchQueue,
    queue_names_of_directory,
    unpack_name_batch,
)


class RemainingRows(NamedTuple):
    """Rows of a call of the backend that it has not processed: those left to the slow path (``deferred``), and those
    for which the time was over (``not_begun``).
    """

    deferred: Sequence[int]
    not_begun: Sequence[int]


def remaining_rows(result: WalkResult) -> RemainingRows:
    """Return the rows that a call of the backend has not processed."""
    codes = result.verdicts.codes
    if codes.count(OutcomeCode.DONE) == len(codes):
        return RemainingRows((), ())
    not_begun = [row for row, code in enumerate(codes) if code == OutcomeCode.CANCELLED]
    return RemainingRows(
        [row for row, code in enumerate(codes) if code not in (OutcomeCode.DONE, OutcomeCode.CANCELLED)], not_begun
    )


def walk_rows(
    rank: Rank,
    directory: int,
    device: int | None,
    found: Siblings,
    max_names: int = MAX_NAMES_IN_ROW,
    depth: int = ALL_LEVELS,
    above: bytes | None = None,
) -> tuple[int, bytes, array[int], int, int, int, float, BatchFilters | None]:
    """Return the first fields of a batch (``WalkBatch``) that processes the items ``found`` and everything below.

    Args:
        directory, device: descriptor and st_dev of the directory that contains them.
        max_names: largest number of names of a directory that is processed.
        depth: how many levels of directories below the items may be entered.
        above: path of that directory as filters see it; by default its path below the root.
    """
    inodes = array("Q", found.inodes) if found.inodes else column_of_zeros("Q", len(found.names))
    filters = rank.shared_instance(JobFilter).batch_filters(found.parent.path if above is None else above)
    return directory, pack_names(found.names), inodes, device or 0, max_names, depth, call_deadline(rank), filters


def may_enter_subtrees(
    rank: Rank, *directories: tuple[DirectoriesBelowRoot, bytes], limits_apply_to_rows: bool = True
) -> bool:
    """Return True if one call of the backend may process everything below the given directories, each of which is given
    by its root and its path.

    Return False if the backend has threads, because these can process the items of one directory in parallel. Return
    False also with a limit (--bwlimit, --oplimit), because then each item is counted against the limit, and if a file
    system is mounted there or below. Return False with any filter if each excluded item is reported, and with filters
    by age or size, which these batches do not apply.

    Args:
        rank: this rank.
        directories: for each directory, its root and its path.
        limits_apply_to_rows: False if filters by age or size do not concern the items, or if the caller applies them.
    """
    backend = rank.backend
    if not (backend.has_directory_batches and backend.runs_in_poll) or rank.throttle.is_on:
        return False
    filters = rank.shared_instance(JobFilter)
    if filters.has_filters and (rank.reports_unchanged_items or (limits_apply_to_rows and filters.tests_status)):
        return False
    return not any(root.expected_mounts.has_expected_mount_at_or_below(path) for root, path in directories)


def directory_below(parent: Place, path: bytes, inode: int, other_inode: int | None = None) -> Place:
    """Return the directory with this ``path`` relative to ``parent``, which lies on the same mount, and with this
    ``inode`` number; ``other_inode`` is that on the second side, if there is one.
    """
    other = NO_DIRECTORY_IDENTITY if other_inode is None else ItemIdentity(parent.target_id.mount_code, other_inode)
    identity = ItemIdentity(parent.source_id.mount_code, inode)
    return Place(parent.root, parent.path_of(path), identity, other, False, False)


def problem_of_other_directory(rank: Rank, parent: Place, name: bytes, inode: int) -> Problem | None:
    """Return the error if another directory than the one with the ``inode`` number in the listing of ``parent`` has the
    ``name`` now, for example because a file system was mounted. Other errors are not returned: the slow path meets them
    again.
    """
    path = parent.path_of(name)
    try:
        rank.sources[parent.root].identity_of_listed_directory(path, inode, parent.source_id.mount_code)
    except Problem as problem:
        return problem if problem.errno == errno.ESTALE else None
    return None


def spawn_tasks_for_names(
    rank: Rank,
    result: TaskResult,
    listing: DirectoryListing,
    make_task: Callable[[bytes, bytes, bytes], TaskKind],
    is_done: Callable[[ListNamesResult], bool] = lambda listed: False,
    *,
    needs_all: bool = False,
) -> TicketGenerator[tuple[int, int]]:
    """Read a large directory to its end, and spawn tasks for its names, in batches. Return the number of names and the
    number of tasks.

    Raise ``Problem`` if the directory cannot be read to its end. The names before the error have tasks nevertheless,
    unless ``needs_all`` is set.

    Args:
        listing: the listing of the directory, with types and inode numbers.
        make_task: function that returns the task for names (joined by slashes), type letters and inode numbers (8 bytes
            each).
        is_done: see ``queue_names_of_directory``.
    """
    spool = NameBatchQueue(rank.open_spool)
    number = -1
    try:
        number = yield from queue_names_of_directory(listing, spool, is_done)
    finally:
        if number >= 0 or not needs_all:
            tasks = (make_task(*each) for each in map(unpack_name_batch, spool))
            result.spawn_tasks_lazily(tasks, NAMES_PER_BATCH * CALL_COST, expands=True)
    return number, spool.batches_added


class TreeWalk(ABC):
    """Base class: the part of a walk that one task does. It has the directories that the task has found and has not
    entered yet.

    A subclass is the visitor of a program.
    """

    visits_on_entry: ClassVar[bool] = True
    """True if a directory itself is processed when it is entered; False if it is processed with the names of its
    parent.
    """

    may_divide_siblings: ClassVar[bool] = True
    """False if one call of the backend gets all directories that were found together."""

    def __init__(self, rank: Rank, result: TaskResult) -> None:
        self._rank = rank
        self._result = result
        self._remaining: list[Siblings] = []
        self._deadline = time.monotonic() + MAX_TASK_SECONDS
        self._has_begun = False
        """True if the task has processed something. Before that it enters a directory even if other ranks are idle."""

    @abstractmethod
    def may_be_rows(self, found: Siblings) -> bool:
        """Return True if one call of the backend can process the siblings ``found``."""

    def open_parent(self, parent: Place) -> Sequence[int]:
        """Return the descriptor of a directory whose items the backend processes, on each side. Raise ``Problem``."""
        return (self._rank.open_source_directory(parent),)

    @abstractmethod
    def process_in_backend(self, found: Siblings, directories: Sequence[int]) -> TicketGenerator[WalkResult]:
        """Process siblings and everything below them by one call of the backend, count what was done, and return the
        result. ``directories`` are the descriptors of their parent (``open_parent``).
        """

    def process_remaining_items(self, found: Siblings) -> TaskSteps:
        """Process items that the backend has not processed, for the reasons ``found.kinds``, except directories that
        are to be entered.
        """
        raise NotImplementedError

    def enter_directory(self, parent: Place, name: bytes, inode: int, other_inode: int) -> TaskSteps:
        """Process the contents of the subdirectory ``name`` of ``parent`` by the slow path. ``inode`` is the number
        that the listing has shown, ``other_inode`` that on the second side. This is called only for directories that
        have been processed themselves.
        """
        raise NotImplementedError

    def visit_directories(self, found: Siblings) -> TaskSteps:
        """Process directories that were not processed themselves, by the slow path, and add those that are to be
        entered. This is called only if ``visits_on_entry`` is set.
        """
        raise NotImplementedError

    def new_task(self, found: Siblings) -> DivisibleTask:
        """Return a task that processes the directories ``found`` and everything below them."""
        raise NotImplementedError

    def spawn_tasks(self, found: Siblings) -> None:
        """Spawn tasks that process the directories ``found`` and everything below them."""
        spawn_tasks_for_siblings(self._rank, self._result, found, self.new_task)

    def add(self, found: Siblings) -> None:
        """Add directories that the task has found, and that must be entered."""
        self._result.count(counts.UNSCANNED, len(found.names))
        self.put_back(found)

    def put_back(self, found: Siblings) -> None:
        """Add directories that were counted when they were found."""
        if found.names:
            self._remaining.append(found)

    def enter_directories_while_others_work(self) -> TaskSteps:
        """Process the contents of directories while all other ranks have work. Then spawn tasks for the remaining
        directories.
        """
        remaining, per_call = self._remaining, self._rank.shared_instance(DirectoriesPerCall)
        while remaining and (not self._has_begun or self.should_enter_more_directories()):
            self._has_begun = True
            found = remaining.pop()
            number = per_call.number if self.may_divide_siblings else len(found.names)
            first = found.part(0, number) if len(found.names) > number else found
            are_rows = found.are_simple and self.may_be_rows(first)
            if not are_rows and found.are_visited and len(first.names) > 1:
                first = found.part(0, 1)
            if first is not found:
                remaining.append(found.part(len(first.names)))
            began = time.monotonic()
            if are_rows:
                yield from self._enter_subtrees(first)
            else:
                yield from self._enter_by_slow_path(first)
            if self._rank.backend.runs_in_poll:
                per_call.adapt_to_duration(time.monotonic() - began)
            else:  # the rank handles messages during a call
                per_call.number = DIRECTORIES_PER_CALL_WITH_THREADS
            yield None  # idle ranks get answers to their requests
        for found in remaining:
            self.spawn_tasks(found)

    def should_enter_more_directories(self) -> bool:
        """Return True if the task should enter another directory itself."""
        return should_task_continue(self._rank, self._deadline)

    def process_rows(self, found: Siblings) -> TicketGenerator[RemainingRows]:
        """Process siblings and everything below them by one call of the backend; return the rows that remain. What
        remains below the others is added to the directories to be entered, or processed.
        """
        try:
            directories = self.open_parent(found.parent)
        except Problem:  # the slow path reports the error for each item
            return RemainingRows(range(len(found.names)), ())
        done = yield from self.process_in_backend(found, directories)
        for items in done.remaining:
            yield from self._process_frontier(found.parent, items)
        if any(done.letters):
            left = found.selected([row for row, letter in enumerate(done.letters) if letter])
            yield from self.process_remaining_items(left._replace(kinds=done.letters.translate(None, b"\0")))
        return remaining_rows(done)

    def _process_frontier(self, parent: Place, items: RemainingItems) -> TaskSteps:
        """Add the directories among items that the backend has not processed, and process the others. ``parent``
        contains the rows of the call.
        """
        place = directory_below(parent, items.directory, items.directory_inode, items.other_directory_inode or None)
        found = Siblings(place, items.names, items.inodes, (), items.kinds, not self.visits_on_entry)
        directories, others = found.divided_by_type()
        self.add(directories)
        if others.names:
            yield from self.process_remaining_items(others)

    def _enter_subtrees(self, found: Siblings) -> TaskSteps:
        """Process the contents of directories, and everything below, by one call of the backend."""
        deferred, not_begun = yield from self.process_rows(found)
        self._result.count(counts.UNSCANNED, len(deferred) + len(not_begun) - len(found.names))
        self.put_back(found.selected(not_begun))
        if deferred:
            slow = found.selected(deferred)._replace(are_simple=False)
            if found.are_visited:
                self.put_back(slow.part(1))
                slow = slow.part(0, 1)
            yield from self._enter_by_slow_path(slow)

    def _enter_by_slow_path(self, found: Siblings) -> TaskSteps:
        """Process one directory, or several that were not processed themselves, by the slow path."""
        self._result.count(counts.UNSCANNED, -len(found.names))
        if found.are_visited:
            other_inode = found.other_inodes[0] if found.other_inodes else 0
            yield from self.enter_directory(found.parent, found.names[0], found.inodes[0], other_inode)
        else:
            yield from self.visit_directories(found)
