"""Tickets of a kernel that has no threads: ``poll`` does a few rows at a time, in the thread that asks.

So a rank looks up from its work as often as it does between slices.
"""

from __future__ import annotations

from typing import Any, Generic, Protocol, TypeVar, cast

from pcopy.fsio.directories import Pins
from pcopy.fsio.kernel.batches import cancelled
from pcopy.fsio.kernel.columns import Verdicts

Result = TypeVar("Result")


class HasVerdicts(Protocol):
    """What comes back of a batch of rows."""

    @property
    def verdicts(self) -> Verdicts: ...


class Work(Protocol):
    """The rows of one batch."""

    @property
    def result(self) -> HasVerdicts:
        """It fills up while they run."""

    def run(self, start: int, end: int) -> None:
        """Those from ``start`` up to ``end``; each gets its verdict."""


class DoneTicket(Generic[Result]):
    """What was done at once."""

    is_done = True
    is_cut_short = False

    def __init__(self, result: Result) -> None:
        self.result = result

    def cancel(self) -> None:
        """It is too late."""


class RowTicket(Generic[Result]):
    """Rows that are done ``step`` at a time."""

    def __init__(self, work: Work, step: int, descriptors: tuple[int, ...], pins: Pins) -> None:
        self.is_done = False
        self.is_cut_short = False
        self._work = work
        self._verdicts = work.result.verdicts
        self._step = step
        self._next = 0
        self._descriptors = descriptors
        self._pins = pins
        for descriptor in descriptors:
            pins.pin(descriptor)

    @property
    def result(self) -> Result:
        result: Any = self._work.result
        return cast(Result, result)

    def advance(self) -> None:
        """A few rows more. What is raised here is no row's; the ticket is cancelled then."""
        rows = len(self._verdicts)
        start, self._next = self._next, min(self._next + self._step, rows)
        try:
            self._work.run(start, self._next)
        except BaseException:
            self.cancel()
            raise
        if self._next == rows:
            self._end()

    def cancel(self) -> None:
        if not self.is_done:
            self.is_cut_short = True
            cancelled(self._verdicts)
            self._end()

    def _end(self) -> None:
        self.is_done = True
        for descriptor in self._descriptors:
            self._pins.unpin(descriptor)
