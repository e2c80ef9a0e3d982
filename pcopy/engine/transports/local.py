"""Transport for ranks on one host: forked processes, connected pairwise by Unix stream sockets. The parent is rank 0.

Three rules make it work:

1. *Only one process has each end of a socket pair open.* Otherwise the death of a process would not show as the end of
   its connections. The pair for ranks i and k, i < k, is created just before rank i is forked. The parent closes i's
   end right after that fork, and k's end after the fork of k. Every child first closes all ends of other ranks that it
   has inherited. So after k forks the parent has k (size - k) ends of ranks that are not forked yet open: at most about
   size^2 / 4, and never all size^2.
2. *Only poll blocks.* A message is written to the socket as far as it fits. The rest stays in the peer's queue and is
   written when epoll reports that there is room. So two ranks that send to each other at the same time never wait for
   each other.
3. *A stream that has ended is first read to its end.* A Unix socket keeps the data sent into it, even if a later read
   or write reports ECONNRESET or EPIPE (unix(7)). So a failed write only ends the writing. The loss is reported by
   reading, and only by a poll that has no messages to return.

On the socket each message is a frame: the length of its body (8 bytes, network order) and the body, the message in the
wire format of ``pcopy.engine.messages``.
"""

from __future__ import annotations

import _socket  # the module socket makes enums of all its constants, which takes as long as copying many files
import itertools
import os
import resource
import select
import struct
import sys
import time
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, TypeVar

from pcopy import libc
from pcopy.background import is_single_threaded
from pcopy.engine.messages import Message, decode_message, encode_message
from pcopy.engine.ticket import WakeDescriptor
from pcopy.engine.transports.children import ChildProcesses
from pcopy.errors import (
    EXIT_INTERNAL,
    EXIT_STOPPED,
    RESOURCE_EXCEPTIONS,
    InvariantBroken,
    PeerLost,
    RequestRefused,
    current_traceback,
    resource_error_text,
)

_RETRY_PAUSES = (0.001, 0.02, 0.1)
"""Seconds before the second, third and fourth attempt of a system call that has failed for lack of a resource."""
_FRAME_HEADER = struct.Struct("!Q")
"""Format of the bytes before each message on a socket: the length of the message in bytes."""
_READ_BYTES = 256 << 10
"""Maximum bytes read from a socket in one call: somewhat more than Linux lets a Unix socket hold."""
_MAX_JOINED_MESSAGE_BYTES = 16 << 10
"""Maximum size in bytes of a message that is copied behind its header, so that one buffer is written. For larger
messages the copy would cost more than writing two buffers.
"""
_MAX_BUFFERS_PER_WRITE = 64
"""Maximum number of queued buffers passed to one sendmsg(2); below IOV_MAX, which is 1024."""
_LONGEST_WAIT = 3600.0
"""Maximum timeout in seconds for epoll, which counts milliseconds in an int."""
_LOSS_REPORT_DELAY_SECONDS = 0.1
"""Seconds for which ``poll`` returns messages of other ranks before it reports that a rank is lost.

One of these messages may be an ``AbortMessage`` with the reason. The delay is limited, so that messages never hide the
loss.
"""
_SPARE_DESCRIPTORS = 32
"""Number of descriptors that a rank may need in addition to its connections, for open files and directories."""

Result = TypeVar("Result")


def retry_if_resource_refused(call: Callable[..., Result], *arguments: Any) -> Result:
    """Return the result of ``call(*arguments)``. If the operating system refuses the call for lack of a resource such
    as memory, try it up to three times more. Errors of the connection are not retried.

    ``call`` must have sent or received nothing when it fails. Raise the last ``OSError``.
    """
    for pause in _RETRY_PAUSES:
        try:
            return call(*arguments)
        except (BlockingIOError, ConnectionError):
            raise
        except OSError:
            time.sleep(pause)
    return call(*arguments)


