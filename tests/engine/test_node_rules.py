"""The protocol's rules one by one: states, early and late work, the end, halt and abort."""

from __future__ import annotations

from typing import get_args

import pytest

from pcopy.engine.messages import (
    AbortMessage,
    AddressedTasksMessage,
    CloseTransportMessage,
    CounterSums,
    CreditReturnMessage,
    EndJobMessage,
    HaltMessage,
    Message,
    StartPhaseMessage,
    SubtreeReadyMessage,
    TaskReply,
    TaskRequest,
    TerminationCreditStamp,
)
from pcopy.engine.node import RankStateMachine
from pcopy.engine.states import RANK_STATE_TRANSITIONS, RankState
from pcopy.engine.task import NewTask, Task
from pcopy.engine.termination import CREDITS_PER_MESSAGE, MAX_ENGAGEMENT_DEPTH
from pcopy.engine.ticket import TaskOutcome
from pcopy.errors import InvariantBroken
from tests.engine.spoken import Directions, Spoken, asking, task, without, working

# States.


def test_every_state_can_abort_and_only_closed_and_aborted_are_final() -> None:
    assert set(RANK_STATE_TRANSITIONS) == set(RankState)
    for state, following in RANK_STATE_TRANSITIONS.items():
        final = state in (RankState.CLOSED, RankState.ABORTED)
        assert following == frozenset() if final else RankState.ABORTED in following


@pytest.mark.parametrize(
    "message", [EndJobMessage(0), CloseTransportMessage(), SubtreeReadyMessage(), CreditReturnMessage(0, 1)], ids=repr
)
def test_unexpected_message_while_waiting_is_refused(message: Message) -> None:
    with pytest.raises(InvariantBroken):
        Spoken(1, 3).hear(0, message)


@pytest.mark.parametrize(
    "message",
    [
        StartPhaseMessage(0),
        CloseTransportMessage(),
        SubtreeReadyMessage(),
        CreditReturnMessage(0, 1),
        CreditReturnMessage(1, 0),
    ],
    ids=repr,
)
def test_unexpected_message_while_working_is_refused(message: Message) -> None:
    with pytest.raises(InvariantBroken):
        working().hear(0, message)


@pytest.mark.parametrize(
    "message",
    [
        StartPhaseMessage(0),
        StartPhaseMessage(1),
        EndJobMessage(0),
        AddressedTasksMessage(0, (task(1),)),
        AddressedTasksMessage(1, ()),
        SubtreeReadyMessage(),
        CreditReturnMessage(0, 1),
    ],
    ids=repr,
)
def test_unexpected_message_while_stopping_is_refused(message: Message) -> None:
    spoken = working(1, 7)
    spoken.hear(3, CreditReturnMessage(0, CREDITS_PER_MESSAGE))
    spoken.hear(4, CreditReturnMessage(0, CREDITS_PER_MESSAGE))
    spoken.hear(0, EndJobMessage(0))
    assert spoken.node.state is RankState.STOPPING
    with pytest.raises(InvariantBroken):
        spoken.hear(0, message)


def test_stop_while_rank_has_work_is_refused() -> None:
    for work in (AddressedTasksMessage(0, (task(1, owner=1),)), AddressedTasksMessage(1, ())):
        spoken = working()
        spoken.hear(2, work)
        with pytest.raises(InvariantBroken):
            spoken.hear(0, EndJobMessage(0))


def test_second_ready_message_of_a_child_is_refused() -> None:
    spoken = working(1, 7)
    spoken.hear(0, EndJobMessage(0))
    spoken.hear(3, SubtreeReadyMessage())
    with pytest.raises(InvariantBroken):
        spoken.hear(3, SubtreeReadyMessage())


def test_unknown_message_is_refused_in_any_state() -> None:
    for spoken in (Spoken(1, 3), working()):
        with pytest.raises(InvariantBroken, match="unknown message from rank 2"):
            spoken.node.receive_message(2, ("what?",), 0.0)  # type: ignore[arg-type]


def test_every_message_has_a_handler() -> None:
    assert set(RankStateMachine._HANDLERS) == set(get_args(Message))


def test_finishing_a_task_that_does_not_run_is_refused() -> None:
    with pytest.raises(InvariantBroken):
        working().node.finish_task(task(1), TaskOutcome(), 0.0)


def test_rank_takes_one_task_at_a_time() -> None:
    spoken = working()
    spoken.hear(0, AddressedTasksMessage(0, (task(1, owner=1), task(2, owner=1))))
    assert spoken.node.take_task() == task(1, owner=1)
    assert spoken.node.take_task() is None


# Work, early and late.


def test_work_before_start_is_queued_and_acknowledged_after_it() -> None:
    spoken = Spoken(1, 3)
    note = task(1, owner=1)
    assert spoken.hear(2, AddressedTasksMessage(0, (note,))) == []
    assert len(spoken.node.queue) == 0
    assert spoken.node.take_task() is None
    assert spoken.hear(0, StartPhaseMessage(0)) == [(2, CreditReturnMessage(0, 1))]  # the start has engaged it
    assert spoken.node.take_task() == note
    spoken.node.finish_task(note, TaskOutcome(), 0.0)
    assert without(spoken.said(), TaskRequest) == [(0, CreditReturnMessage(0, 1))]


