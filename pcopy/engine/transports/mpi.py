"""Ranks under ``mpiexec`` or ``srun``. The only module that imports mpi4py; importing it does not initialise MPI.

Two rules carry it:

1. *The sender keeps the bytes* until MPI has completed the request (MPI 4.1, section 3.7.2).
2. *Messages of one sender are handed out in the order in which they were matched.* MPI matches the messages of one pair
   in the order of their sends (section 3.5), but a long one may complete after a short one that follows it. A receive
   is started as soon as its message is matched, so that no sender waits for a rank that is busy.

MPI implementations wait by spinning. So ``poll`` sleeps between two looks (in a poll(2) on the descriptors that may
wake it): for an eighth of the time for which no message has come or gone, within limits. (Pauses that double would be
worse: of two ranks that answer each other, each would find the answer up to twice as late as it came, the other would
wait longer still, and at last both would sleep for the longest pause.)

The end of each pause costs some 40 us of the processor. So a rank that has had no task for a while sleeps for a
sixteenth of that time, even if messages come: they only tell that others have no tasks either.

MPI does not tell that a rank has died. mpiexec ends all ranks then; srun lets the others wait for ever, unless it was
given --kill-on-bad-exit. So ranks can ``watch`` each other's processes.

MPICH keeps its shared memory in /dev/shm under a name until MPI_Finalize, and so for ever after an abort or a kill.
Once all ranks have opened it nobody needs the name, so it is removed then, and nothing is left behind.
"""

from __future__ import annotations

import itertools
import math
import os
import pickle
import re
import select
import signal
import struct
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import mpi4py

mpi4py.rc.initialize = False
mpi4py.rc.finalize = False

from mpi4py import MPI  # noqa: E402  (the switches above are read by this import)

from pcopy import libc  # noqa: E402
from pcopy.engine.messages import Message, decode, encode, load_primitives  # noqa: E402
from pcopy.engine.ticket import Wake  # noqa: E402
from pcopy.errors import REFUSED, InvariantBroken, PcopyError, PeerLost, Refused  # noqa: E402
from pcopy.named import NamedTuple  # noqa: E402

_TAG = 1
"""Of all of pcopy's messages."""
_SHORTEST_PAUSE = 20e-6
"""Seconds between two looks for messages right after one has come: MPI has nothing that a process could sleep on."""
_LONGEST_PAUSE = 2e-3
"""Seconds to which that pause grows while nothing comes."""
_PAUSE_SHARE = 1 / 8
"""The pause as a share of the time for which nothing has come."""
_LONGEST_CALM_PAUSE = 120e-3
"""Seconds to which the pause of a rank that has had no work for long grows."""
_CALM_SHARE = 1 / 16
"""The pause as a share of the time without work."""
_NEIGHBOUR_PAUSE = 0.25
"""Seconds between two looks whether a neighbour lives."""
_RECEIVING_BYTES = 64 << 20
"""Bytes of long messages under way to this rank, above which no further one is matched."""
_MATCHED_AT_ONCE = 1024
"""Messages that one look takes, so that a flood can't hold the caller."""
_LENGTH = struct.Struct("!Q")
_SEGMENT = re.compile(rb" (/dev/shm/mpich_shm_\w+)\n")


class _Sending(NamedTuple):
    request: MPI.Request
    data: bytes


class _Receiving(NamedTuple):
    request: MPI.Request
    source: int
    data: bytearray


class Neighbour:
    """The process ``pid`` of this host, which is rank ``rank``: does it still live?

    Each rank watches the next one of its host, in a ring: if some of them have died and some live, a living one watches
    a dead one. A process that has stopped, or that a file server keeps waiting, is not dead.
    """

    def __init__(self, rank: int, pid: int) -> None:
        self.rank = rank
        self._gone = False
        self._next_look = 0.0
        self._poll: select.poll | None = None
        try:
            self._descriptor = os.pidfd_open(pid)
        except ProcessLookupError:
            self._gone = True
        except OSError:
            return  # Linux before 5.3, or no descriptor to spare: then nobody watches
        else:
            self._poll = select.poll()
            self._poll.register(self._descriptor, select.POLLIN)

    def is_gone(self, now: float) -> bool:
        """Has it ended? ``now`` is a monotonic time in seconds; looks again only a while after the last look."""
        if not self._gone and self._poll is not None and now >= self._next_look:
            self._next_look = now + _NEIGHBOUR_PAUSE
            self._gone = bool(self._poll.poll(0))
        return self._gone


