"""Who asks whom for tasks, when, and what is given."""

from __future__ import annotations

import pytest

from pcopy.engine.limits import EngineLimits
from pcopy.engine.messages import (
    AddressedTasksMessage,
    CounterQuery,
    StartPhaseMessage,
    TaskReply,
    TaskRequest,
)
from pcopy.engine.node import TIME_NEVER
from pcopy.engine.stealing import LONGEST_STEAL_PATIENCE
from pcopy.engine.ticket import TaskOutcome
from pcopy.errors import InvariantBroken
from tests.engine.spoken import Directions, Spoken, asking, outstanding, task, without


def test_stale_reply_is_ignored() -> None:
    spoken, victim, request = asking(1, 3)
    assert spoken.hear(victim, TaskReply(0, request.sequence - 1, ())) == []
    assert spoken.node.next_due_action_time() == TIME_NEVER  # it still waits for the true one
    assert spoken.hear(victim, TaskReply(0, request.sequence, ())) == []
    assert spoken.node.next_due_action_time() > 0
    assert spoken.hear(victim, TaskReply(0, request.sequence, ())) == []


def test_unrequested_tasks_are_refused() -> None:
    spoken, victim, request = asking(1, 3)
    with pytest.raises(InvariantBroken):
        spoken.hear(victim, TaskReply(0, request.sequence - 1, (task(1),)))


def test_empty_reply_of_earlier_phase_ends_pending_request() -> None:
    spoken, victim, request = asking(1, 3)
    assert not any(isinstance(message, TaskRequest) for _, message in spoken.hear(0, StartPhaseMessage(1)))
    said = spoken.hear(victim, TaskReply(0, request.sequence, ()), now=1.0)
    assert spoken.hear(0, now=2.0) == []
    spoken.node.perform_due_actions(2.0)
    assert outstanding(said + spoken.said())[1][:2] == (1, request.sequence + 1)


def test_reply_with_tasks_of_another_phase_is_refused() -> None:
    spoken, victim, request = asking(1, 3)
    spoken.hear(0, StartPhaseMessage(1))
    with pytest.raises(InvariantBroken):
        spoken.hear(victim, TaskReply(0, request.sequence, (task(1),)))


def loaded(count: int) -> Spoken:
    spoken = Spoken(0, 3, Directions(first=count))
    spoken.node.begin_job(0.0)
    spoken.said()
    return spoken


def test_request_of_another_phase_gets_no_tasks() -> None:
    spoken = loaded(4)
    assert without(spoken.hear(1, TaskRequest(1, 5)), CounterQuery) == [(1, TaskReply(1, 5, ()))]
    ((_, reply),) = spoken.hear(1, TaskRequest(0, 6))
    assert isinstance(reply, TaskReply)
    assert len(reply.tasks) == 2


def test_stolen_tasks_are_not_given_away_before_one_has_run_a_slice() -> None:
    spoken, victim, request = asking(1, 3)
    spoken.hear(victim, TaskReply(0, request.sequence, (task(1), task(2), task(3), task(4))))
    assert spoken.hear(2, TaskRequest(0, 1)) == [(2, TaskReply(0, 1, ()))]
    taken = spoken.node.take_task()
    assert taken is not None
    assert spoken.hear(2, TaskRequest(0, 2)) == [(2, TaskReply(0, 2, ()))]
    spoken.node.begun_tasks.record_executed_task_slice(taken)
    ((_, reply),) = spoken.hear(2, TaskRequest(0, 3))
    assert isinstance(reply, TaskReply)
    assert reply.tasks


def test_slice_of_note_does_not_release_stolen_tasks() -> None:
    spoken, victim, request = asking(1, 3)
    spoken.hear(0, AddressedTasksMessage(0, (task(9, owner=1),)))
    assert spoken.node.take_task() == task(9, owner=1)
    spoken.hear(victim, TaskReply(0, request.sequence, (task(1), task(2))))
    spoken.node.begun_tasks.record_executed_task_slice(task(9, owner=1))
    assert spoken.hear(2, TaskRequest(0, 1)) == [(2, TaskReply(0, 1, ()))]
    spoken.node.finish_task(task(9, owner=1), TaskOutcome(), 0.0)
    assert spoken.hear(2, TaskRequest(0, 2)) == [(2, TaskReply(0, 2, ()))]


def test_last_task_is_not_given_away() -> None:
    spoken = loaded(1)
    assert without(spoken.hear(1, TaskRequest(0, 1)), CounterQuery) == [(1, TaskReply(0, 1, ()))]
    assert spoken.node.take_task() is not None


def refused_until(
    spoken: Spoken, victim: int, request: TaskRequest, end: float
) -> tuple[list[float], int, TaskRequest]:
    """Each request is refused at once, from now = 0: the pauses, in seconds, and the request that comes after them."""
    now, pauses = 0.0, []
    while now < end:
        spoken.node.perform_due_actions(now)
        assert spoken.said() == []
        spoken.hear(victim, TaskReply(0, request.sequence, ()), now=now)
        pauses.append(spoken.node.next_due_action_time() - now)
        spoken.node.perform_due_actions(now + 0.9 * pauses[-1])
        assert spoken.said() == []
        now += pauses[-1]
        spoken.node.perform_due_actions(now)
        victim, request = outstanding(spoken.said())
    return pauses, victim, request


def test_one_request_is_pending_at_a_time_and_pauses_grow() -> None:
    pauses, _, _ = refused_until(*asking(1, 3), 0.25)
    cap = EngineLimits().longest_steal_wait
    assert 0 < pauses[0] <= EngineLimits().first_steal_wait
    assert cap / 2 <= pauses[-1] <= max(pauses) <= cap


def test_long_idle_rank_requests_rarely_until_it_has_run_a_task() -> None:
    spoken, victim, request = asking(1, 3)
    pauses, victim, request = refused_until(spoken, victim, request, 5.0)
    assert LONGEST_STEAL_PATIENCE / 2 <= pauses[-1] <= max(pauses) <= LONGEST_STEAL_PATIENCE
    spoken.hear(0, AddressedTasksMessage(0, (task(9, owner=1),)), now=6.0)
    assert spoken.node.take_task() == task(9, owner=1)
    spoken.node.finish_task(task(9, owner=1), TaskOutcome(), 7.0)
    _, request = outstanding(spoken.hear(victim, TaskReply(0, request.sequence, ()), now=7.0))
    assert 0 < request.patience <= EngineLimits().longest_steal_wait