def test_work_of_next_phase_is_queued_until_phase_starts() -> None:
    spoken = working()
    assert spoken.hear(2, AddressedTasksMessage(1, (task(1, phase=1, owner=1),))) == []
    assert spoken.node.take_task() is None
    assert without(spoken.hear(0, StartPhaseMessage(1)), TaskRequest) == [(2, CreditReturnMessage(1, 1))]
    assert spoken.node.take_task() == task(1, phase=1, owner=1)


def test_work_of_past_phase_is_refused() -> None:
    spoken = working()
    spoken.hear(0, StartPhaseMessage(1))
    with pytest.raises(InvariantBroken, match="work of phase 0"):
        spoken.hear(2, AddressedTasksMessage(0, (task(1, owner=1),)))


def test_spawning_a_task_of_past_phase_is_refused() -> None:
    spoken = working()
    spoken.hear(0, StartPhaseMessage(1), AddressedTasksMessage(1, (task(1, phase=1, owner=1),)))
    with pytest.raises(InvariantBroken):
        spoken.run(NewTask(0, b"", 1))


def test_task_ids_are_consecutive_and_addressed_tasks_share_a_message() -> None:
    spoken = working()
    spoken.hear(0, AddressedTasksMessage(0, (task(1, owner=1),)))
    said = spoken.run(NewTask(0, b"a", 1, owner=2), NewTask(0, b"b", 1), NewTask(3, b"c", 1, owner=2))
    addressed = (Task((1, 1, 1), 0, b"a", 1, owner=2), Task((1, 1, 3), 3, b"c", 1, owner=2))
    assert [(rank, message[:2]) for rank, message in said] == [(2, (0, addressed))]
    assert spoken.node.take_task() == Task((1, 1, 2), 0, b"b", 1)


def test_engaging_message_is_acknowledged_last() -> None:
    spoken = working()  # it has signalled its start already
    assert spoken.hear(2, AddressedTasksMessage(0, (task(1, owner=1),))) == []
    assert spoken.hear(0, AddressedTasksMessage(0, (task(2, owner=1),))) == [(0, CreditReturnMessage(0, 1))]
    assert (
        spoken.hear(0, AddressedTasksMessage(0, (task(3, owner=1),), TerminationCreditStamp(2, 4))) == []
    )  # kept: its parent's account
    said = spoken.run(NewTask(0, b"", 1, owner=0))
    assert [type(message) for _, message in said] == [AddressedTasksMessage]
    spoken.run()
    spoken.run()
    assert spoken.node.take_task() is None
    assert spoken.hear(0, CreditReturnMessage(0, CREDITS_PER_MESSAGE)) == [(2, CreditReturnMessage(0, 5))]


def test_deep_rank_forwards_credits_of_its_parent() -> None:
    spoken = working()
    spoken.hear(
        2, AddressedTasksMessage(0, (task(1, owner=1),), TerminationCreditStamp(0, 1600, MAX_ENGAGEMENT_DEPTH - 1))
    )
    (rank, work), *rest = spoken.run(NewTask(0, b"", 1, owner=2))
    assert isinstance(work, AddressedTasksMessage)
    assert (rank, work.stamp) == (2, TerminationCreditStamp(0, 100, MAX_ENGAGEMENT_DEPTH - 1))
    assert without(rest, TaskRequest) == [(0, CreditReturnMessage(0, 1500))]


def test_credits_returned_with_work_need_no_message() -> None:
    spoken = working()
    spoken.hear(2, AddressedTasksMessage(0, (task(1, owner=1),)))
    spoken.run(NewTask(0, b"", 1, owner=0))
    assert (
        spoken.hear(0, AddressedTasksMessage(0, (task(2, owner=1),), TerminationCreditStamp(1, CREDITS_PER_MESSAGE)))
        == []
    )
    assert spoken.run() == [(2, CreditReturnMessage(0, 1))]


# The end.


def test_stopping_rank_replies_and_awaits_reply_to_its_own_request() -> None:
    spoken, victim, request = asking(1, 3)
    assert spoken.hear(0, EndJobMessage(5)) == []
    assert spoken.hear(2, TaskRequest(0, 9)) == [(2, TaskReply(0, 9, ()))]
    assert spoken.node.state is RankState.STOPPING
    assert spoken.hear(victim, TaskReply(0, request.sequence, ())) == [(0, SubtreeReadyMessage())]
    assert spoken.hear(2, TaskRequest(0, 10)) == [(2, TaskReply(0, 10, ()))]
    assert spoken.hear(0, CloseTransportMessage()) == []
    assert (spoken.node.state, spoken.node.status) == (RankState.CLOSED, 5)


