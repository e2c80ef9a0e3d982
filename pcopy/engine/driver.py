"""Driver of one rank: polls the transport, passes messages to the node, runs slices of tasks, and sends messages.

A task yields between slices, so that long work does not delay messages by much more than a few milliseconds. A task
that waits for a ticket is suspended, and other tasks run meanwhile. A rank without tasks to run sleeps in the
transport.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable

from pcopy import libc
from pcopy.engine.messages import Abort, CounterQuery, CounterSums, Halt, RingToken, TaskReply, TaskRequest
from pcopy.engine.node import RankNode
from pcopy.engine.states import State
from pcopy.engine.task import Task
from pcopy.engine.ticket import Outcome as Outcome
from pcopy.engine.ticket import TaskGenerator as TaskGenerator
from pcopy.engine.ticket import Ticket, WakeDescriptor
from pcopy.engine.transport import Transport
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

SLICE_SECONDS = 0.005
"""Seconds for which tasks run between two polls of the transport."""

LONGEST_SLEEP = 0.2
"""Maximum sleep in seconds. A signal that arrives while a rank sleeps is handled after that time at the latest."""

ABORT_GRACE_SECONDS = 3.0
"""Seconds for which a failing rank tries to pass the reason to rank 0 before it prints it itself."""

LOSS_GRACE_SECONDS = 1.0
"""Seconds for which a rank that has lost another one waits for an abort from rank 0 before it aborts the job itself."""

CLOSE_WAIT_SECONDS = 2.0
"""Seconds for which a rank of a failed job waits for tickets before it ends with operations still in progress."""

_TICKET_POLL_SECONDS = 0.01
"""Seconds between two checks of a ticket if the transport fails."""

_IDLE_MESSAGES = (TaskRequest, TaskReply, CounterQuery, CounterSums, RingToken)
"""Messages that idle ranks exchange. They do not count as activity; a reply with tasks causes activity by its tasks."""

STOP_WAIT_SECONDS = 2.0
"""Seconds for which a task whose ticket is done may run to its end in a job that is being stopped."""

_RunnableTask = tuple[Task, TaskGenerator, float]
"""A task that can run, and the time in seconds until which it continues in a job that is being stopped.