class PeerConnection:
    """Connection of this process to another rank: the socket, the data to be written to it, and the part of a message
    that has been read from it.

    Attributes:
        outgoing: buffers that have not been written.
        writable: False once writing has failed or the connection is closed.
        head: bytes that have been read of an incomplete message header; empty if there are none.
        body: buffer for the rest of a message that is not complete, filled up to ``filled``; None if there is none.
        ended: monotonic time in seconds at which the stream ended; 0 while it lasts.
        lost: reason of the loss of the connection, once it has been reported; empty before.
        forgiven: True if the end of the connection is expected and is not reported as a loss.
    """

    __slots__ = ("body", "ended", "filled", "forgiven", "head", "lost", "outgoing", "rank", "socket", "writable")

    def __init__(self, rank: int, descriptor: int) -> None:
        self.rank = rank
        self.socket = retry_if_resource_refused(_socket.socket, _socket.AF_UNIX, _socket.SOCK_STREAM, 0, descriptor)
        self.socket.setblocking(False)
        self.outgoing: deque[memoryview] = deque()
        self.writable = True
        self.head = b""
        self.body: bytearray | None = None
        self.filled = 0
        self.ended = 0.0
        self.lost = ""
        self.forgiven = False

    def close(self) -> None:
        """Close the socket."""
        with suppress(OSError):  # all data have been passed to the socket before, or the connection is broken
            self.socket.close()


