"""How far a job is, how fast it goes and how long it will take, from the totals that are known now and then.

What is done is measured in *weight*: the bytes that were handled, plus ``ITEM_WEIGHT`` for each item, since trees of
small files take their time by the item and large files by the byte. Bytes are handled when they have moved, or when
their file was skipped or has failed. A file that fails half way counts twice there, and a hole in a sparse file moves
no bytes; so the sum is bounded by what was found, never goes back, and is whole only when every item is done.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

from pcopy.cli.units import show_clock, show_size
from pcopy.tasks.job import Totals

ITEM_WEIGHT = 128 << 10
"""What an item takes, as the bytes that move in the same time."""

WINDOW = 15.0
"""Seconds that the current rate looks back."""

_ALMOST = 0.999
_NAMED_RANKS = 8


class Reading(NamedTuple):
    """One look at the gauge. Times in seconds, rates in bytes per second, ``item_rate``s in items per second.

    ``fraction`` (0 to 1) is None as long as the total is not known, ``left`` as long as it cannot be told.
    """

    elapsed: float
    items_done: int
    items_found: int
    bytes_done: int
    bytes_found: int
    fraction: float | None
    rate: float
    mean_rate: float
    item_rate: float
    mean_item_rate: float
    left: float | None
    failed: int


class Gauge:
    """Turns totals into readings; ``now`` is in seconds on any clock that does not go back."""

    def __init__(self, now: float) -> None:
        self._start = now
        self._bytes_done = 0
        self._samples = deque([(now, 0, 0, 0)])

    def read(self, now: float, totals: Totals) -> Reading:
        """The state at ``now``, when ``totals`` were known."""
        items_done = totals.copied + totals.skipped + totals.failed
        handled = max(totals.moved, totals.bytes) + totals.skipped_bytes + totals.failed_bytes
        is_over = totals.unscanned == 0 and 0 < totals.found <= items_done
        self._bytes_done = totals.found_bytes if is_over else max(self._bytes_done, min(handled, totals.found_bytes))
        weight = self._bytes_done + items_done * ITEM_WEIGHT
        whole = totals.found_bytes + totals.found * ITEM_WEIGHT

        self._samples.append((now, totals.moved, items_done, weight))
        while len(self._samples) > 2 and self._samples[1][0] <= now - WINDOW:
            self._samples.popleft()
        then, moved_then, items_then, weight_then = self._samples[0]
        span = now - then
        elapsed = now - self._start
        pace = (weight - weight_then) / span if span > 0 else 0.0

        fraction = None
        if totals.unscanned == 0 and totals.found:
            fraction = 1.0 if is_over else min(weight / whole, _ALMOST)
        return Reading(
            elapsed=elapsed,
            items_done=items_done,
            items_found=totals.found,
            bytes_done=self._bytes_done,
            bytes_found=totals.found_bytes,
            fraction=fraction,
            rate=max(0.0, (totals.moved - moved_then) / span) if span > 0 else 0.0,
            mean_rate=totals.moved / elapsed if elapsed > 0 else 0.0,
            item_rate=max(0.0, (items_done - items_then) / span) if span > 0 else 0.0,
            mean_item_rate=items_done / elapsed if elapsed > 0 else 0.0,
            left=max(0, whole - weight) / pace if fraction is not None and pace > 0 else None,
            failed=totals.failed,
        )


def percent(reading: Reading) -> str:
    """``45.2 %``, rounded down; ``scanning`` while the total is not known."""
    if reading.fraction is None:
        return "scanning"
    return f"{int(reading.fraction * 1000) / 10:.1f} %"


def items(reading: Reading) -> str:
    """``3 of 7 items``."""
    return f"{reading.items_done:,} of {reading.items_found:,} items"


def sizes(reading: Reading) -> str:
    """``1.20 GiB of 3.40 GiB``."""
    return f"{show_size(reading.bytes_done)} of {show_size(reading.bytes_found)}"


def remaining(reading: Reading) -> str:
    """``0:12 left``; empty where it cannot be told."""
    return "" if reading.left is None else f"{show_clock(reading.left)} left"


def silence(ranks: Sequence[int]) -> str:
    """``no answer from rank 3, 5``; empty if all have answered."""
    if not ranks:
        return ""
    more = f" and {len(ranks) - _NAMED_RANKS} more" if len(ranks) > _NAMED_RANKS else ""
    return f"no answer from rank {', '.join(map(str, ranks[:_NAMED_RANKS]))}{more}"