def test_ready_is_sent_to_parent_once_subtree_is_ready() -> None:
    spoken, victim, request = asking(1, 7)
    assert spoken.hear(0, EndJobMessage(0)) == [(3, EndJobMessage(0)), (4, EndJobMessage(0))]
    assert spoken.hear(victim, TaskReply(0, request.sequence, ())) == []
    spoken.node.barrier.combine_reports = lambda below: b"1" + b"".join(below)
    assert spoken.hear(4, SubtreeReadyMessage(b"4")) == []
    assert spoken.hear(3, SubtreeReadyMessage(b"3")) == [(0, SubtreeReadyMessage(b"143"))]
    assert spoken.hear(0, CloseTransportMessage()) == [(3, CloseTransportMessage()), (4, CloseTransportMessage())]


def test_single_rank_runs_all_phases() -> None:
    spoken = Spoken(0, 1, Directions(first=2, phases=3))
    spoken.node.begin_job(0.0)
    assert spoken.run() == []
    assert spoken.node.state is RankState.WORKING
    assert spoken.run() == []
    assert (spoken.node.state, spoken.node.phase, spoken.node.counters) == (RankState.CLOSED, 2, [2])


def test_halt_request_goes_to_root_and_halt_order_to_children() -> None:
    spoken = working(1, 7)
    spoken.hear(3, HaltMessage("signal"))
    spoken.node.halt_job(HaltMessage("another"), 0.0)
    spoken.node.halt_job(HaltMessage("another"), 0.0)
    assert without(spoken.said(), TaskRequest) == []  # rank 3's wish stands for both
    assert spoken.node.halt_reason is None
    assert spoken.hear(0, HaltMessage("signal")) == [(3, HaltMessage("signal")), (4, HaltMessage("signal"))]
    assert spoken.node.halt_reason == HaltMessage("signal")


def test_halt_request_is_sent_to_parent_once() -> None:
    spoken = Spoken(4, 7)
    spoken.node.halt_job(HaltMessage("signal"), 0.0)
    assert spoken.said() == [(1, HaltMessage("signal"))]
    spoken.node.halt_job(HaltMessage("signal"), 0.0)
    assert spoken.said() == []


def test_halt_before_start_drops_all_tasks() -> None:
    spoken = Spoken(0, 3, Directions(first=4, phases=2))
    spoken.node.halt_job(HaltMessage("signal"), 0.0)
    assert spoken.said() == [(1, HaltMessage("signal")), (2, HaltMessage("signal"))]
    spoken.node.begin_job(0.0)
    assert spoken.node.take_task() is None
    assert spoken.node.dropped_count == 4
    spoken.hear(1, CreditReturnMessage(0, CREDITS_PER_MESSAGE))
    spoken.hear(2, CreditReturnMessage(0, CREDITS_PER_MESSAGE), CounterSums(1, (0,), ()))
    said = spoken.hear(1, *(CounterSums(sequence, (0,), ()) for sequence in (1, 2)))
    said += spoken.hear(2, CounterSums(2, (0,), ()))
    assert said[-2:] == [(1, EndJobMessage(75)), (2, EndJobMessage(75))]


def test_every_dropped_task_is_returned_once() -> None:
    """What is under way, what waits for this phase and for later ones, and what arrives after the stop."""
    spoken, victim, request = asking(1, 7)
    spoken.node.queue.keeps_dropped = True
    waiting = [task(1), task(2), task(3), task(4, phase=1)]
    spoken.hear(victim, TaskReply(0, request.sequence, tuple(waiting[:2])))
    spoken.hear(0, AddressedTasksMessage(0, tuple(waiting[2:])))
    taken = spoken.node.take_task()
    assert taken is not None
    spoken.hear(0, HaltMessage("signal"))
    spoken.node.drop_task(taken, 0.0)
    spoken.hear(0, AddressedTasksMessage(0, (task(5), task(6, phase=1))))
    assert sorted(each.id[2] for each in spoken.node.queue.pop_dropped()) == [1, 2, 3, 4, 5, 6]
    assert spoken.node.dropped_count == 6
    assert list(spoken.node.queue.pop_dropped()) == []


def test_abort_is_forwarded_to_all_neighbours_except_its_sender() -> None:
    spoken = working(1, 7)
    news = AbortMessage(9, "text")
    assert spoken.hear(3, news) == [(0, news), (4, news)]
    assert spoken.node.abort_reason == news
    assert spoken.hear(4, news, AbortMessage(4, "later")) == []
    assert spoken.hear(0, StartPhaseMessage(5), AddressedTasksMessage(9, ()), EndJobMessage(0)) == []
    spoken.node.abort_job("text")
    assert (spoken.node.state, spoken.node.abort_reason) == (RankState.ABORTED, news)


def test_abort_after_close_is_ignored() -> None:
    spoken, victim, request = asking(1, 3)
    spoken.hear(victim, TaskReply(0, request.sequence, ()))
    spoken.hear(0, EndJobMessage(3), CloseTransportMessage())
    spoken.node.abort_job("text")
    assert spoken.hear(0, AbortMessage(0, "text")) == []
    assert (spoken.node.state, spoken.node.abort_reason) == (RankState.CLOSED, None)
