"""One run of a job as it is started: rank 0 reads the command line, then all ranks run, and rank 0 tells the end.

This is all that the campaign knows of how pcopy puts a rank together: what ``pcopy.launch.run`` does, with
strands in the place of processes and a simulated network. All else is real.
"""

from __future__ import annotations

import builtins
import contextlib
import io
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from functools import partial
from types import ModuleType
from typing import Any, NamedTuple

from pcopy.checkpoint import framing, journal
from pcopy.cli.pcopy import parse
from pcopy.engine import driver
from pcopy.engine.limits import EngineLimits
from pcopy.engine.messages import HaltMessage, Message
from pcopy.engine.node import RankStateMachine
from pcopy.engine.task import NewTask, Task
from pcopy.engine.ticket import WakeDescriptor
from pcopy.fsio import directories
from pcopy.fsio.backend import interface, native, python
from pcopy.jobs import lifecycle
from pcopy.jobs.directories import NoJobInDirectoryError
from pcopy.launch import rank
from pcopy.launch.group import RankGroup
from pcopy.launch.mounts import MountsBelowRoots, agree_on_mounts, open_source_and_target_directories
from pcopy.launch.tool import JobResult
from pcopy.launch.watch.signals import StopSignalHandler
from pcopy.tasks import copying, runner
from pcopy.tasks.base import distribution, dividing
from pcopy.tasks.base.job import Failure, JobCounters
from pcopy.tasks.base.kind import TaskKind
from pcopy.tasks.directories import scan_dir
from pcopy.tools.copy import COPY_TOOL, CopyJob
from pcopy.walk import listing
from tests.recovery.machine import modules, spool
from tests.recovery.waits import DriverWake, Waits
from tests.recovery.world import Signal, World

STOP = HaltMessage("SIGTERM", 15)
HOST = "host"

Change = tuple[Any, str, Any]
"""Where something is, its name there, and what is there instead for a while."""


class Sizes(NamedTuple):
    """Numbers of pcopy's that a run shrinks, so that few and small files reach every boundary.

    ``waits``: as in ``tests.recovery.waits``, where there is a backend to wait for, with ``slots`` for tasks. ``poll``:
    nanoseconds for which one poll of the C backend processes rows.
    """

    limits: EngineLimits
    small_file: int
    poll: int
    chunk: int
    batch: int
    names: int
    in_place: int
    portion: float
    slice: float
    facts_wanted: int
    facts_full: int
    files_at_once: int
    open_directories: int
    slots: int
    waits: float


@contextmanager
def shrunk(sizes: Sizes) -> Iterator[Waits]:
    """Makes runs of these sizes; what waits for tickets then is reported."""

    waits = Waits(sizes.waits)

    def limits(size: int, on_host: float, keeping: Any) -> EngineLimits:
        return sizes.limits

    def chunk_size(asked: int, block: int, size: int, known: int, ranks: int, unit: int = 0) -> int:
        return sizes.chunk

    changes = [
        (rank, "engine_limits", limits),
        (rank, "spool_factory", spool),
        (lifecycle, "spool_factory", spool),
        (rank, "RankWatchdog", _NoWatchdog),
        (rank, "RankDriver", partial(waits.make_driver if sizes.waits else driver.RankDriver, clock=time.monotonic)),
        (copying, "MAX_BATCH_FILES", sizes.batch),
        (listing, "NAMES_PER_BATCH", sizes.names),
        (scan_dir, "MAX_NAMES_IN_SCAN", sizes.in_place),
        (dividing, "MIN_PORTION_SECONDS", sizes.portion),
        (dividing, "MIN_PORTION_SECONDS_IF_ALL_BUSY", 4 * sizes.portion),
        (runner, "MIN_DIVISIBLE_COST", 0),
        (TaskKind, "min_items_per_portion", 1),
        (scan_dir.ScanNames, "min_items_per_portion", 1),
        (driver, "TASK_SLICE_SECONDS", sizes.slice),
        (python, "FILES_PER_POLL", sizes.files_at_once),
        (native, "POLL_NANOSECONDS", sizes.poll),
        (journal, "CHECKPOINT_CUT_AT_BYTES", sizes.facts_wanted),
        (journal, "WAIT_FOR_STORAGE_AT_BYTES", sizes.facts_full),
        *_everywhere(
            "affordable_cache_capacity", directories.affordable_cache_capacity, lambda: sizes.open_directories
        ),
        *_everywhere("chunk_size", distribution.chunk_size, chunk_size),
        *_everywhere("MAX_SMALL_FILE_BYTES", interface.MAX_SMALL_FILE_BYTES, sizes.small_file),
    ]
    if sizes.waits:
        changes += [(rank, "create_backend", waits.make_backend), (rank, "TASK_SLOTS_WITHOUT_THREAD_POOL", sizes.slots)]
    with patched(changes):
        yield waits


