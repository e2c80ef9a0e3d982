"""What the tasks of a model job hand over."""

from __future__ import annotations

import marshal
from collections.abc import Sequence
from typing import Any

from pcopy.engine.task import ANYBODY, Spawn, Task, TaskId
from tests.recovery.datasets import COUNTERS, FAILED
from tests.recovery.files import Problem


def describe(phase: int, *fields: Any, cost: int = 1, expands: bool = False, owner: int = ANYBODY) -> Spawn:
    """A task; the first field is its kind."""
    return Spawn(phase, marshal.dumps(fields), cost, expands, owner)


class Result:
    """What one execution of a task hands over at its end."""

    def __init__(self, task: Task, problems: list[str], *, holds: bool) -> None:
        """``problems`` gets what goes wrong; without ``holds`` nothing is held, which switches a rule off."""
        self._problems = problems
        self._holds = holds
        self.id = task.id
        self.phase = task.phase
        self.spawned: list[Spawn] = []
        self.counts = [0] * COUNTERS
        self.settled: list[TaskId] = []
        self.held = False

    def spawn(self, kind: str, *fields: Any, phase: int = -1, **options: Any) -> None:
        self.spawned.append(describe(max(phase, self.phase), kind, *fields, **options))

    def count(self, counter: int, by: int = 1) -> None:
        self.counts[counter] += by

    def fail(self, problem: Problem) -> None:
        self.count(FAILED)
        self._problems.append(str(problem))

    def hold(self) -> None:
        self.held = self._holds

    def settle(self, ids: Sequence[TaskId]) -> None:
        """If one of them is this very task, it is done as any other."""
        self.held = self.held and self.id not in ids
        if self._holds:
            self.settled += [each for each in ids if each != self.id]
