"""One node that is spoken to by hand, for tests of single rules."""

from __future__ import annotations

from collections.abc import Iterable
from random import Random
from typing import Any

from pcopy.engine.journal import TaskJournal
from pcopy.engine.limits import EngineLimits
from pcopy.engine.messages import (
    HaltMessage,
    Message,
    StartPhaseMessage,
    TaskRequest,
)
from pcopy.engine.node import RankStateMachine
from pcopy.engine.queue import TaskQueue
from pcopy.engine.states import RankState
from pcopy.engine.task import ANY_RANK, NewTask, Task
from pcopy.engine.ticket import TaskOutcome


class Directions:
    """The director of these tests: one phase with some equal tasks, and perhaps further ones without."""

    def __init__(self, first: int = 0, phases: int = 1) -> None:
        self.first = first
        self.phases = phases

    def next_phase(self, phase: int, totals: tuple[int, ...]) -> int | None:
        return phase + 1 if phase + 1 < self.phases else None

    def first_tasks_of_phase(self, phase: int) -> Iterable[NewTask]:
        return [NewTask(phase, b"", 1) for _ in range(self.first if phase == 0 else 0)]

    def status(self, totals: tuple[int, ...], halted: HaltMessage | None) -> int:
        return 75 if halted else 0


def node_of(
    rank: int, size: int, limits: EngineLimits, director: Directions | None = None, **options: Any
) -> RankStateMachine:
    """A node with one counter in its first run; ``options`` are further ones of ``RankStateMachine``."""
    options = {"random": Random(1), **options}
    return RankStateMachine(
        rank,
        size,
        run=1,
        counters=1,
        director=director or Directions(),
        queue=TaskQueue(limits),
        limits=limits,
        **options,
    )


class Spoken:
    """Rank ``rank`` of ``size`` in a binary tree; what it says is taken by ``said``."""

    def __init__(
        self,
        rank: int,
        size: int,
        director: Directions | None = None,
        *,
        journal: TaskJournal | None = None,
        limits: EngineLimits = EngineLimits(fan_out=2),  # noqa: B008 (an immutable value)
        **options: Any,
    ) -> None:
        """``options`` are further ones of ``RankStateMachine``."""
        self.node = node_of(rank, size, limits, director, random=Random(rank), journal=journal, **options)

    def hear(self, source: int, *messages: Message, now: float = 0.0) -> list[tuple[int, Message]]:
        for message in messages:
            self.node.receive_message(source, message, now)
        return self.said()

    def said(self) -> list[tuple[int, Message]]:
        said = list(self.node.outbox)
        self.node.outbox.clear()
        return said

    def run(self, *spawned: NewTask) -> list[tuple[int, Message]]:
        taken = self.node.take_task()
        assert taken is not None
        self.node.finish_task(taken, TaskOutcome(spawned, (1,)), 0.0)
        return self.said()


def task(number: int, phase: int = 0, owner: int = ANY_RANK) -> Task:
    return Task((1, 0, number), phase, b"", 1, False, owner)


def without(said: list[tuple[int, Message]], *kinds: type) -> list[tuple[int, Message]]:
    return [each for each in said if not isinstance(each[1], kinds)]


def working(rank: int = 1, size: int = 3) -> Spoken:
    """A rank in phase 0 that has asked somebody for tasks."""
    spoken = Spoken(rank, size)
    spoken.hear(0, StartPhaseMessage(0))
    assert spoken.node.state is RankState.WORKING
    return spoken


def outstanding(said: list[tuple[int, Message]]) -> tuple[int, TaskRequest]:
    ((victim, request),) = [(rank, message) for rank, message in said if isinstance(message, TaskRequest)]
    return victim, request


def asking(rank: int, size: int) -> tuple[Spoken, int, TaskRequest]:
    spoken = Spoken(rank, size)
    return spoken, *outstanding(spoken.hear(0, StartPhaseMessage(0)))
