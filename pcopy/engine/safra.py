"""Termination detection by a token that goes round the ring of ranks.

Safra's algorithm (Dijkstra, "Shmuel Safra's version of termination detection", EWD 998, 1987). Each rank counts the
messages of work that it has sent less those that it has received, and is black once it has received one. An idle rank
hands the token on downwards (0 → n-1 → … → 1 → 0), adds its count, and blackens the token if it is black itself; then
it is white again. If the token comes back white to a white root and all counts together are 0, nobody works and
nothing is under way; else the root sends it round again. Colours alone would not suffice: a message that is still
under way, to a rank that the token has passed, blackens nobody yet, but leaves the sum above 0.
"""

from __future__ import annotations

from enum import Enum

from pcopy.engine.messages import Message, Outgoing, Stamp, Token
from pcopy.engine.states import Table, follow
from pcopy.engine.termination import DijkstraScholten
from pcopy.errors import InvariantBroken


class Probe(Enum):
    """Where the token is, seen from one rank."""

    AWAY = "away"
    HELD = "held"
    TERMINATED = "terminated"


TRANSITIONS: Table[Probe] = {
    Probe.AWAY: frozenset({Probe.HELD}),
    Probe.HELD: frozenset({Probe.AWAY, Probe.TERMINATED}),
    Probe.TERMINATED: frozenset({Probe.HELD}),
}


class Safra:
    """The detector for one rank of ``size``, which is told the same as ``DijkstraScholten``.

    Rank 0 is the root, which holds the token when a phase begins.
    """

    def __init__(self, rank: int, size: int) -> None:
        self._rank = rank
        self._next = (rank - 1) % size
        self._phase = -1
        self._count = 0
        self._black = False
        self._token: Token | None = None
        self.probe = Probe.AWAY

    @property
    def terminated(self) -> bool:
        return self.probe is Probe.TERMINATED

    def begin_phase(self, phase: int) -> None:
        if not self._rank:
            if self.probe is Probe.HELD or (self.probe is Probe.AWAY and self._phase >= 0):
                raise InvariantBroken(f"phase {phase} begins while the token of phase {self._phase} is under way")
            self._enter(Probe.HELD)
            self._token = None
        self._phase = phase

    def sent(self, *, starting: bool = False) -> Stamp:
        self._count += 1
        return Stamp()

    def received(self, source: int, stamp: Stamp) -> Outgoing:
        if self.terminated:
            raise InvariantBroken(f"work from rank {source} after the end of phase {self._phase}")
        self._count -= 1
        self._black = True
        return []

    def idle(self) -> Outgoing:
        if self.probe is not Probe.HELD or (self._token is not None and self._token.phase > self._phase):
            return []
        if self._rank:
            assert self._token is not None
            token = Token(self._phase, self._token.surplus + self._count, self._token.black or self._black)
        elif self._silent_round():
            self._enter(Probe.TERMINATED)
            return []
        else:
            token = Token(self._phase, 0, False)
        self._black = False
        self._token = None
        self._enter(Probe.AWAY)
        return [(self._next, token)]

    def _silent_round(self) -> bool:
        """At the root: did the token meet nobody but idle ranks, and is no work under way?"""
        if self._next == self._rank:
            return self._count == 0
        token = self._token
        return token is not None and not token.black and not self._black and token.surplus + self._count == 0

    def receive(self, source: int, message: Message) -> Outgoing:
        if not isinstance(message, Token) or message.phase < self._phase or self.probe is Probe.HELD:
            raise InvariantBroken(f"{message} from rank {source} in phase {self._phase}")
        self._enter(Probe.HELD)
        self._token = message
        return []

    def _enter(self, probe: Probe) -> None:
        self.probe = follow(TRANSITIONS, self.probe, probe, self._rank)


DETECTORS = ("tree", "ring")
"""The detectors by their names on the command line."""


def make_detector(name: str, rank: int, size: int) -> DijkstraScholten | Safra:
    """Dijkstra and Scholten's (``tree``), or Safra's (``ring``), for one rank of ``size``."""
    if name not in DETECTORS:
        raise ValueError(f"no termination detector is called {name}")
    return Safra(rank, size) if name == "ring" else DijkstraScholten(rank)
