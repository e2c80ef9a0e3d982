"""One run of a job: real nodes, an in-memory network and slow storage, in virtual time, until it ends or is ended."""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable, Generator, Iterable
from random import Random
from typing import NamedTuple

from pcopy.engine.driver import Outcome
from pcopy.engine.journal import FIRST
from pcopy.engine.limits import Limits
from pcopy.engine.messages import Message
from pcopy.engine.node import NEVER, Node
from pcopy.engine.progress import Report
from pcopy.engine.queue import TaskQueue
from pcopy.engine.restore import restore
from pcopy.engine.states import State
from pcopy.engine.task import Spawn, Task
from tests.recovery.copying import COPY, LAST, Copier
from tests.recovery.datasets import COUNTERS
from tests.recovery.result import describe
from tests.recovery.rules import Rules
from tests.recovery.storage import ModelJournal

MOST_EVENTS = 60_000


class Speed(NamedTuple):
    """Seconds: the longest latency of a message and the longest slice of a task; ``termination`` is the detector."""

    latency: float
    slice: float
    termination: str
    limits: Limits


class End(NamedTuple):
    """When the world ends: after some ``event``s; some records ``written``; those and half of one (``torn``); or events
    since a ``phase`` began. ``halt``: it does not, but the job is told to stop after some events."""

    kind: str
    after: int
    phase: int = COPY


NOWHERE = End("never", 0)


class Ended(Exception):
    """The world has ended."""


class _Directions:
    """The director."""

    def __init__(self) -> None:
        self.totals: tuple[int, ...] = ()
        self.root: Node | None = None
        self._begun = False

    @property
    def committed(self) -> bool:
        """Has the end waited until all was on storage? It need not if it was told to stop when all was done."""
        return self._begun and self.root is not None and self.root.halted is None

    def next_phase(self, phase: int, totals: tuple[int, ...]) -> int | None:
        return phase + 1 if phase < LAST else None

    def first_tasks(self, phase: int) -> Iterable[Spawn]:
        return [describe(COPY, "scan", 0, expands=True)] if phase == COPY else []

    def status(self, totals: tuple[int, ...], halted: str | None) -> int:
        assert self.root is not None
        self.totals = totals
        self._begun = self.root._epochs.begun or self.root.restored >= 0
        return 75 if halted else 0


class _Rank:
    def __init__(self, node: Node, copier: Copier) -> None:
        self.node = node
        self.copier = copier
        self.inbox: deque[tuple[int, Message]] = deque()
        self.task: Task | None = None
        self.steps: Generator[None, None, Outcome] | None = None
        self.in_slice = False
        self.wake = NEVER


