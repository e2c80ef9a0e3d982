"""Tasks for a list of items (``--from``): rank 0 divides the listed paths into tasks, and any rank passes the items to
the visitor. Nothing else is visited.

The list is a file that was made from the user's list (``pcopy.jobs.sorted_list``), in the order of a walk. If the
user's list is a saved listing of pwalk, each path is followed by a record of what is known of the item, and the item is
processed only if it is still the one that was listed.
"""

from __future__ import annotations

import errno
import os
import stat
import struct
import time
from collections.abc import Iterator
from itertools import groupby
from typing import BinaryIO

from pcopy.fsio.backend.batches import StatNamesBatch
from pcopy.fsio.backend.columns import GROUP_COLUMN, OWNER_COLUMN, ItemStatusColumns, OutcomeCode, pack_names
from pcopy.fsio.problem import Problem
from pcopy.fsio.source import source_item_status
from pcopy.tasks.base import counts
from pcopy.tasks.base.job import RemoveOptions
from pcopy.tasks.base.kind import TaskKind, TaskSteps
from pcopy.tasks.base.rank import CALL_COST, Rank
from pcopy.tasks.base.result import RetryMode, TaskResult
from pcopy.tasks.base.values import NO_DIRECTORY_IDENTITY, Place
from pcopy.text import printable_path
from pcopy.walk.listing import NAMES_PER_BATCH
from pcopy.walk.visitor import VISITOR_COLUMNS, FoundItems, pass_items_to_visitor

LISTED_RECORD = struct.Struct("=BIQQQqI")
"""Format of the record that a list contains for each path, if it is made from a saved listing. It states: flags
(``HAS_...``, ``IS_CONTRADICTORY``), type (as in ``st_mode``; 0: unknown), inode number, device, size in bytes, and
mtime in seconds and nanoseconds.
"""
HAS_INODE, HAS_DEVICE, HAS_SIZE, HAS_MTIME = 1, 2, 4, 8
"""Flags of a ``LISTED_RECORD`` that say which properties it contains. It never contains size or mtime of a
directory.
"""
ENDS_WITH_SLASH, IS_CONTRADICTORY = 16, 32
"""Flags of a ``LISTED_RECORD``: its path ends with a slash; the list has its path twice, with different properties."""

NOT_LISTED_ITEM_TEXT = "it is not the item that was listed, or has changed since: not processed"
"""Error text for an item whose type, inode, device, size or mtime is not the one in the list."""
_CONTRADICTORY_TEXT = "the list has it twice, with different properties: not processed"
"""Error text for a path that the list has twice, with different properties."""
_LINK_WITH_SLASH_TEXT = "is a symbolic link; leave out the slash, or list what it leads to"
"""Error text for a listed path that ends with a slash, although it is a symbolic link."""
_NO_DIRECTORY_TEXT = "is not a directory; leave out the slash"
"""Error text for a listed path that ends with a slash, although it is not a directory."""

_SLICE_SECONDS = 0.05
"""Seconds of reading the list after which a new task continues, so that the rank can run its other tasks in between."""
_READ_BYTES = 1 << 16
"""Bytes of the list that are read in one call."""


class DistributeListedPaths(TaskKind, code=110, doing="reading the list of", is_note=False):
    """Task that reads the list from the offset ``start`` (in bytes), and creates tasks for its paths. After each path
    stands a record of ``record_size`` bytes with the properties of the item (0 if the list has no properties).
    """

    record_size: int
    start: int = 0
    is_respawned_on_resume = True

    def subject(self) -> tuple[Place, bytes]:
        return Place(0, b"", NO_DIRECTORY_IDENTITY, NO_DIRECTORY_IDENTITY, False, False), b""

    def assigned_rank(self, ranks: int) -> int:
        return 0

    def run(self, rank: Rank, result: TaskResult) -> None:
        until, at = time.monotonic() + _SLICE_SECONDS, self.start
        paths: list[bytes] = []
        records: list[bytes] = []
        try:
            with open(rank.job.listed, "rb") as file:
                for path, item in _paths_and_records(file, self.start, self.record_size):
                    paths.append(path)
                    records.append(item)
                    at += len(path) + 1 + self.record_size
                    if len(paths) == NAMES_PER_BATCH:
                        _spawn_visit_task(result, paths, records)
                        if time.monotonic() > until or rank.stop_reason is not None:
                            result.spawn_task(self._replace(start=at))
                            return
        except OSError as error:
            rank.request_stop(f"the list of paths (--from) cannot be read: {error.strerror}")
        _spawn_visit_task(result, paths, records)
        result.count(counts.UNSCANNED, -1)


def _paths_and_records(file: BinaryIO, start: int, record_size: int) -> Iterator[tuple[bytes, bytes]]:
    """Generator: yield (path, record) for each path of the list in the open ``file``, from the offset ``start`` (in
    bytes) on. Each record has ``record_size`` bytes.
    """
    file.seek(start)
    rest = b""
    while block := file.read(_READ_BYTES):
        rest += block
        at = 0
        while (end := rest.find(b"\0", at)) >= 0 and end + 1 + record_size <= len(rest):
            yield rest[at:end], rest[end + 1 : end + 1 + record_size]
            at = end + 1 + record_size
        rest = rest[at:]


