"""Whole jobs in one process and in virtual time: many nodes, their network, and what they are made to run.

What must run, where and in which phase follows from the plan alone, without asking the engine. ``Simulation`` plays
the driver's part: a rank hears nothing while it runs a slice. Whatever can be wrong at one instant is asserted at that
instant; what must hold at the end is in ``tests/engine/test_node.py``.
"""

from __future__ import annotations

import heapq
import io
import math
from collections import Counter, deque
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from random import Random
from typing import BinaryIO

from bench.simulation.network import SimulatedNetwork
from pcopy.engine.backlog import OpenSpool
from pcopy.engine.limits import EngineLimits
from pcopy.engine.messages import AbortMessage, AddressedTasksMessage, HaltMessage, Message, TaskReply, encode_message
from pcopy.engine.node import RankStateMachine
from pcopy.engine.queue import TaskQueue
from pcopy.engine.states import RankState
from pcopy.engine.steering import NullRankSteering, RankSteering
from pcopy.engine.task import ANY_RANK, NewTask, Task
from pcopy.engine.ticket import TaskOutcome
from tests.engine.plans import Interruption, Network, Plan, share, unpacked

MOST_EVENTS = 500_000
ENDED = (RankState.CLOSED, RankState.ABORTED)

SMALL = EngineLimits(
    message_bytes=700,
    scan_ahead_bytes=1000,
    queue_memory_bytes=1500,
    first_steal_wait=0.0005,
    longest_steal_wait=0.032,
    progress_interval=0.02,
    fan_out=2,
)
"""Limits that a few dozen tasks reach."""


class _Rank:
    def __init__(self, node: RankStateMachine, slowness: float) -> None:
        self.node = node
        self.slowness = slowness
        self.inbox: deque[tuple[int, Message]] = deque()
        self.task: Task | None = None
        self.slices = 0
        self.in_slice = False
        self.wake = math.inf
        self.notes_bytes = 0


