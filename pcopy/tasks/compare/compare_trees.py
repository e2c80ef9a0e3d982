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
from array import array
from collections.abc import Iterator, Sequence
from itertools import chain

from pcopy.engine.ticket import TicketGenerator
from pcopy.fast_named_tuple import NamedTuple
from pcopy.fsio.backend.batches import ItemCounts, StatNamesBatch
from pcopy.fsio.backend.columns import MODE_COLUMN, BatchOutcomeColumns, OutcomeCode, pack_names, unpack_names
from pcopy.fsio.backend.directory_batches import CompareDirectoriesBatch, DirectoryContentsResult, UnprocessedItems
from pcopy.fsio.identity import ItemIdentity
from pcopy.fsio.problem import Problem
from pcopy.fsio.source import status_of_open_item
from pcopy.signature.items import DIRECTORY, FILE, ROOT_PATH
from pcopy.tasks.base import counts
from pcopy.tasks.base.dividing import ItemDurations
from pcopy.tasks.base.job import CompareOptions
from pcopy.tasks.base.job_filters import JobFilter
from pcopy.tasks.base.kind import DivisibleTask, TaskSteps
from pcopy.tasks.base.rank import CALL_COST, SCAN_COST, Rank
from pcopy.tasks.base.result import TaskResult
from pcopy.tasks.base.sibling_directories import (
    MAX_TASK_SECONDS,
    DirectoriesPerCall,
    directory_slices_per_task,
    enters_several_per_call,
)
from pcopy.tasks.base.values import Place, pack_numbers, unpack_numbers
from pcopy.tasks.compare.compare_names import DirectoryItemsComparison
from pcopy.tasks.compare.properties import ACL, CONTENT, REPORTS_EQUAL, XATTR
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

_CONTENTS = ord("c")
"""Type letter with which the backend reports a regular file that differs in its contents."""


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
        found, end, row = DifferenceReporter(rank), time.monotonic() + MAX_TASK_SECONDS, 0
        names, inodes, others = unpack_names(self.names), unpack_numbers(self.inodes), unpack_numbers(self.others)
        at_once, is_simple = (
            rank.shared_instance(DirectoriesPerCall),
            len(names) > 1 and _may_compare_directories_in_batch(rank, self.place),
        )
        while row < len(names):
            number, began = at_once.number if is_simple else 1, time.monotonic()
            part = slice(row, row + number)
            row += number
            if number > 1:
                siblings = _SiblingDirectories(self.place, names[part], inodes[part], others[part])
                yield from _compare_directories_in_batch(rank, result, found, siblings)
            else:
                result.count(counts.UNSCANNED, -1)
                yield from _compare_directory(
                    rank, result, found, self.place, names[part][0], (inodes[part][0], others[part][0])
                )
            now = time.monotonic()
            at_once.adapt_to_duration(now - began)
            if row < len(names) and (rank.stop_reason is not None or now > end):
                rest = self._replace(
                    names=pack_names(names[row:]), inodes=self.inodes[8 * row :], others=self.others[8 * row :]
                )
                for task in rest.divide(min(2, rest.item_count)):
                    result.spawn_task(task, task.item_count * SCAN_COST, expands=True)
                break
        found.send(result)


class _SiblingDirectories(NamedTuple):
    """Some sub-directories ``names`` of the directory ``around``, to be compared in one call. Both sides have them,
    with the inode numbers ``inodes`` on the first side and ``others`` on the second.
    """

    around: Place
    names: Sequence[bytes]
    inodes: Sequence[int]
    others: Sequence[int]


def _may_compare_directories_in_batch(rank: Rank, parent: Place) -> bool:
    """Return True if the backend may compare the contents of several sub-directories of ``parent`` in one call. That is
    so if items need no look in Python (no filter, extended attributes or report of equal items), and if no file system
    is mounted there.
    """
    wanted, options = rank.program_options(CompareOptions).compare, rank.options
    if not enters_several_per_call(rank) or rank.shared_instance(JobFilter).has_filters:
        return False
    if wanted & (ACL | XATTR | REPORTS_EQUAL) or options.direct or options.drop_cache:
        return False
    return not any(rank.sources[side].expected_mounts.has_expected_mount_at_or_in(parent.path) for side in SIDES)


