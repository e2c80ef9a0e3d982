"""Orders of the root reach every rank, and what ranks report reaches the root; a rank begins what its duty allows."""

from __future__ import annotations

import math
from collections.abc import Sequence
from random import Random

import pytest

from pcopy.engine.limits import EngineLimits
from pcopy.engine.messages import (
    AddressedTasksMessage,
    CounterQuery,
    CounterSums,
    HaltMessage,
    Message,
    StartPhaseMessage,
    TaskReply,
    TaskRequest,
)
from pcopy.engine.queue import TaskQueue
from pcopy.engine.states import RankState
from pcopy.engine.steering import Orders, RankTaskRestriction, ReportedNumbers
from pcopy.engine.ticket import TaskOutcome
from tests.engine.plans import Planned
from tests.engine.simulation import SMALL, Simulation
from tests.engine.spoken import Directions, Spoken, outstanding, task

OUTCOME = TaskOutcome((), (1,))


class Steered:
    """The root orders what the test sets; each rank reports its number and a one."""

    def __init__(self, rank: int = 1, ordered: Orders = ()) -> None:
        self.rank = rank
        self.allowed_tasks = RankTaskRestriction.ALL
        self.query_interval = math.inf
        self.ordered = ordered
        self.obeyed: list[Orders] = []
        self.sums: list[tuple[float, ...]] = []

    def orders_for_all_ranks(self) -> Orders:
        return self.ordered

    def apply_orders_of_rank_0(self, orders: Orders) -> None:
        self.obeyed.append(orders)
        if orders:
            active, paused = orders
            self.allowed_tasks = (
                RankTaskRestriction.NOTES
                if paused
                else RankTaskRestriction.ALL
                if self.rank < active
                else RankTaskRestriction.ADDRESSED
            )

    def numbers_to_report_to_rank_0(self) -> ReportedNumbers:
        return float(self.rank), 1

    def receive_sums_of_reported_numbers(self, reported: Sequence[float]) -> None:
        self.sums.append(tuple(reported))


def rank_with(duty: RankTaskRestriction, *messages: Message) -> tuple[Spoken, list[tuple[int, Message]]]:
    """Rank 1 of 3, which has this duty when it hears the messages."""
    steering = Steered(1)
    spoken = Spoken(1, 3, steering=steering)
    steering.allowed_tasks = duty
    return spoken, spoken.hear(0, StartPhaseMessage(0), *messages)


def given(said: list[tuple[int, Message]]) -> list[int]:
    return [len(message.tasks) for _, message in said if isinstance(message, TaskReply)]


def test_orders_reach_all_ranks_and_reports_are_summed() -> None:
    ranks = [Steered(rank, ordered=(7, False) if rank == 0 else ()) for rank in range(7)]
    plan = tuple(Planned(-1, 0, seconds=0.05) for _ in range(30))
    Simulation(plan, 7, 1, steering=ranks.__getitem__).run()
    assert ranks[0].sums[-1] == (21.0, 7)
    assert all(rank.obeyed and set(rank.obeyed) == {(7, False)} for rank in ranks)
    assert not any(rank.sums for rank in ranks[1:])


def test_answer_carries_sums_of_subtree() -> None:
    steering = Steered(1)
    spoken = Spoken(1, 7, steering=steering)
    said = spoken.hear(0, CounterQuery(1, (0,), (9, True)))
    assert [message for _, message in said] == [CounterQuery(1, (0,), (9, True))] * 2
    spoken.hear(3, CounterSums(1, (0,), (), 0, (3.0, 1)))
    assert spoken.hear(4, CounterSums(1, (0,), (), 0, (4.0, 1))) == [(0, CounterSums(1, (0,), (), 0, (8.0, 3)))]
    assert steering.obeyed == [(9, True)]


def test_inactive_rank_requests_no_tasks_and_sleeps() -> None:
    for duty in (RankTaskRestriction.ADDRESSED, RankTaskRestriction.NOTES):
        spoken, said = rank_with(duty)
        assert not [message for _, message in said if isinstance(message, TaskRequest)]
        assert spoken.node.next_due_action_time() == math.inf


def test_reactivated_rank_requests_tasks() -> None:
    steering = Steered(1)
    spoken = Spoken(1, 3, steering=steering)
    steering.allowed_tasks = RankTaskRestriction.NOTES
    spoken.hear(0, StartPhaseMessage(0))
    steering.allowed_tasks = RankTaskRestriction.ALL
    spoken.node.perform_due_actions(1.0)
    outstanding(spoken.said())


def test_inactive_rank_starts_only_addressed_tasks() -> None:
    spoken, _ = rank_with(RankTaskRestriction.ADDRESSED)
    spoken.hear(0, AddressedTasksMessage(0, (task(1), task(2, owner=1), task(3))))
    assert spoken.node.take_task() == task(2, owner=1)
    spoken.node.finish_task(task(2, owner=1), OUTCOME, 0.0)
    assert spoken.node.take_task() is None
    assert not spoken.node.can_take_task


def test_paused_rank_starts_only_notes() -> None:
    """Here all that is addressed to a rank is a note, but for what says that it is work."""
    steering = Steered(1)
    queue = TaskQueue(EngineLimits(), is_work=lambda task: task.owner != 1 or task.id[2] > 5)
    spoken = Spoken(1, 3, steering=steering)
    spoken.node.queue = spoken.node._victim._queue = queue
    spoken.hear(0, StartPhaseMessage(0))
    steering.allowed_tasks = RankTaskRestriction.NOTES
    spoken.hear(0, AddressedTasksMessage(0, (task(1), task(2, owner=1), task(9, owner=1))))
    assert spoken.node.take_task() == task(2, owner=1)
    spoken.node.finish_task(task(2, owner=1), OUTCOME, 0.0)
    assert spoken.node.take_task() is None
    steering.allowed_tasks = RankTaskRestriction.ADDRESSED
    assert spoken.node.take_task() == task(9, owner=1)


