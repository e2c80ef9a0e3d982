"""Ranks on one machine: forked processes tied pairwise by Unix stream sockets. The parent is rank 0.

Three rules carry it:

1. *An end of a pair is held by one process only.* Only then does a process's death show as the end of its connections.
   A pair (i, k), i < k, is made just before rank i is forked. The parent gives up i's end right after that fork and
   k's end after k's; every child closes what it inherited for others before it does anything else. So the parent holds
   at most k (size - k) ends of ranks not forked yet, about size^2 / 4, and never all size^2.
2. *Nothing but poll waits.* A message goes to the socket as far as it fits; the rest stays in the peer's queue and
   follows when epoll says that there is room. Two ranks that send to each other at once therefore never wait for each
   other.
3. *A stream that ended is read to its end first.* A Unix socket keeps what was sent into it, even where a later read
   or write reports ECONNRESET or EPIPE (unix(7)), so a failed write only ends the writing; the loss is told by the
   reading, and only by a poll that has nothing else to hand out.

A frame is the length of its body (8 bytes, network order) and the body, ``pcopy.engine.messages``' wire form.
"""

from __future__ import annotations

import _socket  # socket makes enums of all its constants, which takes as long as the copy of many files
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
from pcopy.beside import is_alone
from pcopy.engine.messages import Message, decode, encode
from pcopy.engine.ticket import Wake
from pcopy.engine.transports.children import Children
from pcopy.errors import HINDRANCES, INTERNAL, STOPPED, InvariantBroken, PeerLost, Refused, hindrance, story

_PAUSES = (0.001, 0.02, 0.1)
"""Seconds before the second, third and fourth try of a call that the system has refused."""
_HEADER = struct.Struct("!Q")
_READ_BYTES = 256 << 10
"""Bytes taken from a socket at once: somewhat more than Linux lets a Unix socket hold."""
_JOIN_BYTES = 16 << 10
"""A body up to this size is copied behind its header, which is cheaper than a second piece."""
_PIECES = 64
"""Queued pieces handed to one sendmsg; below the 1024 of IOV_MAX."""
_LONGEST_WAIT = 3600.0
"""Seconds; epoll counts milliseconds in an int, so that an endless timeout has to be cut."""
_LOSS_DELAY = 0.1
"""Seconds for which other ranks' traffic goes before a loss: it may hold the reason, an Abort, but never hides it."""
_SPARE_DESCRIPTORS = 32
"""Open files that a rank may need beside its connections."""

Result = TypeVar("Result")


def insist(call: Callable[..., Result], *arguments: Any) -> Result:
    """``call`` again after an error that is none of the connection's: memory may be short for a moment.

    Nothing has been sent or received by a call that fails. Raises the last ``OSError``.
    """
    for pause in _PAUSES:
        try:
            return call(*arguments)
        except (BlockingIOError, ConnectionError):
            raise
        except OSError:
            time.sleep(pause)
    return call(*arguments)


class Peer:
    """One connection: what is still to be written, and what of a frame has been read."""

    __slots__ = ("body", "ended", "filled", "forgiven", "head", "lost", "outgoing", "rank", "socket", "writable")

    def __init__(self, rank: int, descriptor: int) -> None:
        self.rank = rank
        self.socket = insist(_socket.socket, _socket.AF_UNIX, _socket.SOCK_STREAM, 0, descriptor)
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
        with suppress(OSError):  # all that was to be sent has been taken
            self.socket.close()


