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
from pcopy.launch.launcher import LauncherInfo, identify_launcher, is_reporting_rank
from pcopy.launch.local_run import run_on_forked_ranks
from pcopy.launch.mpi_library import load_mpi_transport, wrong_rank_count_error
from pcopy.launch.rank import RankSetup, run_rank
from pcopy.launch.run import RankStarter, run_job
from pcopy.launch.tool import JobResult, Tool, ToolEntryPoint
from pcopy.launch.watch.watchdog import NoticePipe
from pcopy.report.streams import print_error, report_refusal
from pcopy.report.unexpected import report_unexpected_exception

MPI_INIT_TIMEOUT = 30.0
MPI_INIT_TIMEOUT_PER_RANK = 0.1
"""Maximum seconds for MPI_Init: ``MPI_INIT_TIMEOUT``, plus this time for each rank, since large jobs start slowly."""

EXIT_DELAY_AFTER_REFUSAL = 5.0
"""If the job is refused before MPI is initialised: seconds that ranks other than 0 wait before they exit, so that rank
0 can print the reason. Open MPI's mpiexec kills all ranks as soon as one has exited.
"""

MPI_ABORT_DELAY = 1.0
"""Seconds that a rank waits before it calls MPI_Abort, so that messages which were printed before reach the
launcher.
"""

RECORD_CLOSING_TIMEOUT = 2.0
"""After the job: maximum seconds that a rank waits until all other ranks have written their last records, before it
prints the result.
"""

FINALISE_TIMEOUT_AFTER_FAILURE = 5.0
"""After a failure: maximum seconds that a rank waits until all ranks have finalised MPI. Then it ends them all with
MPI_Abort.
"""


def run_under_launcher(words: Sequence[str], command: ToolEntryPoint) -> int:
    """Run this rank of a job that mpiexec or srun has started; return the exit status on which all ranks agree.

    If the launcher has started a single rank, run the job without MPI instead; ``PcopyError`` may be raised then.
    """
    restore_keyboard_interrupt()
    try:
        launch = identify_launcher(os.environ)
        transport = None if launch.is_single_rank else _initialise_mpi(launch, words, command)
    except RequestRefused as refusal:
        return _report_refusal_before_mpi(refusal, command, words)
    if transport is None:
        return run_on_forked_ranks(words, command, 0 if launch.is_single_task_step else 1)
    try:
        return run_job(command, words, MpiRankStarter(transport))
    except KeyboardInterrupt:
        transport.abort_all_ranks(128 + signal.SIGINT)
    except PcopyError as error:
        print_error(command.tool.name, error)
        _abort_all_ranks(transport, error.status)
    except Exception as error:  # Without MPI_Abort the other ranks would wait for this one.
        _abort_all_ranks(transport, report_unexpected_exception(command.tool.name, error, words))
    except BaseException:
        traceback.print_exc()
        _abort_all_ranks(transport, EXIT_INTERNAL)
    return EXIT_INTERNAL


