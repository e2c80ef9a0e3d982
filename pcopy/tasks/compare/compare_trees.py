"""CompareDirs and CompareNames: list directories that both sides have, and compare the items in them.

One task examines a directory on both sides. Each name is statted on both, so it is known immediately which side alone
has it, and no rank has to collect names. Of a directory that only one side has, nothing but its name is examined.

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
from pcopy.fsio.backend.batches import StatNames
from pcopy.fsio.backend.columns import MODE, RowCode, Verdicts, pack_names, unpack_names
from pcopy.fsio.backend.directory_batches import CompareDirectories, ContentsResult, ItemCounts, RemainingItems
from pcopy.fsio.identity import Identity
from pcopy.fsio.problem import Problem
from pcopy.fsio.source import status_of
from pcopy.signature.items import DIRECTORY, FILE, ROOT_PATH
from pcopy.tasks.base import counts
from pcopy.tasks.base.dividing import ItemDurations
from pcopy.tasks.base.job_filters import JobFilter
from pcopy.tasks.base.kind import DivisibleTask, Steps
from pcopy.tasks.base.rank import CALL_COST, SCAN_COST, Rank
from pcopy.tasks.base.result import TaskResult
from pcopy.tasks.base.sibling_directories import (
    MAX_TASK_SECONDS,
    DirectoriesPerCall,
    enters_several_per_call,
    task_slices,
)
from pcopy.tasks.base.values import Place, pack_numbers, unpack_numbers
from pcopy.tasks.compare.compare_names import NameComparison
from pcopy.tasks.compare.properties import ACL, CONTENT, REPORTS_EQUAL, XATTR
from pcopy.tasks.compare.report_differences import DifferenceReporter
from pcopy.tasks.compare.sides import SIDES, on_side, open_sides, report_not_compared
from pcopy.walk.listing import NAMES_PER_BATCH, DirectoryListing, NameQueue, list_directory, spool_names

MAX_NAMES_IN_TASK = 64
"""Number of names up to which the task that lists a directory also stats them. More names become tasks that other ranks
may take, unless they can be statted quickly.
"""
MAX_MERGED_NAMES = 1 << 17
"""Number of names of a directory, both sides together, that one rank merges in memory (some 20 MB).

