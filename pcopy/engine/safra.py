"""Termination detection by a token that travels around the ring of ranks.

Safra's algorithm (Dijkstra, "Shmuel Safra's version of termination detection", EWD 998, 1987). A message of work is one
that can give its receiver tasks. Each rank counts the messages of work that it has sent minus those that it has
received, and becomes black when it receives one. An idle rank that has the token adds its count to the token, blackens
the token if it is black itself, becomes white, and passes the token on downwards (0 → n-1 → … → 1 → 0). If the token
returns white to a white rank 0 and the sum of all counts is 0, no rank has work and no message of work is in transit.
Otherwise rank 0 sends the token around again. Colours alone would not suffice: a message in transit to a rank that the
token has passed has not blackened any rank yet, but keeps the sum above 0.
"""

from __future__ import annotations

from enum import Enum

from pcopy.engine.messages import Message, OutgoingMessages, RingToken, TerminationCreditStamp
from pcopy.engine.states import TransitionTable, checked_next_state
from pcopy.engine.termination import DijkstraScholtenTerminationDetector
from pcopy.errors import InvariantBroken


class RingTokenState(Enum):
    """State of the token as seen from one rank. The token travels around the ring of ranks, and shows when a phase is
    over.

    States:
    - AWAY: the token is not on this rank.
    - HELD: the token is on this rank, which passes it on once it is idle.
    - TERMINATED: rank 0 only: the token has shown that the phase is over on all ranks.
    """

    AWAY = "away"
    HELD = "held"
    TERMINATED = "terminated"


TOKEN_STATE_TRANSITIONS: TransitionTable[RingTokenState] = {
    RingTokenState.AWAY: frozenset({RingTokenState.HELD}),
    RingTokenState.HELD: frozenset({RingTokenState.AWAY, RingTokenState.TERMINATED}),
    RingTokenState.TERMINATED: frozenset({RingTokenState.HELD}),
}
"""For each state of the token, the states that may follow it."""


class SafraTerminationDetector:
    """Termination detector on one rank of ``size`` ranks: finds out when a phase is over on all ranks, by Safra's
    algorithm, in which a token travels around the ring of ranks. Rank 0 has the token when a phase begins.

    Methods return the detector's own messages, to be sent by the caller, as (destination, message).
    ``DijkstraScholtenTerminationDetector`` has the same methods.
    """

    def __init__(self, rank: int, size: int) -> None:
        self._rank = rank
        self._next_rank = (rank - 1) % size
        self._phase = -1
        self._surplus = 0
        self._is_black = False
        self._token: RingToken | None = None
        self.token_state = RingTokenState.AWAY

    @property
    def is_phase_over_on_all_ranks(self) -> bool:
        """On rank 0: True if the phase is over on all ranks."""
        return self.token_state is RingTokenState.TERMINATED

    def begin_phase(self, phase: int) -> None:
        """Begin a new phase. Raise ``InvariantBroken`` on rank 0 if the token has not shown that the last phase is
        over.
        """
        if not self._rank:
            if self.token_state is RingTokenState.HELD or (
                self.token_state is RingTokenState.AWAY and self._phase >= 0
            ):
                raise InvariantBroken(f"phase {phase} begins while the token of phase {self._phase} is under way")
            self._set_state(RingTokenState.HELD)
            self._token = None
        self._phase = phase

    def count_sent_work_message(self, *, starting: bool = False) -> TerminationCreditStamp:
        """Count a message of work (one that can give its receiver tasks) that this rank sends. Return an empty stamp:
        unlike the other detector, this one needs no credits in messages. ``starting`` has no effect.
        """
        self._surplus += 1
        return TerminationCreditStamp()

    def count_received_work_message(self, source: int, stamp: TerminationCreditStamp) -> OutgoingMessages:
        """Count a message of work (one that can give its receiver tasks) that this rank has received from ``source``;
        return an empty list. ``stamp`` has no effect. Raise ``InvariantBroken`` if the phase is over.
        """
        if self.is_phase_over_on_all_ranks:
            raise InvariantBroken(f"work from rank {source} after the end of phase {self._phase}")
        self._surplus -= 1
        self._is_black = True
        return []

    def advance_termination_detection(self) -> OutgoingMessages:
        """Pass the token on if this rank has it; return the message to send. Called while this rank is idle. On rank 0,
        first check whether the token has shown that the phase is over on all ranks; if so, set
        ``is_phase_over_on_all_ranks`` and keep the token.
        """
        if self.token_state is not RingTokenState.HELD or (self._token is not None and self._token.phase > self._phase):
            return []
        if self._rank:
            assert self._token is not None
            token = RingToken(self._phase, self._token.surplus + self._surplus, self._token.is_black or self._is_black)
        elif self._has_token_proved_termination():
            self._set_state(RingTokenState.TERMINATED)
            return []
        else:
            token = RingToken(self._phase, 0, False)
        self._is_black = False
        self._token = None
        self._set_state(RingTokenState.AWAY)
        return [(self._next_rank, token)]

    def _has_token_proved_termination(self) -> bool:
        """On rank 0, which is idle and has the token: return True if the token shows that the phase is over: no rank
        has work, and no message that can bring work is in transit.
        """
        if self._next_rank == self._rank:
            return self._surplus == 0
        token = self._token
        return token is not None and not token.is_black and not self._is_black and token.surplus + self._surplus == 0

    def handle_termination_message(self, source: int, message: Message) -> OutgoingMessages:
        """Receive the token, ``message``, from the rank ``source``; return an empty list. Raise ``InvariantBroken`` if
        this rank has the token already, if the token is of an earlier phase, or if ``message`` is something else.
        """
        if not isinstance(message, RingToken) or message.phase < self._phase or self.token_state is RingTokenState.HELD:
            raise InvariantBroken(f"{message} unexpectedly received from rank {source} in phase {self._phase}")
        self._set_state(RingTokenState.HELD)
        self._token = message
        return []

    def _set_state(self, probe: RingTokenState) -> None:
        self.token_state = checked_next_state(TOKEN_STATE_TRANSITIONS, self.token_state, probe, self._rank)


TERMINATION_DETECTORS = ("tree", "ring")
"""Names of the two algorithms that find out when a phase is over on all ranks (values of ``--termination``)."""


def make_termination_detector(
    name: str, rank: int, size: int
) -> DijkstraScholtenTerminationDetector | SafraTerminationDetector:
    """Return the termination detector ``name`` (from ``TERMINATION_DETECTORS``) for one rank of ``size`` ranks.

    ``tree`` is Dijkstra and Scholten's algorithm, ``ring`` is Safra's. Raise ``ValueError`` for another name.
    """
    if name not in TERMINATION_DETECTORS:
        raise ValueError(f"no termination detector is called {name}")
    return SafraTerminationDetector(rank, size) if name == "ring" else DijkstraScholtenTerminationDetector(rank)
