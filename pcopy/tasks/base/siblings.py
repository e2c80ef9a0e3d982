"""Directories that lie beside each other: who enters those that were found, and tasks about several of them."""

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
"""Directories of one task."""
MOST_AT_ONCE = 16
"""Directories that the kernel is given at a time."""
LONG_CALL = 0.02
"""Seconds after which a call should be over, so that a rank learns soon that operations wait."""
LONG = 0.05
"""Seconds after which a task leaves the rest to others."""


def shares(rank: Rank, number: int) -> Iterator[slice]:
    """Of so many directories, those of each task. Few of them make several tasks while others would find nothing to do:
    else one would hold a whole tree."""
    size = MOST if rank.has_plenty() else max(1, min(MOST, -(-number // (2 * rank.hands()))))
    return (slice(start, start + size) for start in range(0, number, size))


def are_entered_at_once(rank: Rank) -> bool:
    """Does the kernel do all in several directories in one call? Where it has threads, each item may be another one's,
    and a limit counts each."""
    return rank.kernel.enters and rank.kernel.works_here and not rank.throttle.is_on


class AtOnce:
    """How many directories one rank gives to the kernel at a time: more, as long as calls are over soon."""

    def __init__(self, rank: Rank | None = None) -> None:
        """Of any ``rank``."""
        self.number = 1

    def took(self, seconds: float) -> None:
        """A call about so many is over."""
        self.number = max(1, self.number // 2) if seconds > LONG_CALL else min(MOST_AT_ONCE, 2 * self.number)


class ToEnter(ABC):
    """The directories that one task has found and not entered yet.

    It goes on with them as long as other ranks have work, too, and leaves the rest to tasks of their own.
    """

    def __init__(self, rank: Rank, result: Result) -> None:
        self._rank = rank
        self._result = result
        self._left: list[tuple[Place, Sequence[bytes], Sequence[int]]] = []
        """By the one around them."""
        self._until = time.monotonic() + LONG
        self._has_begun = False
        """Has the task done something? If it has not, it enters some of them, whoever waits."""

    @abstractmethod
    def _are_plain(self, around: Place) -> bool:
        """Is the kernel given several of the directories in this one?"""

    @abstractmethod
    def _enter_all(self, around: Place, names: Sequence[bytes], inodes: Sequence[int]) -> Steps:
        """Enters several that are plain."""

    @abstractmethod
    def _enter(self, around: Place, name: bytes, inode: int) -> Steps:
        """Enters one."""

    @abstractmethod
    def _task(self, around: Place, names: bytes, inodes: bytes) -> Divisible:
        """Which enters these."""

    def add(self, around: Place, names: Sequence[bytes], inodes: Sequence[int]) -> None:
        self._left.append((around, names, inodes))

    def go_on(self) -> Steps:
        """Enters what was found, as long as nobody else has need of it."""
        left, at_once = self._left, self._rank.own(AtOnce)
        while left and (not self._has_begun or self._is_ours()):
            self._has_begun = True
            around, names, inodes = left.pop()
            number = at_once.number if len(names) > 1 and self._are_plain(around) else 1
            if len(names) > number:
                left.append((around, names[number:], inodes[number:]))
            began = time.monotonic()
            if number > 1:
                yield from self._enter_all(around, names[:number], inodes[:number])
            else:
                yield from self._enter(around, names[0], inodes[0])
            at_once.took(time.monotonic() - began)
        for each in left:
            self._spawn(*each)

    def _replaced(self, around: Place) -> Problem | None:
        """Return why ``around`` is another directory by now, in which a name that was found is missing; None if it is
        not, so that the name was removed.

        Something may have been mounted over it, or unmounted from it.
        """
        sources = self._rank.sources[around.root]
        sources.forget(around.path)
        try:
            sources.mounted.check_mount(sources.open(around.path, around.source_id))
        except Problem as problem:
            return None if problem.errno == errno.ENOENT else problem
        return None

    def _is_ours(self) -> bool:
        rank = self._rank
        return time.monotonic() < self._until and rank.stop_reason is None and rank.has_plenty()

    def _spawn(self, around: Place, names: Sequence[bytes], inodes: Sequence[int]) -> None:
        for share in shares(self._rank, len(names)):
            task = self._task(around, pack_names(names[share]), pack_numbers([*inodes[share]]))
            self._result.spawn(task, task.items * SCAN_COST, expands=True)


class OfSiblings(OfPlace):
    """It is about the directories ``names`` (joined by slashes) that lie beside each other in ``place``."""

    names: bytes

    def chosen(self, rows: Sequence[int]) -> Self:
        """The same, of some of them."""
        raise NotImplementedError

    def each(self) -> Iterable[Kind]:
        """The same, one by one."""
        raise NotImplementedError

    @property
    def items(self) -> int:
        return self.names.count(b"/") + 1

    def divide(self, portions: int) -> list[Self]:
        return [self.chosen(range(cut.start, cut.stop)) for cut in cuts(self.items, portions)]

    def places(self) -> Iterator[Place]:
        return chain.from_iterable(one.places() for one in self.each())

    def leftovers(self, *, first: bool) -> Iterator[Left]:
        return chain.from_iterable(one.leftovers(first=first) for one in self.each())

    def reduced(self, task: Task, gone: Gone) -> Iterator[Task]:
        left = [row for row, one in enumerate(self.each()) if not any(map(gone.has, one.places()))]
        if left:
            yield task._replace(payload=encode(self.chosen(left)))
