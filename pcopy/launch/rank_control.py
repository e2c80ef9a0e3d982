"""Control of one rank: limits, the set of active ranks, and pauses, as the user wants them at the moment.

Rank 0 knows the user's wishes, from the job's options and from ``pcopy --control`` (``pcopy.launch.control``). Its
orders distribute them to all ranks. ``RankLimits`` implements ``pcopy.engine.steering.Steering``.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from math import inf

from pcopy.engine.steering import Duty, Orders, ReportedNumbers
from pcopy.fast_named_tuple import NamedTuple
from pcopy.fsio.throttle import Throttle
from pcopy.launch.limits import DividedLimit, RankAllowance, Usage

QUERY_INTERVAL = 0.1
"""Seconds between two queries while there is a limit. A rank that becomes idle keeps its share for that long."""


class UserLimits(NamedTuple):
    """The limits that the user wants: bytes and operations per second (0: none), number of active ranks (0: all),
    and a pause.
    """

    bwlimit: int = 0
    oplimit: int = 0
    active: int = 0
    paused: bool = False


class RankLimits:
    """Applies the user's limits to one rank, and on rank 0 orders them for all."""

    def __init__(
        self, turn: int, ranks: int, throttle: Throttle, wanted: UserLimits, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """Start with the limits ``wanted``.

        ``turn`` is the position of this rank in the order in which ranks are activated, of ``ranks``. ``clock`` returns
        seconds.
        """
        self.duty = Duty.ALL
        self.query_interval = inf
        self.requested = wanted
        """On rank 0: the limits that the next query orders for all ranks."""
        self.current = UserLimits()
        """The limits that apply to this rank."""
        self._activation_order = turn
        self._throttle = throttle
        self._clock = clock
        self._divided = DividedLimit(ranks), DividedLimit(ranks)
        self._allowed = RankAllowance(ranks), RankAllowance(ranks)
        self._is_throttled = False
        share = tuple(limit / ranks if limit else inf for limit in wanted[:2])
        self.apply_orders((*wanted, *share))

    def orders(self) -> Orders:
        """Return the orders for all ranks; on rank 0."""
        for divided, limit in zip(self._divided, self.requested[:2], strict=True):
            divided.set_limit(limit)
        return (*self.requested, *(divided.share for divided in self._divided))

    def apply_orders(self, orders: Orders) -> None:
        """Apply the orders of rank 0."""
        *wanted, byte_share, operation_share = orders
        self.current = now = UserLimits(*wanted)
        self.duty = (
            Duty.NOTES if now.paused else Duty.ADDRESSED if 0 < now.active <= self._activation_order else Duty.ALL
        )
        self.query_interval = QUERY_INTERVAL if now.bwlimit or now.oplimit else inf
        was_on, self._is_throttled = self._is_throttled, bool(now.bwlimit or now.oplimit or now.paused)
        if self._is_throttled or was_on:
            bytes_, operations = self._allowed
            byte_rate, operation_rate = (
                bytes_.rate(now.bwlimit, byte_share),
                operations.rate(now.oplimit, operation_share),
            )
            self._throttle.set_limits(byte_rate, operation_rate, is_paused=now.paused)

    def numbers_to_report(self) -> ReportedNumbers:
        """Return what this rank has used, for rank 0."""
        found: list[float] = []
        now = self._clock()
        for bucket, allowed in zip((self._throttle.bytes, self._throttle.operations), self._allowed, strict=True):
            found += allowed.report(bucket.paid_tokens(now), now, has_waited=bucket.has_waited)
            bucket.has_waited = False
        return tuple(found)

    def receive_sums(self, reported: Sequence[float]) -> None:
        """Adapt the shares to the summed reports of all ranks; on rank 0."""
        now, width = self._clock(), len(Usage._fields)
        for divided, sums in zip(self._divided, (reported[:width], reported[width:]), strict=True):
            divided.receive_usage(Usage(*sums), now)
