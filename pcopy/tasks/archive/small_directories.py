"""Fast extraction of small directories: one call of the backend creates the directories of a task, and the simple
members in them from data in memory.

A *simple* member is a regular file whose headers state only name, mode, owner, mtime and size. A *leaf* is a directory
in which nothing else is created than its simple members. It gets its metadata at once, unless another user could
replace its files then, or this process would lose access to it; these and all other directories get their metadata at
the end (``pcopy.tasks.archive.finish_members``). What the backend leaves is extracted by the slow path
(``ExtractMembers``).
"""

from __future__ import annotations

import marshal
from array import array
from collections.abc import Iterable, Sequence
from itertools import accumulate, compress
from typing import Generic, Protocol, Self, TypeVar

from pcopy.engine.ticket import TicketGenerator
from pcopy.fsio.attributes import MetadataOutcome
from pcopy.fsio.backend.columns import ItemStatusColumns, OutcomeCode
from pcopy.fsio.backend.member_batches import (
    IS_LEAF,
    IS_MEMBER,
    UNPACKED_DIRECTORY_COLUMNS,
    UnpackDirectoriesBatch,
    UnpackDirectoriesResult,
)
from pcopy.fsio.problem import Problem
from pcopy.fsio.source import status_of_open_item
from pcopy.tasks.archive.make_members import MAX_READ_SIZE, row_ranges_close_in_archive, run_batch_at_once
from pcopy.tasks.archive.members_to_extract import (
    SIMPLE_MEMBER_WORDS,
    MemberToExtract,
    SimpleMemberColumns,
    directory_place_in_target,
    is_packed_directory,
)
from pcopy.tasks.archive.names import ConflictingNames
from pcopy.tasks.archive.open_archive import OpenedArchive
from pcopy.tasks.base import counts
from pcopy.tasks.base.rank import Rank
from pcopy.tasks.base.result import TaskResult

_NOT_DESCRIBED = bytes(8 * SIMPLE_MEMBER_WORDS)
"""Stands for the packed member of a directory that no member describes."""
_DONE, _LACKS_METADATA = int(OutcomeCode.DONE), int(OutcomeCode.LACKS_METADATA)


class SmallDirectory(Protocol):
    """What this module uses of a task that extracts some members of a directory (``ExtractMembers``, which describes
    these).
    """

    @property
    def path(self) -> bytes: ...
    @property
    def values(self) -> bytes: ...
    @property
    def names(self) -> bytes: ...
    @property
    def simple_members(self) -> bytes: ...
    @property
    def superseded(self) -> int: ...
    @property
    def is_leaf(self) -> bool: ...
    def simple_columns(self) -> SimpleMemberColumns: ...
    def task_for_files(self, simple: SimpleMemberColumns) -> Self: ...


T = TypeVar("T", bound=SmallDirectory)


def can_unpack_directories(rank: Rank, result: TaskResult) -> bool:
    """Return True if small directories may be extracted by calls of the backend: it has such calls and no threads, the
    job has no limits and is no dry run, no outcomes of items are reported, and no name belongs to a file and to a
    directory.
    """
    return (
        rank.backend.has_directory_batches
        and rank.backend.runs_in_poll
        and not (rank.throttle.is_on or rank.options.dry_run or result.item_recorder.is_recording)
        and not rank.shared_instance(ConflictingNames)
    )


def unpack_directories(
    rank: Rank,
    result: TaskResult,
    tasks: Sequence[T],
    to_finish: list[MemberToExtract],
    deadline: float,
) -> TicketGenerator[tuple[list[T], bool, list[bytes]]]:
    """Create the directories of ``tasks``, and the members in them, by a call of the backend, and count them. Add
    directories that get their metadata at the end to ``to_finish``. Return tasks for what remains; True if the backend
    has created or opened any directory; and the paths of new directories to which the caller has to give the mode of a
    new one.

    ``deadline`` is the time (``time.monotonic``) after which no further directory is begun.
    """
    remaining: list[T] = []
    rows = _DirectoryRows[T]()
    for task in tasks:
        if not rows.add_task(task):
            remaining.append(task)
    if not rows.tasks:
        return remaining, False, []
    try:
        root = rank.targets[0].open(b"")
        device = status_of_open_item(root).st_dev
        rank.detect_times_set_on_close(root, device, result.notices)
        batch = rows.batch(root, device, rank.shared_instance(OpenedArchive), deadline)
    except Problem:  # the slow path meets the error again, and reports it
        return list(tasks), False, []
    made = yield from run_batch_at_once(rank, batch)
    unprepared = [task.path[:size] for task, size in zip(rows.tasks, made.unprepared, strict=True) if size]
    return [*remaining, *rows.report(rank, result, made, to_finish)], any(made.directory_codes), unprepared


