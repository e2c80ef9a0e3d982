"""Whole jobs of real drivers in virtual time, whose tasks wait for tickets that become done in any order.

Each driver lives in a thread of its own, but only one runs at a time: it hands on to another one, which the seed
chooses, whenever it polls. What must hold at any instant is asserted by the tasks and journals themselves.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterable, Sequence
from random import Random

import pytest

from bench.simulation.network import SimulatedNetwork, SimulatedTransport
from bench.simulation.tickets import SimulatedTicket, SimulatedWake
from pcopy.engine.driver import RankDriver, TaskGenerator, TaskOutcome
from pcopy.engine.limits import EngineLimits
from pcopy.engine.messages import HaltMessage, Message
from pcopy.engine.node import RankStateMachine
from pcopy.engine.queue import TaskQueue
from pcopy.engine.safra import TERMINATION_DETECTORS
from pcopy.engine.task import ANY_RANK, NewTask, Task, TaskId, TaskShares
from pcopy.engine.ticket import WakeDescriptor
from pcopy.errors import InvariantBroken, JobAborted

HANG = 60.0
"""Seconds, real ones."""

LAST = 2
"""The last phase."""


class Baton:
    """Lets one of some threads run at a time."""

    def __init__(self, size: int, random: Random) -> None:
        self._random = random
        self._turns = [threading.Semaphore(0) for _ in range(size)]
        self._living = list(range(size))

    def begin(self) -> None:
        self._turns[0].release()

    def wait(self, rank: int) -> None:
        assert self._turns[rank].acquire(timeout=HANG), "the job hangs"

    def hand_on(self, rank: int) -> None:
        self._turns[self._random.choice(self._living)].release()
        self.wait(rank)

    def leave(self, rank: int) -> None:
        self._living.remove(rank)
        if self._living:
            self._turns[self._random.choice(self._living)].release()


class Taking:
    """A simulated transport that hands the baton on before it looks."""

    def __init__(self, transport: SimulatedTransport, baton: Baton) -> None:
        self._transport = transport
        self._baton = baton
        self.rank, self.size, self.has_unsent_data = transport.rank, transport.size, False
        self.send, self.expect_end_of_connection, self.close = (
            transport.send,
            transport.expect_end_of_connection,
            transport.close,
        )

    def poll(self, timeout: float, calm: float = 0.0, wake: WakeDescriptor | None = None) -> list[tuple[int, Message]]:
        self._baton.hand_on(self.rank)
        return self._transport.poll(timeout, calm, wake)


class Job:
    """A tree of tasks, grown as it runs; each has slices and tickets. It is its own director and everybody's journal.

    ``interrupted``: ``halt`` or ``fail``, once so many tasks have been begun.
    """

    def __init__(self, seed: int, *, interrupted: str = "", after: int = 0) -> None:
        random = self.random = Random(seed)
        self.size = random.randint(1, 5)
        self.slots = random.choice((1, 2, 4))
        self.interrupted, self.after = interrupted, after
        self.network = SimulatedNetwork(self.size, random, lambda random: random.uniform(0.0001, 0.01), wire=True)
        self.left = random.randint(5, 60)  # tasks that may still be called for
        self.called = Counter[str]()
        self.begun = 0
        self.done: set[TaskId] = set()
        self.parted: set[TaskId] = set()  # those that have spawned what was left of them
        self.divided: set[TaskId] = set()
        self.closed = 0
        self.most = 0
        self.under_way = [0] * self.size
        self.reason: HaltMessage | None = None
        self.problems: list[BaseException] = []
        self.statuses: dict[int, int] = {}
        limits = EngineLimits(
            fan_out=2,
            task_slots=self.slots,
            seconds_to_first_checkpoint_cut=0.05,
            checkpoint_cut_interval=0.2,
            progress_interval=0.05,
        )
        baton = self.baton = Baton(self.size, random)
        self.wakes = [SimulatedWake(lambda: self.network.now) for _ in range(self.size)]
        self.journals = [Journal(self, rank) for rank in range(self.size)]
        self.nodes = [
            RankStateMachine(
                rank,
                self.size,
                run=1,
                counters=1,
                director=self,
                random=Random(seed + rank),
                queue=TaskQueue(limits),
                limits=limits,
                termination=random.choice(TERMINATION_DETECTORS) if self.size == 1 else TERMINATION_DETECTORS[seed % 2],
                journal=self.journals[rank],
                divide=self.divide,
            )
            for rank in range(self.size)
        ]
        self.drivers = [
            RankDriver(
                self.nodes[rank],
                Taking(self.network.endpoint(rank), baton),
                lambda task, rank=rank: self.run_task(task, rank),  # type: ignore[misc]
                host="here",
                stop_reason=lambda rank=rank: self.reason if rank == self.size - 1 else None,  # type: ignore[misc]
                clock=lambda: self.network.now,
                wake=self.wakes[rank],
            )
            for rank in range(self.size)
        ]

    # The director.

    def first_tasks_of_phase(self, phase: int) -> Iterable[NewTask]:
        return [self.spawn(phase) for _ in range(3)]

    def next_phase(self, phase: int, totals: tuple[int, ...]) -> int | None:
        assert sum(self.under_way) == 0, f"phase {phase} ends while tasks are under way"
        assert totals == (len(self.done),)
        return phase + 1 if phase < LAST else None

    def status(self, totals: tuple[int, ...], halted: HaltMessage | None) -> int:
        assert sum(self.under_way) == 0
        assert totals == (len(self.done),)
        return 75 if halted else 0

    # The tasks. A payload is a kind: work, work for one rank, or a note.

    def spawn(self, phase: int) -> NewTask:
        owner = self.random.choice((ANY_RANK, ANY_RANK, self.random.randrange(self.size)))
        kind = "work" if owner == ANY_RANK else "note"
        self.left -= 1
        self.called[kind] += 1
        return NewTask(phase, kind.encode(), self.random.randint(1, 9), self.random.random() < 0.3, owner)

    def divide(self, task: Task, hungry: bool) -> Sequence[NewTask]:
        """Half of those whose cost allows it have two portions."""
        assert task.owner == ANY_RANK
        if task.cost < 2 or self.random.random() < 0.5:
            return ()
        self.divided.add(task.id)
        self.called["work"] += 1
        return [NewTask(task.phase, task.payload, cost, task.may_find_work) for cost in (1, task.cost - 1)]

    def run_task(self, task: Task, rank: int) -> TaskGenerator:
        random, node = self.random, self.nodes[rank]
        assert task.id not in self.done | self.divided
        assert task.phase == node.phase
        self.begun += 1
        self.under_way[rank] += 1
        is_note = task.payload == b"note"  # which needs no slot
        assert self.under_way[rank] <= self.slots + is_note
        if not is_note:
            self.most = max(self.most, *self.under_way)
        mine: list[SimulatedTicket] = []
        try:
            if self.interrupted and self.begun == self.after:
                if self.interrupted == "fail":
                    raise ValueError("the reason of it all")
                self.reason = HaltMessage("requested to stop")
            for _ in range(random.randint(0, 4)):
                self.network.advance(random.choice((0.0, 0.0, 0.001, 0.01)))
                if task.payload == b"note" or random.random() < 0.4:
                    yield None
                    continue
                mine.append(self.wakes[rank].submit(random.uniform(0.0, 0.3), random.uniform(0.0, 0.1)))
                yield mine[-1]
                assert mine[-1].is_done
                if mine[-1].was_cut_short:
                    self.parted.add(task.id)
                    return TaskOutcome((NewTask(*task[1:]),))
            count = min(random.choice((0, 1, 3)), max(self.left, 0))
            self.done.add(task.id)
            return TaskOutcome(
                [self.spawn(min(LAST, task.phase + random.choice((0, 0, 1)))) for _ in range(count)], (1,)
            )
        finally:
            assert all(ticket.is_done for ticket in mine), "over, or closed, while a ticket is under way"
            self.under_way[rank] -= 1
            self.closed += 1

    # The ranks.

    def _run_rank(self, rank: int) -> None:
        self.baton.wait(rank)
        try:
            self.statuses[rank] = self.drivers[rank].run()
        except JobAborted:
            self.statuses[rank] = 70
        except BaseException as problem:
            self.problems.append(problem)
        self.baton.leave(rank)

    def play(self) -> Job:
        threads = [threading.Thread(target=self._run_rank, args=(rank,), daemon=True) for rank in range(self.size)]
        for thread in threads:
            thread.start()
        self.baton.begin()
        for thread in threads:
            thread.join(HANG)
            assert not thread.is_alive(), "the job hangs"
        for problem in self.problems:
            raise problem
        assert self.closed == self.begun
        assert self.under_way == [0] * self.size
        return self


class Journal:
    """One rank's; all that it is told is on storage at once. It checks what it is told, and when."""

    has_lost_data = has_failed = must_wait_for_storage = False

    def __init__(self, job: Job, rank: int) -> None:
        self._job = job
        self._rank = rank
        self._cut = 0
        self.durable_epoch = 0
        self.cuts_while_tasks_wait = 0

    @property
    def needs_checkpoint(self) -> bool:
        return self._job.random.random() < 0.02

    def record_initial_tasks(self, phase: int, tasks: Sequence[Task]) -> None: ...

    def record_spawned_task(self, task: Task) -> None: ...

    def record_done_task(
        self, task: Task, counts: Sequence[int], completed: Sequence[TaskId], shares: TaskShares = ()
    ) -> None:
        if task.id in self._job.divided:
            assert not any(counts)
        elif task.id not in self._job.done | self._job.parted:
            raise InvariantBroken(f"{task.id} is a fact before its end")

    def end_epoch(self, epoch: int, phase: int) -> None:
        assert epoch == self._cut + 1
        self._cut = self.durable_epoch = epoch
        self.cuts_while_tasks_wait += self._job.under_way[self._rank] > 0

    def abandon_records(self) -> None:
        raise AssertionError("nobody has given up")


