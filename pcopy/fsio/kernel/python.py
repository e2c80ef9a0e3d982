"""The Python backend: each ``poll`` processes a few rows of the oldest batch, in the calling thread.

The number of rows per ``poll`` is small, so that a rank reacts to messages as often as between two slices of a task.
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
"""Number of files that one ``poll`` copies, reads, changes or removes."""

NAMES_AT_ONCE = 32
"""Number of names that one ``poll`` reads the status of, or compares."""

Result = TypeVar("Result")


class Work(Protocol):
    """The code that processes the rows of one batch."""

    @property
    def result(self) -> Judged:
        """The result of the batch, which ``run`` fills in."""

    @property
    def is_full(self) -> bool:
        """True if the target has no space left, so that all further rows would fail."""

    def run(self, start: int, end: int) -> None:
        """Process the rows from ``start`` up to, but not including, ``end``, and set the verdict of each."""


class DoneTicket(Generic[Result]):
    """The ticket of a batch that was carried out during ``submit``."""

    is_done = True
    is_cut_short = False

    def __init__(self, result: Result) -> None:
        self.result = result

    def cancel(self) -> None:
        """Do nothing: all rows have been processed."""


class RowTicket(Generic[Result]):
    """The ticket of a batch that is processed ``step`` rows at a time."""

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
        """Process the next ``step`` rows.

        An exception here does not belong to a row: the ticket is cancelled, and the exception is raised to the caller.
        """
        rows = len(self._verdicts)
        start, self._next = self._next, min(self._next + self._step, rows)
        try:
            self._work.run(start, self._next)
        except BaseException:  # not an error of a row; for example, no memory
            self.cancel()
            raise
        if self._work.is_full and Code.PENDING in self._verdicts.codes:
            self.cancel()
        elif self._next == rows:
            self._end()

    def cancel(self) -> None:
        """Give all rows that have not been started the code ``CANCELLED``."""
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
    """The Python backend, an implementation of ``pcopy.fsio.kernel.interface.Kernel`` with Python's own system calls.

    It has no threads: ``poll`` processes some rows of the oldest ticket. ``Decide`` and ``SyncDirectories`` are carried
    out during ``submit``.
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
        """Return None: this backend has no sums over columns."""

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
        """Return the code that processes the rows of a batch, and the number of rows per ``poll``."""
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
                from pcopy.fsio.kernel.mend_rows import mending  # imported here because copies do not need it

                work, step = mending(batch), FILES_AT_ONCE
            case Compare():
                work, step = Comparing(settings, batch), NAMES_AT_ONCE
            case Make():
                from pcopy.fsio.kernel.make_rows import Making  # imported here because copies do not need it

                work, step = Making(settings, batch), FILES_AT_ONCE
            case Trial():
                from pcopy.fsio.kernel.trial_rows import Trying  # imported here because copies do not need it

                work, step = Trying(batch), NAMES_AT_ONCE
            case _:
                raise TypeError(f"{type(batch).__name__}: the Python backend does not support this batch")
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