@pytest.mark.parametrize("duty", [RankTaskRestriction.ADDRESSED, RankTaskRestriction.NOTES])
def test_inactive_rank_gives_away_its_last_task(duty: RankTaskRestriction) -> None:
    spoken, _ = rank_with(duty, AddressedTasksMessage(0, (task(1),)))
    assert given(spoken.hear(2, TaskRequest(0, 1))) == [1]
    busy, _ = rank_with(RankTaskRestriction.ALL, AddressedTasksMessage(0, (task(1),)))
    assert given(busy.hear(2, TaskRequest(0, 1))) == [0]


def test_inactive_rank_gives_away_stolen_tasks_before_first_slice() -> None:
    steering = Steered(1)
    spoken = Spoken(1, 3, steering=steering)
    victim, request = outstanding(spoken.hear(0, StartPhaseMessage(0)))
    spoken.hear(victim, TaskReply(0, request.sequence, (task(1), task(2))))
    steering.allowed_tasks = RankTaskRestriction.ADDRESSED
    assert given(spoken.hear(2, TaskRequest(0, 1))) == [1]


def test_spooled_note_is_fetched_on_inactive_rank() -> None:
    """A note that was put aside for this phase, on a rank that nobody asks for tasks."""
    spoken, _ = rank_with(RankTaskRestriction.ADDRESSED)
    spoken.node.queue.begin_phase(-1)
    spoken.node.queue.push_task(task(2, owner=1))
    spoken.node.queue.begin_phase(0)
    assert spoken.node.take_task() == task(2, owner=1)


def test_halt_drops_tasks_of_paused_rank() -> None:
    spoken, _ = rank_with(RankTaskRestriction.NOTES, AddressedTasksMessage(0, (task(1), task(2))))
    spoken.hear(0, HaltMessage("SIGTERM", 15))
    assert len(spoken.node.queue) == 0
    assert spoken.node.dropped_count == 2


@pytest.mark.parametrize("seed", range(8))
def test_job_completes_while_orders_change(seed: int) -> None:
    """Orders change all the time; what can be stolen is begun by ranks that are active, or were, when they began it."""
    random = Random(seed)
    size = random.randrange(2, 9)
    ranks = [Steered(rank) for rank in range(size)]
    plan = tuple(
        Planned(number // 4 - 1, 0, owner=random.choice((-1, -1, random.randrange(size))), seconds=0.02)
        for number in range(60)
    )

    def orders() -> Orders:
        return random.randrange(1, size + 1), random.random() < 0.2

    ranks[0].orders_for_all_ranks = orders  # type: ignore[method-assign]
    begun: list[tuple[int, RankTaskRestriction, int]] = []
    job = Simulation(plan, size, seed, limits=SMALL._replace(progress_interval=0.01), steering=ranks.__getitem__)
    for steered, rank in zip(ranks, job.ranks, strict=True):
        watch(rank.node.take_task, steered, begun, rank.node)
    job.run(seconds=600)
    assert len(job.done) == len(plan)
    assert all(duty is RankTaskRestriction.ALL or owner == rank for rank, duty, owner in begun)
    assert RankTaskRestriction.ADDRESSED in {duty for _, duty, _ in begun}
    assert all(node.state is RankState.CLOSED for node in job.nodes)


def watch(take: object, steered: Steered, begun: list[tuple[int, RankTaskRestriction, int]], node: object) -> None:
    def taken() -> object:
        found = take()  # type: ignore[operator]
        if found is not None:
            begun.append((steered.rank, steered.allowed_tasks, found.owner))
        return found

    node.take_task = taken  # type: ignore[attr-defined]


def test_only_active_ranks_run_stealable_tasks() -> None:
    ranks = [Steered(rank, ordered=(2, False)) for rank in range(6)]
    for rank in ranks:
        rank.apply_orders_of_rank_0((2, False))
    plan = tuple(Planned(number // 3 - 1, 0, seconds=0.02) for number in range(60))
    job = Simulation(plan, 6, 3, steering=ranks.__getitem__).run(seconds=60)
    assert set(job.started.values()) <= {0, 1}
    assert len(set(job.started.values())) == 2


def test_work_spawned_on_inactive_rank_is_stolen() -> None:
    """An addressed task runs on a rank that is not active; what it spawns runs elsewhere."""
    ranks = [Steered(rank, ordered=(1, False)) for rank in range(3)]
    for rank in ranks:
        rank.apply_orders_of_rank_0((1, False))
    plan = (Planned(-1, 0, owner=2), *(Planned(0, 0) for _ in range(9)))
    job = Simulation(plan, 3, 5, steering=ranks.__getitem__).run(seconds=60)
    assert {rank for (number, _), rank in job.started.items() if number == 0} == {2}
    assert {rank for (number, _), rank in job.started.items() if number} == {0}


def test_root_queries_at_steered_interval() -> None:
    steering = Steered(0)
    root = Spoken(0, 2, steering=steering, director=Directions(first=3))
    root.node.begin_job(0.0)
    assert root.node.next_due_action_time() == 0.5
    steering.query_interval = 0.125
    root.node.perform_due_actions(0.5)
    assert root.node.next_due_action_time() == 0.625
