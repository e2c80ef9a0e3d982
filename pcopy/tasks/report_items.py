"""``ReportItems`` reports to rank 0 what was done with items; ``AcknowledgeReportedItems`` acknowledges that. Both are
notes (messages in the form of short tasks).

A resumed job reports only the items that it processes itself, so a note of an earlier run is discarded.
"""

from __future__ import annotations

from pcopy.tasks.base import report_window
from pcopy.tasks.base.item_outcomes import MAX_ITEMS_PER_MESSAGE, PackedItemOutcomes
from pcopy.tasks.base.kind import NoteDiscardedOnResume
from pcopy.tasks.base.rank import Rank
from pcopy.tasks.base.report_window import SendWindow
from pcopy.tasks.base.result import TaskResult

MAX_UNACKNOWLEDGED_ITEMS = 1 << 18
"""Largest number of items that all ranks together may have sent to rank 0 without an acknowledgement. They take about
20 MB in the memory of rank 0.
"""

MIN_UNACKNOWLEDGED_ITEMS_PER_RANK = 1024
"""Least number of items that one rank may have sent to rank 0 without an acknowledgement. It is used if there are so
many ranks that an equal share of ``MAX_UNACKNOWLEDGED_ITEMS`` would be smaller: otherwise each task would have to wait
for an acknowledgement.
"""


class ReportItems(NoteDiscardedOnResume, code=71, doing="reporting outcomes of items"):
    """Note (message in the form of a short task) that reports to rank 0 what the rank ``sender`` did with items.

    Each element of ``batches`` has the fields of one ``pcopy.tasks.base.item_outcomes.PackedItemOutcomes``: items of
    one directory with which the same was done.
    """

    sender: int
    batches: tuple[tuple[int, bytes, bytes, bytes, bytes, bytes, bytes], ...]

    def run(self, rank: Rank, result: TaskResult) -> None:
        items = [PackedItemOutcomes(*each) for each in self.batches]
        if rank.sink is not None:
            rank.sink.items(items)
        acknowledge_reported_items(rank, result, self.sender, sum(len(each.kinds) for each in items))


class AcknowledgeReportedItems(NoteDiscardedOnResume, code=72, doing="receiving an acknowledgement"):
    """Note (message in the form of a short task) with which rank 0 acknowledges to a rank ``number`` more items that
    it has received from it.
    """

    number: int

    def run(self, rank: Rank, result: TaskResult) -> None:
        rank.shared_instance(ItemSendWindow).unacknowledged -= self.number


class ItemSendWindow(SendWindow):
    """The number of items that this rank has reported to rank 0 by ``ReportItems`` and that rank 0 has not acknowledged
    yet. While it is too large, the rank begins no new task.
    """

    total_limit, min_share = MAX_UNACKNOWLEDGED_ITEMS, MIN_UNACKNOWLEDGED_ITEMS_PER_RANK


def acknowledge_reported_items(rank: Rank, result: TaskResult, sender: int, number: int) -> None:
    """On rank 0: count ``number`` items that the rank ``sender`` has reported. Send that rank an acknowledgement once a
    quarter of the items that it may send without one have arrived.
    """
    report_window.acknowledge_received_amount_when_due(
        rank, result, sender, number, ItemSendWindow, AcknowledgeReportedItems
    )


def report_items(rank: Rank, result: TaskResult) -> None:
    """Report to rank 0 what a task did with its items, which ``result`` has recorded. On rank 0 itself the sink (the
    receiver of progress and failures) gets them at once; any other rank spawns notes that bring them to rank 0.
    """
    items = tuple(result.item_recorder.packed_outcomes())
    if not items:
        return
    if rank.number == 0:
        if rank.sink is not None:
            rank.sink.items(items)
        return
    rank.shared_instance(ItemSendWindow).unacknowledged += sum(len(each.kinds) for each in items)
    batch: list[PackedItemOutcomes] = []
    for each in items:
        if sum(len(other.kinds) for other in batch) + len(each.kinds) > MAX_ITEMS_PER_MESSAGE:
            _spawn_item_report(rank, result, batch)
            batch = []
        batch.append(each)
    _spawn_item_report(rank, result, batch)


def _spawn_item_report(rank: Rank, result: TaskResult, items: list[PackedItemOutcomes]) -> None:
    """Spawn the note that sends the outcomes ``items`` to rank 0."""
    result.spawn_task(ReportItems(rank.number, tuple((*each,) for each in items)), owner=0)
