"""A job under mpiexec or srun: rank 0 prepares it and tells the others."""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Sequence
from typing import Any

from pcopy.cli.prepare import Preparation
from pcopy.cli.rank import open_roots, run_rank
from pcopy.cli.screen import open_screen
from pcopy.cli.signals import StopSignals
from pcopy.errors import INTERNAL, JobAborted, PcopyError, Refused
from pcopy.fsio.preserve import Preserve
from pcopy.tasks.job import Job, Options, Root


def run_under_launcher(words: Sequence[str], size: int) -> int:
    """Runs this rank; returns the exit status on which all ranks agree. Raises ``PcopyError``."""
    from pcopy.engine.transports import mpi

    transport = mpi.initialise()
    if transport.size != size:
        raise Refused(
            f"the launcher started {size} ranks, but MPI ({mpi.vendor()}) sees {transport.size}: "
            "use the mpiexec that belongs to the MPI that mpi4py loads"
        )
    preparation: Preparation | None = None
    refusal: PcopyError | None = None
    if transport.rank == 0:
        try:
            preparation = Preparation(words)
            if preparation.arguments.ranks > 1:
                raise Refused(f"-n {preparation.arguments.ranks}: the launcher has started {size} ranks; leave -n out")
        except PcopyError as error:
            refusal, preparation = error, None
    plain = transport.broadcast(_to_primitives(preparation.job) if preparation else None)
    if plain is None:
        return _refuse(transport, refusal)
    job = preparation.job if preparation else _from_primitives(plain)
    try:
        roots = open_roots(job, compare_devices=transport.rank == 0)
    except PcopyError as error:
        refusal, roots = error, []
    told = transport.gather((socket.gethostname(), str(refusal) if refusal else ""))
    refusals = [text for _, text in told if text]
    if refusals:
        return _refuse(transport, Refused(refusals[0]) if transport.rank == 0 else None)
    os.umask(0o077)
    hosts = [host for host, _ in told]
    leaders = [hosts.index(host) for host in dict.fromkeys(hosts)]
    signals = StopSignals()
    signals.install()
    try:
        if preparation is None:
            return run_rank(job, transport, roots, leaders, None, signals).status
        with open_screen(preparation.arguments, sys.stderr) as screen:
            preparation.announce()
            ended = run_rank(job, transport, roots, leaders, screen, signals)
        return preparation.tell_end(ended, size)
    except JobAborted as abort:
        sys.stderr.write(str(abort))
        sys.stderr.flush()
        transport.abort(INTERNAL)
        return INTERNAL


def _refuse(transport: Any, refusal: PcopyError | None) -> int:
    """Ends all ranks in order; only the one that knows why says so."""
    statuses = transport.gather(refusal.status if refusal else 0)
    transport.close()
    if refusal is not None:
        print(f"pcopy: {refusal}", file=sys.stderr)
    return int(max(statuses))


def _to_primitives(job: Job) -> tuple[Any, ...]:
    return job.name, job.run, [tuple(root) for root in job.roots], tuple(job.options[1:]), tuple(job.options.preserve)


def _from_primitives(plain: tuple[Any, ...]) -> Job:
    name, run, roots, options, preserve = plain
    return Job(name, run, tuple(Root(*root) for root in roots), Options(Preserve(*preserve), *options))