class UnixSocketTransport:
    """Transport (sends and receives messages between ranks) of one of the processes that ``fork_ranks`` has forked; it
    uses Unix sockets. Implements ``pcopy.engine.transport.MessageTransport``.
    """

    def __init__(self, rank: int, size: int, ends: Mapping[int, int], children: ChildProcesses) -> None:
        """Create the transport of one rank.

        The caller must call ``close`` before it waits for the children to end: children that still write to rank 0
        would otherwise never end.

        Args:
            rank: this rank.
            size: number of ranks.
            ends: descriptor of the socket to each other rank; this object owns them from now on.
            children: on rank 0 the child processes; empty on other ranks.
        """
        self.rank = rank
        self.size = size
        self.children = children
        self._peers = {peer: PeerConnection(peer, descriptor) for peer, descriptor in ends.items()}
        self._peers_by_descriptor = {peer.socket.fileno(): peer for peer in self._peers.values()}
        self._unsent_ranks: set[int] = set()
        self._unreported_losses: deque[PeerConnection] = deque()
        self._buffer = memoryview(bytearray(_READ_BYTES if size > 1 else 0))
        self._epoll = retry_if_resource_refused(select.epoll)
        for descriptor in self._peers_by_descriptor:
            retry_if_resource_refused(self._epoll.register, descriptor, select.EPOLLIN)
        self._wake: WakeDescriptor | None = None
        self._wake_descriptor = -1

    @property
    def has_unsent_data(self) -> bool:
        """True if a socket has not taken all queued data."""
        return bool(self._unsent_ranks)

    def send(self, destination: int, message: Message) -> None:
        """Queue ``message``, and write as much of it to the socket as fits.

        Raise ``PeerLost`` if ``poll`` has reported the loss of ``destination``, and ``InvariantBroken`` if
        ``destination`` is this rank or does not exist. A message to a closed connection is dropped before ``poll`` has
        reported the loss, and always for a rank that was passed to ``expect_end_of_connection``.
        """
        peer = self._connection_to_rank(destination)
        if peer.lost and not peer.forgiven:
            raise PeerLost(destination, peer.lost)
        if not peer.writable:
            return
        body = encode_message(message)
        header = _FRAME_HEADER.pack(len(body))
        if len(body) <= _MAX_JOINED_MESSAGE_BYTES:
            peer.outgoing.append(memoryview(header + body))
        else:
            peer.outgoing.extend((memoryview(header), memoryview(body)))
        if destination not in self._unsent_ranks:
            self._write_queued_data(peer)

    def poll(self, timeout: float, calm: float = 0.0, wake: WakeDescriptor | None = None) -> list[tuple[int, Message]]:
        """Return the messages that have arrived, as (sender, message). Wait for up to ``timeout`` seconds for the first
        one, until ``wake`` is readable, or until the last queued message has been sent. ``calm`` has no effect.

        Raise ``PeerLost``, once per lost rank, and ``InvariantBroken`` if a peer sends data that are not messages.
        """
        if wake is not self._wake:
            self._register_wake_descriptor(wake)
        now = time.monotonic()
        deadline = now + timeout
        if self._unreported_losses and now >= self._unreported_losses[0].ended + _LOSS_REPORT_DELAY_SECONDS:
            self._raise_first_connection_loss()
        wait = 0.0 if self._unreported_losses else timeout
        while True:
            was_unsent, woken = self.has_unsent_data, False
            arrived: list[tuple[int, Message]] = []
            for descriptor, events in retry_if_resource_refused(self._epoll.poll, min(max(wait, 0.0), _LONGEST_WAIT)):
                if descriptor == self._wake_descriptor:
                    woken = True
                    continue
                peer = self._peers_by_descriptor[descriptor]
                if events & select.EPOLLOUT:
                    self._write_queued_data(peer)
                if events & ~select.EPOLLOUT:
                    self._read_messages(peer, arrived)
            if arrived:
                return arrived
            if self._unreported_losses:
                self._raise_first_connection_loss()
            wait = deadline - time.monotonic()
            if woken or wait <= 0.0 or (was_unsent and not self.has_unsent_data):
                return arrived

    def expect_end_of_connection(self, rank: int) -> None:
        """Treat the end of the connection to ``rank`` as expected, even if it has ended already: ``poll`` does not
        raise ``PeerLost`` for it.
        """
        peer = self._connection_to_rank(rank)
        peer.forgiven = True
        if peer in self._unreported_losses:
            self._unreported_losses.remove(peer)

    def close(self) -> None:
        """Wait until the sockets have taken all queued data, then close them. Further calls have no effect.

        Messages that arrive meanwhile are read and dropped. Otherwise two ranks that close at the same time with full
        sockets would wait for each other.
        """
        if self._epoll.closed:
            return
        self._register_wake_descriptor(None)
        dropped: list[tuple[int, Message]] = []
        while self._unsent_ranks:
            for descriptor, events in retry_if_resource_refused(self._epoll.poll):
                peer = self._peers_by_descriptor[descriptor]
                if events & select.EPOLLOUT:
                    self._write_queued_data(peer)
                if events & ~select.EPOLLOUT:
                    self._read_messages(peer, dropped)
            dropped.clear()
        for peer in self._peers_by_descriptor.values():
            peer.close()
            peer.writable = False
        self._peers_by_descriptor.clear()
        self._unreported_losses.clear()
        with suppress(OSError):
            self._epoll.close()

    def _register_wake_descriptor(self, wake: WakeDescriptor | None) -> None:
        """Let the descriptor of ``wake`` end the wait of ``poll`` from now on, in place of the previous descriptor;
        None: no descriptor.
        """
        if self._wake_descriptor >= 0:
            with suppress(OSError):  # its owner may have closed the descriptor
                self._epoll.unregister(self._wake_descriptor)
        self._wake, self._wake_descriptor = wake, -1
        if wake is not None:
            retry_if_resource_refused(self._epoll.register, wake.fileno(), select.EPOLLIN)
            self._wake_descriptor = wake.fileno()

    def _connection_to_rank(self, rank: int) -> PeerConnection:
        """Return the connection to ``rank``; raise ``InvariantBroken`` if there is none."""
        peer = self._peers.get(rank)
        if peer is None:
            raise InvariantBroken(f"rank {self.rank} of {self.size} has no connection to rank {rank}")
        return peer

    def _read_messages(self, peer: PeerConnection, arrived: list[tuple[int, Message]]) -> None:
        """Read once from the socket of ``peer``; append the messages that are complete to ``arrived``, as (sender,
        message). If the other end was closed, close the connection.
        """
        try:
            if peer.body is not None:
                taken = retry_if_resource_refused(peer.socket.recv_into, memoryview(peer.body)[peer.filled :])
            else:
                start = len(peer.head)
                self._buffer[:start] = peer.head
                taken = retry_if_resource_refused(peer.socket.recv_into, self._buffer[start:])
        except BlockingIOError:
            return
        except ConnectionError:
            taken = 0
        if taken == 0:
            self._close_connection(peer)
        elif peer.body is not None:
            peer.filled += taken
            if peer.filled == len(peer.body):
                arrived.append((peer.rank, decode_message(peer.body)))
                peer.body = None
        else:
            self._split_data_into_frames(peer, self._buffer[: start + taken], arrived)

    def _split_data_into_frames(
        self, peer: PeerConnection, data: memoryview, arrived: list[tuple[int, Message]]
    ) -> None:
        """Split ``data``, which were read from ``peer``, into frames (a header with the length, and a message); append
        the complete messages to ``arrived``, as (sender, message).

        An incomplete message gets a buffer of its own, into which later reads go directly.
        """
        position, end = 0, len(data)
        while end - position >= _FRAME_HEADER.size:
            (length,) = _FRAME_HEADER.unpack_from(data, position)
            position += _FRAME_HEADER.size
            if length > end - position:
                peer.body = bytearray(length)
                peer.filled = end - position
                peer.body[: peer.filled] = data[position:]
                position = end
                break
            arrived.append((peer.rank, decode_message(data[position : position + length])))
            position += length
        peer.head = bytes(data[position:])

    def _write_queued_data(self, peer: PeerConnection) -> None:
        """Write queued data to the socket of ``peer`` until the socket is full. While data remain, let epoll report
        when there is room again.
        """
        outgoing = peer.outgoing
        try:
            while outgoing:
                pieces = list(itertools.islice(outgoing, _MAX_BUFFERS_PER_WRITE))
                taken = retry_if_resource_refused(peer.socket.sendmsg, pieces, (), _socket.MSG_NOSIGNAL)
                while taken:
                    piece = outgoing.popleft()
                    if taken < len(piece):
                        outgoing.appendleft(piece[taken:])
                        break
                    taken -= len(piece)
        except BlockingIOError:
            pass  # the socket is full: the rest stays queued
        except ConnectionError:
            outgoing.clear()
            peer.writable = False
        if outgoing and peer.rank not in self._unsent_ranks:
            self._unsent_ranks.add(peer.rank)
            retry_if_resource_refused(self._epoll.modify, peer.socket, select.EPOLLIN | select.EPOLLOUT)
        elif not outgoing and peer.rank in self._unsent_ranks:
            self._unsent_ranks.discard(peer.rank)
            retry_if_resource_refused(self._epoll.modify, peer.socket, select.EPOLLIN)

    def _close_connection(self, peer: PeerConnection) -> None:
        """Close the connection to ``peer``, whose stream has ended, and record the loss for ``poll`` unless the end was
        expected. Data to be written are dropped: no rank closes a connection in one direction only.
        """
        del self._peers_by_descriptor[peer.socket.fileno()]
        retry_if_resource_refused(self._epoll.unregister, peer.socket)
        peer.close()
        peer.outgoing.clear()
        peer.writable = False
        self._unsent_ranks.discard(peer.rank)
        peer.ended = time.monotonic()
        if not peer.forgiven:
            self._unreported_losses.append(peer)

    def _raise_first_connection_loss(self) -> None:
        """Raise ``PeerLost`` for the first of the ranks whose connections have ended unexpectedly and that were not
        reported yet.
        """
        peer = self._unreported_losses.popleft()
        reason = self.children.exit_description(peer.rank) or "its connection closed"
        if peer.head or peer.body is not None:
            reason += ", in the middle of a message"
        peer.lost = reason
        raise PeerLost(peer.rank, reason, ended_itself=self.children.has_ended_for_lack_of_resource(peer.rank))


