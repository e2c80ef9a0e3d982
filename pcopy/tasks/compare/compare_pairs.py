"""``ComparePairs`` compares two trees in names, types and contents (``pverify A B``): the backend compares items with
everything below them, and what it does not find equal is read on each side for its digest.

A pair of equal items is counted once on each side, and needs no digest. All other items are examined and read by the
tasks that read a single tree (``ScanDir``, ``ScanNames``, ``ReadItems``), on each side by itself; their digests are
compared at the end (``pcopy.tasks.sign``). So items that only one side has are found with everything below them, and
errors, retries, mounts and sockets are handled as in a tree that is read for its signature.
"""

from __future__ import annotations

import errno
import os
import stat
import time
from collections.abc import Iterator, Sequence
from itertools import chain, groupby
from operator import itemgetter

from pcopy.engine.ticket import TicketGenerator
from pcopy.fsio.backend.columns import INODE_COLUMN, MODE_COLUMN, OutcomeCode, pack_names, unpack_names
from pcopy.fsio.identity import ItemIdentity
from pcopy.fsio.problem import Problem
from pcopy.fsio.source import status_of_open_item
from pcopy.signature.items import ROOT_PATH
from pcopy.signature.sorting import ExternalSorter
from pcopy.tasks.base import counts
from pcopy.tasks.base.kind import DivisibleTask, TaskKind, TaskSteps
from pcopy.tasks.base.rank import CALL_COST, SCAN_COST, Rank
from pcopy.tasks.base.result import RetryMode, TaskResult
from pcopy.tasks.base.sibling_directories import Siblings, spawn_tasks_for_siblings
from pcopy.tasks.base.tree_walk import RemainingRows, may_enter_subtrees
from pcopy.tasks.base.values import Place
from pcopy.tasks.compare.properties import CONTENT, TYPE
from pcopy.tasks.compare.sides import SIDES, BothSidesWalk, directory_place_on_side, stat_on_both_sides
from pcopy.tasks.directories.scan_dir import ScanDir, ScanNames
from pcopy.walk.listing import NAMES_PER_BATCH, NameBatchQueue, list_directory, queue_names_of_directory

MAX_NAMES_IN_SETS = 1 << 17
"""Number of names of a directory, both sides together, up to which sets find the names that both sides have (some 20
MB). More names are sorted, in temporary files if they do not fit in memory.
"""
_ONLY_FIRST, _ONLY_SECOND = b"<>"
"""Letters with which the backend leaves items that only one side has."""
_BOTH = len(SIDES)
"""Says of a name that both sides have it. If only one side has it, the number of the side says so."""


class ComparePairs(DivisibleTask, code=128, doing="comparing", is_note=False):
    """Task that compares the items ``names`` (joined by slashes) of ``place``, which both sides have listed, with
    everything below them. The name ``.`` means ``place`` itself, which is the root.

    ``are_directories`` is True if both sides have listed directories, which are counted as not read yet.
    """

    are_directories: bool = False

    operations_per_item = 2

    def run(self, rank: Rank, result: TaskResult) -> TaskSteps:
        """Have the backend compare the items, and have the others examined on each side. Directories that were not
        entered become new tasks.
        """
        if self.names == ROOT_PATH:
            yield from _compare_roots(rank, result, self.place)
            return
        yield from _PairsWalk(rank, result).compare_items(self)


