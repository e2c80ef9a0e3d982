"""CompareDirs and CompareNamedItems: list the directories that both sides have, and compare the items in them.

One task examines a directory on both sides. Each name is statted on both, so the task knows at once which names only
one side has, and no rank has to collect names. If only one side has a directory, its name is reported, and its contents
are not examined.

Rules: An item that cannot be listed or statted on either side has failed; it is not reported as missing on that side.
Filters select an item if they select it on either side.
"""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Iterator, Sequence
from itertools import chain

from pcopy.engine.ticket import TicketGenerator
from pcopy.fsio.backend.batches import StatNamesBatch
from pcopy.fsio.backend.columns import MODE_COLUMN, OutcomeCode, pack_names, unpack_names
from pcopy.fsio.identity import ItemIdentity
from pcopy.fsio.problem import Problem
from pcopy.fsio.source import status_of_open_item
from pcopy.signature.items import ROOT_PATH
from pcopy.tasks.base import counts
from pcopy.tasks.base.dividing import ItemDurations
from pcopy.tasks.base.kind import DivisibleTask, TaskSteps
from pcopy.tasks.base.rank import CALL_COST, SCAN_COST, Rank
from pcopy.tasks.base.result import TaskResult
from pcopy.tasks.base.sibling_directories import MAX_TASK_SECONDS, directory_slices_per_task
from pcopy.tasks.base.values import Place, pack_numbers, unpack_numbers
from pcopy.tasks.compare.compare_names import DirectoryItemsComparison
from pcopy.tasks.compare.compare_subtrees import UncomparedItems, compare_subtrees, may_compare_subtrees
from pcopy.tasks.compare.report_differences import DifferenceReporter
from pcopy.tasks.compare.sides import SIDES, directory_place_on_side, open_on_both_sides, report_uncompared_item
from pcopy.walk.listing import (
    NAMES_PER_BATCH,
    DirectoryListing,
    NameBatchQueue,
    list_directory,
    queue_names_of_directory,
)

MAX_NAMES_IN_TASK = 64
"""Number of names up to which the task that lists a directory also compares them. More names become tasks that other
ranks may take, unless they were found to be compared quickly.
"""
MAX_MERGED_NAMES = 1 << 17
"""Number of names of a directory, both sides together, that one rank merges in memory (some 20 MB).

If there are more, tasks compare the names of the first side; other tasks stat the names of the second side on the first
side, and compare only those that the first side does not have.
"""


class CompareDirs(DivisibleTask, code=120, doing="comparing", is_note=False):
    """Task that compares the contents of the directories ``names`` (joined by slashes) of ``place``, which both sides
    have. The name ``.`` means ``place`` itself.

    ``inodes`` are their inode numbers on the first side, ``others`` those on the second side (8 bytes each).
    """

    inodes: bytes
    others: bytes

    columns = ("inodes", "others")
    operations_per_item = 4

    def run(self, rank: Rank, result: TaskResult) -> TaskSteps:
        """Compare directories until ``MAX_TASK_SECONDS`` have passed or the rank stops; the remaining ones become new
        tasks.
        """
        found, end = DifferenceReporter(rank), time.monotonic() + MAX_TASK_SECONDS
        names, inodes, others = unpack_names(self.names), unpack_numbers(self.inodes), unpack_numbers(self.others)
        rows, not_begun = [*range(len(names))], list[int]()
        if self.names != ROOT_PATH and may_compare_subtrees(rank, self.place):
            rows, not_begun, remaining = yield from compare_subtrees(
                rank, result, found, self.place, names, (inodes, others)
            )
            yield from _compare_remaining_items(rank, result, found, remaining)
        while rows:
            row = rows.pop(0)
            result.count(counts.UNSCANNED, -1)
            yield from _compare_directory(rank, result, found, self.place, names[row], (inodes[row], others[row]))
            if rank.stop_reason is not None or time.monotonic() > end:
                break
        self._spawn_tasks_for_rows(result, [*rows, *not_begun])
        found.send(result)

    def _spawn_tasks_for_rows(self, result: TaskResult, rows: Sequence[int]) -> None:
        """Spawn tasks for those directories whose indices are ``rows``."""
        if not rows:
            return
        names = unpack_names(self.names)
        inodes, others = (
            b"".join(column[8 * row : 8 * row + 8] for row in rows) for column in (self.inodes, self.others)
        )
        rest = self._replace(names=pack_names(names[row] for row in rows), inodes=inodes, others=others)
        for task in rest.divide(min(2, rest.item_count)):
            result.spawn_task(task, task.item_count * SCAN_COST, expands=True)


def _compare_remaining_items(
    rank: Rank, result: TaskResult, found: DifferenceReporter, remaining: Sequence[UncomparedItems]
) -> TaskSteps:
    """Compare the items that the backend has left to Python (``remaining``), and spawn tasks for the directories that
    it has not entered.
    """
    for place, undecided, directories in remaining:
        for share in directory_slices_per_task(rank, len(directories)):
            names = directories[share]
            result.spawn_task(CompareNamedItems(place, pack_names(names)), len(names) * SCAN_COST, expands=True)
        if undecided:
            opened = open_on_both_sides(rank, result, place, undecided)
            if opened is None:
                result.count(counts.FOUND, len(undecided))
            else:
                yield from _compare_names_one_by_one(rank, result, found, place, opened, pack_names(undecided))


