"""Sums of the work of ranks, for the report of a job: work of each rank, number of files by size, and the files that
took longest.

Each rank collects them in bounded memory. At the end of the job they are merged on their way up the tree of ranks
(``pcopy.engine.barrier``). So rank 0 receives a single message, with one ``RankWorkStatistics`` for each rank.
"""

from __future__ import annotations

import heapq
from array import array
from collections.abc import Iterable, Sequence

from pcopy.engine.messages import dump_primitives, load_primitives
from pcopy.fast_named_tuple import NamedTuple
from pcopy.signature.items import FILE
from pcopy.tasks.base.actions import ItemAction
from pcopy.tasks.base.item_outcomes import PackedItemOutcomes

MAX_SLOWEST_FILES = 20
"""Number of files in the report's list of those that took longest."""

_OUTCOME_OF_ACTION = {
    ItemAction.COPY: "copied",
    ItemAction.REPLACE: "copied",
    ItemAction.META: "skipped",
    ItemAction.SKIP: "skipped",
    ItemAction.FAIL: "failed",
}
"""Heading under which the report counts a file, by the action that was taken for it. Other actions are not counted."""

_FILE_TYPE_CODE = FILE[0]

NUMBER_OF_SIZE_CLASSES = 65
"""Number of size classes of files: class n has the files whose size needs n bits, from 0 (empty files) to 64."""


class RankWorkStatistics(NamedTuple):
    """Work of one rank in this run.

    Fields:
        rank: number of the rank.
        items: number of items that it copied, skipped or failed.
        moved: bytes that it copied or read back.
        tasks: number of tasks that ended on it.
        busy: seconds in which it ran tasks.
        seconds: duration of the run in seconds.
        taken, given: number of tasks that it received from and sent to other ranks.
    """

    rank: int
    items: int
    moved: int
    tasks: int
    busy: float
    seconds: float
    taken: int
    given: int


class SlowFile(NamedTuple):
    """A file whose copy took long, for the report's list of the slowest files.

    Fields:
        nanoseconds: duration of the copy.
        size: size in bytes.
        path: path as it is shown to the user.
    """

    nanoseconds: int
    size: int
    path: bytes


class FileSizeHistogram(NamedTuple):
    """Histogram of file sizes: class n has the files of 2**(n - 1) to 2**n - 1 bytes, class 0 the empty files.

    Fields:
        files: number of files, by class.
        bytes: sum of their sizes in bytes, by class.
    """

    files: list[int]
    bytes: list[int]

    @classmethod
    def empty_histogram(cls) -> FileSizeHistogram:
        """Return columns in which no file was counted yet."""
        return cls([0] * NUMBER_OF_SIZE_CLASSES, [0] * NUMBER_OF_SIZE_CLASSES)

    def add(self, sizes: Iterable[int]) -> None:
        """Add files with these ``sizes`` (in bytes), each to its class."""
        files, bytes_ = self
        for size in sizes:
            power = size.bit_length()
            files[power] += 1
            bytes_[power] += size

    def merge(self, other: Sequence[Sequence[int]]) -> None:
        """Add the histogram ``other`` of another rank: its columns ``files`` and ``bytes``."""
        for mine, others in zip(self, other, strict=True):
            for power, number in enumerate(others):
                mine[power] += number


class ReportSums:
    """Sums for the report of a job, of one rank or, after a merge, of several: the work of each rank, numbers of files
    by size, and the slowest files.

    Attributes: ``ranks`` has the work of each rank; ``sizes`` has a histogram of file sizes for each outcome ("copied",
    "skipped", "failed").
    """

    def __init__(self, _: object = None) -> None:
        self.ranks: list[RankWorkStatistics] = []
        self.sizes: dict[str, FileSizeHistogram] = {}
        self._slowest: list[SlowFile] = []  # a heap

    def add(self, items: Iterable[PackedItemOutcomes]) -> None:
        """Add items whose outcome is known to the histograms of sizes and to the list of the slowest files. The type of
        a failed item is unknown; it counts as a file if its size is not 0.
        """
        for each in items:
            outcome, sizes, kinds = _OUTCOME_OF_ACTION.get(ItemAction(each.action)), array("Q", each.sizes), each.kinds
            if outcome is None:
                continue
            of_files = [
                size for kind, size in zip(kinds, sizes, strict=True) if kind == _FILE_TYPE_CODE or (not kind and size)
            ]
            if of_files:
                self.sizes.setdefault(outcome, FileSizeHistogram.empty_histogram()).add(of_files)
            self._update_slowest_files(each, sizes)

    def _update_slowest_files(self, items: PackedItemOutcomes, sizes: Sequence[int]) -> None:
        """Update the list of the slowest files with those regular files among ``items`` that took longer to copy than
        files in it. ``sizes`` are the sizes of the items in bytes. Files with a duration of 0 are skipped: it was not
        measured.
        """
        for row, took in enumerate(array("Q", items.nanoseconds)):
            is_slow = len(self._slowest) < MAX_SLOWEST_FILES or took > self._slowest[0].nanoseconds
            if took and is_slow and items.kinds[row] == _FILE_TYPE_CODE:
                self._add_slow_file(SlowFile(took, sizes[row], items.path_of_item(row)))

    def _add_slow_file(self, slow: SlowFile) -> None:
        """Add the file ``slow`` to the list of the slowest files, unless the list is full and the file was faster than
        all of them.
        """
        if len(self._slowest) < MAX_SLOWEST_FILES:
            heapq.heappush(self._slowest, slow)
        else:
            heapq.heappushpop(self._slowest, slow)

    @property
    def slowest_files(self) -> list[SlowFile]:
        """The files that took longest, the slowest first."""
        return sorted(self._slowest, reverse=True)

    def merge(self, packed: bytes) -> None:
        """Add the sums of other ranks. ``packed`` is the result of ``sums_as_bytes`` there."""
        ranks, sizes, slowest = load_primitives(packed)
        self.ranks += (RankWorkStatistics(*each) for each in ranks)
        for outcome, columns in sizes.items():
            self.sizes.setdefault(outcome, FileSizeHistogram.empty_histogram()).merge(columns)
        for each in slowest:
            self._add_slow_file(SlowFile(*each))

    def sums_as_bytes(self) -> bytes:
        """Return the sums as bytes, for a message to another rank, which adds them by ``merge``."""
        ranks = [tuple(each) for each in sorted(self.ranks)]
        sizes = {outcome: tuple(columns) for outcome, columns in self.sizes.items()}
        return dump_primitives((ranks, sizes, [tuple(each) for each in self._slowest]))

    @classmethod
    def from_packed_bytes(cls, packed: bytes) -> ReportSums:
        """Return the sums in the bytes ``packed``, which ``sums_as_bytes`` has returned. If ``packed`` is empty, return
        empty sums.
        """
        sums = cls()
        if packed:
            sums.merge(packed)
        return sums