def _everywhere(name: str, real: Any, value: Any) -> list[Change]:
    """Return the change of ``name`` in each module that has ``real`` under it; there must be one."""
    found: list[Change] = [(module, name, value) for module in modules() if vars(module).get(name) is real]
    assert found, f"no module has {name}"
    return found


@contextmanager
def patched(changes: Sequence[Change]) -> Iterator[None]:
    """Gives attributes other values for a while. Raises ``AttributeError`` for one that is not there itself.

    Only a builtin may be hidden from a module that has none of this name: the module identifies its caller.
    """
    before = []
    try:
        for where, name, value in changes:
            if name not in vars(where) and not (isinstance(where, ModuleType) and hasattr(builtins, name)):
                raise AttributeError(f"nothing to change: {where!r} has no {name} of its own")
            before.append((where, name, vars(where).get(name, patched)))
            setattr(where, name, value)
        yield
    finally:
        for where, name, value in reversed(before):
            if value is patched:
                delattr(where, name)
            else:
                setattr(where, name, value)


class _NoWatchdog:
    def __init__(self, *_: object, **__: object) -> None:
        pass

    def start(self) -> None:
        pass

    def check_thread(self) -> None:
        pass

    def stop(self) -> None:
        pass


class Sink:
    """What the job tells on rank 0."""

    def __init__(self) -> None:
        self.messages: list[str] = []

    def receive_progress(self, phase: str, totals: JobCounters, silent: Sequence[int]) -> None:
        pass

    def receive_failures(self, failures: Sequence[Failure]) -> None:
        self.messages += [f"{failure.path!r}: {failure.operation}: {failure.message}" for failure in failures]

    def receive_notice(self, text: str) -> None:
        self.messages.append(text)


class Network:
    """Messages between the ranks; two of one sender to one receiver keep their order."""

    def __init__(self, world: World, size: int, latency: float) -> None:
        self.size = size
        self.world, self._latency = world, latency
        self._inboxes: list[list[tuple[int, Message]]] = [[] for _ in range(size)]
        self.arrived = [Signal(world) for _ in range(size)]
        self._last: dict[tuple[int, int], float] = {}

    def send(self, source: int, destination: int, message: Message) -> None:
        world = self.world
        at = world.now + world.random.uniform(0.05, 1.0) * self._latency
        at = self._last[source, destination] = max(at, self._last.get((source, destination), 0.0))
        world.later(at - world.now, partial(self._arrive, source, destination, message))

    def _arrive(self, source: int, destination: int, message: Message) -> None:
        self._inboxes[destination].append((source, message))
        self.arrived[destination].set()

    def take(self, rank: int, timeout: float) -> list[tuple[int, Message]]:
        self.world.call()
        if timeout > 0.0 and not self._inboxes[rank]:
            self.arrived[rank].wait(timeout)
        arrived, self._inboxes[rank] = self._inboxes[rank], []
        return arrived


class Transport:
    """One rank's end; fills ``pcopy.engine.transport.MessageTransport``."""

    def __init__(self, network: Network, rank: int) -> None:
        self._network, self.rank = network, rank
        self.world = network.world
        self.size = network.size
        self.has_unsent_data = False

    def send(self, destination: int, message: Message) -> None:
        self._network.send(self.rank, destination, message)

    def poll(self, timeout: float, calm: float = 0.0, wake: WakeDescriptor | None = None) -> list[tuple[int, Message]]:
        if isinstance(wake, DriverWake):
            timeout = min(timeout, max(0.0, wake.due - self.world.now))
            wake = wake.reported
        if wake is not None and (of_backend := self.world.calls.wakes.get(wake.fileno())) is not None:
            of_backend.on_set = self._network.arrived[self.rank].set
            timeout = 0.0 if of_backend.is_set else timeout
        return self._network.take(self.rank, timeout)

    def expect_end_of_connection(self, rank: int) -> None:
        pass

    def close(self) -> None:
        pass


