"""Epochs, one rule at a time: what is cut when, what a journal is told, and what waits for storage."""

from __future__ import annotations

from collections.abc import Sequence

from pcopy.engine.limits import EngineLimits
from pcopy.engine.messages import (
    AddressedTasksMessage,
    CounterQuery,
    CreditReturnMessage,
    EpochMarker,
    Message,
    StartPhaseMessage,
    TaskRequest,
)
from pcopy.engine.task import UNRECORDED, NewTask, Task, TaskId, TaskShares
from pcopy.engine.ticket import TaskOutcome
from tests.engine.spoken import Directions, Spoken, task, without


class FakeJournal:
    """Remembers what it is told, in order; storage is as quick as the test says."""

    def __init__(self) -> None:
        self.durable_epoch = 0
        self.has_lost_data = False
        self.has_failed = False
        self.needs_checkpoint = False
        self.must_wait_for_storage = False
        self.calls: list[tuple[object, ...]] = []

    def record_initial_tasks(self, phase: int, tasks: Sequence[Task]) -> None:
        self.calls.append(("base", phase, len(tasks)))

    def record_spawned_task(self, task: Task) -> None:
        self.calls.append(("spawned", task.id))

    def record_done_task(
        self, task: Task, counts: Sequence[int], completed: Sequence[TaskId], shares: TaskShares = ()
    ) -> None:
        self.calls.append(("done", task.id, *completed))

    def end_epoch(self, epoch: int, phase: int) -> None:
        self.needs_checkpoint = False
        self.calls.append(("cut", epoch, phase))

    def abandon_records(self) -> None:
        self.calls.append(("gave up",))

    @property
    def cuts(self) -> list[int]:
        return [int(str(fact[1])) for fact in self.calls if fact[0] == "cut"]


def make(
    rank: int, size: int, directions: Directions | None = None, *, cut_interval: float = 60.0, first_cut: float = 60.0
) -> tuple[Spoken, FakeJournal]:
    journal = FakeJournal()
    limits = EngineLimits(
        fan_out=2,
        seconds_to_first_checkpoint_cut=first_cut,
        checkpoint_cut_interval=cut_interval,
        last_checkpoint_cut_timeout=3.0,
    )
    return Spoken(rank, size, directions, journal=journal, limits=limits), journal


def working(rank: int = 1, size: int = 3) -> tuple[Spoken, FakeJournal]:
    """A rank that runs a note of its own, the task 9."""
    spoken, journal = make(rank, size)
    spoken.hear(0, StartPhaseMessage(0), AddressedTasksMessage(0, (task(9, owner=rank),)))
    assert spoken.node.take_task() == task(9, owner=rank)
    return spoken, journal


def heard(said: list[tuple[int, Message]], destination: int) -> list[Message]:
    return [message for rank, message in said if rank == destination]


# What a cut is.


def test_epoch_is_cut_when_marker_arrives() -> None:
    spoken, journal = working()
    spoken.node.finish_task(task(9, owner=1), TaskOutcome([NewTask(0, b"", 1)], (1,)), 0.0)
    spoken.hear(2, EpochMarker(2))
    assert journal.calls == [("spawned", (1, 1, 1)), ("done", (1, 0, 9)), ("cut", 1, 0)]
    spoken.hear(2, EpochMarker(2))
    assert journal.cuts == [1]


def test_every_epoch_is_cut_even_an_empty_one() -> None:
    spoken, journal = working()
    spoken.hear(2, EpochMarker(4))
    assert journal.cuts == [1, 2, 3]
    spoken.hear(0, EpochMarker(3))  # an old one
    assert journal.cuts == [1, 2, 3]


def test_marker_precedes_first_message_to_each_destination() -> None:
    spoken, _ = working(1, 7)
    spoken.hear(2, EpochMarker(2))
    spoken.node.finish_task(
        task(9, owner=1), TaskOutcome([NewTask(0, b"", 1, owner=owner) for owner in (5, 6, 1)]), 0.0
    )
    following = spoken.node.take_task()
    assert following is not None
    spoken.node.finish_task(following, TaskOutcome([NewTask(0, b"", 1, owner=5)]), 0.0)
    spoken.node.abort_job("to be heard by everybody")
    said = without(spoken.said(), TaskRequest, CreditReturnMessage)
    for destination in (5, 6, 0, 3, 4):
        first, *others = heard(said, destination)
        assert first == EpochMarker(2)
        assert others
        assert not any(isinstance(message, EpochMarker) for message in others)


def test_no_marker_is_sent_in_first_epoch() -> None:
    spoken, _ = working()
    spoken.node.finish_task(task(9, owner=1), TaskOutcome([NewTask(0, b"", 1, owner=2)]), 0.0)
    assert not any(isinstance(message, EpochMarker) for _, message in spoken.said())


# What a journal is told.