class Run:
    """The ranks of one run; ``make_copier`` and ``make_journal`` give each what is its own."""

    def __init__(
        self,
        number: int,
        size: int,
        *,
        now: float,
        speed: Speed,
        rules: Rules,
        random: Random,
        make_copier: Callable[[int], Copier],
        make_journal: Callable[[Run, int], ModelJournal],
        advance: Callable[[float], None],
        end: End,
    ) -> None:
        self.now = self._start = now
        self.size = size
        self.phases: set[int] = set()
        self.records = 0
        self.events = 0
        self._speed, self._rules, self._random, self._advance, self._end = speed, rules, random, advance, end
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._scheduled = 0
        self._arrivals: dict[tuple[int, int], float] = {}
        self._in_phase = 0
        self.director = _Directions()
        self._ranks = [_Rank(self._make_node(number, rank, make_journal), make_copier(rank)) for rank in range(size)]
        self.director.root = self._ranks[0].node

    @property
    def problems(self) -> list[str]:
        return [problem for rank in self._ranks for problem in rank.copier.problems]

    def _make_node(self, number: int, rank: int, make_journal: Callable[[Run, int], ModelJournal]) -> Node:
        node = Node(
            rank,
            self.size,
            run=number if self._rules.new_ids else 1,
            counters=COUNTERS,
            director=self.director,
            random=Random(self._random.random()),
            queue=TaskQueue(self._speed.limits),
            limits=self._speed.limits,
            termination=self._speed.termination,
            journal=make_journal(self, rank),
        )
        if not self._rules.markers:
            _cut_alone(node, self._speed.limits.cut_interval, self._start, self._random)
        if not self._rules.phase_commit:
            node.commit.is_done = lambda *_, **__: True  # type: ignore[method-assign]
        return node

    def restore(self, phase: int, counts: tuple[int, ...], tasks: list[list[Task]]) -> None:
        for rank, own in zip(self._ranks, tasks, strict=True):
            restore(rank.node, phase, own, counts if rank.node.rank == 0 else ())

    # Virtual time.

    def later(self, seconds: float, call: Callable[[], None]) -> None:
        self._scheduled += 1
        heapq.heappush(self._events, (self.now + seconds, self._scheduled, call))

    def play(self) -> int:
        """Until the job has ended; returns its status. Raises ``Ended`` if the world ends before."""
        self._ranks[0].node.start(self.now)
        for rank in self._ranks:
            self._turn(rank)
        while not all(rank.node.state is State.CLOSED for rank in self._ranks):
            self.now, _, call = heapq.heappop(self._events)
            self._advance(self.now)
            self.events += 1
            assert self.events < MOST_EVENTS, f"it never ends: {self._where()}"
            self._watch()
            call()
        return self._ranks[0].node.status

    def _where(self) -> list[tuple[str, int, int]]:
        return [(rank.node.state.value, rank.node.phase, len(rank.node.queue)) for rank in self._ranks]

    def _watch(self) -> None:
        end, root = self._end, self._ranks[0].node
        self.phases.add(root.phase)
        if end.kind == "phase" and root.phase >= end.phase:
            self._in_phase += 1
            if self._in_phase > end.after:
                raise Ended
        if end.kind in ("event", "halt") and self.events > end.after:
            if end.kind == "event":
                raise Ended
            self._end = NOWHERE
            rank = self._random.choice(self._ranks)
            rank.node.halt("told to stop", self.now)
            if not rank.in_slice:
                self._turn(rank)

    def storing(self) -> None:
        """A record is half written."""
        if self._end.kind == "torn" and self.records == self._end.after:
            raise Ended

    def stored(self, rank: int) -> None:
        """A record is on storage, and known to be."""
        self.records += 1
        if self._end.kind == "written" and self.records > self._end.after:
            raise Ended
        if not self._ranks[rank].in_slice:
            self._turn(self._ranks[rank])

    # The drivers.

    def _turn(self, rank: _Rank, *, slice_over: bool = False) -> None:
        """What a driver does between two slices, in either order."""
        node = rank.node
        messages_first = self._random.random() < 0.5
        if messages_first:
            self._receive(rank)
        if slice_over:
            self._end_slice(rank)
        if not messages_first:
            self._receive(rank)
        if node.halted is not None and rank.task is not None and node.queue.is_work(rank.task):
            rank.task = rank.steps = None
            node.dropped += 1
            node.finished((), (), self.now, held=True)
        node.tick(self.now)
        self._begin_slice(rank)
        while node.outbox:
            self._send(node.rank, *node.outbox.popleft())
        if not rank.in_slice and node.state is not State.CLOSED and (wake := node.wake_at()) < NEVER:
            rank.wake = max(wake, self.now)
            self.later(rank.wake - self.now, lambda: self._woken(rank))

    def _woken(self, rank: _Rank) -> None:
        if not rank.in_slice and rank.wake <= self.now and rank.node.state is not State.CLOSED:
            self._turn(rank)

    def _send(self, source: int, destination: int, message: Message) -> None:
        """The latency is random, but two messages of one sender to one receiver keep their order."""
        pair = source, destination
        latency = self._random.uniform(0.05, 1.0) * self._speed.latency
        arrival = self._arrivals[pair] = max(self.now + latency, self._arrivals.get(pair, 0.0))
        self.later(arrival - self.now, lambda: self._arrive(source, destination, message))

    def _arrive(self, source: int, destination: int, message: Message) -> None:
        rank = self._ranks[destination]
        rank.inbox.append((source, message))
        if not rank.in_slice:
            self._turn(rank)

    def _receive(self, rank: _Rank) -> None:
        while rank.inbox:
            rank.node.receive(*rank.inbox.popleft(), self.now)

    def _begin_slice(self, rank: _Rank) -> None:
        if rank.task is None:
            rank.task = rank.node.take()
            if rank.task is None:
                return
            rank.steps = rank.copier.run_task(rank.task)
        rank.in_slice = True
        self.later(self._random.uniform(0.1, 1.0) * self._speed.slice, lambda: self._slice_over(rank))

    def _slice_over(self, rank: _Rank) -> None:
        rank.in_slice = False
        self._turn(rank, slice_over=True)

    def _end_slice(self, rank: _Rank) -> None:
        if rank.steps is None:  # it was dropped meanwhile
            return
        try:
            next(rank.steps)
            rank.node.sliced()
        except StopIteration as stop:
            outcome: Outcome = stop.value
            rank.task = rank.steps = None
            rank.node.finished(outcome.spawned, outcome.counts, self.now, settled=outcome.settled, held=outcome.held)


def _cut_alone(node: Node, interval: float, start: float, random: Random) -> None:
    """Switches rule 2 off: each rank cuts by its own clock, and nobody is told."""
    outbox, epochs, commit = node.outbox, node._epochs, node.commit
    next_cut = [start + random.random() * interval]

    def send_all(messages: Iterable[tuple[int, Message]]) -> None:
        outbox.extend(messages)

    def is_due(rank: int, report: Report | None, now: float) -> bool:
        if now < next_cut[0]:
            return False
        next_cut[0] = now + interval
        return True

    assert epochs.number == FIRST
    node._send = lambda destination, message: outbox.append((destination, message))
    node._send_all = send_all
    commit.is_due = is_due  # type: ignore[method-assign]
