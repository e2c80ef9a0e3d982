"""What a rank runs next, what it gives away, and what it keeps outside memory."""

from __future__ import annotations

import errno
import os
import tempfile
from collections import deque
from unittest import mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pcopy.engine.backlog import FULL_FRAME_BYTES, MAX_TASKS_PER_FRAME, SpoolFileBacklog
from pcopy.engine.limits import EngineLimits
from pcopy.engine.queue import TaskQueue
from pcopy.engine.task import ANY_RANK, TASK_OVERHEAD_BYTES, Task

deterministic = settings(max_examples=100, deadline=None, derandomize=True, database=None)


def task(
    number: int, *, cost: int = 1, expands: bool = False, owner: int = ANY_RANK, phase: int = 0, size: int = 0
) -> Task:
    return Task((1, 0, number), phase, bytes(size), cost, expands, owner)


def queue(*tasks: Task, limits: EngineLimits = EngineLimits()) -> TaskQueue:  # noqa: B008 (an immutable value)
    made = TaskQueue(limits)
    made.begin_phase(0)
    for each in tasks:
        made.push_task(each)
    return made


def drain(source: TaskQueue) -> list[int]:
    order = []
    while (each := source.pop()) is not None:
        order.append(each.id[2])
    assert len(source) == 0
    return order


def numbers(tasks: tuple[Task, ...]) -> list[int]:
    return [each.id[2] for each in tasks]


def test_newest_task_runs_first() -> None:
    assert drain(queue(task(1), task(2), task(3))) == [3, 2, 1]
    assert drain(queue(task(1, expands=True), task(2, expands=True))) == [2, 1]


def test_notes_run_first_and_in_order() -> None:
    assert drain(queue(task(1, owner=0), task(2, expands=True), task(3), task(4, owner=0))) == [1, 4, 2, 3]


def test_one_stealable_task_is_not_enough_to_share() -> None:
    """With one task left, a thief would leave this rank nothing; notes are for nobody else."""
    assert not queue(task(1), task(2, owner=0), task(3, owner=0)).has_enough_to_share
    assert queue(task(1), task(2, expands=True)).has_enough_to_share


def test_scans_run_before_copies_within_scan_ahead_limit() -> None:
    scans = [task(number, expands=True) for number in (1, 2)]
    copies = [task(number) for number in (3, 4, 5)]
    assert drain(queue(*scans, *copies)) == [2, 1, 5, 4, 3]
    # Five tasks wait, four fit: one copy goes first, then scanning is within the budget again.
    limits = EngineLimits(scan_ahead_bytes=4 * TASK_OVERHEAD_BYTES)
    assert drain(queue(*scans, *copies, limits=limits)) == [5, 2, 1, 4, 3]
    assert drain(queue(*scans, *copies, limits=EngineLimits(scan_ahead_bytes=0))) == [5, 4, 3, 2, 1]


def test_spooled_tasks_count_against_scan_ahead_limit() -> None:
    limits = EngineLimits(queue_memory_bytes=2 * TASK_OVERHEAD_BYTES, scan_ahead_bytes=4 * TASK_OVERHEAD_BYTES)
    rest = [task(number) for number in range(3, 9)]
    assert drain(queue(task(1, expands=True), task(2), *rest, limits=limits))[0] == 3


def test_scan_runs_over_scan_ahead_limit_if_no_copy_waits() -> None:
    assert drain(queue(task(1, expands=True), task(2, expands=True), limits=EngineLimits(scan_ahead_bytes=0))) == [2, 1]


def test_oldest_half_by_cost_is_given_away() -> None:
    assert numbers(
        queue(*(task(number, cost=10) for number in range(10))).pop_half_of_stealable_tasks(running=False)
    ) == [0, 1, 2, 3, 4]
    big_first = queue(task(0, cost=100), *(task(number, cost=1) for number in range(1, 50)))
    assert numbers(big_first.pop_half_of_stealable_tasks(running=False)) == [0]
    big_last = queue(*(task(number, cost=1) for number in range(1, 50)), task(50, cost=100))
    assert numbers(big_last.pop_half_of_stealable_tasks(running=False)) == list(range(1, 50))
    assert drain(big_last) == [50]


def test_half_of_scans_and_half_of_copies_are_given_away() -> None:
    mixed = queue(*(task(number, expands=number % 2 == 0, cost=5) for number in range(8)))
    assert sorted(numbers(mixed.pop_half_of_stealable_tasks(running=False))) == [0, 1, 2, 3]


