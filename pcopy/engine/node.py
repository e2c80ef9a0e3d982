"""One rank of a job as a state machine without I/O: messages and the time are its input, messages and tasks its output.

The module uses no clock, random source or I/O; ``now`` (seconds) and a seeded ``Random`` are passed in. A job is a
series of phases, parts that all ranks begin together. The termination detector finds the end of each phase. After each
phase rank 0 collects the exact sums of all counters and decides what comes next. When the last phase is over, a rank
continues to answer requests for tasks until its own request is answered. Then a barrier runs up and down the tree of
ranks (each rank has ``EngineLimits.fan_out`` child ranks), after which no message is in transit.

docs/design/engine.md describes the states and the transitions between them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import compress
from random import Random
from typing import Any, ClassVar

from pcopy.engine.barrier import SubtreeReadyBarrier
from pcopy.engine.begun_tasks import BegunTasks
from pcopy.engine.commit import CheckpointSchedule
from pcopy.engine.journal import MessageOutbox, RankEpoch, TaskJournal
from pcopy.engine.limits import EngineLimits
from pcopy.engine.messages import (
    AbortMessage,
    AddressedTasksMessage,
    CloseTransportMessage,
    CounterQuery,
    CounterSums,
    CreditReturnMessage,
    EndJobMessage,
    EpochMarker,
    HaltMessage,
    Message,
    RingToken,
    StartPhaseMessage,
    SubtreeReadyMessage,
    TaskReply,
    TaskRequest,
    TerminationCreditStamp,
)
from pcopy.engine.phase_end import PhaseDirector, PhaseEndState
from pcopy.engine.progress import CounterTree, child_ranks, parent_rank
from pcopy.engine.queue import TaskQueue
from pcopy.engine.safra import make_termination_detector
from pcopy.engine.states import FINAL_RANK_STATES, RANK_STATE_TRANSITIONS, RankState, checked_next_state
from pcopy.engine.stealing import WorkStealingThief
from pcopy.engine.steering import NullRankSteering, RankSteering
from pcopy.engine.task import ANY_RANK, UNRECORDED, NewTask, Task, task_batches
from pcopy.engine.ticket import TaskOutcome
from pcopy.engine.victim import DivideTask, WorkStealingVictim
from pcopy.errors import EXIT_INTERNAL, InvariantBroken

TIME_NEVER = float("inf")
"""Time in seconds of an event that never becomes due (infinity)."""


class RankStateMachine:
    """State machine of one rank of a job: processes messages, keeps the queue of tasks, and decides when a phase is
    over. The caller (``RankDriver``) sends the messages in ``outbox`` after every call.
    """

    def __init__(
        self,
        rank: int,
        size: int,
        *,
        run: int,
        counters: int,
        director: PhaseDirector,
        random: Random,
        queue: TaskQueue,
        limits: EngineLimits = EngineLimits(),  # noqa: B008 (an immutable value)
        termination: str = "tree",
        journal: TaskJournal | None = None,
        divide: DivideTask = lambda task, hungry: (),
        steering: RankSteering = NullRankSteering(),  # noqa: B008 (it has no state)
    ) -> None:
        """Create the state machine.

        Args:
            rank: this rank.
            size: number of ranks.
            run: number of the run of the job (1, or more if the job is resumed), for the ids of new tasks.
            counters: number of counters.
            director: decides on rank 0 which phase follows and which tasks begin it.
            random: chooses the ranks from which this rank requests tasks.
            queue: tasks of this rank; the caller may have filled it.
            limits: sizes and times.
            termination: name of the termination detector, from ``TERMINATION_DETECTORS``.
            journal: records which tasks were spawned and done; None if the job is not recorded.
            divide: returns the tasks into which a task is divided, or nothing (see ``pcopy.engine.victim``).
            steering: says which tasks this rank may begin, and carries rank 0's orders.
        """
        self.rank, self.size = rank, size
        self.state = RankState.WAITING
        self.phase, self.status = -1, 0
        self.counters = [0] * counters
        self.queue = queue
        self.halt_reason: HaltMessage | None = None
        """Reason of an early stop; None until rank 0's order to stop reaches this rank."""
        self.abort_reason: AbortMessage | None = None
        """Reason of an abort; None until this rank has failed or learns that another one has."""
        self.dropped_count = 0
        """Number of tasks that this rank has dropped because the job is being stopped."""
        self.totals_at_phase_start: tuple[int, ...] = ()
        """Sums of each counter over all ranks at the start of the current phase."""
        self.resumed_phase = -1
        """The phase with which a resumed job begins; -1 in a new job."""
        self._has_requested_halt = False
        self._run = run
        self._last_task_number = 0
        self._director = director
        self._limits = limits
        self.parent = parent_rank(rank, limits.fan_out)
        self._children = child_ranks(rank, size, limits.fan_out)
        self._detector = make_termination_detector(termination, rank, size)
        self._thief = WorkStealingThief(rank, size, random, limits, steering)
        self._epochs = RankEpoch(journal)
        self.outbox = MessageOutbox(self._epochs)
        self._send, self._send_all = self.outbox.send, self.outbox.send_all
        self.counter_tree = CounterTree(
            rank, size, limits.fan_out, self.counters, lambda: self._epochs.durable_epoch, steering
        )
        self.cut_schedule = CheckpointSchedule(self._epochs, limits)
        self.begun_tasks = BegunTasks(rank, limits.task_slots)
        self._victim = WorkStealingVictim(queue, self.begun_tasks, divide, self._replace_by_portions, steering)
        self._early_tasks: list[tuple[int, AddressedTasksMessage]] = []
        self.barrier = SubtreeReadyBarrier(self._children)
        self._phase_end = PhaseEndState(director, limits, self.counter_tree, self.cut_schedule)

    # Calls of the driver.

    @property
    def is_job_over(self) -> bool:
        """On rank 0: True if the last phase is over. False before the first phase has begun."""
        return self._phase_end.is_job_over or self.state not in (RankState.WAITING, RankState.WORKING)

    def restore_tasks(self, phase: int, tasks: Iterable[Task], counts: Sequence[int]) -> None:
        """Add the tasks and counts with which this rank continues a resumed job; called before ``begin_job``.

        The tasks may include some of earlier phases: they had ended there, but their effect was only in memory
        (deferred completion, see ``pcopy.engine.ticket.TaskOutcome``). These run again in ``phase``.

        Args:
            phase: the phase in which the job was interrupted.
            tasks: the tasks that remain for this rank.
            counts: numbers to add to this rank's counters, by index.
        """
        self.resumed_phase = phase
        self.queue.begin_phase(phase)
        for task in tasks:
            self.queue.push_task(task._replace(phase=max(phase, task.phase)))
        for index, count in enumerate(counts):
            self.counters[index] += count

    def begin_job(self, now: float) -> None:
        """On rank 0: begin the first phase, or the phase in which a resumed job was interrupted."""
        self.cut_schedule.start(now)
        self._begin_phase(max(0, self.resumed_phase), now)

    @property
    def can_take_task(self) -> bool:
        """True if ``take_task`` would return a task: there is one that may be begun now."""
        works = self.state is RankState.WORKING and not self.cut_schedule.waits_for_storage
        return works and (
            self._victim.can_begin_task() or (self.begun_tasks.has_no_runnable_task and self.queue.is_next_task_note)
        )

    def take_task(self) -> Task | None:
        """Remove the task to begin now from the queue, and return it; return None if no task may be begun. The caller
        must later pass the task to ``finish_task`` or ``drop_task``.
        """
        # If no slot is free, ``can_take_task`` is True only if a note is next, and notes need no slot.
        task = self._victim.pop_task() if self.can_take_task else None
        if task is not None:
            self.begun_tasks.begin_task(task)
        return task

    def drop_task(self, task: Task, now: float) -> None:
        """End ``task`` without a result, because the job is being stopped. A resumed job runs it again. The task has
        begun and does not wait for a ticket.
        """
        self.dropped_count += self.queue.drop_one_task(task)
        self.finish_task(task, TaskOutcome(is_deferred=True), now)

    def finish_task(self, task: Task, outcome: TaskOutcome, now: float) -> None:
        """End ``task`` with ``outcome``, its result: add its counts to the counters, queue or send the tasks that it
        spawned, and record that it is done (unless its effect is only in memory, ``outcome.is_deferred``).

        Raise ``InvariantBroken`` if the task was not begun or has ended, or waits for a ticket.
        """
        self.begun_tasks.end_task(task)
        spawned, counts, completed, is_deferred, shares = outcome
        for index in compress(range(len(counts)), counts):  # nearly all are 0
            self.counters[index] += counts[index]
        self._add_new_tasks(spawned, is_deferred=is_deferred)
        if not is_deferred:
            self._epochs.record_done_task(task, counts, completed, shares)
        if not len(self.queue):
            self._thief.record_last_busy_time(now)
        self.perform_due_actions(now, answers=False)

    def _replace_by_portions(self, task: Task, portions: Sequence[NewTask]) -> None:
        """Replace ``task``, which was divided before it began, by its portions (new tasks that each do a part of the
        work): queue the portions and record them as spawned, and record ``task`` as done without counts.
        """
        self._add_new_tasks(portions)
        self._epochs.record_done_task(task)

    def perform_due_actions(self, now: float, *, answers: bool = True) -> None:
        """Do everything that is due at time ``now``, or that has become possible by a change of state: find out that
        the phase is over, request tasks from other ranks, record what was done (a cut), query the counters of all
        ranks, report this rank as ready at the end of the job.

        ``answers``: also answer pending requests of other ranks for tasks.
        """
        if answers:
            self._answer_requests(now)
        if self.state is RankState.WORKING and self.begun_tasks.has_room and not len(self.queue):
            self._check_phase_end_or_request_tasks(now)
        if self.state is RankState.WORKING and self.cut_schedule.advance_to_due_checkpoint(
            self.rank, self.counter_tree.latest_sums, now
        ):
            self._epochs.enter_next_epoch(self.phase)
        if self.state is RankState.WORKING and now >= self._phase_end.next_query_time:
            self._send_all(self._phase_end.start_counter_query(now))
            if self._phase_end.is_phase_over:
                self._end_phase(now)
        if (
            self.state is RankState.STOPPING
            and not self.barrier.awaited_children
            and not self._thief.is_request_pending
        ):
            self._set_state(RankState.BARRIER)
            ready = self.barrier.subtree_ready_message()
            if self.rank:
                self._send(self.parent, ready)
            else:
                self._close_rank_and_children()

    def _check_phase_end_or_request_tasks(self, now: float) -> None:
        """Check whether the phase is over on all ranks; if not, request tasks from another rank. Called while this rank
        has no queued tasks and could begin one.
        """
        if not len(self.begun_tasks):
            self._send_all(self._detector.advance_termination_detection())
        if self._detector.is_phase_over_on_all_ranks:
            self._end_phase(now)
        elif self.halt_reason is None and (request := self._thief.next_task_request(self.phase, now)):
            self._send(*request)

    def next_due_action_time(self) -> float:
        """Return the time in seconds at which ``perform_due_actions`` must be called even if no message arrives."""
        wake = self._phase_end.next_query_time if self.state is RankState.WORKING else TIME_NEVER
        hungry = self.state is RankState.WORKING and self.begun_tasks.has_room and not len(self.queue)
        if hungry and self._thief.can_request_tasks and self.halt_reason is None and not self._phase_end.is_phase_over:
            wake = min(wake, self._thief.next_request_time)
        return min(wake, self._victim.next_reply_deadline)

    def halt_job(self, reason: HaltMessage, now: float) -> None:
        """Stop the job in order because of ``reason``: every rank drops its queued tasks, and the phase ends as usual.

        A request to stop goes up the tree of ranks to rank 0, whose order to stop then comes down. So no request to
        stop is in transit any longer when a rank is ready to close. Only the first call of a rank has an effect.
        """
        self._receive_halt(self.rank, reason)
        self.perform_due_actions(now)

    def abort_job(self, text: str, status: int = EXIT_INTERNAL) -> None:
        """Abort the job because this rank has failed.

        Args:
            text: traceback or other reason of the failure, which one rank prints.
            status: exit status of all ranks.
        """
        self._receive_abort(self.rank, AbortMessage(self.rank, text, status))

    # Messages of other ranks.

    def receive_message(self, source: int, message: Message, now: float) -> None:
        """Process one message of rank ``source``; raise ``InvariantBroken`` if the current state does not allow it."""
        handler = self._HANDLERS.get(type(message))
        if handler is None:
            raise InvariantBroken(f"rank {self.rank}: unknown message from rank {source}: {message!r}")
        if self.state not in FINAL_RANK_STATES or isinstance(
            message, AbortMessage | EpochMarker
        ):  # a rank in a final state ignores all other messages
            handler(self, source, message, now)
        self.perform_due_actions(now)

    def _begin_phase(
        self,
        phase: int,
        now: float,
        source: int = -1,
        stamp: TerminationCreditStamp = TerminationCreditStamp(),  # noqa: B008
    ) -> None:
        """Begin ``phase`` on this rank, and send its child ranks the message to begin it.

        ``source`` is the rank that has sent this rank the message to begin the phase, and ``stamp`` the credits of the
        termination detector in it; rank 0 receives no such message. Raise ``InvariantBroken`` if ``phase`` is not
        higher than the current phase.
        """
        if phase <= self.phase:
            raise InvariantBroken(f"phase {phase} begins after phase {self.phase} on rank {self.rank}")
        if self.state is not RankState.WORKING:
            self._set_state(RankState.WORKING)
        self.phase = phase
        self.queue.begin_phase(phase)
        self._thief.reset_patience_of_task_requests(now)
        self._victim.forget_ranks_without_work()
        self._detector.begin_phase(phase)
        if source >= 0:
            self._send_all(self._detector.count_received_work_message(source, stamp))
        if self.rank == 0:
            self._send_all(
                self._phase_end.start_counter_query(now)
            )  # this brings the sums to all ranks before StartPhase
        self.totals_at_phase_start = self.counter_tree.totals
        for child in self._children:
            self._send(child, StartPhaseMessage(phase, self._detector.count_sent_work_message(starting=True)))
        early, self._early_tasks = self._early_tasks, []
        for sender, work in early:
            self._receive_addressed_tasks(sender, work)
        if self.rank == 0 and phase != self.resumed_phase:
            self._add_new_tasks(self._director.first_tasks_of_phase(phase), begins=phase == 0)

    def _receive_addressed_tasks(self, source: int, work: AddressedTasksMessage) -> None:
        """Queue the tasks in ``work``, which only this rank may run. If their phase has not begun on this rank yet,
        store the message until then.
        """
        if work.phase > self.phase and self.state in (RankState.WAITING, RankState.WORKING):
            self._early_tasks.append((source, work))  # the detector is informed once the phase has begun on this rank
        else:
            self._check_is_working_in_phase(source, work.phase)
            self._send_all(self._detector.count_received_work_message(source, work.stamp))
            self._queue_tasks(work.tasks)

    def _check_is_working_in_phase(self, source: int, phase: int) -> None:
        """Raise ``InvariantBroken`` unless this rank is working in ``phase``. ``source`` is the rank that has sent
        tasks of this phase, for the error.
        """
        if phase != self.phase or self.state is not RankState.WORKING:
            where = f"in phase {self.phase}, {self.state.value}"
            raise InvariantBroken(f"work of phase {phase} from rank {source} at rank {self.rank} {where}")

    def _queue_tasks(self, tasks: Iterable[Task]) -> None:
        """Queue ``tasks``. If the job is being stopped, drop all of them except notes (short tasks that bring data to
        this rank) of the current phase.
        """
        for task in tasks:
            if self.halt_reason is not None and (self.queue.is_droppable(task) or task.phase != self.phase):
                self.dropped_count += self.queue.drop_one_task(task)
            else:
                self.queue.push_task(task)

    def _answer_requests(self, now: float) -> None:
        """Reply to the requests of other ranks for tasks, as far as replies are due now."""
        gives_in = self.phase if self.state is RankState.WORKING and self.halt_reason is None else -1
        for source, (phase, sequence, _), tasks in self._victim.task_requests_to_answer_now(gives_in, now):
            self._send(
                source,
                TaskReply(
                    phase,
                    sequence,
                    tasks,
                    self._detector.count_sent_work_message() if tasks else TerminationCreditStamp(),
                ),
            )

    def _receive_task_reply(self, source: int, reply: TaskReply, now: float) -> None:
        is_asked_for = self._thief.receive_task_reply(reply, now)
        if reply.tasks and not is_asked_for:
            raise InvariantBroken(f"rank {source} sent tasks that rank {self.rank} had not asked for")
        if reply.tasks:
            self._check_is_working_in_phase(source, reply.phase)
            self._send_all(self._detector.count_received_work_message(source, reply.stamp))
            self._queue_tasks(reply.tasks)
            self.begun_tasks.record_received_tasks(len(reply.tasks))

    def _add_new_tasks(self, spawned: Iterable[NewTask], *, begins: bool = False, is_deferred: bool = False) -> None:
        """Give ids to new tasks, record them as spawned, and queue them or send them to the ranks that must run them.

        Args:
            spawned: the new tasks.
            begins: True if the job begins with these tasks; the journal records them as the base of the run, from which
                the job can be resumed.
            is_deferred: True if the completion of the spawning task is deferred. The journal does not record these
                tasks then, because a resumed job runs the spawning task again.
        """
        journal = None if is_deferred else self._epochs.journal
        addressed: dict[int, list[Task]] = {}
        base: list[Task] = []
        for spawn in spawned:
            if spawn.phase < self.phase:
                raise InvariantBroken(f"a task of phase {self.phase} spawned one of phase {spawn.phase}")
            self._last_task_number += 1
            task = Task((self._run, self.rank, UNRECORDED if is_deferred else self._last_task_number), *spawn)
            if begins:
                base.append(task)
            elif journal:
                journal.record_spawned_task(task)
            if task.owner in (ANY_RANK, self.rank):
                self._queue_tasks((task,))
            else:
                addressed.setdefault(task.owner, []).append(task)
        if begins and journal:
            journal.record_initial_tasks(self.phase, base)
        for owner, tasks in addressed.items():
            for batch in task_batches(tasks, self._limits.message_bytes):
                self._send(owner, AddressedTasksMessage(self.phase, batch, self._detector.count_sent_work_message()))

    # The end of a phase, and of the job.

    def _receive_counter_sums(self, source: int, answer: CounterSums, now: float) -> None:
        self._send_all(self.counter_tree.receive_answer(source, answer))
        if self._phase_end.is_phase_over:
            self._end_phase(now)

    def _end_phase(self, now: float) -> None:
        """On rank 0, when a phase is over: begin the next phase, or end the job. Until that can be decided, do nothing;
        the caller repeats the call.
        """
        self._send_all(self._phase_end.query_final_sums(now))
        following = self._phase_end.next_phase(now, self.phase, self.halt_reason, resumed=self.resumed_phase >= 0)
        if following is None:
            return
        if following.phase is None:
            self._begin_job_shutdown(following.status)
        else:
            self._begin_phase(following.phase, now)
            self.perform_due_actions(now)

    def _receive_halt(self, source: int, message: HaltMessage) -> None:
        """Process a message that the job is to be stopped. From the parent rank, or on rank 0, it is an order: drop
        queued work, and send the order to the child ranks. From another rank it is a request: send it to the parent,
        but only once.
        """
        if self.halt_reason is not None or self.state not in (RankState.WAITING, RankState.WORKING):
            return
        if self.rank and source != self.parent:
            if not self._has_requested_halt:
                self._has_requested_halt = True
                self._send(self.parent, message)
            return
        self.halt_reason = message
        self._epochs.is_ending = True
        self.dropped_count += self.queue.drop_all_work()
        for child in self._children:
            self._send(child, message)

    def _begin_job_shutdown(self, status: int) -> None:
        if len(self.begun_tasks) or len(self.queue) or self._early_tasks:
            raise InvariantBroken(f"the job stops while rank {self.rank} has work")
        self._set_state(RankState.STOPPING)
        self.status = status
        for child in self._children:
            self._send(child, EndJobMessage(status))

    def _receive_subtree_ready(self, source: int, ready: SubtreeReadyMessage) -> None:
        if source not in self.barrier.awaited_children or self.state is not RankState.STOPPING:
            raise InvariantBroken(f"rank {source} is ready while rank {self.rank} is {self.state.value}")
        self.barrier.record_child_ready(source, ready)

    def _close_rank_and_children(self) -> None:
        self._set_state(RankState.CLOSED)
        for child in self._children:
            self._send(child, CloseTransportMessage())

    def _receive_abort(self, source: int, message: AbortMessage) -> None:
        if self.state in FINAL_RANK_STATES:
            return
        self._set_state(RankState.ABORTED)
        self.abort_reason = message
        for neighbour in (self.parent, *self._children):
            if neighbour not in (source, -1):
                self._send(neighbour, message)

    def _set_state(self, state: RankState) -> None:
        self.state = checked_next_state(RANK_STATE_TRANSITIONS, self.state, state, self.rank)

    _HANDLERS: ClassVar[Mapping[type, Callable[[RankStateMachine, int, Any, float], None]]] = {
        StartPhaseMessage: lambda node, source, start, now: node._begin_phase(start.phase, now, source, start.stamp),
        AddressedTasksMessage: lambda node, source, work, _: node._receive_addressed_tasks(source, work),
        TaskRequest: lambda node, source, request, now: node._victim.receive_task_request(source, request, now),
        TaskReply: lambda node, source, reply, now: node._receive_task_reply(source, reply, now),
        CreditReturnMessage: lambda node, source, signal, _: node._send_all(
            node._detector.handle_termination_message(source, signal)
        ),
        RingToken: lambda node, source, token, _: node._send_all(
            node._detector.handle_termination_message(source, token)
        ),
        CounterQuery: lambda node, _, query, __: node._send_all(node.counter_tree.receive_query(query)),
        CounterSums: lambda node, source, answer, now: node._receive_counter_sums(source, answer, now),
        EpochMarker: lambda node, _, epoch, __: node._epochs.enter_epoch(epoch.number, node.phase),
        HaltMessage: lambda node, source, halt, _: node._receive_halt(source, halt),
        AbortMessage: lambda node, source, abort, _: node._receive_abort(source, abort),
        EndJobMessage: lambda node, _, stop, __: node._begin_job_shutdown(stop.status),
        SubtreeReadyMessage: lambda node, source, ready, _: node._receive_subtree_ready(source, ready),
        CloseTransportMessage: lambda node, _, __, ___: node._close_rank_and_children(),
    }
    """Function that processes the messages of each type; called with (node, sender, message, time in seconds)."""