def _compare_directory(
    rank: Rank, result: TaskResult, found: DifferenceReporter, parent: Place, name: bytes, inodes: tuple[int, int]
) -> TaskSteps:
    """Compare the contents of one directory on both sides.

    Args:
        found: receives the differences.
        parent: the directory that contains ``name``. The name ``.`` means ``parent`` itself.
        inodes: inode numbers of the directory on the first and the second side.
    """
    path = parent.path if name == ROOT_PATH else os.path.join(parent.path, name)
    place, side = parent._replace(path=path), 0
    listings: list[DirectoryListing] = []
    try:
        for side in SIDES:
            identity = _checked_identity(rank, side, directory_place_on_side(parent, side), path, inodes[side])
            place = place._replace(target_id=identity) if side else place._replace(source_id=identity)
            listings.append(
                (
                    yield from list_directory(
                        rank.backend, rank.open_source_directory(directory_place_on_side(place, side))
                    )
                )
            )
    except Problem as problem:
        report_uncompared_item(result, place, side, ROOT_PATH, problem)
        return
    opened = open_on_both_sides(rank, result, place, [ROOT_PATH])
    if opened is None:
        return
    for side in SIDES:
        if not listings[side].name_count and not status_of_open_item(opened[side], on_source=True).st_nlink:
            removed = Problem("readdir", errno.ENOENT, on_source=True, changed=True)
            report_uncompared_item(result, place, side, ROOT_PATH, removed)
            return
    try:
        if any(listing.may_have_more_batches for listing in listings):
            yield from _spawn_tasks_for_names(rank, result, place, listings)
        else:
            yield from _compare_items_or_spawn_task(
                rank, result, found, place, opened, _union_of_names(*(listing.names for listing in listings))
            )
    except _ListingFailed as unlisted:
        report_uncompared_item(result, place, unlisted.side, ROOT_PATH, unlisted.problem)
    else:
        result.count(counts.DIRECTORIES)


class _ListingFailed(Exception):
    """Raised if a directory cannot be listed to its end. ``side`` is the side on which that happened, ``problem`` the
    reason.
    """

    def __init__(self, side: int, problem: Problem) -> None:
        super().__init__(problem)
        self.side, self.problem = side, problem


def _checked_identity(rank: Rank, side: int, parent: Place, path: bytes, inode: int) -> ItemIdentity:
    """Return the identity (mount and inode) of the directory ``path`` on the side ``side``. Raise ``Problem`` (ESTALE)
    if its inode number is no longer the one that was found, ``inode``.

    If a file system was mounted there since, the identity of its top directory is returned.
    """
    directories = rank.sources[side]
    identity = directories.identity_of_directory(path)
    if path != parent.path and identity.mount_code == parent.source_id.mount_code and identity.inode != inode:
        directories.discard_directory(path)
        raise Problem("open", errno.ESTALE, on_source=True, text="the directory was replaced meanwhile")
    return identity


def _union_of_names(first: bytes, second: bytes) -> bytes:
    """Return all names of two lists (each joined by slashes), each name once."""
    if first == second or not second:
        return first
    if not first:
        return second
    names = unpack_names(first)
    known_names = {*names}
    return pack_names(chain(names, (name for name in unpack_names(second) if name not in known_names)))


def _compare_items_or_spawn_task(
    rank: Rank, result: TaskResult, found: DifferenceReporter, place: Place, opened: tuple[int, int], packed: bytes
) -> TaskSteps:
    """Compare the names ``packed`` of the directory ``place`` in this task, if they are few or quickly compared;
    otherwise spawn a task for them.

    Args:
        found: receives the differences.
        opened: descriptors of the directory on both sides.
    """
    number, paces = packed.count(b"/") + bool(packed), rank.shared_instance(ItemDurations)
    if number <= MAX_NAMES_IN_TASK or (
        paces.is_too_quick_to_divide(CompareNamedItems.code, number) and not rank.throttle.is_on
    ):
        yield from rank.throttle.charge_limits_and_wait(operations=2 * number)
        began = time.monotonic()
        if packed:
            yield from _compare_named_items(rank, result, found, place, opened, packed)
            paces.record_duration(CompareNamedItems.code, number, time.monotonic() - began)
    else:
        result.spawn_task(CompareNamedItems(place, packed), number * CALL_COST, expands=True)


