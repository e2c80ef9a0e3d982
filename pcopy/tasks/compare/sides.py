"""The two sides of a comparison, 0 and 1, and the walk of both. Both are roots of the job that are only read.

A ``Place`` has the identity of the directory on the first side in ``source_id``, and the one on the second side in
``target_id``.
"""

from __future__ import annotations

from abc import abstractmethod
from array import array
from collections.abc import Sequence
from typing import ClassVar

from pcopy.engine.ticket import TicketGenerator
from pcopy.fsio.backend.batches import ItemCounts, StatNamesBatch, StatNamesResult
from pcopy.fsio.backend.columns import OutcomeCode, column_of_zeros
from pcopy.fsio.backend.interface import await_ticket
from pcopy.fsio.backend.walk_batches import CompareTreesBatch, WalkResult
from pcopy.fsio.problem import Problem
from pcopy.signature.items import FILE, ROOT_PATH
from pcopy.tasks.base import counts
from pcopy.tasks.base.kind import TaskSteps
from pcopy.tasks.base.rank import Rank
from pcopy.tasks.base.result import RetryMode, TaskResult
from pcopy.tasks.base.sibling_directories import Siblings
from pcopy.tasks.base.tree_walk import TreeWalk, may_enter_subtrees, walk_rows
from pcopy.tasks.base.values import NO_DIRECTORY_IDENTITY, Place
from pcopy.tasks.compare.properties import CONTENT
from pcopy.tasks.compare.report_differences import DifferenceReporter

SIDES = (0, 1)
"""The numbers of the two sides."""

_CONTENTS, _NOT_COMPARED = b"cn"
"""Letters with which the backend reports a regular file that differs only in its contents, and one that it has not
compared because it had read enough of the directory.
"""


class BothSidesWalk(TreeWalk):
    """Base class of visitors that compare items of both sides, with everything below them, by calls of the backend."""

    counts_per_pair: ClassVar[int] = 1
    """How often a pair of items is counted."""

    def __init__(self, rank: Rank, result: TaskResult, properties: int, modify_window: int = 0) -> None:
        """Compare the ``properties`` (bits of ``pcopy.tasks.compare.properties``). ``modify_window`` is the number of
        seconds by which mtimes may differ.
        """
        super().__init__(rank, result)
        self._properties = properties
        self._modify_window = modify_window
        self._found = DifferenceReporter(rank)

    def may_be_rows(self, found: Siblings) -> bool:
        """Return True if no file system is mounted in the directory or below on either side, and no limit requires that
        Python examines the items.
        """
        rank, path = self._rank, found.parent.path
        return may_enter_subtrees(rank, *((rank.sources[side], path) for side in SIDES))

    def open_parent(self, parent: Place) -> tuple[int, int]:
        first, second = (self._rank.open_source_directory(directory_place_on_side(parent, side)) for side in SIDES)
        return first, second

    def process_in_backend(self, found: Siblings, directories: Sequence[int]) -> TicketGenerator[WalkResult]:
        """Compare items and everything below them, or only what is in them if they are directories that were compared.
        Count what was compared.
        """
        rank, are_items = self._rank, not found.are_visited
        devices = [rank.source_device(directory_place_on_side(found.parent, side)) or 0 for side in SIDES]
        batch = CompareTreesBatch(
            *walk_rows(rank, directories[0], devices[0], found),
            directories[1],
            column_of_zeros("Q", len(found.names)) if are_items else array("Q", found.other_inodes),
            devices[1],
            self._properties,
            self._modify_window,
            are_items,
        )
        compared = yield from rank.execute_batch(batch)
        entered = 0 if are_items else compared.verdicts.codes.count(OutcomeCode.DONE)
        self._count_equal_items(compared.counts, entered)
        return compared

    def _count_equal_items(self, sums: ItemCounts, entered: int) -> None:
        """Count the items that the backend has found equal, and the files of which only the contents differ.

        Args:
            sums: their numbers.
            entered: number of directories that were entered and were found before.
        """
        result = self._result
        numbers = {
            counts.FILES: sums.files,
            counts.DIRECTORIES: sums.directories,
            counts.SYMLINKS: sums.links,
            counts.SPECIAL: sums.other_items,
            counts.SKIPPED: sums.excluded,
        }
        result.count(counts.FOUND, self.counts_per_pair * sum(numbers.values()))
        for counter, number in numbers.items():
            result.count(counter, self.counts_per_pair * number)
        result.count(counts.DIRECTORIES, entered)
        result.count(counts.EXCLUDED, sums.excluded)
        result.count(counts.FOUND_BYTES, sums.bytes)
        result.count(counts.BYTES, sums.bytes)
        self._rank.counters[counts.MOVED] += sums.bytes

    def process_remaining_items(self, found: Siblings) -> TaskSteps:
        """Report files that differ only in their contents, have files that were not compared compared by other tasks,
        and process the other items.
        """
        place, by_letter = found.parent, dict[int, list[bytes]]()
        for name, letter in zip(found.names, found.kinds, strict=True):
            by_letter.setdefault(letter, []).append(name)
        differing = by_letter.pop(_CONTENTS, [])
        self.spawn_tasks_for_items(place, by_letter.pop(_NOT_COMPARED, []))
        self._found.add_item_differences(place.path, differing, [CONTENT] * len(differing), FILE * len(differing))
        if by_letter:
            yield from self.process_unequal_items(place, by_letter)

    @abstractmethod
    def spawn_tasks_for_items(self, place: Place, names: Sequence[bytes]) -> None:
        """Spawn tasks that compare the items ``names`` of ``place`` with everything below them."""

    @abstractmethod
    def process_unequal_items(self, place: Place, by_letter: dict[int, list[bytes]]) -> TaskSteps:
        """Process the items of ``place`` that are not equal, or that the backend cannot compare: their names by the
        letters of ``CompareTreesBatch``.
        """


