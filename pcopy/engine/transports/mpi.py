"""Transport for ranks started by ``mpiexec`` or ``srun``.

This is the only module that imports mpi4py. Importing it does not initialise MPI. Two rules make it work:

1. *The sender keeps the bytes* until MPI has completed the request (MPI 4.1, section 3.7.2).
2. *Messages of one sender are returned in the order in which they were matched.* MPI matches the messages of one pair
   in the order of their sends (section 3.5), but a long one may complete after a short one that follows it. A receive
   is started as soon as its message is matched, so that no sender waits for a rank that is busy.

MPI implementations wait by spinning, which would take processor time from ranks that work. So ``poll`` sleeps between
two checks for messages, in a poll(2) on the descriptor that may wake it. It sleeps for an eighth of the time since the
last message was sent or received, within limits. (Pauses that double would be worse: if two ranks answer each other,
each would find the other's answer up to twice as late as it arrived, so the other one would wait longer still, and in
the end both would sleep for the longest pause.)

The end of each pause costs some 40 us of processor time. So a rank that has had no task for a while sleeps for a
sixteenth of that time, even if messages arrive: they only report that other ranks have no tasks either.

MPI does not report that a rank has died. mpiexec ends all ranks when one has died. srun lets the others wait for ever,
unless it was started with --kill-on-bad-exit. So ranks can watch each other's processes.

MPICH keeps its shared memory in /dev/shm under a name until MPI_Finalize, and so for ever after an abort or a kill. The
name is not needed any longer once all ranks have opened the shared memory. This module removes the name then, so that
no file remains after an abort.
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

from mpi4py import MPI  # noqa: E402  (this import reads the settings above)

from pcopy import libc  # noqa: E402
from pcopy.engine.messages import Message, decode_message, encode_message, load_primitives  # noqa: E402
from pcopy.engine.ticket import WakeDescriptor  # noqa: E402
from pcopy.errors import EXIT_REFUSED, InvariantBroken, PcopyError, PeerLost, RequestRefused  # noqa: E402
from pcopy.fast_named_tuple import NamedTuple  # noqa: E402

_MESSAGE_TAG = 1
"""MPI tag of all messages between ranks; the transport receives no message with another tag."""
_SHORTEST_PAUSE = 20e-6
"""Seconds between two checks for messages right after one has arrived: MPI has no descriptor to sleep on."""
_LONGEST_PAUSE = 2e-3
"""Maximum pause in seconds between two checks for messages on a rank that has work, or had some recently."""
_PAUSE_PER_SILENCE = 1 / 8
"""While a rank waits for messages: pause between two checks, as a fraction of the time since the last message."""
_LONGEST_IDLE_PAUSE = 120e-3
"""Maximum pause in seconds between two checks for messages on a rank that has had no work for a long time."""
_PAUSE_PER_IDLE_TIME = 1 / 16
"""While a rank without work waits for messages: pause between two checks, as a fraction of the time for which it has
had no work.
"""
_NEIGHBOUR_CHECK_SECONDS = 0.25
"""Seconds between two checks whether the watched process, which runs another rank of this host, has ended."""
_MAX_RECEIVING_BYTES = 64 << 20
"""While more bytes of messages than this are being received, no other message is accepted, so that messages cannot fill
the memory.
"""
_MAX_MATCHED_PER_CALL = 1024
"""Maximum number of messages that one check begins to receive, so that a flood of messages cannot block the caller."""
_LENGTH_FIELD = struct.Struct("!Q")
"""Format in which ``gather`` sends the length of each rank's value."""
_MPICH_SHARED_MEMORY = re.compile(rb" (/dev/shm/mpich_shm_\w+)\n")
"""End of a line of /proc/self/maps with the path of a file of MPICH's shared memory."""


class _PendingSend(NamedTuple):
    """A message that MPI has not sent completely: the MPI request, and the bytes, which must be kept until then."""

    request: MPI.Request
    data: bytes


class _PendingReceive(NamedTuple):
    """A message that MPI has not received completely: the MPI request, the sending rank, and the buffer for the
    bytes.
    """

    request: MPI.Request
    source: int
    data: bytearray


