"""How a limit is divided between the ranks, so that all together keep to it, whoever of them has something to do.

Every rank reports what it has used, and whether it had to wait. The root tells all ranks one number, the *share*: what
a rank may use that had to wait. One that had not gets as much as it has used lately, and a little more, so that it
never takes by surprise what others were given; if that is too little, it waits, and gets a share with the next query.
So idle ranks give their part to others, and each share is the same (max-min fairness).

The share corrects itself: what the ranks have used too much or too little, as a sum since the limit was set, goes back
into it within ``CORRECTED`` seconds.
"""

from __future__ import annotations

from math import inf

from pcopy.named import NamedTuple

CORRECTED = 1.0
"""Seconds in which ranks make up for what was too much or too little."""

MOST_MISSED = 0.3
"""Seconds of the limit that were lost by slow news and may be made up for: what comes after them is no burst."""

MOST_EXCEEDED = 5.0
"""Seconds of the limit that are saved again after they were exceeded."""

FASTEST, SLOWEST = 1.25, 0.25
"""Parts of the limit that may be used while something is made up for."""

UNASKED = 0.2
"""The part of the limit with which all ranks together may begin before they have said that they want something."""

GROWTH = 1.25
"""How much more than lately a rank may use that did not have to wait."""

HASTE = 1.5
"""How much more a rank gets with each query, as long as the root may not have heard that it is hungry."""

KNOWN = 4
"""Reports in a row of being hungry, of which the root has heard the first one for sure."""


class Used(NamedTuple):
    """What a rank reports of one limit, or the sums over ranks: what it has ``used`` since the job began, whether it
    was ``hungry`` (1) since the last report, and if not, how much a second it has used since then."""

    used: float = 0.0
    hungry: float = 0.0
    modest: float = 0.0


class Divided:
    """At the root: one limit, over all ranks."""

    def __init__(self, ranks: int) -> None:
        self._ranks = ranks
        self.limit = 0
        """A second; 0: none."""
        self.share = inf
        self._credit = 0.0
        self._then: tuple[float, float] | None = None  # the time, and what was used by then

    def set(self, limit: int) -> None:
        """From now on. At first each rank gets the same."""
        if limit != self.limit:
            self.limit = limit
            self.share = limit / self._ranks if limit else inf
            self._credit, self._then = 0.0, None

    def heard(self, sums: Used, now: float) -> None:
        """What all ranks have reported by now, in seconds."""
        if not self.limit:
            return
        if self._then is not None:
            then, used = self._then
            self._correct(sums, now - then, sums.used - used)
        self._then = now, sums.used

    def _correct(self, sums: Used, seconds: float, used: float) -> None:
        limit = self.limit
        credit = self._credit + limit * seconds - used
        most = limit * MOST_MISSED if sums.hungry else 0.0  # what nobody wanted is not missed
        self._credit = max(-limit * MOST_EXCEEDED, min(credit, most))
        target = max(SLOWEST * limit, min(limit + self._credit / CORRECTED, FASTEST * limit))
        left = max(target - sums.modest, target / self._ranks)
        self.share = left / max(1.0, sums.hungry)


class Allowed:
    """On every rank: its part of one limit."""

    def __init__(self, ranks: int) -> None:
        self._ranks = ranks
        self._rate = inf
        self._hungry = KNOWN + 1  # reports in a row
        self._used = 0.0
        self._at: float | None = None
        self._was = Used(hungry=1)  # before anybody has said anything, all have the same

    def rate(self, limit: int, share: float) -> float:
        """What this rank may use a second from now on."""
        if not limit:
            self._rate = inf
            return inf
        more = HASTE * self._rate if self._was.hungry else GROWTH * self._was.modest
        allowed = UNASKED * limit / self._ranks + more
        self._rate = share if self._hungry > KNOWN else min(share, allowed)
        return self._rate

    def report(self, used: float, now: float, *, hungry: bool) -> Used:
        seconds = now - self._at if self._at is not None else 0.0
        modest = (used - self._used) / seconds if seconds > 0 and not hungry else 0.0
        self._used, self._at = used, now
        self._was = Used(used, float(hungry), modest)
        self._hungry = self._hungry + 1 if hungry else 0
        return self._was
