"""Control of a job's ranks while the job runs: orders of rank 0 to all ranks (pause, limits of bytes per second, ...),
and numbers that the ranks report to rank 0.

Orders go down the tree of ranks with rank 0's queries for the counters. Reported numbers go up with the answers, and
each rank adds those of its subtree. The engine interprets neither. It only asks which tasks its rank may begin now.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from math import inf
from typing import Any, Protocol

Orders = tuple[Any, ...]
"""Instructions for the ranks, the same for all: a tuple of primitive values (numbers, strings, tuples)."""

ReportedNumbers = tuple[float, ...]
"""Numbers that a rank reports to rank 0, or their sums over several ranks. Their meaning depends on their position; the
tuples of all ranks have the same length.
"""


class RankTaskRestriction(Enum):
    """Which of its queued tasks a rank may begin. Rank 0 restricts this while the user has paused the job or has
    limited the number of active ranks.

    Values:
    - ALL: all tasks; only with this value the rank requests tasks from other ranks.
    - ADDRESSED: only tasks that no other rank may run.
    - NOTES: only notes: short tasks that bring data to this rank and that no other rank may run.

    Other ranks may take the tasks that this rank may not begin, unless they are addressed to this rank.
    """

    ALL = "everything"
    ADDRESSED = "what is addressed to it"
    NOTES = "notes"


class RankSteering(Protocol):
    """Protocol: control of one rank while the job runs. It carries the orders of rank 0 (such as a pause or a limit of
    bytes per second) to the rank, and numbers of the rank to rank 0. No method blocks.
    """

    allowed_tasks: RankTaskRestriction
    """Which of its queued tasks this rank may begin now."""
    query_interval: float
    """Maximum time in seconds between two queries by which rank 0 asks all ranks for their counters and sends them its
    orders. If ``EngineLimits.progress_interval`` is shorter, that time is used.
    """

    def orders_for_all_ranks(self) -> Orders:
        """On rank 0: return the orders that the next query is to carry to all ranks."""

    def apply_orders_of_rank_0(self, orders: Orders) -> None:
        """Let this rank act on ``orders``, which rank 0 has sent. They replace the previous orders."""

    def numbers_to_report_to_rank_0(self) -> ReportedNumbers:
        """Return the numbers that this rank reports to rank 0, summed since the start of the run. Called once for each
        query of rank 0.
        """

    def receive_sums_of_reported_numbers(self, reported: Sequence[float]) -> None:
        """On rank 0: process ``reported``, the reported numbers summed over all ranks. A rank that has not answered the
        latest query is included with its previous numbers.
        """


class NullRankSteering:
    """Implementation of ``RankSteering`` for a job that is not controlled while it runs: every rank may begin all
    tasks, and reports no numbers.
    """

    allowed_tasks = RankTaskRestriction.ALL
    query_interval = inf

    def orders_for_all_ranks(self) -> Orders:
        return ()

    def apply_orders_of_rank_0(self, orders: Orders) -> None:
        pass

    def numbers_to_report_to_rank_0(self) -> ReportedNumbers:
        return ()

    def receive_sums_of_reported_numbers(self, reported: Sequence[float]) -> None:
        pass