@pytest.mark.parametrize("expands", [False, True])
def test_last_queued_task_is_given_away_only_while_another_runs(expands: bool) -> None:
    waiting = queue(task(1, expands=expands))
    assert waiting.pop_half_of_stealable_tasks(running=False) == ()
    assert numbers(waiting.pop_half_of_stealable_tasks(running=True)) == [1]
    assert waiting.pop_half_of_stealable_tasks(running=True) == ()


def test_only_one_of_a_scan_and_a_copy_is_given_away() -> None:
    waiting = queue(task(1, expands=True), task(2))
    assert len(waiting.pop_half_of_stealable_tasks(running=False)) == 1
    assert waiting.pop_half_of_stealable_tasks(running=False) == ()
    assert len(waiting) == 1


def test_notes_are_never_given_away() -> None:
    waiting = queue(task(1, owner=0), task(2, owner=0))
    assert waiting.pop_half_of_stealable_tasks(running=True) == ()
    assert drain(waiting) == [1, 2]


def test_spooled_tasks_are_given_away() -> None:
    waiting = queue(*(task(number, size=100) for number in range(10)), limits=EngineLimits(queue_memory_bytes=0))
    assert numbers(waiting.pop_half_of_stealable_tasks(running=True)) == [0]  # the one that was in memory
    given = waiting.pop_half_of_stealable_tasks(running=True)
    assert numbers(given) == [1, 2, 3, 4, 5]
    assert sorted(drain(waiting)) == [6, 7, 8, 9]


def test_requests_for_tasks_do_not_load_all_tasks_that_only_this_rank_may_run() -> None:
    """Tasks of a later phase wait on disk; most of them may not be given away, however often other ranks ask."""
    limits, number = EngineLimits(message_bytes=2 * FULL_FRAME_BYTES), 100
    waiting = queue(*(task(each, owner=0, phase=1, size=1 << 17) for each in range(number)), limits=limits)
    waiting.push_task(task(number, phase=1))
    waiting.begin_phase(1)
    for _ in range(number):
        assert waiting.pop_only_stealable() is None
        assert waiting.pop_half_of_stealable_tasks(running=True) == ()
    assert waiting.peak_bytes < 4 * FULL_FRAME_BYTES
    assert drain(waiting) == list(range(number + 1))


def test_task_beyond_message_limit_is_given_away_alone() -> None:
    limits = EngineLimits(message_bytes=1000)
    waiting = queue(*(task(number, size=2000) for number in range(6)), limits=limits)
    assert numbers(waiting.pop_half_of_stealable_tasks(running=False)) == [0]
    small_and_big = queue(task(0), task(1, size=2000), task(2), task(3), limits=limits)
    assert numbers(small_and_big.pop_half_of_stealable_tasks(running=False)) == [0]


@st.composite
def histories(draw: st.DrawFn) -> list[tuple[str, Task]]:
    count = draw(st.integers(0, 60))
    history = []
    for number in range(count):
        made = task(
            number,
            cost=draw(st.integers(1, 1000)),
            expands=draw(st.booleans()),
            owner=draw(st.sampled_from((ANY_RANK, ANY_RANK, 0))),
            phase=draw(st.sampled_from((0, 0, 0, 1))),
            size=draw(st.sampled_from((0, 50, 3000))),
        )
        history.append((draw(st.sampled_from(("push", "push", "pop", "give", "give while running"))), made))
    return history


@deterministic
@given(histories(), st.sampled_from((0, 1000, 1 << 20)), st.sampled_from((500, 1 << 20)))
def test_queue_neither_loses_nor_duplicates_tasks(
    history: list[tuple[str, Task]], in_core: int, message_bytes: int
) -> None:
    limits = EngineLimits(queue_memory_bytes=in_core, message_bytes=message_bytes, scan_ahead_bytes=2000)
    waiting = queue(limits=limits)
    inside: dict[int, Task] = {}
    later: set[int] = set()
    out: list[Task] = []
    frame = 4 * (TASK_OVERHEAD_BYTES + 3000)
    with mock.patch("pcopy.engine.backlog.MAX_TASKS_PER_FRAME", 3):
        for action, made in history:
            waiting.push_task(made)
            (inside.__setitem__ if made.phase == 0 else lambda number, _: later.add(number))(made.id[2], made)
            if action == "pop":
                out = [each] if (each := waiting.pop()) else []
                assert bool(out) == bool(inside)
            elif action != "push":
                out = list(waiting.pop_half_of_stealable_tasks(running=action != "give"))
                assert all(each.owner == ANY_RANK for each in out)
                assert sum(each.memory_use_in_bytes for each in out) <= message_bytes or len(out) == 1
            else:
                out = []
            for each in out:
                assert inside.pop(each.id[2]) == each
            assert len(waiting) == len(inside)
        notes = sum(made.memory_use_in_bytes for _, made in history if made.owner != ANY_RANK)
        assert waiting.peak_bytes <= in_core + frame + notes
        assert sorted(drain(waiting)) == sorted(inside)
        waiting.begin_phase(1)
        assert len(waiting) == len(later)
        assert sorted(drain(waiting)) == sorted(later)


