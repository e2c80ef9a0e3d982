"""Directories with the same parent (``Siblings``), tasks about several of them, and limits of what one task, and one
call of the backend, does with directories.

The backend is the code, in C or in Python, that makes the system calls for many items in one call
(``pcopy.fsio.backend``).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain
from typing import Self

from pcopy.engine.task import Task
from pcopy.fast_named_tuple import NamedTuple
from pcopy.fsio.backend.columns import pack_names
from pcopy.tasks.base.codec import encode_task
from pcopy.tasks.base.dividing import portion_slices
from pcopy.tasks.base.kind import DirectoryTask, LeftoverLocation, MissingDirectories, TaskKind
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

_DIRECTORY_LETTER = ord("d")
"""Letter of a directory, and of one that a call of the backend has not entered."""


class Siblings(NamedTuple):
    """Items of one directory, usually directories, that a task has found or was created for.

    Fields:
        parent: the directory that contains them.
        names: their names.
        inodes: their inode numbers in the listing of ``parent``; empty if they are unknown.
        other_inodes: their inode numbers on the second side; empty if the program has only one.
        kinds: their type letters, or what remains to be done with them (``RemainingItems.kinds``); empty if all are
            directories, or if the types are unknown.
        are_visited: True if they are directories that have been processed themselves, so that only their contents
            remain.
        are_simple: False if the backend could not process them.
    """

    parent: Place
    names: Sequence[bytes]
    inodes: Sequence[int] = ()
    other_inodes: Sequence[int] = ()
    kinds: bytes = b""
    are_visited: bool = True
    are_simple: bool = True

    def part(self, start: int, end: int | None = None) -> Siblings:
        """Return the siblings from index ``start`` up to, but not including, ``end``."""
        return self._replace(
            names=self.names[start:end],
            inodes=self.inodes[start:end],
            other_inodes=self.other_inodes[start:end],
            kinds=self.kinds[start:end],
        )

    def packed(self) -> tuple[Place, bytes, bytes]:
        """Return the parent, names (joined by slashes) and inode numbers (8 bytes each), as fields of a task."""
        return self.parent, pack_names(self.names), pack_numbers([*self.inodes])

    @property
    def letters(self) -> bytes:
        """``kinds``, or, if it is empty, the letter of a directory for each of the siblings."""
        return self.kinds or b"d" * len(self.names)

    def divided_by_type(self) -> tuple[Siblings, Siblings]:
        """Return the directories among the siblings, and the others. ``kinds`` must not be empty."""
        if self.kinds.count(_DIRECTORY_LETTER) == len(self.names):
            return self, self.part(0, 0)
        others = [row for row, kind in enumerate(self.kinds) if kind != _DIRECTORY_LETTER]
        return self.with_letter(_DIRECTORY_LETTER), self.selected(others)

    def with_letter(self, letter: int) -> Siblings:
        """Return those siblings that have this letter in ``kinds``."""
        return self.selected([row for row, kind in enumerate(self.kinds) if kind == letter])

    def selected(self, rows: Sequence[int]) -> Siblings:
        """Return those siblings whose indices are ``rows``."""
        return self._replace(
            names=[self.names[row] for row in rows],
            inodes=[self.inodes[row] for row in rows] if self.inodes else (),
            other_inodes=[self.other_inodes[row] for row in rows] if self.other_inodes else (),
            kinds=bytes(self.kinds[row] for row in rows) if self.kinds else b"",
        )


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


def shares_per_task(rank: Rank, found: Siblings) -> list[Siblings]:
    """Divide directories among tasks; return those of each task."""
    return [found.part(each.start, each.stop) for each in directory_slices_per_task(rank, len(found.names))]


def spawn_tasks_for_siblings(
    rank: Rank, result: TaskResult, found: Siblings, make_task: Callable[[Siblings], TaskKind]
) -> int:
    """Spawn tasks that process the directories ``found`` and everything below them; return the number of tasks.
    ``make_task`` is a function that returns the task for some of them.
    """
    shares = shares_per_task(rank, found)
    for share in shares:
        result.spawn_task(make_task(share), len(share.names) * SCAN_COST, expands=True)
    return len(shares)


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


def should_task_continue(rank: Rank, deadline: float) -> bool:
    """Return True if a task should process further directories itself, instead of leaving them to other tasks: its time
    is not over (``deadline``, of ``time.monotonic``), the job is not being stopped, and all other ranks have work.
    """
    return time.monotonic() < deadline and rank.stop_reason is None and rank.all_ranks_have_work()


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
