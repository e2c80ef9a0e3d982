"""One rank of a job: puts node, tasks, journal and transport together, and runs them."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from random import Random

from pcopy.checkpoint.journal import FactJournal
from pcopy.checkpoint.record import Window
from pcopy.engine.driver import Driver, Outcome, Slices
from pcopy.engine.limits import Limits
from pcopy.engine.messages import LAST_EPOCH, Answer, Halt
from pcopy.engine.node import Node
from pcopy.engine.phase_end import Director
from pcopy.engine.queue import TaskQueue
from pcopy.engine.steering import Steering
from pcopy.engine.task import Task
from pcopy.engine.transport import Transport
from pcopy.engine.victim import Divide
from pcopy.errors import HINDRANCES, OK, UNSYNCED, Hindered, NotPutAside, Refused, hindrance
from pcopy.fsio.close import oldest_sync
from pcopy.fsio.kernel.choose import make_kernel
from pcopy.fsio.kernel.interface import Doing, Kernel, Pool, Settings, Wake
from pcopy.fsio.storage import Storage
from pcopy.jobs.lifecycle import Keeping, KeptJob
from pcopy.jobs.rank_store import RankStore, restore_rank
from pcopy.jobs.spool import database_in, no_room, spool_in
from pcopy.launch.control import Desk
from pcopy.launch.in_flight import InFlight, modifying_at_once
from pcopy.launch.steersman import Steersman, Wanted
from pcopy.launch.tool import Ended, Settle, Tool
from pcopy.launch.watch.signals import StopSignals
from pcopy.launch.watch.watchdog import NoticePipe, Pulse, Voice, Watchdog
from pcopy.libc import type_of_file_system
from pcopy.named import NamedTuple
from pcopy.report.streams import tell as tell_line
from pcopy.tasks.base import counts
from pcopy.tasks.base.both_sides import RootDescriptors
from pcopy.tasks.base.hashing import Hashing
from pcopy.tasks.base.job import Job, Sink, Totals
from pcopy.tasks.base.rank import Rank
from pcopy.tasks.files.layouts import Layouts
from pcopy.tasks.runner import TaskRunner, is_slow_note, is_work, whereabouts

SLOTS = 8
"""Tasks that a rank may have under way where its kernel has something to wake it, and no pool of threads that grows."""

JOURNAL_PATIENCE = 1.0
"""Seconds that a rank which ends waits for its journal; by then all that was waited for is recorded."""

DATABASE_WINDOW = 1 << 20
"""Bytes of waiting work that a rank holds in memory where a database is asked for from the start."""


class RankSetup(NamedTuple):
    """What a rank needs for its share of a job.

    A job with ``keeping`` can be gone on with. The directories of its ``roots`` are open; one of the ``leaders`` is on
    each host. ``hosts`` names each rank's, and is empty if all ranks are on one; ``notices`` lead to rank 0 then. The
    user wants so many operations ``in_flight`` (0: automatic). Each rank ``gathers`` what a report
    tells of it. Only rank 0 has the rest. ``settle`` is asked at the end
    of a job whose items are all there. ``kept`` makes the job's directory before the first task. ``advice`` is told
    once there is a record, if the ranks may all be killed without a word. ``steered`` hears what holds once the user
    has changed the running job.
    """

    tool: Tool
    job: Job
    keeping: Keeping
    transport: Transport
    roots: Sequence[RootDescriptors]
    leaders: Sequence[int]
    hosts: Sequence[str]
    signals: StopSignals
    notices: NoticePipe | None = None
    in_flight: int = 0
    gathers: bool = False
    sink: Sink | None = None
    settle: Settle = lambda rank, totals: OK
    kept: KeptJob | None = None
    advice: str = ""
    steered: Callable[[str], object] = lambda state: None

    @property
    def itself(self) -> str:
        return f"rank {self.transport.rank} on {os.uname().nodename}"


def run_rank(setup: RankSetup) -> Ended:
    """Runs this rank's share of the job; raises ``JobAborted`` if any rank failed.

    What the system refuses to this rank itself, and not to an item, ends it in one line: raises ``Hindered``.
    """
    try:
        return _Running(setup).run()
    except HINDRANCES as error:
        raise Hindered(f"{setup.itself} cannot go on: {hindrance(error)}", setup.tool.unfinished) from None


def make_rank(setup: RankSetup) -> Rank:
    """What all tasks of this rank share."""
    options = setup.job.options
    digest = Hashing(options.hash, options.block_size).whole if options.hash else None
    settings = Settings(
        options.preserve, options.umask, options.dereference, digest, options.hash or "", options.block_size
    )
    kernel = make_kernel(settings)
    rank = Rank(
        setup.job,
        setup.transport.rank,
        setup.transport.size,
        setup.roots,
        kernel,
        setup.tool.visitor,
        sink=setup.sink,
        leaders=setup.leaders,
        hosts=setup.hosts,
        open_spool=spool_in(setup.keeping.spool),
    )
    rank.gathers = setup.gathers
    if options.delete and setup.keeping.directory:
        from pcopy.jobs.deleted import deleted_by
        from pcopy.report.streams import tell

        rank.deleted = deleted_by(setup.keeping.directory, rank.number, partial(tell, setup.tool.name))
    return rank


def open_store(setup: RankSetup, rank: Rank) -> tuple[FactJournal | None, RankStore | None]:
    """Where this rank records what it has done, if the job is kept."""
    if not setup.keeping.directory:
        return None, None
    rank.storage = Storage(type_of_file_system, rank.syncer, rank.own(Layouts).of)
    for target in {root.target: None for root in setup.roots}:
        status = os.fstat(target)
        rank.storage.add(target, status.st_dev, status.st_ino, rank.running.changed)
    rank.running.changed.close()  # nothing has been made in them yet
    first = first_counts(setup)
    store = RankStore(setup.keeping, setup.job.run, rank.number, rank.size, setup.kept, first)
    if setup.keeping.resumed and rank.number:
        store.take_lock()
    window = Window(setup.job.run, rank.number, rank.size, rank.destination_time)
    return FactJournal(window, store, rank.storage.sync), store


def steersman_of(setup: RankSetup, rank: Rank) -> Steersman:
    """What the user wants of this rank while it works."""
    options = setup.job.options
    wanted = Wanted(options.bwlimit, options.oplimit)
    return Steersman(rank.hosts.by_turns.index(rank.number), rank.size, rank.throttle, wanted)


def desk_of(setup: RankSetup, steersman: Steersman, ranks: int) -> Desk | None:
    """What the user can ask of the job while it runs, and what he is told; where it is kept, and on rank 0."""
    if setup.kept is None:
        return None
    return Desk(setup.keeping.directory, setup.job.run, ranks, setup.tool.stages, steersman, setup.steered)


def make_node(
    setup: RankSetup,
    rank: Rank,
    director: Director,
    journal: FactJournal | None,
    divide: Divide,
    steering: Steering,
) -> Node:
    """The engine's view of this rank, which has what there is to begin with."""
    tool, job, keeping = setup.tool, setup.job, setup.keeping
    size, on_host = rank.size, rank.size / len(setup.leaders)
    limits = limits_of(size, on_host, keeping)._replace(durable_before=tool.durable_before)
    if rank.kernel.wake is not None and rank.kernel.pool is None:
        limits = limits._replace(slots=SLOTS)
    overflow = None if keeping.store == "pickle" else database_in(keeping.spool)
    node = Node(
        rank.number,
        size,
        run=job.run,
        counters=counts.COUNTERS,
        director=director,
        random=Random(f"{job.name} {job.run} {rank.number}"),
        queue=TaskQueue(limits, spool_in(keeping.spool), overflow, is_work, is_slow_note),
        limits=limits,
        termination=job.options.termination,
        journal=journal,
        divide=divide,
        steering=steering,
    )
    node.queue.remembers = rank.keeps
    rank.counters, rank.begun_with = node.counters, lambda: node.begun_with
    rank.totals = lambda: node.progress.totals
    work, queue = node.under_way, node.queue
    rank.hands = lambda: size * work.slots
    rank.has_plenty = lambda: (size == 1 or queue.has_plenty) and (work.slots == 1 or queue.open >= work.slots)
    if keeping.resumed:
        restore_rank(node, keeping, job.run)
    elif rank.number == 0:
        node.counters[:] = first_counts(setup)
    return node


