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
from pcopy.fsio.kernel.columns import pack_names
from pcopy.fsio.problem import Problem
from pcopy.tasks.base.codec import encode
from pcopy.tasks.base.dividing import cuts
from pcopy.tasks.base.kind import Divisible, Gone, Kind, Left, OfPlace, Steps
from pcopy.tasks.base.rank import SCAN_COST, Rank
from pcopy.tasks.base.result import Result
from pcopy.tasks.base.values import Place, pack_numbers

MOST = 64
"""Largest number of directories of one task."""
MOST_AT_ONCE = 16
"""Largest number of directories in one call of the backend."""
LONG_CALL = 0.02
"""Longest desired duration of a call in seconds, so that the rank soon notices operations that wait."""
LONG = 0.05
"""Seconds after which a task leaves the remaining directories to other tasks."""


def shares(rank: Rank, number: int) -> Iterator[slice]:
    """Yield the slices into which ``number`` directories are divided, one for each task.

    While other ranks may be idle, even a few directories are divided among several tasks. Otherwise one rank could keep
    a whole tree.
    """
    size = MOST if rank.has_plenty() else max(1, min(MOST, -(-number // (2 * rank.hands()))))
    return (slice(start, start + size) for start in range(0, number, size))


def are_entered_at_once(rank: Rank) -> bool:
    """Return True if the backend processes everything in several directories in one call.

    It does not if it has threads, because then each item may be processed by another one, nor if a limit is set,
    because each item is counted then.
    """
    return rank.kernel.enters and rank.kernel.works_here and not rank.throttle.is_on


class AtOnce:
    """Number of directories that one rank passes to the backend in one call. It grows while calls are short."""

    def __init__(self, rank: Rank | None = None) -> None:
        """Begin with one directory. ``rank`` is not used; ``Rank.own`` passes it."""
        self.number = 1

    def took(self, seconds: float) -> None:
        """Adapt the number to the duration of the last call."""
        self.number = max(1, self.number // 2) if seconds > LONG_CALL else min(MOST_AT_ONCE, 2 * self.number)


class ToEnter(ABC):
    """The directories that one task has found and not entered yet.

    The task enters them while all other ranks have work too, and leaves the rest to tasks of their own.
    """

    def __init__(self, rank: Rank, result: Result) -> None:
        self._rank = rank
        self._result = result
        self._left: list[tuple[Place, Sequence[bytes], Sequence[int]]] = []
        """Directories that remain to be entered: parent, names and inode numbers."""
        self._until = time.monotonic() + LONG
        self._has_begun = False
        """True if the task has entered something. Until it has, it enters some directories even if other ranks are
        idle.
        """

    @abstractmethod
    def _are_plain(self, around: Place) -> bool:
        """Return True if the backend can process several directories of the parent ``around`` in one call."""

    @abstractmethod
    def _enter_all(self, around: Place, names: Sequence[bytes], inodes: Sequence[int]) -> Steps:
        """Enter several directories by one call of the backend."""

    @abstractmethod
    def _enter(self, around: Place, name: bytes, inode: int) -> Steps:
        """Enter one directory."""

    @abstractmethod
    def _task(self, around: Place, names: bytes, inodes: bytes) -> Divisible:
        """Return a task that enters these directories."""

    def add(self, around: Place, names: Sequence[bytes], inodes: Sequence[int]) -> None:
        """Add directories of the parent ``around`` that were found."""
        self._left.append((around, names, inodes))

    def go_on(self) -> Steps:
        """Enter directories while no other rank needs work; spawn tasks for the remaining ones."""
        remaining, at_once = self._left, self._rank.own(AtOnce)
        while remaining and (not self._has_begun or self._is_ours()):
            self._has_begun = True
            around, names, inodes = remaining.pop()
            number = at_once.number if len(names) > 1 and self._are_plain(around) else 1
            if len(names) > number:
                remaining.append((around, names[number:], inodes[number:]))
            began = time.monotonic()
            if number > 1:
                yield from self._enter_all(around, names[:number], inodes[:number])
            else:
                yield from self._enter(around, names[0], inodes[0])
            at_once.took(time.monotonic() - began)
        for each in remaining:
            self._spawn(*each)

    def _replaced(self, around: Place) -> Problem | None:
        """Return the reason if ``around`` is another directory now, so that a name found before is missing. Return None
        if only the name was removed.

        Something may have been mounted over the directory, or unmounted from it.
        """
        sources = self._rank.sources[around.root]
        sources.forget(around.path)
        try:
            sources.mounted.check_mount(sources.open(around.path, around.source_id))
        except Problem as problem:
            return None if problem.errno == errno.ENOENT else problem
        return None

    def _is_ours(self) -> bool:
        """Return True if this task should enter further directories itself."""
        rank = self._rank
        return time.monotonic() < self._until and rank.stop_reason is None and rank.has_plenty()

    def _spawn(self, around: Place, names: Sequence[bytes], inodes: Sequence[int]) -> None:
        """Spawn tasks that enter these directories."""
        for share in shares(self._rank, len(names)):
            task = self._task(around, pack_names(names[share]), pack_numbers([*inodes[share]]))
            self._result.spawn(task, task.items * SCAN_COST, expands=True)


class OfSiblings(OfPlace):
    """Base class of tasks about several subdirectories of ``place``. ``names`` are their names, joined by slashes."""

    names: bytes

    def chosen(self, rows: Sequence[int]) -> Self:
        """Return the task for the directories with these numbers only."""
        raise NotImplementedError

    def each(self) -> Iterable[Kind]:
        """Return an equivalent task for each directory."""
        raise NotImplementedError

    @property
    def items(self) -> int:
        """Number of directories."""
        return self.names.count(b"/") + 1

    def divide(self, portions: int) -> list[Self]:
        return [self.chosen(range(cut.start, cut.stop)) for cut in cuts(self.items, portions)]

    def places(self) -> Iterator[Place]:
        return chain.from_iterable(one.places() for one in self.each())

    def leftovers(self, *, first: bool) -> Iterator[Left]:
        return chain.from_iterable(one.leftovers(first=first) for one in self.each())

    def reduced(self, task: Task, gone: Gone) -> Iterator[Task]:
        remaining = [row for row, one in enumerate(self.each()) if not any(map(gone.has, one.places()))]
        if remaining:
            yield task._replace(payload=encode(self.chosen(remaining)))
