"""Fast extraction: the backend creates the simple members of one directory in batches, from data in memory.

A *simple* member is a regular file whose headers state only name, mode, owner, mtime and size. Members that stand next
to one another in the archive are read with one call. A member that the backend cannot create (its name exists, the file
is large, or that part of the archive cannot be read) is left to the slow path, ``pcopy.tasks.archive.extracting``.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from operator import add

from pcopy.engine.ticket import TicketGenerator
from pcopy.fsio.backend.batches import CreateSmallFilesBatch, CreateSmallFilesResult, FileOperationBatch
from pcopy.fsio.backend.columns import BatchOutcomeColumns, OutcomeCode, pack_names
from pcopy.fsio.backend.interface import MAX_SMALL_FILE_BYTES
from pcopy.fsio.problem import Problem
from pcopy.signature.items import FILE
from pcopy.tasks.archive.members_to_extract import SimpleMemberColumns, directory_place_in_target
from pcopy.tasks.archive.open_archive import OpenedArchive
from pcopy.tasks.base import counts
from pcopy.tasks.base.hashing import UNKNOWN_VERSION
from pcopy.tasks.base.rank import M, Rank
from pcopy.tasks.base.result import RetryMode, TaskResult
from pcopy.tasks.base.values import ContentInfo

MAX_READ_SIZE = MAX_SMALL_FILE_BYTES // 4
"""Largest number of bytes of the archive that are read with one call, and so also the size of the largest file that is
created in a batch.
"""
_MAX_READ_GAP = 64 << 10
"""Largest gap in bytes between two members for which both are still read with one call, together with the gap."""
_DONE = int(OutcomeCode.DONE)


class UncreatedMemberRows:
    """Which simple members of a task were not created, as row numbers.

    Attributes:
      slow_path: rows of the members that must be extracted one by one.
      not_started: rows of the members that were not tried, and are left to another task.
    """

    def __init__(self) -> None:
        self.slow_path: list[int] = []
        self.not_started: list[int] = []
        self.has_tried = False
        """True if the backend was asked to create any member."""


def make_simple_members(
    rank: Rank, result: TaskResult, directory: int, path: bytes, simple: SimpleMemberColumns, *, inherits: bool
) -> TicketGenerator[UncreatedMemberRows]:
    """Create the simple members (small regular files without special metadata) in ``simple`` by calls of the backend,
    in the open ``directory``; count them, and report failures.

    Return the rows of the members that were not created.

    Args:
        path: the path of the directory below the target.
        inherits: True if new files may inherit an ACL from the directory.
    """
    archive, throttle, remaining = rank.shared_instance(OpenedArchive), rank.throttle, UncreatedMemberRows()
    most = MAX_READ_SIZE if not throttle.is_on else int(min(MAX_READ_SIZE, throttle.max_bytes_per_task_step()))
    for start, end in row_ranges_close_in_archive(simple.data_offsets, simple.sizes, most):
        if remaining.has_tried and (throttle.is_on or rank.backend.runs_in_poll):
            # The task would have to wait. If the job stopped meanwhile, what was created would not be counted.
            remaining.not_started += range(start, len(simple))
            break
        begin, rows = simple.data_offsets[start], simple.metadata_columns_for_creation(start, end)
        length = max(map(add, simple.data_offsets[start:end], rows.size)) - begin
        if length > most:
            remaining.slow_path += range(start, end)
            continue
        if throttle.is_on:
            yield from throttle.charge_limits_and_wait(sum(rows.size))
        try:
            contents = archive.read_exactly(begin, length)
        except Problem:  # the slow path reads the members one by one, and reports the error
            remaining.slow_path += range(start, end)
            continue
        names = simple.names[start:end]
        offsets = array("Q", [place - begin for place in simple.data_offsets[start:end]])
        made = yield from run_batch_at_once(
            rank, CreateSmallFilesBatch(directory, pack_names(names), rows, contents, offsets, inherits)
        )
        remaining.has_tried = True
        _report_created_files(rank, result, path, names, rows.size, made)
        for row, code in enumerate(made.verdicts.codes if made.verdicts.codes.count(_DONE) < len(names) else b""):
            if code == OutcomeCode.DECIDE_AGAIN:
                remaining.slow_path.append(start + row)
            elif code == OutcomeCode.CANCELLED:
                remaining.not_started.append(start + row)
    return remaining


def row_ranges_close_in_archive(places: Sequence[int], sizes: Sequence[int], most: int) -> Iterator[tuple[int, int]]:
    """Generator: divide members into ranges of rows that stand close together in the archive, and yield the first row
    and the end of each range. The members of a range are read with one call. ``places`` are the offsets of their
    contents in the archive, in ascending order, ``sizes`` the bytes of the contents.

    Such a range spans at most ``most`` bytes of the archive, and contains no gap above ``_MAX_READ_GAP``.
    """
    start, gap = 0, _MAX_READ_GAP
    for row in range(1, len(places)):
        before = places[row - 1] + sizes[row - 1]
        if places[row] + sizes[row] - places[start] > most or places[row] - before > gap:
            yield start, row
            start = row
    if places:
        yield start, len(places)


def run_batch_at_once(rank: Rank, batch: FileOperationBatch[M]) -> TicketGenerator[M]:
    """Let the backend run ``batch``, and return its result.

    If the backend has no threads, the task does not yield meanwhile, so that everything that was created is counted
    even if the job stops.
    """
    steps = rank.execute_batch_counting_bytes(batch)
    while rank.backend.runs_in_poll:
        try:
            next(steps)
        except StopIteration as end:
            made: M = end.value
            return made
    return (yield from steps)


def _report_created_files(
    rank: Rank,
    result: TaskResult,
    path: bytes,
    names: Sequence[bytes],
    sizes: Sequence[int],
    made: CreateSmallFilesResult,
) -> None:
    """Count the files that a call of the backend has created, and report those that failed. ``made`` is its result;
    ``names`` and ``sizes`` (in bytes) are those of the files that it was asked to create.
    """
    verdicts, place = made.verdicts, directory_place_in_target(path)
    rows = verdicts.rows_with_code(OutcomeCode.DONE)
    if rows and result.item_recorder.is_recording:
        for row in rows:
            result.count_copied_item(
                place, names[row], ContentInfo(FILE, sizes[row], b"", UNKNOWN_VERSION), is_only_name=False
            )
    elif rows:
        rank.record_write_success()
        result.count(counts.FILES, len(rows))
        result.count(counts.BYTES, sum(map(verdicts.bytes.__getitem__, rows)))
    for row, applied in made.metadata_outcomes.items():
        result.record_applied_metadata(place, names[row], applied)
    if len(rows) < len(names):
        for row in _failed_rows(verdicts):
            problem = verdicts.problem(row)
            if verdicts.codes[row] == OutcomeCode.LACKS_METADATA:
                text = "it was extracted without this metadata; its mode may be narrower than in the archive"
                problem = Problem(problem.operation, problem.errno or 0, text=text)
            result.count_item_as_failed(place, names[row], problem, sizes[row], retry=RetryMode.NEVER)


def _failed_rows(verdicts: BatchOutcomeColumns) -> list[int]:
    """Return the rows whose members have failed: they were neither created, nor left to the slow path, nor
    cancelled.
    """
    others = (_DONE, OutcomeCode.DECIDE_AGAIN, OutcomeCode.CANCELLED)
    return [row for row, code in enumerate(verdicts.codes) if code not in others]