def fork_ranks(size: int, program: str = "pcopy") -> UnixSocketTransport:
    """Fork ``size`` - 1 child processes; return in each process the transport of its rank. The caller is rank 0.

    A child must exit by ``os._exit``, so that it does not run the parent's exit handlers. The kernel kills a child when
    the thread that called this function ends (``PR_SET_PDEATHSIG``); so that should be the main thread. The soft limit
    of open files is raised as far as needed, and stays so. If children are forked, no other thread may exist, because
    its locks would stay locked in them. ``program`` is the name of the program in messages.

    Raise ``RequestRefused`` if a limit of the system does not allow that many ranks; no child remains then.
    """
    raise_descriptor_limit(size)
    for stream in (sys.stdout, sys.stderr):
        if stream is not None and not stream.closed:
            stream.flush()  # otherwise every child would write the buffered text again
    if not is_single_threaded() and size > 1:
        raise InvariantBroken("ranks are forked while other threads run")
    parent = os.getpid()
    children = ChildProcesses()
    ends: list[dict[int, int]] = [{} for _ in range(size)]
    try:
        for rank in range(size):
            for peer in range(rank + 1, size):
                here, there = _socket.socketpair()
                ends[rank][peer] = here.detach()
                ends[peer][rank] = there.detach()
            if rank == 0:
                continue
            child = os.fork()
            if child == 0:
                return _complete_fork_in_child(rank, parent, ends, program)
            children.add(rank, child)
            _close_descriptors(ends[rank])
        return UnixSocketTransport(0, size, ends[0], children)
    except BaseException as error:
        if os.getpid() != parent:
            # A signal handler has raised in a child that has not returned yet. The other children and the caller's
            # frames belong to the parent, so this child must not unwind through them.
            os._exit(EXIT_INTERNAL)
        children.reap_children(0.0)
        for each in ends:
            _close_descriptors(each)
        if isinstance(error, OSError):
            raise RequestRefused(f"{size} ranks can't be started here ({error.strerror}): use fewer (-n)") from error
        raise


