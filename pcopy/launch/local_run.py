"""A job on one machine: ranks are forked, and no MPI is needed."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from typing import NoReturn

from pcopy.engine.transports.local import LocalTransport, allow_descriptors, fork_ranks
from pcopy.errors import INTERNAL, Hindered, JobAborted, PcopyError, story
from pcopy.fsio.kernel.choose import load_kernel
from pcopy.launch.rank import RankSetup, run_rank
from pcopy.launch.run import Ranks, run
from pcopy.launch.tool import Command, Ended, Tool
from pcopy.launch.watch.watchdog import NoticePipe

MOST_RANKS = 8
"""The most ranks that are started unless the user asks for more."""

KILL_GRACE = 2.0
"""Seconds that the other ranks have to end after a failure."""


def run_locally(words: Sequence[str], command: Command, usual: int = 0) -> int:
    """Runs the job; returns its exit status. ``usual``: the ranks that it has unless the user asks for others."""
    return run(command, words, LocalRanks(usual or min(len(os.sched_getaffinity(0)), MOST_RANKS)))


class LocalRanks(Ranks):
    """This process, and those that it forks."""

    def __init__(self, usual: int) -> None:
        self._usual = usual
        self._transport: LocalTransport | None = None
        self._notices: NoticePipe | None = None

    def number(self, asked: int) -> int:
        size = asked or self._usual
        allow_descriptors(size)
        return size

    def start(self, size: int, program: str) -> tuple[LocalTransport, NoticePipe]:
        load_kernel()
        self._notices = NoticePipe()
        self._transport = fork_ranks(size, program)
        self._notices.keep(self._transport.rank)
        return self._transport, self._notices

    def work(self, setup: RankSetup) -> Ended:
        assert self._transport and self._notices
        if setup.sink is None:
            _run_child(setup)
        ended = run_rank(setup)
        self._transport.children.reap(KILL_GRACE)
        for _, text in self._notices.take():
            setup.sink.notice(text)
        return ended

    def lose(self, abort: JobAborted | Hindered, tool: Tool, advise: Callable[[], None]) -> None:
        assert self._transport
        sys.stderr.write(_told(tool.name, abort))
        if not isinstance(abort, JobAborted) or self._transport.unsent:  # somebody doesn't listen any more
            self._transport.children.kill()
        else:
            self._transport.close()  # which tells the others that this has been printed
        self._transport.children.reap(KILL_GRACE)
        advise()


def _told(program: str, error: PcopyError) -> str:
    return str(error) if isinstance(error, JobAborted) else f"{program}: {error}\n"


def _run_child(setup: RankSetup) -> NoReturn:
    """A forked rank ends here: what its parent has opened and buffered is not its to close or write."""
    status = INTERNAL
    try:
        status = run_rank(setup).status
    except PcopyError as error:
        status = error.status
        sys.stderr.write(_told(setup.tool.name, error))
    except Exception:
        sys.stderr.write(story())
    finally:
        sys.stderr.flush()
        os._exit(status)
