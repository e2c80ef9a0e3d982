"""Comparison of the contents of files that both sides have, by digests.

``CompareSmallFiles`` compares small files in batches. ``CompareLargeFile`` compares a large file, which all ranks read
in parts (``ComparisonStartedNote``, ``CompareFilePart``, ``PartComparedNote``). A file that was replaced since its
status was compared, or that changes while it is read, has failed.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from itertools import count

from pcopy.engine.ticket import TicketGenerator
from pcopy.fast_named_tuple import NamedTuple
from pcopy.fsio.backend.batches import ReadSmallFilesBatch
from pcopy.fsio.backend.columns import OutcomeCode, pack_names, unpack_names
from pcopy.fsio.problem import PackedProblem, Problem
from pcopy.fsio.source import (
    FileContentVersion,
    check_file_is_unchanged,
    check_is_file_found_by_scan,
    status_of_open_item,
)
from pcopy.signature.items import FILE
from pcopy.tasks.base import counts
from pcopy.tasks.base.distribution import sparse_chunk_size
from pcopy.tasks.base.kind import DivisibleTask, TaskKind, TaskSteps, TaskWithoutDirectory
from pcopy.tasks.base.ledger import CompletionLedger, ObjectAwaitingParts
from pcopy.tasks.base.rank import CALL_COST, Rank
from pcopy.tasks.base.result import TaskResult
from pcopy.tasks.base.values import Place, unpack_numbers
from pcopy.tasks.compare.properties import CONTENT
from pcopy.tasks.compare.report_differences import DifferenceReporter
from pcopy.tasks.compare.sides import (
    SIDES,
    directory_place_on_side,
    names_on_side,
    open_on_both_sides,
    report_uncompared_item,
)
from pcopy.tasks.verify.reading import execute_read_batch, hash_open_file_range

MAX_BATCH_FILES = 256
"""Maximum number of files in one task. More would occupy one rank for too long."""
COMPARE_BATCH_BYTES = 4 << 20
"""Number of bytes of contents (on one side) at which a task is full: further files go to another task."""


def spawn_small_file_comparisons(
    result: TaskResult,
    place: Place,
    names: list[bytes],
    bits: bytes,
    sizes: Sequence[int],
    inodes: Sequence[array[int]],
) -> None:
    """Spawn tasks that compare the contents of small files of the directory ``place``, in batches.

    Args:
        bits: for each file, in which other properties it differs (``pcopy.tasks.compare.properties``).
        sizes: size in bytes of each file, equal on both sides.
        inodes: for each side, the inode numbers of the files.
    """
    start = size = 0
    total = sum(sizes)
    whole = len(names) if len(names) <= MAX_BATCH_FILES and total < COMPARE_BATCH_BYTES else 0
    for row, each in enumerate(sizes, 1) if not whole else [(whole, total)] if names else ():
        size += each
        if row - start >= MAX_BATCH_FILES or size >= COMPARE_BATCH_BYTES or row == len(names):
            part = slice(start, row)
            numbers = (column[part].tobytes() for column in inodes)
            task = CompareSmallFiles(place, pack_names(names[part]), bits[part], *numbers)
            result.spawn_task(task, 2 * size + (row - start) * CALL_COST)
            start, size = row, 0


class CompareSmallFiles(DivisibleTask, code=122, doing="comparing files of", is_note=False):
    """Task that compares the contents of small files that have the same size on both sides.

    ``inodes`` are their inode numbers on the first side, ``others`` those on the second side (8 bytes each). ``bits``
    say in which other properties each file differs, to be reported together with its contents.
    """

    bits: bytes
    inodes: bytes
    others: bytes

    columns = ("bits", "inodes", "others")
    operations_per_item = 4

    def run(self, rank: Rank, result: TaskResult) -> TaskSteps:
        """Compare all files in a batch, and those for which that fails one by one."""
        place, names = self.place, unpack_names(self.names)
        opened = open_on_both_sides(rank, result, place, names)
        if opened is None:
            return
        found = DifferenceReporter(rank)
        inodes = unpack_numbers(self.inodes), unpack_numbers(self.others)
        slow_rows: Sequence[int] = range(len(names))
        if not (rank.options.direct or rank.options.drop_cache):
            slow_rows = yield from self._compare_files_in_batches(rank, result, found, opened, inodes)
        for row in slow_rows:
            file = FilePair(place, names[row], self.bits[row], (inodes[0][row], inodes[1][row]))
            yield from file.compare_contents(rank, result, found)
            yield None
        found.send(result)

    def _compare_files_in_batches(
        self,
        rank: Rank,
        result: TaskResult,
        found: DifferenceReporter,
        opened: tuple[int, int],
        inodes: tuple[Sequence[int], Sequence[int]],
    ) -> TicketGenerator[list[int]]:
        """Read all files of both sides in batches, and compare their digests. Return the rows of the files for which
        that was not possible, and which must be compared one by one.

        Args:
            found: receives the differences.
            opened: descriptors of the directory on both sides.
            inodes: for each side, the inode numbers of the files.
        """
        sides = []
        for side in SIDES:
            batch = ReadSmallFilesBatch(opened[side], names_on_side(rank, side, self.names))
            sides.append((yield from execute_read_batch(rank, batch, counts.MOVED)))
        names = unpack_names(self.names)
        done: Sequence[int] = range(len(names))
        for read, wanted in zip(sides, inodes, strict=True):
            codes, seen = read.verdicts.codes, read.observed.inode
            if codes.count(OutcomeCode.DONE) < len(codes) or seen != wanted:
                done = [row for row in done if codes[row] == OutcomeCode.DONE and seen[row] == wanted[row]]
        one, other = (read.digests for read in sides)
        bits = bytearray(self.bits)
        if one.data != other.data:
            for row in done:
                bits[row] |= CONTENT if one[row] != other[row] else 0
        result.count(counts.FILES, len(done))
        if len(done) == len(names):
            result.count(counts.BYTES, sum(sum(read.observed.size) for read in sides))
            found.add_item_differences(self.place.path, names, bits, FILE * len(names))
            return []
        result.count(counts.BYTES, sum(read.observed.size[row] for read in sides for row in done))
        found.add_item_differences(
            self.place.path, [names[row] for row in done], [bits[row] for row in done], FILE * len(done)
        )
        return sorted({*range(len(names))}.difference(done))


class FilePair(NamedTuple):
    """A file that has the same size on both sides, whose contents are to be compared. ``bits`` say in which other
    properties it differs, ``inodes`` are its inode numbers on both sides.
    """

    place: Place
    name: bytes
    bits: int
    inodes: tuple[int, int]

    def compare_contents(self, rank: Rank, result: TaskResult, found: DifferenceReporter) -> TaskSteps:
        """Compare the contents of the file. If it is large, spawn tasks by which all ranks read it in parts."""
        opened = self._file_versions_and_data_bytes(rank, result)
        if opened is None:
            return
        versions, data = opened
        size = versions[0].size
        if versions[1].size == size and rank.is_processed_in_chunks(size):
            self._spawn_part_comparisons(rank, result, versions, data)
            return
        read = yield from compare_file_part(rank, self.place, self.name, versions, 0, size)
        if read.problem is not None:
            report_uncompared_item(result, self.place, read.side, self.name, read.problem, 2 * size)
        else:
            self.report_comparison_result(result, found, read.differs, read.size)

    def _file_versions_and_data_bytes(
        self, rank: Rank, result: TaskResult
    ) -> tuple[tuple[FileContentVersion, FileContentVersion], int] | None:
        """Open the file on both sides. Return two values: for each side, what identifies the file's present state (to
        notice later changes); and the number of its bytes outside of holes. If a side fails, report that and return
        None.
        """
        versions, data = [], 0
        for side in SIDES:
            try:
                with rank.open_source_file(
                    directory_place_on_side(self.place, side), names_on_side(rank, side, self.name)
                ) as reading:
                    status = status_of_open_item(reading, on_source=True)
                    check_is_file_found_by_scan(status, None, self.inodes[side])
            except Problem as problem:
                report_uncompared_item(result, self.place, side, self.name, problem)
                return None
            versions.append(FileContentVersion.from_status(status))
            data = max(data, min(status.st_size, status.st_blocks * 512))
        return (versions[0], versions[1]), data

    def _spawn_part_comparisons(
        self, rank: Rank, result: TaskResult, versions: tuple[FileContentVersion, FileContentVersion], data: int
    ) -> None:
        """Spawn the tasks that compare the parts of the file; this rank collects their results.

        Args:
            versions: the state (size, times and inode) that the file must have on each side.
            data: the number of its bytes outside of holes; it determines the size of the parts.
        """
        size = versions[0].size
        chunk = sparse_chunk_size(rank.chunk_size_of_file(size), size, data, rank.size)
        starts = range(0, size, chunk)
        number = rank.number, next(rank.shared_instance(ComparisonLedger).numbers)
        result.spawn_task(ComparisonStartedNote(self.place, self.name, self.bits, size, number, len(starts)))
        for start in starts:
            end = min(start + chunk, size)
            result.spawn_task(CompareFilePart(self.place, self.name, *versions, start, end, number), 2 * (end - start))

    def report_comparison_result(self, result: TaskResult, found: DifferenceReporter, differs: bool, read: int) -> None:
        """Count the file, and pass the result to ``found``: whether its contents differ (``differs``). ``read`` is the
        number of bytes that were read, on both sides together.
        """
        result.count(counts.FILES)
        result.count(counts.BYTES, read)
        found.add_item_differences(self.place.path, [self.name], [self.bits | (CONTENT if differs else 0)], FILE)


class FilePairTask(TaskKind):
    """Base class of the tasks and messages that concern one file which both sides have."""

    place: Place
    name: bytes

    def subject(self) -> tuple[Place, bytes]:
        return self.place, self.name


class CompareLargeFile(FilePairTask, code=123, doing="comparing", is_note=False):
    """Task that compares the contents of a large file that has the same ``size`` (in bytes) on both sides.

    ``bits`` say in which other properties it differs. ``inode`` is its inode number on the first side, ``other_inode``
    the one on the second side.
    """

    bits: int
    size: int
    inode: int
    other_inode: int

    def run(self, rank: Rank, result: TaskResult) -> TaskSteps:
        found = DifferenceReporter(rank)
        file = FilePair(self.place, self.name, self.bits, (self.inode, self.other_inode))
        yield from file.compare_contents(rank, result, found)
        found.send(result)


ComparisonId = tuple[int, int]
"""Identifies a file that is compared in parts: the rank that waits for the parts, and a number that it assigns."""


class ComparisonStartedNote(FilePairTask, code=124, doing="waiting for the parts of", is_note=True):
    """Message to the rank that collects the results of a file's parts: it says how many parts there are (``parts``).
    ``number`` identifies the comparison of the file; the other fields describe the file.
    """

    bits: int
    size: int
    number: ComparisonId
    parts: int

    def assigned_rank(self, ranks: int) -> int:
        return self.number[0] % ranks

    def run(self, rank: Rank, result: TaskResult) -> None:
        file = FileComparisonProgress(FilePair(self.place, self.name, self.bits, (0, 0)), self.size)
        rank.shared_instance(ComparisonLedger).open(self.number, file, self.parts, result)


class PartComparisonResult(NamedTuple):
    """Result of the comparison of one part of a file: whether it ``differs``, and the ``size`` in bytes that was read
    on both sides together. If a side has failed: the ``problem``, and the ``side``.
    """

    differs: bool
    size: int
    side: int
    problem: Problem | None


def compare_file_part(
    rank: Rank, place: Place, name: bytes, versions: tuple[FileContentVersion, FileContentVersion], start: int, end: int
) -> TicketGenerator[PartComparisonResult]:
    """Compare the bytes from ``start`` to ``end`` of a file on both sides, by their digests.

    Args:
        versions: the state (size, times and inode) that the file must have on each side; otherwise the part fails.
    """
    parts: list[tuple[int, bytes]] = []
    for side in SIDES:
        try:
            with rank.open_source_file(
                directory_place_on_side(place, side), names_on_side(rank, side, name)
            ) as reading:
                check_file_is_unchanged(reading, versions[side])
                status = status_of_open_item(reading, on_source=True)
                is_whole = not start and end == versions[0].size
                end_here = (
                    status.st_size if is_whole else end
                )  # a generated file (/proc) may have another size on this side
                hasher = yield from hash_open_file_range(rank, reading, status, start, end_here, on_source=True)
        except Problem as problem:
            return PartComparisonResult(False, 0, side, problem)
        parts.append((hasher.size, hasher.root()))
    return PartComparisonResult(parts[0] != parts[1], sum(size for size, _ in parts), 0, None)


class CompareFilePart(FilePairTask, code=125, doing="comparing a part of", is_note=False):
    """Task that compares the bytes from ``start`` to ``end`` of a file. On the two sides, the file must have the state
    ``version`` and ``other_version``. ``number`` identifies the comparison of the file, to which the result is
    reported.
    """

    version: FileContentVersion
    other_version: FileContentVersion
    start: int
    end: int
    number: ComparisonId

    def run(self, rank: Rank, result: TaskResult) -> TaskSteps:
        versions = self.version, self.other_version
        read = yield from compare_file_part(rank, self.place, self.name, versions, self.start, self.end)
        problem = None if read.problem is None else read.problem.problem_as_tuple
        result.spawn_task(PartComparedNote(self.number, read.differs, read.side, problem))


class PartComparedNote(TaskWithoutDirectory, code=126, doing="recording a compared part of a file"):
    """Message to the rank that waits for the parts of a file, with the result of one part: whether it ``differs``, or
    the ``problem`` and the ``side`` on which it occurred.
    """

    number: ComparisonId
    differs: bool
    side: int
    problem: PackedProblem | None

    def assigned_rank(self, ranks: int) -> int:
        return self.number[0] % ranks

    def run(self, rank: Rank, result: TaskResult) -> None:
        rank.shared_instance(ComparisonLedger).count_part(self.number, self, result)


class FileComparisonProgress:
    """What a rank records about a file whose parts are compared, until the last part is done: the result so far."""

    def __init__(self, file: FilePair, size: int) -> None:
        self.file = file
        self.size = size
        self.differs = False
        self.side = 0
        """The side on which the first problem occurred."""


class ComparisonLedger(CompletionLedger[ComparisonId, FileComparisonProgress, PartComparedNote]):
    """The files that are compared in parts, and whose results this rank collects. The keys are numbers that it
    assigns.
    """

    def __init__(self, rank: Rank) -> None:
        super().__init__(rank)
        self.numbers = count(1)

    def record_part_result(self, awaited: ObjectAwaitingParts[FileComparisonProgress], note: PartComparedNote) -> None:
        """Record the result of one part, which ``note`` contains, for the file ``awaited``: whether it differs, or its
        error if no other part has failed before.
        """
        awaited.opened.differs |= note.differs
        if note.problem is not None and awaited.problem is None:
            awaited.problem, awaited.opened.side = Problem.from_packed_tuple(note.problem), note.side

    def complete_awaited_object(self, awaited: ObjectAwaitingParts[FileComparisonProgress], result: TaskResult) -> None:
        """After the last part of the file ``awaited``: report whether the file differs, or its first problem."""
        opened, problem = awaited.opened, awaited.problem
        file, found = opened.file, DifferenceReporter(self._rank)
        if problem is not None:
            report_uncompared_item(result, file.place, opened.side, file.name, problem, 2 * opened.size)
            return
        file.report_comparison_result(result, found, opened.differs, 2 * opened.size)
        found.send(result)
