"""The event loop of the simulation: real nodes on a simulated network, each with a driver that runs in virtual time.

A rank does what ``pcopy.engine.driver`` does: it processes received messages, sends pending ones, then runs tasks and
slices of tasks until 5 ms have passed or the end of a task creates messages to send. During a slice it receives
nothing, so that the whole slice can be simulated at its begin. A task of many slices is not woken for each of them: the
rank checks for messages at the end of the slice in which one arrived. So there is one event for each message, for each
slice in which a task ends, and for each time at which an idle rank tries to steal again.
"""

from __future__ import annotations

import heapq
import math
from collections import deque
from collections.abc import Callable, Iterable
from random import Random
from typing import NamedTuple

from bench.simulation.network import SimulatedNetwork
from bench.simulation.workloads import Workload
from pcopy.engine.driver import TASK_SLICE_SECONDS
from pcopy.engine.limits import EngineLimits
from pcopy.engine.messages import CounterQuery, EndJobMessage, HaltMessage, Message, TaskReply
from pcopy.engine.node import RankStateMachine
from pcopy.engine.queue import TaskQueue
from pcopy.engine.states import RankState
from pcopy.engine.task import NewTask, Task
from pcopy.engine.ticket import TaskOutcome
from pcopy.errors import InvariantBroken

NEVER = math.inf
"""The time of an event that will not occur."""


class Machine(NamedTuple):
    """The simulated hardware: ``size`` ranks, of which ``slow`` ones need ``slowness`` times as long for everything.

    ``latency`` returns the travelling time of a message. A rank needs ``handling`` seconds to process a message, and a
    task yields every ``block`` seconds.
    """

    size: int
    latency: Callable[[Random], float]
    handling: float = 20e-6
    block: float = 1e-3
    slow: int = 0
    slowness: float = 10.0


class _Rank:
    """A node with the state of its driver. All times are virtual seconds."""

    __slots__ = (
        "check_interval",
        "clock",
        "first_check",
        "inbox",
        "is_busy",
        "most_tasks",
        "node",
        "received",
        "slowness",
        "task",
        "task_end",
        "wake",
    )

    def __init__(self, node: RankStateMachine, slowness: float, block: float) -> None:
        self.node = node
        self.slowness = slowness
        self.clock = 0.0  # up to which its actions are simulated; in the future while it runs a slice
        self.inbox: deque[tuple[int, Message]] = deque()
        self.wake = NEVER
        self.is_busy = False  # in a slice, until ``wake``; or in ``task``
        self.task: Task | None = None  # a task of many slices
        self.task_end = 0.0  # the end of ``task``
        self.first_check = 0.0  # the first time at which ``task`` checks for messages,
        self.check_interval = (
            block * slowness * math.ceil(TASK_SLICE_SECONDS / (block * slowness))
        )  # and the interval of the next ones
        self.received = 0
        self.most_tasks = 0

    def next_check_after(self, at: float) -> float:
        """Return the first time after ``at`` at which the task checks for messages; infinite if it ends before that."""
        look_up = self.first_check if at <= self.first_check else at + (self.first_check - at) % self.check_interval
        return look_up if look_up < self.task_end else NEVER


class SimulationResult(NamedTuple):
    """The results of a simulated job. Times are virtual seconds since the start.

    ``work`` is in seconds of a rank of normal speed. ``speed`` is the sum over all ranks, to which a normal one adds 1.
    The last task ended at ``last_end``. The root's detector noticed that at ``detected``, its director had exact totals
    at ``counted``, and the last rank received the message to stop at ``stopped``. ``most_…`` are maxima over the ranks.
    """

    size: int
    tasks: int
    work: float
    speed: float
    last_end: float
    detected: float
    counted: float
    stopped: float
    steals: int
    refused: int
    messages: int
    most_messages: int
    most_tasks: int
    most_bytes: int
    events: int

    @property
    def efficiency(self) -> float:
        """The work, relative to what all ranks at their speeds could have done until the last one was stopped."""
        return self.work / (self.speed * self.stopped)