class MpiTransport:
    """One rank of COMM_WORLD; fills ``pcopy.engine.transport.Transport``. ``initialise`` makes it."""

    def __init__(self) -> None:
        # An own communicator: nothing that a library sends on COMM_WORLD can be taken for one of our messages.
        self._communicator = MPI.COMM_WORLD.Dup()
        self._communicator.Set_errhandler(MPI.ERRORS_RETURN)
        self.rank = self._communicator.Get_rank()
        self.size = self._communicator.Get_size()
        self._sending: dict[int, deque[_Sending]] = {}
        self._receiving: list[_Receiving] = []
        self._receiving_bytes = 0
        self._status = MPI.Status()
        self._moved = time.monotonic()
        self._closed = False
        self._barriers: list[MPI.Request] = []
        self._neighbour: Neighbour | None = None
        self._forgiven: set[int] = set()

    @property
    def unsent(self) -> bool:
        """Is there a send that MPI had not completed at the last ``poll``?"""
        return bool(self._sending)

    def send(self, destination: int, message: Message) -> None:
        """Starts to send ``message``.

        Raises ``PeerLost`` if MPI can't, and ``InvariantBroken`` if ``destination`` is this rank or none.
        """
        if destination == self.rank or not 0 <= destination < self.size:
            raise InvariantBroken(f"rank {self.rank} of {self.size} has no connection to rank {destination}")
        data = encode(message)
        try:
            request = self._communicator.Isend([data, MPI.BYTE], destination, _TAG)
        except MPI.Exception as error:
            raise PeerLost(destination, f"MPI can't send to it: {error}") from error
        self._sending.setdefault(destination, deque()).append(_Sending(request, data))
        self._moved = time.monotonic()

    def poll(self, timeout: float, calm: float = 0.0, wake: Wake | None = None) -> list[tuple[int, Message]]:
        """What has arrived; see ``Transport.poll``. Returns early with nothing once all sends are complete.

        Looks again after pauses of 20 us to 2 ms; of 120 ms at most in a ``calm``. Raises ``PcopyError`` if MPI fails.
        """
        end = time.monotonic() + timeout
        while True:
            was_unsent = self.unsent
            lost = self._lost()  # asked first, so that what it sent before is handed out before
            arrived = self._progress()
            if arrived or (was_unsent and not self.unsent):
                return arrived
            if lost is not None and lost not in self._forgiven:
                raise PeerLost(lost, "its process has ended")
            left = end - time.monotonic()
            if left <= 0.0:
                return arrived
            moving = self._sending or self._receiving  # which MPI does only when it is called
            if self._sleep(left, 0.0 if moving else calm, wake):
                return arrived

    def watch(self, rank: int, pid: int) -> None:
        """From now on the end of ``rank``, which is the process ``pid`` of this host, is told as ``PeerLost``."""
        self._neighbour = Neighbour(rank, pid)

    def forgive(self, rank: int) -> None:
        self._forgiven.add(rank)

    def close(self) -> None:
        """Completes what is unsent on all ranks; MPI runs until ``end``. Collective, as ``meet``."""
        if not self._closed:
            self.meet()
            self._closed = True

    def end(self, seconds: float = math.inf) -> bool:
        """Finalises MPI if all ranks come here within ``seconds``: what a rank did before is done before any ends.

        Collective, as ``meet``.
        """
        met = self.meet(seconds)
        if met:
            self._communicator.Free()
            MPI.Finalize()
        return met

    def meet(self, seconds: float = math.inf) -> bool:
        """Waits until all ranks have come here and completed their sends; False if that is not so within ``seconds``.

        Collective: who comes later is waited for in the next meeting. Until then what arrives is received and dropped,
        because a send of a long message ends only when it has been received.
        Raises ``PeerLost`` if a rank that is watched ends before all have come here.
        """
        end = time.monotonic() + seconds
        has_come = False
        while not (has_come and MPI.Request.Testall(self._barriers)):
            lost = self._lost()
            arrived = self._progress()
            if not has_come and not self._sending:
                self._barriers.append(self._communicator.Ibarrier())
                has_come = True
                self._moved = time.monotonic()
                continue
            if lost is not None and not (has_come and MPI.Request.Testall(self._barriers)):
                raise PeerLost(lost, "its process has ended")
            if time.monotonic() > end:
                return False
            if not arrived:
                self._sleep(_LONGEST_PAUSE)
        self._barriers.clear()
        return True

    def abort(self, status: int) -> None:
        """Ends all ranks at once; the launcher's exit status is ``status`` as far as the launcher passes it on."""
        MPI.COMM_WORLD.Abort(status)

    def broadcast(self, value: Any) -> Any:
        """Rank 0's ``value`` (primitives only) on every rank, like ``gather``."""
        return self.gather(value if self.rank == 0 else None)[0]

    def gather(self, value: Any) -> list[Any]:
        """All ranks' values (primitives only), by rank, on every rank; for the time before the job.

        Collective, and waits; raises ``PeerLost`` like ``meet``.
        """
        data = pickle.dumps(value, 5)
        length = _LENGTH.pack(len(data))
        packed = bytearray(_LENGTH.size * self.size)
        self._complete(self._communicator.Iallgather([length, MPI.BYTE], [packed, MPI.BYTE]))
        lengths = [length for (length,) in _LENGTH.iter_unpack(packed)]
        starts = [0, *itertools.accumulate(lengths[:-1])]
        buffer = bytearray(sum(lengths))
        self._complete(self._communicator.Iallgatherv([data, MPI.BYTE], [buffer, lengths, starts, MPI.BYTE]))
        view = memoryview(buffer)
        return [load_primitives(view[start : start + length]) for start, length in zip(starts, lengths, strict=True)]

    def _complete(self, request: MPI.Request) -> None:
        """Waits for a collective call without spinning: another rank may be held up by a file server for long."""
        self._moved = time.monotonic()
        while not request.Test():
            if (lost := self._lost()) is not None:
                raise PeerLost(lost, "its process has ended")
            self._sleep(_LONGEST_PAUSE)

    def _lost(self) -> int | None:
        if self._neighbour is None or not self._neighbour.is_gone(time.monotonic()):
            return None
        return self._neighbour.rank

    def _sleep(self, longest: float, calm: float = 0.0, wake: Wake | None = None) -> bool:
        """Pauses according to the time since something moved, or the ``calm``, but for ``longest`` seconds at most.

        Ends early, and is true, when ``wake`` is readable.
        """
        silence = time.monotonic() - self._moved
        pause = min(max(silence * _PAUSE_SHARE, _SHORTEST_PAUSE), _LONGEST_PAUSE)
        pause = min(max(pause, min(calm * _CALM_SHARE, _LONGEST_CALM_PAUSE)), longest)
        if wake is None:
            time.sleep(pause)
            return False
        waiting = select.poll()
        waiting.register(wake.fileno(), select.POLLIN)
        milliseconds = int(pause * 1000)  # which is how poll(2) counts: what is shorter is slept
        if not milliseconds and not waiting.poll(0):
            time.sleep(pause)
        return bool(waiting.poll(milliseconds))

    def _progress(self) -> list[tuple[int, Message]]:
        try:
            self._complete_sends()
            self._match()
            return self._complete_receives()
        except MPI.Exception as error:
            raise PcopyError(f"MPI failed on rank {self.rank}: {error}") from error

    def _complete_sends(self) -> None:
        """Frees what is sent. One look at a time, since MPICH moves only one message on in each (Testsome is one)."""
        for destination, queue in list(self._sending.items()):
            while queue and queue[0].request.Test():
                queue.popleft()
                self._moved = time.monotonic()
            if not queue:
                del self._sending[destination]

    def _match(self) -> None:
        taken = missed = 0
        # MPICH takes one message in after it has looked in vain: the second look finds it.
        while missed < 2 and taken < _MATCHED_AT_ONCE and self._receiving_bytes <= _RECEIVING_BYTES:
            matched = self._communicator.Improbe(MPI.ANY_SOURCE, _TAG, self._status)
            if matched is None:
                missed += 1
                continue
            data = bytearray(self._status.Get_count(MPI.BYTE))
            source = self._status.Get_source()
            self._receiving.append(_Receiving(matched.Irecv([data, MPI.BYTE]), source, data))
            self._receiving_bytes += len(data)
            taken, missed = taken + 1, 0

    def _complete_receives(self) -> list[tuple[int, Message]]:
        """Hands out what is complete, but nothing before an earlier message of the same sender."""
        arrived: list[tuple[int, Message]] = []
        waiting: list[_Receiving] = []
        held: set[int] = set()
        for receiving in self._receiving:
            if receiving.source in held or not receiving.request.Test():
                held.add(receiving.source)
                waiting.append(receiving)
            else:
                self._receiving_bytes -= len(receiving.data)
                arrived.append((receiving.source, decode(receiving.data)))
        self._receiving = waiting
        if arrived:
            self._moved = time.monotonic()
        return arrived


