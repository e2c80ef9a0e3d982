"""Progress, rates and remaining time of a job, computed from its counters at different times.

Progress is measured as *weight*: the bytes that were handled, plus ``ITEM_WEIGHT`` for each item, since small files
take time per item and large files per byte. Bytes are handled when they were moved, or when their file was skipped or
has failed. A file that fails half way counts twice, and a clone moves no bytes. So the sum is limited to what was
found, never decreases, and is complete only when every item is done.

A job has *stages*, each measured separately, as its program defines (``pcopy.tools``).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence

from pcopy.named import NamedTuple
from pcopy.tasks.base.job import Totals
from pcopy.text import counted
from pcopy.units import show_clock, show_size

ITEM_WEIGHT = 128 << 10
"""Weight of an item: the number of bytes that are moved in the same time."""

WINDOW = 15.0
"""Length in seconds of the period over which the current rate is computed."""

_ALMOST = 0.999
"""Maximum fraction that is shown before everything is done: 100 % would be understood as the end."""
_NAMED_RANKS = 8
"""Number of silent ranks that are named in one line."""


class Reading(NamedTuple):
    """Progress at one time. Times are in seconds, rates in bytes per second, and item rates in items per second.

    Fields:
    - ``elapsed``: time since the start of the job. All other fields are those of the current stage.
    - ``fraction``: completed part, 0 to 1; None while the total is unknown.
    - ``left``: estimated remaining time; None while it cannot be estimated.
    - ``failed``: number of failed items of the job.
    - ``scanning``: True if the total is still unknown and will be known later.
    - ``measured``: False if the stage has no counters of its own; then items and bytes are those of the job.
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
    scanning: bool
    measured: bool


class Done(NamedTuple):
    """Amount of work that a stage has done, and its total.

    ``moved``: bytes from which the rate is computed. ``final``: True if the total is known.
    """

    items: int
    items_whole: int
    bytes: int
    bytes_whole: int
    moved: int
    final: bool


class Stage(NamedTuple):
    """A part of a job that is measured separately.

    Fields:
    - ``measure``: returns the amount of work from the counters.
    - ``scans``: True if its total is found while it runs.
    - ``measured``: False if it has no counters of its own.
    """

    measure: Callable[[Totals], Done]
    scans: bool = False
    measured: bool = True


Stages = Mapping[str, Stage]
"""Stages by the names of phases. The first one is the stage at the start of the job, and of all phases that are
not named.
"""


class Gauge:
    """Computes progress from counters; ``now`` is in seconds of a clock that never goes back."""

    def __init__(self, now: float, stages: Stages) -> None:
        self._start = now
        self._stages = stages
        self._usual = next(iter(stages.values()))
        self._begin(self._usual, now, 0, 0, 0)

    def _begin(self, stage: Stage, now: float, moved: int, items: int, weight: int) -> None:
        """Start a stage with these values of bytes moved, items and weight."""
        self._stage = stage
        self._bytes_done = 0
        self._first = (now, moved, items, weight)
        self._samples = deque([self._first])

    def enter(self, now: float, phase: str, totals: Totals) -> None:
        """Register that the job is in ``phase``; has no effect if that belongs to the current stage."""
        stage = self._stages.get(phase, self._usual)
        if stage is not self._stage:
            done = stage.measure(totals)
            weight = min(done.bytes, done.bytes_whole) + done.items * ITEM_WEIGHT
            self._begin(stage, now, done.moved, done.items, weight)

    def read(self, now: float, totals: Totals) -> Reading:
        """Return the progress at the time ``now``."""
        done = self._stage.measure(totals)
        is_over = done.final and 0 < done.items_whole <= done.items
        handled = done.bytes_whole if is_over else min(done.bytes, done.bytes_whole)
        self._bytes_done = max(self._bytes_done, handled)
        weight = self._bytes_done + done.items * ITEM_WEIGHT
        whole = done.bytes_whole + done.items_whole * ITEM_WEIGHT

        self._samples.append((now, done.moved, done.items, weight))
        while len(self._samples) > 2 and self._samples[1][0] <= now - WINDOW:
            self._samples.popleft()
        then, moved_then, items_then, weight_then = self._samples[0]
        began, moved_before, items_before, _ = self._first
        span, whole_span = now - then, now - began
        pace = (weight - weight_then) / span if span > 0 else 0.0

        fraction = None
        if done.final and done.items_whole:
            fraction = 1.0 if is_over else min(weight / whole, _ALMOST)
        return Reading(
            elapsed=now - self._start,
            items_done=done.items,
            items_found=done.items_whole,
            bytes_done=self._bytes_done,
            bytes_found=done.bytes_whole,
            fraction=fraction,
            rate=max(0.0, (done.moved - moved_then) / span) if span > 0 else 0.0,
            mean_rate=(done.moved - moved_before) / whole_span if whole_span > 0 else 0.0,
            item_rate=max(0.0, (done.items - items_then) / span) if span > 0 else 0.0,
            mean_item_rate=(done.items - items_before) / whole_span if whole_span > 0 else 0.0,
            left=max(0, whole - weight) / pace if fraction is not None and pace > 0 else None,
            failed=totals.failed,
            scanning=self._stage.scans and fraction is None,
            measured=self._stage.measured,
        )


def percent(reading: Reading) -> str:
    """Return ``45.2 %``, rounded down; ``scanning`` while the total is still unknown; empty if it will never be
    known.
    """
    if reading.fraction is None:
        return "scanning" if reading.scanning else ""
    return f"{int(reading.fraction * 1000) / 10:.1f} %"


def items(reading: Reading) -> str:
    """Return ``3 of 7 items``; ``7 items`` if the stage is not measured."""
    if not reading.measured:
        return counted(reading.items_done, "item", "items")
    return f"{reading.items_done:,} of {counted(reading.items_found, 'item', 'items')}"


def sizes(reading: Reading) -> str:
    """Return ``1.20 GiB of 3.40 GiB``; ``3.40 GiB`` if the stage is not measured."""
    if not reading.measured:
        return show_size(reading.bytes_done)
    return f"{show_size(reading.bytes_done)} of {show_size(reading.bytes_found)}"


def rate(reading: Reading) -> str:
    """Return ``12.3 MiB/s``; empty if the stage is not measured."""
    return f"{show_size(reading.rate)}/s" if reading.measured else ""


def mean_rate(reading: Reading) -> str:
    """Return ``mean 12.3 MiB/s``; empty if the stage is not measured."""
    return f"mean {show_size(reading.mean_rate)}/s" if reading.measured else ""


def remaining(reading: Reading) -> str:
    """Return ``0:12 left``; empty if the remaining time cannot be estimated."""
    return "" if reading.left is None else f"{show_clock(reading.left)} left"


def silence(ranks: Sequence[int]) -> str:
    """Return ``no answer from rank 3, 5``; empty if all ranks have answered."""
    if not ranks:
        return ""
    more = f" and {len(ranks) - _NAMED_RANKS} more" if len(ranks) > _NAMED_RANKS else ""
    return f"no answer from rank {', '.join(map(str, ranks[:_NAMED_RANKS]))}{more}"
