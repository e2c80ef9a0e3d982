"""TellItems: rank 0 hears what has become of each item, where that is wanted; ItemsHeard: it has told so many of them.

A rank begins no further work while more than its share of ``MOST_UNHEARD`` items have not been told yet: so rank 0
holds no more than these, however slow whoever reads is. A resumed job tells what it settles itself; so these notes are
dropped with the run that they belong to.
"""

from __future__ import annotations

from collections import Counter

from pcopy.tasks.base.itemized import ITEMS_AT_ONCE, Itemized
from pcopy.tasks.base.kind import Again
from pcopy.tasks.base.rank import Rank
from pcopy.tasks.base.result import Result

MOST_UNHEARD = 1 << 18
"""Items of all ranks together that are on their way to rank 0: some 20 MB."""

LEAST_SHARE = 1024
"""Of a rank, where there are very many: else each task would wait for its note."""


class TellItems(Again, code=71, doing="telling what was done"):
    """Tells rank 0 what has become of items of the rank ``teller``; the fields of each of ``batches`` are those of
    ``pcopy.tasks.base.itemized.Itemized``."""

    teller: int
    batches: tuple[tuple[int, bytes, bytes, bytes, bytes, bytes, bytes], ...]

    def run(self, rank: Rank, result: Result) -> None:
        items = [Itemized(*each) for each in self.batches]
        if rank.sink is not None:
            rank.sink.items(items)
        acknowledge(rank, result, self.teller, sum(len(each.kinds) for each in items))


class ItemsHeard(Again, code=72, doing="going on"):
    """Rank 0 has told so many more of this rank's items."""

    number: int

    def run(self, rank: Rank, result: Result) -> None:
        rank.own(Unheard).items -= self.number


class Heard(Counter[int]):
    """On rank 0: the items that were told and not acknowledged yet, by rank."""

    def __init__(self, rank: Rank) -> None:
        super().__init__()


def acknowledge(rank: Rank, result: Result, teller: int, number: int) -> None:
    """On rank 0: it is done with so many more items of the rank ``teller``, which is told so when they are many."""
    heard = rank.own(Heard)
    heard[teller] += number
    if heard[teller] >= share(rank.size) // 4:
        result.spawn(ItemsHeard(heard.pop(teller)), owner=teller)


class Unheard:
    """The items of this rank of which it is not known yet that rank 0 has told them."""

    def __init__(self, rank: Rank) -> None:
        self.items = 0
        self._most = share(rank.size)

    @property
    def is_full(self) -> bool:
        return self.items > self._most


class Hearing:
    """Fills ``pcopy.engine.ticket.Ticket``: it is done when some of the items have been heard."""

    def __init__(self, unheard: Unheard) -> None:
        self._unheard = unheard
        self.is_cancelled = False

    @property
    def is_done(self) -> bool:
        return self.is_cancelled or not self._unheard.is_full

    def cancel(self) -> None:
        self.is_cancelled = True


def share(ranks: int) -> int:
    return max(LEAST_SHARE, MOST_UNHEARD // ranks)


def tell_items(rank: Rank, result: Result) -> None:
    """Hands on what the task has gathered; rank 0 tells it at once."""
    items = tuple(result.items.packed())
    if not items:
        return
    if rank.number == 0:
        if rank.sink is not None:
            rank.sink.items(items)
        return
    rank.own(Unheard).items += sum(len(each.kinds) for each in items)
    some: list[Itemized] = []
    for each in items:
        if sum(len(other.kinds) for other in some) + len(each.kinds) > ITEMS_AT_ONCE:
            _send(rank, result, some)
            some = []
        some.append(each)
    _send(rank, result, some)


def _send(rank: Rank, result: Result, items: list[Itemized]) -> None:
    result.spawn(TellItems(rank.number, tuple((*each,) for each in items)), owner=0)
