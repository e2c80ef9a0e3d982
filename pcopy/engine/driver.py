"""Runs one rank: polls the transport, feeds the node, runs slices of tasks, sends what the node wants to say.

A task is a generator that yields between slices, so that long work never delays a message by much more than ``SLICE``
seconds. A rank without work sleeps in the transport until a message comes or the node wants to be woken.
"""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable, Generator, Iterable, Sequence
from typing import NamedTuple

from pcopy.engine import tree
from pcopy.engine.messages import Abort, Answer, Query, Reply, Request, Token
from pcopy.engine.node import NEVER, Node
from pcopy.engine.progress import Report
from pcopy.engine.states import State
from pcopy.engine.task import Share, Spawn, Task, TaskId
from pcopy.engine.transport import Transport
from pcopy.errors import HINDRANCES, INTERNAL, STOPPED, JobAborted, PeerLost, hindrance

SLICE = 0.005
"""Seconds that tasks run between two polls of the transport."""

LONGEST_SLEEP = 0.2
"""Seconds; a signal that arrives while a rank sleeps is acted upon after that time at the latest."""

ABORT_GRACE = 3.0
"""Seconds that a failing rank gives the root to tell of it, before it does so itself."""

LOSS_GRACE = 1.0
"""Seconds that a rank which has lost another one waits for the root's abort before it aborts the job itself."""


_IDLE_TALK = (Request, Reply, Query, Answer, Token)
"""What ranks tell each other as long as nothing happens; a reply with tasks makes the rank busy by itself."""


class Outcome(NamedTuple):
    """What a finished task hands over at once: the tasks it spawned and what it counted.

    A task whose effect is only in this rank's memory is ``held``: a journal does not hear of it, so that a resumed job
    runs it again, until another task is done that has ``settled`` it. It may spawn tasks for its own rank only.
    ``shares`` tell what of the ``counts`` was counted under which label, for whoever has to take some of it back.
    """

    spawned: Iterable[Spawn] = ()
    counts: Sequence[int] = ()
    settled: Sequence[TaskId] = ()
    held: bool = False
    shares: Sequence[Share] = ()


Slices = Generator[None, None, Outcome]
"""A task as it runs. Closing it before its end must leave nothing half done behind."""


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
        on_report: Callable[[int, Report], None] | None = None,
        stop_reason: Callable[[], str | None] = lambda: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """``hindered`` is the status of a job that ends because the system refuses a rank what it needs."""
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
        self._task: Task | None = None
        self._slices: Slices | None = None

    def run(self) -> int:
        """The job, from its start to the barrier; returns the status that all ranks agreed on.

        Raises ``JobAborted`` if any rank failed: with the traceback where it is to be printed, else with no text.
        """
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
            node.abort(self._host, f"{self._program}: {error}; noticed by rank {node.rank} on {self._host}\n", status)
        except HINDRANCES as error:
            text = f"{self._program}: rank {node.rank} on {self._host} cannot go on: {hindrance(error)}\n"
            node.abort(self._host, text, self._hindered)
        except Exception:
            where = f"{self._program}: rank {node.rank} on {self._host} failed:\n"
            node.abort(self._host, where + traceback.format_exc())
        finally:
            self._drop_task()
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
        self._receive(0.0 if self._busy() else self._sleep_time())
        now = self._clock()
        if node.halted is None and (reason := self._stop_reason()) is not None:
            node.halt(reason, now)
        if node.halted is not None and self._task is not None and node.queue.is_work(self._task):
            node.queue.forget(self._task)
            self._drop_task()
            node.dropped += 1
            node.finished((), (), now, held=True)
        node.tick(now)
        self._tell(node)
        self._flush()  # an answer doesn't wait for the slice
        self._work(now + SLICE)

    def _busy(self) -> bool:
        node = self._node
        waits = node.state is not State.WORKING or node.commit.waits_for_storage or not len(node.queue)
        return bool(node.outbox) or self._task is not None or not waits

    def _sleep_time(self) -> float:
        wake = self._node.wake_at()
        return LONGEST_SLEEP if wake == NEVER else min(max(0.0, wake - self._clock()), LONGEST_SLEEP)

    def _receive(self, timeout: float) -> None:
        node = self._node
        before = node.state
        now = self._clock()
        if timeout <= 0.0:
            self._lively = now
        for source, message in self._transport.poll(timeout, now - self._lively):
            now = self._clock()
            if not isinstance(message, _IDLE_TALK):
                self._lively = now
            node.receive(source, message, now)
        if node.state is State.BARRIER and before is not State.BARRIER:
            above = tree.parent(node.rank, node.fan_out)
            for rank in range(node.size):
                if rank not in (above, node.rank):
                    self._transport.forgive(rank)  # whoever has been told to close may be gone before we are told

    def _tell(self, node: Node) -> None:
        report = node.progress.report
        if self._on_report and report and report.sequence != self._reported:
            self._reported = report.sequence
            self._on_report(node.phase, report)

    def _work(self, deadline: float) -> None:
        """Runs tasks and slices of them until the deadline, or until there is something to send."""
        node, clock = self._node, self._clock
        while not node.outbox or self._task is not None:
            if self._slices is None:
                self._task = task = node.take()
                if task is None:
                    return
                self._slices = self._run_task(task)
            step = self._slices.__next__
            try:
                while True:
                    step()
                    if clock() >= deadline:
                        node.sliced()
                        return
            except StopIteration as end:
                outcome: Outcome = end.value
            self._task = self._slices = None
            now = clock()
            spawned, counts, settled, held, shares = outcome
            node.finished(spawned, counts, now, settled=settled, held=held, shares=shares)
            if now >= deadline or self._stop_reason() is not None:
                return

    def _flush(self) -> None:
        outbox = self._node.outbox
        while outbox:
            self._transport.send(*outbox.popleft())

    def _drop_task(self) -> None:
        slices, self._task, self._slices = self._slices, None, None
        if slices is not None:
            slices.close()

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
