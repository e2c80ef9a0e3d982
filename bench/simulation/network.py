"""A network of thousands of ranks in one process and in virtual time, for tests that are impossible on real clusters.

It follows MPI's rule: the latency of each message is random, but two messages from one sender to one receiver arrive in
the order in which they were sent. A message that would overtake an earlier one arrives immediately after it. Everything
is determined by the seed and the calls. Memory is proportional to the number of messages under way, not of pairs of
ranks.

There are two ways to use a network, which must not be mixed: an event loop calls ``send`` and ``deliver``, or each rank
gets an ``endpoint``, which implements ``pcopy.engine.transport.MessageTransport``.
"""

from __future__ import annotations

import heapq
import math
from collections import deque
from collections.abc import Callable, Iterator
from random import Random

from bench.simulation.tickets import SimulatedWake
from pcopy.engine.messages import Message, decode_message, encode_message
from pcopy.engine.ticket import WakeDescriptor
from pcopy.errors import InvariantBroken, PeerLost


class SimulatedNetwork:
    """The messages under way between ``size`` ranks, and the virtual time ``now`` (seconds, from 0).

    ``latency`` returns a message's travelling time in seconds. With ``wire``, each message is encoded and decoded,
    which detects data that does not survive it; without, the receiver gets the sender's object.
    """

    def __init__(self, size: int, random: Random, latency: Callable[[Random], float], *, wire: bool = False) -> None:
        self.size = size
        self.now = 0.0
        self.messages_sent = 0
        self.messages_delivered = 0
        self._random = random
        self._latency = latency
        self._wire = wire
        self._heap: list[tuple[float, int, int, int, Message]] = []
        # For each (sender, receiver) with messages under way: their number, and the arrival of the last one.
        self._under_way: dict[tuple[int, int], tuple[int, float]] = {}
        self._inboxes: dict[int, deque[tuple[int, Message]]] = {}
        self._closed: set[int] = set()

    def send(self, source: int, destination: int, message: Message, now: float) -> None:
        """Send ``message`` at the time ``now`` (seconds).

        Raise ``InvariantBroken`` if that time is in the past, if the receiver is the sender or does not exist, or if
        the latency is negative.
        """
        if source == destination or not 0 <= destination < self.size:
            raise InvariantBroken(f"rank {source} of {self.size} has no connection to rank {destination}")
        latency = self._latency(self._random)
        if now < self.now or latency < 0.0:
            raise InvariantBroken(f"a message sent at {now} with latency {latency} when it is {self.now} already")
        count, last = self._under_way.get((source, destination), (0, 0.0))
        arrival = max(now + latency, last)
        self._under_way[source, destination] = (count + 1, arrival)
        # The running number orders messages of equal times: it preserves the order of a pair and makes runs repeatable.
        sent = decode_message(encode_message(message)) if self._wire else message
        heapq.heappush(self._heap, (arrival, self.messages_sent, destination, source, sent))
        self.messages_sent += 1

    def next_event_time(self) -> float:
        """Return the time at which the next message arrives, in seconds; infinite if none is under way."""
        return self._heap[0][0] if self._heap else math.inf

    def deliver(self, until: float) -> Iterator[tuple[float, int, int, Message]]:
        """Yield the messages that arrive up to ``until`` (seconds), as (time, destination, source, message), in order
        of time.

        When a message is yielded, virtual time is the time of its arrival. A message that the caller sends before it
        takes the next one is yielded, too, if it arrives by ``until``.
        """
        while self._heap and self._heap[0][0] <= until:
            arrival, _, destination, source, message = heapq.heappop(self._heap)
            self.now = arrival
            self.messages_delivered += 1
            count, last = self._under_way[source, destination]
            if count == 1:
                del self._under_way[source, destination]
            else:
                self._under_way[source, destination] = (count - 1, last)
            yield arrival, destination, source, message
        if math.isfinite(until):
            self.now = max(self.now, until)

    def endpoint(self, rank: int) -> SimulatedTransport:
        """Return the transport of ``rank``. It may be called once per rank."""
        return SimulatedTransport(self, rank)

    def take(self, rank: int, timeout: float) -> list[tuple[int, Message]]:
        """Return the messages that have arrived for ``rank``, as (sender, message).

        If there is none, virtual time advances by ``timeout`` seconds, but not beyond the next arrival (at any rank).
        """
        self._deliver_due()
        if rank not in self._inboxes and timeout > 0.0:
            self.now = max(self.now, min(self.now + timeout, self.next_event_time()))
            self._deliver_due()
        return list(self._inboxes.pop(rank, ()))

    def advance(self, seconds: float) -> None:
        """Advance virtual time by ``seconds``. Messages that arrive meanwhile wait for their receivers."""
        for _, destination, source, message in self.deliver(self.now + seconds):
            self._put_into_inbox(destination, source, message)

    def close(self, rank: int) -> None:
        """Disconnect ``rank``. Messages from it still arrive; messages to it are lost."""
        self._closed.add(rank)
        self._inboxes.pop(rank, None)

    def peers_lost_to(self, rank: int) -> Iterator[int]:
        """Return the disconnected ranks from which no message is under way to ``rank``."""
        return (lost for lost in sorted(self._closed) if lost != rank and (lost, rank) not in self._under_way)

    def _deliver_due(self) -> None:
        """Put the messages that have arrived by now into the receivers' inboxes."""
        for _, destination, source, message in self.deliver(self.now):
            self._put_into_inbox(destination, source, message)

    def _put_into_inbox(self, destination: int, source: int, message: Message) -> None:
        """Put a message into the receiver's inbox, unless the receiver is disconnected."""
        if destination not in self._closed:
            self._inboxes.setdefault(destination, deque()).append((source, message))


class SimulatedTransport:
    """One rank's end of the network.

    It implements ``pcopy.engine.transport.MessageTransport`` in virtual time: no call ever waits.
    """

    def __init__(self, network: SimulatedNetwork, rank: int) -> None:
        self._network = network
        self._rank = rank
        self._forgiven: set[int] = set()
        self._lost: set[int] = set()

    @property
    def rank(self) -> int:
        return self._rank

    @property
    def size(self) -> int:
        return self._network.size

    @property
    def has_unsent_data(self) -> bool:
        """False: the network accepts each message immediately."""
        return False

    def send(self, destination: int, message: Message) -> None:
        """Send ``message`` at the network's current time.

        Raise ``PeerLost`` if ``poll`` has reported the loss of that rank.
        """
        if destination in self._lost - self._forgiven:
            raise PeerLost(destination, "its connection closed")
        self._network.send(self._rank, destination, message, self._network.now)

    def poll(self, timeout: float, calm: float = 0.0, wake: WakeDescriptor | None = None) -> list[tuple[int, Message]]:
        """Return the received messages, as ``Transport.poll`` does.

        Raise ``PeerLost`` once for each rank that disconnected.
        """
        if isinstance(wake, SimulatedWake):
            timeout = min(timeout, wake.due - self._network.now)
        arrived = self._network.take(self._rank, timeout)
        if not arrived:
            for peer in self._network.peers_lost_to(self._rank):
                if peer not in self._forgiven | self._lost:
                    self._lost.add(peer)
                    raise PeerLost(peer, "its connection closed")
        return arrived

    def expect_end_of_connection(self, rank: int) -> None:
        """Ignore the loss of ``rank`` from now on."""
        self._forgiven.add(rank)

    def close(self) -> None:
        """Disconnect this rank. Messages that it has sent still arrive."""
        self._network.close(self._rank)
