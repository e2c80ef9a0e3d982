"""Termination detection along a tree: finds out when a phase is over on all ranks.

Dijkstra and Scholten, "Termination detection for diffusing computations", Information Processing Letters 11 (1980),
with credits (Mattern, "Global quiescence detection based on credit distribution and recovery", Information Processing
Letters 30 (1989)) that keep its tree flat.

A *message of work* is one that can give its receiver tasks. A rank is *engaged* while it is part of the tree; each rank
with work is. The root of the tree, rank 0, is engaged at the start of a phase. Each message of work carries credits of
one rank's *account*. If the message reaches a rank that is not engaged, that rank becomes engaged: the account's owner
becomes its parent, and it keeps the credits. An engaged rank also keeps further credits of its parent's account. It
returns the credits of all other messages to the account's owner immediately, by a message of the detector. An engaged
rank that sends work issues credits of its own account, so it becomes the parent of a receiver that is not engaged. But
a rank at the maximum depth passes on a part of the credits that it holds. Then the receiver gets the *same* parent, and
the tree grows no deeper. An account is balanced when all credits that its owner issued have been returned. A rank that
is idle, and whose account is balanced, returns the credits that it holds, and is no longer engaged.

Proof. (1) While a rank or a message in transit holds credits of an account, the account is not balanced. So its owner
is still engaged. (2) So the parent of an engaged rank is engaged. When a rank becomes engaged, its own account is
balanced, so no rank has it as its parent: no rank is its own ancestor, and every chain of parents ends at the root. (3)
A rank with work is engaged, and a message of work holds credits. Hence, if the root is idle and its account is
balanced, no other rank is engaged: no rank has work, and no message of work is in transit.

If each message carried credits of its sender's account, this would be the algorithm of 1980, whose tree grows as deep
as the longest chain of thefts. If all messages carried credits of the root's account, it would be Mattern's, in which
the root receives a signal for each theft.
"""

from __future__ import annotations

from enum import Enum

from pcopy.engine.messages import (
    CREDIT_ACCOUNT_OF_SENDER,
    CreditReturnMessage,
    Message,
    OutgoingMessages,
    TerminationCreditStamp,
)
from pcopy.engine.states import TransitionTable, checked_next_state
from pcopy.errors import InvariantBroken


class TreeEngagementState(Enum):
    """State of a rank in the tree of engaged ranks, by which the termination detector finds out when a phase is over.

    States:
    - DETACHED: the rank is not part of the tree, and has no work.
    - ENGAGED: the rank is part of the tree: it may have work, or ranks below it in the tree may.
    - TERMINATED: rank 0 only: the phase is over on all ranks.
    """

    DETACHED = "detached"
    ENGAGED = "engaged"
    TERMINATED = "terminated"


ENGAGEMENT_TRANSITIONS: TransitionTable[TreeEngagementState] = {
    TreeEngagementState.DETACHED: frozenset({TreeEngagementState.ENGAGED}),
    TreeEngagementState.ENGAGED: frozenset({TreeEngagementState.DETACHED, TreeEngagementState.TERMINATED}),
    TreeEngagementState.TERMINATED: frozenset({TreeEngagementState.ENGAGED}),
}
"""For each state of a rank in the tree of engaged ranks, the states that may follow it."""

CREDITS_PER_MESSAGE = 1 << 256
"""Number of credits that a rank issues with one message of work (one that can give its receiver tasks): enough to be
divided thousands of times.
"""

MAX_ENGAGEMENT_DEPTH = 10
"""Maximum depth of the tree of engaged ranks. A rank at this depth gives the ranks to which it sends work a part of its
parent's credits, so that they become children of the same parent. Only if it has too few credits to divide, it
issues its own ones.
"""

_CREDIT_SHARE_BITS = 4
"""A rank at the maximum depth gives each message of work a sixteenth of the credits that it holds: their number shifted
by this many bits.
"""


