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
from pcopy.engine.messages import Abort, Answer, Halt, Query, Reply, Request, Token
from pcopy.engine.node import Node
from pcopy.engine.states import State
from pcopy.engine.task import Task
from pcopy.engine.ticket import Outcome as Outcome
from pcopy.engine.ticket import Slices as Slices
from pcopy.engine.ticket import Ticket, Wake
from pcopy.engine.transport import Transport
from pcopy.errors import (
    HINDRANCES,
    INTERNAL,
    STOPPED,
    InvariantBroken,
    JobAborted,
    PcopyError,
    PeerLost,
    hindrance,
    story,
)
from pcopy.named import NamedTuple

SLICE = 0.005
"""Seconds for which tasks run between two polls of the transport."""

LONGEST_SLEEP = 0.2
"""Maximum sleep in seconds. A signal that arrives while a rank sleeps is handled after that time at the latest."""

ABORT_GRACE = 3.0
"""Seconds for which a failing rank tries to pass the reason to rank 0 before it prints it itself."""

LOSS_GRACE = 1.0
"""Seconds for which a rank that has lost another one waits for an abort from rank 0 before it aborts the job itself."""

CLOSING_PATIENCE = 2.0
"""Seconds for which a rank of a failed job waits for tickets before it ends with operations still in progress."""

_PAUSE = 0.01
"""Seconds between two checks of a ticket if the transport fails."""

_IDLE_TALK = (Request, Reply, Query, Answer, Token)
"""Messages that idle ranks exchange. They do not count as activity; a reply with tasks causes activity by its tasks."""

ENDING_PATIENCE = 2.0
"""Seconds for which a task whose ticket is done may run to its end in a job that is being stopped."""

_Ready = tuple[Task, Slices, float]
"""A task that can run, and the time in seconds until which it continues in a job that is being stopped.

The time is that of ``ENDING_PATIENCE`` if the task has waited for a ticket, otherwise 0.
"""


class _Suspended(NamedTuple):
    """A task that waits for a ticket."""

    task: Task
    slices: Slices
    ticket: Ticket


