"""Control of one rank: limits, the set of active ranks, and pauses, as the user wants them at the moment.

Rank 0 knows the user's wishes, from the job's options and from ``pcopy --control`` (``pcopy.launch.control``). Its
orders distribute them to all ranks. ``Steersman`` implements ``pcopy.engine.steering.Steering``.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from math import inf

from pcopy.engine.steering import Duty, Orders, Reported
from pcopy.fsio.throttle import Throttle
from pcopy.launch.limits import Allowed, Divided, Used
from pcopy.named import NamedTuple

INTERVAL = 0.1
"""Seconds between two queries while there is a limit. A rank that becomes idle keeps its share for that long."""


class Wanted(NamedTuple):
    """The limits that the user wants: bytes and operations per second (0: none), number of active ranks (0: all),
    and a pause.
    """

    bwlimit: int = 0
    oplimit: int = 0
    active: int = 0
    paused: bool = False


class Steersman:
    """Applies the user's limits to one rank, and on rank 0 orders them for all."""

    def __init__(
        self, turn: int, ranks: int, throttle: Throttle, wanted: Wanted, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """Start with the limits ``wanted``.

        ``turn`` is the position of this rank in the order in which ranks are activated, of ``ranks``. ``clock`` returns
        seconds.
        """
        self.duty = Duty.ALL
        self.interval = inf
        self.wanted = wanted
        """On rank 0: the limits that the next query orders for all ranks."""
        self.obeyed = Wanted()
        """The limits that apply to this rank."""
        self._turn = turn
        self._throttle = throttle
        self._clock = clock
        self._divided = Divided(ranks), Divided(ranks)
        self._allowed = Allowed(ranks), Allowed(ranks)
        self._is_on = False
        share = tuple(limit / ranks if limit else inf for limit in wanted[:2])
        self.obey((*wanted, *share))

    def orders(self) -> Orders:
        """Return the orders for all ranks; on rank 0."""
        for divided, limit in zip(self._divided, self.wanted[:2], strict=True):
            divided.set(limit)
        return (*self.wanted, *(divided.share for divided in self._divided))

    def obey(self, orders: Orders) -> None:
        """Apply the orders of rank 0."""
        *wanted, byte_share, operation_share = orders
        self.obeyed = now = Wanted(*wanted)
        self.duty = Duty.NOTES if now.paused else Duty.ADDRESSED if 0 < now.active <= self._turn else Duty.ALL
        self.interval = INTERVAL if now.bwlimit or now.oplimit else inf
        was_on, self._is_on = self._is_on, bool(now.bwlimit or now.oplimit or now.paused)
        if self._is_on or was_on:
            bytes_, operations = self._allowed
            byte_rate, operation_rate = (
                bytes_.rate(now.bwlimit, byte_share),
                operations.rate(now.oplimit, operation_share),
            )
            self._throttle.allow(byte_rate, operation_rate, held=now.paused)

    def report(self) -> Reported:
        """Return what this rank has used, for rank 0."""
        found: list[float] = []
        now = self._clock()
        for bucket, allowed in zip((self._throttle.bytes, self._throttle.operations), self._allowed, strict=True):
            found += allowed.report(bucket.paid(now), now, hungry=bucket.has_waited)
            bucket.has_waited = False
        return tuple(found)

    def heard(self, reported: Sequence[float]) -> None:
        """Adapt the shares to the summed reports of all ranks; on rank 0."""
        now, width = self._clock(), len(Used._fields)
        for divided, sums in zip(self._divided, (reported[:width], reported[width:]), strict=True):
            divided.heard(Used(*sums), now)
