"""One rank of a job: creates its node, tasks, journal and transport, and runs them."""

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
"""Tasks that a rank may have under way if its backend can wake it but has no pool of threads that grows."""

JOURNAL_PATIENCE = 1.0
"""Seconds that an ending rank waits for its journal; everything that must be recorded is recorded by then."""

DATABASE_WINDOW = 1 << 20
"""Bytes of waiting work that a rank keeps in memory if a database was asked for (``--checkpoint-store lmdb``)."""


class RankSetup(NamedTuple):
    """All that a rank needs for its share of a job.

    Fields:
    - ``tool``, ``job``: the program and the job.
    - ``keeping``: how the job is recorded.
    - ``transport``: messages between the ranks.
    - ``roots``: the open directories of the job's roots.
    - ``leaders``: the first rank of each host.
    - ``hosts``: the host of each rank; empty if all ranks are on this host.
    - ``signals``: the reason to stop, once a signal has arrived.
    - ``notices``: pipe to rank 0 for messages of forked ranks; None under a launcher.
    - ``in_flight``: number of operations under way; 0: automatic.
    - ``gathers``: collect what a report (``--report``) needs.

    On rank 0 only:
    - ``sink``: receives progress, failures and notices.
    - ``settle``: called when all items are processed; does the remaining work and returns the exit status.
    - ``kept``: the job directory.
    - ``advice``: message that is printed once a record exists, if launchers may kill all ranks without a message.
    - ``steered``: called with the limits after the user has changed them.
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
        """This rank and its host, for messages."""
        return f"rank {self.transport.rank} on {os.uname().nodename}"


def run_rank(setup: RankSetup) -> Ended:
    """Run this rank's share of the job; raise ``JobAborted`` if any rank failed.

    Raise ``Hindered`` for an error of the system that concerns the rank and no item, such as a lack of memory.
    """
    try:
        return _Running(setup).run()
    except HINDRANCES as error:
        raise Hindered(f"{setup.itself} cannot go on: {hindrance(error)}", setup.tool.unfinished) from None


def make_rank(setup: RankSetup) -> Rank:
    """Return the object that all tasks of this rank share."""
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
    """Return the journal of this rank and its place in the job directory; None twice if the job is not recorded."""
    if not setup.keeping.directory:
        return None, None
    rank.storage = Storage(type_of_file_system, rank.syncer, rank.own(Layouts).of)
    for target in {root.target: None for root in setup.roots}:
        status = os.fstat(target)
        rank.storage.add(target, status.st_dev, status.st_ino, rank.running.changed)
    rank.running.changed.close()  # Nothing has been created in the targets yet.
    first = first_counts(setup)
    store = RankStore(setup.keeping, setup.job.run, rank.number, rank.size, setup.kept, first)
    if setup.keeping.resumed and rank.number:
        store.take_lock()
    window = Window(setup.job.run, rank.number, rank.size, rank.destination_time)
    return FactJournal(window, store, rank.storage.sync), store


def steersman_of(setup: RankSetup, rank: Rank) -> Steersman:
    """Return the object that applies the limits of bandwidth, operations and active ranks to this rank."""
    options = setup.job.options
    wanted = Wanted(options.bwlimit, options.oplimit)
    return Steersman(rank.hosts.by_turns.index(rank.number), rank.size, rank.throttle, wanted)


def desk_of(setup: RankSetup, steersman: Steersman, ranks: int) -> Desk | None:
    """Return the object that handles ``--control`` and progress reports; None if the job is not recorded, or not
    on rank 0.
    """
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
    """Return the engine's node of this rank, with the tasks with which a resumed job begins."""
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
    """Return the counters before the first task of a job without records."""
    first = setup.tool.first_counts(setup.job)
    if not setup.keeping.resumed:
        first[counts.DELETED] += setup.keeping.deleted
    return first


