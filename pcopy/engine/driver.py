"""Runs one rank: polls the transport, feeds the node, runs slices of tasks, sends what the node wants to say.

A task yields between slices, so that long work never delays a message by much more than ``SLICE`` seconds. One that
waits for a ticket is suspended, and others go on meanwhile. A rank that has nothing to run sleeps in the transport.
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
"""Seconds that tasks run between two polls of the transport."""

LONGEST_SLEEP = 0.2
"""Seconds; a signal that arrives while a rank sleeps is acted upon after that time at the latest."""

ABORT_GRACE = 3.0
"""Seconds that a failing rank gives the root to tell of it, before it does so itself."""

LOSS_GRACE = 1.0
"""Seconds that a rank which has lost another one waits for the root's abort before it aborts the job itself."""

CLOSING_PATIENCE = 2.0
"""Seconds that a rank of a job that has failed waits for tickets; then it ends, whatever is under way."""

_PAUSE = 0.01
"""Seconds between two looks at a ticket where the transport fails."""

_IDLE_TALK = (Request, Reply, Query, Answer, Token)
"""What ranks tell each other as long as nothing happens; a reply with tasks makes the rank busy by itself."""

ENDING_PATIENCE = 2.0
"""Seconds that a task whose ticket is done may take to its end in a job that is to stop."""

_Ready = tuple[Task, Slices, float]
"""A task that can run, and the time until which it goes on although the job is to stop: its ticket is done."""


class _Suspended(NamedTuple):
    task: Task
    slices: Slices
    ticket: Ticket


class Driver:
    """Couples one node with its transport, its tasks and the clock."""

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
        """``hindered`` is the status of a job that ends because the system refuses a rank what it needs.

        ``wake`` is needed where tasks wait for tickets.
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
        """When this rank had something to do, or heard of it, for the last time."""
        self._loss: PeerLost | None = None
        self._loss_told = 0.0
        self._root_lost = False
        self._wake = wake
        self._ready: deque[_Ready] = deque()  # in turn; the first one is the one that runs
        self._suspended: list[_Suspended] = []
        self._is_ending = False
        self.idle = 0.0
        """Seconds that this rank has slept because there was nothing for it to do."""

    def run(self) -> int:
        """The job, from its start to the barrier; returns the status that all ranks agreed on.

        Raises ``JobAborted`` if any rank failed: with the traceback where it is to be printed, else with no text.
        """
        try:
            return self._run()
        finally:
            self._close_suspended()  # when all that can be told has been told, since it may wait

    def _run(self) -> int:
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
        """One step. A rank that misses another leaves it to the root to say so, which may know how that one died."""
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
        node = self._node
        self._flush()
        self._receive(0.0 if self._busy() else min(max(0.0, node.wake_at() - self._clock()), LONGEST_SLEEP))
        now = self._clock()
        self._halt_if_wished(now)  # also when the job is to stop already: that shows that this rank gets on
        if node.halted is not None:
            self._end_early(now)
        if self._suspended:
            self._resume()
        node.tick(now)
        self._tell(node)
        self._flush()  # an answer doesn't wait for the slice
        self._work(now + SLICE)

    def _busy(self) -> bool:
        return bool(self._node.outbox) or bool(self._ready) or self._node.may_take

    def _receive(self, timeout: float) -> None:
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
            self._wake.clear()  # before the tickets are looked at, so that none that is done later is missed
        for source, message in arrived:
            now = self._clock()
            if not isinstance(message, _IDLE_TALK):
                self._lively = now
            node.receive(source, message, now)
        if node.state is State.BARRIER and before is not State.BARRIER:
            for rank in range(node.size):
                if rank not in (node.parent, node.rank):
                    self._transport.forgive(rank)  # whoever has been told to close may be gone before we are told

    def _tell(self, node: Node) -> None:
        report = node.progress.report
        if self._on_report and report and report.sequence != self._reported:
            self._reported = report.sequence
            self._on_report(node.phase, report)

    def _work(self, deadline: float) -> None:
        """Runs tasks and slices of them until the deadline, or until there is something to send."""
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
            is_wished = self._halt_if_wished(now)  # ahead of the end of the task, with which the last phase may end
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
        node = self._node
        task, slices, _ = self._ready.popleft()
        self._suspended.append(_Suspended(task, slices, ticket))
        if not node.queue.is_work(task):
            raise InvariantBroken(f"a note waits on rank {node.rank}: {task}")
        node.under_way.suspend(task)
        if self._is_ending:
            ticket.cancel()

    def _resume(self) -> None:
        """Each task whose ticket is done can run again, behind those that can run already."""
        until = self._clock() + ENDING_PATIENCE
        for each in [each for each in self._suspended if each.ticket.is_done]:
            self._suspended.remove(each)
            self._ready.append((each.task, each.slices, until))
            self._node.under_way.resume(each.task)

    def _end_early(self, now: float) -> None:
        """The job is told to stop. Work between two slices is dropped; what waits for a ticket ends by itself."""
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
        for each in self._suspended:
            each.ticket.cancel()

    def _close_suspended(self) -> None:
        """Closes each task that was suspended once its ticket, which has been cancelled, is done.

        A call may hang for as long as its file server does. A task that still waits for one is left as it is: nothing
        that it refers to is closed or freed.
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
        """For the end in disorder: what arrives is nobody's any more."""
        try:
            self._transport.poll(LONGEST_SLEEP, 0.0, self._wake)
        except PeerLost as error:
            self._transport.forgive(error.rank)
        except (PcopyError, OSError):
            time.sleep(_PAUSE)
        if self._wake is not None:
            self._wake.clear()

    def _flush(self) -> None:
        outbox = self._node.outbox
        while outbox:
            self._transport.send(*outbox.popleft())

    def _end_in_disorder(self, abort: Abort) -> str:
        """Passes the news on and returns what this rank is to print of it: the root all, others only without root."""
        end = self._clock() + ABORT_GRACE
        root = self._node.rank == 0
        while self._clock() < end and not self._root_lost:
            try:
                self._flush()
                if root and not self._transport.unsent:
                    break
                self._transport.poll(0.05)
            except PeerLost as error:
                self._root_lost = error.rank == 0  # it has told of it, or can't any more
                self._transport.forgive(error.rank)
            except OSError:  # which has ended the job, it may be
                break
        return abort.text if root or (abort.rank == self._node.rank and not self._root_lost) else ""
