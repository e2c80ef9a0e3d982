"""Upward half of the barrier at the end of a job: which child ranks are ready, and the final reports of the ranks.

Each rank combines its own final report with those of its subtree and sends the result to its parent. Rank 0 so receives
the reports of all ranks. The function that combines the reports decides on the size of these messages. The engine does
not interpret the reports.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from pcopy.engine.messages import SubtreeReady

CombineReports = Callable[[Sequence[bytes]], bytes]
"""Function that returns a rank's final report, combined with the given reports of its child ranks.

It is called when all tasks of the rank's subtree are over.
"""


class UpwardBarrier:
    """One rank's part in the upward half of the barrier."""

    def __init__(self, children: Iterable[int]) -> None:
        self.awaited_children = set(children)
        """Child ranks whose Ready message has not arrived."""
        self.combine_reports: CombineReports = lambda below: b""
        self.combined_report = b""
        """The combined final report of this rank's subtree; on rank 0, of all ranks."""
        self._child_reports: list[bytes] = []

    def receive_ready(self, child: int, ready: SubtreeReady) -> None:
        """Record the Ready message of ``child``."""
        self.awaited_children.discard(child)
        if ready.report:
            self._child_reports.append(ready.report)

    def ready_message(self) -> SubtreeReady:
        """Combine the final reports and return the Ready message of this subtree."""
        self.combined_report = self.combine_reports(self._child_reports)
        self._child_reports.clear()
        return SubtreeReady(self.combined_report)