class Run:
    """One run on ``size`` ranks. ``begin`` is rank 0's whole life; what came of it is there when the world is over."""

    def __init__(
        self, world: World, words: Sequence[str], size: int, clients: int, latency: float, threads: int = 0
    ) -> None:
        """``threads``: those of each rank's backend, if it has any; 0: automatic."""
        self.world, self.size, self.clients = world, size, clients
        self.status: int | None = None
        self.totals = JobCounters()
        self.is_complete = False
        """True if the ranks have done everything, and only the report of rank 0 remains."""
        self.sink = Sink()
        self.signals = [StopSignalHandler() for _ in range(size)]
        self.nodes: list[RankStateMachine] = []
        self.records = 0
        self.divided = 0
        self.name = ""
        self.number = 0
        self.has_no_job = False
        """True if there is no job to resume."""
        self._words, self._threads = words, threads
        self._network = Network(world, size, latency)

    @property
    def phase(self) -> int:
        return self.nodes[0].phase if self.nodes else -1

    def start(self) -> None:
        self.world.spawn("rank 0", 0, self._begin)

    def _begin(self) -> None:
        try:
            preparation = CopyJob(self._words, parse(self._words))
        except NoJobInDirectoryError:
            self.has_no_job = True
            return
        preparation.complete_preparation(self.size)
        job, kept = preparation.job, preparation.job_directory
        with closing(MountsBelowRoots(job, open_source_and_target_directories(job), targets=True)) as below:
            job = job._replace(mounts=agree_on_mounts(job, below, RankGroup()))
        if kept is not None:
            kept.record_mounts(job.mounts)
        self.name, self.number = job.name, job.run

        def begin(number: int, **leading: Any) -> JobResult:
            leaders = range(min(self.size, self.clients))
            transport, signals = Transport(self._network, number), self.signals[number]
            where = open_source_and_target_directories(job), leaders, self._hosts
            return rank.run_rank(
                rank.RankSetup(
                    COPY_TOOL,
                    job,
                    preparation.checkpoint_settings,
                    transport,
                    *where,
                    signals,
                    in_flight=self._threads,
                    **leading,
                )
            )

        others = [
            self.world.spawn(f"rank {number}", number % self.clients, partial(begin, number))
            for number in range(1, self.size)
        ]
        ended = begin(0, sink=self.sink, complete=preparation.complete_job, job_directory=kept)
        self.totals, self.is_complete = ended.totals, ended.status in (0, 1)
        for strand in others:  # as the parent of forked ranks does
            while not strand.is_over:
                strand.over.wait()
        self.status = preparation.report_job_result(ended, self.size)

    @property
    def _hosts(self) -> list[str]:
        return [f"{HOST}{number % self.clients}" for number in range(self.size)]


@contextmanager
def watched(run: Run, storing: Callable[[], None]) -> Iterator[None]:
    """Lets ``run`` know of its nodes and records; ``storing`` is called with one that is written and not synced."""
    make_node, append = RankStateMachine.__init__, framing.RecordFileWriter.append
    write_frame, divide, work = framing.write_record_frame, runner.TaskRunner.divide, driver.RankDriver.run

    def made(node: RankStateMachine, *arguments: Any, **options: Any) -> None:
        make_node(node, *arguments, **options)
        run.nodes.append(node)
        run.nodes.sort(key=lambda each: each.rank)

    def appended(writer: framing.RecordFileWriter, record: Any) -> None:
        append(writer, record)
        run.records += 1

    def divided(of_rank: runner.TaskRunner, task: Task, hungry: bool) -> list[NewTask]:
        portions = divide(of_rank, task, hungry)
        run.divided += bool(portions)
        return portions

    def written(file: Any, *pickles: bytes, **spooled: Any) -> None:
        write_frame(file, *pickles, **spooled)
        storing()

    def begun(of_rank: driver.RankDriver) -> int:
        run.world.begin()
        return work(of_rank)

    with patched(
        [
            (RankStateMachine, "__init__", made),
            (framing.RecordFileWriter, "append", appended),
            (framing, "write_record_frame", written),
            (runner.TaskRunner, "divide", divided),
            (driver.RankDriver, "run", begun),
        ]
    ):
        yield


@contextmanager
def quiet() -> Iterator[None]:
    """What pcopy prints is for nobody."""
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        yield
