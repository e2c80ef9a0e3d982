"""Who decides at the root what happens between phases."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from pcopy.engine.task import Spawn


class Director(Protocol):
    """Decides at the root what happens between phases. ``totals`` are exact: nothing runs while it is asked."""

    def next_phase(self, phase: int, totals: tuple[int, ...]) -> int | None:
        """The phase after ``phase``, a higher number, or None when the job is over."""

    def first_tasks(self, phase: int) -> Iterable[Spawn]:
        """What the root puts in its queue as ``phase`` begins."""

    def status(self, totals: tuple[int, ...], halted: str | None) -> int:
        """The exit status of all ranks; ``halted`` is the reason of an early stop."""
