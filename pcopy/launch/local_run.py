"""A job on one host: its ranks are forked, and MPI is not needed."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from typing import NoReturn

from pcopy.engine.transports.local import UnixSocketTransport, fork_ranks, raise_descriptor_limit
from pcopy.errors import EXIT_INTERNAL, JobAborted, PcopyError, ResourceUnavailable, current_traceback
from pcopy.fsio.backend.choose import import_backend
from pcopy.launch.rank import RankSetup, run_rank
from pcopy.launch.run import RankStarter, run_job
from pcopy.launch.tool import JobResult, Tool, ToolEntryPoint
from pcopy.launch.watch.watchdog import NoticePipe

MAX_DEFAULT_RANKS = 8
"""If the user does not give the number of ranks (``-n``), a job has one for each processor, but at most this number."""

KILL_GRACE_SECONDS = 2.0
"""At the end of the job: seconds that rank 0 waits until the other ranks on its host have exited, before it kills
them.
"""


def run_on_forked_ranks(words: Sequence[str], command: ToolEntryPoint, default_ranks: int = 0) -> int:
    """Run the job of a command line on ranks that this process forks; return its exit status.

    Args:
        words: command line arguments.
        command: the program.
        default_ranks: number of ranks if the user does not give one; 0: the number of processors, up to
            ``MAX_DEFAULT_RANKS``.
    """
    return run_job(
        command, words, ForkedRankStarter(default_ranks or min(len(os.sched_getaffinity(0)), MAX_DEFAULT_RANKS))
    )


class ForkedRankStarter(RankStarter):
    """Implementation of ``RankStarter`` for a job on one host: starts the ranks by forking this process, which is rank
    0 itself.
    """

    def __init__(self, default_ranks: int) -> None:
        self._default_ranks = default_ranks
        self._transport: UnixSocketTransport | None = None
        self._notices: NoticePipe | None = None

    def number_of_ranks(self, asked: int) -> int:
        size = asked or self._default_ranks
        raise_descriptor_limit(size)
        return size

    def start_ranks(self, size: int, program: str) -> tuple[UnixSocketTransport, NoticePipe]:
        import_backend()
        self._notices = NoticePipe()
        self._transport = fork_ranks(size, program)
        self._notices.close_unused_pipe_end(self._transport.rank)
        return self._transport, self._notices

    def run_rank(self, setup: RankSetup) -> JobResult:
        """Run this rank of the job and return the result. On rank 0 the call returns when all ranks have ended; on
        other ranks it does not return, but exits the process.
        """
        assert self._transport and self._notices
        if setup.sink is None:
            _run_forked_rank(setup)
        ended = run_rank(setup)
        self._transport.children.reap_children(KILL_GRACE_SECONDS)
        for _, text in self._notices.take_messages():
            setup.sink.receive_notice(text)
        return ended

    def end_failed_job(self, abort: JobAborted | ResourceUnavailable, tool: Tool, advise: Callable[[], None]) -> None:
        """Print why the job failed, end all other ranks, and call ``advise``, which prints what the user can do.
        ``abort`` is the exception that has ended the job on this rank.
        """
        assert self._transport
        sys.stderr.write(_error_text_for_stderr(tool.name, abort))
        # With another exception, or if rank 0's messages could not be sent, other ranks may not know of the failure.
        if not isinstance(abort, JobAborted) or self._transport.has_unsent_data:
            self._transport.children.kill()
        else:
            # the end of the connection shows the other ranks that rank 0 has printed the reason
            self._transport.close()
        self._transport.children.reap_children(KILL_GRACE_SECONDS)
        advise()


def _error_text_for_stderr(program: str, error: PcopyError) -> str:
    """Return what to print on standard error for ``error``: the name of the program and the message. The text of a
    ``JobAborted`` is complete already, or empty.
    """
    return str(error) if isinstance(error, JobAborted) else f"{program}: {error}\n"


def _run_forked_rank(setup: RankSetup) -> NoReturn:
    """Run one of the forked ranks, and exit the process with the rank's status.

    ``os._exit`` skips Python's cleanup: the child must not close or flush files that its parent has opened.
    """
    status = EXIT_INTERNAL
    setup.signals.last_message = None  # Rank 0 prints it.
    try:
        status = run_rank(setup).status
    except PcopyError as error:
        status = error.status
        sys.stderr.write(_error_text_for_stderr(setup.tool.name, error))
    except Exception:
        sys.stderr.write(current_traceback())
    finally:
        sys.stderr.flush()
        os._exit(status)