def _complete_fork_in_child(rank: int, parent: int, ends: list[dict[int, int]], program: str) -> UnixSocketTransport:
    """Do what remains to be done in a child process after the fork (close the sockets of other ranks, end with the
    parent); return the transport of ``rank``. After an error the process exits: no exception is raised, since the
    calling frames belong to the parent.

    Args:
        rank: the rank of this process.
        parent: process id of the parent.
        ends: descriptors of the sockets to other ranks, by rank; those of other ranks than ``rank`` are closed.
        program: name of the program, for messages.
    """
    try:
        with suppress(OSError):  # if a sandbox refuses it, the end of rank 0's connection still shows its death
            libc.die_with_parent()
        if os.getppid() != parent:
            os._exit(EXIT_INTERNAL)  # the parent died before the call above
        for owner, others in enumerate(ends):
            if owner != rank:
                _close_descriptors(others)
        return UnixSocketTransport(rank, len(ends), ends[rank], ChildProcesses())
    except RESOURCE_EXCEPTIONS as error:
        sys.stderr.write(f"{program}: rank {rank} cannot start: {resource_error_text(error)}\n")
        sys.stderr.flush()
        os._exit(EXIT_STOPPED)
    except BaseException:
        sys.stderr.write(current_traceback())
        os._exit(EXIT_INTERNAL)


def raise_descriptor_limit(size: int) -> None:
    """Raise the soft limit of open files if forking ``size`` ranks needs more descriptors.

    Raise ``RequestRefused`` if the hard limit is too low.
    """
    # The number of open ends, as a function of the ranks forked so far, is a parabola: its maximum is at the start or
    # in the middle.
    worst = {0, max(0, (size - 1) // 2), max(0, size // 2 - 1)}
    peak = max(size - 1 + rank * (size - rank) + 2 * (size - rank - 1) for rank in worst)
    needed = _number_of_open_descriptors() + peak + _SPARE_DESCRIPTORS
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= needed:
        return
    if hard != resource.RLIM_INFINITY and hard < needed:
        need, fewer = (f"{size} ranks need", "use fewer (-n) or ") if size > 1 else ("1 rank needs", "")
        raise RequestRefused(f"{need} {needed} open files, the limit is {hard}: {fewer}raise ulimit -Hn")
    resource.setrlimit(resource.RLIMIT_NOFILE, (needed if hard == resource.RLIM_INFINITY else hard, hard))


def _number_of_open_descriptors() -> int:
    """Return the number of open descriptors of this process. Raise ``RequestRefused`` if /proc, which other parts of
    pcopy need, too, is not mounted.
    """
    try:
        return len(os.listdir("/proc/self/fd"))
    except FileNotFoundError as error:
        raise RequestRefused("/proc/self/fd: not found: /proc is not mounted here: mount it") from error


def _close_descriptors(ends: dict[int, int]) -> None:
    """Close all descriptors in ``ends`` and remove them from it."""
    while ends:
        with suppress(OSError):
            os.close(ends.popitem()[1])
