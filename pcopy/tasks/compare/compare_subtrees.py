"""Comparison of whole subtrees of both sides by one call of the backend.

The backend enters the directories that both sides have by itself, and counts the items that are equal. It returns the
others: differences in contents, items that Python has to compare, and directories that it has not entered.
"""

from __future__ import annotations

import os
from array import array
from collections.abc import Sequence

from pcopy.engine.ticket import TicketGenerator
from pcopy.fast_named_tuple import NamedTuple
from pcopy.fsio.backend.batches import ALL_LEVELS, ItemCounts
from pcopy.fsio.backend.columns import OutcomeCode, column_of_zeros, pack_names
from pcopy.fsio.backend.walk_batches import CompareTreesBatch, CompareTreesResult, RemainingItems
from pcopy.fsio.identity import ItemIdentity
from pcopy.fsio.problem import Problem
from pcopy.signature.items import DIRECTORY, FILE
from pcopy.tasks.base import counts
from pcopy.tasks.base.job import CompareOptions
from pcopy.tasks.base.job_filters import JobFilter
from pcopy.tasks.base.rank import Rank
from pcopy.tasks.base.result import TaskResult
from pcopy.tasks.base.sibling_directories import call_deadline, enters_several_per_call
from pcopy.tasks.base.values import Place
from pcopy.tasks.compare.properties import ACL, CONTENT, REPORTS_EQUAL, XATTR
from pcopy.tasks.compare.report_differences import DifferenceReporter
from pcopy.tasks.compare.sides import SIDES, directory_place_on_side
from pcopy.walk.listing import NAMES_PER_BATCH

_CONTENTS = ord("c")
"""Letter with which the backend reports a regular file that differs only in its contents."""


class UncomparedItems(NamedTuple):
    """Items of the directory ``place`` that the backend has not compared: ``undecided`` names, to be compared one by
    one, and ``directories`` that it has not entered, because the time was over or because it cannot enter them.
    """

    place: Place
    undecided: list[bytes]
    directories: list[bytes]


class ComparedRows(NamedTuple):
    """Rows of a batch that were not compared: ``unusual`` ones, which Python has to compare, and those that were
    ``not_begun`` because the time was over. ``remaining`` are the items of the other rows that remain, by directory.
    """

    unusual: list[int]
    not_begun: list[int]
    remaining: list[UncomparedItems]


def may_compare_subtrees(rank: Rank, place: Place) -> bool:
    """Return True if the backend may compare everything in and below the directory ``place``. That is so if Python need
    not examine the items (no filter, extended attributes or report of equal items), and if no file system is mounted
    there or below.
    """
    wanted, options = rank.program_options(CompareOptions).compare, rank.options
    if not enters_several_per_call(rank) or rank.shared_instance(JobFilter).has_filters:
        return False
    if wanted & (ACL | XATTR | REPORTS_EQUAL) or options.direct or options.drop_cache:
        return False
    return not any(rank.sources[side].expected_mounts.has_expected_mount_at_or_below(place.path) for side in SIDES)


def compare_subtrees(
    rank: Rank,
    result: TaskResult,
    found: DifferenceReporter,
    place: Place,
    names: Sequence[bytes],
    inodes: tuple[Sequence[int], Sequence[int]] | None = None,
) -> TicketGenerator[ComparedRows]:
    """Compare items ``names`` of the directory ``place``, with everything below them, by one call of the backend. Count
    what was compared, and report files whose contents differ to ``found``.

    Args:
        inodes: for each side, the inode numbers of the items, if these are directories that were compared themselves,
            and only their contents remain; None for items of any type.
    """
    sides = [directory_place_on_side(place, side) for side in SIDES]
    try:
        first, second = map(rank.open_source_directory, sides)
    except Problem:  # the caller reports the error for each item
        return ComparedRows([*range(len(names))], [], [])
    numbers = [array("Q", each) for each in inodes] if inodes else [column_of_zeros("Q", len(names)) for _ in SIDES]
    options = rank.program_options(CompareOptions)
    batch = CompareTreesBatch(
        first,
        pack_names(names),
        numbers[0],
        rank.source_device(sides[0]) or 0,
        NAMES_PER_BATCH - 1,
        ALL_LEVELS,
        call_deadline(rank),
        second,
        numbers[1],
        rank.source_device(sides[1]) or 0,
        options.compare,
        options.modify_window,
        inodes is None,
    )
    compared = yield from rank.execute_batch(batch)
    return _count_and_report(rank, result, found, place, names, compared, are_entered=inodes is not None)


def _count_and_report(
    rank: Rank,
    result: TaskResult,
    found: DifferenceReporter,
    place: Place,
    names: Sequence[bytes],
    compared: CompareTreesResult,
    *,
    are_entered: bool,
) -> ComparedRows:
    """Count the items that a batch has compared, report files whose contents differ, and return the remaining items.

    Args:
        names: the rows of the batch.
        are_entered: True if the rows are directories that were counted as found before.
    """
    remaining = [_remaining_items(found, place, each) for each in compared.remaining]
    _count_items(rank, result, compared.counts)
    codes = compared.verdicts.codes
    done = codes.count(OutcomeCode.DONE) if are_entered else 0
    result.count(counts.DIRECTORIES, compared.counts.directories + done)
    result.count(counts.UNSCANNED, -done)
    _report_contents(found, place.path, [names[row] for row in compared.differing_rows])
    return ComparedRows(
        [row for row, code in enumerate(codes) if code == OutcomeCode.SLOW_PATH],
        [row for row, code in enumerate(codes) if code == OutcomeCode.CANCELLED],
        remaining,
    )


def _count_items(rank: Rank, result: TaskResult, sums: ItemCounts) -> None:
    """Count the items that the backend has found equal, and the files of which only the contents differ. ``sums`` are
    their numbers. Directories are counted as found only, since those of the rows may have been found before.
    """
    result.count(counts.FOUND, sums.files + sums.directories + sums.links + sums.other_items)
    result.count(counts.FILES, sums.files)
    result.count(counts.SYMLINKS, sums.links)
    result.count(counts.SPECIAL, sums.other_items)
    result.count(counts.FOUND_BYTES, sums.bytes)
    result.count(counts.BYTES, sums.bytes)
    rank.counters[counts.MOVED] += sums.bytes


def _report_contents(found: DifferenceReporter, path: bytes, names: list[bytes]) -> None:
    """Report the files ``names`` of the directory ``path``, which differ only in their contents, to ``found``."""
    found.add_item_differences(path, names, [CONTENT] * len(names), FILE * len(names))


def _remaining_items(found: DifferenceReporter, parent: Place, group: RemainingItems) -> UncomparedItems:
    """Report those items of ``group`` that are files with other contents to ``found``, and return the others.
    ``parent`` is the directory that contains the rows of the batch.
    """
    identities = (
        ItemIdentity(parent.source_id.mount_code, group.directory_inode),
        ItemIdentity(parent.target_id.mount_code, group.other_directory_inode),
    )
    place = Place(parent.root, os.path.join(parent.path, group.directory), *identities, False, False)
    directories, differing, undecided = list[bytes](), list[bytes](), list[bytes]()
    for name, kind in zip(group.names, group.kinds, strict=True):
        (directories if kind == DIRECTORY[0] else differing if kind == _CONTENTS else undecided).append(name)
    _report_contents(found, place.path, differing)
    return UncomparedItems(place, undecided, directories)
