"""Work stealing, the thief's side: whom to ask, and when.

An idle rank asks one random victim at a time, and waits there for a while: a victim that has nothing to give answers
once it has, or once that time is over. Then another one is asked, and the time is longer, so that idle ranks sleep. The
longest one grows with the time without work: asking takes time from ranks that share its cores.
(Blumofe and Leiserson, "Scheduling multithreaded computations by work stealing", 1999: random victims suffice.)
"""

from __future__ import annotations

from random import Random

from pcopy.engine.limits import Limits
from pcopy.engine.messages import Reply, Request
from pcopy.engine.steering import Duty, Steering

_IDLE_SHARE = 1 / 8
"""A pause's share of the time for which the rank has been idle, where that is above ``Limits.steal_backoff_cap``."""

LONGEST_PAUSE = 0.25
"""Seconds."""


class Thief:
    """At most one request is outstanding; ``ask_at`` is the earliest time, in seconds, for the next one."""

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
        self.ask_at = 0.0

    def start_afresh(self, now: float) -> None:
        """Whatever was learned about who is idle is void: a phase begins, or tasks have come."""
        self._delay = self._limits.steal_backoff
        self._idle_since = self.ask_at = now

    def idle_from(self, now: float) -> None:
        """This rank had something to do until now, from wherever it came."""
        self._idle_since = now
        self._delay = min(self._delay, self._limits.steal_backoff_cap)

    @property
    def may_ask(self) -> bool:
        """At some time, if no request is outstanding: is there anybody, and may this rank begin what it would get?"""
        return not (self.waiting or self._size == 1 or self._steering.duty is not Duty.ALL)

    def ask(self, phase: int, now: float) -> tuple[int, Request] | None:
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
        """Takes note of an answer; False if it is a stale one, to a request long given up."""
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
