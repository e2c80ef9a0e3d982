"""Control of a job's ranks while it runs: orders of rank 0 to all ranks, and numbers that the ranks report.

Orders go down the tree of ranks with the queries for counters. Reported numbers go up with the answers and are added.
The engine interprets neither. It only asks which tasks its rank may begin at the moment.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from math import inf
from typing import Any, Protocol

Orders = tuple[Any, ...]
"""Instructions for all ranks alike: a tuple of primitives."""

ReportedNumbers = tuple[float, ...]
"""Numbers that are added over the ranks. Each rank reports the same number of them."""


class Duty(Enum):
    """The tasks that a rank may begin.

    A rank steals only with ``ALL``. Otherwise other ranks may steal all tasks that it may not begin.
    """

    ALL = "everything"
    ADDRESSED = "what is addressed to it"
    NOTES = "notes"


class Steering(Protocol):
    """Control of one rank. No method blocks."""

    duty: Duty
    """The tasks that this rank may begin now."""
    query_interval: float
    """Maximum time in seconds between two queries of rank 0. If it is longer than ``Limits.progress_interval``, that
    one holds.
    """

    def orders(self) -> Orders:
        """On rank 0: return the orders that are to be sent to all ranks now."""

    def apply_orders(self, orders: Orders) -> None:
        """Apply ``orders`` to this rank. They replace the previous ones."""

    def numbers_to_report(self) -> ReportedNumbers:
        """Return the numbers that this rank reports, counted since the start of the job. Called once per query."""

    def receive_sums(self, reported: Sequence[float]) -> None:
        """On rank 0: process the sums of the reported numbers over all ranks that have answered."""


class NoSteering:
    """Control that changes nothing: every rank may begin all tasks."""

    duty = Duty.ALL
    query_interval = inf

    def orders(self) -> Orders:
        return ()

    def apply_orders(self, orders: Orders) -> None:
        pass

    def numbers_to_report(self) -> ReportedNumbers:
        return ()

    def receive_sums(self, reported: Sequence[float]) -> None:
        pass
