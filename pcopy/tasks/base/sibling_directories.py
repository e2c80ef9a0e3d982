"""Tasks about several directories with the same parent, and the decision whether a task enters the directories that it
finds or leaves them to other ranks.
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
from pcopy.tasks.base.codec import encode
from pcopy.tasks.base.dividing import portion_slices
from pcopy.tasks.base.kind import DirectoryTask, DivisibleTask, LeftoverLocation, MissingDirectories, Steps, TaskKind
from pcopy.tasks.base.rank import SCAN_COST, Rank
from pcopy.tasks.base.result import TaskResult
from pcopy.tasks.base.values import Place, pack_numbers

MAX_DIRECTORIES_PER_TASK = 64
"""Largest number of directories of one task."""
MAX_DIRECTORIES_PER_CALL = 16
"""Largest number of directories in one call of the backend."""
MAX_CALL_SECONDS = 0.02
"""Longest desired duration of a call in seconds, so that the rank soon notices operations that wait."""
MAX_TASK_SECONDS = 0.05
"""Seconds after which a task leaves the remaining directories to other tasks."""


def task_slices(rank: Rank, number: int) -> Iterator[slice]:
    """Yield the slices into which ``number`` directories are divided, one for each task.

    While other ranks may be idle, even a few directories are divided among several tasks. Otherwise one rank could keep
    a whole tree.
    """
    size = (
        MAX_DIRECTORIES_PER_TASK
        if rank.all_ranks_have_work()
        else max(1, min(MAX_DIRECTORIES_PER_TASK, -(-number // (2 * rank.total_task_slots()))))
    )
    return (slice(start, start + size) for start in range(0, number, size))


def enters_several_per_call(rank: Rank) -> bool:
    """Return True if the backend processes everything in several directories in one call.

    It does not if it has threads, because then each item may be processed by another one, nor if a limit is set,
    because each item is counted then.
    """
    return rank.backend.has_directory_batches and rank.backend.runs_in_poll and not rank.throttle.is_on


class DirectoriesPerCall:
    """Number of directories that one rank passes to the backend in one call. It grows while calls are short."""

    def __init__(self, rank: Rank | None = None) -> None:
        """Begin with one directory. ``rank`` is not used; ``Rank.own`` passes it."""
        self.number = 1

    def adapt(self, seconds: float) -> None:
        """Adapt the number to the duration of the last call."""
        self.number = (
            max(1, self.number // 2) if seconds > MAX_CALL_SECONDS else min(MAX_DIRECTORIES_PER_CALL, 2 * self.number)
        )


class DirectoriesToEnter(ABC):
    """The directories that one task has found and not entered yet.

    The task enters them while all other ranks have work too, and leaves the rest to tasks of their own.
    """

    def __init__(self, rank: Rank, result: TaskResult) -> None:
        self._rank = rank
        self._result = result
        self._remaining: list[tuple[Place, Sequence[bytes], Sequence[int]]] = []
        """Directories that remain to be entered: parent, names and inode numbers."""
        self._deadline = time.monotonic() + MAX_TASK_SECONDS
        self._has_begun = False
        """True if the task has entered something. Until it has, it enters some directories even if other ranks are
        idle.
        """

    @abstractmethod
    def _can_enter_several(self, around: Place) -> bool:
        """Return True if the backend can process several directories of the parent ``around`` in one call."""

    @abstractmethod
    def _enter_several(self, around: Place, names: Sequence[bytes], inodes: Sequence[int]) -> Steps:
        """Enter several directories by one call of the backend."""

    @abstractmethod
    def _enter(self, around: Place, name: bytes, inode: int) -> Steps:
        """Enter one directory."""

    @abstractmethod
    def _make_task(self, around: Place, names: bytes, inodes: bytes) -> DivisibleTask:
        """Return a task that enters these directories."""

    def add(self, around: Place, names: Sequence[bytes], inodes: Sequence[int]) -> None:
        """Add directories of the parent ``around`` that were found."""
        self._remaining.append((around, names, inodes))

    def enter_while_others_work(self) -> Steps:
        """Enter directories while no other rank needs work; spawn tasks for the remaining ones."""
        remaining, at_once = self._remaining, self._rank.instance(DirectoriesPerCall)
        while remaining and (not self._has_begun or self._should_enter_more()):
            self._has_begun = True
            around, names, inodes = remaining.pop()
            number = at_once.number if len(names) > 1 and self._can_enter_several(around) else 1
            if len(names) > number:
                remaining.append((around, names[number:], inodes[number:]))
            began = time.monotonic()
            if number > 1:
                yield from self._enter_several(around, names[:number], inodes[:number])
            else:
                yield from self._enter(around, names[0], inodes[0])
            at_once.adapt(time.monotonic() - began)
        for each in remaining:
            self._spawn(*each)

    def _problem_of_replaced(self, around: Place) -> Problem | None:
        """Return the reason if ``around`` is another directory now, so that a name found before is missing. Return None
        if only the name was removed.

        Something may have been mounted over the directory, or unmounted from it.
        """
        sources = self._rank.sources[around.root]
        sources.discard(around.path)
        try:
            sources.expected_mounts.check_mount(sources.open(around.path, around.source_id))
        except Problem as problem:
            return None if problem.errno == errno.ENOENT else problem
        return None

    def _should_enter_more(self) -> bool:
        """Return True if this task should enter further directories itself."""
        rank = self._rank
        return time.monotonic() < self._deadline and rank.stop_reason is None and rank.all_ranks_have_work()

    def _spawn(self, around: Place, names: Sequence[bytes], inodes: Sequence[int]) -> None:
        """Spawn tasks that enter these directories."""
        for share in task_slices(self._rank, len(names)):
            task = self._make_task(around, pack_names(names[share]), pack_numbers([*inodes[share]]))
            self._result.spawn(task, task.item_count * SCAN_COST, expands=True)


class SiblingsTask(DirectoryTask):
    """Base class of tasks about several subdirectories of ``place``. ``names`` are their names, joined by slashes."""

    names: bytes

    def subset(self, rows: Sequence[int]) -> Self:
        """Return the task for the directories with these numbers only."""
        raise NotImplementedError

    def single_tasks(self) -> Iterable[TaskKind]:
        """Return an equivalent task for each directory."""
        raise NotImplementedError

    @property
    def item_count(self) -> int:
        """Number of directories."""
        return self.names.count(b"/") + 1

    def divide(self, portions: int) -> list[Self]:
        return [self.subset(range(cut.start, cut.stop)) for cut in portion_slices(self.item_count, portions)]

    def contained_places(self) -> Iterator[Place]:
        return chain.from_iterable(one.contained_places() for one in self.single_tasks())

    def leftover_locations(self, *, after_first_run: bool) -> Iterator[LeftoverLocation]:
        return chain.from_iterable(
            one.leftover_locations(after_first_run=after_first_run) for one in self.single_tasks()
        )

    def tasks_without_missing(self, task: Task, missing: MissingDirectories) -> Iterator[Task]:
        remaining = [
            row for row, one in enumerate(self.single_tasks()) if not any(map(missing.contains, one.contained_places()))
        ]
        if remaining:
            yield task._replace(payload=encode(self.subset(remaining)))
