"""Limits how many bytes and metadata operations one rank processes per second.

Each limit is a token bucket, which fills at its rate. An operation takes its tokens first, even if there are too few.
Then the bucket is in debt, and no operation starts until the debt is paid by time. So the mean rate is the limit,
whatever the size of the operations, and after an idle time only as much as the bucket holds can start without waiting.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterator
from math import inf

BUCKET_CAPACITY_SECONDS = 0.1
"""Capacity of a bucket, in seconds in which it fills at its rate. Tokens beyond the capacity are lost."""

PIECE_SECONDS = 0.05
"""Seconds that the copy of one piece of a file takes at the limit of bytes per second.

Larger pieces are divided, so that data are not transferred in bursts.
"""

MAX_STEP_SECONDS = 0.25
"""Seconds at the current limits that one step of a task may take; work that takes longer is divided."""

MIN_PIECE_SIZE = 4096
"""Minimum bytes of a piece of a file that is copied at a time, even if the limit on bytes per second is very low."""

MIN_PAUSE = 1e-6
"""Shortest pause in seconds. A shorter debt is ignored, because sums of fractions are not exact."""

SLEEP_STEP_SECONDS = 0.02
"""Seconds that a rank sleeps at most, while it waits for a limit, before it processes messages again."""


class TokenBucket:
    """A token bucket for one limit; a token is one byte or one operation. Times ``now`` are seconds of a monotonic
    clock.
    """

    def __init__(self, now: float) -> None:
        """Start without a limit."""
        self.rate = inf
        """Tokens per second; infinite if there is no limit."""
        self.has_waited = False
        """True if ``seconds_to_wait`` has returned more than 0 since the caller set this to False."""
        self._charged = 0.0  # tokens charged while there was a limit
        self._level = 0.0
        self._updated_at = now

    def set_rate(self, rate: float, now: float) -> None:
        """Set the limit to ``rate`` tokens per second; ``inf`` means no limit, and cancels the debt."""
        self._add_tokens_for_elapsed_time(now)
        self.rate = rate
        self._level = 0.0 if rate == inf else min(self._level, rate * BUCKET_CAPACITY_SECONDS)

    def take_tokens(self, tokens: float) -> None:
        """Take ``tokens`` out of the bucket, if there is a limit; the bucket may get into debt."""
        if self.rate != inf:
            self._charged += tokens
            self._level -= tokens

    def paid_tokens(self, now: float) -> float:
        """Return how many tokens were taken while there was a limit, less the current debt: these have been paid for by
        time.
        """
        self._add_tokens_for_elapsed_time(now)
        return self._charged + min(0.0, self._level)

    def seconds_to_wait(self, now: float) -> float:
        """Return the seconds until the debt is paid at the current rate; 0 if there is none."""
        if self.rate == inf:
            return 0.0
        self._add_tokens_for_elapsed_time(now)
        pause = -self._level / self.rate
        if pause < MIN_PAUSE:
            return 0.0
        self.has_waited = True
        return pause

    def _add_tokens_for_elapsed_time(self, now: float) -> None:
        """Add the tokens for the time that has passed since the last call, up to the capacity of the bucket."""
        if self.rate != inf:
            self._level = min(self._level + self.rate * (now - self._updated_at), self.rate * BUCKET_CAPACITY_SECONDS)
        self._updated_at = now


class Throttle:
    """The limits of one rank on bytes and metadata operations per second, and whether the job is paused. While
    ``is_on`` is False, callers need not call the other methods.
    """

    def __init__(
        self, clock: Callable[[], float] = time.monotonic, sleep: Callable[[float], object] = time.sleep
    ) -> None:
        """Start without limits. ``clock`` returns seconds, and ``sleep`` takes seconds; tests replace them."""
        self._clock = clock
        self._sleep = sleep
        self.bytes = TokenBucket(clock())
        self.operations = TokenBucket(clock())
        self.is_on = False
        """True if there is a limit, or if the job is paused."""
        self._is_paused = False

    def set_rate_limits(self, bytes_: float, operations: float, *, is_paused: bool = False) -> None:
        """Set the limits of this rank: ``bytes_`` and ``operations`` per second; ``inf`` means no limit.

        While ``is_paused`` is True nothing may start.
        """
        now = self._clock()
        self.bytes.set_rate(bytes_, now)
        self.operations.set_rate(operations, now)
        self._is_paused = is_paused
        self.is_on = is_paused or min(bytes_, operations) != inf

    def bytes_to_copy_next(self, size: int) -> int:
        """Return how many of ``size`` bytes to copy next, so that a piece takes about ``PIECE_SECONDS`` at the limit:
        all of them, or a multiple of ``MIN_PIECE_SIZE``.
        """
        if self.bytes.rate == inf:
            return size
        piece = int(self.bytes.rate * PIECE_SECONDS) // MIN_PIECE_SIZE * MIN_PIECE_SIZE
        return min(size, max(MIN_PIECE_SIZE, piece))

    def max_bytes_per_task_step(self) -> float:
        """Return the maximum number of bytes that one step of a task may copy at the current limit. Larger files are
        copied in pieces.
        """
        return self.bytes.rate * MAX_STEP_SECONDS

    def throttled_portion_count(self, size: int, operations: int) -> int:
        """Return into how many portions work with ``size`` bytes and this number of metadata ``operations`` must be
        divided, so that each takes ``MAX_STEP_SECONDS`` at most.
        """
        seconds = max(size / self.bytes.rate, operations / self.operations.rate)
        return int(seconds / MAX_STEP_SECONDS) + 1

    def charge_limits_and_wait(self, size: int = 0, operations: int = 0) -> Generator[None, None, None]:
        """Generator: charge ``size`` bytes and this number of ``operations`` before they are done, and sleep until the
        debt is paid. Yield after each short sleep.
        """
        self.bytes.take_tokens(size)
        self.operations.take_tokens(operations)
        yield from self.wait_for_tokens()

    def charge_bytes(self, size: int) -> Iterator[int]:
        """Generator: charge ``size`` bytes before they are copied, and sleep until the debt is paid. After each short
        sleep, yield 0, the number of bytes copied meanwhile.
        """
        for _ in self.charge_limits_and_wait(size):
            yield 0

    def wait_for_tokens(self) -> Generator[None, None, None]:
        """Generator: sleep in short steps until there is no debt. Yield after each step, so that the caller can do
        other work in between.
        """
        while self.is_on:
            now = self._clock()
            pause = max(
                self.bytes.seconds_to_wait(now),
                self.operations.seconds_to_wait(now),
                SLEEP_STEP_SECONDS if self._is_paused else 0.0,
            )
            if pause <= 0:
                return
            self._sleep(min(pause, SLEEP_STEP_SECONDS))
            yield


class UntransferredBytes(int):
    """A number of bytes that count as copied but were not read or written: they are in a hole, or shared with the
    source (reflink). Limits do not apply to them.
    """

    __slots__ = ()


def throttled_steps(steps: Iterator[int], throttle: Throttle) -> Generator[int, None, None]:
    """Generator: yield the number of bytes of each of ``steps``, the steps of a copy, and charge them to ``throttle``.
    Yield 0 repeatedly during the pauses that its limits require.
    """
    for moved in steps:
        yield moved
        if throttle.is_on and moved and not isinstance(moved, UntransferredBytes):
            throttle.bytes.take_tokens(moved)
            for _ in throttle.wait_for_tokens():
                yield 0
