"""WalkListed: rank 0 reads a list of paths instead of walking a tree; WalkPaths: any rank stats paths of the list.

Items of a saved listing are not statted again if the listing has all that is needed.
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
from pcopy.fsio.backend.columns import COLUMNS, EARLIEST_TIME, LATEST_TIME, TYPE_LETTERS, Rows
from pcopy.fsio.close import close_ignoring_errors
from pcopy.fsio.problem import Problem
from pcopy.fsio.retries import open_with_retries
from pcopy.tasks.base import counts
from pcopy.tasks.base.kind import Steps, TaskKind
from pcopy.tasks.base.rank import CALL_COST, Rank
from pcopy.tasks.base.result import RetryMode, TaskResult
from pcopy.tasks.base.values import NO_DIRECTORY, Place
from pcopy.tasks.walk.finder import Finder, type_letter
from pcopy.tasks.walk.report_found import MAX_TASK_OUTPUT, OutputBuffer, ResultSink
from pcopy.text import printable_path
from pcopy.walk.matching import UNKNOWN, Items
from pcopy.walk.output_formats import BLOCK_BYTES, FIELD_COLUMNS
from pcopy.walk.saved_listing import (
    TIME_FIELDS,
    ListedItem,
    PathListReader,
    RecordedStatus,
    absolute_path,
    strip_carriage_return,
)

LINES_PER_STEP = 256
"""Number of lines that are processed together."""

SLICE_SECONDS = 0.05
"""Seconds after which the rest of the list waits for the rank's other tasks."""

_NO_DIRECTORY = Place(0, b"", NO_DIRECTORY, NO_DIRECTORY, False, False)


