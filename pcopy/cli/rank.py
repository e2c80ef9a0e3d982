"""One rank of a copy: opens the roots, puts node, tasks and transport together, and runs them."""

from __future__ import annotations

import os
import socket
from collections.abc import Sequence
from random import Random
from typing import BinaryIO, NamedTuple, cast

from pcopy.cli.notes import Notes
from pcopy.cli.signals import StopSignals, status_of
from pcopy.cli.watchdog import Pulse, Watchdog
from pcopy.engine.driver import Driver, Slices
from pcopy.engine.limits import Limits
from pcopy.engine.node import Node
from pcopy.engine.progress import Report
from pcopy.engine.queue import TaskQueue
from pcopy.engine.task import Task
from pcopy.engine.transport import Transport
from pcopy.errors import Refused
from pcopy.fsio.python_kernel import PythonKernel
from pcopy.tasks import counts
from pcopy.tasks.context import Context, RootDescriptors
from pcopy.tasks.director import CopyDirector
from pcopy.tasks.job import Identity, Job, Totals
from pcopy.tasks.open_files import discard_all
from pcopy.tasks.phases import Phase
from pcopy.tasks.runner import TaskRunner
from pcopy.tasks.sinks import Sink
from pcopy.tasks.whereabouts import whereabouts
from pcopy.text import shown

SPOOL_IN_MEMORY = 1 << 20
"""Bytes of a spool that stay in memory before it becomes a file."""


class Ended(NamedTuple):
    """How a job ended, with the exact sums on rank 0."""

    status: int
    totals: Totals
    halted: str | None


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
) -> Ended:
    """Runs this rank's share of the job; raises ``JobAborted`` if any rank failed.

    ``hosts`` names each rank's host, if they are not all on this one; ``notes`` leads to rank 0 if they are.
    """
    rank, size = transport.rank, transport.size
    limits = _limits(size, size / len(leaders))
    director = CopyDirector(job, leaders, status_of)
    node = Node(
        rank,
        size,
        run=job.run,
        counters=counts.COUNTERS,
        director=director,
        random=Random(f"{job.name} {job.run} {rank}"),
        queue=TaskQueue(limits, open_spool),
        limits=limits,
        termination=job.options.termination,
    )
    if rank == 0:
        scanned = sum(1 for root in job.roots if not root.item)
        node.counters[counts.FOUND] += scanned  # what is below them is counted as it is found
        node.counters[counts.UNSCANNED] += scanned
    kernel = PythonKernel(job.options.preserve, job.options.umask)
    context = Context(
        job,
        rank,
        size,
        roots,
        kernel,
        sink=sink,
        counters=node.counters,
        totals=lambda: node.totals,
        open_spool=open_spool,
    )

    pulse = Pulse()
    run_task = TaskRunner(context)

    def run(task: Task) -> Slices:
        pulse.task = task
        return run_task(task)

    def stop_reason() -> str | None:  # asked between slices
        pulse.beats += 1
        return signals.reason or context.stop_reason

    def tell(phase: int, report: Report) -> None:
        pulse.silent = report.silent
        if sink is not None:
            sink.progress(Phase(phase).name.lower(), Totals(*report.totals), report.silent)

    driver = Driver(
        node,
        transport,
        run,
        host=socket.gethostname(),
        on_report=tell if rank == 0 else None,
        stop_reason=stop_reason,
    )
    watchdog = Watchdog(
        rank, hosts, pulse, lambda task: whereabouts(task, context), speaker=sink if rank == 0 else None, notes=notes
    )
    watchdog.start()
    try:
        status = driver.run()
    finally:
        watchdog.stop()
        discard_all(context)
    context.close()
    return Ended(status, director.totals, node.halted)


def _limits(size: int, on_host: float) -> Limits:
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
        in_core=max(1 << 20, 4 * limits.in_core // size),
    )


def open_spool() -> BinaryIO:
    """A file for what waits outside memory; it has no name and vanishes when it is closed."""
    import tempfile

    return cast(BinaryIO, tempfile.SpooledTemporaryFile(max_size=SPOOL_IN_MEMORY))
