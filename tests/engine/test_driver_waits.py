"""The driver waits for tickets beside its transport, one rule at a time (``pcopy.engine.ticket``)."""

from __future__ import annotations

import re
import time
from collections import deque
from collections.abc import Callable, Iterable

import pytest

from pcopy.engine import driver
from pcopy.engine.driver import STOPPED_TASK_GRACE_SECONDS, RankDriver, TaskGenerator, TaskOutcome
from pcopy.engine.limits import EngineLimits
from pcopy.engine.messages import (
    AddressedTasksMessage,
    CloseTransportMessage,
    CreditReturnMessage,
    EndJobMessage,
    HaltMessage,
    Message,
    StartPhaseMessage,
    TaskReply,
    TaskRequest,
)
from pcopy.engine.task import NewTask, Task
from pcopy.engine.termination import CREDITS_PER_MESSAGE
from pcopy.engine.ticket import WakeDescriptor
from pcopy.errors import EXIT_INTERNAL, JobAborted
from tests.engine.spoken import Directions, Spoken, node_of
from tests.engine.test_epochs import FakeJournal
from tests.engine.test_tickets import TWO


@pytest.fixture(autouse=True)
def slice_of_five_ticks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tasks run for five calls of the clock (``Stage.clock``) until the transport is polled."""
    monkeypatch.setattr(driver, "TASK_SLICE_SECONDS", 0.005)


class Chosen:
    """A ticket that becomes done when the test says so."""

    def __init__(self) -> None:
        self.is_done = False
        self.cancelled = 0

    def cancel(self) -> None:
        self.cancelled += 1


class Stage:
    """One driver on rank 1 of 3 whose polls hand out what the test has prepared, and which notes what it runs."""

    rank, size, has_unsent_data = 1, 3, False

    def __init__(self, limits: EngineLimits, *steps: Callable[[], Iterable[Message]]) -> None:
        self._steps = deque(steps)
        self._left = 5000  # polls after the last step
        self.now = 0.0
        self.said: list[Message] = []
        self.story: list[str] = []
        self.tickets: dict[bytes, list[Chosen]] = {}
        self.journal = FakeJournal()
        self.node = node_of(1, 3, limits, journal=self.journal)
        self.reason: HaltMessage | None = None
        self.driver = RankDriver(
            self.node, self, self.run_task, host="here", clock=self.clock, stop_reason=lambda: self.reason, wake=self
        )

    def clock(self) -> float:
        self.now += 0.001
        return self.now

    # The task, whose payload is a letter for each step: s(lice), w(ait), f(ail), x (spawns itself).

    def run_task(self, task: Task) -> TaskGenerator:
        name = task.payload[:1].decode()
        tickets = self.tickets.setdefault(task.payload[:1], [])
        spawned = []
        try:
            for letter in task.payload[1:].decode():
                self.story.append(name + letter)
                if letter == "s":
                    self.now += 1.0
                    yield None
                elif letter == "w":
                    tickets.append(Chosen())
                    yield tickets[-1]
                elif letter == "x":
                    spawned.append(NewTask(0, b"z", 1))
                else:
                    raise ValueError("the reason of it all")
            self.story.append(name + ".")
            return TaskOutcome(spawned, (1,))
        finally:
            assert all(ticket.is_done for ticket in tickets), "closed while a ticket is under way"
            self.story.append(name + "/")

    # The transport, and the wake.

    def send(self, destination: int, message: Message) -> None:
        self.said.append(message)

    def poll(self, timeout: float, calm: float = 0.0, wake: WakeDescriptor | None = None) -> list[tuple[int, Message]]:
        self.timeout = timeout
        assert wake is self or self.node.abort_reason is not None
        self._left -= not self._steps
        assert self._left, "the test has nothing more to say"
        arrived = [(0, message) for message in self._steps.popleft()()] if self._steps else []
        self.story.append("|")
        return arrived

    def fileno(self) -> int:
        return -1

    def clear(self) -> None:
        self.story.append("-")

    def expect_end_of_connection(self, rank: int) -> None: ...

    def close(self) -> None: ...

    def done(self, name: bytes) -> list[Message]:
        self.tickets[name][-1].is_done = True
        return []

    @property
    def reported(self) -> str:
        return "".join(each for each in self.story if each not in "|-")


def begin(*payloads: bytes, owner: int = -1) -> Callable[[], list[Message]]:
    tasks = tuple(Task((1, 0, number), 0, payload, 1, False, owner) for number, payload in enumerate(payloads, 1))
    return lambda: [StartPhaseMessage(0), AddressedTasksMessage(0, tasks)]


def nothing() -> list[Message]:
    return []


END: tuple[Callable[[], list[Message]], ...] = (lambda: [EndJobMessage(0)], lambda: [CloseTransportMessage()])


def ends(stage: Stage, status: int = 0) -> None:
    """The requests of a rank that is idle are refused, or else it would not close."""
    send = stage.send

    def refusing(destination: int, message: Message) -> None:
        if isinstance(message, TaskRequest):
            stage._steps.appendleft(lambda: [TaskReply(message.phase, message.sequence, ())])
        send(destination, message)

    stage.send = refusing  # type: ignore[method-assign]
    assert stage.driver.run() == status


def test_other_tasks_run_while_one_waits_and_each_resumes_after_its_ticket() -> None:
    first = begin(b"zw", b"aw", b"bw", b"c")  # of which the newest is begun first
    stage: Stage
    done = (lambda: stage.done(b"b"), lambda: stage.done(b"a"), lambda: stage.done(b"z"))
    stage = Stage(TWO, first, nothing, *done, *END)
    ends(stage)
    assert stage.reported == "c.c/bwawb.b/zwa.a/z.z/"
    assert stage.node.counters == [4]


def test_completed_ticket_resumes_task_without_poll() -> None:
    class Done(Chosen):
        def __init__(self) -> None:
            super().__init__()
            self.is_done = True

    stage = Stage(TWO, begin(b"aww"), *END)

    def run_task(task: Task) -> TaskGenerator:
        yield Done()
        yield Done()
        return TaskOutcome((), (1,))

    stage.driver._run_task = run_task
    ends(stage)
    assert stage.node.counters == [1]


def test_rank_with_only_waiting_tasks_sleeps_until_wake() -> None:
    timeouts: list[float] = []

    def asleep() -> list[Message]:
        timeouts.append(stage.timeout)
        return []

    one = EngineLimits(fan_out=2, task_slots=1)
    stage = Stage(one, begin(b"aw"), asleep, asleep, lambda: asleep() or stage.done(b"a"), *END)
    ends(stage)
    assert min(timeouts) > 0.1
    assert stage.reported == "awa.a/"
    for before, after in zip(stage.story, stage.story[1:], strict=False):
        assert before != "|" or after == "-"  # cleared before a ticket is looked at


def test_task_is_recorded_only_after_it_is_complete() -> None:
    def nothing_told() -> list[Message]:
        assert stage.journal.calls == []
        assert stage.node.counters == [0]
        return stage.done(b"a")

    stage = Stage(TWO, begin(b"axwxw"), nothing_told, nothing_told, *END)
    ends(stage)
    assert [fact[0] for fact in stage.journal.calls][:3] == ["spawned", "spawned", "done"]


def test_note_that_waits_for_ticket_aborts_job() -> None:
    """It fails as what breaks a rule does, and is closed only when its ticket is done."""
    stage = Stage(TWO, begin(b"nw", owner=1), nothing, lambda: stage.done(b"n"))
    with pytest.raises(JobAborted) as caught:
        stage.driver.run()
    assert caught.value.status == EXIT_INTERNAL
    assert stage.node.abort_reason is not None
    assert "rank 1: a note must not wait for a ticket" in stage.node.abort_reason.text
    assert stage.tickets[b"n"][0].cancelled
    assert stage.reported == "nwn/"


def test_stop_lets_waiting_task_end_and_drops_runnable_one() -> None:
    """b waits when the order comes; a is between two slices; b spawns what is left of it, and may even wait again."""

    stage: Stage

    def still_waits() -> list[Message]:
        assert all(ticket.cancelled for ticket in stage.tickets[b"b"])
        assert "b/" not in stage.reported
        return []

    halt = (nothing, lambda: [HaltMessage("signal")], still_waits, lambda: stage.done(b"b"), nothing, still_waits)
    stage = Stage(TWO, begin(b"assssss", b"bwsxw"), *halt, lambda: stage.done(b"b"), *END)
    ends(stage)
    assert re.fullmatch(r"bw(as)+a/bsbxbwb\.b/", stage.reported)
    assert stage.node.counters == [1]
    assert stage.node.dropped_count == 2  # a, and what b has left
    assert [fact[0] for fact in stage.journal.calls] == ["spawned", "done"]


def test_stop_drops_task_that_runs_too_long_after_its_ticket() -> None:
    """b goes on when its ticket is done, and then takes longer than the patience, a second for each slice."""
    slices = int(STOPPED_TASK_GRACE_SECONDS) + 20
    stage = Stage(
        TWO, begin(b"b" + b"w" + b"s" * slices), nothing, lambda: [HaltMessage("signal")], lambda: stage.done(b"b"),
        *[nothing] * slices, *END,
    )  # fmt: skip
    ends(stage)
    assert STOPPED_TASK_GRACE_SECONDS <= stage.reported.count("bs") <= STOPPED_TASK_GRACE_SECONDS + 1
    assert stage.node.dropped_count == 1
    assert stage.node.counters == [0]


def test_stop_drops_note_that_may_wait_for_storage() -> None:
    """The other note is run to its end."""
    stage = Stage(
        TWO, begin(b"assssssssss", b"bs", owner=1), nothing, lambda: [HaltMessage("signal")], *[nothing] * 5, *END
    )
    stage.node.queue._is_slow_note = lambda task: task.payload.startswith(b"a")
    ends(stage)
    assert re.fullmatch(r"(as)+a/bsb\.b/", stage.reported)
    assert (stage.node.dropped_count, [task.payload[:1] for task in stage.node.queue.pop_dropped()]) == (1, [b"a"])


def test_stopping_rank_that_waits_for_others_keeps_polling_stop_reason() -> None:
    """It is asked for a reason to stop all the time, by which a watchdog sees that it lives."""
    asked: list[float] = []

    def count() -> list[Message]:
        asked.append(looks)
        return []

    looks = 0.0
    stage = Stage(TWO, begin(b"bs"), lambda: [HaltMessage("signal")], count, *[nothing] * 10, count, *END)

    def look() -> None:
        nonlocal looks
        looks += 1

    stage.driver._stop_reason = look
    ends(stage)
    before, after = asked
    assert after - before >= 10


def test_abort_is_sent_immediately_but_waiting_task_closes_after_its_ticket() -> None:
    stage = Stage(TWO, begin(b"cf", b"bw"), *[nothing] * 4000)  # more than the time for which it tells others

    def heard() -> list[Message]:
        assert "AbortMessage" in [type(message).__name__ for message in stage.said]
        assert stage.tickets[b"b"][0].cancelled == 1
        assert "b/" not in stage.reported
        return stage.done(b"b")

    stage._steps[-1] = heard
    with pytest.raises(JobAborted, match="the reason of it all"):
        stage.driver.run()
    assert stage.reported == "bwcfc/b/"


def test_transport_failure_closes_waiting_task_only_after_its_ticket() -> None:
    def fail() -> list[Message]:
        if time.monotonic() > began + 0.05:
            stage.done(b"b")
        raise OSError("no network")

    began = time.monotonic()
    stage = Stage(TWO, begin(b"bw"), *[fail] * 100)
    with pytest.raises(JobAborted):
        stage.driver.run()
    assert stage.reported == "bwb/"


def test_phase_is_not_terminated_while_root_task_waits_for_ticket() -> None:
    """A root whose only task waits does not collect its sums."""
    spoken = Spoken(0, 3, Directions(first=1), limits=TWO)
    spoken.node.begin_job(0.0)
    taken = spoken.node.take_task()
    assert taken is not None
    spoken.node.begun_tasks.suspend_task(taken)
    for rank in (1, 2):
        spoken.hear(rank, CreditReturnMessage(0, CREDITS_PER_MESSAGE))
    assert not spoken.node._detector.is_phase_over_on_all_ranks
    spoken.node.begun_tasks.resume_task(taken)
    spoken.node.finish_task(taken, TaskOutcome((), (1,)), 0.0)
    assert spoken.node._detector.is_phase_over_on_all_ranks