def _spawn_tasks_for_names(
    rank: Rank, result: TaskResult, place: Place, listings: Sequence[DirectoryListing]
) -> TaskSteps:
    """Spawn tasks that compare the names of a large directory; ``listings`` read the names on both sides in portions.
    Raise ``_ListingFailed`` if it cannot be listed to its end.
    """
    spools = [NameBatchQueue(rank.open_spool) for _ in SIDES]
    numbers = []
    for side in SIDES:
        try:
            numbers.append((yield from queue_names_of_directory(listings[side], spools[side])))
        except Problem as problem:
            raise _ListingFailed(side, problem) from None
    tasks: Iterator[CompareNamedItems]
    if sum(numbers) <= MAX_MERGED_NAMES:
        tasks = (
            CompareNamedItems(place, packed)
            for packed in _name_batches(_union_of_names(*(b"/".join(spool) for spool in spools)))
        )
    else:
        tasks = chain(
            (CompareNamedItems(place, packed) for packed in spools[0]),
            (CompareNamedItems(place, packed, True) for packed in spools[1]),
        )
    result.spawn_tasks_lazily(tasks, NAMES_PER_BATCH * CALL_COST, expands=True)


def _name_batches(packed: bytes) -> Iterator[bytes]:
    """Generator: divide the names ``packed`` (joined by slashes) into portions of ``NAMES_PER_BATCH``."""
    names = unpack_names(packed)
    return (pack_names(names[start : start + NAMES_PER_BATCH]) for start in range(0, len(names), NAMES_PER_BATCH))


class CompareNamedItems(DivisibleTask, code=121, doing="comparing", is_note=False):
    """Task that compares the items ``names`` (joined by slashes) of ``place``. At least one side has each of them.

    With ``skips_first_side``, names that the first side has are skipped, since other tasks compare them.
    """

    skips_first_side: bool = False

    operations_per_item = 2
    min_items_per_portion = 16

    def run(self, rank: Rank, result: TaskResult) -> TaskSteps:
        """Compare the items; with ``skips_first_side`` only those that the first side does not have."""
        names = unpack_names(self.names)
        opened = open_on_both_sides(rank, result, self.place, names)
        if opened is None:
            result.count(counts.FOUND, len(names))
            return
        packed = (yield from _missing_names(rank, opened[0], self.names)) if self.skips_first_side else self.names
        if packed:
            found = DifferenceReporter(rank)
            yield from _compare_named_items(rank, result, found, self.place, opened, packed)
            found.send(result)


def _missing_names(rank: Rank, directory: int, packed: bytes) -> TicketGenerator[bytes]:
    """Return those of the names ``packed`` that do not exist in ``directory`` (stat(2) fails with ENOENT). Names with
    other errors are not returned.
    """
    verdicts = (yield from rank.execute_batch(StatNamesBatch(directory, packed, MODE_COLUMN, on_source=True))).verdicts
    if verdicts.codes.count(OutcomeCode.DONE) == len(verdicts):
        return b""
    names = unpack_names(packed)
    return pack_names(
        names[row]
        for row, code in enumerate(verdicts.codes)
        if code != OutcomeCode.DONE and verdicts.errnos[row] == errno.ENOENT
    )


def _compare_named_items(
    rank: Rank, result: TaskResult, found: DifferenceReporter, place: Place, opened: tuple[int, int], packed: bytes
) -> TaskSteps:
    """Compare the names ``packed`` (at least one) of directory ``place``, with everything below them as far as the
    backend enters it; the others one by one.

    Args:
        found: receives the differences.
        opened: descriptors of the directory on both sides.
    """
    if packed != ROOT_PATH and may_compare_subtrees(rank, place):
        names = unpack_names(packed)
        unusual, not_begun, remaining = yield from compare_subtrees(rank, result, found, place, names)
        yield from _compare_remaining_items(rank, result, found, remaining)
        if not_begun:
            task = CompareNamedItems(place, pack_names(names[row] for row in not_begun))
            result.spawn_task(task, len(not_begun) * CALL_COST, expands=True)
        packed = pack_names(names[row] for row in unusual)
    if packed:
        yield from _compare_names_one_by_one(rank, result, found, place, opened, packed)


def _compare_names_one_by_one(
    rank: Rank, result: TaskResult, found: DifferenceReporter, place: Place, opened: tuple[int, int], packed: bytes
) -> TicketGenerator[None]:
    """Stat, filter and compare the names ``packed`` (at least one) of directory ``place``; report differences, and
    spawn tasks for sub-directories.

    Args:
        found: receives the differences.
        opened: descriptors of the directory on both sides.
    """
    looking = DirectoryItemsComparison(rank, result, place, opened, packed)
    yield from looking.stat_names_on_both_sides()
    yield from looking.compare_pairs()
    looking.report_results(found)
    _spawn_directory_comparisons(rank, result, place, looking.common_subdirectories())


def _spawn_directory_comparisons(
    rank: Rank, result: TaskResult, place: Place, below: Sequence[tuple[bytes, int, int]]
) -> None:
    """Spawn tasks that compare the sub-directories ``below``, each given by its name and its inode number on each
    side.
    """
    for share in directory_slices_per_task(rank, len(below)):
        names, *inodes = zip(*below[share], strict=True)
        task = CompareDirs(place, pack_names(names), *(pack_numbers([*each]) for each in inodes))
        result.spawn_task(task, len(names) * SCAN_COST, expands=True)
    result.count(counts.UNSCANNED, len(below))
