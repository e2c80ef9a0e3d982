"""How fast one rank may move bytes, and do operations on metadata: what it does is charged, and who is in debt waits.

A bucket fills with tokens at its rate. Whatever is to be done takes its tokens first, even if there are too few: then
the bucket is in debt, and nothing begins until that is paid. So the mean is the rate whatever the size of what is done,
and only what fits into the bucket follows a pause without waiting.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterator
from math import inf

FILLED = 0.1
"""Seconds for which a bucket fills up: what was not used by then is lost."""

PIECE_SECONDS = 0.05
"""Seconds in which a piece of a file passes; larger ones are cut, so that nothing comes in bursts."""

AT_ONCE_SECONDS = 0.25
"""Seconds of the rate after which what is done in one go is divided."""

LEAST_PIECE = 4096
"""Bytes of a piece at least, however little may pass."""

LEAST_PAUSE = 1e-6
"""Seconds that are worth a sleep; by less a sum of fractions is not exact."""

NAP = 0.02
"""Seconds that a rank sleeps before it looks for messages again."""


class Bucket:
    """Tokens of one sort; ``now`` is in seconds on any clock that does not go back."""

    def __init__(self, now: float) -> None:
        self.rate = inf
        """Tokens a second."""
        self.has_waited = False
        """Was anybody told to wait since this was reset?"""
        self._taken = 0.0  # while there was a limit
        self._level = 0.0
        self._at = now

    def allow(self, rate: float, now: float) -> None:
        """From now on so many tokens a second; ``inf``: no limit, and no debt."""
        self._fill(now)
        self.rate = rate
        self._level = 0.0 if rate == inf else min(self._level, rate * FILLED)

    def take(self, tokens: float) -> None:
        if self.rate != inf:
            self._taken += tokens
            self._level -= tokens

    def paid(self, now: float) -> float:
        """All tokens that were taken while there was a limit, but for those that the bucket still owes."""
        self._fill(now)
        return self._taken + min(0.0, self._level)

    def wait(self, now: float) -> float:
        """Seconds until there is no debt any more, at this rate."""
        if self.rate == inf:
            return 0.0
        self._fill(now)
        pause = -self._level / self.rate
        if pause < LEAST_PAUSE:
            return 0.0
        self.has_waited = True
        return pause

    def _fill(self, now: float) -> None:
        if self.rate != inf:
            self._level = min(self._level + self.rate * (now - self._at), self.rate * FILLED)
        self._at = now


class Throttle:
    """One rank's buckets. As long as there is neither a limit nor a pause, ``is_on`` is all that anybody looks at."""

    def __init__(
        self, clock: Callable[[], float] = time.monotonic, sleep: Callable[[float], object] = time.sleep
    ) -> None:
        self._clock = clock
        self._sleep = sleep
        self.bytes = Bucket(clock())
        self.operations = Bucket(clock())
        self.is_on = False
        """Is there any limit, or a pause?"""
        self._is_held = False

    def allow(self, bytes_: float, operations: float, *, held: bool = False) -> None:
        """From now on so much a second; ``inf``: any number. As long as it is ``held`` nothing begins."""
        now = self._clock()
        self.bytes.allow(bytes_, now)
        self.operations.allow(operations, now)
        self._is_held = held
        self.is_on = held or min(bytes_, operations) != inf

    def piece(self, size: int) -> int:
        """Bytes of what is moved next, out of ``size``: a multiple of a sector, unless it is all."""
        if self.bytes.rate == inf:
            return size
        piece = int(self.bytes.rate * PIECE_SECONDS) // LEAST_PIECE * LEAST_PIECE
        return min(size, max(LEAST_PIECE, piece))

    def at_once(self) -> float:
        """Bytes that may move in one go; what is larger is to be moved in pieces."""
        return self.bytes.rate * AT_ONCE_SECONDS

    def portions(self, size: int, operations: int) -> int:
        """In how many portions something is to be done that moves so many bytes."""
        lasts = max(size / self.bytes.rate, operations / self.operations.rate)
        return int(lasts / AT_ONCE_SECONDS) + 1

    def spend(self, size: int = 0, operations: int = 0) -> Generator[None, None, None]:
        """Before so many bytes move, and so much is done: takes the tokens, and waits until they are paid."""
        self.bytes.take(size)
        self.operations.take(operations)
        yield from self.naps()

    def moves(self, size: int) -> Iterator[int]:
        """As ``spend``; yields 0, which are the bytes that have moved."""
        for _ in self.spend(size):
            yield 0

    def naps(self) -> Generator[None, None, None]:
        """Until there is no debt: sleeps for a moment, with an occasion to do something else after each."""
        while self.is_on:
            now = self._clock()
            pause = max(self.bytes.wait(now), self.operations.wait(now), NAP if self._is_held else 0.0)
            if pause <= 0:
                return
            self._sleep(min(pause, NAP))
            yield


class Unmoved(int):
    """Bytes that count as moved, and did not pass: of a hole, or shared with the source."""

    __slots__ = ()


def throttled(steps: Iterator[int], throttle: Throttle) -> Generator[int, None, None]:
    """``steps``, which yield how many bytes they have read, with pauses between them if there is a limit."""
    for moved in steps:
        yield moved
        if throttle.is_on and moved and not isinstance(moved, Unmoved):
            throttle.bytes.take(moved)
            for _ in throttle.naps():
                yield 0