def directory_place_on_side(place: Place, side: int) -> Place:
    """Return the position (``Place``) of a directory on one side. ``place`` stands for both sides; the result has the
    form of a source directory, by which it can be opened.
    """
    return Place(side, place.path, place.target_id if side else place.source_id, NO_DIRECTORY_IDENTITY, False, False)


def open_on_both_sides(rank: Rank, result: TaskResult, place: Place, names: Sequence[bytes]) -> tuple[int, int] | None:
    """Open the directory on both sides and return the descriptors. If that fails, report all ``names`` in it as failed
    and return None.
    """
    opened = []
    for side in SIDES:
        try:
            opened.append(rank.open_source_directory(directory_place_on_side(place, side)))
        except Problem as problem:
            for name in names:
                report_uncompared_item(result, place, side, name, problem)
            return None
    return opened[0], opened[1]


def names_on_side(rank: Rank, side: int, names: bytes) -> bytes:
    """Return the names that the items ``names`` (joined by slashes) have on one side. They are the same on both sides,
    unless two single items are compared instead of directories (``names`` is ``.`` then): each has its own name.
    """
    return (rank.job.roots[side].item or names) if names == ROOT_PATH else names


def report_uncompared_item(
    result: TaskResult, place: Place, side: int, name: bytes, problem: Problem, size: int = 0
) -> None:
    """Report the item ``name`` of directory ``place`` as failed, because ``problem`` on one side has prevented its
    comparison. The name ``.`` means the directory itself. ``size`` is its size in bytes, if it is a file.
    """
    result.count_item_as_failed(
        directory_place_on_side(place, side), b"" if name == ROOT_PATH else name, problem, size, retry=RetryMode.NEVER
    )


def stat_on_both_sides(
    rank: Rank, directories: tuple[int, int], packed: bytes, columns: int
) -> TicketGenerator[list[StatNamesResult]]:
    """Stat the names ``packed`` (joined by slashes) on both sides at the same time; ``directories`` are the descriptors
    of the directory. Return the results of both sides. ``columns`` is the mask of the status columns that are needed.
    """
    backend = rank.backend
    tickets = [
        backend.submit_batch(
            StatNamesBatch(directories[side], names_on_side(rank, side, packed), columns, on_source=True)
        )
        for side in SIDES
    ]
    try:
        first = yield from await_ticket(backend, tickets[0])
    except BaseException:
        tickets[1].cancel()
        while not tickets[1].is_done:
            backend.poll()
        raise
    return [first, (yield from await_ticket(backend, tickets[1]))]
