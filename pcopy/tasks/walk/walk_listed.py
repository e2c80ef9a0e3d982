"""Walk of a list (``pwalk --from``): ReadPathList reads the list on rank 0, StatListedPaths stats paths of it on any
rank.

If the list is a saved listing of pwalk, its items are not statted again, provided that the listing has all the fields
that are needed.
"""

from __future__ import annotations

import os
import time
from array import array
from collections.abc import Iterator, Sequence
from itertools import islice
from stat import S_IFDIR
from typing import cast

from pcopy.errors import RequestRefused
from pcopy.fsio.backend.columns import ALL_COLUMNS, EARLIEST_TIME, LATEST_TIME, TYPE_LETTERS, ItemStatusColumns
from pcopy.fsio.close import close_ignoring_errors
from pcopy.fsio.problem import Problem
from pcopy.fsio.retries import open_with_retries
from pcopy.tasks.base import counts
from pcopy.tasks.base.kind import TaskKind, TaskSteps
from pcopy.tasks.base.rank import CALL_COST, Rank
from pcopy.tasks.base.result import RetryMode, TaskResult
from pcopy.tasks.base.values import NO_DIRECTORY_IDENTITY, Place
from pcopy.tasks.walk.finder import FoundItemReporter, type_letter
from pcopy.tasks.walk.report_found import MAX_TASK_OUTPUT, OutputBuffer, WalkOutputSink
from pcopy.walk.matching import UNKNOWN, DirectoryItems
from pcopy.walk.output_formats import BLOCK_BYTES, FIELD_COLUMNS
from pcopy.walk.path_list import (
    TIME_KEYS,
    BaseDirectory,
    ListedItem,
    PathListReader,
    RecordedStatus,
    absolute_path,
)

LINES_PER_STEP = 256
"""Number of lines of the list that are processed together."""

SLICE_SECONDS = 0.05
"""Seconds of reading the list after which a new task continues, so that the rank can run its other tasks in between."""

_NO_DIRECTORY = Place(0, b"", NO_DIRECTORY_IDENTITY, NO_DIRECTORY_IDENTITY, False, False)
"""Value in place of the directory in reports about listed paths, because these are relative to the working
directory.
"""


