"""Driver of one rank: receives messages from the transport, passes them to the node (the rank's state machine), runs
tasks, and sends the node's messages.

A task is a generator. It yields every few milliseconds, so that long work does not delay messages; the work between two
yields is a *slice*. A task that waits for a ticket (a batch of system calls in progress) is suspended, and other tasks
run meanwhile. A rank without tasks to run sleeps in the transport until a message arrives.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable

from pcopy import libc
from pcopy.engine.messages import (
    AbortMessage,
    CounterQuery,
    CounterSums,
    HaltMessage,
    RingToken,
    TaskReply,
    TaskRequest,
)
from pcopy.engine.node import RankStateMachine
from pcopy.engine.states import RankState
from pcopy.engine.task import Task
from pcopy.engine.ticket import OperationTicket, WakeDescriptor
from pcopy.engine.ticket import TaskGenerator as TaskGenerator
from pcopy.engine.ticket import TaskOutcome as TaskOutcome
from pcopy.engine.transport import MessageTransport
from pcopy.errors import (
    EXIT_INTERNAL,
    EXIT_STOPPED,
    RESOURCE_EXCEPTIONS,
    InvariantBroken,
    JobAborted,
    PcopyError,
    PeerLost,
    current_traceback,
    resource_error_text,
)
from pcopy.fast_named_tuple import NamedTuple

TASK_SLICE_SECONDS = 0.001
"""Seconds for which tasks run before the transport is polled for messages again."""

LONGEST_SLEEP = 0.2
"""Maximum sleep in seconds. A signal that arrives while a rank sleeps is handled after that time at the latest."""

ABORT_GRACE_SECONDS = 3.0
"""Seconds for which a failing rank tries to send the reason to rank 0. After that time it prints the reason itself."""

PEER_LOSS_GRACE_SECONDS = 1.0
"""Seconds for which a rank that has lost the connection to another rank waits before it aborts the job itself. Rank 0
may know the cause, and abort the job with a better message.
"""

FAILED_JOB_TICKET_WAIT_SECONDS = 2.0
"""At the end of a failed job: maximum seconds for which a rank waits for operations in progress (tickets). Then the
process ends although they are not complete.
"""

_TICKET_POLL_SECONDS = 0.01
"""Seconds between two checks of a ticket (an operation in progress) in a failed job whose transport can no longer be
polled. Otherwise the poll of the transport also waits for tickets.
"""

_MESSAGES_OF_IDLE_RANKS = (TaskRequest, TaskReply, CounterQuery, CounterSums, RingToken)
"""Types of the messages that ranks without work exchange all the time. A rank that receives only these still counts as
idle. (A reply that brings tasks is one of them, but running these tasks ends the idleness.)
"""

STOPPED_TASK_GRACE_SECONDS = 2.0
"""In a job that is being stopped: seconds for which a task may continue after the operation that it waited for (its
ticket) is done. If the task has not ended by then, it is dropped at its next yield.
"""

_RunnableTask = tuple[Task, TaskGenerator, float]
"""A task that can run, the generator that runs it, and the time in seconds until which it may continue in a job that is
being stopped. That time is ``STOPPED_TASK_GRACE_SECONDS`` after the operation was done that the task waited for, or 0
if it has not waited.
"""


class _SuspendedTask(NamedTuple):
    """A task that waits for ``ticket``, an operation in progress. ``slices`` is the generator that runs the task, and
    continues when the ticket is done.
    """

    task: Task
    slices: TaskGenerator
    ticket: OperationTicket


class RankDriver:
    """Runs one rank: connects its node (the rank's state machine) with its transport, its tasks and the clock."""

    def __init__(
        self,
        node: RankStateMachine,
        transport: MessageTransport,
        run_task: Callable[[Task], TaskGenerator],
        *,
        host: str,
        program: str = "pcopy",
        status_if_refused: int = EXIT_STOPPED,
        on_report: Callable[[int, CounterSums], None] | None = None,
        stop_reason: Callable[[], HaltMessage | None] = lambda: None,
        clock: Callable[[], float] = time.monotonic,
        wake: WakeDescriptor | None = None,
    ) -> None:
        """Create the driver of one rank.

        Args:
            node: state machine of this rank.
            transport: sends and receives the messages.
            run_task: starts a task and returns its generator.
            host: name of this host, for error messages.
            program: name of the program, for error messages.
            status_if_refused: exit status of a job that ends because the operating system refuses a rank a resource,
                such as memory.
            on_report: called on rank 0 with the phase and each new answer with the sums over all ranks.
            stop_reason: called about once per slice; returns the reason to stop the job, or None.
            clock: returns the time in seconds.
            wake: descriptor that wakes this rank from its sleep when a ticket is done; required if tasks wait for
                tickets.
        """
        self._node = node
        self._transport = transport
        self._run_task = run_task
        self._host = host
        self._program = program
        self._status_if_refused = status_if_refused
        self._on_report = on_report
        self._stop_reason = stop_reason
        self._clock = clock
        self._last_reported = 0
        self._last_active = clock()
        """Last time at which this rank had work, or received a message that shows that work is going on (all but
        ``_MESSAGES_OF_IDLE_RANKS``).
        """
        self._lost_peer: PeerLost | None = None
        self._loss_time = 0.0
        self._is_root_lost = False
        self._wake = wake
        self._runnable: deque[_RunnableTask] = (
            deque()
        )  # the first task is the one that runs; when its time is over, it moves to the end
        self._suspended: list[_SuspendedTask] = []
        self._is_ending = False
        self.idle_seconds = 0.0
        """Seconds for which this rank has slept because it had no work."""

    def run(self) -> int:
        """Run the job from its start until all ranks are ready to exit; return the exit status that all ranks agreed
        on.

        Raise ``JobAborted`` if a rank failed. On the rank that has to print the reason, the text of the exception is
        that reason; on all other ranks it is empty.
        """
        try:
            return self._run_job()
        finally:
            self._close_suspended_tasks()  # last, after all messages and errors have been sent, because it may block

    def _run_job(self) -> int:
        """Run the job; return its exit status, or raise ``JobAborted``. Tasks that still wait for an operation stay
        open; the caller closes them.
        """
        node = self._node
        try:
            if node.rank == 0:
                node.begin_job(self._clock())
            while node.state not in (RankState.CLOSED, RankState.ABORTED):
                self._run_loop_step_despite_peer_loss()
            self._send_queued_messages()
            self._report_sums(node)
        except PeerLost as error:
            self._is_root_lost = error.rank == 0
            status = self._status_if_refused if error.ended_itself else EXIT_INTERNAL
            node.abort_job(f"{self._program}: {error}; noticed by rank {node.rank} on {self._host}\n", status)
        except RESOURCE_EXCEPTIONS as error:
            text = f"{self._program}: rank {node.rank} on {self._host} cannot go on: {resource_error_text(error)}\n"
            node.abort_job(text, self._status_if_refused)
        except Exception:
            node.abort_job(f"{self._program}: rank {node.rank} on {self._host} failed:\n{current_traceback()}")
        finally:
            while self._runnable:
                self._runnable.popleft()[1].close()
            self._cancel_awaited_operations()
        if node.abort_reason is not None:
            raise JobAborted(self._forward_abort(node.abort_reason), node.abort_reason.status)
        self._transport.close()
        return node.status

    def _run_loop_step_despite_peer_loss(self) -> None:
        """Run one step. If the connection to another rank is lost, raise ``PeerLost`` only ``PEER_LOSS_GRACE_SECONDS``
        seconds later: until then rank 0, which may know how that rank died, can abort the job with a better reason.
        """
        try:
            self._run_loop_step()
        except PeerLost as error:
            if self._lost_peer is not None or 0 in (self._node.rank, error.rank):
                raise
            self._lost_peer, self._loss_time = error, self._clock()
            self._transport.expect_end_of_connection(error.rank)
        if self._lost_peer is not None and self._clock() > self._loss_time + PEER_LOSS_GRACE_SECONDS:
            raise self._lost_peer

    def _run_loop_step(self) -> None:
        """Receive messages, handle a request to stop, send messages, run tasks for ``TASK_SLICE_SECONDS`` seconds."""
        node = self._node
        self._send_queued_messages()
        self._receive_messages(
            0.0 if self._is_busy() else min(max(0.0, node.next_due_action_time() - self._clock()), LONGEST_SLEEP)
        )
        now = self._clock()
        # Ask for the reason even if the job is stopping already: ``stop_reason`` also records that this rank makes
        # progress.
        self._halt_if_requested(now)
        if node.halt_reason is not None:
            self._stop_tasks(now)
        if self._suspended:
            self._resume_tasks()
        node.perform_due_actions(now)
        self._report_sums(node)
        self._send_queued_messages()  # so that an answer to a message does not wait until the tasks have run
        self._run_tasks(now + TASK_SLICE_SECONDS)

    def _is_busy(self) -> bool:
        """Return True if there are messages to send or tasks to run, so that this rank must not sleep."""
        return bool(self._node.outbox) or bool(self._runnable) or self._node.can_take_task

    def _receive_messages(self, timeout: float) -> None:
        """Wait for messages for up to ``timeout`` seconds, or until an operation of a suspended task is done; pass the
        messages to the node (the rank's state machine).
        """
        node = self._node
        before = node.state
        now = self._clock()
        is_idle = timeout > 0.0 and not self._suspended
        if not is_idle:
            self._last_active = now
        arrived = self._transport.poll(timeout, now - self._last_active, self._wake)
        if is_idle:
            self.idle_seconds += self._clock() - now
        if self._wake is not None:
            self._wake.clear()  # before the tickets are checked, so that none that becomes done later is missed
        for source, message in arrived:
            now = self._clock()
            if not isinstance(message, _MESSAGES_OF_IDLE_RANKS):
                self._last_active = now
            node.receive_message(source, message, now)
        if node.state is RankState.BARRIER and before is not RankState.BARRIER:
            for rank in range(node.size):
                if rank not in (node.parent, node.rank):
                    # A rank that has received ``CloseTransportMessage`` may disconnect before this rank receives its
                    # own.
                    self._transport.expect_end_of_connection(rank)

    def _report_sums(self, node: RankStateMachine) -> None:
        """Pass the sums of the counters over all ranks to the function ``on_report``, if there are newer sums than at
        the last call.
        """
        report = node.counter_tree.latest_sums
        if self._on_report and report and report.sequence != self._last_reported:
            self._last_reported = report.sequence
            self._on_report(node.phase, report)

    def _run_tasks(self, deadline: float) -> None:
        """Run tasks until the time ``deadline``, until there is a message to send, or until there is no task to run."""
        node, clock, ready = self._node, self._clock, self._runnable
        while not node.outbox:
            if self._suspended:
                self._resume_tasks()
            if not ready:
                taken = node.take_task()
                if taken is None:
                    return
                ready.append((taken, self._run_task(taken), 0.0))
            task, slices, until = ready[0]
            step = slices.__next__
            try:
                while (ticket := step()) is None or ticket.is_done:
                    if clock() >= deadline:
                        ready.popleft()
                        ready.append((task, slices, until if self._is_ending else 0.0))
                        node.begun_tasks.record_executed_task_slice(task)
                        return
            except StopIteration as end:
                outcome: TaskOutcome = end.value
            else:
                self._suspend_task(ticket)
                continue
            ready.popleft()
            now = clock()
            # A reason to stop takes effect before the task ends: with the end of the task the last phase of the job may
            # end.
            is_wished = self._halt_if_requested(now)
            node.finish_task(task, outcome, now)
            if now >= deadline or is_wished:
                return

    def _halt_if_requested(self, now: float) -> bool:
        """Stop the job in order if there is a reason to do so, such as a signal. Return True if there is one, even if
        the job is stopping already.
        """
        reason = self._stop_reason()
        if reason is not None and self._node.halt_reason is None:
            self._node.halt_job(reason, now)
        return reason is not None

    def _suspend_task(self, ticket: OperationTicket) -> None:
        """Suspend the running task until its ticket, an operation in progress, is done. Raise ``InvariantBroken`` if
        the task is a note (a short task that brings data to this rank), because notes must run even while a job
        stops.
        """
        node = self._node
        task, slices, _ = self._runnable.popleft()
        self._suspended.append(_SuspendedTask(task, slices, ticket))
        if not node.queue.is_work(task):
            raise InvariantBroken(f"rank {node.rank}: a note must not wait for a ticket: {task}")
        node.begun_tasks.suspend_task(task)
        if self._is_ending:
            ticket.cancel()

    def _resume_tasks(self) -> None:
        """Move the suspended tasks whose tickets (operations in progress) are done to the end of the queue of tasks
        that can run.
        """
        until = self._clock() + STOPPED_TASK_GRACE_SECONDS
        for each in [each for each in self._suspended if each.ticket.is_done]:
            self._suspended.remove(each)
            self._runnable.append((each.task, each.slices, until))
            self._node.begun_tasks.resume_task(each.task)

    def _stop_tasks(self, now: float) -> None:
        """Stop this rank's tasks, because the job is being stopped; called again in each step.

        Tasks that can run are dropped, except notes (short tasks that bring data to this rank). Operations in progress
        (tickets) are cancelled as far as they have not begun; a task that waits for one may run for
        ``STOPPED_TASK_GRACE_SECONDS`` seconds afterwards.
        """
        if not self._is_ending:
            self._is_ending = True
            self._cancel_awaited_operations()
        for each in list(self._runnable):
            task, slices, until = each
            if until <= now and self._node.queue.is_droppable(task):
                self._runnable.remove(each)
                slices.close()
                self._node.drop_task(task, now)

    def _cancel_awaited_operations(self) -> None:
        """Cancel the operations (tickets) that suspended tasks wait for, as far as these have not begun."""
        for each in self._suspended:
            each.ticket.cancel()

    def _close_suspended_tasks(self) -> None:
        """Close the generators of all suspended tasks, whose tickets (operations in progress) were cancelled. Wait for
        each ticket first.

        A system call may block for as long as a file server does not answer. After ``FAILED_JOB_TICKET_WAIT_SECONDS``
        the remaining tasks are therefore left open: nothing that they refer to is closed or freed, because the system
        call still uses it.
        """
        until = self._clock() + FAILED_JOB_TICKET_WAIT_SECONDS
        while self._suspended:
            if self._clock() > until:
                libc.keep_in_memory_until_exit(self._suspended)
                return
            for each in [each for each in self._suspended if each.ticket.is_done]:
                self._suspended.remove(each)
                each.slices.close()
            if self._suspended:
                self._wait_for_suspended_operation()

    def _wait_for_suspended_operation(self) -> None:
        """Sleep until an operation of a suspended task may be done, up to ``LONGEST_SLEEP`` seconds. The job is being
        aborted, so messages that arrive are dropped.
        """
        try:
            self._transport.poll(LONGEST_SLEEP, 0.0, self._wake)
        except PeerLost as error:
            self._transport.expect_end_of_connection(error.rank)
        except (PcopyError, OSError):
            time.sleep(_TICKET_POLL_SECONDS)
        if self._wake is not None:
            self._wake.clear()

    def _send_queued_messages(self) -> None:
        """Pass all queued messages to the transport."""
        outbox = self._node.outbox
        while outbox:
            self._transport.send(*outbox.popleft())

    def _forward_abort(self, abort: AbortMessage) -> str:
        """Send the queued messages, which include ``abort``, to other ranks; return the text that this rank must print.

        Rank 0 prints the reason of every abort. Another rank prints only its own failure, and only if the connection of
        rank 0 has not ended within ``ABORT_GRACE_SECONDS`` seconds (rank 0 ends it after it has printed the reason).
        Otherwise the returned text is empty.
        """
        end = self._clock() + ABORT_GRACE_SECONDS
        root = self._node.rank == 0
        while self._clock() < end and not self._is_root_lost:
            try:
                self._send_queued_messages()
                if root and not self._transport.has_unsent_data:
                    break
                self._transport.poll(0.05)
            except PeerLost as error:
                self._is_root_lost = error.rank == 0  # rank 0 has printed the reason, or can't any more
                self._transport.expect_end_of_connection(error.rank)
            except OSError:  # possibly the error that has aborted the job
                break
        return abort.text if root or (abort.rank == self._node.rank and not self._is_root_lost) else ""