class DijkstraScholtenTerminationDetector:
    """Termination detector on one rank: finds out when a phase is over on all ranks, by the algorithm of Dijkstra and
    Scholten. Ranks with work form a tree whose root is rank 0.

    ``RankStateMachine`` calls it for each message of work (one that can give its receiver tasks) that the rank sends or
    receives. Methods return the detector's own messages, to be sent by the caller, as (destination, message).
    """

    def __init__(self, rank: int) -> None:
        self._rank = rank
        self._phase = -1
        self._parent = -1
        self._held = 0  # credits of the parent's account
        self._issued = 0  # credits of this rank's account that have not been returned
        self._depth = 0
        self.engagement = TreeEngagementState.DETACHED

    @property
    def is_phase_over_on_all_ranks(self) -> bool:
        """On rank 0: True if the phase is over on all ranks."""
        return self.engagement is TreeEngagementState.TERMINATED

    def begin_phase(self, phase: int) -> None:
        """Begin to detect the end of ``phase``. Rank 0 becomes the root of the tree of ranks with work. Raise
        ``InvariantBroken`` if the last phase is not over on this rank.
        """
        if self.engagement is TreeEngagementState.ENGAGED or self._issued:
            raise InvariantBroken(f"phase {phase} begins while {self._phase} is not over on rank {self._rank}")
        self._phase = phase
        self._parent = -1
        self._held = self._depth = 0
        if not self._rank:
            self._set_state(TreeEngagementState.ENGAGED)

    def count_sent_work_message(self, *, starting: bool = False) -> TerminationCreditStamp:
        """Record that this rank sends a message of work (one that can give its receiver tasks). Return the stamp that
        the message must carry: credits, which the receiver returns when it has no more work.

        ``starting``: True if the message begins a phase on its receiver; it then carries credits of this rank itself.
        Raise ``InvariantBroken`` if this rank is not engaged, that is, not in the tree of ranks with work.
        """
        if self.engagement is not TreeEngagementState.ENGAGED:
            raise InvariantBroken(f"rank {self._rank} sends work while it is {self.engagement.value}")
        part = self._held >> _CREDIT_SHARE_BITS
        if part and self._depth >= MAX_ENGAGEMENT_DEPTH and not starting:
            self._held -= part
            return TerminationCreditStamp(self._parent, part, self._depth - 1)
        self._issued += CREDITS_PER_MESSAGE
        return TerminationCreditStamp(self._rank, CREDITS_PER_MESSAGE, self._depth)

    def count_received_work_message(self, source: int, stamp: TerminationCreditStamp) -> OutgoingMessages:
        """Record that this rank has received a message of work of the current phase from ``source``. Either this rank
        keeps the credits in ``stamp``, or the returned list has the message that sends them back.

        Raise ``InvariantBroken`` if the phase is over.
        """
        account = source if stamp.account == CREDIT_ACCOUNT_OF_SENDER else stamp.account
        if self.engagement is TreeEngagementState.TERMINATED:
            raise InvariantBroken(f"work from rank {source} after the end of phase {self._phase}")
        if self.engagement is TreeEngagementState.DETACHED:
            self._set_state(TreeEngagementState.ENGAGED)
            self._parent, self._held, self._depth = account, stamp.credits, stamp.depth + 1
            return []
        if account == self._parent:
            self._held += stamp.credits
            return []
        home = CreditReturnMessage(self._phase, stamp.credits)
        return self.handle_termination_message(source, home) if account == self._rank else [(account, home)]

    def advance_termination_detection(self) -> OutgoingMessages:
        """Leave the tree of engaged ranks if all credits that this rank issued have been returned; return the message
        that returns its own credits. On rank 0, set ``is_phase_over_on_all_ranks`` instead.

        Called while this rank is idle, again after each event.
        """
        if self.engagement is not TreeEngagementState.ENGAGED or self._issued:
            return []
        if not self._rank:
            self._set_state(TreeEngagementState.TERMINATED)
            return []
        self._set_state(TreeEngagementState.DETACHED)
        return [(self._parent, CreditReturnMessage(self._phase, self._held))]

    def handle_termination_message(self, source: int, message: Message) -> OutgoingMessages:
        """Take back the credits that ``message`` from the rank ``source`` returns; return an empty list.

        Raise ``InvariantBroken`` if ``message`` does not return credits, is of another phase, or returns more credits
        than were issued.
        """
        if (
            not isinstance(message, CreditReturnMessage)
            or message.phase != self._phase
            or message.credits > self._issued
        ):
            raise InvariantBroken(f"{message} unexpectedly received from rank {source} in phase {self._phase}")
        self._issued -= message.credits
        return []

    def _set_state(self, engagement: TreeEngagementState) -> None:
        self.engagement = checked_next_state(ENGAGEMENT_TRANSITIONS, self.engagement, engagement, self._rank)