If there are more, the names of the second side are statted on the first side once more.
"""

_CONTENTS = ord("c")


class CompareDirs(DivisibleTask, code=120, doing="comparing", is_note=False):
    """Compares the directories ``names`` of ``place`` (``.``: the place itself), which both sides have.

    ``inodes`` are their inode numbers on the first side, ``others`` those on the second side.
    """

    inodes: bytes
    others: bytes

    columns = ("inodes", "others")
    operations_per_item = 4

    def run(self, rank: Rank, result: TaskResult) -> Steps:
        """Compare the directories until ``LONG`` seconds have passed or the rank stops; the remaining ones become new
        tasks.
        """
        found, end, row = DifferenceReporter(rank), time.monotonic() + MAX_TASK_SECONDS, 0
        names, inodes, others = unpack_names(self.names), unpack_numbers(self.inodes), unpack_numbers(self.others)
        at_once, is_simple = rank.instance(DirectoriesPerCall), len(names) > 1 and _may_use_batch(rank, self.place)
        while row < len(names):
            number, began = at_once.number if is_simple else 1, time.monotonic()
            part = slice(row, row + number)
            row += number
            if number > 1:
                siblings = _Siblings(self.place, names[part], inodes[part], others[part])
                yield from _compare_batch(rank, result, found, siblings)
            else:
                result.count(counts.UNSCANNED, -1)
                yield from _compare_directory(
                    rank, result, found, self.place, names[part][0], (inodes[part][0], others[part][0])
                )
            now = time.monotonic()
            at_once.adapt(now - began)
            if row < len(names) and (rank.stop_reason is not None or now > end):
                rest = self._replace(
                    names=pack_names(names[row:]), inodes=self.inodes[8 * row :], others=self.others[8 * row :]
                )
                for task in rest.divide(min(2, rest.item_count)):
                    result.spawn(task, task.item_count * SCAN_COST, expands=True)
                break
        found.send(result)


class _Siblings(NamedTuple):
    """Sibling directories that both sides have, with their inode numbers on the first side (``inodes``) and the second
    (``others``).
    """

    around: Place
    names: Sequence[bytes]
    inodes: Sequence[int]
    others: Sequence[int]


def _may_use_batch(rank: Rank, parent: Place) -> bool:
    """Return True if the backend may compare the contents of several sub-directories of ``parent`` in one call."""
    options = rank.options
    if not enters_several_per_call(rank) or rank.instance(JobFilter).has_filters:
        return False
    if options.compare & (ACL | XATTR | REPORTS_EQUAL) or options.direct or options.drop_cache:
        return False
    return not any(rank.sources[side].expected_mounts.has_mount_at_or_in(parent.path) for side in SIDES)


def _compare_batch(rank: Rank, result: TaskResult, found: DifferenceReporter, siblings: _Siblings) -> Steps:
    """Compare some directories in one batch of the backend; those that it cannot compare are done one by one."""
    parent = siblings.around
    done = yield from _submit_comparison(rank, siblings)
    _count_compared(rank, result, done.counts)
    for row, code in enumerate(done.verdicts.codes):
        result.count(counts.UNSCANNED, -1)
        name, both = siblings.names[row], (siblings.inodes[row], siblings.others[row])
        if code != RowCode.DONE:
            yield from _compare_directory(rank, result, found, parent, name, both)
            continue
        result.count(counts.DIRECTORIES)
        if row in done.remaining:
            first, second = (
                Identity(parent.source_id.mount_code, both[0]),
                Identity(parent.target_id.mount_code, both[1]),
            )
            place = Place(parent.root, os.path.join(parent.path, name), first, second, False, False)
            yield from _continue_directory(rank, result, found, place, done.remaining[row])


def _submit_comparison(rank: Rank, siblings: _Siblings) -> TicketGenerator[ContentsResult]:
    """Compare the directories in one batch; return a result in which nothing is done if the parent cannot be opened."""
    sides = [on_side(siblings.around, side) for side in SIDES]
    try:
        first, second = map(rank.open_source, sides)
    except Problem:  # the task of each directory reports it
        return ContentsResult(Verdicts(len(siblings.names)), ItemCounts(), {})
    devices = rank.source_device(sides[0]) or 0, rank.source_device(sides[1]) or 0
    numbers = array("Q", siblings.inodes), array("Q", siblings.others)
    wanted, window = rank.options.compare, rank.options.modify_window
    batch = CompareDirectories(
        first, pack_names(siblings.names), second, *numbers, devices, NAMES_PER_BATCH - 1, wanted, window
    )
    return (yield from rank.execute(batch))


def _count_compared(rank: Rank, result: TaskResult, sums: ItemCounts) -> None:
    """Count items that are equal, and files that differ in their contents. The directories are counted when they are
    complete.
    """
    result.count(counts.FOUND, sums.files + sums.directories + sums.links + sums.other_items)
    result.count(counts.FILES, sums.files)
    result.count(counts.SYMLINKS, sums.links)
    result.count(counts.SPECIAL, sums.other_items)
    result.count(counts.FOUND_BYTES, sums.bytes)
    result.count(counts.BYTES, sums.bytes)
    rank.counters[counts.MOVED] += sums.bytes


def _continue_directory(
    rank: Rank, result: TaskResult, found: DifferenceReporter, place: Place, remaining: RemainingItems
) -> Steps:
    """Process the items of a directory that the backend did not decide, and spawn tasks for its sub-directories."""
    names = unpack_names(remaining.names)
    directories, differing, undecided = list[tuple[bytes, int, int]](), list[bytes](), list[bytes]()
    for name, kind, inode, other in zip(names, remaining.kinds, remaining.inodes, remaining.other_inodes, strict=True):
        if kind == DIRECTORY[0]:
            directories.append((name, inode, other))
        else:
            (differing if kind == _CONTENTS else undecided).append(name)
    found.add(place.path, differing, [CONTENT] * len(differing), FILE * len(differing))
    _spawn_directories(rank, result, place, directories)
    if undecided:
        opened = open_sides(rank, result, place, undecided)
        if opened is None:
            result.count(counts.FOUND, len(undecided))
        else:
            yield from compare_names(rank, result, found, place, opened, pack_names(undecided))


def _compare_directory(
    rank: Rank, result: TaskResult, found: DifferenceReporter, parent: Place, name: bytes, inodes: tuple[int, int]
) -> Steps:
    """Compare the contents of one directory.

    Args:
        parent: the directory that contains ``name`` (``.``: the directory itself).
        inodes: inode numbers of the directory on the first and the second side.
    """
    path = parent.path if name == ROOT_PATH else os.path.join(parent.path, name)
    place, side = parent._replace(path=path), 0
    listings: list[DirectoryListing] = []
    try:
        for side in SIDES:
            identity = _checked_identity(rank, side, on_side(parent, side), path, inodes[side])
            place = place._replace(target_id=identity) if side else place._replace(source_id=identity)
            listings.append((yield from list_directory(rank.backend, rank.open_source(on_side(place, side)))))
    except Problem as problem:
        report_not_compared(result, place, side, ROOT_PATH, problem)
        return
    opened = open_sides(rank, result, place, [ROOT_PATH])
    if opened is None:
        return
    for side in SIDES:
        if not listings[side].number and not status_of(opened[side], on_source=True).st_nlink:
            removed = Problem("readdir", errno.ENOENT, on_source=True, changed=True)
            report_not_compared(result, place, side, ROOT_PATH, removed)
            return
    try:
        if any(listing.may_have_more for listing in listings):
            yield from _spawn_names(rank, result, place, listings)
        else:
            yield from _compare_or_spawn(
                rank, result, found, place, opened, _union_of_names(*(listing.names for listing in listings))
            )
    except _ListingFailed as unlisted:
        report_not_compared(result, place, unlisted.side, ROOT_PATH, unlisted.problem)
    else:
        result.count(counts.DIRECTORIES)


class _ListingFailed(Exception):
    """Raised if a directory cannot be listed to its end on one ``side``."""

    def __init__(self, side: int, problem: Problem) -> None:
        super().__init__(problem)
        self.side, self.problem = side, problem


def _checked_identity(rank: Rank, side: int, parent: Place, path: bytes, inode: int) -> Identity:
    """Return the identity of the directory ``path``; raise ``Problem`` (ESTALE) if it is not the one that was found.

    A file system that was mounted there since then is accepted.
    """
    directories = rank.sources[side]
    identity = directories.identity(path)
    if path != parent.path and identity.mount_code == parent.source_id.mount_code and identity.inode != inode:
        directories.discard(path)
        raise Problem("open", errno.ESTALE, on_source=True, text="the directory was replaced meanwhile")
    return identity


def _union_of_names(first: bytes, second: bytes) -> bytes:
    """Return the union of two packed lists of names."""
    if first == second or not second:
        return first
    if not first:
        return second
    names = unpack_names(first)
    known_names = {*names}
    return pack_names(chain(names, (name for name in unpack_names(second) if name not in known_names)))


def _compare_or_spawn(
    rank: Rank, result: TaskResult, found: DifferenceReporter, place: Place, opened: tuple[int, int], packed: bytes
) -> Steps:
    """Compare the names of a directory here if they are few or quickly statted; otherwise spawn a task for them."""
    number, paces = packed.count(b"/") + bool(packed), rank.instance(ItemDurations)
    if number <= MAX_NAMES_IN_TASK or (
        paces.is_too_quick_to_divide(CompareNames.code, number) and not rank.throttle.is_on
    ):
        yield from rank.throttle.charge_and_wait(operations=2 * number)
        began = time.monotonic()
        if packed:
            yield from compare_names(rank, result, found, place, opened, packed)
            paces.record_duration(CompareNames.code, number, time.monotonic() - began)
    else:
        result.spawn(CompareNames(place, packed), number * CALL_COST, expands=True)


def _spawn_names(rank: Rank, result: TaskResult, place: Place, listings: Sequence[DirectoryListing]) -> Steps:
    """Spawn tasks that compare the many names of a large directory. Raise ``_ListingFailed`` if it cannot be listed to
    its end.
    """
    spools = [NameQueue(rank.open_spool) for _ in SIDES]
    numbers = []
    for side in SIDES:
        try:
            numbers.append((yield from spool_names(listings[side], spools[side])))
        except Problem as problem:
            raise _ListingFailed(side, problem) from None
    tasks: Iterator[CompareNames]
    if sum(numbers) <= MAX_MERGED_NAMES:
        tasks = (
            CompareNames(place, packed)
            for packed in _name_batches(_union_of_names(*(b"/".join(spool) for spool in spools)))
        )
    else:
        tasks = chain(
            (CompareNames(place, packed) for packed in spools[0]),
            (CompareNames(place, packed, True) for packed in spools[1]),
        )
    result.spawn_each(tasks, NAMES_PER_BATCH * CALL_COST, expands=True)


def _name_batches(packed: bytes) -> Iterator[bytes]:
    """Yield packed names in portions of ``NAMES_AT_ONCE``."""
    names = unpack_names(packed)
    return (pack_names(names[start : start + NAMES_PER_BATCH]) for start in range(0, len(names), NAMES_PER_BATCH))


class CompareNames(DivisibleTask, code=121, doing="comparing", is_note=False):
    """Compares names of ``place`` that either side has. With ``skips_first_side``, names that the first side has are
    skipped, since other tasks compare them.
    """

    skips_first_side: bool = False

    operations_per_item = 2
    min_items_per_portion = 16

    def run(self, rank: Rank, result: TaskResult) -> Steps:
        """Compare the names, without those that the first side has if ``skips_first_side``."""
        names = unpack_names(self.names)
        opened = open_sides(rank, result, self.place, names)
        if opened is None:
            result.count(counts.FOUND, len(names))
            return
        packed = (yield from _missing_names(rank, opened[0], self.names)) if self.skips_first_side else self.names
        if packed:
            found = DifferenceReporter(rank)
            yield from compare_names(rank, result, found, self.place, opened, packed)
            found.send(result)


def _missing_names(rank: Rank, directory: int, packed: bytes) -> TicketGenerator[bytes]:
    """Return those of the packed names that the open directory of the first side certainly does not have (ENOENT)."""
    verdicts = (yield from rank.execute(StatNames(directory, packed, MODE, on_source=True))).verdicts
    if verdicts.codes.count(RowCode.DONE) == len(verdicts):
        return b""
    names = unpack_names(packed)
    return pack_names(
        names[row]
        for row, code in enumerate(verdicts.codes)
        if code != RowCode.DONE and verdicts.errnos[row] == errno.ENOENT
    )


def compare_names(
    rank: Rank, result: TaskResult, found: DifferenceReporter, place: Place, opened: tuple[int, int], packed: bytes
) -> TicketGenerator[None]:
    """Stat, filter and compare the names ``packed`` (at least one) of a directory that is open on both sides; report
    differences.
    """
    looking = NameComparison(rank, result, place, opened, packed)
    yield from looking.stat_both()
    yield from looking.compare_pairs()
    looking.report(found)
    _spawn_directories(rank, result, place, looking.subdirectories())


def _spawn_directories(rank: Rank, result: TaskResult, place: Place, below: Sequence[tuple[bytes, int, int]]) -> None:
    """Spawn tasks that compare sub-directories, given as name and inode number on each side."""
    for share in task_slices(rank, len(below)):
        names, *inodes = zip(*below[share], strict=True)
        task = CompareDirs(place, pack_names(names), *(pack_numbers([*each]) for each in inodes))
        result.spawn(task, len(names) * SCAN_COST, expands=True)
    result.count(counts.UNSCANNED, len(below))