class ProcessEndWatcher:
    """Watch on the process ``pid`` of this host, which runs rank ``rank``, to find out when it ends.

    Each rank watches the next one of its host, in a ring. So if some ranks of the host have died and some live, at
    least one living rank watches a dead one. A process that is stopped, or that a file server blocks, has not ended.
    """

    def __init__(self, rank: int, pid: int) -> None:
        self.rank = rank
        self._has_ended = False
        self._next_check = 0.0
        self._poll: select.poll | None = None
        try:
            self._descriptor = os.pidfd_open(pid)
        except ProcessLookupError:
            self._has_ended = True
        except OSError:
            return  # Linux before 5.3, or no free descriptor: the process is not watched
        else:
            self._poll = select.poll()
            self._poll.register(self._descriptor, select.POLLIN)

    def has_process_ended(self, now: float) -> bool:
        """Return True if the process has ended. ``now`` is a monotonic time in seconds.

        The process is checked again only ``_NEIGHBOUR_CHECK_SECONDS`` seconds after the last check.
        """
        if not self._has_ended and self._poll is not None and now >= self._next_check:
            self._next_check = now + _NEIGHBOUR_CHECK_SECONDS
            self._has_ended = bool(self._poll.poll(0))
        return self._has_ended


class MpiTransport:
    """Transport (sends and receives messages between ranks) that uses MPI; the ranks are those of COMM_WORLD. Created
    by ``initialise_mpi``. Implements ``pcopy.engine.transport.MessageTransport``.
    """

    def __init__(self) -> None:
        # A separate communicator, so that messages of a library on COMM_WORLD are never received as pcopy's.
        self._communicator = MPI.COMM_WORLD.Dup()
        self._communicator.Set_errhandler(MPI.ERRORS_RETURN)
        self.rank = self._communicator.Get_rank()
        self.size = self._communicator.Get_size()
        self._pending_sends: dict[int, deque[_PendingSend]] = {}
        self._pending_receives: list[_PendingReceive] = []
        self._receiving_bytes = 0
        self._status = MPI.Status()
        self._last_transfer = time.monotonic()
        self._closed = False
        self._barriers: list[MPI.Request] = []
        self._neighbour: ProcessEndWatcher | None = None
        self._forgiven: set[int] = set()

    @property
    def has_unsent_data(self) -> bool:
        """True if MPI had not completed all sends at the last ``poll``."""
        return bool(self._pending_sends)

    def send(self, destination: int, message: Message) -> None:
        """Start to send ``message``.

        Raise ``PeerLost`` if MPI cannot, and ``InvariantBroken`` if ``destination`` is this rank or does not exist.
        """
        if destination == self.rank or not 0 <= destination < self.size:
            raise InvariantBroken(f"rank {self.rank} of {self.size} has no connection to rank {destination}")
        data = encode_message(message)
        try:
            request = self._communicator.Isend([data, MPI.BYTE], destination, _MESSAGE_TAG)
        except MPI.Exception as error:
            raise PeerLost(destination, f"MPI can't send to it: {error}") from error
        self._pending_sends.setdefault(destination, deque()).append(_PendingSend(request, data))
        self._last_transfer = time.monotonic()

    def poll(self, timeout: float, calm: float = 0.0, wake: WakeDescriptor | None = None) -> list[tuple[int, Message]]:
        """Return the messages that have arrived, as (sender, message). Wait for up to ``timeout`` seconds for the first
        one, until ``wake`` is readable, or until all sends are complete.

        While it waits, it checks for messages after pauses of 20 us to 2 ms, or up to 120 ms if ``calm``, the seconds
        for which the rank has had no work, is large. Raise ``PeerLost`` if the watched process has ended, and
        ``PcopyError`` if MPI fails.
        """
        end = time.monotonic() + timeout
        while True:
            was_unsent = self.has_unsent_data
            lost = (
                self._lost_rank()
            )  # checked first, so that messages that the rank sent before its end are returned first
            arrived = self._progress_sends_and_receives()
            if arrived or (was_unsent and not self.has_unsent_data):
                return arrived
            if lost is not None and lost not in self._forgiven:
                raise PeerLost(lost, "its process has ended")
            left = end - time.monotonic()
            if left <= 0.0:
                return arrived
            # MPI makes progress with pending sends and receives only when it is called.
            moving = self._pending_sends or self._pending_receives
            if self._sleep_between_message_checks(left, 0.0 if moving else calm, wake):
                return arrived

    def watch_process(self, rank: int, pid: int) -> None:
        """Watch the process ``pid`` of this host, which runs ``rank``: from now on ``poll`` raises ``PeerLost`` when it
        has ended.
        """
        self._neighbour = ProcessEndWatcher(rank, pid)

    def expect_end_of_connection(self, rank: int) -> None:
        """Treat the end of the process of ``rank`` as expected from now on: do not raise ``PeerLost`` for it."""
        self._forgiven.add(rank)

    def close(self) -> None:
        """Wait until the messages of all ranks are sent. MPI remains initialised. Collective: all ranks must call
        it.
        """
        if not self._closed:
            self.wait_for_all_ranks()
            self._closed = True

    def finalise_mpi(self, seconds: float = math.inf) -> bool:
        """Wait until all ranks have called this, then finalise MPI; return False, without finalising it, if they have
        not within ``seconds``. Collective: all ranks must call it.

        No rank finalises MPI before all ranks have called this, so a rank can rely on what the others did before.
        """
        met = self.wait_for_all_ranks(seconds)
        if met:
            self._communicator.Free()
            MPI.Finalize()
        return met

    def wait_for_all_ranks(self, seconds: float = math.inf) -> bool:
        """Wait until all ranks have called this method and their messages are sent; return False if that takes more
        than ``seconds``.

        Collective: after False, this rank must call it again, and waits for the same ranks. Messages that arrive
        meanwhile are received and dropped, because the send of a long message is complete only when the message is
        received. Raise ``PeerLost`` if the watched rank ends before all ranks have called this.
        """
        end = time.monotonic() + seconds
        has_come = False
        while not (has_come and MPI.Request.Testall(self._barriers)):
            lost = self._lost_rank()
            arrived = self._progress_sends_and_receives()
            if not has_come and not self._pending_sends:
                self._barriers.append(self._communicator.Ibarrier())
                has_come = True
                self._last_transfer = time.monotonic()
                continue
            if lost is not None and not (has_come and MPI.Request.Testall(self._barriers)):
                raise PeerLost(lost, "its process has ended")
            if time.monotonic() > end:
                return False
            if not arrived:
                self._sleep_between_message_checks(_LONGEST_PAUSE)
        self._barriers.clear()
        return True

    def abort_all_ranks(self, status: int) -> None:
        """End all ranks immediately with MPI_Abort. The launcher's exit status is ``status`` as far as the launcher
        passes it on.
        """
        MPI.COMM_WORLD.Abort(status)

    def broadcast(self, value: Any) -> Any:
        """Return the ``value`` that rank 0 has passed, on every rank. Blocking and collective: all ranks must call it.

        The value consists of numbers, strings, bytes, None and containers of these. Raise ``PeerLost`` if the watched
        rank ends.
        """
        return self.gather(value if self.rank == 0 else None)[0]

    def gather(self, value: Any) -> list[Any]:
        """Return the list of the values that the ranks have passed, in the order of ranks, on every rank. For use
        before the job begins. Blocking and collective: all ranks must call it.

        The values consist of numbers, strings, bytes, None and containers of these. Raise ``PeerLost`` if the watched
        rank ends.
        """
        data = pickle.dumps(value, 5)
        length = _LENGTH_FIELD.pack(len(data))
        packed = bytearray(_LENGTH_FIELD.size * self.size)
        self._wait_for_collective(self._communicator.Iallgather([length, MPI.BYTE], [packed, MPI.BYTE]))
        lengths = [length for (length,) in _LENGTH_FIELD.iter_unpack(packed)]
        starts = [0, *itertools.accumulate(lengths[:-1])]
        buffer = bytearray(sum(lengths))
        self._wait_for_collective(self._communicator.Iallgatherv([data, MPI.BYTE], [buffer, lengths, starts, MPI.BYTE]))
        view = memoryview(buffer)
        return [load_primitives(view[start : start + length]) for start, length in zip(starts, lengths, strict=True)]

    def _wait_for_collective(self, request: MPI.Request) -> None:
        """Wait until the collective MPI call of ``request`` is complete. Sleep between checks, because a file server
        may delay another rank for a long time.

        Raise ``PeerLost`` if the rank whose process is watched ends.
        """
        self._last_transfer = time.monotonic()
        while not request.Test():
            if (lost := self._lost_rank()) is not None:
                raise PeerLost(lost, "its process has ended")
            self._sleep_between_message_checks(_LONGEST_PAUSE)

    def _lost_rank(self) -> int | None:
        """Return the rank whose process this rank watches, if that process has ended; otherwise None."""
        if self._neighbour is None or not self._neighbour.has_process_ended(time.monotonic()):
            return None
        return self._neighbour.rank

    def _sleep_between_message_checks(
        self, longest: float, calm: float = 0.0, wake: WakeDescriptor | None = None
    ) -> bool:
        """Sleep for up to ``longest`` seconds between two checks for messages; return True if ``wake`` became readable,
        which ends the sleep early.

        The sleep is longer the longer ago the last message was, and the longer the rank has had no work (``calm``
        seconds).
        """
        silence = time.monotonic() - self._last_transfer
        pause = min(max(silence * _PAUSE_PER_SILENCE, _SHORTEST_PAUSE), _LONGEST_PAUSE)
        pause = min(max(pause, min(calm * _PAUSE_PER_IDLE_TIME, _LONGEST_IDLE_PAUSE)), longest)
        if wake is None:
            time.sleep(pause)
            return False
        waiting = select.poll()
        waiting.register(wake.fileno(), select.POLLIN)
        milliseconds = int(pause * 1000)  # poll(2) counts milliseconds; a shorter pause is made by sleep
        if not milliseconds and not waiting.poll(0):
            time.sleep(pause)
        return bool(waiting.poll(milliseconds))

    def _progress_sends_and_receives(self) -> list[tuple[int, Message]]:
        """Continue sends and receives; return the messages that are complete, as (sender, message). Raise
        ``PcopyError`` if MPI fails.
        """
        try:
            self._forget_completed_sends()
            self._start_receiving_arrived_messages()
            return self._completely_received_messages()
        except MPI.Exception as error:
            raise PcopyError(f"MPI failed on rank {self.rank}: {error}") from error

    def _forget_completed_sends(self) -> None:
        """Forget the messages that MPI has sent completely.

        Each is tested by a call of its own, because MPICH progresses only one message per call (Testsome is one call).
        """
        for destination, queue in list(self._pending_sends.items()):
            while queue and queue[0].request.Test():
                queue.popleft()
                self._last_transfer = time.monotonic()
            if not queue:
                del self._pending_sends[destination]

    def _start_receiving_arrived_messages(self) -> None:
        """Find out which messages have arrived, and start to receive them."""
        taken = missed = 0
        # A probe of MPICH that finds no message makes progress with incoming messages, so a second probe may find one.
        while missed < 2 and taken < _MAX_MATCHED_PER_CALL and self._receiving_bytes <= _MAX_RECEIVING_BYTES:
            matched = self._communicator.Improbe(MPI.ANY_SOURCE, _MESSAGE_TAG, self._status)
            if matched is None:
                missed += 1
                continue
            data = bytearray(self._status.Get_count(MPI.BYTE))
            source = self._status.Get_source()
            self._pending_receives.append(_PendingReceive(matched.Irecv([data, MPI.BYTE]), source, data))
            self._receiving_bytes += len(data)
            taken, missed = taken + 1, 0

    def _completely_received_messages(self) -> list[tuple[int, Message]]:
        """Return the received messages that are complete, as (sender, message). A message waits until all earlier ones
        of its sender are complete.
        """
        arrived: list[tuple[int, Message]] = []
        waiting: list[_PendingReceive] = []
        held: set[int] = set()
        for receiving in self._pending_receives:
            if receiving.source in held or not receiving.request.Test():
                held.add(receiving.source)
                waiting.append(receiving)
            else:
                self._receiving_bytes -= len(receiving.data)
                arrived.append((receiving.source, decode_message(receiving.data)))
        self._pending_receives = waiting
        if arrived:
            self._last_transfer = time.monotonic()
        return arrived


