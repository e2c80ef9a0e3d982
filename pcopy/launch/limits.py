"""Division of a limit of the user (bytes or operations per second of the whole job) between the ranks, so that all
ranks together keep to it, whichever of them have work.

Every rank reports the amount (bytes or operations) that it has used, and whether it had to wait. Rank 0 sends one
number to all ranks, the *share*: the amount per second that a rank may use if it had to wait. Any other rank may use
a little more than it has recently used, so that it never suddenly takes what was given to others. If that is too
little, the rank waits, and gets the share with the next query. So idle ranks give their part to others, and all ranks
that have to wait get the same (max-min fairness).

The share corrects itself: rank 0 adds up what all ranks have used too much or too little since the limit was set, and
changes the share so that this is compensated within ``CORRECTION_SECONDS`` seconds.
"""

from __future__ import annotations

from math import inf

from pcopy.fast_named_tuple import NamedTuple

CORRECTION_SECONDS = 1.0
"""If all ranks together have used more or less than the user's limit, seconds within which they compensate for it."""

MAX_UNUSED_SECONDS = 0.3
"""If the ranks have used less than the user's limit, they may use more later: at most what the limit allows in this
number of seconds.

It is small, so that no burst follows.
"""

MAX_EXCESS_SECONDS = 5.0
"""If the ranks have used more than the user's limit, they use less later: at most by what the limit allows in this
number of seconds.
"""

MAX_RATE_FRACTION, MIN_RATE_FRACTION = 1.25, 0.25
"""Maximum and minimum rate of all ranks together while they compensate for having used too little or too much, as
fractions of the user's limit.
"""

INITIAL_LIMIT_FRACTION = 0.2
"""Fraction of the user's limit that all ranks together may use at first, before they have reported that they need
it.
"""

RATE_GROWTH_WITHOUT_WAIT = 1.25
"""Factor by which a rank that did not have to wait because of its limit may exceed its recent use."""

RATE_GROWTH_AFTER_WAIT = 1.5
"""Factor by which the rate of a rank that had to wait because of its limit grows with each query of rank 0, until rank
0 has certainly received the rank's report of that.
"""

REPORTS_UNTIL_RECEIVED = 4
"""Number of reports in succession, each about a wait of this rank for ``--bwlimit`` or ``--oplimit``, after which rank
0 has certainly received the first one.
"""


class LimitUsage(NamedTuple):
    """Report of one rank to rank 0: what it has used of a limit of the user (bytes or operations per second). Also the
    sums of such reports over several ranks.

    Fields:
    - ``used``: amount (bytes or operations) used since the rank began.
    - ``has_waited``: 1 if the limit has made the rank wait since its last report, else 0; in sums, the number of such
      ranks.
    - ``rate_without_wait``: amount per second that the rank has used since its last report if it did not have to wait,
      else 0.
    """

    used: float = 0.0
    has_waited: float = 0.0
    rate_without_wait: float = 0.0


class DividedRateLimit:
    """A limit of the user (bytes or operations per second) for the whole job. Kept on rank 0, which divides it into
    equal shares for the ranks that need it.
    """

    def __init__(self, ranks: int) -> None:
        self._ranks = ranks
        self.limit = 0
        """The limit of all ranks together, per second; 0: no limit."""
        self.share = inf
        """Amount per second that a rank may use if the limit has made it wait; infinity if there is no limit."""
        self._credit = 0.0
        self._last_usage: tuple[float, float] | None = None  # time of the last report, and the amount used by then

    def set_limit(self, limit: int) -> None:
        """Set the limit of all ranks together, per second (0: no limit). If it changes, each rank gets an equal share
        at first.
        """
        if limit != self.limit:
            self.limit = limit
            self.share = limit / self._ranks if limit else inf
            self._credit, self._last_usage = 0.0, None

    def receive_usage(self, sums: LimitUsage, now: float) -> None:
        """Change the share after the reports of all ranks, whose sums are ``sums``, were received at the time ``now``
        in seconds.
        """
        if not self.limit:
            return
        if self._last_usage is not None:
            then, used = self._last_usage
            self._adapt_share(sums, now - then, sums.used - used)
        self._last_usage = now, sums.used

    def _adapt_share(self, sums: LimitUsage, seconds: float, used: float) -> None:
        """Compute the new share from ``sums``, the reports of all ranks. ``used`` is the amount that all ranks together
        have used in the last ``seconds``.
        """
        limit = self.limit
        credit = self._credit + limit * seconds - used
        most_missed = (
            limit * MAX_UNUSED_SECONDS if sums.has_waited else 0.0
        )  # If no rank had to wait, an unused amount was not needed and may not be used later.
        self._credit = max(-limit * MAX_EXCESS_SECONDS, min(credit, most_missed))
        target = max(
            MIN_RATE_FRACTION * limit, min(limit + self._credit / CORRECTION_SECONDS, MAX_RATE_FRACTION * limit)
        )
        available = max(target - sums.rate_without_wait, target / self._ranks)
        self.share = available / max(1.0, sums.has_waited)


class RankRateAllowance:
    """On each rank: the part of a limit of the user (bytes or operations per second) that the rank may use, and its
    reports to rank 0 about what it has used.
    """

    def __init__(self, ranks: int) -> None:
        self._ranks = ranks
        self._rate = inf
        self._reports_of_waiting = REPORTS_UNTIL_RECEIVED + 1  # number of consecutive reports of having waited
        self._used = 0.0
        self._reported_at: float | None = None
        self._last_report = LimitUsage(has_waited=1)  # Before the first report all ranks are treated alike.

    def allowed_rate(self, limit: int, share: float) -> float:
        """Return the amount per second that this rank may use from now on; infinity if there is no limit.

        Both arguments come from rank 0: ``limit`` is the limit of all ranks together (0: none), and ``share`` is what a
        rank may use that had to wait.
        """
        if not limit:
            self._rate = inf
            return inf
        more = (
            RATE_GROWTH_AFTER_WAIT * self._rate
            if self._last_report.has_waited
            else RATE_GROWTH_WITHOUT_WAIT * self._last_report.rate_without_wait
        )
        allowed = INITIAL_LIMIT_FRACTION * limit / self._ranks + more
        self._rate = share if self._reports_of_waiting > REPORTS_UNTIL_RECEIVED else min(share, allowed)
        return self._rate

    def limit_usage_report(self, used: float, now: float, *, has_waited: bool) -> LimitUsage:
        """Return the report to rank 0 about the use since the last report.

        Args:
            used: amount that this rank has used since it began.
            now: time in seconds.
            has_waited: True if the limit has made the rank wait since the last report.
        """
        seconds = now - self._reported_at if self._reported_at is not None else 0.0
        modest = (used - self._used) / seconds if seconds > 0 and not has_waited else 0.0
        self._used, self._reported_at = used, now
        self._last_report = LimitUsage(used, float(has_waited), modest)
        self._reports_of_waiting = self._reports_of_waiting + 1 if has_waited else 0
        return self._last_report