def _spawn_visit_task(result: TaskResult, paths: list[bytes], records: list[bytes]) -> None:
    """Spawn a task that visits these paths, with their records, and clear both lists."""
    if paths:
        result.spawn_task(VisitListedItems(b"\0".join(paths), b"".join(records)), len(paths) * CALL_COST)
        paths.clear()
        records.clear()


class VisitListedItems(TaskKind, code=111, doing="processing listed items of", is_note=False):
    """Task that passes listed items to the visitor of the program, which copies, removes or changes them.

    Fields:

    - ``paths``: paths relative to the top directory of the job, joined by NUL bytes.
    - ``records``: one ``LISTED_RECORD`` per path, or empty if the list has no properties.
    """

    paths: bytes
    records: bytes
    is_respawned_on_resume = True

    def subject(self) -> tuple[Place, bytes]:
        return Place(
            0,
            os.path.dirname(self.paths.partition(b"\0")[0]),
            NO_DIRECTORY_IDENTITY,
            NO_DIRECTORY_IDENTITY,
            False,
            False,
        ), b""

    @property
    def estimated_operations(self) -> int:
        return 2 * (self.paths.count(b"\0") + 1)

    def run(self, rank: Rank, result: TaskResult) -> TaskSteps:
        paths = self.paths.split(b"\0")
        row = 0
        for directory, group in groupby(paths, os.path.dirname):
            names = [*map(os.path.basename, group)]
            records = self.records[row * LISTED_RECORD.size : (row + len(names)) * LISTED_RECORD.size]
            row += len(names)
            yield from _visit_names(rank, result, directory, names, records)


def _visit_names(rank: Rank, result: TaskResult, path: bytes, names: list[bytes], records: bytes) -> TaskSteps:
    """Pass the items ``names`` of the directory ``path`` to the visitor of the program. ``records`` are their
    ``LISTED_RECORD`` values (properties in the list), or empty. Items that differ from their records count as failed.
    """
    place = Place(0, path, NO_DIRECTORY_IDENTITY, NO_DIRECTORY_IDENTITY, False, False)
    try:
        place = place._replace(source_id=rank.sources[0].identity_of_directory(path))
        directory = rank.open_source_directory(place)
        visitor = rank.visitor(rank, result, place, 0)
    except Problem as problem:
        if problem.errno in (errno.ENOTDIR, errno.ELOOP) and (link := _first_symlink_in_path(rank, path)):
            problem = Problem(
                "open", 0, on_source=True, text=f"{printable_path(link)} is a symbolic link; list what it leads to"
            )
        program = rank.job.program
        missing_is_fine = isinstance(program, RemoveOptions) and program.missing_is_fine
        for name in () if problem.changed and missing_is_fine else names:
            result.count(counts.FOUND)
            result.count_item_as_failed(place, name, problem, retry=RetryMode.NEVER)
        return
    packed = pack_names(names)
    stated = yield from rank.execute_batch(
        StatNamesBatch(directory, packed, VISITOR_COLUMNS | OWNER_COLUMN | GROUP_COLUMN)
    )
    verdicts, rows = stated.verdicts, stated.rows
    problems = {row: verdicts.problem(row) for row, code in enumerate(verdicts.codes) if code != OutcomeCode.DONE}
    for row, item in enumerate(LISTED_RECORD.iter_unpack(records)):
        if row not in problems and (why := _mismatch_reason(rows, row, item)):
            problems[row] = Problem("stat", 0, on_source=True, text=why)
    pass_items_to_visitor(FoundItems(directory, packed, rows, problems), visitor)
    yield from visitor.process_collected_items()
    visitor.end_directory_visit()


def _first_symlink_in_path(rank: Rank, path: bytes) -> bytes:
    """Return the first component of ``path`` that is a symbolic link, as a path; empty if there is none."""
    parts = path.split(b"/")
    for depth in range(len(parts)):
        directory, name = b"/".join(parts[:depth]), parts[depth]
        try:
            status = source_item_status(rank.sources[0].open(directory), name)
        except Problem:
            break
        if stat.S_ISLNK(status.st_mode):
            return b"/".join(parts[: depth + 1])
    return b""


def _mismatch_reason(rows: ItemStatusColumns, row: int, item: tuple[int, ...]) -> str:
    """Return why the item in row ``row`` of the statuses ``rows`` is not the one that was listed; "" if it still is.
    ``item`` are the fields of its ``LISTED_RECORD``.
    """
    flags, kind, inode, device, size, seconds, nanoseconds = item
    type_ = stat.S_IFMT(rows.mode[row])
    if flags & ENDS_WITH_SLASH and type_ != stat.S_IFDIR:
        return _LINK_WITH_SLASH_TEXT if type_ == stat.S_IFLNK else _NO_DIRECTORY_TEXT
    if flags & IS_CONTRADICTORY:
        return _CONTRADICTORY_TEXT
    is_listed = (
        kind in (0, type_)
        and not (flags & HAS_INODE and rows.inode[row] != inode)
        and not (flags & HAS_DEVICE and rows.device[row] != device)
        and not (flags & HAS_SIZE and rows.size[row] != size)
        and not (flags & HAS_MTIME and rows.exact_time_of_row("mtime", row) != seconds * 10**9 + nanoseconds)
    )
    return "" if is_listed else NOT_LISTED_ITEM_TEXT
