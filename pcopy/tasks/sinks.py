"""Where a job tells what happens. Engine and tasks never print: rank 0 hands everything to these."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from pcopy.tasks.job import Failure, Totals


class Sink(Protocol):
    """Receives progress and failures on rank 0, in the thread that runs tasks; it must be quick."""

    def progress(self, phase: str, totals: Totals, silent: Sequence[int]) -> None:
        """The sums over all ranks as last known, ``phase`` by its name; ``silent`` ranks have not answered lately."""

    def failures(self, failures: Sequence[Failure]) -> None:
        """Items that failed, in the order in which rank 0 learned of them."""

    def notice(self, text: str) -> None:
        """Something worth a line that is no failure."""
