"""Control of one rank while the job runs: the user's limits of bytes and operations per second, the number of active
ranks, and pauses.

Rank 0 knows what the user wants, from the job's options and from ``pcopy --control`` (``pcopy.launch.control``). It
sends these values to all ranks as orders. ``RankLimiter`` implements ``pcopy.engine.steering.RankSteering``.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from math import inf

from pcopy.engine.steering import Orders, RankTaskRestriction, ReportedNumbers
from pcopy.fast_named_tuple import NamedTuple
from pcopy.fsio.throttle import Throttle
from pcopy.launch.limits import DividedRateLimit, LimitUsage, RankRateAllowance

LIMIT_QUERY_INTERVAL = 0.1
"""While the user limits bytes or operations per second: seconds between two queries by which rank 0 learns what each
rank has used. A rank that becomes idle keeps its share of the limit for that long.
"""


class UserLimits(NamedTuple):
    """The limits that the user has set for the whole job, by options or later by ``pcopy --control``.

    Fields:
    - ``bwlimit``, ``oplimit``: bytes and operations per second; 0: no limit.
    - ``active``: number of ranks that may do work that any rank may do; 0: all.
    - ``paused``: True while no rank may begin work.
    """

    bwlimit: int = 0
    oplimit: int = 0
    active: int = 0
    paused: bool = False


class RankLimiter:
    """Applies the user's limits (bytes and operations per second, number of active ranks, pause) to one rank. On rank 0
    it also returns the orders that bring them to all ranks. Implements ``pcopy.engine.steering.RankSteering``.
    """

    def __init__(
        self, turn: int, ranks: int, throttle: Throttle, wanted: UserLimits, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """Start with the limits ``wanted``.

        Args:
            turn: position of this rank, from 0, in the order in which ranks are active if the user limits their number.
            ranks: number of ranks.
            throttle: slows down this rank's operations.
            wanted: the user's limits.
            clock: returns the time in seconds.
        """
        self.allowed_tasks = RankTaskRestriction.ALL
        self.query_interval = inf
        self.requested = wanted
        """On rank 0: the user's limits, which the next query of rank 0 brings to all ranks. The caller changes them
        when the user does.
        """
        self.current = UserLimits()
        """The user's limits that apply to this rank now: those that rank 0 has sent last."""
        self._activation_order = turn
        self._throttle = throttle
        self._clock = clock
        self._divided = DividedRateLimit(ranks), DividedRateLimit(ranks)
        self._allowed = RankRateAllowance(ranks), RankRateAllowance(ranks)
        self._is_throttled = False
        share = tuple(limit / ranks if limit else inf for limit in wanted[:2])
        self.apply_orders_of_rank_0((*wanted, *share))

    def orders_for_all_ranks(self) -> Orders:
        """On rank 0: return the orders for all ranks. They are the user's limits, and the bytes and the operations per
        second that a rank may use if its limit has made it wait.
        """
        for divided, limit in zip(self._divided, self.requested[:2], strict=True):
            divided.set_limit(limit)
        return (*self.requested, *(divided.share for divided in self._divided))

    def apply_orders_of_rank_0(self, orders: Orders) -> None:
        """Apply the limits in ``orders``, which ``orders()`` has returned on rank 0, to this rank."""
        *wanted, byte_share, operation_share = orders
        self.current = now = UserLimits(*wanted)
        self.allowed_tasks = (
            RankTaskRestriction.NOTES
            if now.paused
            else RankTaskRestriction.ADDRESSED
            if 0 < now.active <= self._activation_order
            else RankTaskRestriction.ALL
        )
        self.query_interval = LIMIT_QUERY_INTERVAL if now.bwlimit or now.oplimit else inf
        was_on, self._is_throttled = self._is_throttled, bool(now.bwlimit or now.oplimit or now.paused)
        if self._is_throttled or was_on:
            bytes_, operations = self._allowed
            byte_rate, operation_rate = (
                bytes_.allowed_rate(now.bwlimit, byte_share),
                operations.allowed_rate(now.oplimit, operation_share),
            )
            self._throttle.set_rate_limits(byte_rate, operation_rate, is_paused=now.paused)

    def numbers_to_report_to_rank_0(self) -> ReportedNumbers:
        """Return what this rank reports to rank 0 about its use of the limits: the fields of ``LimitUsage`` for bytes,
        then those for operations.
        """
        found: list[float] = []
        now = self._clock()
        for bucket, allowed in zip((self._throttle.bytes, self._throttle.operations), self._allowed, strict=True):
            found += allowed.limit_usage_report(bucket.paid_tokens(now), now, has_waited=bucket.has_waited)
            bucket.has_waited = False
        return tuple(found)

    def receive_sums_of_reported_numbers(self, reported: Sequence[float]) -> None:
        """On rank 0: adapt the shares of the limits that ranks may use. ``reported`` are the sums of what
        ``numbers_to_report_to_rank_0`` has returned on all ranks.
        """
        now, width = self._clock(), len(LimitUsage._fields)
        for divided, sums in zip(self._divided, (reported[:width], reported[width:]), strict=True):
            divided.receive_usage(LimitUsage(*sums), now)