class Simulation:
    """One job. It is its own director: the phases of the plan (and 0) one after the other."""

    def __init__(
        self,
        plan: Plan,
        size: int,
        seed: int,
        *,
        limits: EngineLimits = SMALL,
        network: Network = Network(),  # noqa: B008 (an immutable value)
        slowest: float = 1.0,
        interruption: Interruption | None = None,
        open_spool: OpenSpool = io.BytesIO,
        termination: str = "tree",
        whole: float = 0.3,
        steering: Callable[[int], RankSteering] = lambda rank: NullRankSteering(),
    ) -> None:
        """``whole``: the part of the tasks with several items that are not to be divided, when that is asked for."""
        self.spools: list[BinaryIO] = []
        self._new_spool = open_spool
        self.plan = plan
        self.size = size
        self.limits = limits
        self.network = network
        self.slowest = slowest
        self.random = Random(seed)
        self.whole = whole
        self.interruption = interruption
        self.interrupted_in: RankState | None = None
        self.transport = SimulatedNetwork(size, self.random, network.latency, wire=True)
        self.ranks = [
            _Rank(
                RankStateMachine(
                    rank,
                    size,
                    run=3,
                    counters=2,
                    director=self,
                    random=Random(seed + rank),
                    queue=TaskQueue(limits, self._open_spool),
                    limits=limits,
                    termination=termination,
                    divide=self._divide,
                    steering=steering(rank),
                ),
                self.random.choice((1.0, 1.0, slowest)),
            )
            for rank in range(size)
        ]
        self.nodes = [rank.node for rank in self.ranks]
        for node in self.nodes:
            node.barrier.combine_reports = partial(_last_words, node.rank)
        self.now = 0.0
        self.events = 0
        self.sent: Counter[str] = Counter()
        self.phase_ends: list[tuple[int, tuple[int, ...], float]] = []
        self.started: dict[tuple[int, int], int] = {}
        self.done: dict[int, float] = {}
        self.numbered = 0
        self.divided = 0
        self.ended = 0  # tasks, portions among them
        self._cost = 0  # of those
        self._items = [0] * len(plan)  # done
        self._children: dict[int, list[int]] = {}
        for number, planned in enumerate(plan):
            self._children.setdefault(planned.parent, []).append(number)
        self._undone = Counter(planned.phase for planned in plan)
        self._ids: set[tuple[int, int, int]] = set()
        self._timers: list[tuple[float, int, int, bool]] = []
        self._timers_set = 0

    def __repr__(self) -> str:
        return f"{self.plan!r} on {self.size} ranks: {self.limits}, {self.network}, {self.interruption}"

    def _open_spool(self) -> BinaryIO:
        self.spools.append(self._new_spool())
        return self.spools[-1]

    # The director.

    def next_phase(self, phase: int, totals: tuple[int, ...]) -> int | None:
        self._check_phase_over(phase, totals)
        return min((planned.phase for planned in self.plan if planned.phase > phase), default=None)

    def first_tasks_of_phase(self, phase: int) -> Iterable[NewTask]:
        return self._spawns(number for number in self._children.get(-1, ()) if self.plan[number].phase == phase)

    def status(self, totals: tuple[int, ...], halted: HaltMessage | None) -> int:
        assert totals == self.true_totals()
        return totals[0] + (0 if halted is None else 1000)

    # What must hold at any moment.

    def true_totals(self) -> tuple[int, ...]:
        return len(self.done), self._cost

    def _check_phase_over(self, phase: int, totals: tuple[int, ...]) -> None:
        over = {number for number, planned in enumerate(self.plan) if planned.phase <= phase}
        assert set(self.done) == over, f"phase {phase} ended too early, or tasks of later ones ran"
        assert totals == self.true_totals()
        assert all(rank.task is None for rank in self.ranks)
        self.phase_ends.append((phase, totals, self.now))

    def _check_start(self, rank: _Rank, task: Task) -> None:
        number, start, end = unpacked(task)
        planned = self.plan[number]
        for item in range(start, end):
            assert (number, item) not in self.started, f"task {number} runs again"
            self.started[number, item] = rank.node.rank
        assert task.id not in self._ids
        assert (task.phase, task.owner, task.may_find_work) == (planned.phase, planned.owner, planned.expands)
        assert task.cost == share(planned, start, end)
        assert len(task.payload) == 6 + planned.padding
        assert task.owner in (ANY_RANK, rank.node.rank), f"task {number} runs on a rank that isn't its owner"
        begun_with = self.phase_ends[-1][1] if self.phase_ends else (0, 0)
        assert rank.node.totals_at_phase_start == begun_with, (
            f"rank {rank.node.rank} does not know the sums of phase {task.phase}"
        )
        assert task.phase == rank.node.phase, f"task {number} of phase {task.phase} runs in {rank.node.phase}"
        assert not any(count for phase, count in self._undone.items() if phase < task.phase)
        self._ids.add(task.id)

    def _check_message(self, source: int, destination: int, message: Message) -> None:
        assert destination != source
        if isinstance(message, AddressedTasksMessage | TaskReply) and message.tasks:
            footprint = sum(task.memory_use_in_bytes for task in message.tasks)
            assert footprint <= self.limits.message_bytes or len(message.tasks) == 1
            assert len(encode_message(message)) <= footprint + 64
            self.sent["work"] += 1
        self.sent[type(message).__name__] += 1

    # The drivers.

    def run(self, *, seconds: float | None = None) -> Simulation:
        """Plays the job to its end; fails if that takes more than ``seconds`` of virtual time."""
        bound = self._bound() if seconds is None else seconds
        self.nodes[0].begin_job(0.0)
        for rank in self.ranks:
            self._turn(rank)
        while (event := min(self.transport.next_event_time(), self._next_timer())) < math.inf:
            if all(node.state in ENDED for node in self.nodes) and math.isinf(self.transport.next_event_time()):
                break  # what is left are alarm clocks
            assert event <= bound, f"not over after {bound} s: {[node.state.value for node in self.nodes]}"
            self.now = event
            self.events += 1
            assert self.events < MOST_EVENTS, "the ranks spin without getting on"
            if self.interruption is not None and self.events == self.interruption.event:
                self._interrupt(self.ranks[self.interruption.rank], self.interruption.kind)
            self._happen()
        self._check_end()
        return self

    def _bound(self) -> float:
        """What a job may take at most: all its tasks one by one, each message of work alone, and for each phase one
        message after the other through all ranks, the questions for its counters and the barrier.
        """
        serial = sum(planned.slices * planned.seconds * planned.items for planned in self.plan) * self.slowest
        phases = 1 + len({planned.phase for planned in self.plan})
        hops = 3 * sum(planned.items for planned in self.plan) + phases * (10 * self.size + 40)
        return serial + hops * self.network.worst + phases * (2 * self.limits.progress_interval)

    def _next_timer(self) -> float:
        return self._timers[0][0] if self._timers else math.inf

    def _happen(self) -> None:
        if self.transport.next_event_time() <= self._next_timer():
            for _, destination, source, message in self.transport.deliver(self.now):
                rank = self.ranks[destination]
                assert rank.node.state is not RankState.CLOSED or isinstance(message, AbortMessage), (
                    f"{message} after the end"
                )
                rank.inbox.append((source, message))
                if not rank.in_slice:
                    self._turn(rank)
        else:
            _, _, number, slice_over = heapq.heappop(self._timers)
            rank = self.ranks[number]
            if slice_over:
                rank.in_slice = False
                self._turn(rank, slice_over=True)
            elif not rank.in_slice and rank.wake <= self.now:
                self._turn(rank)

    def _turn(self, rank: _Rank, *, slice_over: bool = False) -> None:
        """What a driver does between two slices, in either order."""
        node = rank.node
        messages_first = self.random.random() < 0.5
        if messages_first:
            self._receive(rank)
        if slice_over and node.state not in ENDED:
            self._end_slice(rank)
        if not messages_first:
            self._receive(rank)
        if node.state not in ENDED:
            if node.halt_reason is not None and rank.task is not None and node.queue.is_work(rank.task):
                node.drop_task(rank.task, self.now)
                rank.task = None
            node.perform_due_actions(self.now)
            self._begin_slice(rank)
        while node.outbox:
            destination, message = node.outbox.popleft()
            self._check_message(node.rank, destination, message)
            self.transport.send(node.rank, destination, message, self.now)
        rank.wake = math.inf
        if not rank.in_slice and node.state not in ENDED and (wake := node.next_due_action_time()) < math.inf:
            rank.wake = max(wake, self.now)
            self._set_timer(rank, rank.wake, slice_over=False)

    def _receive(self, rank: _Rank) -> None:
        while rank.inbox:
            rank.node.receive_message(*rank.inbox.popleft(), self.now)

    def _begin_slice(self, rank: _Rank) -> None:
        if rank.task is None:
            rank.task = rank.node.take_task()
            if rank.task is None:
                return
            self._check_start(rank, rank.task)
            rank.slices = self.plan[unpacked(rank.task)[0]].slices
        rank.slices -= 1
        rank.in_slice = True
        planned = self.plan[unpacked(rank.task)[0]]
        self._set_timer(rank, self.now + planned.seconds * rank.slowness, slice_over=True)

    def _end_slice(self, rank: _Rank) -> None:
        assert rank.task is not None
        if rank.slices:
            rank.node.begun_tasks.record_executed_task_slice(rank.task)
            return
        number, start, end = unpacked(rank.task)
        planned = self.plan[number]
        task, rank.task = rank.task, None
        self.ended += 1
        self._cost += task.cost
        self._items[number] += end - start
        is_done = self._items[number] == planned.items
        if is_done:
            self.done[number] = self.now
            self._undone[planned.phase] -= 1
        spawned = list(self._spawns(self._children.get(number, ()))) if is_done else []
        rank.node.finish_task(task, TaskOutcome(spawned, (int(is_done), task.cost)), self.now)

    def _divide(self, task: Task, hungry: bool) -> list[NewTask]:
        """Most of those that can be divided have two portions."""
        number, start, end = unpacked(task)
        middle = (start + end) // 2
        assert task.owner == ANY_RANK
        if middle == start or self.random.random() < self.whole:
            return []
        self.divided += 1
        self.numbered += 1
        return [self._spawn(number, start, middle), self._spawn(number, middle, end)]

    def _spawn(self, number: int, start: int, end: int) -> NewTask:
        planned = self.plan[number]
        payload = number.to_bytes(4, "big") + bytes((start, end)) + bytes(planned.padding)
        return NewTask(planned.phase, payload, share(planned, start, end), planned.expands, planned.owner)

    def _spawns(self, numbers: Iterable[int]) -> Iterable[NewTask]:
        for number in numbers:
            planned = self.plan[number]
            spawn = self._spawn(number, 0, planned.items)
            self.numbered += 1
            if planned.owner != ANY_RANK:
                self.ranks[planned.owner].notes_bytes += Task((0, 0, 0), *spawn).memory_use_in_bytes
            yield spawn

    def _set_timer(self, rank: _Rank, at: float, *, slice_over: bool) -> None:
        self._timers_set += 1
        heapq.heappush(self._timers, (at, self._timers_set, rank.node.rank, slice_over))

    def _interrupt(self, rank: _Rank, kind: str) -> None:
        self.interrupted_in = rank.node.state
        if rank.node.state in ENDED:
            return
        if kind == "halt":
            rank.node.halt_job(HaltMessage("stopped by the test"), self.now)
            rank.node.halt_job(HaltMessage("stopped by the test"), self.now)
        else:
            rank.node.abort_job("Traceback of the test")
        if not rank.in_slice:
            self._turn(rank)

    def _check_end(self) -> None:
        assert self.transport.messages_sent == self.transport.messages_delivered
        assert not any(rank.inbox for rank in self.ranks if not rank.in_slice)
        if not any(node.state is RankState.ABORTED for node in self.nodes):
            assert not any(rank.task or len(rank.node.queue) for rank in self.ranks)
            assert all(spool.closed for spool in self.spools)
            self._check_words()

    def _check_words(self) -> None:
        """The root has heard of each rank once; what was taken was given, and every task has ended somewhere."""
        assert sorted(self.nodes[0].barrier.combined_report) == list(range(self.size))
        work = [node.begun_tasks for node in self.nodes]
        assert sum(each.received_count for each in work) == sum(each.given_count for each in work)
        ended = sum(each.ended_count for each in work)
        assert ended == self.ended or (ended > self.ended and self.nodes[0].halt_reason is not None)  # what was dropped


def _last_words(rank: int, below: Sequence[bytes]) -> bytes:
    """Which ranks have spoken: there are no more than 256."""
    return bytes([rank]) + b"".join(below)