class _PairsWalk(BothSidesWalk):
    """The visitor of a comparison side by side. It enters no directories itself: other tasks do that."""

    counts_per_pair = len(SIDES)

    def __init__(self, rank: Rank, result: TaskResult) -> None:
        super().__init__(rank, result, TYPE | CONTENT)

    def compare_items(self, task: ComparePairs) -> TaskSteps:
        """Do the work of ``task``, and spawn tasks for the directories for which the time was over."""
        place, names, later = task.place, unpack_names(task.names), list[bytes]()
        if may_enter_subtrees(self._rank):
            found, rows = Siblings(place, names, are_visited=False), RemainingRows(range(len(names)), ())
            if self.may_be_rows(found):
                rows = yield from self.process_rows(found)
            later = yield from self._compare_one_by_one(place, found.selected(rows.deferred).names)
            later = [*found.selected(rows.not_begun).names, *later]
        else:
            yield from self._examine_items(place, (names, names))
        if task.are_directories:
            self._result.count(counts.UNSCANNED, -len(SIDES) * (len(names) - len(later)))
        self.spawn_tasks_for_items(place, later, are_directories=task.are_directories)
        self._found.send(self._result)

    def add(self, found: Siblings) -> None:
        """Spawn tasks that compare directories that both sides have."""
        self._result.count(counts.UNSCANNED, len(SIDES) * len(found.names))
        self.spawn_tasks_for_items(found.parent, found.names, are_directories=True)

    def spawn_tasks_for_items(self, place: Place, names: Sequence[bytes], *, are_directories: bool = False) -> None:
        """Spawn tasks that compare the items ``names``. ``are_directories`` is the field of ``ComparePairs``."""
        spawn_tasks_for_siblings(
            self._rank,
            self._result,
            Siblings(place, names),
            lambda share: ComparePairs(place, pack_names(share.names), are_directories),
        )

    def process_unequal_items(self, place: Place, by_letter: dict[int, list[bytes]]) -> TaskSteps:
        """Have items examined on each side that has them; by other tasks if the time is over."""
        one_sided = by_letter.pop(_ONLY_FIRST, []), by_letter.pop(_ONLY_SECOND, [])
        on_both = [*chain.from_iterable(by_letter.values())]
        return self._examine_items(place, [each + on_both for each in one_sided], may_be_later=True)

    def _examine_items(
        self, place: Place, names: Sequence[Sequence[bytes]], *, may_be_later: bool = False
    ) -> TaskSteps:
        """Have items of the directory ``place`` examined, and read for their digests, on each side by itself.

        Args:
            names: for each side, the names of the items.
            may_be_later: True if other tasks do it if the time is over.
        """
        for side in SIDES:
            if not names[side]:
                continue
            task = ScanNames(directory_place_on_side(place, side), pack_names(names[side]), 0)
            if may_be_later and time.monotonic() > self._deadline:
                self._result.spawn_task(task, len(names[side]) * CALL_COST, expands=True)
            else:
                yield from task.run(self._rank, self._result)

    def _compare_one_by_one(self, place: Place, names: Sequence[bytes]) -> TicketGenerator[list[bytes]]:
        """Process items ``names`` of the directory ``place`` that the backend cannot compare. Of directories, the names
        are compared; all other items are examined on each side. Return the names of directories that were left because
        the time was over.
        """
        if not names:
            return []
        rank = self._rank
        try:
            directories = self.open_parent(place)
        except Problem:  # reported when the items are examined
            yield from self._examine_items(place, (names, names))
            return []
        stated = yield from stat_on_both_sides(rank, directories, pack_names(names), MODE_COLUMN | INODE_COLUMN)
        examined, later, listed = list[bytes](), list[bytes](), 0
        for row, name in enumerate(names):
            if any(
                each.verdicts.codes[row] != OutcomeCode.DONE or not stat.S_ISDIR(each.rows.mode[row]) for each in stated
            ):
                examined.append(name)
            elif listed and (rank.stop_reason is not None or time.monotonic() > self._deadline):
                later.append(name)
            else:
                listed += 1
                inodes = [each.rows.inode[row] for each in stated]
                if not (yield from _compare_subdirectory(rank, self._result, place, name, inodes)):
                    examined.append(name)
        yield from self._examine_items(place, (examined, examined))
        return later


def _compare_subdirectory(
    rank: Rank, result: TaskResult, parent: Place, name: bytes, inodes: Sequence[int]
) -> TicketGenerator[bool]:
    """List the directory ``name`` of ``parent`` on both sides, and spawn tasks that compare the names. Return False,
    with nothing done, if it cannot be listed on both sides, or if it is a known mount point. If a file system was
    mounted there since the start of the job, count the directory as failed.

    Args:
        inodes: for each side, the inode number of the directory.
    """
    path = os.path.join(parent.path, name)
    expected = [
        ItemIdentity(identity.mount_code, inode)
        for identity, inode in zip((parent.source_id, parent.target_id), inodes, strict=True)
    ]
    try:
        for side in SIDES:
            if rank.sources[side].identity_of_directory(path) != expected[side]:
                return False
    except Problem:  # reported when the directory is examined
        return False
    place = parent._replace(path=path, source_id=expected[0], target_id=expected[1])
    if _is_newly_mounted(rank, result, place):
        return True
    is_listed = yield from _compare_listed_names(rank, result, place)
    if is_listed:
        result.count(counts.FOUND, len(SIDES))
    return is_listed


def _is_newly_mounted(rank: Rank, result: TaskResult, place: Place) -> bool:
    """Return True if a file system was mounted on the directory ``place`` of either side since the start of the job.
    Then count the directory of each side as failed. Other errors are reported when the directory is listed.
    """
    directories = [directory_place_on_side(place, side) for side in SIDES]
    for side in SIDES:
        try:
            rank.sources[side].expected_mounts.check_mount_is_not_new(rank.open_source_directory(directories[side]))
        except Problem as problem:
            if problem.errno != errno.ESTALE:
                continue
            result.count(counts.FOUND, len(SIDES))
            for directory in directories:
                result.count_item_as_failed(directory, b"", problem, retry=RetryMode.NEVER)
            return True
    return False


