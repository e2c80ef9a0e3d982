"""One rank of a job as a state machine without I/O: messages and the time are its input, messages and tasks its output.

The module uses no clock, random source or I/O; ``now`` (seconds) and a seeded ``Random`` are passed in. A job is a
series of phases. The termination detector finds the end of each phase. After each phase rank 0 collects the exact sums
of all counters and decides what comes next. A rank that stops continues to answer requests until its own request is
answered. Then a barrier runs up and down the tree of ranks, after which no message is in transit.

docs/design/engine.md describes the states and the transitions between them.
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
    """State machine of one rank. After every call the driver sends the messages in ``outbox``."""

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
        """Create the state machine.

        Args:
            run: number of the run, for the ids of new tasks.
            counters: number of counters.
            director: decides on rank 0 what happens between phases.
            random: chooses the victims of work stealing.
            queue: tasks of this rank.
            termination: name of the termination detector, from ``DETECTORS``.
            journal: records facts; None if the job is not recorded.
            divide: returns the portions of a task (see ``pcopy.engine.victim``).
            steering: tells which tasks this rank may begin.
        """
        self.rank, self.size = rank, size
        self.state = State.WAITING
        self.phase, self.status = -1, 0
        self.counters = [0] * counters
        self.queue = queue
        self.halted: Halt | None = None
        """Reason of an early stop, once the job is being stopped."""
        self.aborted: Abort | None = None
        """Reason of an abort, once a rank has failed."""
        self.dropped = 0
        """Number of tasks that this rank has dropped because the job is being stopped."""
        self.begun_with: tuple[int, ...] = ()
        """Sums of all counters at the start of the phase."""
        self.restored = -1
        """The phase with which a resumed job begins; -1 in a new job."""
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

    # Calls of the driver.

    @property
    def is_ending(self) -> bool:
        """On rank 0: True if the last phase is over."""
        return self._phase_end.is_last or self.state not in (State.WAITING, State.WORKING)

    def restore(self, phase: int, tasks: Iterable[Task], counts: Sequence[int]) -> None:
        """Add the tasks and counts of a resumed job; called before ``start``.

        Args:
            phase: the phase in which the job was interrupted.
            tasks: the tasks that remain.
            counts: numbers to add to the counters.

        Tasks of earlier phases had deferred completion (see ``Outcome``). They run again in this phase.
        """
        self.restored = phase
        self.queue.begin_phase(phase)
        for task in tasks:
            self.queue.push(task._replace(phase=max(phase, task.phase)))
        for index, count in enumerate(counts):
            self.counters[index] += count

    def start(self, now: float) -> None:
        """On rank 0: begin the first phase, or the phase in which a resumed job was interrupted."""
        self.commit.start(now)
        self._begin_phase(max(0, self.restored), now)

    @property
    def may_take(self) -> bool:
        """True if a task may be begun now."""
        works = self.state is State.WORKING and not self.commit.waits_for_storage
        return works and (self._victim.may_begin() or (self.under_way.only_waits and self.queue.has_note))

    def take(self) -> Task | None:
        """Return the task to begin now, or None. It is under way until it is finished or dropped."""
        # If no slot is free, may_take is true only if a note is next, and notes need no slot.
        task = self._victim.take() if self.may_take else None
        if task is not None:
            self.under_way.begin(task)
        return task

    def drop(self, task: Task, now: float) -> None:
        """Drop ``task``, which is under way and can run, because the job is being stopped."""
        self.dropped += self.queue.forget(task)
        self.finished(task, Outcome(held=True), now)

    def finished(self, task: Task, outcome: Outcome, now: float) -> None:
        """End ``task``: add its counts and the tasks that it spawned; record both unless its completion is deferred.

        Raise ``InvariantBroken`` if the task is not under way, or waits for a ticket.
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
        """Replace ``task`` by its portions: record it as done without counts."""
        self._spawn(portions)
        self._epochs.done(task)

    def tick(self, now: float, *, answers: bool = True) -> None:
        """Do everything that is due at time ``now``, or that has become possible by a change of state.

        ``answers``: also answer pending requests of other ranks.
        """
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
        """Check whether the phase is over, or request tasks: the queue is empty and a slot is free."""
        if not len(self.under_way):
            self._send_all(self._detector.idle())
        if self._detector.terminated:
            self._end_phase(now)
        elif self.halted is None and (request := self._thief.ask(self.phase, now)):
            self._send(*request)

    def wake_at(self) -> float:
        """Return the time in seconds at which ``tick`` must be called even if no message arrives."""
        wake = self._phase_end.next_query if self.state is State.WORKING else NEVER
        hungry = self.state is State.WORKING and self.under_way.has_room and not len(self.queue)
        if hungry and self._thief.may_ask and self.halted is None and not self._phase_end.is_near:
            wake = min(wake, self._thief.ask_at)
        return min(wake, self._victim.wake_at)

    def halt(self, reason: Halt, now: float) -> None:
        """Stop the job in order: every rank drops its queue, and the phase ends as usual.

        The request goes up the tree of ranks to rank 0, whose order then comes down. So no request is in transit any
        longer when a rank is ready to close. Further calls have no effect.
        """
        self._receive_halt(self.rank, reason)
        self.tick(now)

    def abort(self, text: str, status: int = INTERNAL) -> None:
        """Abort the job because this rank has failed.

        Args:
            text: traceback of the failure.
            status: exit status of all ranks.
        """
        self._receive_abort(self.rank, Abort(self.rank, text, status))

    # Messages of other ranks.

    def receive(self, source: int, message: Message, now: float) -> None:
        """Process one message of rank ``source``; raise ``InvariantBroken`` if the current state does not allow it."""
        handler = self._HANDLERS.get(type(message))
        if handler is None:
            raise InvariantBroken(f"rank {self.rank}: unknown message from rank {source}: {message!r}")
        if self.state not in FINAL or isinstance(message, Abort | Epoch):  # a rank in a final state ignores the others
            handler(self, source, message, now)
        self.tick(now)

    def _begin_phase(self, phase: int, now: float, source: int = -1, stamp: Stamp = Stamp()) -> None:  # noqa: B008
        """Begin ``phase`` on this rank and tell its child ranks to do so.

        ``source`` and ``stamp`` are those of the message that began it; rank 0 has none. Raise ``InvariantBroken`` if
        ``phase`` is not higher than the current one.
        """
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
            self._send_all(self._phase_end.ask(now))  # which brings the sums to all ranks first
        self.begun_with = self.progress.totals
        for child in self._children:
            self._send(child, Start(phase, self._detector.sent(starting=True)))
        early, self._early = self._early, []
        for sender, work in early:
            self._receive_work(sender, work)
        if self.rank == 0 and phase != self.restored:
            self._spawn(self._director.first_tasks(phase), begins=phase == 0)

    def _receive_work(self, source: int, work: Work) -> None:
        """Queue addressed tasks, or store them until their phase has begun on this rank."""
        if work.phase > self.phase and self.state in (State.WAITING, State.WORKING):
            self._early.append((source, work))  # the detector is informed once the phase has begun on this rank
        else:
            self._check_current(source, work.phase)
            self._send_all(self._detector.received(source, work.stamp))
            self._accept(work.tasks)

    def _check_current(self, source: int, phase: int) -> None:
        """Raise ``InvariantBroken`` unless this rank is working in ``phase``."""
        if phase != self.phase or self.state is not State.WORKING:
            where = f"in phase {self.phase}, {self.state.value}"
            raise InvariantBroken(f"work of phase {phase} from rank {source} at rank {self.rank} {where}")

    def _accept(self, tasks: Iterable[Task]) -> None:
        """Queue ``tasks``; drop those that a stopping job does not run."""
        for task in tasks:
            if self.halted is not None and (self.queue.may_drop(task) or task.phase != self.phase):
                self.dropped += self.queue.forget(task)
            else:
                self.queue.push(task)

    def _answer_requests(self, now: float) -> None:
        """Send the replies that are due to requests of other ranks."""
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
        """Give ids to new tasks, record them, and queue them or send them to the ranks they are addressed to.

        Args:
            begins: True if the job begins with these tasks; the journal records them as its base.
            held: True if the completion of the spawning task is deferred; the journal does not record these tasks.
        """
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
        """On rank 0, when a phase is over: begin the next phase or stop the job, as soon as the decision is made."""
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
        """Stop this rank and its subtree if the order comes from the parent; otherwise forward the request there."""
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
    """Function that processes each type of message, called with (node, sender, message, time)."""
