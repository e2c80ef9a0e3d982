"""Upward half of the barrier at the end of a job: which child ranks are ready, and the final reports of the ranks.

Each rank combines its own final report with those of its subtree and sends the result to its parent. Rank 0 so receives
the reports of all ranks. The function that combines the reports decides on the size of these messages. The engine does
not interpret the reports.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from pcopy.engine.messages import Ready

LastWords = Callable[[Sequence[bytes]], bytes]
"""Function that returns a rank's final report, combined with the given reports of its child ranks.

It is called when all tasks of the rank's subtree are over.
"""


class Barrier:
    """One rank's part in the upward half of the barrier."""

    def __init__(self, children: Iterable[int]) -> None:
        self.awaited = set(children)
        """Child ranks whose Ready message has not arrived."""
        self.last_words: LastWords = lambda below: b""
        self.words = b""
        """The combined final report of this rank's subtree; on rank 0, of all ranks."""
        self._below: list[bytes] = []

    def heard(self, child: int, ready: Ready) -> None:
        """Record the Ready message of ``child``."""
        self.awaited.discard(child)
        if ready.words:
            self._below.append(ready.words)

    def ready(self) -> Ready:
        """Combine the final reports and return the Ready message of this subtree."""
        self.words = self.last_words(self._below)
        self._below.clear()
        return Ready(self.words)
