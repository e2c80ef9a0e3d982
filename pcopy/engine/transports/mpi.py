"""Ranks under ``mpiexec`` or ``srun``. The only module that imports mpi4py; importing it does not initialise MPI.

Two rules carry it:

1. *Who sends keeps the bytes* until MPI has completed the request (MPI 4.1, section 3.7.2).
2. *Order is that of matching.* MPI matches the messages of one pair in the order of their sends (section 3.5), but a
   long one may complete after a short one that follows it. Receives are therefore started as soon as they are matched,
   so that nobody waits for a rank that is busy, and handed out per sender in the order in which they were matched.

MPI implementations wait by spinning, so ``poll`` sleeps between its looks: for an eighth of the time for which nothing
has moved, within limits. (With pauses that double, each of two ranks that answer each other finds the answer up to
twice as late as it came, so that the other waits longer still, until both are at the longest pause.)

Death is not told here: when a rank dies, the launcher ends all of them.
"""

from __future__ import annotations

import itertools
import pickle
import struct
import time
from collections import deque
from typing import Any, NamedTuple

import mpi4py

mpi4py.rc.initialize = False
mpi4py.rc.finalize = False

from mpi4py import MPI  # noqa: E402  (the switches above are read by this import)

from pcopy.engine.messages import Message, decode, encode, load_primitives  # noqa: E402
from pcopy.errors import InvariantBroken, PcopyError, PeerLost  # noqa: E402

_TAG = 1
_SHORTEST_PAUSE = 20e-6
_LONGEST_PAUSE = 2e-3
_PAUSE_SHARE = 1 / 8
_RECEIVING_BYTES = 64 << 20
"""Bytes of long messages under way to this rank, above which no further one is matched."""
_MATCHED_AT_ONCE = 1024
"""Messages that one look takes, so that a flood can't hold the caller."""
_LENGTH = struct.Struct("!Q")


class _Sending(NamedTuple):
    request: MPI.Request
    data: bytes


class _Receiving(NamedTuple):
    request: MPI.Request
    source: int
    data: bytearray