The time is that of ``STOP_WAIT_SECONDS`` if the task has waited for a ticket, otherwise 0.
"""


class _SuspendedTask(NamedTuple):
    """A task that waits for a ticket."""

    task: Task
    slices: TaskGenerator
    ticket: Ticket


class Driver:
    """Connects one node with its transport, its tasks and the clock."""

    def __init__(
        self,
        node: RankNode,
        transport: Transport,
        run_task: Callable[[Task], TaskGenerator],
        *,
        host: str,
        program: str = "pcopy",
        hindered: int = EXIT_STOPPED,
        on_report: Callable[[int, CounterSums], None] | None = None,
        stop_reason: Callable[[], Halt | None] = lambda: None,
        clock: Callable[[], float] = time.monotonic,
        wake: WakeDescriptor | None = None,
    ) -> None:
        """Create the driver of one rank.

        Args:
            run_task: starts a task and returns its generator.
            host: name of this host, for error messages.
            program: name of the program, for error messages.
            hindered: exit status of a job that ends because the system refuses a rank a resource.
            on_report: called on rank 0 with the phase and each new answer with the sums over all ranks.
            stop_reason: returns the reason to stop the job, or None.
            clock: returns the time in seconds.
            wake: descriptor that wakes this rank when a ticket is done; required if tasks wait for tickets.
        """
        self._node = node
        self._transport = transport
        self._run_task = run_task
        self._host = host
        self._program = program
        self._status_if_refused = hindered
        self._on_report = on_report
        self._stop_reason = stop_reason
        self._clock = clock
        self._last_reported = 0
        self._last_active = clock()
        """Last time at which this rank had work, or received a message other than those of idle ranks."""
        self._lost_peer: PeerLost | None = None
        self._loss_time = 0.0
        self._is_root_lost = False
        self._wake = wake
        self._runnable: deque[_RunnableTask] = (
            deque()
        )  # the first task is the one that runs; after a slice it moves to the end
        self._suspended: list[_SuspendedTask] = []
        self._is_ending = False
        self.idle_seconds = 0.0
        """Seconds for which this rank has slept because it had no work."""

    def run(self) -> int:
        """Run the job from its start to the final barrier; return the exit status that all ranks agreed on.

        Raise ``JobAborted`` if a rank failed. Its text is the traceback on the rank that has to print it, else it is
        empty.
        """
        try:
            return self._run()
        finally:
            self._close_suspended()  # last, after all messages and errors have been sent, because it may block

    def _run(self) -> int:
        """Run the job as ``run`` does, but leave suspended tasks open."""
        node = self._node
        try:
            if node.rank == 0:
                node.start(self._clock())
            while node.state not in (State.CLOSED, State.ABORTED):
                self._run_step_despite_loss()
            self._send_queued()
            self._report_sums(node)
        except PeerLost as error:
            self._is_root_lost = error.rank == 0
            status = self._status_if_refused if error.ended_itself else EXIT_INTERNAL
            node.abort(f"{self._program}: {error}; noticed by rank {node.rank} on {self._host}\n", status)
        except RESOURCE_EXCEPTIONS as error:
            text = f"{self._program}: rank {node.rank} on {self._host} cannot go on: {resource_error_text(error)}\n"
            node.abort(text, self._status_if_refused)
        except Exception:
            node.abort(f"{self._program}: rank {node.rank} on {self._host} failed:\n{current_traceback()}")
        finally:
            while self._runnable:
                self._runnable.popleft()[1].close()
            self._cancel_tickets()
        if node.abort_reason is not None:
            raise JobAborted(self._forward_abort(node.abort_reason), node.abort_reason.status)
        self._transport.close()
        return node.status

    def _run_step_despite_loss(self) -> None:
        """Run one step. If another rank is lost, first leave the report to rank 0, which may know how that rank
        died.
        """
        try:
            self._run_step()
        except PeerLost as error:
            if self._lost_peer is not None or 0 in (self._node.rank, error.rank):
                raise
            self._lost_peer, self._loss_time = error, self._clock()
            self._transport.expect_close(error.rank)
        if self._lost_peer is not None and self._clock() > self._loss_time + LOSS_GRACE_SECONDS:
            raise self._lost_peer

    def _run_step(self) -> None:
        """Receive messages, handle a request to stop, send messages, and run tasks for one slice."""
        node = self._node
        self._send_queued()
        self._receive(0.0 if self._is_busy() else min(max(0.0, node.next_tick_time() - self._clock()), LONGEST_SLEEP))
        now = self._clock()
        # Called even if the job is stopping already: the call also shows that this rank makes progress.
        self._halt_if_wished(now)
        if node.halt_reason is not None:
            self._stop_tasks(now)
        if self._suspended:
            self._resume_tasks()
        node.tick(now)
        self._report_sums(node)
        self._send_queued()  # so that an answer does not wait for the end of the slice
        self._run_tasks(now + SLICE_SECONDS)

    def _is_busy(self) -> bool:
        """Return True if there are messages to send or tasks to run."""
        return bool(self._node.outbox) or bool(self._runnable) or self._node.can_take_task

    def _receive(self, timeout: float) -> None:
        """Poll the transport for up to ``timeout`` seconds and pass the messages to the node."""
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
            if not isinstance(message, _IDLE_MESSAGES):
                self._last_active = now
            node.receive(source, message, now)
        if node.state is State.BARRIER and before is not State.BARRIER:
            for rank in range(node.size):
                if rank not in (node.parent, node.rank):
                    # A rank that has received Close may disconnect before this rank receives its own.
                    self._transport.expect_close(rank)

    def _report_sums(self, node: RankNode) -> None:
        """Call ``on_report`` if there is a new answer with the sums over all ranks."""
        report = node.counter_tree.latest_sums
        if self._on_report and report and report.sequence != self._last_reported:
            self._last_reported = report.sequence
            self._on_report(node.phase, report)

    def _run_tasks(self, deadline: float) -> None:
        """Run tasks until the deadline, or until there is a message to send."""
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
                        node.begun_tasks.record_slice(task)
                        return
            except StopIteration as end:
                outcome: Outcome = end.value
            else:
                self._suspend_task(ticket)
                continue
            ready.popleft()
            now = clock()
            # The halt precedes the end of the task: with its end the last phase of the job may end.
            is_wished = self._halt_if_wished(now)
            node.finish_task(task, outcome, now)
            if now >= deadline or is_wished:
                return

    def _halt_if_wished(self, now: float) -> bool:
        """Halt the node if there is a reason to stop the job; return True if there is one."""
        reason = self._stop_reason()
        if reason is not None and self._node.halt_reason is None:
            self._node.halt(reason, now)
        return reason is not None

    def _suspend_task(self, ticket: Ticket) -> None:
        """Suspend the running task until ``ticket`` is done. Raise ``InvariantBroken`` if it is a note."""
        node = self._node
        task, slices, _ = self._runnable.popleft()
        self._suspended.append(_SuspendedTask(task, slices, ticket))
        if not node.queue.is_work(task):
            raise InvariantBroken(f"rank {node.rank}: a note must not wait for a ticket: {task}")
        node.begun_tasks.suspend(task)
        if self._is_ending:
            ticket.cancel()

    def _resume_tasks(self) -> None:
        """Resume each suspended task whose ticket is done; it runs after the tasks that can run already."""
        until = self._clock() + STOP_WAIT_SECONDS
        for each in [each for each in self._suspended if each.ticket.is_done]:
            self._suspended.remove(each)
            self._runnable.append((each.task, each.slices, until))
            self._node.begun_tasks.resume(each.task)

    def _stop_tasks(self, now: float) -> None:
        """Stop this rank's tasks, because the job is being stopped.

        Work is dropped between two slices. Tasks that wait for a ticket end by themselves once their tickets are
        cancelled.
        """
        if not self._is_ending:
            self._is_ending = True
            self._cancel_tickets()
        for each in list(self._runnable):
            task, slices, until = each
            if until <= now and self._node.queue.is_droppable(task):
                self._runnable.remove(each)
                slices.close()
                self._node.drop_task(task, now)

    def _cancel_tickets(self) -> None:
        """Cancel the tickets of all suspended tasks."""
        for each in self._suspended:
            each.ticket.cancel()

    def _close_suspended(self) -> None:
        """Close each suspended task once its ticket, which has been cancelled, is done.

        A system call may block for as long as its file server does. After a limited time the remaining tasks are
        therefore left open: nothing that they refer to is closed or freed.
        """
        until = self._clock() + CLOSE_WAIT_SECONDS
        while self._suspended:
            if self._clock() > until:
                libc.keep_forever(self._suspended)
                return
            for each in [each for each in self._suspended if each.ticket.is_done]:
                self._suspended.remove(each)
                each.slices.close()
            if self._suspended:
                self._await_ticket()

    def _await_ticket(self) -> None:
        """Sleep until a ticket may be done. The job is being aborted, so messages that arrive are dropped."""
        try:
            self._transport.poll(LONGEST_SLEEP, 0.0, self._wake)
        except PeerLost as error:
            self._transport.expect_close(error.rank)
        except (PcopyError, OSError):
            time.sleep(_TICKET_POLL_SECONDS)
        if self._wake is not None:
            self._wake.clear()

    def _send_queued(self) -> None:
        """Pass all queued messages to the transport."""
        outbox = self._node.outbox
        while outbox:
            self._transport.send(*outbox.popleft())

    def _forward_abort(self, abort: Abort) -> str:
        """Forward the abort to other ranks; return the text that this rank must print.

        Rank 0 prints every abort. Another rank prints only its own failure, and only if rank 0 has neither received it
        nor closed its connection within ``ABORT_GRACE_SECONDS`` seconds. Otherwise the text is empty.
        """
        end = self._clock() + ABORT_GRACE_SECONDS
        root = self._node.rank == 0
        while self._clock() < end and not self._is_root_lost:
            try:
                self._send_queued()
                if root and not self._transport.has_unsent:
                    break
                self._transport.poll(0.05)
            except PeerLost as error:
                self._is_root_lost = error.rank == 0  # rank 0 has printed the reason, or can't any more
                self._transport.expect_close(error.rank)
            except OSError:  # possibly the error that has aborted the job
                break
        return abort.text if root or (abort.rank == self._node.rank and not self._is_root_lost) else ""
