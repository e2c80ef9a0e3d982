"""Termination detection by a token that travels around the ring of ranks.

Safra's algorithm (Dijkstra, "Shmuel Safra's version of termination detection", EWD 998, 1987). Each rank counts the
messages of work that it has sent minus those that it has received, and is black once it has received one. An idle rank
passes the token on downwards (0 → n-1 → … → 1 → 0), adds its count, and blackens the token if it is black itself; then
it becomes white. If the token returns white to a white rank 0 and the sum of all counts is 0, no rank has work and no
message of work is in transit. Otherwise rank 0 sends it around again. Colours alone would not suffice: a message in
transit to a rank that the token has passed has not blackened any rank yet, but keeps the sum above 0.
"""

from __future__ import annotations

from enum import Enum

from pcopy.engine.messages import Message, OutgoingMessages, RingToken, Stamp
from pcopy.engine.states import TransitionTable, checked_transition
from pcopy.engine.termination import DijkstraScholtenDetector
from pcopy.errors import InvariantBroken


class TokenState(Enum):
    """State of the token as seen from one rank.

    States:
    - AWAY: the token is not on this rank.
    - HELD: the token is on this rank.
    - TERMINATED: rank 0 only: the phase is over on all ranks.
    """

    AWAY = "away"
    HELD = "held"
    TERMINATED = "terminated"


TRANSITIONS: TransitionTable[TokenState] = {
    TokenState.AWAY: frozenset({TokenState.HELD}),
    TokenState.HELD: frozenset({TokenState.AWAY, TokenState.TERMINATED}),
    TokenState.TERMINATED: frozenset({TokenState.HELD}),
}
"""Allowed transitions of the token's state."""


class SafraDetector:
    """Termination detector of one rank of ``size`` ranks, with the same interface as ``DijkstraScholtenDetector``.

    Rank 0 has the token when a phase begins.
    """

    def __init__(self, rank: int, size: int) -> None:
        self._rank = rank
        self._next_rank = (rank - 1) % size
        self._phase = -1
        self._surplus = 0
        self._is_black = False
        self._token: RingToken | None = None
        self.token_state = TokenState.AWAY

    @property
    def is_terminated(self) -> bool:
        """On rank 0: True if the phase is over on all ranks."""
        return self.token_state is TokenState.TERMINATED

    def begin_phase(self, phase: int) -> None:
        """Begin a new phase. Raise ``InvariantBroken`` on rank 0 if the token of the last phase is in transit or was
        not used.
        """
        if not self._rank:
            if self.token_state is TokenState.HELD or (self.token_state is TokenState.AWAY and self._phase >= 0):
                raise InvariantBroken(f"phase {phase} begins while the token of phase {self._phase} is under way")
            self._set_state(TokenState.HELD)
            self._token = None
        self._phase = phase

    def count_sent(self, *, starting: bool = False) -> Stamp:
        """Count a message of work that this rank sends; return the stamp that it must carry."""
        self._surplus += 1
        return Stamp()

    def count_received(self, source: int, stamp: Stamp) -> OutgoingMessages:
        """Count a message of work that this rank has received. Raise ``InvariantBroken`` if the phase is over."""
        if self.is_terminated:
            raise InvariantBroken(f"work from rank {source} after the end of phase {self._phase}")
        self._surplus -= 1
        self._is_black = True
        return []

    def handle_idle(self) -> OutgoingMessages:
        """Handle idleness of this rank: pass the token on if this rank has it; on rank 0, find the end of the phase."""
        if self.token_state is not TokenState.HELD or (self._token is not None and self._token.phase > self._phase):
            return []
        if self._rank:
            assert self._token is not None
            token = RingToken(self._phase, self._token.surplus + self._surplus, self._token.is_black or self._is_black)
        elif self._found_no_work():
            self._set_state(TokenState.TERMINATED)
            return []
        else:
            token = RingToken(self._phase, 0, False)
        self._is_black = False
        self._token = None
        self._set_state(TokenState.AWAY)
        return [(self._next_rank, token)]

    def _found_no_work(self) -> bool:
        """On rank 0: return True if the token met only idle ranks on its way and no message of work is in transit."""
        if self._next_rank == self._rank:
            return self._surplus == 0
        token = self._token
        return token is not None and not token.is_black and not self._is_black and token.surplus + self._surplus == 0

    def handle_message(self, source: int, message: Message) -> OutgoingMessages:
        """Receive the token. Raise ``InvariantBroken`` if this rank has it already, or for any other message."""
        if not isinstance(message, RingToken) or message.phase < self._phase or self.token_state is TokenState.HELD:
            raise InvariantBroken(f"{message} unexpectedly received from rank {source} in phase {self._phase}")
        self._set_state(TokenState.HELD)
        self._token = message
        return []

    def _set_state(self, probe: TokenState) -> None:
        self.token_state = checked_transition(TRANSITIONS, self.token_state, probe, self._rank)


DETECTORS = ("tree", "ring")
"""Names of the termination detectors on the command line."""


def make_detector(name: str, rank: int, size: int) -> DijkstraScholtenDetector | SafraDetector:
    """Return the termination detector ``name`` for one rank of ``size`` ranks.

    ``tree`` is Dijkstra and Scholten's, ``ring`` is Safra's. Raise ``ValueError`` for another name.
    """
    if name not in DETECTORS:
        raise ValueError(f"no termination detector is called {name}")
    return SafraDetector(rank, size) if name == "ring" else DijkstraScholtenDetector(rank)
