"""What a rank gives, which tasks it divides, and who waits for that, one rule at a time."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from pcopy.engine.limits import EngineLimits
from pcopy.engine.messages import (
    AddressedTasksMessage,
    CounterQuery,
    EndJobMessage,
    HaltMessage,
    Message,
    StartPhaseMessage,
    SubtreeReadyMessage,
    TaskReply,
    TaskRequest,
)
from pcopy.engine.task import NewTask, Task
from pcopy.engine.ticket import TaskOutcome
from pcopy.engine.victim import HUNGRY_SECONDS
from tests.engine.spoken import Spoken, asking, outstanding, task, without
from tests.engine.test_epochs import FakeJournal


class Dividing:
    """Divides each task whose payload has several bytes, but for those in ``whole``; notes what it was asked."""

    def __init__(self, *, unasked: bool = False) -> None:
        self.unasked = unasked
        self.asked: list[tuple[bytes, bool]] = []

    def __call__(self, task: Task, hungry: bool) -> Sequence[NewTask]:
        self.asked.append((task.payload, hungry))
        if len(task.payload) == 1 or not (hungry or self.unasked):
            return ()
        return [NewTask(task.phase, bytes((each,)), 1, task.may_find_work) for each in task.payload]


def holding(*payloads: bytes, expands: bool = False, limits: EngineLimits | None = None) -> tuple[Spoken, FakeJournal]:
    """Rank 1 of 3, which has spawned a task with each of ``payloads``, and runs none."""
    journal = FakeJournal()
    spoken = Spoken(1, 3, journal=journal, divide=Dividing(), limits=limits or EngineLimits(fan_out=2))
    spoken.hear(0, StartPhaseMessage(0), AddressedTasksMessage(0, (task(9, owner=1),)))
    note = spoken.node.take_task()
    assert note is not None
    spoken.node.finish_task(note, TaskOutcome([NewTask(0, each, len(each), expands) for each in payloads], (7,)), 0.0)
    spoken.said()
    journal.calls.clear()
    return spoken, journal


def given(said: list[tuple[int, Message]]) -> list[bytes]:
    ((_, reply),) = [each for each in said if isinstance(each[1], TaskReply)]
    assert isinstance(reply, TaskReply)
    return [each.payload for each in reply.tasks]


def replies(said: list[tuple[int, Message]]) -> list[tuple[int, int]]:
    return [(rank, len(message.tasks)) for rank, message in said if isinstance(message, TaskReply)]


# What is divided.


@pytest.mark.parametrize("expands", [False, True])
def test_only_task_is_divided_and_half_of_it_given_away(expands: bool) -> None:
    spoken, _ = holding(b"abcd", expands=expands)
    assert given(spoken.hear(2, TaskRequest(0, 1))) == [b"a", b"b"]
    assert given(spoken.hear(0, TaskRequest(0, 1))) == [b"c"]
    assert given(spoken.hear(2, TaskRequest(0, 2))) == []
    assert len(spoken.node.queue) == 1


def test_divided_task_is_recorded_as_done_without_counts() -> None:
    spoken, journal = holding(b"abcd")
    counters = list(spoken.node.counters)
    spoken.hear(2, TaskRequest(0, 1))
    portions = [("spawned", (1, 1, number)) for number in range(2, 6)]
    assert journal.calls == [*portions, ("done", (1, 1, 1))]
    assert spoken.node.counters == counters


def test_no_task_is_divided_if_several_wait() -> None:
    spoken, journal = holding(b"abcd", b"efgh")
    assert given(spoken.hear(2, TaskRequest(0, 1))) == [b"abcd"]
    assert journal.calls == []


def test_indivisible_task_is_kept_and_tried_once() -> None:
    spoken, journal = holding(b"a")
    for sequence in range(3):
        assert given(spoken.hear(2, TaskRequest(0, sequence))) == []
    divide = spoken.node._victim._divide
    assert isinstance(divide, Dividing)
    assert divide.asked == [(b"a", True)]
    taken = spoken.node.take_task()
    assert taken is not None
    assert taken.payload == b"a"
    assert journal.calls == []


def test_addressed_task_is_not_divided() -> None:
    spoken, journal = holding()
    spoken.hear(0, AddressedTasksMessage(0, (task(1, owner=1)._replace(payload=b"abcd"),)))
    assert given(spoken.hear(2, TaskRequest(0, 1))) == []
    taken = spoken.node.take_task()
    assert taken is not None
    assert taken.payload == b"abcd"
    assert journal.calls == []


def test_stolen_task_is_not_divided_before_its_first_slice() -> None:
    spoken, victim, request = asking(1, 4)
    spoken.node._victim._divide = Dividing()
    spoken.hear(victim, TaskReply(0, request.sequence, (task(1)._replace(payload=b"abcd"),)))
    assert given(spoken.hear(2, TaskRequest(0, 1))) == []
    assert len(spoken.node.queue) == 1


def test_rank_that_runs_a_task_divides_the_queued_one() -> None:
    spoken, _ = holding(b"abcd", b"x")
    taken = spoken.node.take_task()
    assert taken is not None
    assert taken.payload == b"x"
    assert given(spoken.hear(2, TaskRequest(0, 1))) == [b"a", b"b"]


def test_halted_rank_divides_and_gives_away_nothing() -> None:
    spoken, journal = holding(b"abcd")
    spoken.hear(0, HaltMessage("signal"))
    assert given(spoken.hear(2, TaskRequest(0, 1, 9.0))) == []
    assert journal.calls == []


# What is begun.


def begun(spoken: Spoken) -> bytes:
    taken = spoken.node.take_task()
    assert taken is not None
    return taken.payload


def test_task_is_divided_when_it_starts_after_recent_request() -> None:
    spoken, journal = holding(b"x", b"abcd", b"efgh")
    spoken.hear(2, TaskRequest(0, 1))
    assert begun(spoken) == b"h"
    assert journal.calls[-1] == ("done", (1, 1, 3))
    assert [each.payload for each in spoken.node.queue._other_work.tasks][-3:] == [b"e", b"f", b"g"]


def test_old_request_does_not_divide_starting_task() -> None:
    spoken, _ = holding(b"abcd", b"efgh", b"ijkl")
    spoken.hear(2, TaskRequest(0, 1), now=1.0)
    spoken.node.perform_due_actions(1.0 + 1.01 * HUNGRY_SECONDS)
    assert begun(spoken) == b"ijkl"


def test_request_of_earlier_phase_does_not_divide_starting_task() -> None:
    spoken, _ = holding()
    spoken.hear(2, TaskRequest(0, 1))
    spoken.hear(0, StartPhaseMessage(1), AddressedTasksMessage(1, (task(3, phase=1, owner=1),)))
    spoken.run(NewTask(1, b"abcd", 1), NewTask(1, b"efgh", 1))
    assert begun(spoken) == b"efgh"


def test_very_long_task_is_divided_without_request() -> None:
    spoken, _ = holding(b"abcd")
    spoken.node._victim._divide = Dividing(unasked=True)
    assert begun(spoken) == b"d"


def test_after_recent_request_as_many_tasks_stay_queued_as_are_under_way() -> None:
    spoken, _ = holding(*(b"%d" % each for each in range(8)), limits=EngineLimits(fan_out=2, task_slots=8))
    spoken.hear(2, TaskRequest(0, 1))
    assert len(spoken.node.queue) == 4
    for under_way in (1, 2):
        taken = spoken.node.take_task()
        assert taken is not None
        spoken.node.begun_tasks.suspend_task(taken)
        assert spoken.node.can_take_task is (under_way < 2)
    spoken.node.queue.is_work = lambda task: True
    spoken.hear(0, AddressedTasksMessage(0, (task(3, owner=1),)))
    assert spoken.node.take_task() == task(3, owner=1)  # it is nobody else's
    spoken.node.begun_tasks.suspend_task(task(3, owner=1))
    assert not spoken.node.can_take_task
    spoken.node.perform_due_actions(2 * HUNGRY_SECONDS)
    assert spoken.node.can_take_task


# Who waits.


def test_request_is_answered_once_tasks_are_available() -> None:
    spoken, _ = holding()
    assert without(spoken.hear(2, TaskRequest(0, 1, 1.0)), TaskRequest) == []
    spoken.hear(0, AddressedTasksMessage(0, (task(3, owner=1),)))
    taken = spoken.node.take_task()
    assert taken is not None
    spoken.node.finish_task(taken, TaskOutcome([NewTask(0, b"a", 1), NewTask(0, b"b", 1)]), 0.5)
    assert replies(spoken.said()) == []  # a rank looks up only between slices
    spoken.node.perform_due_actions(0.5)
    assert replies(spoken.said()) == [(2, 1)]


def test_request_gets_empty_reply_at_its_deadline() -> None:
    spoken, _ = holding()
    spoken.hear(2, TaskRequest(0, 1, 1.0))
    spoken.hear(0, TaskRequest(0, 1, 0.5))
    assert spoken.node.next_due_action_time() == 0.5
    spoken.node.perform_due_actions(0.4)
    assert replies(spoken.said()) == []
    spoken.node.perform_due_actions(0.5)
    assert replies(spoken.said()) == [(0, 0)]
    spoken.node.perform_due_actions(1.0)
    assert replies(spoken.said()) == [(2, 0)]
    spoken.node.perform_due_actions(9.0)
    assert replies(spoken.said()) == []


def test_waiting_requests_are_answered_in_order() -> None:
    spoken, _ = holding(b"abcdefgh")
    taken = spoken.node.take_task()
    assert taken is not None
    for rank in (2, 0, 2):
        assert replies(spoken.hear(rank, TaskRequest(0, rank, 9.0))) == []
    spoken.node.finish_task(taken, TaskOutcome([NewTask(0, b"abcd", 4)]), 0.1)
    spoken.node.perform_due_actions(0.1)
    assert replies(spoken.said()) == [(2, 2), (0, 1)]
    assert replies(spoken.hear(0, CounterQuery(1, (0,)))) == []  # the last task stays


def test_request_is_answered_after_first_slice_of_stolen_task() -> None:
    spoken, victim, request = asking(1, 3)
    spoken.hear(victim, TaskReply(0, request.sequence, (task(1), task(2), task(3))))
    assert spoken.hear(2, TaskRequest(0, 1, 9.0)) == []
    taken = spoken.node.take_task()
    assert taken is not None
    spoken.node.begun_tasks.record_executed_task_slice(taken)
    spoken.node.perform_due_actions(0.1)
    assert replies(spoken.said()) == [(2, 1)]


def test_request_of_another_phase_is_answered_immediately() -> None:
    spoken, _ = holding(b"a", b"b")
    assert replies(spoken.hear(2, TaskRequest(1, 1, 9.0))) == [(2, 0)]


@pytest.mark.parametrize("news", [StartPhaseMessage(1), EndJobMessage(0), HaltMessage("signal")])
def test_new_phase_stop_and_halt_answer_waiting_requests(news: Message) -> None:
    spoken, _ = holding()
    assert replies(spoken.hear(2, TaskRequest(0, 1, 9.0))) == []
    assert replies(spoken.hear(0, news)) == [(2, 0)]


def test_rank_is_ready_only_after_waiting_requests_are_answered() -> None:
    spoken, victim, request = asking(1, 3)
    assert spoken.hear(2, TaskRequest(0, 9, 9.0)) == []
    spoken.hear(victim, TaskReply(0, request.sequence, ()))
    victim, request = outstanding(spoken.hear(0, now=1.0) or _later(spoken))
    assert spoken.hear(0, EndJobMessage(5)) == [(2, TaskReply(0, 9, ()))]
    assert spoken.hear(victim, TaskReply(0, request.sequence, ())) == [(0, SubtreeReadyMessage())]


def _later(spoken: Spoken) -> list[tuple[int, Message]]:
    spoken.node.perform_due_actions(1.0)
    return spoken.said()