def _compare_roots(rank: Rank, result: TaskResult, place: Place) -> TaskSteps:
    """Compare the roots, two directories, which are counted as found and not read yet. If that is not possible, have
    each scanned by itself.
    """
    if may_enter_subtrees(rank) and (yield from _compare_listed_names(rank, result, place)):
        result.count(counts.UNSCANNED, -len(SIDES))
        return
    for side in SIDES:
        root = directory_place_on_side(place, side)
        result.spawn_task(ScanDir(side, b"", root.source_id, None), SCAN_COST, expands=True)


def _compare_listed_names(rank: Rank, result: TaskResult, place: Place) -> TicketGenerator[bool]:
    """List the directory ``place`` on both sides, and spawn tasks for the names: those that both sides have are
    compared, the others are examined. Return False, with nothing done, if the directory cannot be listed.
    """
    queues = [NameBatchQueue(rank.open_spool) for _ in SIDES]
    number = 0
    try:
        for side, queue in enumerate(queues):
            number += yield from _queue_names(rank, directory_place_on_side(place, side), queue)
    except Problem:  # reported when the directory is examined
        return False
    if number <= MAX_NAMES_IN_SETS:
        names = _names_with_sides(*([name for packed in queue for name in unpack_names(packed)] for queue in queues))
    else:
        sorter = ExternalSorter(rank.open_spool)
        for side, queue in enumerate(queues):
            for packed in queue:
                sorter.extend([(name, bytes((side,))) for name in unpack_names(packed)])
                yield None
        names = _sorted_names_with_sides(sorter)
    result.count(counts.DIRECTORIES, len(SIDES))
    result.spawn_tasks_lazily(_tasks_for_names(place, names), NAMES_PER_BATCH * CALL_COST, expands=True)
    return True


def _queue_names(rank: Rank, directory: Place, queue: NameBatchQueue) -> TicketGenerator[int]:
    """Add the names in ``directory``, which has the form of a source directory, to ``queue``, and return their number.
    Raise ``Problem`` if it cannot be listed to its end, or was removed.
    """
    descriptor = rank.open_source_directory(directory)
    listing = yield from list_directory(rank.backend, descriptor)
    if not listing.name_count and not status_of_open_item(descriptor, on_source=True).st_nlink:
        raise Problem("readdir", 0, on_source=True, text="the directory was removed")
    return (yield from queue_names_of_directory(listing, queue))


def _names_with_sides(first: Sequence[bytes], second: Sequence[bytes]) -> Iterator[tuple[bytes, int]]:
    """Yield the names of two lists, each name once, with the number of the list that has it, or ``_BOTH``."""
    known, others = {*first}, {*second}
    yield from ((name, _BOTH if name in others else 0) for name in first)
    yield from ((name, 1) for name in second if name not in known)


def _sorted_names_with_sides(sorter: ExternalSorter) -> Iterator[tuple[bytes, int]]:
    """Yield the names in ``sorter``, each name once, with the number of the side that has it, or ``_BOTH``. Close it at
    the end.
    """
    for name, records in groupby(sorter.sorted(), itemgetter(0)):
        sides = {packed[0] for _, packed in records}
        yield name, _BOTH if len(sides) > 1 else sides.pop()
    sorter.close()


def _tasks_for_names(place: Place, names: Iterator[tuple[bytes, int]]) -> Iterator[TaskKind]:
    """Yield tasks for all ``names`` in the directory ``place``, each with a limited number of names. With each name
    comes the number of the side that has it, or ``_BOTH``.
    """
    waiting: list[list[bytes]] = [[], [], []]
    for name, side in names:
        waiting[side].append(name)
        if len(waiting[side]) == NAMES_PER_BATCH:
            yield _task_for_names(place, waiting[side], side)
            waiting[side] = []
    for side, remaining in enumerate(waiting):
        if remaining:
            yield _task_for_names(place, remaining, side)


def _task_for_names(place: Place, names: Sequence[bytes], side: int) -> TaskKind:
    """Return a task for items ``names`` of ``place`` that exist on this side only, or on both (``_BOTH``)."""
    packed = pack_names(names)
    return ComparePairs(place, packed) if side == _BOTH else ScanNames(directory_place_on_side(place, side), packed, 0)