def first_counts(setup: RankSetup) -> list[int]:
    """Return what has been counted before the first task of a job of which nothing is on record."""
    first = setup.tool.first_counts(setup.job)
    if not setup.keeping.resumed:
        first[counts.DELETED] += setup.keeping.deleted
    return first


def limits_of(size: int, on_host: float, keeping: Keeping) -> Limits:
    """The budgets of a host are shared by its ranks.

    Where all ranks are on one host, or many share a core, idle ones ask less often: there are few to find work for, and
    their asking takes time from those that have some.
    """
    limits = Limits()
    in_core = DATABASE_WINDOW if keeping.store == "lmdb" else max(1 << 20, 4 * limits.in_core // size)
    crowd = max(1.0, on_host / len(os.sched_getaffinity(0)))
    return limits._replace(
        steal_backoff=limits.steal_backoff * crowd,
        steal_backoff_cap=limits.steal_backoff_cap * min(4.0, max(crowd, 2.0 if size == on_host else 1.0)),
        scan_ahead=min(limits.scan_ahead // 2, 2 * limits.scan_ahead // size),
        in_core=int(keeping.memory / on_host) if keeping.memory else in_core,
        cut_interval=keeping.interval,
    )


def oldest_call(pool: Pool | None) -> Doing | None:
    """Return what has been under way for longest: a row of the kernel, or the sync of a file. Any thread may ask."""
    row, sync = pool.oldest() if pool is not None else None, oldest_sync()
    calls = [call for call in (row, Doing(*sync) if sync else None) if call is not None]
    return min(calls, key=lambda call: call.since, default=None)


def in_flight_of(setup: RankSetup, rank: Rank, node: Node) -> InFlight | None:
    """What finds out how many operations are best under way, where there may be several."""
    on_host = -(-rank.size // len(setup.leaders))

    def modifying() -> int:
        places = {root.target if setup.tool.writes else root.source for root in setup.roots}
        return modifying_at_once(map(type_of_file_system, places), on_host)

    if rank.kernel.pool is None:
        return None
    return InFlight(rank.kernel.pool, node.under_way, setup.in_flight, on_host, modifying)


class KernelWake:
    """Fills ``pcopy.engine.ticket.Wake``: a ticket of the kernel is seen to be done once the kernel has been polled."""

    def __init__(self, kernel: Kernel, wake: Wake) -> None:
        self._kernel = kernel
        self._wake = wake
        self.fileno = wake.fileno

    def clear(self) -> None:
        self._wake.clear()
        self._kernel.poll()


class _Running:
    """A rank between its first task and its end."""

    def __init__(self, setup: RankSetup) -> None:
        self._setup = setup
        self._rank = make_rank(setup)
        self._journal, self._store = open_store(setup, self._rank)
        self._director = setup.tool.director(self._rank, setup.settle, setup.tool.unfinished)
        self._run_task = TaskRunner(self._rank)
        self._steersman = steersman_of(setup, self._rank)
        self._node = make_node(setup, self._rank, self._director, self._journal, self._run_task.divide, self._steersman)
        self._in_flight = in_flight_of(setup, self._rank, self._node)
        self._desk = desk_of(setup, self._steersman, self._rank.size)
        self._pulse = Pulse()
        self._advice = setup.advice
        self._unlocked = self._store if setup.hosts and self._rank.number else None
        self._driver: Driver | None = None
        self._began = time.monotonic()
        self._begun_with = tuple(self._node.counters)
        if setup.gathers:
            self._node.barrier.last_words = self._last_words

    def run(self) -> Ended:
        setup, journal, kernel = self._setup, self._journal, self._rank.kernel
        driver = self._driver = Driver(
            self._node,
            setup.transport,
            self._run,
            host=os.uname().nodename,
            program=setup.tool.name,
            hindered=setup.tool.unfinished,
            on_report=self._tell if setup.sink else None,
            stop_reason=self._stop_reason,
            wake=None if kernel.wake is None else KernelWake(kernel, kernel.wake),
        )
        say: Callable[[str], object] = partial(tell_line, setup.tool.name)
        if setup.sink is not None:
            say = setup.sink.notice
        elif setup.notices is not None:
            say = partial(setup.notices.send, self._rank.number)
        voice = Voice(self._rank.number, setup.hosts, say, setup.notices)
        watchdog = Watchdog(
            voice, self._pulse, lambda: whereabouts(self._rank), oldest=partial(oldest_call, kernel.pool)
        )
        if setup.kept is not None and journal is not None:
            try:
                setup.kept.note()
            except Refused as refused:  # which is told before the first item, and not when the user wants to go on
                journal.fail(refused)
        watchdog.start()
        if self._desk is not None:
            self._desk.start()  # its thread hears of no signals, as this one does not
        try:
            status = driver.run()
        finally:
            watchdog.stop()
            if self._desk is not None:
                self._desk.stop()
            self._end()
        self._rank.close()
        return self._director.ended._replace(
            status=status, gathered=self._node.barrier.words, is_durable=self._node.commit.is_complete
        )

    def _run(self, task: Task) -> Slices:
        node = self._node
        if self._unlocked is not None:
            self._lock_early(self._unlocked)
        try:
            return (yield from self._run_task(task))
        except NotPutAside as trouble:
            node.queue.trouble = trouble
        except HINDRANCES as error:  # no item's, or one that no task has taken for its own
            self._rank.stop(f"{self._setup.itself}: {hindrance(error)}")
        while node.halted is None:  # which is work that is dropped, and not done
            yield None
        return Outcome(held=True)

    def _lock_early(self, store: RankStore) -> None:
        """Before it writes anything: while a host that nobody can reach any more lives on, nobody else is to go on with
        the job. (On one host all ranks end together.)"""
        self._unlocked = None
        with suppress(Refused, OSError):  # the first record tells why
            store.take_lock()

    def _last_words(self, below: Sequence[bytes]) -> bytes:
        """What this rank has done in this run, and all those below it in the tree."""
        from pcopy.tasks.base.rank_sums import RankSums, RankWork

        assert self._driver is not None
        now, before = Totals(*self._node.counters), Totals(*self._begun_with)
        items = sum(getattr(now, name) - getattr(before, name) for name in ("copied", "skipped", "failed"))
        moved = sum(getattr(now, name) - getattr(before, name) for name in ("moved", "verified_bytes"))
        seconds, work = time.monotonic() - self._began, self._node.under_way
        busy = max(0.0, seconds - self._driver.idle)
        sums = self._rank.own(RankSums)
        row = RankWork(
            self._rank.number, items, moved, work.ended, round(busy, 3), round(seconds, 3), work.taken, work.given
        )
        sums.ranks.append(row)
        for words in below:
            sums.merge(words)
        return sums.words()

    def _stop_reason(self) -> Halt | None:
        """Asked between slices."""
        setup, journal, trouble = self._setup, self._journal, self._node.queue.trouble
        self._pulse.beats += 1
        if self._in_flight is not None:
            self._in_flight.look()
        if journal is not None:
            self._tell_of_record(journal)
        reason = setup.signals.reason or self._rank.stop_reason
        if reason is None and journal is not None and journal.data_lost:
            reason = Halt(journal.data_lost, UNSYNCED)
        if reason is None and trouble is not None:
            reason = Halt(no_room(setup.keeping.spool, trouble, setup.tool.spool_advice))
        return reason

    def _tell_of_record(self, journal: FactJournal) -> None:
        if self._advice and 0 < journal.durable < LAST_EPOCH and not self._node.is_ending:
            self._warn(self._advice)
            self._advice = ""
        if journal.warning is not None:
            if self._setup.notices is None or self._setup.notices.claim():
                self._warn(journal.warning)
            journal.warning = None

    def _warn(self, text: str) -> None:
        if self._setup.sink is not None:
            self._setup.sink.notice(text)
        else:
            tell_line(self._setup.tool.name, f"{self._setup.itself}: {text}")

    def _tell(self, phase: int, report: Answer) -> None:
        self._pulse.silent = report.silent
        told = self._setup.tool.phase_name(phase), Totals(*report.totals), report.silent
        if self._desk is not None:
            self._desk.tell(*told)
        if self._setup.sink is not None:
            self._setup.sink.progress(*told)

    def _end(self) -> None:
        """Closes what is recorded, and removes what nobody will go on with."""
        journal, rank, store = self._journal, self._rank, self._store
        ended = journal is None or journal.close(JOURNAL_PATIENCE)  # before it is asked what is durable
        if journal is None or (ended and journal.durable in (0, LAST_EPOCH)):  # else a resumed job needs what there is
            unrecorded = journal is None or journal.durable == LAST_EPOCH
            since = 1 if unrecorded else self._setup.job.run  # what earlier runs made is on record
            rank.stop_reason = rank.stop_reason or self._node.halted
            self._setup.tool.discard(rank, self._node.queue.forgotten(), since)
        rank.syncer.close()
        rank.storer.close()
        if rank.storage is not None:
            rank.storage.close()
        if rank.number and store is not None and store.lock is not None:
            store.lock.close()
