"""Upward half of the barrier at the end of a job, along the tree of ranks: child ranks report that they are ready.

With a ``SubtreeReadyMessage`` each rank sends its parent a final report (bytes, such as its errors and statistics),
combined with those of its subtree. So rank 0 receives the reports of all ranks. The engine does not interpret the
reports; the function that combines them also limits their size.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from pcopy.engine.messages import SubtreeReadyMessage

ReportCombiner = Callable[[Sequence[bytes]], bytes]
"""Function that returns the final report of a rank (packed statistics, which the engine does not interpret), combined
with the given reports of its child ranks.

The function is called when all tasks of the rank and of the ranks below it are over.
"""


class SubtreeReadyBarrier:
    """One rank's part in the first half of the barrier at the end of a job: in the tree of ranks, each rank waits until
    its child ranks have reported that they are ready, and then reports to its parent.
    """

    def __init__(self, children: Iterable[int]) -> None:
        self.awaited_children = set(children)
        """Child ranks that have not reported yet that they and all ranks below them are ready."""
        self.combine_reports: ReportCombiner = lambda below: b""
        """Function that combines the final reports of this rank and its child ranks. Replaced before the job begins if
        the program collects reports.
        """
        self.combined_report = b""
        """Final report (packed statistics) of this rank and all ranks below it in the tree of ranks; on rank 0, of all
        ranks. Empty before the barrier.
        """
        self._child_reports: list[bytes] = []

    def record_child_ready(self, child: int, ready: SubtreeReadyMessage) -> None:
        """Record that the rank ``child`` and all ranks below it are ready. Keep their report until
        ``subtree_ready_message`` combines it.
        """
        self.awaited_children.discard(child)
        if ready.report:
            self._child_reports.append(ready.report)

    def subtree_ready_message(self) -> SubtreeReadyMessage:
        """Combine this rank's final report with those of its child ranks; return the message that reports to the parent
        rank that this rank and all ranks below it are ready.
        """
        self.combined_report = self.combine_reports(self._child_reports)
        self._child_reports.clear()
        return SubtreeReadyMessage(self.combined_report)
