"""Flow control for reports to rank 0: the amount that was sent and not acknowledged yet is limited.

A rank begins no further work while its share of the limit is used up. So rank 0 holds a bounded amount of data, however
slow the reader of its output is.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import ClassVar

from pcopy.engine.ticket import Stepwise
from pcopy.tasks.base.kind import Kind
from pcopy.tasks.base.rank import Rank
from pcopy.tasks.base.result import Result


class Unheard:
    """The ``amount`` that this rank has sent to rank 0 and that rank 0 has not acknowledged yet.

    A subclass defines the unit. A job uses one subclass.
    """

    most: ClassVar[int]
    """Limit for all ranks together."""
    least: ClassVar[int]
    """Least share of one rank, even if there are very many ranks."""

    def __init__(self, rank: Rank) -> None:
        self.amount = 0
        self._share = self.share(rank.size)

    @classmethod
    def share(cls, ranks: int) -> int:
        """Return the share of one of ``ranks`` ranks."""
        return max(cls.least, cls.most // ranks)

    @property
    def is_full(self) -> bool:
        """True if this rank has used up its share."""
        return self.amount > self._share

    def heard(self) -> Stepwise[bool]:
        """Yield until this rank may send again. Return False if the job stops meanwhile, else True."""
        while self.is_full:
            hearing = Hearing(self)
            yield hearing
            if hearing.is_cancelled:
                return False
        return True


class Hearing:
    """A ticket (``pcopy.engine.ticket.Ticket``) that is done when rank 0 has acknowledged enough."""

    def __init__(self, unheard: Unheard) -> None:
        self._unheard = unheard
        self.is_cancelled = False

    @property
    def is_done(self) -> bool:
        return self.is_cancelled or not self._unheard.is_full

    def cancel(self) -> None:
        self.is_cancelled = True


class _Heard(Counter[int]):
    """Amounts that rank 0 has received and not acknowledged yet, by rank."""

    def __init__(self, rank: Rank) -> None:
        super().__init__()


def acknowledge(
    rank: Rank, result: Result, teller: int, amount: int, unheard: type[Unheard], note: Callable[[int], Kind]
) -> None:
    """Count an ``amount`` received from the rank ``teller``, on rank 0. Send an acknowledgement once enough has been
    received.

    Args:
        unheard: the subclass that defines the limit.
        note: function that returns the acknowledgement for an amount.
    """
    received = rank.own(_Heard)
    received[teller] += amount
    if received[teller] >= unheard.share(rank.size) // 4:
        result.spawn(note(received.pop(teller)), owner=teller)