class Driver:
    """Connects one node with its transport, its tasks and the clock."""

    def __init__(
        self,
        node: Node,
        transport: Transport,
        run_task: Callable[[Task], Slices],
        *,
        host: str,
        program: str = "pcopy",
        hindered: int = STOPPED,
        on_report: Callable[[int, Answer], None] | None = None,
        stop_reason: Callable[[], Halt | None] = lambda: None,
        clock: Callable[[], float] = time.monotonic,
        wake: Wake | None = None,
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
        self._hindered = hindered
        self._on_report = on_report
        self._stop_reason = stop_reason
        self._clock = clock
        self._reported = 0
        self._lively = clock()
        """Last time at which this rank had work, or received a message other than those of idle ranks."""
        self._loss: PeerLost | None = None
        self._loss_told = 0.0
        self._root_lost = False
        self._wake = wake
        self._ready: deque[_Ready] = deque()  # the first task is the one that runs; after a slice it moves to the end
        self._suspended: list[_Suspended] = []
        self._is_ending = False
        self.idle = 0.0
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
                self._step_despite_loss()
            self._flush()
            self._tell(node)
        except PeerLost as error:
            self._root_lost = error.rank == 0
            status = self._hindered if error.gave_up else INTERNAL
            node.abort(f"{self._program}: {error}; noticed by rank {node.rank} on {self._host}\n", status)
        except HINDRANCES as error:
            text = f"{self._program}: rank {node.rank} on {self._host} cannot go on: {hindrance(error)}\n"
            node.abort(text, self._hindered)
        except Exception:
            node.abort(f"{self._program}: rank {node.rank} on {self._host} failed:\n{story()}")
        finally:
            while self._ready:
                self._ready.popleft()[1].close()
            self._cancel()
        if node.aborted is not None:
            raise JobAborted(self._end_in_disorder(node.aborted), node.aborted.status)
        self._transport.close()
        return node.status

    def _step_despite_loss(self) -> None:
        """Run one step. If another rank is lost, first leave the report to rank 0, which may know how that rank
        died.
        """
        try:
            self._step()
        except PeerLost as error:
            if self._loss is not None or 0 in (self._node.rank, error.rank):
                raise
            self._loss, self._loss_told = error, self._clock()
            self._transport.forgive(error.rank)
        if self._loss is not None and self._clock() > self._loss_told + LOSS_GRACE:
            raise self._loss

    def _step(self) -> None:
        """Receive messages, handle a request to stop, send messages, and run tasks for one slice."""
        node = self._node
        self._flush()
        self._receive(0.0 if self._busy() else min(max(0.0, node.wake_at() - self._clock()), LONGEST_SLEEP))
        now = self._clock()
        # Called even if the job is stopping already: the call also shows that this rank makes progress.
        self._halt_if_wished(now)
        if node.halted is not None:
            self._end_early(now)
        if self._suspended:
            self._resume()
        node.tick(now)
        self._tell(node)
        self._flush()  # so that an answer does not wait for the end of the slice
        self._work(now + SLICE)

    def _busy(self) -> bool:
        """Return True if there are messages to send or tasks to run."""
        return bool(self._node.outbox) or bool(self._ready) or self._node.may_take

    def _receive(self, timeout: float) -> None:
        """Poll the transport for up to ``timeout`` seconds and pass the messages to the node."""
        node = self._node
        before = node.state
        now = self._clock()
        is_idle = timeout > 0.0 and not self._suspended
        if not is_idle:
            self._lively = now
        arrived = self._transport.poll(timeout, now - self._lively, self._wake)
        if is_idle:
            self.idle += self._clock() - now
        if self._wake is not None:
            self._wake.clear()  # before the tickets are checked, so that none that becomes done later is missed
        for source, message in arrived:
            now = self._clock()
            if not isinstance(message, _IDLE_TALK):
                self._lively = now
            node.receive(source, message, now)
        if node.state is State.BARRIER and before is not State.BARRIER:
            for rank in range(node.size):
                if rank not in (node.parent, node.rank):
                    # A rank that has received Close may disconnect before this rank receives its own.
                    self._transport.forgive(rank)

    def _tell(self, node: Node) -> None:
        """Call ``on_report`` if there is a new answer with the sums over all ranks."""
        report = node.progress.report
        if self._on_report and report and report.sequence != self._reported:
            self._reported = report.sequence
            self._on_report(node.phase, report)

    def _work(self, deadline: float) -> None:
        """Run tasks until the deadline, or until there is a message to send."""
        node, clock, ready = self._node, self._clock, self._ready
        while not node.outbox:
            if self._suspended:
                self._resume()
            if not ready:
                taken = node.take()
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
                        node.under_way.sliced(task)
                        return
            except StopIteration as end:
                outcome: Outcome = end.value
            else:
                self._suspend(ticket)
                continue
            ready.popleft()
            now = clock()
            # The halt precedes the end of the task: with its end the last phase of the job may end.
            is_wished = self._halt_if_wished(now)
            node.finished(task, outcome, now)
            if now >= deadline or is_wished:
                return

    def _halt_if_wished(self, now: float) -> bool:
        """Halt the node if there is a reason to stop the job; return True if there is one."""
        reason = self._stop_reason()
        if reason is not None and self._node.halted is None:
            self._node.halt(reason, now)
        return reason is not None

    def _suspend(self, ticket: Ticket) -> None:
        """Suspend the running task until ``ticket`` is done. Raise ``InvariantBroken`` if it is a note."""
        node = self._node
        task, slices, _ = self._ready.popleft()
        self._suspended.append(_Suspended(task, slices, ticket))
        if not node.queue.is_work(task):
            raise InvariantBroken(f"rank {node.rank}: a note must not wait for a ticket: {task}")
        node.under_way.suspend(task)
        if self._is_ending:
            ticket.cancel()

    def _resume(self) -> None:
        """Resume each suspended task whose ticket is done; it runs after the tasks that can run already."""
        until = self._clock() + ENDING_PATIENCE
        for each in [each for each in self._suspended if each.ticket.is_done]:
            self._suspended.remove(each)
            self._ready.append((each.task, each.slices, until))
            self._node.under_way.resume(each.task)

    def _end_early(self, now: float) -> None:
        """Stop this rank's tasks, because the job is being stopped.

        Work is dropped between two slices. Tasks that wait for a ticket end by themselves once their tickets are
        cancelled.
        """
        if not self._is_ending:
            self._is_ending = True
            self._cancel()
        for each in list(self._ready):
            task, slices, until = each
            if until <= now and self._node.queue.may_drop(task):
                self._ready.remove(each)
                slices.close()
                self._node.drop(task, now)

    def _cancel(self) -> None:
        """Cancel the tickets of all suspended tasks."""
        for each in self._suspended:
            each.ticket.cancel()

    def _close_suspended(self) -> None:
        """Close each suspended task once its ticket, which has been cancelled, is done.

        A system call may block for as long as its file server does. After a limited time the remaining tasks are
        therefore left open: nothing that they refer to is closed or freed.
        """
        until = self._clock() + CLOSING_PATIENCE
        while self._suspended:
            if self._clock() > until:
                libc.never_freed(self._suspended)
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
            self._transport.forgive(error.rank)
        except (PcopyError, OSError):
            time.sleep(_PAUSE)
        if self._wake is not None:
            self._wake.clear()

    def _flush(self) -> None:
        """Pass all queued messages to the transport."""
        outbox = self._node.outbox
        while outbox:
            self._transport.send(*outbox.popleft())

    def _end_in_disorder(self, abort: Abort) -> str:
        """Forward the abort to other ranks; return the text that this rank must print.

        Rank 0 prints every abort. Another rank prints only its own failure, and only if rank 0 has neither received it
        nor closed its connection within ``ABORT_GRACE`` seconds. Otherwise the text is empty.
        """
        end = self._clock() + ABORT_GRACE
        root = self._node.rank == 0
        while self._clock() < end and not self._root_lost:
            try:
                self._flush()
                if root and not self._transport.unsent:
                    break
                self._transport.poll(0.05)
            except PeerLost as error:
                self._root_lost = error.rank == 0  # rank 0 has printed the reason, or can't any more
                self._transport.forgive(error.rank)
            except OSError:  # possibly the error that has aborted the job
                break
        return abort.text if root or (abort.rank == self._node.rank and not self._root_lost) else ""
