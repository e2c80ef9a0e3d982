"""Tasks spawned less tasks done, with little in memory."""

from __future__ import annotations

import io
import random

import pytest

from pcopy.checkpoint import join as module
from pcopy.checkpoint.join import RemainingTasksFinder
from pcopy.checkpoint.record import pack_task_id
from pcopy.errors import RequestRefused
from tests.checkpoint.histories import task

TASK = 300
"""Bytes that a task may count as, with all that Python needs for it."""


class Spools:
    """Opens spools, and knows them all."""

    def __init__(self) -> None:
        self.made: list[io.BytesIO] = []

    def __call__(self) -> io.BytesIO:
        self.made.append(io.BytesIO())
        return self.made[-1]


@pytest.mark.parametrize("budget", [10 * TASK, 500 * TASK, 1 << 30])
def test_remaining_tasks_do_not_depend_on_order_of_facts(budget: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Consecutive numbers, as real ids have. What the budget does not hold is on disk, and nothing more."""
    monkeypatch.setattr(module, "JOIN_MEMORY_BYTES", budget)
    spools = Spools()
    made = [task(number, rank=rank) for rank in range(3) for number in range(1, 3001)]
    done = random.Random(3).sample(made, 6000)
    join = RemainingTasksFinder(spools, where="run-1")
    for each in done[:3000]:
        join.add_done_task_id(pack_task_id(each.id))
    for each in random.Random(4).sample(made, len(made)):
        join.add_spawned_task(each)
    for each in done[3000:]:
        join.add_done_task_id(pack_task_id(each.id))
    assert list(join.remaining_tasks()) == sorted(set(made) - set(done))
    join.close()
    assert bool(spools.made) == (budget < 1 << 30)
    assert all(spool.closed for spool in spools.made)


@pytest.mark.parametrize("budget", [10 * TASK, 1 << 30])
@pytest.mark.parametrize(
    ("spawned", "done", "wrong"),
    [
        ([1, 2, 2, 3], [1], "task 2 of rank 0 in run 1 was spawned twice"),
        ([1, 2, 3], [2, 2], "task 2 of rank 0 in run 1 was done twice"),
        ([1, 3], [2], "task 2 of rank 0 in run 1 was done and was never spawned"),
    ],
)
def test_inconsistent_facts_are_refused(
    budget: int, spawned: list[int], done: list[int], wrong: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "JOIN_MEMORY_BYTES", budget)
    join = RemainingTasksFinder(io.BytesIO, where="run-1")
    for number in (*range(100, 200), *spawned):
        join.add_spawned_task(task(number))
    for number in done:
        join.add_done_task_id(pack_task_id(task(number).id))
    with pytest.raises(RequestRefused, match=f"run-1: damaged: {wrong}"):
        list(join.remaining_tasks())
    join.close()


def test_spools_are_closed_after_partial_iteration(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "JOIN_MEMORY_BYTES", 10 * TASK)
    spools = Spools()
    join = RemainingTasksFinder(spools, where="run-1")
    for number in range(500):
        join.add_spawned_task(task(number))
    next(iter(join.remaining_tasks()))
    join.close()
    assert spools.made and all(spool.closed for spool in spools.made)
