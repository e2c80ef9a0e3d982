"""A job under mpiexec or srun: the launcher has started its ranks, and MPI carries what they say.

Rule: nobody ends before rank 0 has told how the job ended, because launchers kill the other ranks as soon as one has
ended with a status that is not 0.
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

from pcopy.errors import INTERNAL, Hindered, JobAborted, PcopyError, PeerLost, Refused
from pcopy.launch import hosts
from pcopy.launch.interrupts import raise_again
from pcopy.launch.launcher import Launch, identify, speaks
from pcopy.launch.local_run import run_locally
from pcopy.launch.mpi_library import alone, load
from pcopy.launch.rank import RankSetup, run_rank
from pcopy.launch.run import Ranks, run
from pcopy.launch.tool import Command, Ended, Tool
from pcopy.launch.watch.watchdog import NoticePipe
from pcopy.report.streams import tell
from pcopy.report.unexpected import tell_unexpected

INIT_PATIENCE = 30.0
INIT_PATIENCE_PER_RANK = 0.1
"""Seconds that MPI_Init may take: large jobs start slowly."""

SPEAKER_PATIENCE = 5.0
"""Seconds that the other ranks leave rank 0 to tell of a refusal, where its launcher would kill it with them."""

TELLING_PATIENCE = 1.0
"""Seconds for what is told, by rank 0 or by this rank, to reach the launcher, before a rank has all of them killed."""

CLOSING_PATIENCE = 2.0
"""Seconds that rank 0 leaves the others to close what they record, before it tells how the job has ended."""

DISORDER_PATIENCE = 5.0
"""Seconds that a rank waits for the others to end with it, before it has all of them killed."""


def run_under_launcher(words: Sequence[str], command: Command) -> int:
    """Runs this rank; returns the exit status on which all ranks agree. Raises ``PcopyError`` if it is alone."""
    raise_again()
    try:
        launch = identify(os.environ)
        transport = None if launch.alone else _join(launch, words, command)
    except Refused as refusal:
        return _leave(refusal, command)
    if transport is None:
        return run_locally(words, command, 0 if launch.is_plain else 1)
    try:
        return run(command, words, LaunchedRanks(transport))
    except KeyboardInterrupt:
        transport.abort(128 + signal.SIGINT)
    except PcopyError as error:
        tell(command.tool.name, error)
        _abort(transport, error.status)
    except Exception as error:  # without an end of MPI the others would wait for this rank
        _abort(transport, tell_unexpected(command.tool.name, error))
    except BaseException:
        traceback.print_exc()
        _abort(transport, INTERNAL)
    return INTERNAL


class LaunchedRanks(Ranks):
    """This process, and the others that the launcher has started."""

    def __init__(self, transport: Any) -> None:
        self._transport = transport
        self.rank = transport.rank

    def broadcast(self, value: Any) -> Any:
        return self._transport.broadcast(value)

    def gather(self, value: Any) -> list[Any]:
        told: list[Any] = self._transport.gather(value)
        return told

    def meet(self, words: Sequence[str]) -> None:
        self.hellos = hosts.read_hellos(self.gather(tuple(hosts.introduce(words))))
        following = hosts.neighbour(self.hellos, self.rank)
        if following is not None:
            self._transport.watch(following, self.hellos[following].pid)

    def number(self, asked: int) -> int:
        size: int = self._transport.size
        if asked:
            raise Refused(f"-n {asked}: the launcher has started {size} ranks; leave -n out")
        return size

    def start(self, size: int, program: str) -> tuple[Any, NoticePipe | None]:
        return self._transport, None

    def work(self, setup: RankSetup) -> Ended:
        ended = run_rank(setup)
        with suppress(PeerLost):  # ``end`` says so, when it has been told that all is done
            self._transport.meet(CLOSING_PATIENCE)
        return ended

    def end(self) -> None:
        self._transport.end()

    def lose(self, abort: JobAborted | Hindered, tool: Tool, advise: Callable[[], None]) -> None:
        """Rank 0 tells if that can; if it is gone, the rank that has noticed it."""
        if isinstance(abort, Hindered):  # the others don't know of it, and would wait
            tell(tool.name, abort)
            advise()
            _abort(self._transport, abort.status)
            return
        if self.rank == 0:
            _tell_loss(abort, advise)
        try:
            missing = None if self._transport.end(DISORDER_PATIENCE) else 0
        except PcopyError as error:
            missing = error.rank if isinstance(error, PeerLost) else self.rank
        if missing is None:
            return
        if self.rank and missing == 0:
            _tell_loss(abort, advise)
        _abort(self._transport, abort.status)


def _tell_loss(abort: JobAborted, advise: Callable[[], None]) -> None:
    sys.stderr.write(str(abort))
    advise()
    sys.stderr.flush()


def _abort(transport: Any, status: int) -> None:
    """Has all ranks killed, after somebody has told why: launchers lose what they have not read by then."""
    sys.stderr.flush()
    time.sleep(TELLING_PATIENCE)
    transport.abort(status)


def _join(launch: Launch, words: Sequence[str], command: Command) -> Any:
    """All ranks as one transport; raises ``Refused``."""
    mpi = load(launch, words)
    patience = INIT_PATIENCE + launch.size * INIT_PATIENCE_PER_RANK
    text = (
        f"{command.tool.name}: {launch.name} has started {launch.size} ranks, but MPI ({mpi.vendor()}) has not found "
        f"all of them in {patience:.0f} seconds: do all hosts have the same MPI?\n"
    )
    transport = mpi.initialise(patience, text if speaks(os.environ) else "")
    if transport.size != launch.size:
        if transport.size == 1:
            transport.end()
        raise alone(launch, mpi.vendor(), transport.size)
    return transport


def _leave(refusal: Refused, command: Command) -> int:
    """Ends this rank without the others; says why if it is rank 0, or if that has nothing against the job.

    Open MPI's mpiexec kills all ranks as soon as one has ended with a status that is not 0. So whoever lives after rank
    0 had its time to speak knows that it has nothing to say, and one rank of each host speaks.
    """
    if not speaks(os.environ):
        if not os.environ.get("OMPI_COMM_WORLD_SIZE"):
            return refusal.status
        time.sleep(SPEAKER_PATIENCE)
        if os.environ.get("OMPI_COMM_WORLD_LOCAL_RANK") != "0":
            return refusal.status
        refusal = Refused(f"on {socket.gethostname()}: {refusal}")
    tell(command.tool.name, refusal)
    return refusal.status
