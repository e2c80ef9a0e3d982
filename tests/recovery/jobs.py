"""A whole simulated job, drawn from a seed: it is interrupted up to six times, resumed on other ranks, and then runs to
its end.

At the end the destination must equal the source, and the counters must equal the contents of the destination.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from random import Random
from typing import NamedTuple

from pcopy.engine.limits import EngineLimits
from pcopy.fsio.directories import MAX_CACHED_DIRECTORIES, MIN_CACHED_DIRECTORIES
from pcopy.tasks.base.phases import Phase
from tests.recovery.calls import Calls
from tests.recovery.datasets import JUST_BEFORE, LONG_BEFORE, STATE, Dataset, draw, observe
from tests.recovery.disk import EXT4, FUSE, Disk, Inode, Names
from tests.recovery.machine import T0, forget, installed_backend
from tests.recovery.mirrors import as_mirror
from tests.recovery.ranks import STOP, Run, Sizes, shrunk, watched
from tests.recovery.rules import ALL, Rules, broken
from tests.recovery.world import Chance, World

MOST_RESUMES = 5
BETWEEN_STARTS = 1000.0
"""Seconds from the start of a run to that of the next: longer than any run takes."""

MOST_STARTING = 200
"""Maximum number of the system call of a start at which the start is interrupted; most starts have fewer calls."""


class WrongResult(Exception):
    """The job has violated a rule; the text says which result is wrong."""


class End(NamedTuple):
    """The moment at which all ranks are killed, or at which the job is asked to stop.

    Fields:
        kind: ``call``: at a system call of the work. ``start``: at a system call of the start. ``event``: at an event
            of the simulation. ``written``: once some records are written. ``torn``: when one more record is written and
            not synced. ``phase``: some calls after a phase has begun. ``halt``: at an event, the job is asked to stop.
            ``never``: the run is not interrupted.
        after: number of calls, events or records before that moment.
        phase: number of the phase, for ``phase``.
    """

    kind: str
    after: int
    phase: int = 0


NOWHERE = End("never", 0)

_AROUND_NAMES = (Phase.STORE, Phase.NAME, Phase.FINISH)
"""Phases of a short job in which the first record is usually written."""

_PHASES = (
    *(Phase.COPY, Phase.LINK, Phase.STORE, Phase.NAME),
    *(Phase.STORE,) * 3,
    *(Phase.FINISH, Phase.STORE, Phase.SYNC),
)
_MIRROR_PHASES = (*_PHASES, *(Phase.DELETE,) * 6)
"""Phases from which the phase of an interruption of other jobs is drawn. STORE occurs often: most jobs have no such
phase, and without that few of the others would be interrupted in it.
"""


class Job:
    """One job. ``play`` raises ``WrongResult`` if its result is wrong.

    ``events`` describe the events of the job; a campaign checks by them that all kinds of events occur. ``calls`` is
    the number of system calls of all runs, ``starting`` that of their starts.
    """

    def __init__(
        self,
        seed: int,
        rules: Rules = ALL,
        ends: Sequence[End] | None = None,
        *,
        waits: bool = False,
        is_mirror: bool = False,
    ) -> None:
        """Draw a job.

        Args:
            seed: seed of all random choices.
            rules: the rules of the code that are in force.
            ends: interruption of each of the first runs; None: at random.
            waits: True if tasks wait for tickets.
            is_mirror: True if the job deletes what only the destination has.
        """
        self.seed, self.waits = seed, waits
        self.ends = ends
        self.calls = self.starting = 0
        self.random = random = Random(seed)
        """Random source of the next run, once the job has been drawn."""
        self.rules = rules
        self.dataset: Dataset = draw(random)
        self.kind = EXT4
        """Type of the file system."""
        if installed_backend() == "c":
            in_c = Chance(f"seed {seed}").stream("C backend")
            self.kind = in_c.choice((EXT4, EXT4, FUSE))
            self.dataset = self.dataset._replace(occupied_since=in_c.choice((JUST_BEFORE, LONG_BEFORE)))
        if is_mirror:
            self.dataset = as_mirror(Chance(f"seed {seed}").stream("mirror"), self.dataset)
        self.clients = random.choice((1, 1, 2, 3))
        self.names = random.choice((Names.ORDERED, Names.ANY) if self.clients == 1 else (Names.SERVER, Names.ANY))
        if self.kind == FUSE and self.names is Names.ANY:
            self.names = Names.SERVER if self.clients > 1 else Names.ORDERED  # no call syncs the times of a link
        self.resumes = random.randrange(MOST_RESUMES + 1)
        self.syncing = random.choice((0.0005, 0.004, 0.02))
        self.latency = random.choice((0.0003, 0.001, 0.005))
        self.cost = random.choice((2e-5, 1e-4))
        self.is_short = random.random() < 0.15
        """True if records are written only where a rule requires one."""
        self.events: list[str] = []
        self.messages: list[str] = []
        self._runs = 0
        self._job = ""
        self._resumed = 0
        self._is_kept = False
        """True if a record of the job has been on stable storage."""

    def play(self) -> None:
        """Run the job until it ends, with its interruptions, and check the result. Raise ``WrongResult`` if it is
        wrong.
        """
        self._begin_afresh()
        ends = 0
        while True:
            self.random = self._chance.stream("job")
            if self.ends is not None:
                end = self.ends[ends] if ends < len(self.ends) else NOWHERE
            else:
                end = self._draw_end() if ends <= self.resumes else NOWHERE
            run = self._run(end)
            self._runs += 1
            self.messages += run.sink.messages
            self._is_kept = self._is_kept or bool(run.records)
            self._job = run.name or self._job
            if run.status in (0, 1):
                break
            self.disk.forget_locks()
            if run.has_no_job:
                self._miss()
                continue
            if run.status is None:
                self.events.append(f"killed in {end.kind}" if run.number else "killed while beginning")
                self._lose_power()
            elif run.status == 75:
                self.events.append("halted")
            else:
                raise WrongResult(f"it ended with status {run.status}; {self.messages}")
            if run.is_complete:
                self.events.append("killed while ending")
                break
            ends += 1
            self._resume(run)
        self.events.append(f"resumed {self._resumed} times")
        self._check(run)

    @property
    def _chance(self) -> Chance:
        """Random source of the next run."""
        return Chance(f"seed {self.seed}, run {self._runs}")

    @property
    def _now(self) -> float:
        return T0 + self._runs * BETWEEN_STARTS

    # Starts and resumes.

    def _begin_afresh(self) -> None:
        """Begin again with an empty destination, since nothing of the job is on stable storage."""
        self.disk = Disk(self.names, self.kind)
        self.dataset.prepare(self.disk)
        self.messages.clear()
        self._job = ""
        self._resumed = 0
        self._is_kept = False

    def _draw_end(self) -> End:
        random = self.random
        if self.is_short and random.random() < 0.5:
            return End("phase", random.randrange(random.choice((10, 100))), random.choice(_AROUND_NAMES))
        kind = random.choice(("call", "event", "written", "torn", "phase", "phase", "halt"))
        if kind in ("written", "torn"):
            return End(kind, random.randrange(random.choice((3, 12))))
        if kind == "phase":
            phases = _MIRROR_PHASES if self.dataset.mirror else _PHASES
            return End(kind, random.randrange(random.choice((10, 300))), random.choice(phases))
        if kind == "call" and random.random() < 0.5:
            return End("start", random.randrange(MOST_STARTING))
        if kind == "call":
            return End(kind, random.randrange(random.choice((100, 600, 3000))))
        return End(kind, random.randrange(random.choice((40, 200, 600))))

    def _lose_power(self) -> None:
        clients = range(self.clients)
        if self.random.random() < 0.6:
            lost = self.random.sample(clients, self.random.randint(1, self.clients))
            self.events.append("power lost")
            self.disk.lose_power(set(lost), self._chance.stream("power"))
        if self.clients > 1:
            self.disk.settle_names()

    def _resume(self, run: Run) -> None:
        directory = self._at(STATE + b"/" + self._job.encode()) if self._job else None
        if directory is None or not directory.names.get(b"job"):
            self._miss()
            return
        if self.random.random() < 0.2:
            self.events.append("mended")
            self.disk.now = int(self._now * 1e9)
            self.dataset = self.dataset.mend(self.disk)
        self._resumed += 1
        self.events.append(f"resumed in phase {run.phase}, {'with' if self._is_kept else 'without'} records")

    def _miss(self) -> None:
        if self._is_kept:
            raise WrongResult(f"a job with records on storage is gone; {self.messages}")
        self.events.append("nothing to resume")
        self._begin_afresh()

    def _at(self, path: bytes) -> Inode | None:
        at: Inode | None = self.disk.root
        for name in path.split(b"/")[1:]:
            at = None if at is None else at.names.get(name)
        return at

    # One run.

    def _run(self, end: End) -> Run:
        random = self.random
        world = World(self._chance, self._now, grain=random.choice((1, 5, 50)), cost=self.cost)
        world.calls = Calls(self.disk, world, lambda: world.random.uniform(0.1, 1.0) * self.syncing)
        words = ["--resume", self._job] if self._job else self.dataset.words
        words = [f"--termination={random.choice(('tree', 'tree', 'ring'))}", "--checkpoint-store=pickle", *words]
        if not self.rules.synced_at_end:
            words.insert(0, "--no-sync")
        size, in_c = random.choice((1, 2, 2, 3, 3, 4, 5, 7)), self._chance.stream("C backend")
        threads = in_c.choice((2, 3, 8)) if installed_backend() == "c" and self.waits else 0
        run = Run(world, words, size, self.clients, self.latency, threads)
        forget()
        watch = _Watch(run, end)
        world.on_event = watch.event
        world.on_call = watch.call
        with ExitStack() as stack:
            waits = stack.enter_context(shrunk(self._draw_sizes(in_c)))
            stack.enter_context(watched(run, watch.storing))
            stack.enter_context(broken(self.rules))
            run.start()
            trouble = world.play()
        self.calls += world.count
        self.starting += world.starting
        if waits.most > 1:
            self.events.append("several batches under way")
        if run.divided:
            self.events.append("divided")
        if world.now > self._now + BETWEEN_STARTS / 2:
            trouble = trouble or f"it takes {world.now - self._now} s"
        if trouble:
            raise WrongResult(f"{trouble}; {self.messages + run.sink.messages}")
        return run

    def _draw_sizes(self, in_c: Random) -> Sizes:
        random, is_c = self.random, installed_backend() == "c"
        limits = EngineLimits(
            message_bytes=random.choice((700, 1 << 20)),
            scan_ahead_bytes=random.choice((800, 1 << 20)),
            queue_memory_bytes=random.choice((1500, 1 << 20)),
            first_steal_wait=0.002,
            longest_steal_wait=0.05,
            progress_interval=random.choice((0.004, 0.02)),
            fan_out=2,
            seconds_to_first_checkpoint_cut=random.choice((5.0,) if self.is_short else (0.003, 0.01, 0.1, 5.0)),
            checkpoint_cut_interval=random.choice((0.003, 0.01, 0.03, 0.2)),
            last_checkpoint_cut_timeout=random.choice((0.0, 0.02, 1.0)),
        )
        return Sizes(
            limits,
            small_file=in_c.choice((32, 4096)) if is_c else 32,
            poll=in_c.choice((10**5, 2 * 10**6)),
            chunk=16 * random.randrange(2, 6),
            batch=random.choice((1, 3, 256)),
            names=random.choice((3, 2048)),
            in_place=random.choice((0, 2, 64)),
            portion=random.choice((1e-6, 1e-6, 1e-3, 9.0)),
            slice=random.choice((0.0003, 0.002)),
            facts_wanted=random.choice((1 << 20,) if self.is_short else (600, 2000, 1 << 20)),
            facts_full=random.choice((3000, 1 << 20)),
            files_at_once=random.choice((1, 8)),
            open_directories=(1 if self.waits else MIN_CACHED_DIRECTORIES, MAX_CACHED_DIRECTORIES)[self.seed % 2],
            slots=random.choice((1, 2, 4)),
            waits=random.choice((0.1, 0.6)) if self.waits else 0.0,
        )

    # Checks of the result.

    def _check(self, run: Run) -> None:
        totals = self.dataset.totals()
        counted = {name: getattr(run.totals, name) for name in totals}
        if counted != totals:
            raise WrongResult(f"counted {counted}, not {totals}; {self.messages}")
        if run.status not in (None, 1 if totals["failed"] else 0):
            raise WrongResult(f"it ended with status {run.status}; {self.messages}")
        if run.status == 0 and (state := self._at(STATE)) is not None and state.names:
            raise WrongResult(f"it has ended, and a job is left: {[*state.names]}")
        if self.random.random() < 0.3:
            self.events.append("power lost in the end")
            self.disk.lose_power(range(self.clients), self.random)
        wanted, seen = self.dataset.expected(), observe(self.disk, self.dataset)
        for path in sorted(wanted.keys() | seen.keys()):
            if wanted.get(path) != seen.get(path):
                raise WrongResult(f"{b'/'.join(path)!r} is {seen.get(path)}, not {wanted.get(path)}; {self.messages}")
        is_ordered = (
            self.names is not Names.ANY
        )  # otherwise a power loss may keep the removal of a name and not its backup
        if is_ordered and self.dataset.mirror and (missing := self.dataset.mirror.missing_backups(self.disk)):
            raise WrongResult(f"deleted without a backup: {missing}; {self.messages}")
        if run.status == 0 and self._is_kept and (left := self._at(STATE + b"/" + self._job.encode())) is not None:
            job = left.names.get(b"job")
            if job is not None and b'"state": "over"' not in job.data:
                raise WrongResult(f"it has ended, and could be gone on with: {bytes(job.data)!r}")


class _Watch:
    """Interrupts a run at the moment that an ``End`` describes."""

    def __init__(self, run: Run, end: End) -> None:
        self._run, self._end = run, end
        self._in_phase = 0

    def call(self) -> None:
        end, run = self._end, self._run
        if end.kind == "call" and run.world.count > end.after:
            run.world.end()
        if end.kind == "start" and run.world.starting > end.after:
            run.world.end()
        if end.kind == "phase" and run.phase >= end.phase:
            self._in_phase += 1
            if self._in_phase > end.after:
                run.world.end()
        if end.kind == "written" and run.records > end.after:
            run.world.end()

    def event(self) -> None:
        end, run = self._end, self._run
        if end.kind in ("event", "halt") and run.world.events > end.after:
            if end.kind == "event":
                run.world.end()
            elif run.nodes:
                run.world.random.choice(run.signals).reason = STOP
                self._end = NOWHERE

    def storing(self) -> None:
        if self._end.kind == "torn" and self._run.records == self._end.after:
            self._run.world.end()
