"""Thousands of ranks in one process and in virtual time, for what can't be tried on real clusters.

The rule is MPI's: the latency of each message is random, but two messages of one sender to one receiver arrive in the
order in which they were sent. A message that would overtake an earlier one arrives at that one's time, behind it.
Everything follows from the seed and the calls. Memory goes with the messages under way, not with the pairs of ranks.

There are two ways to use a network, not to be mixed on one: an event loop calls ``send`` and ``deliver``; or each rank
gets an ``endpoint``, which fills ``pcopy.engine.transport.Transport``.
"""

from __future__ import annotations

import heapq
import math
from collections import deque
from collections.abc import Callable, Iterator
from random import Random

from bench.simulation.tickets import SimulatedWake
from pcopy.engine.messages import Message, decode, encode
from pcopy.engine.ticket import Wake
from pcopy.errors import InvariantBroken, PeerLost


class SimulatedNetwork:
    """The messages under way between ``size`` ranks, and the virtual time ``now`` (seconds, from 0).

    ``latency`` gives a message's travelling time in seconds. With ``wire`` each message is encoded and decoded, which
    shows what doesn't survive it; without, the receiver gets the sender's object.
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
        # Per (sender, receiver) with messages under way: how many, and when the last of them arrives.
        self._under_way: dict[tuple[int, int], tuple[int, float]] = {}
        self._inboxes: dict[int, deque[tuple[int, Message]]] = {}
        self._closed: set[int] = set()

    def send(self, source: int, destination: int, message: Message, now: float) -> None:
        """Sends ``message`` at the time ``now`` (seconds).

        Raises ``InvariantBroken`` if it comes from the past, goes to its sender or to none, or has a negative latency.
        """
        if source == destination or not 0 <= destination < self.size:
            raise InvariantBroken(f"rank {source} of {self.size} has no connection to rank {destination}")
        latency = self._latency(self._random)
        if now < self.now or latency < 0.0:
            raise InvariantBroken(f"a message sent at {now} with latency {latency} when it is {self.now} already")
        count, last = self._under_way.get((source, destination), (0, 0.0))
        arrival = max(now + latency, last)
        self._under_way[source, destination] = (count + 1, arrival)
        # The running number decides between equal times, which keeps the order of a pair and makes a run repeatable.
        sent = decode(encode(message)) if self._wire else message
        heapq.heappush(self._heap, (arrival, self.messages_sent, destination, source, sent))
        self.messages_sent += 1

    def next_event_time(self) -> float:
        """When the next message arrives, in seconds; infinite if none is under way."""
        return self._heap[0][0] if self._heap else math.inf

    def deliver(self, until: float) -> Iterator[tuple[float, int, int, Message]]:
        """Takes what arrives up to ``until`` (seconds), as (time, destination, source, message) in order of time.

        Virtual time follows. What is sent meanwhile is delivered too, if it arrives by ``until``.
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
        """The end of ``rank``. Call it once a rank."""
        return SimulatedTransport(self, rank)

    def take(self, rank: int, timeout: float) -> list[tuple[int, Message]]:
        """What has arrived for ``rank``, as (sender, message).

        If nothing has, virtual time goes on by ``timeout`` seconds, but not beyond the next arrival (at any rank).
        """
        self._distribute()
        if rank not in self._inboxes and timeout > 0.0:
            self.now = max(self.now, min(self.now + timeout, self.next_event_time()))
            self._distribute()
        return list(self._inboxes.pop(rank, ()))

    def spend(self, seconds: float) -> None:
        """Virtual time goes on by ``seconds``; what arrives meanwhile waits for its receivers."""
        for _, destination, source, message in self.deliver(self.now + seconds):
            self._keep(destination, source, message)

    def close(self, rank: int) -> None:
        """``rank`` is gone; what it has sent still arrives, what is sent to it is lost."""
        self._closed.add(rank)
        self._inboxes.pop(rank, None)

    def lost_to(self, rank: int) -> Iterator[int]:
        """The ranks that are gone and from which nothing is under way to ``rank``."""
        return (gone for gone in sorted(self._closed) if gone != rank and (gone, rank) not in self._under_way)

    def _distribute(self) -> None:
        for _, destination, source, message in self.deliver(self.now):
            self._keep(destination, source, message)

    def _keep(self, destination: int, source: int, message: Message) -> None:
        if destination not in self._closed:
            self._inboxes.setdefault(destination, deque()).append((source, message))


class SimulatedTransport:
    """One rank's end; fills ``pcopy.engine.transport.Transport`` in virtual time: no call ever waits."""

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
    def unsent(self) -> bool:
        """Never: the network takes a message at once."""
        return False

    def send(self, destination: int, message: Message) -> None:
        """Hands ``message`` to the network at its ``now``; raises ``PeerLost`` once ``poll`` has told of that loss."""
        if destination in self._lost - self._forgiven:
            raise PeerLost(destination, "its connection closed")
        self._network.send(self._rank, destination, message, self._network.now)

    def poll(self, timeout: float, calm: float = 0.0, wake: Wake | None = None) -> list[tuple[int, Message]]:
        """What is due; see ``Transport.poll``. Raises ``PeerLost``, once per rank that closed its end."""
        if isinstance(wake, SimulatedWake):
            timeout = min(timeout, wake.due - self._network.now)
        arrived = self._network.take(self._rank, timeout)
        if not arrived:
            for gone in self._network.lost_to(self._rank):
                if gone not in self._forgiven | self._lost:
                    self._lost.add(gone)
                    raise PeerLost(gone, "its connection closed")
        return arrived

    def forgive(self, rank: int) -> None:
        self._forgiven.add(rank)

    def close(self) -> None:
        """Gives up this end; what it sent still arrives."""
        self._network.close(self._rank)
