"""A job on one machine: ranks are forked, and no MPI is needed."""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Callable, Sequence
from contextlib import closing
from functools import partial
from typing import NoReturn

from pcopy.cli.command import Command, Preparation
from pcopy.cli.mounts import Place, agree_on_mounts
from pcopy.cli.notes import Notes
from pcopy.cli.rank import Ended, open_roots, run_rank
from pcopy.cli.screen import open_screen
from pcopy.cli.signals import StoppedBefore, StopSignals
from pcopy.cli.streams import tell
from pcopy.engine.transports.local import fork_ranks
from pcopy.errors import HINDRANCES, INCOMPLETE, INTERNAL, Hindered, JobAborted, PcopyError, hindrance

MOST_RANKS = 8
"""The most ranks that are started unless the user asks for more."""

KILL_GRACE = 2.0
"""Seconds that the other ranks have to end after a failure."""


def run_locally(words: Sequence[str], command: Command) -> int:
    """Runs the job; returns its exit status. Raises ``PcopyError``."""
    preparation = command.prepare(words)
    ranks = preparation.arguments.ranks or min(len(os.sched_getaffinity(0)), MOST_RANKS)
    signals = StopSignals()
    try:
        begin(preparation, ranks, signals)
        return _run(preparation, ranks, signals)
    except StoppedBefore as stopped:
        tell(command.name, stopped)
        preparation.tell_how_to_go_on()
        return stopped.status


def begin(preparation: Preparation, ranks: int, signals: StopSignals) -> None:
    """Begins the job; one that is stored already is stopped in order from now on. Raises ``StoppedBefore``."""
    if preparation.kept is None:
        preparation.begin(ranks)
    else:
        with signals.raised():
            preparation.begin(ranks)


def store(preparation: Preparation, signals: StopSignals) -> None:
    """Stores a job that is to be in its directory from the start; raises ``StoppedBefore`` and ``Refused``."""
    kept = preparation.kept
    if kept is not None and kept.keeping.at_start:
        with signals.raised():
            kept.create()


def _run(preparation: Preparation, ranks: int, signals: StopSignals) -> int:
    job, kept = preparation.job, preparation.kept
    keeping = preparation.keeping
    roots = open_roots(job)
    with closing(Place.of(job, roots)) as place:
        job = job._replace(mounts=agree_on_mounts(job, place))
    if kept is not None:
        kept.note_mounts(job.mounts)
    with open_screen(preparation.arguments, sys.stderr) as screen:
        store(preparation, signals)
        preparation.announce()
        signals.install()
        sys.stderr.flush()
        notes = Notes()
        transport = fork_ranks(ranks, job.program)
        notes.keep(transport.rank)
        if transport.rank:
            run = partial(run_rank, job, transport, roots, (0,), None, signals, notes=notes, keeping=keeping)
            _run_child(job.program, run)
        try:
            sink = preparation.sink(screen)
            ended = run_rank(
                job,
                transport,
                roots,
                (0,),
                sink,
                signals,
                notes=notes,
                settle=preparation.settle,
                keeping=keeping,
                keeper=kept,
            )
        except (JobAborted, Hindered) as abort:
            screen.close()
            sys.stderr.write(_told(job.program, abort))
            if not isinstance(abort, JobAborted) or transport.unsent:  # somebody doesn't listen any more
                transport.kill()
            else:
                transport.close()  # which tells the others that this has been printed
            transport.reap(KILL_GRACE)
            preparation.tell_how_to_go_on()
            return abort.status
        transport.reap(KILL_GRACE)
        for _, text in notes.take():
            screen.notice(text)
    try:
        status = preparation.tell_end(ended, ranks)
    except HINDRANCES as error:
        print(f"{job.program}: the end cannot be told: {hindrance(error)}", file=sys.stderr)
        status = max(ended.status, INCOMPLETE)
    signals.ignore()
    return status


def _told(program: str, error: PcopyError) -> str:
    return str(error) if isinstance(error, JobAborted) else f"{program}: {error}\n"


def _run_child(program: str, run: Callable[[], Ended]) -> NoReturn:
    """A forked rank ends here: what its parent has opened and buffered is not its to close or write."""
    status = INTERNAL
    try:
        status = run().status
    except PcopyError as error:
        status = error.status
        sys.stderr.write(_told(program, error))
    except Exception:
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(status)
