"""Flow control for reports to rank 0: the amount that was sent and not acknowledged yet is limited.

A rank begins no further work while its share of the limit is used up. So rank 0 holds a bounded amount of data, however
slow the reader of its output is.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import ClassVar

from pcopy.engine.ticket import TicketGenerator
from pcopy.tasks.base.kind import TaskKind
from pcopy.tasks.base.rank import Rank
from pcopy.tasks.base.result import TaskResult


class SendWindow:
    """The ``unacknowledged`` that this rank has sent to rank 0 and that rank 0 has not acknowledged yet.

    A subclass defines the unit. A job uses one subclass.
    """

    total_limit: ClassVar[int]
    """Limit for all ranks together."""
    min_share: ClassVar[int]
    """Least share of one rank, even if there are very many ranks."""

    def __init__(self, rank: Rank) -> None:
        self.unacknowledged = 0
        self._share = self.share_of_rank(rank.size)

    @classmethod
    def share_of_rank(cls, ranks: int) -> int:
        """Return the share of one of ``ranks`` ranks."""
        return max(cls.min_share, cls.total_limit // ranks)

    @property
    def is_full(self) -> bool:
        """True if this rank has used up its share."""
        return self.unacknowledged > self._share

    def wait_until_open(self) -> TicketGenerator[bool]:
        """Yield until this rank may send again. Return False if the job stops meanwhile, else True."""
        while self.is_full:
            hearing = SendWindowTicket(self)
            yield hearing
            if hearing.is_cancelled:
                return False
        return True


class SendWindowTicket:
    """A ticket (``pcopy.engine.ticket.Ticket``) that is done when rank 0 has acknowledged enough."""

    def __init__(self, unheard: SendWindow) -> None:
        self._window = unheard
        self.is_cancelled = False

    @property
    def is_done(self) -> bool:
        return self.is_cancelled or not self._window.is_full

    def cancel(self) -> None:
        self.is_cancelled = True


class _ReceivedAmounts(Counter[int]):
    """Amounts that rank 0 has received and not acknowledged yet, by rank."""

    def __init__(self, rank: Rank) -> None:
        super().__init__()


def acknowledge(
    rank: Rank, result: TaskResult, sender: int, amount: int, unheard: type[SendWindow], note: Callable[[int], TaskKind]
) -> None:
    """Count an ``unacknowledged`` received from the rank ``sender``, on rank 0. Send an acknowledgement once enough has
    been received.

    Args:
        unheard: the subclass that defines the limit.
        note: function that returns the acknowledgement for an amount.
    """
    received = rank.instance(_ReceivedAmounts)
    received[sender] += amount
    if received[sender] >= unheard.share_of_rank(rank.size) // 4:
        result.spawn(note(received.pop(sender)), owner=sender)