def test_new_job_records_its_first_tasks_as_base() -> None:
    spoken, journal = make(0, 1, Directions(first=3))
    spoken.node.begin_job(0.0)
    assert journal.calls == [("base", 0, 3)]


def test_first_tasks_of_later_phases_are_recorded_as_spawned() -> None:
    class Later(Directions):
        def first_tasks_of_phase(self, phase: int) -> list[NewTask]:
            return [NewTask(phase, b"", 1)] if phase == 1 else []

    spoken, journal = make(0, 1, Later(phases=2))
    spoken.node.begin_job(0.0)
    spoken.node.perform_due_actions(0.0)
    assert spoken.node.phase == 1
    assert journal.calls == [("base", 0, 0), ("spawned", (1, 0, 1))]


def test_resumed_job_starts_with_remaining_tasks_and_counts() -> None:
    spoken, journal = make(0, 1, Directions(first=3))
    spoken.node.restore_tasks(0, [task(7)], (5,))
    spoken.node.begin_job(0.0)
    assert journal.calls == []
    assert spoken.node.take_task() == task(7)
    assert len(spoken.node.queue) == 0
    assert spoken.node.counters == [5]


def test_sums_of_resumed_job_reach_all_ranks_before_phase_starts() -> None:
    spoken, _ = make(0, 3)
    spoken.node.restore_tasks(0, [task(7)], (5,))
    spoken.node.begin_job(0.0)
    to_child = [message for message in heard(spoken.said(), 1) if isinstance(message, CounterQuery | StartPhaseMessage)]
    assert [type(message) for message in to_child] == [CounterQuery, StartPhaseMessage]
    child, _ = make(1, 3)
    child.hear(0, *to_child)
    assert spoken.node.totals_at_phase_start == child.node.totals_at_phase_start == (5,)


def test_deferred_note_runs_in_resumed_phase() -> None:
    spoken, _ = make(0, 1, Directions(phases=3))
    spoken.node.restore_tasks(1, [task(7, phase=0, owner=0), task(8, phase=2)], ())
    spoken.node.begin_job(0.0)
    assert spoken.node.take_task() == task(7, phase=1, owner=0)


def test_deferred_note_is_not_recorded_until_it_is_completed() -> None:
    spoken, journal = working()
    spoken.node.finish_task(task(9, owner=1), TaskOutcome([NewTask(0, b"held", 1, owner=1)], is_deferred=True), 0.0)
    assert journal.calls == []
    follower = spoken.node.take_task()
    assert follower is not None
    assert follower.id[2] == UNRECORDED
    spoken.node.finish_task(follower, TaskOutcome([NewTask(0, b"", 1)], also_done=[(1, 0, 9)]), 0.0)
    assert journal.calls == [("spawned", (1, 1, 2)), ("done", follower.id, (1, 0, 9))]


# When facts are cut.


def test_any_rank_cuts_when_its_journal_needs_a_cut() -> None:
    spoken, journal = working(2)
    journal.needs_checkpoint = True
    spoken.node.perform_due_actions(0.0)
    spoken.node.perform_due_actions(0.1)
    assert journal.cuts == [1]


def test_only_root_cuts_by_time() -> None:
    root, journal = make(0, 3, Directions(first=2), cut_interval=10.0)
    root.node.begin_job(100.0)
    root.node.take_task()
    for now in (105.0, 109.0):
        root.node.perform_due_actions(now)
    assert journal.cuts == []
    for now in (110.0, 111.0, 119.0, 121.0):
        root.node.perform_due_actions(now)
    assert journal.cuts == [1, 2]
    other, journal = working()
    other.node.perform_due_actions(1e6)
    assert journal.cuts == []


def test_cut_interval_grows_from_first_cut_to_maximum() -> None:
    root, journal = make(0, 1, Directions(first=2), cut_interval=30.0, first_cut=5.0)
    root.node.begin_job(0.0)
    root.node.take_task()
    cuts: list[int] = []
    for second in range(130):
        root.node.perform_due_actions(float(second))
        if len(journal.cuts) > len(cuts):
            cuts.append(second)
            journal.durable_epoch = journal.cuts[-1]
    assert cuts == [5, 15, 35, 65, 95, 125]


def test_no_cut_is_made_while_two_epochs_are_not_durable() -> None:
    root, journal = make(0, 1, Directions(first=2), cut_interval=1.0)
    root.node.begin_job(0.0)
    root.node.take_task()
    for second in range(10):
        root.node.perform_due_actions(float(second))
    assert journal.cuts == [1, 2]
    journal.durable_epoch = 2
    for second in range(10, 20):
        root.node.perform_due_actions(float(second))
    assert journal.cuts == [1, 2, 3, 4]


def test_no_task_starts_while_journal_must_wait_for_storage() -> None:
    root, journal = make(0, 1, Directions(first=1))
    root.node.begin_job(0.0)
    journal.must_wait_for_storage = True
    assert root.node.take_task() is None
    journal.must_wait_for_storage = False
    assert root.node.take_task() is not None
