"""What simulated ranks run: jobs of a given shape and number of tasks, settled before the start by a seed alone.

A task's payload begins with its number. The children of a task have consecutive numbers, and the tasks follow in the
order of their parents, so that a job of millions of tasks is a few arrays. What a task costs in truth (seconds on a
rank of usual speed) and what the engine is told of it (an estimate in bytes, wrong by a factor) are two things; a
directory that hasn't been read is taken to hold 4 MiB, whatever it holds.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from random import Random
from typing import NamedTuple

from pcopy.engine.task import ANYBODY, Spawn, Task
from pcopy.errors import InvariantBroken

BATCH_COST = 16 << 20
"""The estimate, in bytes, for a task of mean cost: a batch of 256 small files."""

DIRECTORY_COST = 4 << 20
"""The estimate, in bytes, for a directory that hasn't been read."""

NAMES_BATCHES = 8
"""A directory with more batches of files than that spawns batches of names first, each of which spawns so many."""

# Seconds in mean costs of a task:
DIRECTORY_SHARE = 0.05  # to open a directory and to make its copy
LIST_SHARE = 0.0025  # to list the files of one batch
STAT_SHARE = 0.05  # to stat the files of one batch
NOTE_SHARE = 0.001  # to fold a note

_NUMBER_BYTES = 4
_COPY, _SCAN, _NOTE = range(3)
_DIRECTORY, _BATCH = -1, -2


class Shape(NamedTuple):
    """About ``tasks`` of ``seconds`` each on average; estimates are wrong by up to a factor of ``misjudged``.

    Each holds ``payload`` bytes in the queue, beside its header.
    """

    tasks: int
    seconds: float
    misjudged: float = 2.0
    payload: int = 100


class Workload:
    """A job. Task 0 is the root's; whatever runs a task calls ``run`` once, as it ends."""

    def __init__(self, padding: int = 0) -> None:
        self.seconds = array("d")
        """What each task takes on a rank of usual speed."""
        self._padding = bytes(padding)
        self._costs = array("Q")
        self._kinds = bytearray()
        self._children = array("I", [1])  # where each task's children begin; where the next one's begin, they end
        self._done = bytearray()
        self._notes = 0

    def add(self, kind: int, seconds: float, cost: float, children: int) -> None:
        """Describes the next task. Its estimated ``cost`` is in bytes."""
        self.seconds.append(seconds)
        self._costs.append(int(cost))
        self._kinds.append(kind)
        self._children.append(self._children[-1] + children)
        self._done.append(0)
        self._notes += kind == _NOTE

    @property
    def tasks(self) -> int:
        """How many there are."""
        return len(self.seconds)

    @property
    def unfinished(self) -> int:
        """How many haven't run."""
        return self._done.count(0)

    def first(self) -> list[Spawn]:
        """What the root begins with."""
        return [self._spawn(0)]

    def time(self, payload: bytes) -> float:
        """What the task takes, in seconds on a rank of usual speed."""
        return self.seconds[int.from_bytes(payload[:_NUMBER_BYTES], "big")]

    def divide(self, task: Task, rank: int, *, hungry: bool) -> Sequence[Spawn]:
        """The portions of a task, if ``rank`` finds it worth it to divide it; is somebody ``hungry``?"""
        return ()

    def run(self, payload: bytes, rank: int = 0) -> list[Spawn]:
        """The task is done, by ``rank``: what it has spawned. Raises ``InvariantBroken`` if it has run before."""
        number = int.from_bytes(payload[:_NUMBER_BYTES], "big")
        if self._done[number]:
            raise InvariantBroken(f"task {number} runs again")
        self._done[number] = 1
        spawned = [self._spawn(child) for child in range(self._children[number], self._children[number + 1])]
        if self._kinds[number] == _NOTE:
            self._notes -= 1
            if not self._notes:
                spawned.append(self._spawn(self.tasks - 1))
        return spawned

    def _spawn(self, number: int) -> Spawn:
        kind = self._kinds[number]
        payload = number.to_bytes(_NUMBER_BYTES, "big") + self._padding
        return Spawn(0, payload, self._costs[number], kind == _SCAN, 0 if kind == _NOTE else ANYBODY)


