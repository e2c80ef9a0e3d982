"""Division of a limit between the ranks, so that all together keep to it, whichever of them have work.

Every rank reports what it has used, and whether it had to wait. The root (rank 0) sends one number to all ranks, the
*share*: the amount per second of a rank that had to wait. Any other rank gets its recent use and a little more, so that
it never suddenly takes what was given to others. If that is too little, it waits, and gets the share with the next
query. So idle ranks give their part to others, and all shares are equal (max-min fairness).

The share corrects itself: the sum of what the ranks have used too much or too little since the limit was set is added
to it over ``CORRECTION_SECONDS`` seconds.
"""

from __future__ import annotations

from math import inf

from pcopy.fast_named_tuple import NamedTuple

CORRECTION_SECONDS = 1.0
"""Seconds over which the ranks compensate for having used too much or too little."""

MAX_UNUSED = 0.3
"""Maximum unused amount that may be used later, as a number of seconds at the full limit.

It is small, so that no burst follows.
"""

MAX_EXCESS = 5.0
"""Maximum excess that is compensated for, as a number of seconds at the full limit."""

MAX_RATE, MIN_RATE = 1.25, 0.25
"""Limits of the rate while an excess or an unused amount is compensated for, as fractions of the limit."""

INITIAL_PART = 0.2
"""Fraction of the limit with which all ranks together may begin before they have reported that they need it."""

MODEST_GROWTH = 1.25
"""Factor by which a rank that did not have to wait may exceed its recent use."""

WAITING_GROWTH = 1.5
"""Factor by which the rate of a rank that had to wait grows with each query, until the root must have received
its report.
"""

REPORTS_UNTIL_KNOWN = 4
"""Number of consecutive reports of having waited after which the root has certainly received the first one."""


class Usage(NamedTuple):
    """Report of one rank about one limit, or the sums over several ranks.

    Fields:
    - ``used``: amount used since the job began.
    - ``has_waited``: 1 if the rank had to wait since the last report, else 0.
    - ``rate_without_wait``: amount per second used since the last report by a rank that did not have to wait, else 0.
    """

    used: float = 0.0
    has_waited: float = 0.0
    rate_without_wait: float = 0.0


class DividedLimit:
    """One limit over all ranks, as the root divides it."""

    def __init__(self, ranks: int) -> None:
        self._ranks = ranks
        self.limit = 0
        """The limit per second; 0: none."""
        self.share = inf
        self._credit = 0.0
        self._last_usage: tuple[float, float] | None = None  # time of the last report, and the amount used by then

    def set_limit(self, limit: int) -> None:
        """Set the limit; at first all ranks get equal shares."""
        if limit != self.limit:
            self.limit = limit
            self.share = limit / self._ranks if limit else inf
            self._credit, self._last_usage = 0.0, None

    def receive_usage(self, sums: Usage, now: float) -> None:
        """Adapt the share to the reports ``sums`` of all ranks at the time ``now`` in seconds."""
        if not self.limit:
            return
        if self._last_usage is not None:
            then, used = self._last_usage
            self._adapt_share(sums, now - then, sums.used - used)
        self._last_usage = now, sums.used

    def _adapt_share(self, sums: Usage, seconds: float, used: float) -> None:
        """Compute the share from the amount ``used`` in the last ``seconds``."""
        limit = self.limit
        credit = self._credit + limit * seconds - used
        most_missed = (
            limit * MAX_UNUSED if sums.has_waited else 0.0
        )  # An amount that no rank needed is not made up for.
        self._credit = max(-limit * MAX_EXCESS, min(credit, most_missed))
        target = max(MIN_RATE * limit, min(limit + self._credit / CORRECTION_SECONDS, MAX_RATE * limit))
        available = max(target - sums.rate_without_wait, target / self._ranks)
        self.share = available / max(1.0, sums.has_waited)


class RankAllowance:
    """A rank's part of one limit."""

    def __init__(self, ranks: int) -> None:
        self._ranks = ranks
        self._rate = inf
        self._reports_of_waiting = REPORTS_UNTIL_KNOWN + 1  # number of consecutive reports of having waited
        self._used = 0.0
        self._reported_at: float | None = None
        self._last_report = Usage(has_waited=1)  # Before the first report all ranks are treated alike.

    def rate(self, limit: int, share: float) -> float:
        """Return the amount per second that this rank may use from now on."""
        if not limit:
            self._rate = inf
            return inf
        more = (
            WAITING_GROWTH * self._rate
            if self._last_report.has_waited
            else MODEST_GROWTH * self._last_report.rate_without_wait
        )
        allowed = INITIAL_PART * limit / self._ranks + more
        self._rate = share if self._reports_of_waiting > REPORTS_UNTIL_KNOWN else min(share, allowed)
        return self._rate

    def report(self, used: float, now: float, *, has_waited: bool) -> Usage:
        """Return the report for the root: ``used`` is the amount since the job began, ``now`` the time in seconds."""
        seconds = now - self._reported_at if self._reported_at is not None else 0.0
        modest = (used - self._used) / seconds if seconds > 0 and not has_waited else 0.0
        self._used, self._reported_at = used, now
        self._last_report = Usage(used, float(has_waited), modest)
        self._reports_of_waiting = self._reports_of_waiting + 1 if has_waited else 0
        return self._last_report
