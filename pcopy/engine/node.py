"""One rank as a pure state machine: messages and the time go in, messages and tasks come out.

There is no clock, random source or I/O in it; ``now`` (seconds) and a seeded ``Random`` are handed in. A job is a
series of phases, each ended by the termination detector:

    WAITING --Start--> WORKING --Start of the next phase--> WORKING … --Stop--> STOPPING --Ready sent--> BARRIER
    --Close--> CLOSED, and from anywhere --Abort--> ABORTED

The root decides after each phase, with the exact sums of all counters, what comes next. A rank that stops still
answers requests until its own is answered; then a barrier up and down the tree, after which nothing is under way.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from random import Random

from pcopy.engine import tree
from pcopy.engine.commit import COMMIT_POLL, Commit
from pcopy.engine.detectors import make_detector
from pcopy.engine.director import Director as Director
from pcopy.engine.journal import LOST, Epochs, Journal
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
from pcopy.engine.progress import CounterTree
from pcopy.engine.queue import TaskQueue
from pcopy.engine.states import TRANSITIONS, State
from pcopy.engine.stealing import Thief
from pcopy.engine.task import ANYBODY, UNTOLD, Share, Spawn, Task, TaskId, batches
from pcopy.engine.transitions import follow
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
    ) -> None:
        self.rank = rank
        self.size = size
        self.state = State.WAITING
        self.phase = -1
        self.status = 0
        self.counters = [0] * counters
        self.queue = queue
        self.outbox: deque[tuple[int, Message]] = deque()
        self.halted: str | None = None
        self.aborted: Abort | None = None
        self.dropped = 0
        self.begun_with: tuple[int, ...] = ()  # the sums of all counters when the phase began
        self.restored = -1  # the phase that a resumed job goes on with (pcopy.engine.restore)
        self._halt_wished = False
        self._run = run
        self._numbered = 0
        self._director = director
        self._limits = limits
        self.fan_out = limits.fan_out
        self._parent = tree.parent(rank, limits.fan_out)
        self._children = tree.children(rank, size, limits.fan_out)
        self._detector = make_detector(termination, rank, size)
        self._thief = Thief(rank, size, random, limits)
        self._epochs = Epochs(journal)
        self._send, self._send_all = self._epochs.sender(self.outbox)
        self.progress = CounterTree(rank, size, limits.fan_out, self.counters, lambda: self._epochs.durable)
        self.commit = Commit(self._epochs, limits)
        self._running: Task | None = None
        self._untouched = False  # have tasks been received since which nothing that others could run has run a slice?
        self._touching = False  # is the running task one that ends this?
        self._early: list[tuple[int, Work]] = []
        self._awaited: set[int] = set(self._children)  # children whose Ready is missing
        self._collecting = 0  # at the root, after a phase: the query whose answers must be complete
        self._next_query = NEVER
        self._ending: tuple[int | None, int] | None = None  # at the root, after a phase: what is next, and the status

    # What the driver says.

    @property
    def is_ending(self) -> bool:
        """At the root: the last phase is over."""
        is_over = self._ending is not None and self._ending[0] is None
        return is_over or self.state not in (State.WAITING, State.WORKING)

    def start(self, now: float) -> None:
        """At the root: begins the first phase, or goes on with the one that was restored."""
        self.commit.start(now)
        self._begin_phase(max(0, self.restored), now)

    def take(self) -> Task | None:
        """The task to run now; it counts as running until ``finished``."""
        if self.state is not State.WORKING or self._running or self.commit.waits_for_storage:
            return None
        task = self._running = self.queue.pop()
        self._touching = task is not None and task.owner == ANYBODY
        return task

    def sliced(self) -> None:
        """The running task has run a slice."""
        if self._touching:
            self._untouched = False

    def finished(
        self,
        spawned: Iterable[Spawn],
        counts: Sequence[int],
        now: float,
        *,
        settled: Sequence[TaskId] = (),
        held: bool = False,
        shares: Sequence[Share] = (),
    ) -> None:
        """The running task is over: all that it spawned, counted and settled become facts, unless it is ``held``."""
        task = self._running
        if task is None:
            raise InvariantBroken(f"rank {self.rank} finished a task that it did not run")
        self.sliced()
        self._running = None
        for index, count in enumerate(counts):
            self.counters[index] += count
        self._spawn(spawned, held=held)
        if self._epochs.journal and not held:
            self._epochs.journal.done(task, counts, settled, shares)
        if not len(self.queue):
            self._thief.idle_from(now)
        self.tick(now)

    def tick(self, now: float) -> None:
        """Time has passed, or something has changed: settle what can be settled."""
        if self.state is State.WORKING and not self._running and not len(self.queue):
            self._send_all(self._detector.idle())
            if self._detector.terminated:
                self._collect(now)
            elif self.halted is None and (request := self._thief.ask(self.phase, now)):
                self._send(*request)
        if self.state is State.WORKING and self.commit.is_due(self.rank, self.progress.report, now):
            self._epochs.advance(self.phase)
        if self.rank == 0 and self.state is State.WORKING and now >= self._next_query:
            self._query(now)
            if self._collecting:
                self._collect(now)
        if self.state is State.STOPPING and not self._awaited and not self._thief.waiting:
            self._barrier()

    def wake_at(self) -> float:
        """When ``tick`` has something to do even if no message comes."""
        wake = self._next_query if self.state is State.WORKING else NEVER
        idle = self.state is State.WORKING and not self._running and not len(self.queue)
        if idle and self.size > 1 and not self._thief.waiting and self.halted is None and not self._collecting:
            wake = min(wake, self._thief.ask_at)
        return wake

    def halt(self, reason: str, now: float) -> None:
        """Stops the job in order: every rank drops its queue, and the phase ends by itself.

        The wish goes up the tree, so that none is under way any more when a rank is ready to close; the root's order
        comes down. To wish again does nothing.
        """
        self._receive_halt(self.rank, Halt(reason))
        self.tick(now)

    def abort(self, host: str, text: str, status: int = INTERNAL) -> None:
        """Ends the job in disorder: this rank has failed with the traceback ``text``."""
        self._receive_abort(self.rank, Abort(self.rank, host, text, status))

    # What other ranks say.

    def receive(self, source: int, message: Message, now: float) -> None:
        """Takes one message of rank ``source``; raises ``InvariantBroken`` for one that can't come now."""
        if isinstance(message, Epoch):
            self._epochs.enter(message.number, self.phase)
        elif isinstance(message, Abort):
            self._receive_abort(source, message)
        elif self.state in (State.CLOSED, State.ABORTED):
            pass  # a rank that has gone down its own way no longer takes part
        elif isinstance(message, Work):
            self._receive_work(source, message)
        elif isinstance(message, Request):
            self._receive_request(source, message)
        elif isinstance(message, Reply):
            self._receive_reply(source, message, now)
        elif isinstance(message, Signal | Token):
            self._send_all(self._detector.receive(source, message))
        elif isinstance(message, Query):
            self._send_all(self.progress.receive_query(message))
        elif isinstance(message, Answer):
            self._send_all(self.progress.receive_answer(source, message))
            if self._collecting:
                self._collect(now)
        elif isinstance(message, Start):
            self._begin_phase(message.phase, now, source, Stamp(*message[-3:]))
        elif isinstance(message, Halt):
            self._receive_halt(source, message)
        elif isinstance(message, Stop):
            self._stop(message.status)
        elif isinstance(message, Ready):
            self._receive_ready(source)
        else:
            self._close()
        self.tick(now)

    def _begin_phase(self, phase: int, now: float, source: int = -1, stamp: Stamp = Stamp()) -> None:  # noqa: B008
        if phase <= self.phase:
            raise InvariantBroken(f"phase {phase} begins after phase {self.phase} on rank {self.rank}")
        if self.state is not State.WORKING:
            self._enter(State.WORKING)
        self.phase = phase
        self.queue.begin_phase(phase)
        self._thief.begin_phase(now)
        self._detector.begin_phase(phase)
        if source >= 0:
            self._send_all(self._detector.received(source, stamp))
        if self.rank == 0:
            self._query(now)  # which brings the sums to all ranks before the phase comes
        self.begun_with = self.progress.totals
        for child in self._children:
            self._send(child, Start(phase, *self._detector.sent(starting=True)))
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
            self._send_all(self._detector.received(source, Stamp(*work[-3:])))
            self._accept(work.tasks)

    def _check_current(self, source: int, phase: int) -> None:
        if phase != self.phase or self.state is not State.WORKING:
            where = f"in phase {self.phase}, {self.state.value}"
            raise InvariantBroken(f"work of phase {phase} from rank {source} at rank {self.rank} {where}")

    def _accept(self, tasks: Iterable[Task]) -> None:
        for task in tasks:
            if self.halted is not None and (self.queue.is_work(task) or task.phase != self.phase):
                self.dropped += 1
            else:
                self.queue.push(task)

    def _receive_request(self, source: int, request: Request) -> None:
        tasks: tuple[Task, ...] = ()
        if request.phase == self.phase and self.state is State.WORKING and not self._untouched:
            tasks = self.queue.give(self._running is not None)
        stamp = self._detector.sent() if tasks else ()
        self._send(source, Reply(request.phase, request.sequence, tasks, *stamp))

    def _receive_reply(self, source: int, reply: Reply, now: float) -> None:
        if not self._thief.answered(reply, now):
            if reply.tasks:
                raise InvariantBroken(f"rank {source} sent tasks that rank {self.rank} had not asked for")
            return
        if reply.tasks:
            self._check_current(source, reply.phase)
            self._send_all(self._detector.received(source, Stamp(*reply[-3:])))
            self._accept(reply.tasks)
            self._untouched = True
            self._touching = False

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
                self._send(owner, Work(self.phase, batch, *self._detector.sent()))

    # The end of a phase, and of the job.

    def _collect(self, now: float) -> None:
        """At the root, when a phase is over: wait for complete answers, then go on."""
        if not self._collecting:
            self._query(now)
            self._collecting = self.progress.sequence
        report = self.progress.report
        if report is None or report.sequence < self._collecting or report.silent:
            return
        if self._ending is None or (self.halted is not None and self._ending[0] is not None):
            following = None if self.halted is not None else self._director.next_phase(self.phase, report.totals)
            self._ending = following, self._director.status(report.totals, self.halted) if following is None else 0
        following, status = self._ending
        needed = status != 0 or self.restored >= 0 or following in self._limits.durable_before
        if not self.commit.is_done(report, now, needed=needed, halted=self.halted is not None, phase=self.phase):
            self._collecting, self._next_query = report.sequence + 1, now + COMMIT_POLL
            return
        self._collecting, self._ending = 0, None
        if following is None:
            lost = not status and self.halted is not None and report.durable == LOST  # all is done, and not on storage
            self._stop(self._director.status(report.totals, self.halted) if lost else status)
        else:
            self._begin_phase(following, now)
            self.tick(now)

    def _query(self, now: float) -> None:
        """At the root: asks for all counters, and settles when to ask again."""
        self._send_all(self.progress.ask())
        interval = self._limits.progress_interval
        if self._collecting:  # complete answers are needed, and may take longer than an interval: ever more patience
            interval *= 2 ** (self.progress.sequence - self._collecting)
        self._next_query = now + interval

    def _receive_halt(self, source: int, message: Halt) -> None:
        if self.halted is not None or self.state not in (State.WAITING, State.WORKING):
            return
        if self.rank and source != self._parent:
            if not self._halt_wished:
                self._halt_wished = True
                self._send(self._parent, message)
            return
        self.halted = message.reason
        self._epochs.is_ending = True
        self.dropped += self.queue.drop_work()
        for child in self._children:
            self._send(child, message)

    def _stop(self, status: int) -> None:
        if self._running or len(self.queue) or self._early:
            raise InvariantBroken(f"the job stops while rank {self.rank} has work")
        self._enter(State.STOPPING)
        self.status = status
        for child in self._children:
            self._send(child, Stop(status))

    def _receive_ready(self, source: int) -> None:
        if source not in self._awaited or self.state is not State.STOPPING:
            raise InvariantBroken(f"rank {source} is ready while rank {self.rank} is {self.state.value}")
        self._awaited.discard(source)

    def _barrier(self) -> None:
        self._enter(State.BARRIER)
        if self.rank:
            self._send(self._parent, Ready())
        else:
            self._close()

    def _close(self) -> None:
        self._enter(State.CLOSED)
        for child in self._children:
            self._send(child, Close())

    def _receive_abort(self, source: int, message: Abort) -> None:
        if self.state in (State.ABORTED, State.CLOSED):
            return
        self._enter(State.ABORTED)
        self.aborted = message
        for neighbour in (self._parent, *self._children):
            if neighbour not in (source, -1):
                self._send(neighbour, message)

    def _enter(self, state: State) -> None:
        self.state = follow(TRANSITIONS, self.state, state, self.rank)
