"""A phase of a job that is kept is over once it is on storage; so is a job that is requested to stop."""

from __future__ import annotations

import pytest

from pcopy.engine.journal import NEVER_DURABLE
from pcopy.engine.messages import (
    ABANDONED_EPOCH,
    CounterQuery,
    CounterSums,
    CreditReturnMessage,
    EndJobMessage,
    EpochMarker,
    HaltMessage,
    Message,
    StartPhaseMessage,
)
from pcopy.engine.states import RankState
from pcopy.engine.task import NewTask
from pcopy.engine.termination import CREDITS_PER_MESSAGE
from pcopy.engine.ticket import TaskOutcome
from tests.engine.spoken import Directions, Spoken, task, without
from tests.engine.test_epochs import FakeJournal, heard, make, working


def ended_phase(directions: Directions) -> tuple[Spoken, FakeJournal]:
    """A root of two ranks; the first phase is over, but the counters are not collected."""
    root, journal = make(0, 2, directions)
    root.node.begin_job(0.0)
    root.said()
    return root, journal


def answer(root: Spoken, said: list[tuple[int, Message]], durable: int, now: float) -> list[tuple[int, Message]]:
    """What the root says once rank 1 has answered its last query."""
    query = [message for _, message in said if isinstance(message, CounterQuery)][-1]
    return root.hear(1, CounterSums(query.sequence, (0,), (), durable), now=now)


def wait(root: Spoken, now: float) -> list[tuple[int, Message]]:
    root.node.perform_due_actions(now)
    return root.said()


def test_phase_starts_only_when_all_ranks_are_durable() -> None:
    root, journal = ended_phase(Directions(phases=2))
    root.hear(1, EpochMarker(2))
    said = answer(root, root.hear(1, CreditReturnMessage(0, CREDITS_PER_MESSAGE)), 0, 0.1)
    assert journal.calls[-2:] == [("cut", 1, 0), ("cut", 2, 0)]
    assert not any(isinstance(message, StartPhaseMessage) for _, message in said)
    journal.durable_epoch = 2
    said = answer(root, wait(root, 0.2), 1, 0.3)  # rank 1 has more to do
    assert root.node.phase == 0
    said = answer(root, wait(root, 0.4), 2, 0.5)
    assert any(isinstance(message, StartPhaseMessage) for _, message in said)
    assert journal.cuts == [1, 2]


def test_all_ranks_abandon_their_journals_once_one_fails() -> None:
    spoken, journal = working(1, 7)
    spoken.hear(2, EpochMarker(2))
    journal.has_failed = True
    spoken.node.finish_task(task(9, owner=1), TaskOutcome([NewTask(0, b"", 1, owner=5)]), 0.0)
    spoken.node.perform_due_actions(0.1)
    spoken.node.perform_due_actions(0.2)
    spoken.hear(2, EpochMarker(3), EpochMarker(ABANDONED_EPOCH))
    assert journal.calls[-1] == ("gave up",)
    assert journal.calls.count(("gave up",)) == 1
    assert journal.cuts == [1]
    said = spoken.hear(0, CounterQuery(1, (0,)))
    assert heard(said, 3)[0] == EpochMarker(ABANDONED_EPOCH)
    other, journal = working(3, 7)
    other.hear(1, EpochMarker(ABANDONED_EPOCH))
    assert journal.calls == [("gave up",)]
    assert heard(without(other.hear(1, CounterQuery(1, (0,)))), 1)[0] == EpochMarker(ABANDONED_EPOCH)


def test_stopping_job_keeps_its_records_although_journal_failed() -> None:
    spoken, journal = working()
    spoken.hear(0, HaltMessage("signal"))
    journal.has_failed = True
    spoken.node.perform_due_actions(0.1)
    assert journal.calls == []


def test_phase_waits_until_records_of_abandoned_job_are_removed() -> None:
    """And no longer: not for other ranks."""
    root, journal = ended_phase(Directions(phases=2))
    root.hear(1, EpochMarker(2))
    answer(root, root.hear(1, CreditReturnMessage(0, CREDITS_PER_MESSAGE)), 0, 0.1)
    journal.durable_epoch = 2
    said = root.hear(1, EpochMarker(ABANDONED_EPOCH))
    assert journal.calls[-1] == ("gave up",)
    said = answer(root, wait(root, 0.2), ABANDONED_EPOCH, 0.3)
    assert not any(isinstance(message, StartPhaseMessage) for _, message in said)
    journal.durable_epoch = ABANDONED_EPOCH
    said = answer(root, wait(root, 0.4), 0, 0.5)
    assert any(isinstance(message, StartPhaseMessage) for _, message in said)


def test_single_rank_waits_until_its_records_are_durable() -> None:
    root, journal = make(0, 1, Directions(first=1, phases=2))
    root.node.begin_job(0.0)
    taken = root.node.take_task()
    assert taken is not None
    journal.needs_checkpoint = True
    root.node.perform_due_actions(0.0)
    assert journal.cuts == [1]
    root.node.finish_task(taken, TaskOutcome(), 0.0)
    for tick in range(100):
        root.node.perform_due_actions(tick * 0.01)
        assert root.node.phase == 0
    journal.durable_epoch = 2
    for tick in range(100, 200):
        root.node.perform_due_actions(tick * 0.01)
    assert root.node.phase == 1
    journal.durable_epoch = 3
    for tick in range(200, 300):
        root.node.perform_due_actions(tick * 0.01)
    assert root.node.state is RankState.CLOSED


