"""The kernel in plain Python: batches are done a few rows at a time, one after the other, when it is polled."""

from __future__ import annotations

from typing import Any, TypeVar

from pcopy.fsio.directories import Pins
from pcopy.fsio.kernel.batches import Batch, Copy, Decide, Decided, Dress, List, Read, Remove, Stat
from pcopy.fsio.kernel.copy_rows import Copying
from pcopy.fsio.kernel.decide import decide_rows
from pcopy.fsio.kernel.interface import Kernel, Settings, Ticket, Wake
from pcopy.fsio.kernel.item_rows import Dressing, Listing, Reading, Removing, Stating
from pcopy.fsio.kernel.tickets import DoneTicket, RowTicket, Work


def make_kernel(settings: Settings) -> Kernel:
    """The one kernel of a process."""
    return PythonKernel(settings)


FILES_AT_ONCE = 8
"""Files that are copied, read, dressed or removed in one ``poll``."""

NAMES_AT_ONCE = 32
"""Names that are looked at in one ``poll``."""

Result = TypeVar("Result")


class PythonKernel:
    """Fills ``pcopy.fsio.kernel.interface.Kernel`` with Python's own system calls.

    It has no threads: ``poll`` does some rows of the oldest ticket, and a batch that opens nothing is done at once.
    """

    wake: Wake | None = None

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._digest_size = len(settings.digest(b"")) if settings.digest is not None else 0
        self.pins = Pins()
        self._waiting: list[RowTicket[object]] = []

    def submit(self, batch: Batch[Result]) -> Ticket[Result]:
        if isinstance(batch, Decide):
            decided: Any = Decided(decide_rows(batch.policy, batch.sources, batch.targets))
            return DoneTicket(decided)
        work, step = self._work(batch)
        ticket: RowTicket[Any] = RowTicket(work, step, batch.descriptors, self.pins)
        self._waiting.append(ticket)
        return ticket

    def _work(self, batch: Batch[Any]) -> tuple[Work, int]:
        """What does the rows, and how many of them in one poll."""
        settings, size = self._settings, self._digest_size
        match batch:
            case List():
                return Listing(batch), 1
            case Stat():
                return Stating(batch), NAMES_AT_ONCE
            case Copy():
                return Copying(settings, batch, size), FILES_AT_ONCE
            case Read():
                return Reading(settings, batch, size), FILES_AT_ONCE
            case Dress():
                return Dressing(batch), FILES_AT_ONCE
            case Remove():
                return Removing(batch), FILES_AT_ONCE
        raise TypeError(f"{type(batch).__name__} is no batch of this kernel")

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

    def cancel(self, ticket: Ticket[Any]) -> None:
        ticket.cancel()

    def close(self) -> None:
        while self._waiting:
            self._waiting.pop().cancel()
