"""Tickets (operations that a task waits for) that are completed in virtual time."""

from __future__ import annotations

import math
from collections.abc import Callable


class SimulatedTicket:
    """An operation that is done at the virtual time ``end`` (seconds). If it is cancelled, only the part that has begun
    is completed, which takes at most ``rest`` seconds.
    """

    def __init__(self, clock: Callable[[], float], end: float, rest: float) -> None:
        self._clock = clock
        self._rest = rest
        self.end = end
        self.was_cut_short = False
        """True if it was cancelled before all of it had begun."""

    @property
    def is_done(self) -> bool:
        """True if the operation is done at the current virtual time."""
        return self._clock() >= self.end

    def cancel(self) -> None:
        """End the operation within ``rest`` seconds from now. If it is done or cancelled already, do nothing."""
        if self._clock() + self._rest < self.end:
            self.end = self._clock() + self._rest
            self.was_cut_short = True
        self._rest = math.inf


class SimulatedWake:
    """The tickets of one rank. It implements ``pcopy.engine.ticket.WakeDescriptor`` for a simulated transport."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._tickets: list[SimulatedTicket] = []

    def submit(self, seconds: float, rest: float = 0.0) -> SimulatedTicket:
        """Return a ticket that is done after ``seconds``, or ``rest`` seconds after it is cancelled."""
        ticket = SimulatedTicket(self._clock, self._clock() + seconds, rest)
        self._tickets.append(ticket)
        return ticket

    @property
    def due(self) -> float:
        """The time at which the next ticket is done, in seconds; infinite if there is none."""
        return min((ticket.end for ticket in self._tickets), default=math.inf)

    def fileno(self) -> int:
        """Return -1: there is no descriptor."""
        return -1

    def clear(self) -> None:
        """Forget the tickets that are done: they no longer end the sleep of the rank."""
        self._tickets = [ticket for ticket in self._tickets if not ticket.is_done]