def grow_tree(shape: Shape, random: Random) -> Workload:
    """Directories and batches of files, both heavy-tailed.

    Most directories hold one or two directories and batches, a few hold thousands; most batches cost a third of the
    mean, a few twenty times the mean.
    """

    def draw(room: int, waiting: int) -> tuple[int, int]:
        below = min(room, max(int(_pareto(random, 1.5, 1000.0)) - 1, 0 if waiting else 1))
        return below, min(_most_batches(room - below), int(_pareto(random, 1.2, 5000.0)))

    return _grow(shape, random, draw)


def grow_flat(shape: Shape, random: Random) -> Workload:
    """One directory with all the files. One rank lists it; until it has, there is nothing for the others."""
    return _grow(shape, random, lambda room, _: (0, _most_batches(room)))


def split_file(shape: Shape, random: Random) -> Workload:
    """One file in as many chunks as there are to be tasks. Each ends in a note for rank 0, the last note in the finish.

    Notes and the finish come on top of the number of tasks.
    """
    job = Workload(max(0, shape.payload - _NUMBER_BYTES))
    chunks = max(1, shape.tasks - 1)
    job.add(_COPY, shape.seconds, DIRECTORY_COST, chunks)
    for _ in range(chunks):
        seconds = shape.seconds * random.uniform(0.8, 1.2)
        job.add(_COPY, seconds, BATCH_COST, 1)
    for _ in range(chunks):
        job.add(_NOTE, shape.seconds * NOTE_SHARE, 0, 0)
    job.add(_COPY, shape.seconds, DIRECTORY_COST, 0)
    return job


SHAPES: dict[str, Callable[[Shape, Random], Workload]] = {"tree": grow_tree, "flat": grow_flat, "file": split_file}


def _grow(shape: Shape, random: Random, draw: Callable[[int, int], tuple[int, int]]) -> Workload:
    """A tree, breadth first. ``draw`` says how many directories and batches the next directory holds; it is told
    for how many tasks there is room, and how many other directories wait for a description.
    """
    tasks = array("i", [_DIRECTORY])  # a directory, a batch of files, or a batch of names with so many of those
    shares = array("d")  # seconds in mean costs
    children = array("I")
    directories, owed = 1, 0  # that haven't been described; batches of files that batches of names will add
    while (number := len(shares)) < len(tasks):
        what, before = tasks[number], len(tasks)
        if what == _BATCH:
            shares.append(_pareto(random, 1.5, 60.0) / 3)
        elif what == _DIRECTORY:
            room = max(0, shape.tasks - before - owed)
            directories -= 1
            below, batches = draw(room, directories)
            directories += below
            tasks.extend([_DIRECTORY] * below)
            if batches > NAMES_BATCHES:
                shares.append(DIRECTORY_SHARE + LIST_SHARE * batches)
                tasks.extend([NAMES_BATCHES] * (batches // NAMES_BATCHES))
                tasks.extend([rest] if (rest := batches % NAMES_BATCHES) else [])
                owed += batches
            else:
                shares.append(DIRECTORY_SHARE + STAT_SHARE * batches)
                tasks.extend([_BATCH] * batches)
        else:
            shares.append(STAT_SHARE * what)
            tasks.extend([_BATCH] * what)
            owed -= what
        children.append(len(tasks) - before)
    return _describe(shape, random, tasks, shares, children)


def _most_batches(room: int) -> int:
    """As many as there is room for, with the batches of names that they come from."""
    return room if room <= NAMES_BATCHES else (room - 1) * NAMES_BATCHES // (NAMES_BATCHES + 1)


def _describe(shape: Shape, random: Random, tasks: array[int], shares: array[float], children: array[int]) -> Workload:
    """The tasks as a job, with their seconds such that the mean is exact."""
    job = Workload(max(0, shape.payload - _NUMBER_BYTES))
    scale = shape.seconds * len(tasks) / sum(shares)
    for what, share, count in zip(tasks, shares, children, strict=True):
        if what == _BATCH:
            cost = BATCH_COST * share * shape.misjudged ** random.uniform(-1.0, 1.0)
        else:
            cost = DIRECTORY_COST if what == _DIRECTORY else BATCH_COST * what
        job.add(_COPY if what == _BATCH else _SCAN, share * scale, cost, count)
    return job


def _pareto(random: Random, exponent: float, most: float) -> float:
    """Heavy-tailed, from 1 to ``most``."""
    return float(min(most, (1.0 - random.random()) ** (-1.0 / exponent)))
