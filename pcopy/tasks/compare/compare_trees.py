"""CompareDirs and CompareNamedItems: list the directories that both sides have, and compare the items in them.

One task examines a directory on both sides. Each name is statted on both, so the task knows at once which names only
one side has, and no rank has to collect names. If only one side has a directory, its name is reported, and its contents
are not examined.

The backend enters the directories that both sides have by itself, and counts the items that are equal. It returns the
others: differences in contents, items that Python has to compare, and directories that it has not entered.

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
from pcopy.tasks.base.job import CompareOptions
from pcopy.tasks.base.job_filters import JobFilter
from pcopy.tasks.base.kind import DivisibleTask, TaskSteps
from pcopy.tasks.base.rank import CALL_COST, Rank
from pcopy.tasks.base.result import TaskResult
from pcopy.tasks.base.sibling_directories import Siblings, directory_slices_per_task
from pcopy.tasks.base.values import Place, pack_numbers, unpack_numbers
from pcopy.tasks.compare.compare_names import DirectoryItemsComparison
from pcopy.tasks.compare.properties import ACL, REPORTS_EQUAL, XATTR
from pcopy.tasks.compare.sides import (
    SIDES,
    BothSidesWalk,
    directory_place_on_side,
    open_on_both_sides,
    report_uncompared_item,
)
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

    ``inodes`` are their inode numbers on the first side, ``others`` those on the second side (8 bytes each). If
    ``is_compared`` is false, the directories themselves have to be compared, too; the numbers on the second side are
    unknown then. ``are_simple`` is false if the backend could not compare them.
    """

    inodes: bytes
    others: bytes
    is_compared: bool = True
    are_simple: bool = True

    columns = ("inodes", "others")
    operations_per_item = 4

    def run(self, rank: Rank, result: TaskResult) -> TaskSteps:
        walk = _ComparisonWalk(rank, result)
        names, inodes, others = unpack_names(self.names), unpack_numbers(self.inodes), unpack_numbers(self.others)
        walk.put_back(
            Siblings(self.place, names, inodes, others, are_visited=self.is_compared, are_simple=self.are_simple)
        )
        yield from walk.enter_directories_while_others_work()


class CompareNamedItems(DivisibleTask, code=121, doing="comparing", is_note=False):
    """Task that compares the items ``names`` (joined by slashes) of ``place``. At least one side has each of them.

    With ``skips_first_side``, names that the first side has are skipped, since other tasks compare them.
    """

    skips_first_side: bool = False

    operations_per_item = 2
    min_items_per_portion = 16

    def run(self, rank: Rank, result: TaskResult) -> TaskSteps:
        """Compare the items; with ``skips_first_side`` only those that the first side does not have."""
        walk, packed = _ComparisonWalk(rank, result), self.names
        if self.skips_first_side:
            opened = walk.open_both_sides(self.place, unpack_names(packed))
            packed = (yield from _missing_names(rank, opened[0], packed)) if opened else b""
        if packed:
            yield from walk.compare_items(self.place, packed)
            yield from walk.enter_directories_while_others_work()


