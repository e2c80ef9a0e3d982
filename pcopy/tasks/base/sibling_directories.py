"""Tasks about several directories with the same parent, and the decision whether a task that finds directories enters
them itself (processes their contents) or leaves them to other ranks.

The backend is the code, in C or in Python, that makes the system calls for many items in one call
(``pcopy.fsio.backend``).
"""

from __future__ import annotations

import errno
import time
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from typing import Self

from pcopy.engine.task import Task
from pcopy.fsio.backend.columns import pack_names
from pcopy.fsio.problem import Problem
from pcopy.tasks.base.codec import encode_task
from pcopy.tasks.base.dividing import portion_slices
from pcopy.tasks.base.kind import (
    DirectoryTask,
    DivisibleTask,
    LeftoverLocation,
    MissingDirectories,
    TaskKind,
    TaskSteps,
)
from pcopy.tasks.base.rank import SCAN_COST, Rank
from pcopy.tasks.base.result import TaskResult
from pcopy.tasks.base.values import Place, pack_numbers

MAX_DIRECTORIES_PER_TASK = 64
"""Largest number of directories of one task. A task with more could take so long that other ranks have nothing to do.
"""
MAX_DIRECTORIES_PER_CALL = MAX_DIRECTORIES_PER_TASK
"""Largest number of directories that are given to the backend in one call."""
DIRECTORIES_PER_CALL_WITH_THREADS = 16
"""Number of directories that are given to the backend in one call if it has threads: other tasks give it more."""
MAX_CALL_SECONDS = 0.02
"""Seconds that one call of the backend should take at most, because the rank handles no messages meanwhile. After a
longer one, the next call gets fewer directories.
"""
MAX_TASK_SECONDS = 0.05
"""Seconds after which a task enters no more directories itself, and spawns tasks for the remaining ones."""

MAX_SECONDS_WHILE_IDLE = 0.005
"""Seconds after which one call of the backend enters no more directories if other ranks may be idle."""

MIN_CALL_SECONDS = 0.001
"""Seconds for which even the first call of the backend enters directories."""
MAX_CALL_SHARE = 0.125
"""Largest duration of a call that copies no files, as a fraction of the time since the rank has begun."""