class MpiRankStarter(RankStarter):
    """Implementation of ``RankStarter`` for ranks that a launcher (mpiexec, srun) has started; they communicate by MPI.
    Each process has one such object.
    """

    def __init__(self, transport: Any) -> None:
        self._transport = transport
        self.rank = transport.rank

    def broadcast(self, value: Any) -> Any:
        return self._transport.broadcast(value)

    def gather(self, value: Any) -> list[Any]:
        answers: list[Any] = self._transport.gather(value)
        return answers

    def exchange_rank_descriptions(self, words: Sequence[str]) -> None:
        self.descriptions = hosts.checked_rank_descriptions(self.gather(tuple(hosts.own_rank_description(words))))
        following = hosts.next_rank_on_host(self.descriptions, self.rank)
        if following is not None:
            self._transport.watch_process(following, self.descriptions[following].pid)

    def number_of_ranks(self, asked: int) -> int:
        size: int = self._transport.size
        if asked:
            raise RequestRefused(f"-n {asked}: the launcher has started {size} ranks; leave -n out")
        return size

    def start_ranks(self, size: int, program: str) -> tuple[Any, NoticePipe | None]:
        return self._transport, None

    def run_rank(self, setup: RankSetup) -> JobResult:
        """Run this rank of the job and return the result. Before that, wait up to ``RECORD_CLOSING_TIMEOUT`` seconds
        until all other ranks have ended their part.
        """
        ended = run_rank(setup)
        with suppress(PeerLost):  # ``wait_until_ranks_may_exit`` raises it again, after rank 0 has printed the result.
            self._transport.wait_for_all_ranks(RECORD_CLOSING_TIMEOUT)
        return ended

    def wait_until_ranks_may_exit(self) -> None:
        self._transport.finalise_mpi()

    def end_failed_job(self, abort: JobAborted | ResourceUnavailable, tool: Tool, advise: Callable[[], None]) -> None:
        """Print why the job failed, and end all ranks. Rank 0 prints the reason; if rank 0 is lost, each rank prints
        the text of its own ``abort``, which is empty except on a rank that knows a reason. Call ``advise``, which
        prints what the user can do.
        """
        if isinstance(abort, ResourceUnavailable):  # The other ranks do not know of this error, and would wait.
            print_error(tool.name, abort)
            advise()
            _abort_all_ranks(self._transport, abort.status)
            return
        if self.rank == 0:
            _report_failure(abort, advise)
        try:
            missing = None if self._transport.finalise_mpi(FINALISE_TIMEOUT_AFTER_FAILURE) else 0
        except PcopyError as error:
            missing = error.rank if isinstance(error, PeerLost) else self.rank
        if missing is None:
            return
        if self.rank and missing == 0:
            _report_failure(abort, advise)
        _abort_all_ranks(self._transport, abort.status)


def _report_failure(abort: JobAborted, advise: Callable[[], None]) -> None:
    """Print the text of ``abort``, which says why the job failed, and call ``advise``, which prints what the user can
    do.
    """
    sys.stderr.write(str(abort))
    advise()
    sys.stderr.flush()


def _abort_all_ranks(transport: Any, status: int) -> None:
    """End all ranks with MPI_Abort and the exit status ``status``. Pause before that, because launchers lose messages
    that they have not read by then.
    """
    sys.stderr.flush()
    time.sleep(MPI_ABORT_DELAY)
    transport.abort_all_ranks(status)


def _initialise_mpi(launch: LauncherInfo, words: Sequence[str], command: ToolEntryPoint) -> Any:
    """Initialise MPI and return the transport, which sends and receives the messages of this rank. Raise
    ``RequestRefused`` if that is impossible, or if MPI has another number of ranks than the launcher. ``words`` are
    the command line arguments, for a restart with another MPI library.
    """
    mpi = load_mpi_transport(launch, words)
    patience = MPI_INIT_TIMEOUT + launch.size * MPI_INIT_TIMEOUT_PER_RANK
    text = (
        f"{command.tool.name}: {launch.name} has started {launch.size} ranks, but MPI ({mpi.mpi_library_name()}) has "
        f"not found all of them in {patience:.0f} seconds: do all hosts have the same MPI?\n"
    )
    transport = mpi.initialise_mpi(patience, text if is_reporting_rank(os.environ) else "")
    if transport.size != launch.size:
        if transport.size == 1:
            transport.finalise_mpi()
        raise wrong_rank_count_error(launch, mpi.mpi_library_name(), transport.size)
    return transport


def _report_refusal_before_mpi(refusal: RequestRefused, command: ToolEntryPoint, words: Sequence[str]) -> int:
    """Print why the job was refused before MPI was initialised, if rank 0 will not do so; return the exit status of
    this rank.

    Open MPI's mpiexec kills all ranks as soon as one has exited with a status other than 0. So a rank that still lives
    ``EXIT_DELAY_AFTER_REFUSAL`` seconds later knows that rank 0 was not refused and has printed nothing. Then one rank
    of each host prints its own reason.
    """
    if not is_reporting_rank(os.environ):
        if not os.environ.get("OMPI_COMM_WORLD_SIZE"):
            return refusal.status
        time.sleep(EXIT_DELAY_AFTER_REFUSAL)
        if os.environ.get("OMPI_COMM_WORLD_LOCAL_RANK") != "0":
            return refusal.status
        refusal = RequestRefused(f"on {socket.gethostname()}: {refusal}", path=refusal.path, code=refusal.code)
    report_refusal(command.tool.name, refusal, words)
    return refusal.status