class LocalTransport:
    """One process's end of the network that ``fork_ranks`` made; fills ``pcopy.engine.transport.Transport``."""

    def __init__(self, rank: int, size: int, ends: Mapping[int, int], children: Children) -> None:
        """``ends``: peer rank -> descriptor, owned from now on; ``children``: rank 0's, none elsewhere.

        They are reaped after ``close``: children that still write to rank 0 would wait in vain.
        """
        self.rank = rank
        self.size = size
        self.children = children
        self._peers = {peer: Peer(peer, descriptor) for peer, descriptor in ends.items()}
        self._by_descriptor = {peer.socket.fileno(): peer for peer in self._peers.values()}
        self._waiting: set[int] = set()
        self._losses: deque[Peer] = deque()
        self._buffer = memoryview(bytearray(_READ_BYTES if size > 1 else 0))
        self._epoll = insist(select.epoll)
        for descriptor in self._by_descriptor:
            insist(self._epoll.register, descriptor, select.EPOLLIN)
        self._wake: Wake | None = None
        self._wake_descriptor = -1

    @property
    def unsent(self) -> bool:
        return bool(self._waiting)

    def send(self, destination: int, message: Message) -> None:
        """Takes ``message``, and hands as much of it to the socket as fits there.

        Raises ``PeerLost`` once ``poll`` has told of that loss, and ``InvariantBroken`` if ``destination`` is this rank
        or none. Until the loss is told, and always for a forgiven rank, a message to a closed connection is dropped.
        """
        peer = self._peer(destination)
        if peer.lost and not peer.forgiven:
            raise PeerLost(destination, peer.lost)
        if not peer.writable:
            return
        body = encode(message)
        header = _HEADER.pack(len(body))
        if len(body) <= _JOIN_BYTES:
            peer.outgoing.append(memoryview(header + body))
        else:
            peer.outgoing.extend((memoryview(header), memoryview(body)))
        if destination not in self._waiting:
            self._write(peer)

    def poll(self, timeout: float, calm: float = 0.0, wake: Wake | None = None) -> list[tuple[int, Message]]:
        """What has arrived; see ``Transport.poll``. Returns early with nothing when the last unsent message has gone.

        Raises ``PeerLost``, once per lost rank, and ``InvariantBroken`` if a peer sends something else than messages.
        """
        if wake is not self._wake:
            self._listen(wake)
        now = time.monotonic()
        deadline = now + timeout
        if self._losses and now >= self._losses[0].ended + _LOSS_DELAY:
            self._tell_loss()
        wait = 0.0 if self._losses else timeout
        while True:
            was_unsent, woken = self.unsent, False
            arrived: list[tuple[int, Message]] = []
            for descriptor, events in insist(self._epoll.poll, min(max(wait, 0.0), _LONGEST_WAIT)):
                if descriptor == self._wake_descriptor:
                    woken = True
                    continue
                peer = self._by_descriptor[descriptor]
                if events & select.EPOLLOUT:
                    self._write(peer)
                if events & ~select.EPOLLOUT:
                    self._read(peer, arrived)
            if arrived:
                return arrived
            if self._losses:
                self._tell_loss()
            wait = deadline - time.monotonic()
            if woken or wait <= 0.0 or (was_unsent and not self.unsent):
                return arrived

    def forgive(self, rank: int) -> None:
        peer = self._peer(rank)
        peer.forgiven = True
        if peer in self._losses:
            self._losses.remove(peer)

    def close(self) -> None:
        """Waits until the sockets have taken what is unsent, then closes them. May be called again.

        What arrives meanwhile is read and dropped: the sender may be closing as well, and would wait for this rank.
        """
        if self._epoll.closed:
            return
        self._listen(None)
        dropped: list[tuple[int, Message]] = []
        while self._waiting:
            for descriptor, events in insist(self._epoll.poll):
                peer = self._by_descriptor[descriptor]
                if events & select.EPOLLOUT:
                    self._write(peer)
                if events & ~select.EPOLLOUT:
                    self._read(peer, dropped)
            dropped.clear()
        for peer in self._by_descriptor.values():
            peer.close()
            peer.writable = False
        self._by_descriptor.clear()
        self._losses.clear()
        with suppress(OSError):
            self._epoll.close()

    def _listen(self, wake: Wake | None) -> None:
        if self._wake_descriptor >= 0:
            with suppress(OSError):  # it may have been closed
                self._epoll.unregister(self._wake_descriptor)
        self._wake, self._wake_descriptor = wake, -1
        if wake is not None:
            insist(self._epoll.register, wake.fileno(), select.EPOLLIN)
            self._wake_descriptor = wake.fileno()

    def _peer(self, rank: int) -> Peer:
        peer = self._peers.get(rank)
        if peer is None:
            raise InvariantBroken(f"rank {self.rank} of {self.size} has no connection to rank {rank}")
        return peer

    def _read(self, peer: Peer, arrived: list[tuple[int, Message]]) -> None:
        """One read from ``peer``: appends the messages that it completed, notes the end of the stream."""
        try:
            if peer.body is not None:
                taken = insist(peer.socket.recv_into, memoryview(peer.body)[peer.filled :])
            else:
                start = len(peer.head)
                self._buffer[:start] = peer.head
                taken = insist(peer.socket.recv_into, self._buffer[start:])
        except BlockingIOError:
            return
        except ConnectionError:
            taken = 0
        if taken == 0:
            self._end(peer)
        elif peer.body is not None:
            peer.filled += taken
            if peer.filled == len(peer.body):
                arrived.append((peer.rank, decode(peer.body)))
                peer.body = None
        else:
            self._split(peer, self._buffer[: start + taken], arrived)

    def _split(self, peer: Peer, data: memoryview, arrived: list[tuple[int, Message]]) -> None:
        """Cuts ``data`` into frames. An unfinished body gets its own buffer, into which the next reads go directly."""
        position, end = 0, len(data)
        while end - position >= _HEADER.size:
            (length,) = _HEADER.unpack_from(data, position)
            position += _HEADER.size
            if length > end - position:
                peer.body = bytearray(length)
                peer.filled = end - position
                peer.body[: peer.filled] = data[position:]
                position = end
                break
            arrived.append((peer.rank, decode(data[position : position + length])))
            position += length
        peer.head = bytes(data[position:])

    def _write(self, peer: Peer) -> None:
        """Hands queued pieces to the socket until it is full; epoll is asked for room only while something is left."""
        outgoing = peer.outgoing
        try:
            while outgoing:
                pieces = list(itertools.islice(outgoing, _PIECES))
                taken = insist(peer.socket.sendmsg, pieces, (), _socket.MSG_NOSIGNAL)
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
        if outgoing and peer.rank not in self._waiting:
            self._waiting.add(peer.rank)
            insist(self._epoll.modify, peer.socket, select.EPOLLIN | select.EPOLLOUT)
        elif not outgoing and peer.rank in self._waiting:
            self._waiting.discard(peer.rank)
            insist(self._epoll.modify, peer.socket, select.EPOLLIN)

    def _end(self, peer: Peer) -> None:
        """The stream from ``peer`` is over, and so is the one to it: nobody closes half a connection here."""
        del self._by_descriptor[peer.socket.fileno()]
        insist(self._epoll.unregister, peer.socket)
        peer.close()
        peer.outgoing.clear()
        peer.writable = False
        self._waiting.discard(peer.rank)
        peer.ended = time.monotonic()
        if not peer.forgiven:
            self._losses.append(peer)

    def _tell_loss(self) -> None:
        peer = self._losses.popleft()
        reason = self.children.fate(peer.rank) or "its connection closed"
        if peer.head or peer.body is not None:
            reason += ", in the middle of a message"
        peer.lost = reason
        raise PeerLost(peer.rank, reason, gave_up=self.children.gave_up(peer.rank))