def initialise(patience: float = 0.0, text: str = "") -> MpiTransport:
    """Initialises MPI (only the thread that calls this may use it) and joins all ranks. Collective.

    Ends with ``MpiTransport.end``. If it takes more than ``patience`` seconds (0: for ever), because another rank
    never comes here, the process ends with status 2 after ``text`` on standard error. Raises ``InvariantBroken`` if MPI
    is running already, and ``Refused`` if it can't be initialised.
    """
    if MPI.Is_initialized():
        raise InvariantBroken("MPI was initialised before pcopy could do it")
    try:
        with deadline(patience, REFUSED, os.fsencode(text)):
            MPI.Init_thread(MPI.THREAD_FUNNELED)
            transport = MpiTransport()
    except MPI.Exception as error:
        raise Refused(f"MPI ({vendor()}) can't be initialised: {error}") from error
    _remove_names_of_shared_memory()
    signal.signal(signal.SIGUSR1, signal.SIG_DFL)  # MPICH takes it and swallows it
    return transport


@contextmanager
def deadline(seconds: float, status: int, text: bytes) -> Iterator[None]:
    """Ends the process with ``status``, after ``text`` on standard error, unless the body ends within ``seconds``.

    For C code that never returns and keeps the interpreter's lock, such as MPI_Init without its launcher. No thread and
    no handler of Python's own runs then. A handler that C calls does: on the main thread, which holds the lock already.
    Takes SIGALRM meanwhile. For the main thread.
    """

    def leave(_: int) -> None:
        try:
            os.write(2, text)
        finally:
            os._exit(status)

    with libc.handled_in_c(signal.SIGALRM, leave):
        signal.setitimer(signal.ITIMER_REAL, seconds)
        try:
            yield
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)


def _remove_names_of_shared_memory() -> None:
    """Every rank of this host has been in MPI_Init, which maps the memory, before another one could leave ``Dup``."""
    with open("/proc/self/maps", "rb") as file:
        names = set(_SEGMENT.findall(file.read()))
    for name in names:
        with suppress(FileNotFoundError):  # another rank of this host was quicker
            os.unlink(name)


def vendor() -> str:
    """The name of the loaded MPI library, such as "MPICH" or "Open MPI"; can be asked before ``initialise``."""
    return MPI.get_vendor()[0]


def speaks_pmix() -> bool:
    """Is the loaded library linked with PMIx? Open MPI loads it only later, and is not meant."""
    return bool(libc.symbols_of(MPI.__file__, ["PMIx_Init"]))


def is_switchable() -> bool:
    """Does mpi4py choose its MPI library when it starts? Its wheels do, and name their modules by ABIs."""
    return os.path.basename(MPI.__file__).split(".")[1] in ("mpich", "openmpi")
