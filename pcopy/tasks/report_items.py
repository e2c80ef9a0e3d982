"""TellItems reports the outcomes of items to rank 0; ItemsHeard acknowledges them.

A resumed job reports the items that it processes itself, so these notes are dropped when their run ends.
"""

from __future__ import annotations

from pcopy.tasks.base import report_window
from pcopy.tasks.base.item_outcomes import MAX_ITEMS_PER_MESSAGE, ItemOutcomes
from pcopy.tasks.base.kind import RecreatedNote
from pcopy.tasks.base.rank import Rank
from pcopy.tasks.base.report_window import SendWindow
from pcopy.tasks.base.result import TaskResult

MAX_UNACKNOWLEDGED = 1 << 18
"""Largest number of items of all ranks together that are on their way to rank 0: about 20 MB."""

MIN_SHARE = 1024
"""Least share of one rank. With a smaller share each task would wait for its acknowledgement if there are very many
ranks.
"""


class ReportItems(RecreatedNote, code=71, doing="reporting outcomes of items"):
    """Note that reports the outcomes of items of the rank ``sender`` to rank 0.

    Each of ``batches`` contains the fields of a ``pcopy.tasks.base.item_outcomes.ItemOutcomes``.
    """

    sender: int
    batches: tuple[tuple[int, bytes, bytes, bytes, bytes, bytes, bytes], ...]

    def run(self, rank: Rank, result: TaskResult) -> None:
        items = [ItemOutcomes(*each) for each in self.batches]
        if rank.sink is not None:
            rank.sink.items(items)
        acknowledge_items(rank, result, self.sender, sum(len(each.kinds) for each in items))


class AcknowledgeItems(RecreatedNote, code=72, doing="receiving an acknowledgement"):
    """Note that acknowledges ``number`` more items of the receiving rank."""

    number: int

    def run(self, rank: Rank, result: TaskResult) -> None:
        rank.instance(ItemSendWindow).unacknowledged -= self.number


class ItemSendWindow(SendWindow):
    """Flow control for ``ReportItems``, in items."""

    total_limit, min_share = MAX_UNACKNOWLEDGED, MIN_SHARE


def acknowledge_items(rank: Rank, result: TaskResult, teller: int, number: int) -> None:
    """Count ``number`` items of the rank ``teller`` that were passed on, on rank 0. Send an acknowledgement once there
    are enough.
    """
    report_window.acknowledge(rank, result, teller, number, ItemSendWindow, AcknowledgeItems)


def report_items(rank: Rank, result: TaskResult) -> None:
    """Report the items that the task has collected: pass them on directly on rank 0, send them to rank 0 from any other
    rank.
    """
    items = tuple(result.item_recorder.packed_outcomes())
    if not items:
        return
    if rank.number == 0:
        if rank.sink is not None:
            rank.sink.items(items)
        return
    rank.instance(ItemSendWindow).unacknowledged += sum(len(each.kinds) for each in items)
    batch: list[ItemOutcomes] = []
    for each in items:
        if sum(len(other.kinds) for other in batch) + len(each.kinds) > MAX_ITEMS_PER_MESSAGE:
            _spawn_report(rank, result, batch)
            batch = []
        batch.append(each)
    _spawn_report(rank, result, batch)


def _spawn_report(rank: Rank, result: TaskResult, items: list[ItemOutcomes]) -> None:
    """Spawn the note that carries these items to rank 0."""
    result.spawn(ReportItems(rank.number, tuple((*each,) for each in items)), owner=0)
