"""Work stealing, the thief's side: which rank to ask for tasks, and when.

An idle rank asks one random victim at a time. A victim that has no tasks to give delays its reply until it has some, or
until the time given in the request (the patience) is over. Then the thief asks another victim with twice the patience,
so that idle ranks sleep. The maximum patience grows with the time for which the rank has been idle, because requests
take processor time from ranks on the same cores.

Blumofe and Leiserson, "Scheduling multithreaded computations by work stealing" (1999), show that random victims
suffice.
"""

from __future__ import annotations

from random import Random

from pcopy.engine.limits import Limits
from pcopy.engine.messages import Reply, Request
from pcopy.engine.steering import Duty, Steering

_IDLE_SHARE = 1 / 8
"""Maximum patience as a share of the rank's idle time, if that is more than ``Limits.steal_backoff_cap``."""

LONGEST_PAUSE = 0.25
"""Upper bound of the patience in seconds."""


class Thief:
    """The requests of one rank for tasks; at most one of them is unanswered at any time."""

    def __init__(self, rank: int, size: int, random: Random, limits: Limits, steering: Steering) -> None:
        self._rank = rank
        self._size = size
        self._random = random
        self._limits = limits
        self._steering = steering
        self._sequence = 0
        self._delay = limits.steal_backoff
        self._idle_since = 0.0
        self._patient_until = 0.0
        self.waiting = False
        """True while a request is unanswered."""
        self.ask_at = 0.0
        """Earliest time in seconds for the next request."""

    def start_afresh(self, now: float) -> None:
        """Reset patience and idle time, because a phase has begun or tasks have arrived."""
        self._delay = self._limits.steal_backoff
        self._idle_since = self.ask_at = now

    def idle_from(self, now: float) -> None:
        """Record that this rank had work until ``now``, whatever the origin of the work."""
        self._idle_since = now
        self._delay = min(self._delay, self._limits.steal_backoff_cap)

    @property
    def may_ask(self) -> bool:
        """True if this rank could send a request, now or later.

        That is so if no request is unanswered, there are other ranks, and this rank may begin any task.
        """
        return not (self.waiting or self._size == 1 or self._steering.duty is not Duty.ALL)

    def ask(self, phase: int, now: float) -> tuple[int, Request] | None:
        """Return the victim and the request to send to it now; None if no request is due or allowed."""
        if now < self.ask_at or not self.may_ask:
            return None
        victim = self._random.randrange(self._size - 1)
        victim += victim >= self._rank
        self._sequence += 1
        self.waiting = True
        patience = self._delay * (0.5 + self._random.random() / 2)
        self._patient_until = now + patience
        return victim, Request(phase, self._sequence, patience)

    def answered(self, reply: Reply, now: float) -> bool:
        """Process a reply; return False if it is out of date, that is, it does not answer the latest request."""
        if not self.waiting or reply.sequence != self._sequence:
            return False
        self.waiting = False
        if reply.tasks:
            self.start_afresh(now)
        else:
            self.ask_at = max(now, self._patient_until)
            share = min((now - self._idle_since) * _IDLE_SHARE, LONGEST_PAUSE)
            self._delay = min(2 * self._delay, max(self._limits.steal_backoff_cap, share))
        return True