def initialise_mpi(patience: float = 0.0, text: str = "") -> MpiTransport:
    """Initialise MPI, connect all ranks, and return the transport of this rank. Collective: all ranks must call it.

    Only the calling thread may use MPI. If the call takes more than ``patience`` seconds (0: no limit) because another
    rank never calls it, the process prints ``text`` to standard error and exits with status 2. Raise
    ``InvariantBroken`` if MPI is initialised already, and ``RequestRefused`` if it cannot be initialised.
    ``MpiTransport.finalise_mpi`` finalises MPI.
    """
    if MPI.Is_initialized():
        raise InvariantBroken("MPI was initialised before pcopy could do it")
    try:
        with exit_if_block_exceeds_time(patience, EXIT_REFUSED, os.fsencode(text)):
            MPI.Init_thread(MPI.THREAD_FUNNELED)
            transport = MpiTransport()
    except MPI.Exception as error:
        raise RequestRefused(f"MPI ({mpi_library_name()}) can't be initialised: {error}") from error
    _remove_names_of_shared_memory()
    signal.signal(signal.SIGUSR1, signal.SIG_DFL)  # MPICH installs a handler that ignores the signal
    return transport


@contextmanager
def exit_if_block_exceeds_time(seconds: float, status: int, text: bytes) -> Iterator[None]:
    """Context manager: end the process with ``status``, after printing ``text`` to standard error, if the body does not
    end within ``seconds``.

    With ``seconds`` 0 there is no limit. This is for C code that never returns and keeps the interpreter's lock, such
    as MPI_Init when other ranks are missing. No other thread and no Python signal handler can run then. But a signal
    handler that C calls directly can: it runs on the main thread, which has the lock already. Uses SIGALRM. Must be
    called on the main thread.
    """

    def leave(_: int) -> None:
        try:
            os.write(2, text)
        finally:
            os._exit(status)

    with libc.c_signal_handler(signal.SIGALRM, leave):
        signal.setitimer(signal.ITIMER_REAL, seconds)
        try:
            yield
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)


