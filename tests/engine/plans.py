"""What simulated jobs are made of: the tasks that they run, their network, and what stops them.

A job is a *plan*: a list of tasks, each with the number of the task that spawns it. A task's payload is its number and
the items of it.
"""

from __future__ import annotations

from random import Random
from typing import NamedTuple

from pcopy.engine.task import ANY_RANK, Task


class Planned(NamedTuple):
    """A task of a plan. ``parent`` is the number of its spawner, or -1: the director has it. Times are in seconds,
    for each portion of it."""

    parent: int
    phase: int
    owner: int = ANY_RANK
    cost: int = 1
    expands: bool = False
    padding: int = 0
    slices: int = 1
    seconds: float = 0.001
    items: int = 1
    """Between which it may be divided; up to 255."""


Plan = tuple[Planned, ...]


class Network(NamedTuple):
    """Latencies in seconds, uniform between the first two; each ``spike``-th or so is ten times as long (0: none)."""

    least: float = 0.0001
    most: float = 0.001
    spike: int = 0

    def latency(self, random: Random) -> float:
        latency = random.uniform(self.least, self.most)
        return 10 * latency if self.spike and random.randrange(self.spike) == 0 else latency

    @property
    def worst(self) -> float:
        return self.most * (10 if self.spike else 1)


class Interruption(NamedTuple):
    """Rank ``rank`` stops the job in order (halt) or in disorder (abort) once ``event`` events have happened."""

    kind: str
    event: int
    rank: int


def unpacked(task: Task) -> tuple[int, int, int]:
    """The number of what is planned, and the items of it: from the first one to before the last one."""
    return int.from_bytes(task.payload[:4], "big"), task.payload[4], task.payload[5]


def share(planned: Planned, start: int, end: int) -> int:
    """What so many of the items cost: all portions together cost as much as the task."""
    return planned.cost * end // planned.items - planned.cost * start // planned.items
