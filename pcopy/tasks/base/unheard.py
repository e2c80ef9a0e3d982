"""What ranks have told rank 0 and it has not heard yet: so much, and no more, is on its way.

A rank begins no further work while more than its share has not been heard: so rank 0 holds no more than that, however
slow whoever reads is.
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
    """The ``amount`` that this rank has told, and of which it does not know yet that rank 0 has heard it. A subclass
    says in what it is measured; a job has one of them."""

    most: ClassVar[int]
    """Of all ranks together."""
    least: ClassVar[int]
    """The share of a rank, where there are very many."""

    def __init__(self, rank: Rank) -> None:
        self.amount = 0
        self._share = self.share(rank.size)

    @classmethod
    def share(cls, ranks: int) -> int:
        return max(cls.least, cls.most // ranks)

    @property
    def is_full(self) -> bool:
        return self.amount > self._share

    def heard(self) -> Stepwise[bool]:
        """Waits until rank 0 has heard most of it; False if the job stops meanwhile."""
        while self.is_full:
            hearing = Hearing(self)
            yield hearing
            if hearing.is_cancelled:
                return False
        return True


class Hearing:
    """Fills ``pcopy.engine.ticket.Ticket``: it is done when some of it has been heard."""

    def __init__(self, unheard: Unheard) -> None:
        self._unheard = unheard
        self.is_cancelled = False

    @property
    def is_done(self) -> bool:
        return self.is_cancelled or not self._unheard.is_full

    def cancel(self) -> None:
        self.is_cancelled = True


class _Heard(Counter[int]):
    """On rank 0: what was heard and not acknowledged yet, by rank."""

    def __init__(self, rank: Rank) -> None:
        super().__init__()


def acknowledge(
    rank: Rank, result: Result, teller: int, amount: int, unheard: type[Unheard], note: Callable[[int], Kind]
) -> None:
    """On rank 0: it has heard so much more of the rank ``teller``, which gets a ``note`` of it when it is much."""
    some = rank.own(_Heard)
    some[teller] += amount
    if some[teller] >= unheard.share(rank.size) // 4:
        result.spawn(note(some.pop(teller)), owner=teller)
