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
from pcopy.engine.messages import TaskReply, TaskRequest
from pcopy.engine.steering import Duty, Steering

_PATIENCE_SHARE = 1 / 8
"""Maximum patience as a share of the rank's idle time, if that is more than ``Limits.longest_steal_wait``."""

LONGEST_PATIENCE = 0.25
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
        self._patience = limits.first_steal_wait
        self._idle_since = 0.0
        self._request_deadline = 0.0
        self.is_request_pending = False
        """True while a request is unanswered."""
        self.next_request_time = 0.0
        """Earliest time in seconds for the next request."""

    def reset_patience(self, now: float) -> None:
        """Reset patience and idle time, because a phase has begun or tasks have arrived."""
        self._patience = self._limits.first_steal_wait
        self._idle_since = self.next_request_time = now

    def record_busy_until(self, now: float) -> None:
        """Record that this rank had work until ``now``, whatever the origin of the work."""
        self._idle_since = now
        self._patience = min(self._patience, self._limits.longest_steal_wait)

    @property
    def can_request(self) -> bool:
        """True if this rank could send a request, now or later.

        That is so if no request is unanswered, there are other ranks, and this rank may begin any task.
        """
        return not (self.is_request_pending or self._size == 1 or self._steering.duty is not Duty.ALL)

    def next_request(self, phase: int, now: float) -> tuple[int, TaskRequest] | None:
        """Return the victim and the request to send to it now; None if no request is due or allowed."""
        if now < self.next_request_time or not self.can_request:
            return None
        victim = self._random.randrange(self._size - 1)
        victim += victim >= self._rank
        self._sequence += 1
        self.is_request_pending = True
        patience = self._patience * (0.5 + self._random.random() / 2)
        self._request_deadline = now + patience
        return victim, TaskRequest(phase, self._sequence, patience)

    def receive_reply(self, reply: TaskReply, now: float) -> bool:
        """Process a reply; return False if it is out of date, that is, it does not answer the latest request."""
        if not self.is_request_pending or reply.sequence != self._sequence:
            return False
        self.is_request_pending = False
        if reply.tasks:
            self.reset_patience(now)
        else:
            self.next_request_time = max(now, self._request_deadline)
            share = min((now - self._idle_since) * _PATIENCE_SHARE, LONGEST_PATIENCE)
            self._patience = min(2 * self._patience, max(self._limits.longest_steal_wait, share))
        return True