SEEDS = range(60)


@pytest.fixture(scope="module")
def whole() -> list[Job]:
    return [Job(seed).play() for seed in SEEDS]


def test_every_job_completes_all_tasks(whole: list[Job]) -> None:
    for job in whole:
        assert set(job.statuses.values()) == {0}
        assert len(job.done) == sum(job.called.values()) == sum(node.counters[0] for node in job.nodes)
        assert not job.parted


def test_random_jobs_cover_all_situations(whole: list[Job]) -> None:
    assert {(job.slots, job.most) for job in whole} >= {(1, 1), (2, 2), (4, 4)}
    assert sum(journal.cuts_while_tasks_wait for job in whole for journal in job.journals) > 20
    assert sum(job.called["note"] for job in whole) > 100
    assert sum(len(job.divided) for job in whole) > 100


@pytest.mark.parametrize("seed", SEEDS)
def test_job_stopped_at_any_task_accounts_for_all_tasks(seed: int, whole: list[Job]) -> None:
    """What was called for is done, dropped, or has parted: then what was left of it is dropped."""
    job = Job(seed, interrupted="halt", after=1 + seed % whole[seed].begun).play()
    (status,) = set(job.statuses.values())
    if status == 0:  # the order came too late
        assert len(job.done) == sum(job.called.values())
        return
    assert status == 75
    dropped = sum(node.dropped_count for node in job.nodes)
    assert sum(job.called.values()) == len(job.done) + dropped


@pytest.mark.parametrize("seed", SEEDS)
def test_job_with_failing_task_ends_on_all_ranks(seed: int, whole: list[Job]) -> None:
    job = Job(seed, interrupted="fail", after=1 + seed % whole[seed].begun).play()
    assert set(job.statuses.values()) == {70}
    assert set(job.statuses) == set(range(job.size))
