"""Tasks on directories that must wait until everything in them is done, the deepest first.

Two programs need that: prm removes listed directories, and pchmod may deny their owner access to directories.

Ranks report such directories to rank 0 (``DeferredDirectoriesNote``). At the end of a phase, rank 0 creates tasks for
the directories of the deepest level that remains (``SpawnDeepestDirectoryTasks``), and any rank processes them
(``VisitDeferredDirectories``) before the next phase begins. Rank 0 itself processes a level that has few tasks, because
a phase for each level of a deep tree would take longer. The visitor of the program determines what is done with a
directory.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from itertools import chain, islice
from typing import Protocol

from pcopy.fsio.backend.columns import (
    GROUP_COLUMN,
    INODE_COLUMN,
    MODE_COLUMN,
    OWNER_COLUMN,
    ItemStatusColumns,
    pack_names,
)
from pcopy.fsio.problem import Problem
from pcopy.signature.sorting import ExternalSorter, SortRecord
from pcopy.tasks.base.codec import decode_task, encode_task
from pcopy.tasks.base.kind import DirectoryTask, TaskKind, TaskSteps, TaskWithoutDirectory
from pcopy.tasks.base.rank import CALL_COST, Rank
from pcopy.tasks.base.result import RetryMode, TaskResult
from pcopy.tasks.base.sibling_directories import MAX_TASK_SECONDS
from pcopy.tasks.base.values import NO_DIRECTORY_IDENTITY, Place
from pcopy.walk.visitor import DirectoryVisitor

DEFERRED_STATUS_COLUMNS = MODE_COLUMN | INODE_COLUMN | OWNER_COLUMN | GROUP_COLUMN
"""Which parts of the status of a directory are kept until the directory is processed."""

_MAX_TASKS_OF_SMALL_LEVEL = 4
"""Largest number of tasks of a level whose directories rank 0 processes without creating tasks for them."""

_DEPTH_ORIGIN = 1 << 31
"""A number that is greater than the depth of any path. The depth is subtracted from it to make a sort key, so that
deeper directories sort first.
"""


class DeferredDirectoryVisitor(DirectoryVisitor, Protocol):
    """Protocol of a visitor that can also process directories after their contents."""

    def visit_deferred_directories(self, directory: int, names: bytes, rows: ItemStatusColumns) -> TaskSteps:
        """Process the directories ``names`` (joined by slashes) of an open ``directory``, after their contents.
        ``rows`` are their statuses as they were found.
        """


def defer_directories(result: TaskResult, place: Place, names: Sequence[bytes], rows: ItemStatusColumns) -> None:
    """Have the directories ``names`` of ``place`` processed later, after everything in them; ``rows`` are their
    statuses. To this end they are reported to rank 0.
    """
    result.spawn_task(
        DeferredDirectoriesNote(place, pack_names(names), rows.status_columns_as_bytes(DEFERRED_STATUS_COLUMNS)),
        owner=0,
    )


class DeferredDirectoriesNote(TaskWithoutDirectory, code=112, doing="recording directories"):
    """Message to rank 0 about directories ``names`` (joined by slashes) of ``place`` that must be processed after their
    contents; ``rows`` are their statuses, packed (``DEFERRED_STATUS_COLUMNS``).
    """

    place: Place
    names: bytes
    rows: bytes
    is_respawned_on_resume = True

    def run(self, rank: Rank, result: TaskResult) -> None:
        rank.shared_instance(DeferredDirectories).add(VisitDeferredDirectories(self.place, self.names, self.rows))


class SpawnDeepestDirectoryTasks(TaskWithoutDirectory, code=113, doing="distributing directories", is_note=False):
    """Task of rank 0 at the end of a phase: process the deepest levels that remain, as long as each has few tasks, and
    create the tasks for the directories of the next one.
    """

    is_respawned_on_resume = True

    def run(self, rank: Rank, result: TaskResult) -> TaskSteps:
        deferred, end = rank.shared_instance(DeferredDirectories), time.monotonic() + MAX_TASK_SECONDS
        while time.monotonic() < end and rank.stop_reason is None:
            level = deferred.deepest_level_tasks()
            tasks = [*islice(level, _MAX_TASKS_OF_SMALL_LEVEL + 1)]
            if not tasks:
                return
            if len(tasks) > _MAX_TASKS_OF_SMALL_LEVEL:
                result.spawn_tasks_lazily(chain(tasks, level), CALL_COST, expands=False)
                return
            for task in tasks:
                yield from task.run(rank, result)
            yield None


class VisitDeferredDirectories(DirectoryTask, code=114, doing="finishing directories of", is_note=False):
    """Task that processes the directories ``names`` (joined by slashes) of ``place``, now that their contents have been
    processed. ``rows`` are their statuses, packed (``DEFERRED_STATUS_COLUMNS``).

    In a dry run of ``pchmod``, this task also processes names of inodes that have several hard links, on the one rank
    that is responsible for the inode. (That rank counts the inode once.)
    """

    names: bytes
    rows: bytes
    is_respawned_on_resume = True

    def run(self, rank: Rank, result: TaskResult) -> TaskSteps:
        number = self.names.count(b"/") + 1
        try:
            directory = open_checked_directory(rank, self.place)
        except Problem as problem:
            for name in self.names.split(b"/"):
                result.count_item_as_failed(self.place, name, problem, retry=RetryMode.NEVER)
            return
        visitor: DeferredDirectoryVisitor = rank.visitor(rank, result, self.place, 0)  # type: ignore[assignment]
        yield from visitor.visit_deferred_directories(
            directory,
            self.names,
            ItemStatusColumns.status_columns_from_bytes(self.rows, number, DEFERRED_STATUS_COLUMNS),
        )


def open_checked_directory(rank: Rank, place: Place) -> int:
    """Return a descriptor of the source directory ``place``. Raise ``Problem`` if it cannot be opened, or is not the
    one that was found.

    If the identity in ``place`` is unknown (``NO_DIRECTORY_IDENTITY``), any directory at this path is accepted.
    """
    identity = None if place.source_id == NO_DIRECTORY_IDENTITY else place.source_id
    return rank.sources[place.root].open(place.path, identity)


class DeferredDirectories:
    """On rank 0: all directories that must be processed after their contents, as ``VisitDeferredDirectories`` tasks
    sorted by depth.
    """

    def __init__(self, rank: Rank) -> None:
        self._sorter = ExternalSorter(rank.open_spool)
        self._count = 0
        self._sorted_records: Iterator[SortRecord] | None = None
        self._next_record: SortRecord | None = None

    def add(self, task: TaskKind) -> None:
        """Add a ``VisitDeferredDirectories`` task. Call this only before ``deepest_level_tasks``. May raise ``OSError``
        if the temporary file cannot be written.
        """
        (place, *_) = task
        depth = place.path.count(b"/") + 1 if place.path else 0
        self._sorter.add((_DEPTH_ORIGIN - depth).to_bytes(4, "big"), encode_task(task))
        self._count += 1

    @property
    def is_empty(self) -> bool:
        """True if no directory remains: all levels were distributed, or none was reported."""
        return self._next_record is None if self._sorted_records is not None else not self._count

    def deepest_level_tasks(self) -> Iterator[VisitDeferredDirectories]:
        """Return an iterator over the tasks for the deepest level that remains. Each task is removed from this object
        when it is yielded.
        """
        if self._sorted_records is None:
            self._sorted_records = self._sorter.sorted()
            self._next_record = next(self._sorted_records, None)
        return self._tasks_of_level(self._sorted_records)

    def _tasks_of_level(self, rest: Iterator[SortRecord]) -> Iterator[VisitDeferredDirectories]:
        """Generator: yield the tasks of the next level in ``rest``, the sorted records that remain, and remember the
        first record of the level after it.
        """
        depth = self._next_record[0] if self._next_record else b""
        while self._next_record is not None and self._next_record[0] == depth:
            task, self._next_record = self._next_record[1], next(rest, None)
            yield decode_task(task)

    def close(self) -> None:
        """Release the temporary file in which the tasks are sorted."""
        self._sorter.close()
