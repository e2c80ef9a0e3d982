"""One rank of a copy: opens the roots, puts node, tasks and transport together, and runs them."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import wraps
from random import Random
from typing import Any, NamedTuple

from pcopy.checkpoint.journal import FactJournal
from pcopy.cli.keeping import Keeper, Keeping, RankStore, open_journal, restore_rank
from pcopy.cli.notes import Notes
from pcopy.cli.signals import StopSignals, status_of, stopped_by
from pcopy.cli.spool import database_in, no_room, spool_in
from pcopy.cli.streams import tell as tell_line
from pcopy.cli.watchdog import Pulse, Watchdog
from pcopy.engine.driver import Driver, Outcome, Slices
from pcopy.engine.limits import Limits
from pcopy.engine.messages import LAST_EPOCH
from pcopy.engine.node import Node
from pcopy.engine.progress import Report
from pcopy.engine.queue import TaskQueue
from pcopy.engine.task import Task
from pcopy.engine.transport import Transport
from pcopy.errors import HINDRANCES, OK, Hindered, NotPutAside, Refused, hindered_status, hindrance
from pcopy.fsio.file_system import type_of_file_system
from pcopy.fsio.python_kernel import PythonKernel
from pcopy.fsio.storage import Storage
from pcopy.tasks import counts
from pcopy.tasks.codec import decode
from pcopy.tasks.context import Context, RootDescriptors
from pcopy.tasks.director import JobDirector
from pcopy.tasks.hashing import Hashing
from pcopy.tasks.job import Identity, Job, Totals
from pcopy.tasks.naming import discard_named_later
from pcopy.tasks.open_files import discard_all
from pcopy.tasks.phases import Phase, phase_name
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
    """How a job ended, with the exact sums on rank 0, and why it ``halted``, if that was before all was done."""

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


def _telling_hindrances(run: Callable[..., Ended]) -> Callable[..., Ended]:
    """What the system refuses to this rank itself, and not to an item, ends it in one line."""

    @wraps(run)
    def wrapped(job: Job, transport: Transport, *arguments: Any, **options: Any) -> Ended:
        try:
            return run(job, transport, *arguments, **options)
        except HINDRANCES as error:
            text = f"rank {transport.rank} on {socket.gethostname()} cannot go on: {hindrance(error)}"
            raise Hindered(text, copies=job.copies) from None

    return wrapped


@_telling_hindrances
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
    advice: str = "",
) -> Ended:
    """Runs this rank's share of the job; raises ``JobAborted`` if any rank failed.

    ``settle`` is asked at rank 0 at the end of a job whose items are all there: what becomes of the signature, and the
    exit status.

    ``hosts`` names each rank's host, if they are not all on this one; ``notes`` leads to rank 0 if they are. A job with
    ``keeping`` can be gone on with; on rank 0, ``keeper`` makes its directory before the first task. ``advice`` is told
    by rank 0 once there is a record, for a job whose ranks may all be killed without a word.
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
    node.queue.remembers = context.keeps
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
        except HINDRANCES as error:  # no item's, or one that no task has taken for its own
            context.stop(f"rank {rank} on {socket.gethostname()}: {hindrance(error)}")
        while node.halted is None:  # which is work that is dropped, and not done
            yield
        return Outcome(held=True)

    def stop_reason() -> str | None:  # asked between slices
        nonlocal advice
        pulse.beats += 1
        if advice and journal is not None and 0 < journal.durable < LAST_EPOCH and not node.is_ending:
            warn(advice)
            advice = ""
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
            tell_line(job.program, f"rank {rank} on {socket.gethostname()}: {text}")

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
        hindered=hindered_status(copies=job.copies),
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
    if keeper is not None and journal is not None:
        try:
            keeper.note()
        except Refused as refused:  # which is told before the first item, and not when the user wants to go on
            journal.fail(refused)
    watchdog.start()
    try:
        status = driver.run()
    finally:
        watchdog.stop()
        ended = journal is None or journal.close(JOURNAL_PATIENCE)  # before it is asked what is durable
        if journal is None or (ended and journal.durable in (0, LAST_EPOCH)):  # else a resumed job needs what there is
            unrecorded = journal is None or journal.durable == LAST_EPOCH
            since = 1 if unrecorded else job.run  # what earlier runs made is on record
            discard_all(context, since)
            with suppress(OSError):  # a spool may have no room: what was dropped is not known then
                for task in node.queue.forgotten():
                    discard_named_later(context, decode(task.payload), since)
        context.syncer.close()
        if context.storage is not None:
            context.storage.close()
        if rank and store is not None and store.lock is not None:
            store.lock.close()
    context.close()
    return Ended(status, director.totals, director.halted)


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
        durable_before=(int(Phase.NAME),),
    )


def _in_core(most: int, size: int, on_host: float, keeping: Keeping) -> int:
    """Bytes of waiting work that this rank holds in memory."""
    if keeping.memory:
        return int(keeping.memory / on_host)
    return DATABASE_WINDOW if keeping.store == "lmdb" else max(1 << 20, 4 * most // size)
