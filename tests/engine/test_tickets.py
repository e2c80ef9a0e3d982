"""A rank whose tasks wait for tickets, one rule at a time (``pcopy.engine.ticket``)."""

from __future__ import annotations

import pytest

from pcopy.engine.driver import TaskOutcome
from pcopy.engine.limits import EngineLimits
from pcopy.engine.messages import (
    AddressedTasksMessage,
    CreditReturnMessage,
    EndJobMessage,
    EpochMarker,
    RingToken,
    StartPhaseMessage,
    TaskReply,
    TaskRequest,
)
from pcopy.engine.task import NewTask
from pcopy.errors import InvariantBroken
from tests.engine.spoken import Spoken, node_of, outstanding, task, without
from tests.engine.test_epochs import FakeJournal

TWO = EngineLimits(fan_out=2, task_slots=2)


def waiting(journal: FakeJournal | None = None, limits: EngineLimits = TWO) -> Spoken:
    """Rank 1 of 3, which has run its task 1 until it waits for a ticket."""
    spoken = Spoken(1, 3, limits=limits, journal=journal)
    victim, request = outstanding(spoken.hear(0, StartPhaseMessage(0)))
    spoken.hear(victim, TaskReply(0, request.sequence, ()), AddressedTasksMessage(0, (task(1, owner=1),)))
    assert spoken.node.take_task() == task(1, owner=1)
    spoken.node.begun_tasks.suspend_task(task(1, owner=1))
    return spoken


# What a rank begins, and asks for.


def test_rank_with_waiting_task_starts_another_if_slot_is_free() -> None:
    spoken = waiting()
    spoken.node.queue.is_work = lambda task: True
    spoken.hear(0, AddressedTasksMessage(0, tuple(task(number, owner=1) for number in (2, 3, 4))))
    assert spoken.node.can_take_task
    assert spoken.node.take_task() == task(2, owner=1)
    assert spoken.node.take_task() is None  # since that one can run
    spoken.node.begun_tasks.suspend_task(task(2, owner=1))
    assert not spoken.node.can_take_task
    assert spoken.node.take_task() is None
    spoken.node.begun_tasks.resume_task(task(1, owner=1))
    spoken.node.finish_task(task(1, owner=1), TaskOutcome(), 0.0)
    assert spoken.node.take_task() == task(3, owner=1)


def test_note_needs_no_slot() -> None:
    spoken = waiting(limits=TWO._replace(task_slots=1))
    node = spoken.node
    node.queue.is_work = lambda task: task.id[2] == 3
    spoken.hear(0, AddressedTasksMessage(0, tuple(task(number, owner=1) for number in (2, 3, 4))))
    assert node.can_take_task
    assert node.take_task() == task(2, owner=1)
    assert not node.can_take_task and node.take_task() is None  # since that one can run
    node.finish_task(task(2, owner=1), TaskOutcome(), 0.0)
    assert not node.can_take_task and node.take_task() is None  # since work comes next
    node.begun_tasks.resume_task(task(1, owner=1))
    node.finish_task(task(1, owner=1), TaskOutcome(), 0.0)
    assert node.take_task() == task(3, owner=1)


def test_rank_with_waiting_task_gives_away_its_last_queued_task() -> None:
    for slots, waits, given in ((1, True, 1), (2, True, 1), (2, False, 0)):
        spoken = waiting(limits=TWO._replace(task_slots=slots))
        spoken.node.begun_tasks.resume_task(task(1, owner=1))
        spoken.node.finish_task(task(1, owner=1), TaskOutcome([NewTask(0, b"", 1)] * (1 + waits)), 0.0)
        if waits:
            first = spoken.node.take_task()
            assert first is not None
            spoken.node.begun_tasks.suspend_task(first)
        spoken.said()
        ((_, reply),) = without(spoken.hear(2, TaskRequest(0, 1)), CreditReturnMessage)
        assert isinstance(reply, TaskReply)
        assert len(reply.tasks) == given


