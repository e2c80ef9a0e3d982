"""One rank of a copy: opens the roots, puts node, tasks and transport together, and runs them."""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Callable, Sequence
from random import Random
from typing import NamedTuple

from pcopy.checkpoint.journal import FactJournal
from pcopy.checkpoint.roots import type_of_file_system
from pcopy.cli.keeping import Keeper, Keeping, RankStore, open_journal, restore_rank
from pcopy.cli.notes import Notes
from pcopy.cli.signals import StopSignals, status_of, stopped_by
from pcopy.cli.spool import database_in, no_room, spool_in
from pcopy.cli.watchdog import Pulse, Watchdog
from pcopy.engine.driver import Driver, Outcome, Slices
from pcopy.engine.limits import Limits
from pcopy.engine.messages import LAST_EPOCH
from pcopy.engine.node import Node
from pcopy.engine.progress import Report
from pcopy.engine.queue import TaskQueue
from pcopy.engine.task import Task
from pcopy.engine.transport import Transport
from pcopy.errors import OK, NotPutAside, Refused
from pcopy.fsio.python_kernel import PythonKernel
from pcopy.fsio.storage import Storage
from pcopy.tasks import counts
from pcopy.tasks.context import Context, RootDescriptors
from pcopy.tasks.director import JobDirector
from pcopy.tasks.hashing import Hashing
from pcopy.tasks.job import Identity, Job, Totals
from pcopy.tasks.open_files import discard_all
from pcopy.tasks.phases import phase_name
from pcopy.tasks.runner import TaskRunner, is_work
from pcopy.tasks.sign_state import SignState
from pcopy.tasks.sinks import Sink
from pcopy.tasks.whereabouts import whereabouts
from pcopy.text import shown

JOURNAL_PATIENCE = 1.0
"""Seconds that a rank which ends waits for its journal; by then all that was waited for is recorded."""

DATABASE_WINDOW = 1 << 20
"""Bytes of waiting work that a rank holds in memory where a database is asked for from the start."""


class Ended(NamedTuple):
    """How a job ended, with the exact sums on rank 0."""

    status: int
    totals: Totals
    halted: str | None


Settle = Callable[[SignState, Totals], int]


def all_well(sign: SignState, totals: Totals) -> int:
    """Nothing is left to do at the end."""
    return OK


def open_roots(job: Job, *, compare_devices: bool = True) -> list[RootDescriptors]:
    """Opens every root's two directories; raises ``Refused`` if one is not what it was when it was resolved.

    Device numbers are compared only where they were read on this host.
    """
    opened: dict[tuple[bytes, bool], int] = {}

    def open_once(path: bytes, identity: Identity, on_source: bool) -> int:
        if (path, on_source) not in opened:
            opened[path, on_source] = _open_directory(path, on_source)
        status = os.fstat(opened[path, on_source])
        if status.st_ino != identity[1] or (compare_devices and status.st_dev != identity[0]):
            raise Refused(f"{shown(path)}: is not the same directory on {socket.gethostname()}")
        return opened[path, on_source]

    return [
        RootDescriptors(open_once(root.source, root.source_id, True), open_once(root.target, root.target_id, False))
        for root in job.roots
    ]


def _open_directory(path: bytes, on_source: bool) -> int:
    """Without a trace on its access time if that is allowed; for searching only if reading is not."""
    flags = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
    for extra in (os.O_NOATIME, 0, os.O_PATH) if on_source else (0, os.O_PATH):
        try:
            return os.open(path, flags | extra)
        except PermissionError as error:
            refusal = error
        except OSError as error:
            raise Refused(f"{shown(path)}: cannot be opened: {error.strerror}") from None
    raise Refused(f"{shown(path)}: cannot be opened: {refusal.strerror}")


