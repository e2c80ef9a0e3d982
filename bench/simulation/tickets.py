"""Tickets that become done in virtual time."""

from __future__ import annotations

import math
from collections.abc import Callable


class SimulatedTicket:
    """Done at the time ``end`` (seconds); if it is cancelled, as soon as what has begun is over."""

    def __init__(self, clock: Callable[[], float], end: float, rest: float) -> None:
        self._clock = clock
        self._rest = rest
        self.end = end
        self.is_cut_short = False
        """Has it been cancelled while something had not begun?"""

    @property
    def is_done(self) -> bool:
        return self._clock() >= self.end

    def cancel(self) -> None:
        """It ends up to ``rest`` seconds from now. To cancel again, or what is done, does nothing."""
        if self._clock() + self._rest < self.end:
            self.end = self._clock() + self._rest
            self.is_cut_short = True
        self._rest = math.inf


class SimulatedWake:
    """One rank's tickets; fills ``pcopy.engine.ticket.Wake`` for a simulated transport."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._tickets: list[SimulatedTicket] = []

    def submit(self, seconds: float, rest: float = 0.0) -> SimulatedTicket:
        """Done after ``seconds``, or ``rest`` seconds after it is cancelled."""
        ticket = SimulatedTicket(self._clock, self._clock() + seconds, rest)
        self._tickets.append(ticket)
        return ticket

    @property
    def due(self) -> float:
        """When it is readable, in seconds; infinite if it is not going to be."""
        return min((ticket.end for ticket in self._tickets), default=math.inf)

    def fileno(self) -> int:
        """It has no descriptor."""
        return -1

    def clear(self) -> None:
        self._tickets = [ticket for ticket in self._tickets if not ticket.is_done]
