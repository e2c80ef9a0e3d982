"""TellItems reports the outcomes of items to rank 0; ItemsHeard acknowledges them.

A resumed job reports the items that it processes itself, so these notes are dropped when their run ends.
"""

from __future__ import annotations

from pcopy.tasks.base import unheard
from pcopy.tasks.base.itemized import ITEMS_AT_ONCE, Itemized
from pcopy.tasks.base.kind import Again
from pcopy.tasks.base.rank import Rank
from pcopy.tasks.base.result import Result
from pcopy.tasks.base.unheard import Unheard

MOST_UNHEARD = 1 << 18
"""Largest number of items of all ranks together that are on their way to rank 0: about 20 MB."""

LEAST_SHARE = 1024
"""Least share of one rank. With a smaller share each task would wait for its acknowledgement if there are very many
ranks.
"""


class TellItems(Again, code=71, doing="reporting outcomes of items"):
    """Note that reports the outcomes of items of the rank ``teller`` to rank 0.

    Each of ``batches`` contains the fields of a ``pcopy.tasks.base.itemized.Itemized``.
    """

    teller: int
    batches: tuple[tuple[int, bytes, bytes, bytes, bytes, bytes, bytes], ...]

    def run(self, rank: Rank, result: Result) -> None:
        items = [Itemized(*each) for each in self.batches]
        if rank.sink is not None:
            rank.sink.items(items)
        acknowledge(rank, result, self.teller, sum(len(each.kinds) for each in items))


class ItemsHeard(Again, code=72, doing="receiving an acknowledgement"):
    """Note that acknowledges ``number`` more items of the receiving rank."""

    number: int

    def run(self, rank: Rank, result: Result) -> None:
        rank.own(UnheardItems).amount -= self.number


class UnheardItems(Unheard):
    """Flow control for ``TellItems``, in items."""

    most, least = MOST_UNHEARD, LEAST_SHARE


def acknowledge(rank: Rank, result: Result, teller: int, number: int) -> None:
    """Count ``number`` items of the rank ``teller`` that were passed on, on rank 0. Send an acknowledgement once there
    are enough.
    """
    unheard.acknowledge(rank, result, teller, number, UnheardItems, ItemsHeard)


def tell_items(rank: Rank, result: Result) -> None:
    """Report the items that the task has collected: pass them on directly on rank 0, send them to rank 0 from any other
    rank.
    """
    items = tuple(result.items.packed())
    if not items:
        return
    if rank.number == 0:
        if rank.sink is not None:
            rank.sink.items(items)
        return
    rank.own(UnheardItems).amount += sum(len(each.kinds) for each in items)
    batch: list[Itemized] = []
    for each in items:
        if sum(len(other.kinds) for other in batch) + len(each.kinds) > ITEMS_AT_ONCE:
            _send(rank, result, batch)
            batch = []
        batch.append(each)
    _send(rank, result, batch)


def _send(rank: Rank, result: Result, items: list[Itemized]) -> None:
    """Spawn the note that carries these items to rank 0."""
    result.spawn(TellItems(rank.number, tuple((*each,) for each in items)), owner=0)