def test_rank_with_waiting_task_and_free_slot_requests_work() -> None:
    for slots, asked in ((1, 0), (2, 1)):
        spoken = waiting(limits=TWO._replace(task_slots=slots))
        spoken.said()
        spoken.node.perform_due_actions(1.0)
        assert len(spoken.said()) == asked
    spoken = waiting()
    spoken.node.begun_tasks.resume_task(task(1, owner=1))  # it has something to run
    spoken.said()
    spoken.node.perform_due_actions(1.0)
    assert spoken.said() == []


def test_stolen_tasks_can_be_given_away_once_one_waits() -> None:
    """It has run a slice then."""
    spoken = Spoken(1, 3, limits=TWO)
    said = spoken.hear(0, StartPhaseMessage(0))
    ((victim, request),) = [(rank, message) for rank, message in said if isinstance(message, TaskRequest)]
    spoken.hear(victim, TaskReply(0, request.sequence, tuple(task(number) for number in range(4))))
    begun = spoken.node.take_task()
    assert begun is not None
    assert spoken.hear(2, TaskRequest(0, 1)) == [(2, TaskReply(0, 1, ()))]
    spoken.node.begun_tasks.suspend_task(begun)
    ((_, reply),) = spoken.hear(2, TaskRequest(0, 2))
    assert isinstance(reply, TaskReply)
    assert reply.tasks


# When a task is over.


def test_waiting_task_can_be_neither_finished_nor_dropped() -> None:
    journal = FakeJournal()
    spoken = waiting(journal)
    for end in (spoken.node.finish_task, lambda *_: spoken.node.drop_task(task(1, owner=1), 0.0)):
        with pytest.raises(InvariantBroken, match="waits for a ticket"):
            end(task(1, owner=1), TaskOutcome((NewTask(0, b"", 1),), (1,)), 0.0)
    assert (journal.calls, spoken.node.counters) == ([], [0])


@pytest.mark.parametrize("termination", ["tree", "ring"])
def test_phase_does_not_end_while_a_task_waits(termination: str) -> None:
    node = node_of(1, 3, TWO, termination=termination)
    for message in (StartPhaseMessage(0), AddressedTasksMessage(0, (task(1, owner=1),))):
        node.receive_message(0, message, 0.0)
    if termination == "ring":
        node.receive_message(2, RingToken(0, 0, False), 0.0)
    assert node.take_task() == task(1, owner=1)
    node.begun_tasks.suspend_task(task(1, owner=1))
    node.outbox.clear()
    node.perform_due_actions(0.1)
    assert not any(isinstance(message, CreditReturnMessage | RingToken) for _, message in node.outbox)
    with pytest.raises(InvariantBroken, match="has work"):
        node.receive_message(0, EndJobMessage(0), 0.1)
    node.begun_tasks.resume_task(task(1, owner=1))
    node.finish_task(task(1, owner=1), TaskOutcome(), 0.2)
    assert any(isinstance(message, CreditReturnMessage | RingToken) for _, message in node.outbox)


def test_cut_does_not_wait_for_ticket() -> None:
    """All facts of a task belong to the epoch in which it ends."""
    journal = FakeJournal()
    spoken = waiting(journal)
    spoken.hear(2, EpochMarker(2))
    assert journal.calls == [("cut", 1, 0)]
    journal.needs_checkpoint = True
    spoken.node.perform_due_actions(1.0)
    assert journal.cuts == [1, 2]
    spoken.node.begun_tasks.resume_task(task(1, owner=1))
    spoken.node.finish_task(task(1, owner=1), TaskOutcome([NewTask(0, b"", 1)], (1,)), 1.0)
    assert journal.calls[2:] == [("spawned", (1, 1, 1)), ("done", (1, 0, 1))]
    spoken.hear(2, EpochMarker(4))
    assert journal.cuts == [1, 2, 3]