def test_drop_removes_all_tasks_but_notes_of_current_phase() -> None:
    waiting = queue(task(1, owner=0), task(2, expands=True), task(3), task(4, phase=1), task(5, owner=0, phase=1))
    assert waiting.drop_all_work() == 4
    assert len(waiting) == 1
    assert drain(waiting) == [1]
    waiting.begin_phase(1)
    assert drain(waiting) == []


def test_drop_removes_addressed_work() -> None:
    waiting = TaskQueue(EngineLimits(), is_work=lambda each: each.cost > 1)
    waiting.begin_phase(0)
    for number, cost in enumerate((1, 9, 1, 9)):
        waiting.push_task(task(number, owner=0, cost=cost))
    assert waiting.drop_all_work() == 2
    assert drain(waiting) == [0, 2]


class Full(SpoolFileBacklog):
    """No frame can be written."""

    def _store_frame(self, frame: bytes) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_tasks_stay_in_memory_until_dropped_if_spool_is_full() -> None:
    waiting = TaskQueue(EngineLimits(queue_memory_bytes=0), open_overflow=Full)
    waiting.begin_phase(0)
    for number in range(3 * MAX_TASKS_PER_FRAME):
        waiting.push_task(task(number))
    assert waiting.spill_error is not None
    assert waiting.spill_error.errno == errno.ENOSPC
    assert len(waiting) == 3 * MAX_TASKS_PER_FRAME
    assert waiting.pop() is not None
    assert waiting.pop() is None, "the job is to be stopped"
    assert waiting.drop_all_work() == 3 * MAX_TASKS_PER_FRAME - 1
    assert len(waiting) == 0


@deterministic
@given(st.lists(st.one_of(st.just(-1), st.integers(0, 3000)), max_size=80), st.sampled_from((1, 3, 128)))
def test_backlog_is_first_in_first_out(steps: list[int], frame_tasks: int) -> None:
    """Against a plain queue: appends of tasks of that size, -1 takes a frame; in a real file."""
    model: deque[Task] = deque()
    with (
        mock.patch("pcopy.engine.backlog.MAX_TASKS_PER_FRAME", frame_tasks),
        mock.patch("pcopy.engine.backlog.FULL_FRAME_BYTES", 5000),
    ):
        backlog = SpoolFileBacklog(tempfile.TemporaryFile)
        for number, step in enumerate(steps):
            if step >= 0:
                model.append(task(number, size=step, owner=number % 3 - 1, phase=2))
                backlog.append(model[-1])
            else:
                frame = backlog.pop_frame()
                assert bool(frame) == bool(model)
                assert len(frame) <= frame_tasks
                assert frame == [model.popleft() for _ in frame]
            assert backlog.count == len(model)
            assert backlog.memory_bytes == sum(each.memory_use_in_bytes for each in model)
        while frame := backlog.pop_frame():
            assert frame == [model.popleft() for _ in frame]
        assert not model
        backlog.close()


def test_backlog_opens_its_spool_when_needed_and_truncates_it() -> None:
    with tempfile.TemporaryFile() as spool:
        open_spool = mock.Mock(return_value=spool)
        backlog = SpoolFileBacklog(open_spool)
        for number in range(MAX_TASKS_PER_FRAME - 1):
            backlog.append(task(number))
        assert not open_spool.called
        for number in range(3 * MAX_TASKS_PER_FRAME):
            backlog.append(task(number))
        assert spool.seek(0, 2) > 0
        while backlog.pop_frame():
            pass
        assert spool.seek(0, 2) == 0
        backlog.append(task(1, size=FULL_FRAME_BYTES))
        assert spool.seek(0, 2) > FULL_FRAME_BYTES
        backlog.close()
        assert spool.closed
        assert (backlog.count, backlog.memory_bytes) == (0, 0)
        assert open_spool.call_count == 1
