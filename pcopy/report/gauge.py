"""How far a job is, how fast it goes and how long it will take, from the totals that are known now and then.

What is done is measured in *weight*: the bytes that were handled, plus ``ITEM_WEIGHT`` for each item, since trees of
small files take their time by the item and large files by the byte. Bytes are handled when they have moved, or when
their file was skipped or has failed. A file that fails half way counts twice there, and a clone moves no bytes; so the
sum is bounded by what was found, never goes back, and is whole only when every item is done.

A job has *stages*, each measured on its own, as its program says (``pcopy.tools``).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence

from pcopy.named import NamedTuple
from pcopy.tasks.base.job import Totals
from pcopy.text import counted
from pcopy.units import show_clock, show_size

ITEM_WEIGHT = 128 << 10
"""What an item takes, as the bytes that move in the same time."""

WINDOW = 15.0
"""Seconds that the current rate looks back."""

_ALMOST = 0.999
"""The most that is shown before all is over: 100 % would be taken for the end."""
_NAMED_RANKS = 8
"""Silent ranks that one line names."""


class Reading(NamedTuple):
    """One look at the gauge. Times in seconds, rates in bytes per second, ``item_rate``s in items per second.

    ``elapsed`` is the job's, all else its stage's. ``fraction`` (0 to 1) is None as long as the total is not known,
    ``left`` as long as it cannot be told. ``scanning``: the total will be known later. ``measured`` is false where
    nothing is counted while it is done: items and bytes are just those of the job then.
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
    """How much a stage has done, and of how much; ``moved``: the bytes that make its rate, ``final``: all is known."""

    items: int
    items_whole: int
    bytes: int
    bytes_whole: int
    moved: int
    final: bool


class Stage(NamedTuple):
    """A part of a job that is measured on its own. ``scans``: its whole is found while it goes on."""

    measure: Callable[[Totals], Done]
    scans: bool = False
    measured: bool = True


Stages = Mapping[str, Stage]
"""By the names of phases. The first one begins the job, and is that of all phases that are not named."""


class Gauge:
    """Turns totals into readings; ``now`` is in seconds on any clock that does not go back."""

    def __init__(self, now: float, stages: Stages) -> None:
        self._start = now
        self._stages = stages
        self._usual = next(iter(stages.values()))
        self._begin(self._usual, now, 0, 0, 0)

    def _begin(self, stage: Stage, now: float, moved: int, items: int, weight: int) -> None:
        self._stage = stage
        self._bytes_done = 0
        self._first = (now, moved, items, weight)
        self._samples = deque([self._first])

    def enter(self, now: float, phase: str, totals: Totals) -> None:
        """From now on the job is in this phase. Costs nothing where that is the same stage as before."""
        stage = self._stages.get(phase, self._usual)
        if stage is not self._stage:
            done = stage.measure(totals)
            weight = min(done.bytes, done.bytes_whole) + done.items * ITEM_WEIGHT
            self._begin(stage, now, done.moved, done.items, weight)

    def read(self, now: float, totals: Totals) -> Reading:
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
    """``45.2 %``, rounded down; ``scanning`` while the total is not known yet, empty where it never is."""
    if reading.fraction is None:
        return "scanning" if reading.scanning else ""
    return f"{int(reading.fraction * 1000) / 10:.1f} %"


def items(reading: Reading) -> str:
    """``3 of 7 items``; ``7 items`` where nothing is measured."""
    if not reading.measured:
        return counted(reading.items_done, "item", "items")
    return f"{reading.items_done:,} of {counted(reading.items_found, 'item', 'items')}"


def sizes(reading: Reading) -> str:
    """``1.20 GiB of 3.40 GiB``; ``3.40 GiB`` where nothing is measured."""
    if not reading.measured:
        return show_size(reading.bytes_done)
    return f"{show_size(reading.bytes_done)} of {show_size(reading.bytes_found)}"


def rate(reading: Reading) -> str:
    """``12.3 MiB/s``; empty where nothing is measured."""
    return f"{show_size(reading.rate)}/s" if reading.measured else ""


def mean_rate(reading: Reading) -> str:
    """``mean 12.3 MiB/s``; empty where nothing is measured."""
    return f"mean {show_size(reading.mean_rate)}/s" if reading.measured else ""


def remaining(reading: Reading) -> str:
    """``0:12 left``; empty where it cannot be told."""
    return "" if reading.left is None else f"{show_clock(reading.left)} left"


def silence(ranks: Sequence[int]) -> str:
    """``no answer from rank 3, 5``; empty if all have answered."""
    if not ranks:
        return ""
    more = f" and {len(ranks) - _NAMED_RANKS} more" if len(ranks) > _NAMED_RANKS else ""
    return f"no answer from rank {', '.join(map(str, ranks[:_NAMED_RANKS]))}{more}"