def limits_of(size: int, on_host: float, keeping: Keeping) -> Limits:
    """Return the limits of one rank; it gets its part of the limits of its host.

    If all ranks are on one host, or many share a core, idle ranks ask for tasks less often: there are few ranks to find
    work for, and their requests take processor time from those that work.

    Args:
        size: number of ranks.
        on_host: average number of ranks per host.
        keeping: how the job is recorded.
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
    """Return the operation that has been under way for longest: a row of the backend, or the sync of a file; None if
    there is none.

    May be called from any thread.
    """
    row, sync = pool.oldest() if pool is not None else None, oldest_sync()
    calls = [call for call in (row, Doing(*sync) if sync else None) if call is not None]
    return min(calls, key=lambda call: call.since, default=None)


def in_flight_of(setup: RankSetup, rank: Rank, node: Node) -> InFlight | None:
    """Return the object that adapts the number of operations under way; None if the backend has no threads."""
    on_host = -(-rank.size // len(setup.leaders))

    def modifying() -> int:
        descriptors = {root.target if setup.tool.writes else root.source for root in setup.roots}
        return modifying_at_once(map(type_of_file_system, descriptors), on_host)

    if rank.kernel.pool is None:
        return None
    return InFlight(rank.kernel.pool, node.under_way, setup.in_flight, on_host, modifying)


class KernelWake:
    """A wake of the backend, implementing ``pcopy.engine.ticket.Wake``.

    A finished ticket becomes visible to the engine only after the backend has been polled.
    """

    def __init__(self, kernel: Kernel, wake: Wake) -> None:
        self._kernel = kernel
        self._wake = wake
        self.fileno = wake.fileno

    def clear(self) -> None:
        self._wake.clear()
        self._kernel.poll()


class _Running:
    """The run of one rank, from its first task to its end."""

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
        """Run the rank until the job ends; return how it ended."""
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
        report: Callable[[str], object] = partial(tell_line, setup.tool.name)
        if setup.sink is not None:
            report = setup.sink.notice
        elif setup.notices is not None:
            report = partial(setup.notices.send, self._rank.number)
        voice = Voice(self._rank.number, setup.hosts, report, setup.notices)
        watchdog = Watchdog(
            voice, self._pulse, lambda: whereabouts(self._rank), oldest=partial(oldest_call, kernel.pool)
        )
        if setup.kept is not None and journal is not None:
            try:
                setup.kept.note()
            except Refused as refused:  # Reported before the first item, and not only when the user tries to resume.
                journal.fail(refused)
        watchdog.start()
        if self._desk is not None:
            self._desk.start()  # After the watchdog, which blocks signals: the new thread inherits that.
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
        """Run one task, in slices. Errors of the rank itself stop the job, and the task counts as not done."""
        node = self._node
        if self._unlocked is not None:
            self._lock_early(self._unlocked)
        try:
            return (yield from self._run_task(task))
        except NotPutAside as trouble:
            node.queue.trouble = trouble
        except HINDRANCES as error:  # An error of the rank, or one that the task did not assign to an item.
            self._rank.stop(f"{self._setup.itself}: {hindrance(error)}")
        while node.halted is None:  # Wait for the halt, so that the task counts as dropped and not as done.
            yield None
        return Outcome(held=True)

    def _lock_early(self, store: RankStore) -> None:
        """Take this rank's lock before it writes anything; errors are reported with the first record.

        While a rank on an unreachable host is alive, no other run may resume the job. (Ranks on one host end together.)
        """
        self._unlocked = None
        with suppress(Refused, OSError):  # The first record reports the error.
            store.take_lock()

    def _last_words(self, below: Sequence[bytes]) -> bytes:
        """Return the work of this rank and of all ranks below it in the tree, for the report."""
        from pcopy.tasks.base.rank_sums import RankSums, RankWork

        assert self._driver is not None
        now, before = Totals(*self._node.counters), Totals(*self._begun_with)
        items = sum(getattr(now, name) - getattr(before, name) for name in ("copied", "skipped", "failed"))
        bytes_moved = sum(getattr(now, name) - getattr(before, name) for name in ("moved", "verified_bytes"))
        seconds, work = time.monotonic() - self._began, self._node.under_way
        busy = max(0.0, seconds - self._driver.idle)
        sums = self._rank.own(RankSums)
        row = RankWork(
            self._rank.number, items, bytes_moved, work.ended, round(busy, 3), round(seconds, 3), work.taken, work.given
        )
        sums.ranks.append(row)
        for words in below:
            sums.merge(words)
        return sums.words()

    def _stop_reason(self) -> Halt | None:
        """Return why the job must stop, or None; called between slices. Also adapts limits and reports new records."""
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
        """Report the first durable record, and a warning of the journal."""
        if self._advice and 0 < journal.durable < LAST_EPOCH and not self._node.is_ending:
            self._warn(self._advice)
            self._advice = ""
        if journal.warning is not None:
            if self._setup.notices is None or self._setup.notices.claim():
                self._warn(journal.warning)
            journal.warning = None

    def _warn(self, text: str) -> None:
        """Print a warning, on rank 0 through the sink."""
        if self._setup.sink is not None:
            self._setup.sink.notice(text)
        else:
            tell_line(self._setup.tool.name, f"{self._setup.itself}: {text}")

    def _tell(self, phase: int, report: Answer) -> None:
        """Pass the counters of all ranks to the screen and to progress reports."""
        self._pulse.silent = report.silent
        progress = self._setup.tool.phase_name(phase), Totals(*report.totals), report.silent
        if self._desk is not None:
            self._desk.tell(*progress)
        if self._setup.sink is not None:
            self._setup.sink.progress(*progress)

    def _end(self) -> None:
        """Close the journal, and remove temporary files that no later run will use."""
        journal, rank, store = self._journal, self._rank, self._store
        ended = journal is None or journal.close(JOURNAL_PATIENCE)  # Closed first: then ``durable`` is final.
        if journal is None or (ended and journal.durable in (0, LAST_EPOCH)):  # Otherwise a resume needs the files.
            unrecorded = journal is None or journal.durable == LAST_EPOCH
            since = 1 if unrecorded else self._setup.job.run  # The files of earlier runs are recorded.
            rank.stop_reason = rank.stop_reason or self._node.halted
            self._setup.tool.discard(rank, self._node.queue.forgotten(), since)
        rank.syncer.close()
        rank.storer.close()
        if rank.storage is not None:
            rank.storage.close()
        if rank.number and store is not None and store.lock is not None:
            store.lock.close()