def _remove_names_of_shared_memory() -> None:
    """Remove the files of MPICH's shared memory from /dev/shm, so that none remains there if the process is killed. The
    memory itself stays in use.

    Called after ``MPI_Comm_dup``: no rank returns from that before every rank has returned from MPI_Init, in which it
    has mapped the memory.
    """
    with open("/proc/self/maps", "rb") as file:
        names = set(_MPICH_SHARED_MEMORY.findall(file.read()))
    for name in names:
        with suppress(FileNotFoundError):  # another rank of this host has removed it
            os.unlink(name)


def mpi_library_name() -> str:
    """Return the name of the loaded MPI library, such as "MPICH" or "Open MPI". May be called before
    ``initialise_mpi``.
    """
    return MPI.get_vendor()[0]


def is_mpi_linked_with_pmix() -> bool:
    """Return True if the loaded MPI library is linked with PMIx. Open MPI loads PMIx later and is not detected."""
    return bool(libc.symbols_defined_in_library(MPI.__file__, ["PMIx_Init"]))


def can_switch_mpi_library() -> bool:
    """Return True if mpi4py chooses its MPI library when it is imported. mpi4py's wheels do; they contain one extension
    module for each ABI, and its file name has "mpich" or "openmpi" in it.
    """
    return os.path.basename(MPI.__file__).split(".")[1] in ("mpich", "openmpi")