class MpiTransport:
    """One rank of COMM_WORLD; fills ``pcopy.engine.transport.Transport``. ``initialise`` makes it."""

    def __init__(self) -> None:
        # An own communicator: nothing that a library sends on COMM_WORLD can be taken for one of our messages.
        self._communicator = MPI.COMM_WORLD.Dup()
        self._communicator.Set_errhandler(MPI.ERRORS_RETURN)
        self._rank = self._communicator.Get_rank()
        self._size = self._communicator.Get_size()
        self._sending: dict[int, deque[_Sending]] = {}
        self._receiving: list[_Receiving] = []
        self._receiving_bytes = 0
        self._status = MPI.Status()
        self._moved = time.monotonic()
        self._closed = False

    @property
    def rank(self) -> int:
        return self._rank

    @property
    def size(self) -> int:
        return self._size

    @property
    def unsent(self) -> bool:
        """Is there a send that MPI had not completed at the last ``poll``?"""
        return bool(self._sending)

    def send(self, destination: int, message: Message) -> None:
        """Starts to send ``message``.

        Raises ``PeerLost`` if MPI can't, and ``InvariantBroken`` if ``destination`` is this rank or none.
        """
        if destination == self._rank or not 0 <= destination < self._size:
            raise InvariantBroken(f"rank {self._rank} of {self._size} has no connection to rank {destination}")
        data = encode(message)
        try:
            request = self._communicator.Isend([data, MPI.BYTE], destination, _TAG)
        except MPI.Exception as error:
            raise PeerLost(destination, f"MPI can't send to it: {error}") from error
        self._sending.setdefault(destination, deque()).append(_Sending(request, data))
        self._moved = time.monotonic()

    def poll(self, timeout: float) -> list[tuple[int, Message]]:
        """What has arrived; see ``Transport.poll``. Returns early with nothing once all sends are complete.

        Looks again after pauses of 20 us to 2 ms. Raises ``PcopyError`` if MPI fails.
        """
        deadline = time.monotonic() + timeout
        while True:
            was_unsent = self.unsent
            arrived = self._progress()
            if arrived or (was_unsent and not self.unsent):
                return arrived
            left = deadline - time.monotonic()
            if left <= 0.0:
                return arrived
            self._sleep(left)

    def forgive(self, rank: int) -> None:
        """Nothing to do: MPI doesn't tell of an end."""

    def close(self) -> None:
        """Completes what is unsent on all ranks, then finalises MPI. Collective: every rank has to call it.

        Until all ranks have completed their sends, what arrives is received and dropped, because a send of a long
        message ends only when it has been received.
        """
        if self._closed:
            return
        self._closed = True
        barrier = None
        while barrier is None or not barrier.Test():
            arrived = self._progress()
            if barrier is None and not self._sending:
                barrier = self._communicator.Ibarrier()
                self._moved = time.monotonic()
            elif not arrived:
                self._sleep(_LONGEST_PAUSE)
        self._communicator.Free()
        MPI.Finalize()

    def abort(self, status: int) -> None:
        """Ends all ranks at once; the launcher's exit status is ``status`` as far as the launcher passes it on."""
        MPI.COMM_WORLD.Abort(status)

    def broadcast(self, value: Any) -> Any:
        """Rank 0's ``value`` (primitives only) on every rank. Collective, and blocks; for the time before the job."""
        data = pickle.dumps(value, 5) if self._rank == 0 else b""
        length = bytearray(_LENGTH.pack(len(data)))
        self._communicator.Bcast([length, MPI.BYTE], root=0)
        buffer = bytearray(data) if self._rank == 0 else bytearray(_LENGTH.unpack(length)[0])
        self._communicator.Bcast([buffer, MPI.BYTE], root=0)
        return load_primitives(buffer)

    def gather(self, value: Any) -> list[Any]:
        """All ranks' values (primitives only), by rank, on every rank. Collective, and blocks, like ``broadcast``."""
        data = pickle.dumps(value, 5)
        packed = bytearray(_LENGTH.size * self._size)
        self._communicator.Allgather([_LENGTH.pack(len(data)), MPI.BYTE], [packed, MPI.BYTE])
        lengths = [length for (length,) in _LENGTH.iter_unpack(packed)]
        starts = [0, *itertools.accumulate(lengths[:-1])]
        buffer = bytearray(sum(lengths))
        self._communicator.Allgatherv([data, MPI.BYTE], [buffer, lengths, starts, MPI.BYTE])
        view = memoryview(buffer)
        return [load_primitives(view[start : start + length]) for start, length in zip(starts, lengths, strict=True)]

    def _sleep(self, longest: float) -> None:
        """Pauses according to the time since something moved, but for ``longest`` seconds at most."""
        silence = time.monotonic() - self._moved
        time.sleep(min(max(silence * _PAUSE_SHARE, _SHORTEST_PAUSE), _LONGEST_PAUSE, longest))

    def _progress(self) -> list[tuple[int, Message]]:
        """Completes sends, matches and completes receives."""
        try:
            self._complete_sends()
            self._match()
            return self._complete_receives()
        except MPI.Exception as error:
            raise PcopyError(f"MPI failed on rank {self._rank}: {error}") from error

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


def initialise() -> MpiTransport:
    """Initialises MPI (only the thread that calls this may use it) and joins all ranks. Collective.

    Ends with ``MpiTransport.close``. Raises ``InvariantBroken`` if MPI is running already.
    """
    if MPI.Is_initialized():
        raise InvariantBroken("MPI was initialised before pcopy could do it")
    MPI.Init_thread(MPI.THREAD_FUNNELED)
    return MpiTransport()


def vendor() -> str:
    """The name of the loaded MPI library, such as "MPICH" or "Open MPI"; can be asked before ``initialise``."""
    return MPI.get_vendor()[0]
