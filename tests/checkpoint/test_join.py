"""Tasks spawned less tasks done, with little in memory."""

from __future__ import annotations

import io
import random
from typing import Any
from unittest import mock

import pytest

from pcopy.checkpoint.join import Join
from pcopy.checkpoint.record import pack_id
from pcopy.engine.task import Task
from tests.checkpoint.histories import task

ENTRY = 128
"""Bytes that an id counts as."""


class Spools:
    """Opens spools, and knows them all."""

    def __init__(self) -> None:
        self.made: list[io.BytesIO] = []

    def __call__(self) -> io.BytesIO:
        self.made.append(io.BytesIO())
        return self.made[-1]


@pytest.mark.parametrize("expected", [0, 9000, 1 << 40])
@pytest.mark.parametrize("budget", [10 * ENTRY, 500 * ENTRY, 1 << 30])
def test_no_part_that_is_compared_passes_the_budget(budget: int, expected: int) -> None:
    """However many were expected; consecutive numbers, as real ids have."""
    spools = Spools()
    made = [task(number, rank=rank) for rank in range(3) for number in range(1, 3001)]
    done = random.Random(3).sample(made, 6000)
    parts = []
    compare = Join._compare

    def counted(self: Join, spawned: Any, done: Any) -> Any:
        parts.append(spawned.count + done.count)
        return compare(self, spawned, done)

    join = Join(spools, expected, where="run-1", budget=budget)
    for each in done:
        join.done(pack_id(each.id))
    for each in made:
        join.spawned(each)
    with mock.patch.object(Join, "_compare", counted):
        remaining: list[Task] = list(join.remaining())
    assert all(spool.closed for spool in spools.made)
    join.close()
    assert sorted(remaining) == sorted(set(made) - set(done))
    assert sum(parts) == 15000
    assert max(parts) * ENTRY <= budget


def test_spools_are_closed_when_only_some_tasks_are_asked_for() -> None:
    spools = Spools()
    join = Join(spools, 10, where="run-1", budget=100)
    with mock.patch("pcopy.engine.backlog.FRAME_TASKS", 1):
        for number in range(500):
            join.spawned(task(number))
        first = len(spools.made)
        remaining = join.remaining()
        next(iter(remaining))
    assert len(spools.made) > first
    remaining.close()  # type: ignore[attr-defined]
    join.close()
    assert all(spool.closed for spool in spools.made)