class Cluster:
    """The simulation of one job with one phase. It is the director of that job, too."""

    def __init__(
        self,
        workload: Workload,
        machine: Machine,
        seed: int,
        limits: EngineLimits = EngineLimits(),  # noqa: B008 (an immutable value)
        termination: str = "tree",
    ) -> None:
        random = Random(seed)
        self.workload = workload
        self.machine = machine
        self.network = SimulatedNetwork(machine.size, random, machine.latency)
        slow = set(random.sample(range(machine.size), machine.slow))
        self._ranks = [
            _Rank(self._node(rank, limits, seed, termination), machine.slowness if rank in slow else 1.0, machine.block)
            for rank in range(machine.size)
        ]
        self._timers: list[tuple[float, int]] = []
        self.busy_intervals: list[tuple[float, float]] = []
        """The intervals (begin, end) in virtual seconds in which tasks have run, one per task. They may overlap."""
        self._last_end = self._last_query = self._detected = self._counted = self._stopped = 0.0
        self._steals = self._refused = self._events = 0

    def _node(self, rank: int, limits: EngineLimits, seed: int, termination: str) -> RankStateMachine:
        """Return the node of a rank."""
        return RankStateMachine(
            rank,
            self.machine.size,
            run=0,
            counters=1,
            director=self,
            random=Random(seed * self.machine.size + rank),
            queue=TaskQueue(limits),
            limits=limits,
            termination=termination,
            divide=lambda task, hungry: self.workload.divide(task, rank, hungry=hungry),
        )

    # The director.

    def first_tasks_of_phase(self, phase: int) -> Iterable[NewTask]:
        """Return the tasks with which a phase begins."""
        return self.workload.first_tasks_of_phase()

    def next_phase(self, phase: int, totals: tuple[int, ...]) -> None:
        """Return None: there is one phase.

        Raise ``InvariantBroken`` if it was not over, or if a task was not counted.
        """
        if self.workload.unfinished or totals != (self.workload.tasks,):
            raise InvariantBroken(
                f"{totals} tasks counted, {self.workload.unfinished} of {self.workload.tasks} not run"
            )
        self._counted = self._ranks[0].clock
        self._detected = min(max(self._last_query, self._last_end), self._counted)

    def status(self, totals: tuple[int, ...], halted: HaltMessage | None) -> int:
        """Record the time at which the job is over, and return its exit status."""
        self._stopped = self._counted
        return 0

    # The events.

    def run(self) -> SimulationResult:
        """Simulate the job to its end. Raise ``InvariantBroken`` if messages or tasks remain then."""
        root = self._ranks[0]
        root.node.begin_job(0.0)
        self._run_slice(root)
        network, timers, ranks = self.network, self._timers, self._ranks
        while True:
            if timers and timers[0][0] < network.next_event_time():
                at, number = heapq.heappop(timers)
                rank = ranks[number]
                if rank.wake == at:
                    self._events += 1
                    rank.wake = NEVER
                    self._handle_timer(rank, at)
            else:
                for at, number, source, message in network.deliver(network.next_event_time()):
                    self._events += 1
                    self._deliver(ranks[number], at, source, message)
                if not timers and math.isinf(network.next_event_time()):
                    break
        return self._result()

    def _deliver(self, rank: _Rank, at: float, source: int, message: Message) -> None:
        """Deliver a message to a rank: immediately if it is idle, else at the next time at which it checks for
        messages.
        """
        rank.received += 1
        if not rank.is_busy:
            self._process_message(rank, source, message, max(at, rank.clock))
            self._run_slice(rank)
            return
        rank.inbox.append((source, message))
        if rank.task is not None and (look_up := rank.next_check_after(at)) < rank.wake:
            self._set_timer(rank, look_up)

    def _process_message(self, rank: _Rank, source: int, message: Message, at: float) -> None:
        """Process a message that was received."""
        rank.clock = at + self.machine.handling * rank.slowness
        rank.node.receive_message(source, message, rank.clock)
        if isinstance(message, TaskReply) and message.tasks:
            rank.most_tasks = max(rank.most_tasks, len(rank.node.queue))
        elif isinstance(message, EndJobMessage):
            self._stopped = max(self._stopped, rank.clock)

    def _handle_timer(self, rank: _Rank, at: float) -> None:
        """Continue a rank whose timer has expired: finish its task if it has ended, process received messages, and run
        the next slice.
        """
        node = rank.node
        rank.clock = max(rank.clock, at)
        if rank.task is not None and at >= rank.task_end:
            task, rank.task = rank.task, None
            self._finish(rank, task)
            self._send_pending(rank)
        elif rank.task is not None:
            node.begun_tasks.record_executed_task_slice(rank.task)
        inbox = rank.inbox
        while inbox:
            source, message = inbox.popleft()
            self._process_message(rank, source, message, rank.clock)
        node.perform_due_actions(rank.clock)
        if rank.task is None:
            self._run_slice(rank)
        else:
            self._send_pending(rank)
            rank.task_end += rank.clock - at
            rank.first_check = rank.clock + rank.check_interval
            self._set_timer(rank, self._next_action_time(rank))

    def _run_slice(self, rank: _Rank) -> None:
        """Send the pending messages of a rank whose received messages are processed, then run a slice."""
        node, slowness = rank.node, rank.slowness
        if node.outbox:
            self._send_pending(rank)
        begin = rank.clock
        deadline = begin + TASK_SLICE_SECONDS
        while (task := node.take_task()) is not None:
            remaining = self.workload.task_seconds(task.payload) * slowness
            if remaining > TASK_SLICE_SECONDS:  # the task may take several slices
                look_up = self._rounded_to_block(rank, deadline - rank.clock)
                if remaining > look_up:
                    rank.task = task
                    rank.task_end, rank.first_check = rank.clock + remaining, rank.clock + look_up
                    rank.is_busy = True
                    self._set_timer(rank, self._next_action_time(rank))
                    return
            rank.clock += remaining
            self._finish(rank, task)
            if node.outbox or rank.clock >= deadline:
                break
        rank.is_busy = rank.clock > begin
        if rank.is_busy:
            self._send_pending(rank)
            self._set_timer(rank, rank.clock)
        elif (wake := node.next_due_action_time()) != rank.wake:
            self._set_timer(rank, wake)

    def _rounded_to_block(self, rank: _Rank, seconds: float) -> float:
        """Return ``seconds``, rounded up to the end of a block of a task."""
        block = self.machine.block * rank.slowness
        return block * math.ceil(seconds / block)

    def _next_action_time(self, rank: _Rank) -> float:
        """Return the time at which a rank with a task of many slices acts next if no message arrives."""
        wake = rank.node.next_due_action_time()
        return rank.task_end if wake == NEVER else min(rank.task_end, rank.next_check_after(wake))

    def _finish(self, rank: _Rank, task: Task) -> None:
        """Finish a task: record its time, and add the tasks that it has spawned."""
        spawned = self.workload.finish_task(task.payload, rank.node.rank)
        self.busy_intervals.append((rank.clock - self.workload.task_seconds(task.payload) * rank.slowness, rank.clock))
        self._events += 1
        self._last_end = max(self._last_end, rank.clock)
        rank.node.finish_task(task, TaskOutcome(spawned, (1,)), rank.clock)
        if spawned:
            rank.most_tasks = max(rank.most_tasks, len(rank.node.queue))

    def _send_pending(self, rank: _Rank) -> None:
        """Send the pending messages of a rank."""
        outbox = rank.node.outbox
        while outbox:
            destination, message = outbox.popleft()
            if isinstance(message, TaskReply):
                if message.tasks:
                    self._steals += 1
                else:
                    self._refused += 1
            elif rank.node.rank == 0 and isinstance(message, CounterQuery):
                self._last_query = (
                    rank.clock
                )  # the last query: the phase is over, and it asks all ranks for their counters
            self.network.send(rank.node.rank, destination, message, rank.clock)

    def _set_timer(self, rank: _Rank, at: float) -> None:
        """Wake a rank at a time; an earlier timer of the rank is ignored."""
        rank.wake = at
        if at < NEVER:
            heapq.heappush(self._timers, (at, rank.node.rank))

    def _result(self) -> SimulationResult:
        """Return the results. Raise ``InvariantBroken`` if messages or tasks remain."""
        network = self.network
        if network.messages_sent != network.messages_delivered:
            raise InvariantBroken(f"{network.messages_sent - network.messages_delivered} messages were not delivered")
        if any(rank.node.state is not RankState.CLOSED or len(rank.node.queue) for rank in self._ranks):
            raise InvariantBroken("a rank has not closed, or not run its tasks")
        return SimulationResult(
            size=network.size,
            tasks=self.workload.tasks,
            work=math.fsum(self.workload.seconds),
            speed=math.fsum(1.0 / rank.slowness for rank in self._ranks),
            last_end=self._last_end,
            detected=self._detected,
            counted=self._counted,
            stopped=self._stopped,
            steals=self._steals,
            refused=self._refused,
            messages=network.messages_sent,
            most_messages=max(rank.received for rank in self._ranks),
            most_tasks=max(rank.most_tasks for rank in self._ranks),
            most_bytes=max(rank.node.queue.peak_bytes for rank in self._ranks),
            events=self._events,
        )
