"""A job on one host: its ranks are forked, and MPI is not needed."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from typing import NoReturn

from pcopy.engine.transports.local import LocalTransport, fork_ranks, raise_descriptor_limit
from pcopy.errors import EXIT_INTERNAL, JobAborted, PcopyError, ResourceUnavailable, current_traceback
from pcopy.fsio.backend.choose import import_backend
from pcopy.launch.rank import RankSetup, run_rank
from pcopy.launch.run import RankStarter, run_job
from pcopy.launch.tool import Command, JobResult, Tool
from pcopy.launch.watch.watchdog import NoticePipe

MAX_DEFAULT_RANKS = 8
"""Maximum number of ranks that are started unless the user asks for more."""

KILL_GRACE = 2.0
"""Seconds that the other ranks have to end after a failure, before they are killed."""


def run_locally(words: Sequence[str], command: Command, default_ranks: int = 0) -> int:
    """Run the job; return its exit status. ``default_ranks``: number of ranks unless the user asks for another; 0: by
    the processors.
    """
    return run_job(command, words, ForkedRanks(default_ranks or min(len(os.sched_getaffinity(0)), MAX_DEFAULT_RANKS)))


class ForkedRanks(RankStarter):
    """Ranks that this process forks; it is rank 0 itself."""

    def __init__(self, default_ranks: int) -> None:
        self._default_ranks = default_ranks
        self._transport: LocalTransport | None = None
        self._notices: NoticePipe | None = None

    def number_of_ranks(self, asked: int) -> int:
        size = asked or self._default_ranks
        raise_descriptor_limit(size)
        return size

    def start(self, size: int, program: str) -> tuple[LocalTransport, NoticePipe]:
        import_backend()
        self._notices = NoticePipe()
        self._transport = fork_ranks(size, program)
        self._notices.keep_end_of(self._transport.rank)
        return self._transport, self._notices

    def run_rank(self, setup: RankSetup) -> JobResult:
        """Run this rank. A forked rank exits in this call; on rank 0 it returns when all ranks have ended."""
        assert self._transport and self._notices
        if setup.sink is None:
            _run_child(setup)
        ended = run_rank(setup)
        self._transport.children.reap(KILL_GRACE)
        for _, text in self._notices.take():
            setup.sink.notice(text)
        return ended

    def fail(self, abort: JobAborted | ResourceUnavailable, tool: Tool, advise: Callable[[], None]) -> None:
        """Report why the job failed, and end all other ranks."""
        assert self._transport
        sys.stderr.write(_error_text(tool.name, abort))
        if not isinstance(abort, JobAborted) or self._transport.has_unsent:  # A rank does not respond any longer.
            self._transport.children.kill()
        else:
            self._transport.close()  # notifies the other ranks that this was printed
        self._transport.children.reap(KILL_GRACE)
        advise()


def _error_text(program: str, error: PcopyError) -> str:
    """Return the text of an error for standard error."""
    return str(error) if isinstance(error, JobAborted) else f"{program}: {error}\n"


def _run_child(setup: RankSetup) -> NoReturn:
    """Run a forked rank and exit.

    The exit skips Python's cleanup: the child must not close or flush what its parent has opened and buffered.
    """
    status = EXIT_INTERNAL
    try:
        status = run_rank(setup).status
    except PcopyError as error:
        status = error.status
        sys.stderr.write(_error_text(setup.tool.name, error))
    except Exception:
        sys.stderr.write(current_traceback())
    finally:
        sys.stderr.flush()
        os._exit(status)