class _DirectoryRows(Generic[T]):
    """Small directories for a batch, in columns; a row is one directory.

    ``tasks`` are the tasks that extract them.
    """

    def __init__(self) -> None:
        self.tasks: list[T] = []
        self._values: list[bytes] = []
        """The packed member that describes each directory, or ``_NOT_DESCRIBED``."""
        self._file_counts = array("I")
        """Number of the simple members of each."""
        self._flags = bytearray()
        self._files = SimpleMemberColumns((), b"")
        """The simple members of all directories."""

    def add_task(self, task: T) -> bool:
        """Add the directory of ``task``. Return False if the backend cannot create all of its members."""
        values, files = marshal.loads(task.values), len(task.simple_members) // (8 * SIMPLE_MEMBER_WORDS)
        if len(values) > 1 or not task.path or not (files or values):
            return False
        if values and not is_packed_directory(values[0]):
            return False
        if files and max(task.simple_columns().sizes) > MAX_READ_SIZE:
            return False
        self.tasks.append(task)
        self._values.append(values[0] if values else _NOT_DESCRIBED)
        self._file_counts.append(files)
        self._flags.append((IS_MEMBER if values else 0) | (IS_LEAF if values and task.is_leaf else 0))
        return True

    def batch(self, root: int, device: int, archive: OpenedArchive, deadline: float) -> UnpackDirectoriesBatch:
        """Return the batch, with the contents of the files, which are read from ``archive``. Raise ``Problem``.

        Args:
            root: descriptor of the target.
            device: st_dev of the target.
            deadline: time (``time.monotonic``) after which no further directory is begun.
        """
        directories = ItemStatusColumns.with_unset_columns(len(self.tasks), UNPACKED_DIRECTORY_COLUMNS)
        described = SimpleMemberColumns((), b"".join(self._values)).metadata_columns_for_creation(0, len(self.tasks))
        directories.mode, directories.uid, directories.gid = described.mode, described.uid, described.gid
        directories.mtime, directories.links = described.mtime, self._file_counts
        files = self._files = SimpleMemberColumns((), b"".join([task.simple_members for task in self.tasks]))
        rows = files.metadata_columns_for_creation(0, len(files.sizes))
        contents, offsets = _contents_and_offsets(archive, files)
        names = b"".join([task.names.replace(b"/", b"\0") + b"\0" for task in self.tasks if task.simple_members])
        paths = b"".join([task.path + b"\0" for task in self.tasks])
        return UnpackDirectoriesBatch(
            root, device, paths, bytes(self._flags), directories, names, rows, contents, offsets, deadline
        )

    def report(
        self, rank: Rank, result: TaskResult, made: UnpackDirectoriesResult, to_finish: list[MemberToExtract]
    ) -> Iterable[T]:
        """Count what the batch has created, according to its result ``made``. Add directories that get their metadata
        at the end to ``to_finish``. Yield tasks for what remains.
        """
        directories = end = 0
        for task, value, number, flags, code in zip(
            self.tasks, self._values, self._file_counts, self._flags, made.directory_codes, strict=True
        ):
            first, end = end, end + number
            if not code:
                yield task
                continue
            if flags & IS_MEMBER:
                directories += 1
                if code != _DONE:
                    to_finish.append(MemberToExtract.unpack(value, task.path))
            result.count(counts.SKIPPED, task.superseded)
            if made.file_codes.count(_DONE, first, end) < number:
                yield from _remaining_files(result, task, made.file_codes[first:end])
        result.count(counts.DIRECTORIES, directories)
        if any(made.file_codes):
            rank.record_write_success()
            result.count(counts.FILES, len(made.file_codes) - made.file_codes.count(0))
            result.count(counts.BYTES, sum(compress(self._files.sizes, made.file_codes)))


def _remaining_files(result: TaskResult, task: T, codes: bytes) -> Iterable[T]:
    """Report the files of ``task`` that were created with another owner; yield a task for those that were not created.
    ``codes`` are those of its files.
    """
    simple = task.simple_columns()
    for row, code in enumerate(codes):
        if code == _LACKS_METADATA:
            outcome = MetadataOutcome(excused=1)
            result.record_applied_metadata(directory_place_in_target(task.path), simple.names[row], outcome)
    if rows := [row for row, code in enumerate(codes) if not code]:
        yield task.task_for_files(simple.selected_members(rows))


def _contents_and_offsets(archive: OpenedArchive, files: SimpleMemberColumns) -> tuple[bytes, array[int]]:
    """Read the contents of ``files`` from ``archive``, and return them and the offset in them of each. Raise
    ``Problem``.
    """
    order = sorted(range(len(files.sizes)), key=files.data_offsets.__getitem__)
    places, sizes = [files.data_offsets[row] for row in order], [files.sizes[row] for row in order]
    parts = list[bytes]()
    for start, end in row_ranges_close_in_archive(places, sizes, MAX_READ_SIZE):
        begin = places[start]
        data = archive.read_exactly(begin, max(map(int.__add__, places[start:end], sizes[start:end])) - begin)
        for place, size in zip(places[start:end], sizes[start:end], strict=True):
            parts.append(data[place - begin : place - begin + size])
    offsets = array("Q", bytes(8 * len(order)))
    for row, offset in zip(order, accumulate(sizes, initial=0), strict=False):
        offsets[row] = offset
    return b"".join(parts), offsets
