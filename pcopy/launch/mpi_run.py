"""A job under mpiexec or srun: the launcher has started its ranks, and they communicate by MPI.

Rule: no rank exits before rank 0 has reported how the job ended, because launchers kill all other ranks as soon as one
has exited with a status other than 0.
"""

from __future__ import annotations

import os
import signal
import socket
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

from pcopy.errors import EXIT_INTERNAL, JobAborted, PcopyError, PeerLost, RequestRefused, ResourceUnavailable
from pcopy.launch import hosts
from pcopy.launch.interrupts import restore_keyboard_interrupt
from pcopy.launch.launcher import Launch, identify_launch, is_reporting_rank
from pcopy.launch.local_run import run_locally
from pcopy.launch.mpi_library import load_transport, wrong_size
from pcopy.launch.rank import RankSetup, run_rank
from pcopy.launch.run import RankStarter, run_job
from pcopy.launch.tool import Command, JobResult, Tool
from pcopy.launch.watch.watchdog import NoticePipe
from pcopy.report.streams import print_error
from pcopy.report.unexpected import report_unexpected

INIT_TIMEOUT = 30.0
INIT_TIMEOUT_PER_RANK = 0.1
"""Timeout for MPI_Init in seconds: a constant part, and a part per rank, since large jobs start slowly."""

REFUSAL_DELAY = 5.0
"""Seconds that the other ranks leave rank 0 to report a refusal, under launchers that would kill it when they exit."""

MESSAGE_DELAY = 1.0
"""Seconds for a message of this rank or rank 0 to reach the launcher, before this rank has all ranks killed."""

CLOSING_TIMEOUT = 2.0
"""Seconds that rank 0 leaves the other ranks to close their records, before it reports how the job ended."""

FAILURE_TIMEOUT = 5.0
"""Seconds that a rank waits for the others to end with it after a failure, before it has all of them killed."""


def run_under_launcher(words: Sequence[str], command: Command) -> int:
    """Run this rank; return the exit status on which all ranks agree. Raise ``PcopyError`` if there is only one
    rank.
    """
    restore_keyboard_interrupt()
    try:
        launch = identify_launch(os.environ)
        transport = None if launch.is_single_rank else _initialise_mpi(launch, words, command)
    except RequestRefused as refusal:
        return _exit_after_refusal(refusal, command)
    if transport is None:
        return run_locally(words, command, 0 if launch.is_single_task_step else 1)
    try:
        return run_job(command, words, LaunchedRanks(transport))
    except KeyboardInterrupt:
        transport.abort(128 + signal.SIGINT)
    except PcopyError as error:
        print_error(command.tool.name, error)
        _abort_all_ranks(transport, error.status)
    except Exception as error:  # Without MPI_Abort the other ranks would wait for this one.
        _abort_all_ranks(transport, report_unexpected(command.tool.name, error))
    except BaseException:
        traceback.print_exc()
        _abort_all_ranks(transport, EXIT_INTERNAL)
    return EXIT_INTERNAL


class LaunchedRanks(RankStarter):
    """Ranks that a launcher has started; this process is one of them."""

    def __init__(self, transport: Any) -> None:
        self._transport = transport
        self.rank = transport.rank

    def broadcast(self, value: Any) -> Any:
        return self._transport.broadcast(value)

    def gather(self, value: Any) -> list[Any]:
        answers: list[Any] = self._transport.gather(value)
        return answers

    def exchange_descriptions(self, words: Sequence[str]) -> None:
        self.descriptions = hosts.checked_descriptions(self.gather(tuple(hosts.own_description(words))))
        following = hosts.next_rank_on_host(self.descriptions, self.rank)
        if following is not None:
            self._transport.watch_process(following, self.descriptions[following].pid)

    def number_of_ranks(self, asked: int) -> int:
        size: int = self._transport.size
        if asked:
            raise RequestRefused(f"-n {asked}: the launcher has started {size} ranks; leave -n out")
        return size

    def start(self, size: int, program: str) -> tuple[Any, NoticePipe | None]:
        return self._transport, None

    def run_rank(self, setup: RankSetup) -> JobResult:
        """Run this rank, and wait until all ranks have ended, up to ``CLOSING_PATIENCE`` seconds."""
        ended = run_rank(setup)
        with suppress(PeerLost):  # ``end`` reports the lost rank, after the result of the job was reported.
            self._transport.wait_for_all_ranks(CLOSING_TIMEOUT)
        return ended

    def end(self) -> None:
        self._transport.finalise()

    def fail(self, abort: JobAborted | ResourceUnavailable, tool: Tool, advise: Callable[[], None]) -> None:
        """Report why the job failed on rank 0, or, if that is lost, on the rank that has noticed it; then end all
        ranks.
        """
        if isinstance(abort, ResourceUnavailable):  # The other ranks do not know of it, and would wait.
            print_error(tool.name, abort)
            advise()
            _abort_all_ranks(self._transport, abort.status)
            return
        if self.rank == 0:
            _report_failure(abort, advise)
        try:
            missing = None if self._transport.finalise(FAILURE_TIMEOUT) else 0
        except PcopyError as error:
            missing = error.rank if isinstance(error, PeerLost) else self.rank
        if missing is None:
            return
        if self.rank and missing == 0:
            _report_failure(abort, advise)
        _abort_all_ranks(self._transport, abort.status)


def _report_failure(abort: JobAborted, advise: Callable[[], None]) -> None:
    """Print why the job failed, and what to do."""
    sys.stderr.write(str(abort))
    advise()
    sys.stderr.flush()


def _abort_all_ranks(transport: Any, status: int) -> None:
    """Have all ranks killed, after a pause: launchers lose messages that they have not read by then."""
    sys.stderr.flush()
    time.sleep(MESSAGE_DELAY)
    transport.abort(status)


def _initialise_mpi(launch: Launch, words: Sequence[str], command: Command) -> Any:
    """Initialise MPI and return the transport between all ranks; raise ``RequestRefused``."""
    mpi = load_transport(launch, words)
    patience = INIT_TIMEOUT + launch.size * INIT_TIMEOUT_PER_RANK
    text = (
        f"{command.tool.name}: {launch.name} has started {launch.size} ranks, but MPI ({mpi.library_name()}) has not "
        f"found all of them in {patience:.0f} seconds: do all hosts have the same MPI?\n"
    )
    transport = mpi.initialise(patience, text if is_reporting_rank(os.environ) else "")
    if transport.size != launch.size:
        if transport.size == 1:
            transport.finalise()
        raise wrong_size(launch, mpi.library_name(), transport.size)
    return transport


def _exit_after_refusal(refusal: RequestRefused, command: Command) -> int:
    """End this rank without MPI after a refusal; print the reason if no other rank will.

    Open MPI's mpiexec kills all ranks as soon as one has exited with a status other than 0. So a rank that is alive
    after rank 0 had time to print knows that rank 0 has no error itself. Then one rank of each host prints its own.
    """
    if not is_reporting_rank(os.environ):
        if not os.environ.get("OMPI_COMM_WORLD_SIZE"):
            return refusal.status
        time.sleep(REFUSAL_DELAY)
        if os.environ.get("OMPI_COMM_WORLD_LOCAL_RANK") != "0":
            return refusal.status
        refusal = RequestRefused(f"on {socket.gethostname()}: {refusal}")
    print_error(command.tool.name, refusal)
    return refusal.status