class _ComparisonWalk(BothSidesWalk):
    """The visitor of a comparison: compares items of both sides, and the contents of the directories that both have."""

    def __init__(self, rank: Rank, result: TaskResult) -> None:
        options = rank.program_options(CompareOptions)
        super().__init__(rank, result, options.compare, options.modify_window)

    def enter_directories_while_others_work(self) -> TaskSteps:
        """Compare directories as long as other ranks have work, leave the rest to new tasks, then send the differences
        to rank 0.
        """
        yield from super().enter_directories_while_others_work()
        self._found.send(self._result)

    def new_task(self, found: Siblings) -> CompareDirs:
        others = pack_numbers([*found.other_inodes] or [0] * len(found.names))
        return CompareDirs(*found.packed(), others, found.are_visited, found.are_simple)

    def may_be_rows(self, found: Siblings) -> bool:
        """Return True if the backend may compare items of a directory, with everything below them. That is so if Python
        need not examine the items (no limit of age or size, extended attributes or report of equal items), and if no
        file system is mounted in the directory or below.
        """
        options = self._rank.options
        if self._properties & (ACL | XATTR | REPORTS_EQUAL) or options.direct or options.drop_cache:
            return False
        return found.names[0] != ROOT_PATH and super().may_be_rows(found)

    def spawn_tasks_for_items(self, place: Place, names: Sequence[bytes]) -> None:
        for share in directory_slices_per_task(self._rank, len(names)):
            task = CompareNamedItems(place, pack_names(names[share]))
            self._result.spawn_task(task, len(names[share]) * CALL_COST, expands=True)

    def process_unequal_items(self, place: Place, by_letter: dict[int, list[bytes]]) -> TaskSteps:
        return self._compare_one_by_one(place, [*chain.from_iterable(by_letter.values())])

    def visit_directories(self, found: Siblings) -> TaskSteps:
        return self._compare_one_by_one(found.parent, found.names)

    def open_both_sides(self, place: Place, names: Sequence[bytes]) -> tuple[int, int] | None:
        """Open the directory on both sides and return the descriptors. If that fails, count all ``names`` in it as
        found and failed, and return None.
        """
        opened = open_on_both_sides(self._rank, self._result, place, names)
        if opened is None:
            self._result.count(counts.FOUND, len(names))
        return opened

    def compare_items(self, place: Place, packed: bytes) -> TaskSteps:
        """Compare the names ``packed`` (at least one) of directory ``place``, with everything below them as far as the
        backend enters it; the others one by one.
        """
        self._has_begun = True
        found = Siblings(place, unpack_names(packed), are_visited=False)
        if self.may_be_rows(found) and not self._rank.shared_instance(JobFilter).has_filters:
            deferred, not_begun = yield from self.process_rows(found)
            self.spawn_tasks_for_items(place, found.selected(not_begun).names)
            found = found.selected(deferred)
        if found.names:
            yield from self._compare_one_by_one(place, found.names)

    def _compare_one_by_one(self, place: Place, names: Sequence[bytes]) -> TaskSteps:
        """Stat, filter and compare items of directory ``place`` one by one; report differences, and add sub-directories
        to those to be entered.
        """
        opened = self.open_both_sides(place, names)
        if opened is None:
            return
        comparison = DirectoryItemsComparison(self._rank, self._result, place, opened, pack_names(names))
        yield from comparison.stat_names_on_both_sides()
        yield from comparison.compare_pairs()
        comparison.report_results(self._found)
        below = comparison.common_subdirectories()
        if below:
            names, inodes, other_inodes = zip(*below, strict=True)
            self.add(Siblings(place, names, inodes, other_inodes))

    def enter_directory(self, parent: Place, name: bytes, inode: int, other_inode: int) -> TaskSteps:
        """Compare the contents of one directory on both sides. The name ``.`` means ``parent`` itself."""
        rank, result, inodes = self._rank, self._result, (inode, other_inode)
        path = parent.path if name == ROOT_PATH else os.path.join(parent.path, name)
        place, side = parent._replace(path=path), 0
        listings: list[DirectoryListing] = []
        try:
            for side in SIDES:
                identity = _checked_identity(rank, side, directory_place_on_side(parent, side), path, inodes[side])
                place = place._replace(target_id=identity) if side else place._replace(source_id=identity)
                directory = rank.open_source_directory(directory_place_on_side(place, side))
                rank.sources[side].expected_mounts.check_mount_is_not_new(directory)
                listings.append((yield from list_directory(rank.backend, directory)))
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
                yield from self._compare_items_or_spawn_task(
                    place, _union_of_names(*(listing.names for listing in listings))
                )
        except _ListingFailed as unlisted:
            report_uncompared_item(result, place, unlisted.side, ROOT_PATH, unlisted.problem)
        else:
            result.count(counts.DIRECTORIES)

    def _compare_items_or_spawn_task(self, place: Place, packed: bytes) -> TaskSteps:
        """Compare the names ``packed`` of the directory ``place`` in this task, if they are few or quickly compared;
        otherwise spawn a task for them.
        """
        rank = self._rank
        number, paces = packed.count(b"/") + bool(packed), rank.shared_instance(ItemDurations)
        if number <= MAX_NAMES_IN_TASK or (
            paces.is_too_quick_to_divide(CompareNamedItems.code, number) and not rank.throttle.is_on
        ):
            yield from rank.throttle.charge_limits_and_wait(operations=2 * number)
            began = time.monotonic()
            if packed:
                yield from self.compare_items(place, packed)
                paces.record_duration(CompareNamedItems.code, number, time.monotonic() - began)
        else:
            self._result.spawn_task(CompareNamedItems(place, packed), number * CALL_COST, expands=True)


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
