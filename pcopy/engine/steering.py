"""What steers the ranks of a job while it runs: orders of the root go down with its queries for counters, and what
ranks report goes up with their answers.

The engine reads neither: it carries the one, and adds up the other. It only asks which tasks its rank may begin now.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from math import inf
from typing import Any, Protocol

Orders = tuple[Any, ...]
"""Primitives, for all ranks alike."""

Reported = tuple[float, ...]
"""Numbers that are added up over ranks, as many of each rank."""


class Duty(Enum):
    """What a rank may begin. It only steals if that is everything, and others may take all that it can't begin."""

    ALL = "everything"
    ADDRESSED = "what is addressed to it"
    NOTES = "notes"


class Steering(Protocol):
    """One rank's part. None of the methods waits for anything."""

    duty: Duty
    interval: float
    """Seconds after which the root asks again at the latest (``Limits.progress_interval``)."""

    def orders(self) -> Orders:
        """At the root: what is to be told to all ranks now."""

    def obey(self, orders: Orders) -> None:
        """On every rank: these are the orders from now on."""

    def report(self) -> Reported:
        """What this rank has to say since the job began; it is asked once for each query."""

    def heard(self, reported: Sequence[float]) -> None:
        """At the root: the sums over all ranks, as far as they have answered."""


class Unsteered:
    """Ranks that nobody steers."""

    duty = Duty.ALL
    interval = inf

    def orders(self) -> Orders:
        return ()

    def obey(self, orders: Orders) -> None:
        pass

    def report(self) -> Reported:
        return ()

    def heard(self, reported: Sequence[float]) -> None:
        pass
