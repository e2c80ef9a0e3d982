"""Termination detection: when is a phase over everywhere?

Dijkstra and Scholten, "Termination detection for diffusing computations", Information Processing Letters 11 (1980).
The root is engaged at the start of a phase. A message of work that reaches a disengaged rank engages it, and its
sender becomes that rank's parent; every other message of work is signalled (acknowledged) at once. The engaging one is
signalled when the rank is idle and everything that *it* has sent is signalled. The engaged ranks thus form a tree, a
rank leaves it only as a leaf, and when the root is idle with nothing unsignalled, nobody works and nothing is under
way.
"""

from __future__ import annotations

from enum import Enum
from typing import Protocol

from pcopy.engine.messages import Message, Signal
from pcopy.engine.transitions import Table, follow
from pcopy.errors import InvariantBroken

Outgoing = list[tuple[int, Message]]


class Detector(Protocol):
    """Watches one rank's messages of work. What it wants to say itself comes back as (destination, message)."""

    @property
    def terminated(self) -> bool:
        """At the root: the phase is over everywhere."""

    def begin_phase(self, phase: int) -> None:
        """A new phase; at the root, the computation starts with it."""

    def sent(self) -> None:
        """This rank has sent a message of work."""

    def received(self, source: int) -> Outgoing:
        """This rank has received a message of work of the current phase."""

    def idle(self) -> Outgoing:
        """This rank has nothing to do (to be told again after each event while that holds)."""

    def receive(self, source: int, message: Message) -> Outgoing:
        """One of the detector's own messages has come."""


class Engagement(Enum):
    """Is the rank part of the tree of engaged ranks?"""

    DETACHED = "detached"
    ENGAGED = "engaged"
    TERMINATED = "terminated"


TRANSITIONS: Table[Engagement] = {
    Engagement.DETACHED: frozenset({Engagement.ENGAGED}),
    Engagement.ENGAGED: frozenset({Engagement.DETACHED, Engagement.TERMINATED}),
    Engagement.TERMINATED: frozenset({Engagement.ENGAGED}),
}


class DijkstraScholten:
    """The detector for one rank; rank 0 is the root."""

    def __init__(self, rank: int) -> None:
        self._rank = rank
        self._phase = -1
        self._parent = -1
        self._unsignalled = 0
        self.engagement = Engagement.DETACHED

    @property
    def terminated(self) -> bool:
        return self.engagement is Engagement.TERMINATED

    def begin_phase(self, phase: int) -> None:
        if self.engagement is Engagement.ENGAGED or self._unsignalled:
            raise InvariantBroken(f"phase {phase} begins while {self._phase} is not over on rank {self._rank}")
        self._phase = phase
        self._parent = -1
        if not self._rank:
            self._enter(Engagement.ENGAGED)

    def sent(self) -> None:
        if self.engagement is not Engagement.ENGAGED:
            raise InvariantBroken(f"rank {self._rank} sends work while it is {self.engagement.value}")
        self._unsignalled += 1

    def received(self, source: int) -> Outgoing:
        if self.engagement is Engagement.ENGAGED:
            return [(source, Signal(self._phase, 1))]
        if self.engagement is Engagement.TERMINATED:
            raise InvariantBroken(f"work from rank {source} after the end of phase {self._phase}")
        self._enter(Engagement.ENGAGED)
        self._parent = source
        return []

    def idle(self) -> Outgoing:
        if self.engagement is not Engagement.ENGAGED or self._unsignalled:
            return []
        if not self._rank:
            self._enter(Engagement.TERMINATED)
            return []
        self._enter(Engagement.DETACHED)
        return [(self._parent, Signal(self._phase, 1))]

    def receive(self, source: int, message: Message) -> Outgoing:
        if not isinstance(message, Signal) or message.phase != self._phase or message.received > self._unsignalled:
            raise InvariantBroken(f"{message} from rank {source} in phase {self._phase}")
        self._unsignalled -= message.received
        return []

    def _enter(self, engagement: Engagement) -> None:
        self.engagement = follow(TRANSITIONS, self.engagement, engagement, self._rank)
