"""A job on one machine: ranks are forked, and no MPI is needed."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from typing import NoReturn

from pcopy.cli.command import Command, Preparation
from pcopy.cli.notes import Notes
from pcopy.cli.rank import Ended, open_roots, run_rank
from pcopy.cli.screen import open_screen
from pcopy.cli.signals import StoppedBefore, StopSignals
from pcopy.engine.transports.local import fork_ranks
from pcopy.errors import INTERNAL, JobAborted

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
        print(f"{command.name}: {stopped}", file=sys.stderr)
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
    with open_screen(preparation.arguments, sys.stderr) as screen:
        store(preparation, signals)
        preparation.announce()
        signals.install()
        sys.stderr.flush()
        notes = Notes()
        transport = fork_ranks(ranks)
        notes.keep(transport.rank)
        if transport.rank:
            _run_child(lambda: run_rank(job, transport, roots, (0,), None, signals, notes=notes, keeping=keeping))
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
        except JobAborted as abort:
            screen.close()
            sys.stderr.write(str(abort))
            if transport.unsent:  # somebody doesn't listen any more
                transport.kill()
            else:
                transport.close()  # which tells the others that this has been printed
            transport.reap(KILL_GRACE)
            preparation.tell_how_to_go_on()
            return INTERNAL
        transport.reap(KILL_GRACE)
        for _, text in notes.take():
            screen.notice(text)
    status = preparation.tell_end(ended, ranks)
    signals.ignore()
    return status


def _run_child(run: Callable[[], Ended]) -> NoReturn:
    """A forked rank ends here: what its parent has opened and buffered is not its to close or write."""
    status = INTERNAL
    try:
        status = run().status
    except JobAborted as abort:
        sys.stderr.write(str(abort))
        sys.stderr.flush()
    finally:
        os._exit(status)