def _compare_directories_in_batch(
    rank: Rank, result: TaskResult, found: DifferenceReporter, siblings: _SiblingDirectories
) -> TaskSteps:
    """Compare the contents of several directories (``siblings``) in one call of the backend. Those that the backend
    cannot process are then compared one by one. ``found`` receives the differences.
    """
    parent = siblings.around
    done = yield from _submit_comparison(rank, siblings)
    _count_compared_items(rank, result, done.counts)
    for row, code in enumerate(done.verdicts.codes):
        result.count(counts.UNSCANNED, -1)
        name, both = siblings.names[row], (siblings.inodes[row], siblings.others[row])
        if code != OutcomeCode.DONE:
            yield from _compare_directory(rank, result, found, parent, name, both)
            continue
        result.count(counts.DIRECTORIES)
        if row in done.remaining:
            first, second = (
                ItemIdentity(parent.source_id.mount_code, both[0]),
                ItemIdentity(parent.target_id.mount_code, both[1]),
            )
            place = Place(parent.root, os.path.join(parent.path, name), first, second, False, False)
            yield from _compare_remaining_items(rank, result, found, place, done.remaining[row])


def _submit_comparison(rank: Rank, siblings: _SiblingDirectories) -> TicketGenerator[DirectoryContentsResult]:
    """Let the backend compare the contents of the directories ``siblings``; return its result. If the parent directory
    cannot be opened, return a result in which no directory is done.
    """
    sides = [directory_place_on_side(siblings.around, side) for side in SIDES]
    try:
        first, second = map(rank.open_source_directory, sides)
    except Problem:  # ``_compare_directory`` reports the error for each directory
        return DirectoryContentsResult(BatchOutcomeColumns(len(siblings.names)), ItemCounts(), {})
    devices = rank.source_device(sides[0]) or 0, rank.source_device(sides[1]) or 0
    numbers = array("Q", siblings.inodes), array("Q", siblings.others)
    options = rank.program_options(CompareOptions)
    batch = CompareDirectoriesBatch(
        first,
        pack_names(siblings.names),
        second,
        *numbers,
        devices,
        NAMES_PER_BATCH - 1,
        options.compare,
        options.modify_window,
    )
    return (yield from rank.execute_batch(batch))


def _count_compared_items(rank: Rank, result: TaskResult, sums: ItemCounts) -> None:
    """Count the items that the backend has compared inside a directory and found equal, and the files of which only the
    contents differ. ``sums`` are their numbers. The directory itself is not counted here.
    """
    result.count(counts.FOUND, sums.files + sums.directories + sums.links + sums.other_items)
    result.count(counts.FILES, sums.files)
    result.count(counts.SYMLINKS, sums.links)
    result.count(counts.SPECIAL, sums.other_items)
    result.count(counts.FOUND_BYTES, sums.bytes)
    result.count(counts.BYTES, sums.bytes)
    rank.counters[counts.MOVED] += sums.bytes


def _compare_remaining_items(
    rank: Rank, result: TaskResult, found: DifferenceReporter, place: Place, remaining: UnprocessedItems
) -> TaskSteps:
    """Continue the comparison of directory ``place`` with the items that the backend has not found equal
    (``remaining``): report files whose contents differ, compare the others, and spawn tasks for sub-directories.
    """
    names = unpack_names(remaining.names)
    directories, differing, undecided = list[tuple[bytes, int, int]](), list[bytes](), list[bytes]()
    for name, kind, inode, other in zip(names, remaining.kinds, remaining.inodes, remaining.other_inodes, strict=True):
        if kind == DIRECTORY[0]:
            directories.append((name, inode, other))
        else:
            (differing if kind == _CONTENTS else undecided).append(name)
    found.add_item_differences(place.path, differing, [CONTENT] * len(differing), FILE * len(differing))
    _spawn_directory_comparisons(rank, result, place, directories)
    if undecided:
        opened = open_on_both_sides(rank, result, place, undecided)
        if opened is None:
            result.count(counts.FOUND, len(undecided))
        else:
            yield from compare_named_items(rank, result, found, place, opened, pack_names(undecided))


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
            yield from compare_named_items(rank, result, found, place, opened, packed)
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
            yield from compare_named_items(rank, result, found, self.place, opened, packed)
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


def compare_named_items(
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
