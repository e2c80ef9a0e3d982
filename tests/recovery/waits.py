"""What the tasks of a rank wait for: a backend that does their batches later, and tickets that the campaign adds."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from bench.simulation.tickets import SimulatedWake
from pcopy.engine.driver import RankDriver
from pcopy.engine.node import RankStateMachine
from pcopy.engine.task import Task
from pcopy.engine.ticket import TaskGenerator, TaskOutcome, WakeDescriptor
from pcopy.engine.transport import MessageTransport
from pcopy.fsio.backend.batches import FileOperationBatch
from pcopy.fsio.backend.interface import BackendSettings, BatchTicket, FileOperationBackend
from pcopy.fsio.backend.native import NativeBackend
from tests.recovery.machine import installed_backend
from tests.recovery.world import NEVER, Strand, World, current
from tests.support.fake_backend import FakeBackend

LONGEST_WAIT = 0.01
"""Seconds that a ticket of the campaign's takes at most."""

LONGEST_PAUSE = 0.002
"""Seconds at most until the backend has something to go on with."""


Result = TypeVar("Result")


class RankWake(SimulatedWake):
    """Wakes one rank for its backend, and for the tickets of the campaign."""

    def __init__(self, world: World) -> None:
        super().__init__(lambda: world.now)
        self._world = world
        self._backend_due = NEVER

    def set(self) -> None:
        """The backend will have something to go on with."""
        self._backend_due = min(self._backend_due, self._world.now + self._world.random.random() * LONGEST_PAUSE)

    @property
    def due(self) -> float:
        return min(super().due, self._backend_due)

    def clear(self) -> None:
        super().clear()
        if self._backend_due <= self._world.now:
            self._backend_due = NEVER

    def close(self) -> None:
        self._backend_due = NEVER


class DriverWake:
    """What the driver waits for; ``reported`` is what the rank itself would have it wait for, if anything."""

    def __init__(self, wake: RankWake, reported: WakeDescriptor | None) -> None:
        self._wake, self.reported = wake, reported

    @property
    def due(self) -> float:
        """When it is readable, in seconds."""
        return self._wake.due

    def fileno(self) -> int:
        return self._wake.fileno()

    def clear(self) -> None:
        self._wake.clear()
        if self.reported is not None:
            self.reported.clear()


class SlowBackend(FakeBackend):
    """Works in its world's time: a poll takes some, and none is made in a world that has ended."""

    def __init__(self, settings: BackendSettings, world: World, wake: RankWake, waits: Waits) -> None:
        super().__init__(settings, world.chance.stream(f"backend of {world.strand.name}").getrandbits(32), wake)
        self._world, self._waits = world, waits

    def submit_batch(self, batch: FileOperationBatch[Result]) -> BatchTicket[Result]:
        ticket = super().submit_batch(batch)
        self._waits.most = max(self._waits.most, len(self._under_way))
        return ticket

    def poll(self) -> list[BatchTicket[Any]]:
        self._world.call()
        return super().poll()


class _CountingNativeBackend(NativeBackend):
    """The C backend, whose threads are strands."""

    def __init__(self, settings: BackendSettings, waits: Waits) -> None:
        super().__init__(settings)
        self._waits = waits

    def submit_batch(self, batch: FileOperationBatch[Result]) -> BatchTicket[Result]:
        ticket = super().submit_batch(batch)
        self._waits.most = max(self._waits.most, len(self._tickets))
        return ticket


class Waits:
    """Those of one run. ``share``: how often a task waits where it could be told that its slice is over."""

    def __init__(self, share: float) -> None:
        self._share = share
        self.most = 0
        """Batches that a rank's backend had under way at once."""
        self._wakes: dict[Strand, RankWake] = {}

    def make_backend(self, settings: BackendSettings) -> FileOperationBackend:
        """For the rank that runs."""
        strand = current()
        assert strand is not None
        wake = self._wakes[strand] = RankWake(strand.world)
        if installed_backend() == "c":
            return _CountingNativeBackend(settings, self)
        return SlowBackend(settings, strand.world, wake, self)

    def make_driver(
        self,
        node: RankStateMachine,
        transport: MessageTransport,
        run_task: Callable[[Task], TaskGenerator],
        **options: Any,
    ) -> RankDriver:
        """For the rank that runs, which has its backend."""
        strand = current()
        assert strand is not None
        wake, world, share = self._wakes[strand], strand.world, self._share

        def run(task: Task) -> TaskGenerator:
            """Work waits before it begins, and where it has run a slice: others go on meanwhile, and end before it."""
            slices = run_task(task)
            can_wait = node.queue.is_work(task)
            try:
                while True:
                    if can_wait and world.random.random() < share:
                        yield wake.submit(world.random.random() * LONGEST_WAIT)
                    yield next(slices)
            except StopIteration as end:
                outcome: TaskOutcome = end.value
            finally:
                slices.close()
            if can_wait and world.random.random() < share:
                yield wake.submit(world.random.random() * LONGEST_WAIT)
            return outcome

        options["wake"] = DriverWake(wake, options.get("wake"))
        return RankDriver(node, transport, run, **options)
