"""The kernel in plain Python: batches are done a few rows at a time, one after the other, when it is polled.

So a rank looks up from its work as often as it does between slices.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Generic, Protocol, TypeVar, cast

from pcopy.fsio.directories import Pins, nothing
from pcopy.fsio.kernel.batches import (
    Batch,
    Compare,
    Copy,
    Judged,
    List,
    Make,
    Mend,
    MendPlain,
    Read,
    Remove,
    Stat,
    SyncDirectories,
    Trial,
)
from pcopy.fsio.kernel.columns import Code
from pcopy.fsio.kernel.copy_rows import Copying
from pcopy.fsio.kernel.decide import Decide, Decided, decide_rows
from pcopy.fsio.kernel.interface import Pool, Settings, Ticket, Wake
from pcopy.fsio.kernel.item_rows import Comparing, Listing, Reading, Removing, Stating, sync_directories

FILES_AT_ONCE = 8
"""Files that are copied, read or removed in one ``poll``."""

NAMES_AT_ONCE = 32
"""Names that are looked at in one ``poll``."""

Result = TypeVar("Result")


class Work(Protocol):
    """The rows of one batch."""

    @property
    def result(self) -> Judged:
        """It fills up while they run."""

    @property
    def is_full(self) -> bool:
        """Is there no room for the other rows, so that one after the other would fail?"""

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
        if self._work.is_full and Code.PENDING in self._verdicts.codes:
            self.cancel()
        elif self._next == rows:
            self._end()

    def cancel(self) -> None:
        """Rows that nobody has begun are not begun any more."""
        if not self.is_done:
            self.is_cut_short = True
            codes = self._verdicts.codes
            codes[:] = bytes(code or Code.CANCELLED for code in codes)
            self._end()

    def _end(self) -> None:
        self.is_done = True
        for descriptor in self._descriptors:
            self._pins.unpin(descriptor)


class PythonKernel:
    """Fills ``pcopy.fsio.kernel.interface.Kernel`` with Python's own system calls.

    It has no threads: ``poll`` does some rows of the oldest ticket, and a batch that opens nothing is done at once.
    """

    name = "python"
    enters = False
    wake: Wake | None = None
    pool: Pool | None = None
    works_here = True

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._digest_size = len(settings.digest(b"")) if settings.digest is not None else 0
        self.pins = Pins()
        self._waiting: list[RowTicket[object]] = []

    open_directory = staticmethod(nothing)

    def tally(self, bounds: Sequence[int]) -> None:
        """It has none."""

    def submit(self, batch: Batch[Result]) -> Ticket[Result]:
        if isinstance(batch, Decide):
            decided: Any = Decided(decide_rows(batch.policy, batch.sources, batch.targets))
            return DoneTicket(decided)
        if isinstance(batch, SyncDirectories):
            synced: Any = sync_directories(batch)
            return DoneTicket(synced)
        work, step = self._work(batch)
        ticket: RowTicket[Any] = RowTicket(work, step, batch.descriptors, self.pins)
        self._waiting.append(ticket)
        return ticket

    def _work(self, batch: Batch[Any]) -> tuple[Work, int]:
        """What does the rows, and how many of them in one poll."""
        settings, size = self._settings, self._digest_size
        work: Work
        match batch:
            case List():
                work, step = Listing(batch), 1
            case Stat():
                work, step = Stating(batch), NAMES_AT_ONCE
            case Copy():
                work, step = Copying(settings, batch, size), FILES_AT_ONCE
            case Read():
                work, step = Reading(settings, batch, size), FILES_AT_ONCE
            case Remove():
                work, step = Removing(batch), FILES_AT_ONCE
            case Mend() | MendPlain():
                from pcopy.fsio.kernel.mend_rows import mending  # no copy needs it

                work, step = mending(batch), FILES_AT_ONCE
            case Compare():
                work, step = Comparing(settings, batch), NAMES_AT_ONCE
            case Make():
                from pcopy.fsio.kernel.make_rows import Making  # no copy needs it

                work, step = Making(settings, batch), FILES_AT_ONCE
            case Trial():
                from pcopy.fsio.kernel.trial_rows import Trying  # no copy needs it

                work, step = Trying(batch), NAMES_AT_ONCE
            case _:
                raise TypeError(f"{type(batch).__name__} is no batch of this kernel")
        return work, step

    def poll(self) -> list[Ticket[Any]]:
        waiting = self._waiting
        try:
            for ticket in waiting:
                if not ticket.is_done:
                    ticket.advance()
                    break
        finally:
            done: list[Ticket[Any]] = [ticket for ticket in waiting if ticket.is_done]
            waiting[:] = [ticket for ticket in waiting if not ticket.is_done]
        return done

    def close(self) -> None:
        while self._waiting:
            self._waiting.pop().cancel()