class StatListedPaths(TaskKind, code=107, doing="examining listed paths", is_note=False):
    """Stats and reports ``paths`` (separated by NUL), which are relative to ``directory``."""

    directory: bytes
    paths: bytes

    @property
    def estimated_operations(self) -> int:
        return self.paths.count(b"\0") + 1

    def subject(self) -> tuple[Place, bytes]:
        return _NO_DIRECTORY, self.paths.partition(b"\0")[0]

    def run(self, rank: Rank, result: TaskResult) -> Steps:
        """Stat the paths and report those that the expression matches."""
        finder = rank.instance(Finder)
        names: list[bytes] = []
        statuses: list[os.stat_result] = []
        for path in self.paths.split(b"\0"):
            try:
                statuses.append(os.lstat(absolute_path(self.directory, path)))
                names.append(path)
            except OSError as error:
                result.count(counts.FOUND)
                result.fail(_NO_DIRECTORY, path, Problem.from_error("stat", error), retry=RetryMode.NEVER)
            yield None
        if not names:
            return
        kinds = bytes(type_letter(status.st_mode) for status in statuses)
        output = finder.new_output
        base = -1
        if finder.opens_directories:
            base = open_with_retries(self.directory, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            finder.report_listed_items(
                result, Items(base, b"", names, kinds, Rows.from_statuses(statuses, finder.mask)), output
            )
        finally:
            if base >= 0:
                close_ignoring_errors(base)
        output.flush(rank, result)


class ReadPathList(TaskKind, code=108, doing="reading the list", is_note=False):
    """Reads the list ``file``, whose paths end with a NUL if ``ends_with_nul``. ``directory`` is the user's working
    directory.

    All paths must lie in the directory ``base``, unless that is empty; relative paths of a plain list start there. A
    task reads a part of the list, and leaves the rest to the next one, so that tasks which it has spawned can run
    meanwhile.
    """

    file: bytes
    ends_with_nul: bool
    directory: bytes
    base: bytes

    def subject(self) -> None:
        return None

    def run(self, rank: Rank, result: TaskResult) -> Steps:
        """Read lines until ``LONG`` seconds have passed, then spawn a task for the rest."""
        finder, output, deadline = (
            rank.instance(Finder),
            rank.instance(Finder).new_output,
            time.monotonic() + SLICE_SECONDS,
        )
        try:
            listing, reading = rank.instance(_OpenList).opened(self)
            while lines := list(islice(reading, LINES_PER_STEP)):
                self._process_lines(finder, result, output, listing, lines)
                if output.size > MAX_TASK_OUTPUT:
                    output.flush(rank, result)
                    output = finder.new_output
                if rank.stop_reason is not None:
                    break
                if time.monotonic() > deadline:
                    result.spawn(self, owner=0)
                    break
                yield None
        except RequestRefused as refused:
            rank.stop(str(refused))
            cast(ResultSink, rank.sink).mark_incomplete(str(refused))
        output.flush(rank, result)

    def _reported_path(self, listing: PathListReader, line: ListedItem, top: bytes) -> bytes:
        """Return the path as it is reported; raise ``RequestRefused`` if it does not lie in ``base``, whose absolute
        path is ``top``.
        """
        path = line.path
        if listing.directory is None and not self.ends_with_nul:
            path = strip_carriage_return(path, os.path.join(self.directory, self.base))
        if not path:
            return b""
        if listing.directory is None:
            path = os.path.join(self.base, path)
        elif listing.directory != self.directory:
            path = absolute_path(listing.directory, path)
        if self.base:
            real = (
                absolute_path(top, line.path)
                if listing.directory is None
                else absolute_path(listing.directory, line.path)
            )
            if not (real + b"/").startswith(top + b"/"):
                raise listing.error_at_line(
                    line.number, f"{printable_path(line.path)} does not lie in {printable_path(self.base)}"
                )
        return path

    def _process_lines(
        self,
        finder: Finder,
        result: TaskResult,
        output: OutputBuffer,
        listing: PathListReader,
        lines: Sequence[ListedItem],
    ) -> None:
        """Report the items of these lines, and spawn a task for those that must be statted."""
        top = os.path.realpath(os.path.join(self.directory, self.base)).rstrip(b"/") if self.base else b""
        paths = [path for line in lines if (path := self._reported_path(listing, line, top))]
        known = [line.recorded for line in lines if line.recorded is not None]
        rows = (
            _recorded_rows(known, finder.mask)
            if len(known) == len(paths) and not finder.needs_more_than_status
            else None
        )
        to_stat = [row for row, each in enumerate(known) if each.type == S_IFDIR] if finder.opens_directories else []
        if rows is None:
            to_stat = [*range(len(paths))]
        if to_stat:
            packed_paths = b"\0".join([paths[row] for row in to_stat])
            result.spawn(StatListedPaths(self.directory, packed_paths), len(to_stat) * CALL_COST)
        if rows is None or len(to_stat) == len(paths):
            return
        if to_stat:
            remaining = sorted({*range(len(paths))}.difference(to_stat))
            paths, known, rows = (
                [paths[row] for row in remaining],
                [known[row] for row in remaining],
                rows.selected(remaining),
            )
        kinds = bytes(TYPE_LETTERS.get(each.type, UNKNOWN) for each in known)
        finder.report_listed_items(result, Items(-1, b"", paths, kinds, rows), output)


class _OpenList:
    """The list that rank 0 reads, and the position up to which it has been read."""

    def __init__(self, rank: Rank) -> None:
        self._open: tuple[PathListReader, Iterator[ListedItem]] | None = None

    def opened(self, task: ReadPathList) -> tuple[PathListReader, Iterator[ListedItem]]:
        """Return the open list of the task and the iterator over its lines; raise ``RequestRefused``."""
        if self._open is None:
            listing = PathListReader(task.file, "--from", nul=task.ends_with_nul)
            self._open = listing, iter(listing)
        return self._open

    def close(self) -> None:
        if self._open is not None:
            self._open[0].close()


def _recorded_rows(known: Sequence[RecordedStatus], mask: int) -> Rows | None:
    """Return recorded items as columns; None if a needed value is missing."""
    rows = Rows(0, mask)
    rows.row_count = len(known)
    fields = {column: field for field, (_, column) in FIELD_COLUMNS.items()}
    for name, typecode, bit, _ in COLUMNS:
        if mask & bit:
            values = list(_recorded_values(known, fields[name]))
            if None in values:
                return None
            if fields[name] in TIME_FIELDS:
                rows.record_out_of_range_times(name, cast("list[int]", values))
                values = [min(max(cast("int", value), EARLIEST_TIME), LATEST_TIME) for value in values]
            setattr(rows, name, array(typecode, values))
    return rows


def _recorded_values(known: Sequence[RecordedStatus], field: str) -> Iterator[int | None]:
    """Yield one field of all recorded items, in the unit of the columns."""
    for each in known:
        value: int | None = getattr(each, field)
        if value is not None and field == "allocated":
            value = -(-value // BLOCK_BYTES)
        elif value is not None and field == "mode":
            value |= each.type
        yield value
