"""One rank as a pure state machine: messages and the time go in, messages and tasks come out.

There is no clock, random source or I/O in it; ``now`` (seconds) and a seeded ``Random`` are handed in. A job is a
series of phases, each ended by the termination detector. The root decides after each phase, with the exact sums of all
counters, what comes next. A rank that stops still answers requests until its own is answered; then a barrier up and
down the tree, after which nothing is under way. The states and what leads from one to another: docs/design/engine.md.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import compress
from random import Random
from typing import Any, ClassVar

from pcopy.engine.barrier import Barrier
from pcopy.engine.commit import Commit
from pcopy.engine.journal import Epochs, Journal, Outbox
from pcopy.engine.limits import Limits
from pcopy.engine.messages import (
    Abort,
    Answer,
    Close,
    Epoch,
    Halt,
    Message,
    Query,
    Ready,
    Reply,
    Request,
    Signal,
    Stamp,
    Start,
    Stop,
    Token,
    Work,
)
from pcopy.engine.phase_end import Director, PhaseEnd
from pcopy.engine.progress import CounterTree, children, parent
from pcopy.engine.queue import TaskQueue
from pcopy.engine.safra import make_detector
from pcopy.engine.states import FINAL, TRANSITIONS, State, follow
from pcopy.engine.stealing import Thief
from pcopy.engine.steering import Steering, Unsteered
from pcopy.engine.task import ANYBODY, UNTOLD, Spawn, Task, batches
from pcopy.engine.ticket import Outcome
from pcopy.engine.under_way import UnderWay
from pcopy.engine.victim import Divide, Victim
from pcopy.errors import INTERNAL, InvariantBroken

NEVER = float("inf")


class Node:
    """Rank ``rank`` of ``size``. The driver empties ``outbox`` after every call."""

    def __init__(
        self,
        rank: int,
        size: int,
        *,
        run: int,
        counters: int,
        director: Director,
        random: Random,
        queue: TaskQueue,
        limits: Limits = Limits(),  # noqa: B008 (an immutable value)
        termination: str = "tree",
        journal: Journal | None = None,
        divide: Divide = lambda task, hungry: (),
        steering: Steering = Unsteered(),  # noqa: B008 (it has no state)
    ) -> None:
        self.rank, self.size = rank, size
        self.state = State.WAITING
        self.phase, self.status = -1, 0
        self.counters = [0] * counters
        self.queue = queue
        self.halted: Halt | None = None
        self.aborted: Abort | None = None
        self.dropped = 0
        self.begun_with: tuple[int, ...] = ()  # the sums of all counters when the phase began
        self.restored = -1  # the phase that a resumed job goes on with
        self._halt_wished = False
        self._run = run
        self._numbered = 0
        self._director = director
        self._limits = limits
        self.parent = parent(rank, limits.fan_out)
        self._children = children(rank, size, limits.fan_out)
        self._detector = make_detector(termination, rank, size)
        self._thief = Thief(rank, size, random, limits, steering)
        self._epochs = Epochs(journal)
        self.outbox = Outbox(self._epochs)
        self._send, self._send_all = self.outbox.send, self.outbox.send_all
        self.progress = CounterTree(rank, size, limits.fan_out, self.counters, lambda: self._epochs.durable, steering)
        self.commit = Commit(self._epochs, limits)
        self.under_way = UnderWay(rank, limits.slots)
        self._victim = Victim(queue, self.under_way, divide, self._divided, steering)
        self._early: list[tuple[int, Work]] = []
        self.barrier = Barrier(self._children)
        self._phase_end = PhaseEnd(director, limits, self.progress, self.commit)

    # What the driver says.

    @property
    def is_ending(self) -> bool:
        """At the root: the last phase is over."""
        return self._phase_end.is_last or self.state not in (State.WAITING, State.WORKING)

    def restore(self, phase: int, tasks: Iterable[Task], counts: Sequence[int]) -> None:
        """Before the start: ``tasks`` remain in ``phase``, which had begun, and later ones; ``counts`` are added up.

        What remains of earlier phases was held until then (``Outcome``); it is run again in this one.
        """
        self.restored = phase
        self.queue.begin_phase(phase)
        for task in tasks:
            self.queue.push(task._replace(phase=max(phase, task.phase)))
        for index, count in enumerate(counts):
            self.counters[index] += count

    def start(self, now: float) -> None:
        """At the root: begins the first phase, or goes on with the one that was restored."""
        self.commit.start(now)
        self._begin_phase(max(0, self.restored), now)

    @property
    def may_take(self) -> bool:
        works = self.state is State.WORKING and not self.commit.waits_for_storage
        return works and (self._victim.may_begin() or (self.under_way.only_waits and self.queue.has_note))

    def take(self) -> Task | None:
        """The task to begin now; it is under way until it is ``finished``, or dropped."""
        task = self._victim.take() if self.may_take else None  # a note, if there is no room: those come first
        if task is not None:
            self.under_way.begin(task)
        return task

    def drop(self, task: Task, now: float) -> None:
        """``task``, which can run, is not run to its end, because the job is told to stop."""
        self.dropped += self.queue.forget(task)
        self.finished(task, Outcome(held=True), now)

    def finished(self, task: Task, outcome: Outcome, now: float) -> None:
        """``task`` is over: all that it spawned, counted and settled become facts, unless it is ``held``.

        Raises ``InvariantBroken`` if it is not under way, or waits for a ticket.
        """
        self.under_way.end(task)
        spawned, counts, settled, held, shares = outcome
        for index in compress(range(len(counts)), counts):  # nearly all are 0
            self.counters[index] += counts[index]
        self._spawn(spawned, held=held)
        if not held:
            self._epochs.done(task, counts, settled, shares)
        if not len(self.queue):
            self._thief.idle_from(now)
        self.tick(now, answers=False)

    def _divided(self, task: Task, portions: Sequence[Spawn]) -> None:
        """``task`` is over as if it had been run, with nothing done: its portions stand in its place."""
        self._spawn(portions)
        self._epochs.done(task)

    def tick(self, now: float, *, answers: bool = True) -> None:
        """Time has passed, or something has changed: do what can be done now."""
        if answers:
            self._answer_requests(now)
        if self.state is State.WORKING and self.under_way.has_room and not len(self.queue):
            self._seek(now)
        if self.state is State.WORKING and self.commit.is_due(self.rank, self.progress.report, now):
            self._epochs.advance(self.phase)
        if self.state is State.WORKING and now >= self._phase_end.next_query:
            self._send_all(self._phase_end.ask(now))
            if self._phase_end.is_near:
                self._end_phase(now)
        if self.state is State.STOPPING and not self.barrier.awaited and not self._thief.waiting:
            self._enter(State.BARRIER)
            ready = self.barrier.ready()
            if self.rank:
                self._send(self.parent, ready)
            else:
                self._close()

    def _seek(self, now: float) -> None:
        """Nothing waits, and more could be begun: is the phase over, or is there work elsewhere?"""
        if not len(self.under_way):
            self._send_all(self._detector.idle())
        if self._detector.terminated:
            self._end_phase(now)
        elif self.halted is None and (request := self._thief.ask(self.phase, now)):
            self._send(*request)

    def wake_at(self) -> float:
        """When ``tick`` has something to do even if no message comes."""
        wake = self._phase_end.next_query if self.state is State.WORKING else NEVER
        hungry = self.state is State.WORKING and self.under_way.has_room and not len(self.queue)
        if hungry and self._thief.may_ask and self.halted is None and not self._phase_end.is_near:
            wake = min(wake, self._thief.ask_at)
        return min(wake, self._victim.wake_at)

    def halt(self, reason: Halt, now: float) -> None:
        """Stops the job in order: every rank drops its queue, and the phase ends by itself.

        The wish goes up the tree, so that none is under way any more when a rank is ready to close; the root's order
        comes down. To wish again does nothing.
        """
        self._receive_halt(self.rank, reason)
        self.tick(now)

    def abort(self, text: str, status: int = INTERNAL) -> None:
        """Ends the job in disorder: this rank has failed with the traceback ``text``."""
        self._receive_abort(self.rank, Abort(self.rank, text, status))

    # What other ranks say.

    def receive(self, source: int, message: Message, now: float) -> None:
        """Takes one message of rank ``source``; raises ``InvariantBroken`` for one that can't come now."""
        handler = self._HANDLERS.get(type(message))
        if handler is None:
            raise InvariantBroken(f"rank {self.rank} does not know what rank {source} says: {message!r}")
        if self.state not in FINAL or isinstance(message, Abort | Epoch):  # else it no longer takes part
            handler(self, source, message, now)
        self.tick(now)

    def _begin_phase(self, phase: int, now: float, source: int = -1, stamp: Stamp = Stamp()) -> None:  # noqa: B008
        if phase <= self.phase:
            raise InvariantBroken(f"phase {phase} begins after phase {self.phase} on rank {self.rank}")
        if self.state is not State.WORKING:
            self._enter(State.WORKING)
        self.phase = phase
        self.queue.begin_phase(phase)
        self._thief.start_afresh(now)
        self._victim.start_afresh()
        self._detector.begin_phase(phase)
        if source >= 0:
            self._send_all(self._detector.received(source, stamp))
        if self.rank == 0:
            self._send_all(self._phase_end.ask(now))  # which brings the sums to all ranks before the phase comes
        self.begun_with = self.progress.totals
        for child in self._children:
            self._send(child, Start(phase, self._detector.sent(starting=True)))
        early, self._early = self._early, []
        for sender, work in early:
            self._receive_work(sender, work)
        if self.rank == 0 and phase != self.restored:
            self._spawn(self._director.first_tasks(phase), begins=phase == 0)

    def _receive_work(self, source: int, work: Work) -> None:
        if work.phase > self.phase and self.state in (State.WAITING, State.WORKING):
            self._early.append((source, work))  # signalled once its phase has begun here
        else:
            self._check_current(source, work.phase)
            self._send_all(self._detector.received(source, work.stamp))
            self._accept(work.tasks)

    def _check_current(self, source: int, phase: int) -> None:
        if phase != self.phase or self.state is not State.WORKING:
            where = f"in phase {self.phase}, {self.state.value}"
            raise InvariantBroken(f"work of phase {phase} from rank {source} at rank {self.rank} {where}")

    def _accept(self, tasks: Iterable[Task]) -> None:
        for task in tasks:
            if self.halted is not None and (self.queue.may_drop(task) or task.phase != self.phase):
                self.dropped += self.queue.forget(task)
            else:
                self.queue.push(task)

    def _answer_requests(self, now: float) -> None:
        gives_in = self.phase if self.state is State.WORKING and self.halted is None else -1
        for source, (phase, sequence, _), tasks in self._victim.answers(gives_in, now):
            self._send(source, Reply(phase, sequence, tasks, self._detector.sent() if tasks else Stamp()))

    def _receive_reply(self, source: int, reply: Reply, now: float) -> None:
        is_asked_for = self._thief.answered(reply, now)
        if reply.tasks and not is_asked_for:
            raise InvariantBroken(f"rank {source} sent tasks that rank {self.rank} had not asked for")
        if reply.tasks:
            self._check_current(source, reply.phase)
            self._send_all(self._detector.received(source, reply.stamp))
            self._accept(reply.tasks)
            self.under_way.received(len(reply.tasks))

    def _spawn(self, spawned: Iterable[Spawn], *, begins: bool = False, held: bool = False) -> None:
        """``begins``: a journal knows these tasks as what the job begins with; ``held``: it does not hear of them."""
        journal = None if held else self._epochs.journal
        addressed: dict[int, list[Task]] = {}
        base: list[Task] = []
        for spawn in spawned:
            if spawn.phase < self.phase:
                raise InvariantBroken(f"a task of phase {self.phase} spawned one of phase {spawn.phase}")
            self._numbered += 1
            task = Task((self._run, self.rank, UNTOLD if held else self._numbered), *spawn)
            if begins:
                base.append(task)
            elif journal:
                journal.spawned(task)
            if task.owner in (ANYBODY, self.rank):
                self._accept((task,))
            else:
                addressed.setdefault(task.owner, []).append(task)
        if begins and journal:
            journal.base(self.phase, base)
        for owner, tasks in addressed.items():
            for batch in batches(tasks, self._limits.message_bytes):
                self._send(owner, Work(self.phase, batch, self._detector.sent()))

    # The end of a phase, and of the job.

    def _receive_answer(self, source: int, answer: Answer, now: float) -> None:
        self._send_all(self.progress.receive_answer(source, answer))
        if self._phase_end.is_near:
            self._end_phase(now)

    def _end_phase(self, now: float) -> None:
        """At the root, when a phase is over: what comes next, as soon as that is known."""
        self._send_all(self._phase_end.begin(now))
        following = self._phase_end.decide(now, self.phase, self.halted, resumed=self.restored >= 0)
        if following is None:
            return
        if following.phase is None:
            self._stop(following.status)
        else:
            self._begin_phase(following.phase, now)
            self.tick(now)

    def _receive_halt(self, source: int, message: Halt) -> None:
        if self.halted is not None or self.state not in (State.WAITING, State.WORKING):
            return
        if self.rank and source != self.parent:
            if not self._halt_wished:
                self._halt_wished = True
                self._send(self.parent, message)
            return
        self.halted = message
        self._epochs.is_ending = True
        self.dropped += self.queue.drop_work()
        for child in self._children:
            self._send(child, message)

    def _stop(self, status: int) -> None:
        if len(self.under_way) or len(self.queue) or self._early:
            raise InvariantBroken(f"the job stops while rank {self.rank} has work")
        self._enter(State.STOPPING)
        self.status = status
        for child in self._children:
            self._send(child, Stop(status))

    def _receive_ready(self, source: int, ready: Ready) -> None:
        if source not in self.barrier.awaited or self.state is not State.STOPPING:
            raise InvariantBroken(f"rank {source} is ready while rank {self.rank} is {self.state.value}")
        self.barrier.heard(source, ready)

    def _close(self) -> None:
        self._enter(State.CLOSED)
        for child in self._children:
            self._send(child, Close())

    def _receive_abort(self, source: int, message: Abort) -> None:
        if self.state in FINAL:
            return
        self._enter(State.ABORTED)
        self.aborted = message
        for neighbour in (self.parent, *self._children):
            if neighbour not in (source, -1):
                self._send(neighbour, message)

    def _enter(self, state: State) -> None:
        self.state = follow(TRANSITIONS, self.state, state, self.rank)

    _HANDLERS: ClassVar[Mapping[type, Callable[[Node, int, Any, float], None]]] = {
        Start: lambda node, source, start, now: node._begin_phase(start.phase, now, source, start.stamp),
        Work: lambda node, source, work, _: node._receive_work(source, work),
        Request: lambda node, source, request, now: node._victim.asked(source, request, now),
        Reply: lambda node, source, reply, now: node._receive_reply(source, reply, now),
        Signal: lambda node, source, signal, _: node._send_all(node._detector.receive(source, signal)),
        Token: lambda node, source, token, _: node._send_all(node._detector.receive(source, token)),
        Query: lambda node, _, query, __: node._send_all(node.progress.receive_query(query)),
        Answer: lambda node, source, answer, now: node._receive_answer(source, answer, now),
        Epoch: lambda node, _, epoch, __: node._epochs.enter(epoch.number, node.phase),
        Halt: lambda node, source, halt, _: node._receive_halt(source, halt),
        Abort: lambda node, source, abort, _: node._receive_abort(source, abort),
        Stop: lambda node, _, stop, __: node._stop(stop.status),
        Ready: lambda node, source, ready, _: node._receive_ready(source, ready),
        Close: lambda node, _, __, ___: node._close(),
    }
    """What is done with each type of message, of which rank, and when."""