def test_phase_does_not_wait_without_a_cut() -> None:
    root, journal = ended_phase(Directions(phases=2))
    said = answer(root, root.hear(1, CreditReturnMessage(0, CREDITS_PER_MESSAGE)), 0, 0.1)
    assert any(isinstance(message, StartPhaseMessage) for _, message in said)
    said = answer(root, root.hear(1, CreditReturnMessage(1, CREDITS_PER_MESSAGE)), 0, 0.1)
    assert (1, EndJobMessage(0)) in said
    assert journal.cuts == []


def test_each_phase_of_resumed_job_ends_with_a_cut() -> None:
    root, journal = make(0, 2, Directions(phases=3))
    root.node.restore_tasks(1, [], ())
    root.node.begin_job(0.0)
    answer(root, root.hear(1, CreditReturnMessage(1, CREDITS_PER_MESSAGE)), 0, 0.1)
    assert root.node.phase == 1
    assert journal.cuts == [1]


def test_stopping_job_makes_last_cut_and_waits_limited_time_for_it() -> None:
    root, journal = ended_phase(Directions(phases=2))
    root.node.halt_job(HaltMessage("signal"), 0.0)
    said = answer(root, root.hear(1, CreditReturnMessage(0, CREDITS_PER_MESSAGE)), 0, 0.1)
    assert journal.cuts == [1]
    assert (1, EndJobMessage(75)) not in said
    said = answer(root, wait(root, 2.9), 0, 3.0)
    assert (1, EndJobMessage(75)) not in said
    said = answer(root, wait(root, 3.2), 0, 3.3)
    assert (1, EndJobMessage(75)) in said


def test_patience_of_stopping_job_starts_with_the_stop() -> None:
    root, _ = ended_phase(Directions(phases=2))
    root.hear(1, EpochMarker(2))
    answer(root, root.hear(1, CreditReturnMessage(0, CREDITS_PER_MESSAGE)), 0, 0.1)
    answer(root, wait(root, 10.0), 0, 10.1)
    root.node.halt_job(HaltMessage("signal"), 10.2)
    said = answer(root, wait(root, 10.3), 0, 10.4)
    said += answer(root, wait(root, 13.1), 0, 13.2)
    assert (1, EndJobMessage(75)) not in said
    said = answer(root, wait(root, 13.5), 0, 13.6)
    assert (1, EndJobMessage(75)) in said


def test_stopping_job_does_not_wait_for_lost_data() -> None:
    root, journal = ended_phase(Directions(phases=2))
    root.node.halt_job(HaltMessage("signal"), 0.0)
    said = answer(root, root.hear(1, CreditReturnMessage(0, CREDITS_PER_MESSAGE)), 0, 0.1)
    assert (1, EndJobMessage(75)) not in said
    said = answer(root, wait(root, 0.2), NEVER_DURABLE, 0.3)
    assert (1, EndJobMessage(75)) in said
    assert journal.cuts == [1]


def test_job_with_lost_data_waits_until_stop_and_is_incomplete() -> None:
    root, journal = ended_phase(Directions(phases=2))
    root.hear(1, EpochMarker(2))
    journal.has_lost_data = True
    answer(root, root.hear(1, CreditReturnMessage(0, CREDITS_PER_MESSAGE)), 0, 0.1)
    answer(root, wait(root, 0.2), 0, 0.3)
    assert (root.node.state, root.node.phase) == (RankState.WORKING, 0)
    root.node.halt_job(HaltMessage("the destination could not be synced"), 0.4)
    said = answer(root, wait(root, 0.5), 0, 0.6)
    assert (1, EndJobMessage(75)) in said
    assert not root.node.cut_schedule.are_all_records_durable


@pytest.mark.parametrize(("durable", "status"), [(2, 0), (NEVER_DURABLE, 75)])
def test_stop_after_last_task_counts_only_if_data_are_lost(durable: int, status: int) -> None:
    root, journal = ended_phase(Directions())
    root.hear(1, EpochMarker(2))
    answer(root, root.hear(1, CreditReturnMessage(0, CREDITS_PER_MESSAGE)), 0, 0.1)
    root.node.halt_job(HaltMessage("the destination could not be synced, or a signal"), 0.2)
    journal.durable_epoch = 2
    said = answer(root, wait(root, 0.3), durable, 0.4)
    assert (1, EndJobMessage(status)) in said
    assert root.node.cut_schedule.are_all_records_durable == (status == 0)


def test_running_job_waits_for_durability_without_limit() -> None:
    root, _ = ended_phase(Directions(phases=2))
    root.hear(1, EpochMarker(2))
    answer(root, root.hear(1, CreditReturnMessage(0, CREDITS_PER_MESSAGE)), 0, 0.1)
    answer(root, wait(root, 100.0), 0, 100.1)
    assert (root.node.state, root.node.phase) == (RankState.WORKING, 0)
