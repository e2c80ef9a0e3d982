"""Termination detection: when is a phase over everywhere?

Dijkstra and Scholten, "Termination detection for diffusing computations", Information Processing Letters 11 (1980),
with credits (Mattern, "Global quiescence detection based on credit distribution and recovery", Information Processing
Letters 30 (1989)) that keep its tree flat.

The root is engaged at the start of a phase. Each message of work carries credits of one rank's *account*. If it reaches
a rank that is not engaged, it engages that rank: the account's owner becomes its parent, and it keeps the credits. It
also keeps further credits of the same account. Credits of all other messages go home (are signalled) at once. An
engaged rank that sends work issues credits of its own account, so it becomes the parent of a receiver that is not
engaged. But a rank that is ``DEEPEST`` already gives a part of the credits that it holds. Then the receiver gets the
*same* parent, and the tree grows no deeper. An account is balanced when all credits that its owner issued are home. A
rank that is idle, and whose account is balanced, sends home the credits that it holds, and is no longer engaged.

Why that suffices. (1) While a rank or a message under way holds credits of an account, the account is not balanced. So
its owner is engaged: it can't have left. (2) So the parent of an engaged rank is engaged. When a rank becomes engaged,
its own account is balanced, so it is nobody's parent then: no rank is its own ancestor, and every chain of parents ends
at the root. (3) A rank with work is engaged, and a message of work holds credits. Hence, if the root is idle and its
account is balanced, no rank is engaged below it: nobody works, and nothing is under way.

If each message were on its sender's account, this would be the algorithm of 1980: its tree grows as deep as the longest
chain of thefts. If all were on the root's account, it would be Mattern's: the root hears of each theft.
"""

from __future__ import annotations

from enum import Enum

from pcopy.engine.messages import SENDER, Message, Outgoing, Signal, Stamp
from pcopy.engine.states import Table, follow
from pcopy.errors import InvariantBroken


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

ISSUED = 1 << 256
"""Credits issued at a time: enough to be parted thousands of times."""

DEEPEST = 10
"""The depth from which on the tree grows no deeper, unless credits run out."""

_PART = 4
"""Bits: a message of work gets a sixteenth of what its sender holds."""


class DijkstraScholten:
    """The detector for one rank, which is told of its messages of work; rank 0 is the root.

    What it wants to say itself comes back as (destination, message).
    """

    def __init__(self, rank: int) -> None:
        self._rank = rank
        self._phase = -1
        self._parent = -1
        self._held = 0  # credits of the parent's account
        self._issued = 0  # credits of our account that are not home
        self._depth = 0
        self.engagement = Engagement.DETACHED

    @property
    def terminated(self) -> bool:
        """At the root: the phase is over everywhere."""
        return self.engagement is Engagement.TERMINATED

    def begin_phase(self, phase: int) -> None:
        """A new phase; at the root, the computation starts with it."""
        if self.engagement is Engagement.ENGAGED or self._issued:
            raise InvariantBroken(f"phase {phase} begins while {self._phase} is not over on rank {self._rank}")
        self._phase = phase
        self._parent = -1
        self._held = self._depth = 0
        if not self._rank:
            self._enter(Engagement.ENGAGED)

    def sent(self, *, starting: bool = False) -> Stamp:
        """This rank sends a message of work (``starting``: the start of a phase), which is to carry the stamp."""
        if self.engagement is not Engagement.ENGAGED:
            raise InvariantBroken(f"rank {self._rank} sends work while it is {self.engagement.value}")
        part = self._held >> _PART
        if part and self._depth >= DEEPEST and not starting:
            self._held -= part
            return Stamp(self._parent, part, self._depth - 1)
        self._issued += ISSUED
        return Stamp(self._rank, ISSUED, self._depth)

    def received(self, source: int, stamp: Stamp) -> Outgoing:
        """This rank has received a message of work of the current phase, with its stamp."""
        account = source if stamp.account == SENDER else stamp.account
        if self.engagement is Engagement.TERMINATED:
            raise InvariantBroken(f"work from rank {source} after the end of phase {self._phase}")
        if self.engagement is Engagement.DETACHED:
            self._enter(Engagement.ENGAGED)
            self._parent, self._held, self._depth = account, stamp.credits, stamp.depth + 1
            return []
        if account == self._parent:
            self._held += stamp.credits
            return []
        home = Signal(self._phase, stamp.credits)
        return self.receive(source, home) if account == self._rank else [(account, home)]

    def idle(self) -> Outgoing:
        """This rank has nothing to do (to be told again after each event while that holds)."""
        if self.engagement is not Engagement.ENGAGED or self._issued:
            return []
        if not self._rank:
            self._enter(Engagement.TERMINATED)
            return []
        self._enter(Engagement.DETACHED)
        return [(self._parent, Signal(self._phase, self._held))]

    def receive(self, source: int, message: Message) -> Outgoing:
        """One of the detector's own messages has come."""
        if not isinstance(message, Signal) or message.phase != self._phase or message.received > self._issued:
            raise InvariantBroken(f"{message} from rank {source} in phase {self._phase}")
        self._issued -= message.received
        return []

    def _enter(self, engagement: Engagement) -> None:
        self.engagement = follow(TRANSITIONS, self.engagement, engagement, self._rank)