def directory_slices_per_task(rank: Rank, number: int) -> Iterator[slice]:
    """Divide ``number`` directories among tasks: yield slices of ``range(number)``, one for each task.

    If other ranks may be idle, even a few directories are divided among several tasks. Otherwise one rank could keep a
    whole tree.
    """
    size = (
        MAX_DIRECTORIES_PER_TASK
        if rank.all_ranks_have_work()
        else max(1, min(MAX_DIRECTORIES_PER_TASK, -(-number // (2 * rank.total_task_slots()))))
    )
    return (slice(start, start + size) for start in range(0, number, size))


def enters_several_per_call(rank: Rank) -> bool:
    """Return True if one call of the backend may process all items in several directories.

    Return False if the backend has threads, because these can process the items of one directory in parallel. Return
    False also with a limit (--bwlimit, --oplimit), because then each item is counted against the limit.
    """
    return rank.backend.has_directory_batches and rank.backend.runs_in_poll and not rank.throttle.is_on


def call_deadline(rank: Rank, *, copies_files: bool = False) -> float:
    """Return the time (``time.monotonic``) after which a call of the backend enters no directory below its rows. It is
    soon if other ranks may be idle, and at once with threads, which then have more rows to work on.

    The first calls of a rank are short, too, so that the other ranks get directories early. Only a call that copies
    files (``copies_files``) has its full time from the start, because files that it does not reach become tasks.
    """
    if not rank.backend.runs_in_poll:
        return 0.0
    now = time.monotonic()
    longest = MAX_TASK_SECONDS if rank.all_ranks_have_work() else MAX_SECONDS_WHILE_IDLE
    if rank.size > 1 and not copies_files:
        longest = min(longest, max(MIN_CALL_SECONDS, MAX_CALL_SHARE * (now - rank.began)))
    return now + longest


def problem_of_replaced_directory(rank: Rank, around: Place) -> Problem | None:
    """Find out why a subdirectory of ``around`` that was found before is missing. Return the error if another directory
    is at the path of ``around`` now, because a file system was mounted or unmounted there. Return None if it is the
    same directory: then only the subdirectory was removed.
    """
    sources = rank.sources[around.root]
    sources.discard_directory(around.path)
    try:
        sources.expected_mounts.check_mount_is_not_new(sources.open(around.path, around.source_id))
    except Problem as problem:
        return None if problem.errno == errno.ENOENT else problem
    return None


class DirectoriesPerCall:
    """Number of directories that one rank gives to the backend in one call. It doubles while calls are short, and is
    halved after a long one.
    """

    def __init__(self, rank: Rank | None = None) -> None:
        """Begin with one directory per call. ``rank`` is not used; ``Rank.shared_instance`` passes it."""
        self.number = 1

    def adapt_to_duration(self, seconds: float) -> None:
        """Adapt the number to the duration of the last call, in seconds."""
        self.number = (
            max(1, self.number // 2) if seconds > MAX_CALL_SECONDS else min(MAX_DIRECTORIES_PER_CALL, 2 * self.number)
        )


class DirectoriesToEnter(ABC):
    """Base class: the directories that one task has found and whose contents it has not processed yet (it has not
    entered them).

    While all other ranks have work, too, the task enters them itself. For the rest it spawns tasks. A subclass says
    what is done in a directory.
    """

    def __init__(self, rank: Rank, result: TaskResult) -> None:
        self._rank = rank
        self._result = result
        self._remaining: list[tuple[Place, Sequence[bytes], Sequence[int]]] = []
        """Directories that remain to be entered, in groups with the same parent: the parent, and their names and inode
        numbers.
        """
        self._deadline = time.monotonic() + MAX_TASK_SECONDS
        self._has_begun = False
        """True if the task has entered a directory. Before that it enters some even if other ranks are idle."""

    @abstractmethod
    def _can_enter_several_directories(self, around: Place) -> bool:
        """Return True if one call of the backend can process the contents of several subdirectories of ``around``."""

    def _enters_subtrees(self, around: Place) -> bool:
        """Return True if one call of the backend enters directories below subdirectories of ``around``, too, so that it
        pays off even for one of these.
        """
        return False

    @abstractmethod
    def _enter_several_directories(self, around: Place, names: Sequence[bytes], inodes: Sequence[int]) -> TaskSteps:
        """Process the contents of the subdirectories ``names`` of ``around`` by one call of the backend. ``inodes`` are
        the inode numbers that the scan has found.
        """

    @abstractmethod
    def _enter_directory(self, around: Place, name: bytes, inode: int) -> TaskSteps:
        """Process the contents of the subdirectory ``name`` of ``around``. ``inode`` is the inode number that the scan
        has found.
        """

    @abstractmethod
    def _make_subdirectories_task(self, around: Place, names: bytes, inodes: bytes) -> DivisibleTask:
        """Return a task that processes the contents of the subdirectories ``names`` of ``around``. The names are joined
        by slashes, their ``inodes`` packed by ``pack_numbers``.
        """

    def add(self, around: Place, names: Sequence[bytes], inodes: Sequence[int]) -> None:
        """Add subdirectories of ``around`` that the task has found. ``inodes`` are the inode numbers of ``names``."""
        self._remaining.append((around, names, inodes))

    def enter_directories_while_others_work(self) -> TaskSteps:
        """Process the contents of directories while all other ranks have work. Then spawn tasks for the remaining
        directories.
        """
        remaining, at_once = self._remaining, self._rank.shared_instance(DirectoriesPerCall)
        while remaining and (not self._has_begun or self._should_enter_more_directories()):
            self._has_begun = True
            around, names, inodes = remaining.pop()
            in_batch = self._can_enter_several_directories(around)
            number = min(len(names), at_once.number) if in_batch else 1
            if len(names) > number:
                remaining.append((around, names[number:], inodes[number:]))
            began = time.monotonic()
            if number > 1 or (in_batch and self._enters_subtrees(around)):
                yield from self._enter_several_directories(around, names[:number], inodes[:number])
            else:
                yield from self._enter_directory(around, names[0], inodes[0])
            if self._rank.backend.runs_in_poll:
                at_once.adapt_to_duration(time.monotonic() - began)
            else:  # the rank handles messages during a call
                at_once.number = DIRECTORIES_PER_CALL_WITH_THREADS
            yield None
        for each in remaining:
            self._spawn_subdirectory_tasks(*each)

    def _problem_of_replaced_parent(self, around: Place) -> Problem | None:
        """Find out why a subdirectory of ``around`` that was found before is missing."""
        return problem_of_replaced_directory(self._rank, around)

    def _should_enter_more_directories(self) -> bool:
        """Return True if the task should enter another directory itself: its time is not over, the job is not being
        stopped, and all other ranks have work.
        """
        rank = self._rank
        return time.monotonic() < self._deadline and rank.stop_reason is None and rank.all_ranks_have_work()

    def _spawn_subdirectory_tasks(self, around: Place, names: Sequence[bytes], inodes: Sequence[int]) -> None:
        """Spawn tasks that process the contents of the subdirectories ``names`` of ``around``. ``inodes`` are their
        inode numbers.
        """
        for share in directory_slices_per_task(self._rank, len(names)):
            task = self._make_subdirectories_task(around, pack_names(names[share]), pack_numbers([*inodes[share]]))
            self._result.spawn_task(task, task.item_count * SCAN_COST, expands=True)


class SiblingDirectoriesTask(DirectoryTask):
    """Base class of tasks about several subdirectories of ``place``. The field ``names`` has their names, joined by
    slashes.
    """

    names: bytes

    def task_for_some_directories(self, rows: Sequence[int]) -> Self:
        """Return a task for some of the directories only: those whose indices in ``names`` are ``rows``."""
        raise NotImplementedError

    def single_directory_tasks(self) -> Iterable[TaskKind]:
        """Return one task for each directory; together they do the same as this task."""
        raise NotImplementedError

    @property
    def item_count(self) -> int:
        """Number of directories in ``names``."""
        return self.names.count(b"/") + 1

    def divide(self, portions: int) -> list[Self]:
        return [
            self.task_for_some_directories(range(cut.start, cut.stop))
            for cut in portion_slices(self.item_count, portions)
        ]

    def contained_directory_places(self) -> Iterator[Place]:
        return chain.from_iterable(one.contained_directory_places() for one in self.single_directory_tasks())

    def locations_of_leftover_files(self, *, after_first_run: bool) -> Iterator[LeftoverLocation]:
        return chain.from_iterable(
            one.locations_of_leftover_files(after_first_run=after_first_run) for one in self.single_directory_tasks()
        )

    def replacement_tasks_if_directories_missing(self, task: Task, missing: MissingDirectories) -> Iterator[Task]:
        remaining = [
            row
            for row, one in enumerate(self.single_directory_tasks())
            if not any(map(missing.contains, one.contained_directory_places()))
        ]
        if remaining:
            yield task._replace(payload=encode_task(self.task_for_some_directories(remaining)))