def fork_ranks(size: int, program: str = "pcopy") -> LocalTransport:
    """Forks ``size`` - 1 children and returns in every process with its own transport; the caller is rank 0.

    A child must leave by ``os._exit``: what its parent meant to do at exit is not its business. It dies with the
    thread that called this function (``PR_SET_PDEATHSIG``), which should be the main one. Raises the soft limit of
    descriptors as far as needed, and leaves it so. No other thread may live: its locks would stay locked in children.
    Raises ``Refused`` if a limit of the system doesn't allow that many ranks; then no child is left.
    """
    allow_descriptors(size)
    for stream in (sys.stdout, sys.stderr):
        if stream is not None and not stream.closed:
            stream.flush()  # what is buffered would be written by every child again
    if not is_alone():
        raise InvariantBroken("ranks are forked while other threads run")
    parent = os.getpid()
    children = Children()
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
                return _become_child(rank, parent, ends, program)
            children.add(rank, child)
            _close_all(ends[rank])
        return LocalTransport(0, size, ends[0], children)
    except BaseException as error:
        if os.getpid() != parent:
            # A signal's exception in a child that has not got out of here yet: the siblings and the caller's frames
            # are the parent's.
            os._exit(INTERNAL)
        children.reap(0.0)
        for each in ends:
            _close_all(each)
        if isinstance(error, OSError):
            raise Refused(f"{size} ranks can't be started here ({error.strerror}): use fewer (-n)") from error
        raise


def _become_child(rank: int, parent: int, ends: list[dict[int, int]], program: str) -> LocalTransport:
    """The child's side of the fork; never lets an exception out, since the frames above are the parent's."""
    try:
        with suppress(OSError):  # where a sandbox refuses it, the end of rank 0's connection still tells
            libc.end_with_parent()
        if os.getppid() != parent:
            os._exit(INTERNAL)  # it died before the call above
        for owner, others in enumerate(ends):
            if owner != rank:
                _close_all(others)
        return LocalTransport(rank, len(ends), ends[rank], Children())
    except HINDRANCES as error:
        sys.stderr.write(f"{program}: rank {rank} cannot start: {hindrance(error)}\n")
        sys.stderr.flush()
        os._exit(STOPPED)
    except BaseException:
        sys.stderr.write(story())
        os._exit(INTERNAL)


def allow_descriptors(size: int) -> None:
    """Raises the soft limit of open files to the hard one if forking ``size`` ranks needs more; or ``Refused``."""
    worst = {0, max(0, (size - 1) // 2), max(0, size // 2 - 1)}  # of a parabola's values the greatest is in its middle
    peak = max(size - 1 + rank * (size - rank) + 2 * (size - rank - 1) for rank in worst)
    needed = _open_descriptors() + peak + _SPARE_DESCRIPTORS
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= needed:
        return
    if hard != resource.RLIM_INFINITY and hard < needed:
        need, fewer = (f"{size} ranks need", "use fewer (-n) or ") if size > 1 else ("1 rank needs", "")
        raise Refused(f"{need} {needed} open files, the limit is {hard}: {fewer}raise ulimit -Hn")
    resource.setrlimit(resource.RLIMIT_NOFILE, (needed if hard == resource.RLIM_INFINITY else hard, hard))


def _open_descriptors() -> int:
    """Return how many descriptors are open; raises ``Refused`` without /proc, on which much of the package relies."""
    try:
        return len(os.listdir("/proc/self/fd"))
    except FileNotFoundError as error:
        raise Refused("/proc/self/fd: not found: /proc is not mounted here: mount it") from error


def _close_all(ends: dict[int, int]) -> None:
    while ends:
        with suppress(OSError):
            os.close(ends.popitem()[1])