def run_rank(
    job: Job,
    transport: Transport,
    roots: Sequence[RootDescriptors],
    leaders: Sequence[int],
    sink: Sink | None,
    signals: StopSignals,
    *,
    hosts: Sequence[str] = (),
    notes: Notes | None = None,
    settle: Settle = all_well,
    keeping: Keeping = Keeping(),  # noqa: B008 (an immutable value)
    keeper: Keeper | None = None,
) -> Ended:
    """Runs this rank's share of the job; raises ``JobAborted`` if any rank failed.

    ``settle`` is asked at rank 0 at the end of a job whose items are all there: what becomes of the signature, and the
    exit status.

    ``hosts`` names each rank's host, if they are not all on this one; ``notes`` leads to rank 0 if they are. A job with
    ``keeping`` can be gone on with; on rank 0, ``keeper`` makes its directory at the first cut.
    """
    rank, size = transport.rank, transport.size
    limits = _limits(size, size / len(leaders), keeping)
    options = job.options
    spool = spool_in(keeping.spool)
    overflow = None if keeping.store == "pickle" else database_in(keeping.spool)
    digest = Hashing(options.hash, options.block_size).whole if options.hash else None
    kernel = PythonKernel(options.preserve, options.umask, follow=options.dereference, digest=digest)
    context = Context(job, rank, size, roots, kernel, sink=sink, leaders=leaders, hosts=hosts, open_spool=spool)
    journal: FactJournal | None = None
    store: RankStore | None = None
    if keeping.directory:
        context.storage = Storage(type_of_file_system, context.syncer)
        for root in roots:
            context.storage.add(root.target, os.fstat(root.target).st_dev)
        journal, store = open_journal(keeping, job.run, rank, size, context.storage, keeper, _first_counts(job))
    status_of_reason = stopped_by if keeping.directory else status_of
    director = JobDirector(job, leaders, status_of_reason, context, lambda totals: settle(context.sign, totals))
    node = Node(
        rank,
        size,
        run=job.run,
        counters=counts.COUNTERS,
        director=director,
        random=Random(f"{job.name} {job.run} {rank}"),
        queue=TaskQueue(limits, spool, overflow, is_work),
        limits=limits,
        termination=options.termination,
        journal=journal,
    )
    context.attach(node.counters, lambda: node.progress.totals, lambda: node.begun_with)
    if keeping.resumed:
        restore_rank(node, keeping, job.run)
    elif rank == 0:
        node.counters[:] = _first_counts(job)

    pulse = Pulse()
    run_task = TaskRunner(context)

    def run(task: Task) -> Slices:
        pulse.task = task
        try:
            return (yield from run_task(task))
        except NotPutAside as trouble:
            node.queue.trouble = trouble
        while node.halted is None:  # which is work that is dropped, and not done
            yield
        return Outcome(held=True)

    def stop_reason() -> str | None:  # asked between slices
        pulse.beats += 1
        if journal is not None and journal.warning is not None:
            if notes is None or notes.claim():
                warn(journal.warning)
            journal.warning = None
        reason = signals.reason or context.stop_reason or (journal.data_lost if journal else None)
        if reason is None and node.queue.trouble is not None:
            reason = no_room(keeping.spool, node.queue.trouble, is_option=job.copies)
        return reason

    def warn(text: str) -> None:
        if sink is not None:
            sink.notice(text)
        else:
            sys.stderr.write(f"{job.program}: rank {rank} on {socket.gethostname()}: {text}\n")

    def tell(phase: int, report: Report) -> None:
        pulse.silent = report.silent
        if sink is not None:
            sink.progress(phase_name(phase, copies=job.copies), Totals(*report.totals), report.silent)

    driver = Driver(
        node,
        transport,
        run,
        host=socket.gethostname(),
        program=job.program,
        on_report=tell if rank == 0 else None,
        stop_reason=stop_reason,
    )
    watchdog = Watchdog(
        rank,
        hosts,
        pulse,
        lambda task: whereabouts(task, context),
        speaker=sink if rank == 0 else None,
        notes=notes,
        program=job.program,
    )
    watchdog.start()
    try:
        status = driver.run()
    finally:
        watchdog.stop()
        if journal is None or journal.durable in (0, LAST_EPOCH):  # else a resumed job goes on with what there is
            discard_all(context)
        if journal is not None:
            journal.close(JOURNAL_PATIENCE)
        context.syncer.close()
        if context.storage is not None:
            context.storage.close()
        if rank and store is not None and store.lock is not None:
            store.lock.close()
    context.close()
    return Ended(status, director.totals, node.halted)


def _first_counts(job: Job) -> list[int]:
    """The roots that are directories; what is below them is counted as it is found."""
    first = [0] * counts.COUNTERS
    first[counts.FOUND] = first[counts.UNSCANNED] = sum(1 for root in job.roots if not root.item)
    return first


def _limits(size: int, on_host: float, keeping: Keeping) -> Limits:
    """The budgets of a host are shared by its ranks.

    Where all ranks are on one host, or many share a core, idle ones ask less often: there are few to find work for, and
    their asking takes time from those that have some.
    """
    limits = Limits()
    crowd = max(1.0, on_host / len(os.sched_getaffinity(0)))
    return limits._replace(
        steal_backoff=limits.steal_backoff * crowd,
        steal_backoff_cap=limits.steal_backoff_cap * min(4.0, max(crowd, 2.0 if size == on_host else 1.0)),
        scan_ahead=2 * limits.scan_ahead // size,
        in_core=_in_core(limits.in_core, size, on_host, keeping),
        cut_interval=keeping.interval,
    )


def _in_core(most: int, size: int, on_host: float, keeping: Keeping) -> int:
    """Bytes of waiting work that this rank holds in memory."""
    if keeping.memory:
        return int(keeping.memory / on_host)
    return DATABASE_WINDOW if keeping.store == "lmdb" else max(1 << 20, 4 * most // size)
