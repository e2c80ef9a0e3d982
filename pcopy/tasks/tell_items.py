"""TellItems: rank 0 hears what has become of each item, where that is wanted; ItemsHeard: it has told so many of them.

A resumed job tells what it settles itself; so these notes are dropped with the run that they belong to.
"""

from __future__ import annotations

from pcopy.tasks.base import unheard
from pcopy.tasks.base.itemized import ITEMS_AT_ONCE, Itemized
from pcopy.tasks.base.kind import Again
from pcopy.tasks.base.rank import Rank
from pcopy.tasks.base.result import Result
from pcopy.tasks.base.unheard import Unheard

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
        rank.own(UnheardItems).amount -= self.number


class UnheardItems(Unheard):
    most, least = MOST_UNHEARD, LEAST_SHARE


def acknowledge(rank: Rank, result: Result, teller: int, number: int) -> None:
    """On rank 0: it is done with so many more items of the rank ``teller``, which is told so when they are many."""
    unheard.acknowledge(rank, result, teller, number, UnheardItems, ItemsHeard)


def tell_items(rank: Rank, result: Result) -> None:
    """Hands on what the task has gathered; rank 0 tells it at once."""
    items = tuple(result.items.packed())
    if not items:
        return
    if rank.number == 0:
        if rank.sink is not None:
            rank.sink.items(items)
        return
    rank.own(UnheardItems).amount += sum(len(each.kinds) for each in items)
    some: list[Itemized] = []
    for each in items:
        if sum(len(other.kinds) for other in some) + len(each.kinds) > ITEMS_AT_ONCE:
            _send(rank, result, some)
            some = []
        some.append(each)
    _send(rank, result, some)


def _send(rank: Rank, result: Result, items: list[Itemized]) -> None:
    result.spawn(TellItems(rank.number, tuple((*each,) for each in items)), owner=0)