class StatListedPaths(TaskKind, code=107, doing="examining listed paths", is_note=False):
    """Task that stats ``paths`` of a list (separated by NUL), which are relative to ``directory``, and reports those
    that the find expression selects.
    """

    directory: bytes
    paths: bytes

    @property
    def estimated_operations(self) -> int:
        return self.paths.count(b"\0") + 1

    def subject(self) -> tuple[Place, bytes]:
        return _NO_DIRECTORY, self.paths.partition(b"\0")[0]

    def run(self, rank: Rank, result: TaskResult) -> TaskSteps:
        """Stat the paths, and report those that the find expression selects."""
        finder = rank.shared_instance(FoundItemReporter)
        names: list[bytes] = []
        statuses: list[os.stat_result] = []
        for path in self.paths.split(b"\0"):
            try:
                statuses.append(os.lstat(absolute_path(self.directory, path)))
                names.append(path)
            except OSError as error:
                result.count(counts.FOUND)
                result.count_item_as_failed(
                    _NO_DIRECTORY, path, Problem.from_error("stat", error), retry=RetryMode.NEVER
                )
            yield None
        if not names:
            return
        kinds = bytes(type_letter(status.st_mode) for status in statuses)
        output = finder.new_output_buffer
        base = -1
        if finder.opens_directories:
            base = open_with_retries(self.directory, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            finder.report_listed_items(
                result,
                DirectoryItems(base, b"", names, kinds, ItemStatusColumns.from_statuses(statuses, finder.mask)),
                output,
            )
        finally:
            if base >= 0:
                close_ignoring_errors(base)
        output.flush_to_rank_0(rank, result)


class ReadPathList(TaskKind, code=108, doing="reading the list", is_note=False):
    """Task of rank 0 that reads the list of paths in ``file``.

    A task reads the list for a short time, and leaves the rest to the next task, so that the tasks which it has spawned
    can run meanwhile.

    Fields:

    - ``file``: path of the list.
    - ``ends_with_nul``: True if each path ends with a NUL, False if it ends with a newline.
    - ``directory``: the user's working directory.
    - ``base``: directory in which all paths must lie; relative paths of a plain list start there. Empty: no
      restriction.
    """

    file: bytes
    ends_with_nul: bool
    directory: bytes
    base: bytes

    def subject(self) -> None:
        return None

    def run(self, rank: Rank, result: TaskResult) -> TaskSteps:
        """Read lines until ``SLICE_SECONDS`` have passed, then spawn a task that continues."""
        finder, output, deadline = (
            rank.shared_instance(FoundItemReporter),
            rank.shared_instance(FoundItemReporter).new_output_buffer,
            time.monotonic() + SLICE_SECONDS,
        )
        try:
            listing, reading = rank.shared_instance(_OpenPathList).reader_and_remaining_lines(self)
            while lines := list(islice(reading, LINES_PER_STEP)):
                self._process_lines(finder, result, output, listing, lines)
                if output.size > MAX_TASK_OUTPUT:
                    output.flush_to_rank_0(rank, result)
                    output = finder.new_output_buffer
                if rank.stop_reason is not None:
                    break
                if time.monotonic() > deadline:
                    result.spawn_task(self, owner=0)
                    break
                yield None
        except RequestRefused as refused:
            rank.request_stop(str(refused))
            cast(WalkOutputSink, rank.sink).mark_output_incomplete(str(refused))
        output.flush_to_rank_0(rank, result)

    def _reported_path(self, listing: PathListReader, item: ListedItem) -> bytes:
        """Return the path of ``item`` in the form in which it is reported. Raise ``RequestRefused`` if it does not lie
        in the directory ``base``.
        """
        if self.base:
            listing.names_below_top(item)
        if listing.directory is None:
            return os.path.join(self.base, item.path)
        if listing.directory == self.directory or item.path.startswith(b"/"):
            return item.path
        return absolute_path(listing.directory, item.path)

    def _process_lines(
        self,
        finder: FoundItemReporter,
        result: TaskResult,
        output: OutputBuffer,
        listing: PathListReader,
        lines: Sequence[ListedItem],
    ) -> None:
        """Report the items of ``lines`` about which the list states all properties that are needed, and spawn a task
        that stats and reports the others.
        """
        paths = [self._reported_path(listing, line) for line in lines]
        known = [line.recorded for line in lines if line.recorded is not None]
        rows = (
            _recorded_status_columns(known, finder.mask)
            if len(known) == len(paths) and not finder.needs_more_than_status
            else None
        )
        to_stat = [row for row, each in enumerate(known) if each.type == S_IFDIR] if finder.opens_directories else []
        if rows is None:
            to_stat = [*range(len(paths))]
        if to_stat:
            packed_paths = b"\0".join([paths[row] for row in to_stat])
            result.spawn_task(StatListedPaths(self.directory, packed_paths), len(to_stat) * CALL_COST)
        if rows is None or len(to_stat) == len(paths):
            return
        if to_stat:
            remaining = sorted({*range(len(paths))}.difference(to_stat))
            paths, known, rows = (
                [paths[row] for row in remaining],
                [known[row] for row in remaining],
                rows.columns_of_selected_rows(remaining),
            )
        kinds = bytes(TYPE_LETTERS.get(each.type, UNKNOWN) for each in known)
        finder.report_listed_items(result, DirectoryItems(-1, b"", paths, kinds, rows), output)


class _OpenPathList:
    """The open list on rank 0, and the position up to which the earlier tasks have read it."""

    def __init__(self, rank: Rank) -> None:
        self._open: tuple[PathListReader, Iterator[ListedItem]] | None = None

    def reader_and_remaining_lines(self, task: ReadPathList) -> tuple[PathListReader, Iterator[ListedItem]]:
        """Return the open list that ``task`` reads, and the iterator over its remaining lines. Open the list at the
        first call; raise ``RequestRefused`` if it cannot be opened.
        """
        if self._open is None:
            base = BaseDirectory(task.base, os.path.realpath(task.base)) if task.base else None
            listing = PathListReader(task.file, nul=task.ends_with_nul, base=base)
            self._open = listing, listing.existing_items()
        return self._open

    def close(self) -> None:
        """Close the list if it is open."""
        if self._open is not None:
            self._open[0].close()


def _recorded_status_columns(known: Sequence[RecordedStatus], mask: int) -> ItemStatusColumns | None:
    """Return the properties of the items ``known`` that a saved listing states, as status columns; None if a needed
    value of any item is missing. ``mask`` says which columns are needed.
    """
    rows = ItemStatusColumns(0, mask)
    rows.row_count = len(known)
    fields = {column: field for field, (_, column) in FIELD_COLUMNS.items()}
    for name, typecode, bit, _ in ALL_COLUMNS:
        if mask & bit:
            values = list(_recorded_values(known, fields[name]))
            if None in values:
                return None
            if fields[name] in TIME_KEYS:
                rows.record_out_of_range_times(name, cast("list[int]", values))
                values = [min(max(cast("int", value), EARLIEST_TIME), LATEST_TIME) for value in values]
            setattr(rows, name, array(typecode, values))
    return rows


def _recorded_values(known: Sequence[RecordedStatus], field: str) -> Iterator[int | None]:
    """Generator: yield the value of one ``field`` of each of the items ``known``, as a saved listing states it, in the
    unit of the status columns (512-byte blocks for ``allocated``); None if it is missing.
    """
    for each in known:
        value: int | None = getattr(each, field)
        if value is not None and field == "allocated":
            value = -(-value // BLOCK_BYTES)
        elif value is not None and field == "mode":
            value |= each.type
        yield value
