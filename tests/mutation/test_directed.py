"""Rules of the engine that no other test met: each was found by dropping it."""

from __future__ import annotations

import pytest

from pcopy.engine.messages import (
    AddressedTasksMessage,
    CounterSums,
    CreditReturnMessage,
    HaltMessage,
    StartPhaseMessage,
    TaskReply,
    TaskRequest,
    TerminationCreditStamp,
)
from pcopy.engine.progress import CounterTree
from pcopy.engine.states import RankState
from pcopy.engine.task import NewTask
from pcopy.engine.termination import MAX_ENGAGEMENT_DEPTH, DijkstraScholtenTerminationDetector
from pcopy.errors import InvariantBroken
from tests.engine.plans import Network, Planned
from tests.engine.simulation import SMALL, Simulation
from tests.engine.spoken import Directions, Spoken, asking, task, without


def test_slice_of_later_note_does_not_release_stolen_tasks() -> None:
    spoken, victim, request = asking(1, 3)
    spoken.hear(victim, TaskReply(0, request.sequence, (task(1), task(2), task(3))))
    spoken.hear(0, AddressedTasksMessage(0, (task(9, owner=1),)))
    assert spoken.node.take_task() == task(9, owner=1)
    spoken.node.begun_tasks.record_executed_task_slice(task(9, owner=1))
    assert spoken.hear(2, TaskRequest(0, 1)) == [(2, TaskReply(0, 1, ()))]


def test_slice_of_earlier_task_does_not_release_stolen_tasks() -> None:
    """While its request is under way a rank may get work of its own; a slice of that says nothing of what comes."""
    spoken, victim, request = asking(1, 3)
    spoken.hear(0, AddressedTasksMessage(0, (task(9, owner=1),)))
    spoken.run(NewTask(0, b"own", 1))
    running = spoken.node.take_task()
    assert running is not None
    assert running.payload == b"own"
    spoken.hear(victim, TaskReply(0, request.sequence, (task(1), task(2))))
    spoken.node.begun_tasks.record_executed_task_slice(running)
    assert spoken.hear(2, TaskRequest(0, 1)) == [(2, TaskReply(0, 1, ()))]


def test_second_reply_to_one_request_is_refused() -> None:
    spoken, victim, request = asking(1, 3)
    spoken.hear(victim, TaskReply(0, request.sequence, (task(1),)))
    with pytest.raises(InvariantBroken, match="had not asked for"):
        spoken.hear(victim, TaskReply(0, request.sequence, (task(2),)))


def test_messages_of_addressed_tasks_stay_within_limit() -> None:
    spoken, _, _ = asking(1, 3)
    spoken.hear(0, AddressedTasksMessage(0, (task(1, owner=1),)))
    said = without(spoken.run(*(NewTask(0, bytes(3 << 19), 1, owner=2) for _ in range(5))), TaskRequest)
    assert [len(message.tasks) for _, message in said if isinstance(message, AddressedTasksMessage)] == [2, 2, 1]


def test_halted_rank_requests_no_tasks() -> None:
    spoken, victim, request = asking(1, 3)
    spoken.hear(0, HaltMessage("signal"))
    assert spoken.hear(victim, TaskReply(0, request.sequence, ()), now=1.0) == []
    spoken.node.perform_due_actions(9.0)
    assert spoken.said() == []


def test_halt_before_start_of_single_rank_closes_it() -> None:
    spoken = Spoken(0, 1, Directions(first=4, phases=2))
    spoken.node.halt_job(HaltMessage("signal"), 0.0)
    spoken.node.begin_job(0.0)
    assert spoken.node.take_task() is None
    spoken.node.perform_due_actions(0.0)
    assert (spoken.node.state, spoken.node.phase, spoken.node.dropped_count) == (RankState.CLOSED, 0, 4)


def test_phase_start_before_end_of_last_phase_is_refused() -> None:
    spoken, victim, request = asking(1, 3)
    spoken.hear(victim, TaskReply(0, request.sequence, (task(1),)))  # it takes part again
    assert spoken.node.take_task() is not None
    with pytest.raises(InvariantBroken):
        spoken.hear(0, StartPhaseMessage(1))


def test_late_answer_does_not_count_for_later_query() -> None:
    root = CounterTree(0, 2, 2, [1])
    root.start_query()
    root.start_query()
    assert root.receive_answer(1, CounterSums(1, (5,), ())) == []
    assert root.latest_sums is not None
    assert (root.latest_sums.sequence, root.latest_sums.silent_ranks) == (1, (1,))
    root.receive_answer(1, CounterSums(2, (7,), ()))
    assert (root.latest_sums.sequence, root.latest_sums.totals, root.latest_sums.silent_ranks) == (2, (8,), ())


def test_sums_are_complete_in_time_although_answers_are_slow() -> None:
    """A round trip takes many intervals: the sums of a phase neither lack a rank nor are asked for anew for ever."""
    plan = (Planned(-1, 0), *(Planned(0, 0, owner=rank) for rank in range(1, 7)))
    limits = SMALL._replace(progress_interval=0.01)
    job = Simulation(plan, 7, 4, limits=limits, network=Network(0.1, 0.2)).run(seconds=12.0)
    assert len(job.done) == 7


def test_credits_are_conserved() -> None:
    """However many messages of work a deep rank sends: what it holds and what it gave is what it got."""
    rank = DijkstraScholtenTerminationDetector(1)
    rank.begin_phase(0)
    assert rank.count_received_work_message(2, TerminationCreditStamp(3, 100, MAX_ENGAGEMENT_DEPTH)) == []
    assert rank.count_received_work_message(4, TerminationCreditStamp(3, 50, MAX_ENGAGEMENT_DEPTH)) == []
    given = own = 0
    for _ in range(80):
        stamp = rank.count_sent_work_message()
        assert stamp.credits > 0
        if stamp.account == 3:
            given += stamp.credits
        else:
            assert stamp.account == 1
            own += stamp.credits
    assert given
    assert own
    assert rank.advance_termination_detection() == []
    assert rank.handle_termination_message(5, CreditReturnMessage(0, own)) == []
    assert rank.advance_termination_detection() == [(3, CreditReturnMessage(0, 150 - given))]


def test_credits_of_own_account_return_without_message() -> None:
    rank = DijkstraScholtenTerminationDetector(1)
    rank.begin_phase(0)
    rank.count_received_work_message(0, TerminationCreditStamp(0, 7))
    stamp = rank.count_sent_work_message()
    assert stamp.account == 1
    assert rank.advance_termination_detection() == []
    assert rank.count_received_work_message(2, stamp) == []  # by way of a rank that gave them on
    assert rank.advance_termination_detection() == [(0, CreditReturnMessage(0, 7))]
