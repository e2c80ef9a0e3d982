"""Progress, rates and remaining time of a job, computed from its counters at different times.

Progress is measured as *weight*: the bytes that were handled, plus ``ITEM_WEIGHT_IN_BYTES`` for each item, because
small files take time per item and large files per byte. Bytes count as handled when they were written, or when their
file was skipped or has failed. This sum is not exact: the bytes of a file that fails half way count twice, and those of
a file that is cloned (reflink) are not counted. So it is limited to the bytes that were found, it never decreases, and
progress is complete only when every item is done.

A job has *stages*, such as copying and verification. The progress of each is measured from 0. Each program defines its
stages (``pcopy.tools``).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence

from pcopy.fast_named_tuple import NamedTuple
from pcopy.tasks.base.job import JobCounters
from pcopy.text import count_with_noun
from pcopy.units import format_running_clock, format_size

ITEM_WEIGHT_IN_BYTES = 128 << 10
"""Weight of an item in bytes: to create a small file takes about as long as to copy this many bytes."""

RATE_WINDOW_SECONDS = 15.0
"""Number of seconds before now over which the current rate is averaged."""

_MAX_UNFINISHED_FRACTION = 0.999
"""Largest completed fraction before every item is done: 100 % would be understood as the end."""
_MAX_NAMED_RANKS = 8
"""Maximum number of silent ranks that are named in one line; of more only the number is shown."""


class ProgressSnapshot(NamedTuple):
    """Progress at one time. Times are in seconds, rates in bytes per second, and item rates in items per second.

    Fields (of the current stage, except ``elapsed`` and ``failed``):
    - ``elapsed``: time since the start of this run.
    - ``items_done``, ``bytes_done``: completed items, and handled bytes.
    - ``items_found``, ``bytes_found``: items and bytes that the stage has to do, as far as they are known.
    - ``fraction``: completed part, 0 to 1; None while the total is unknown.
    - ``rate``, ``item_rate``: mean over the last ``RATE_WINDOW_SECONDS`` seconds.
    - ``mean_rate``, ``mean_item_rate``: mean since the stage began.
    - ``remaining``: estimated remaining time; None while it cannot be estimated.
    - ``failed``: number of failed items of the job.
    - ``is_scanning``: True if the total is still unknown and will be known later.
    - ``is_measured``: False if the stage has no counters of its own; then items and bytes are those of the job.
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
    remaining: float | None
    failed: int
    is_scanning: bool
    is_measured: bool

    @property
    def is_mainly_bytes(self) -> bool:
        """True if the stage will spend more time with the bytes of its files than with the number of its items."""
        return self.bytes_found >= self.items_found * ITEM_WEIGHT_IN_BYTES

    @property
    def shown_fraction(self) -> float | None:
        """The completed part, 0 to 1, of the bytes or of the items, whichever take longer; None while it is unknown.

        The display contains both figures, so that users can check it. ``fraction`` is a mean of both.
        """
        if self.fraction in (None, 1.0):
            return self.fraction
        done, found = (
            (self.bytes_done, self.bytes_found) if self.is_mainly_bytes else (self.items_done, self.items_found)
        )
        return min(done / found, _MAX_UNFINISHED_FRACTION)


class WorkDone(NamedTuple):
    """Amount of work that a stage has done, and its total.

    Fields:
    - ``items``, ``bytes``: completed items, and handled bytes.
    - ``items_total``, ``bytes_total``: items and bytes that the stage has to do, as far as they are known.
    - ``moved``: bytes that were written or read, from which the rate is computed.
    - ``is_total_known``: True if no more items can be added to the two totals.
    """

    items: int
    items_total: int
    bytes: int
    bytes_total: int
    moved: int
    is_total_known: bool


class ProgressStage(NamedTuple):
    """A part of a job whose progress is measured separately.

    Fields:
    - ``measure``: returns the amount of work of this stage, from the counters of the job.
    - ``finds_total``: True if the total of the stage becomes known while it runs (a scan).
    - ``is_measured``: False if the stage has no counters of its own.
    """

    measure: Callable[[JobCounters], WorkDone]
    finds_total: bool = False
    is_measured: bool = True


StagesByPhase = Mapping[str, ProgressStage]
"""The stages of a job (parts whose progress is measured separately), by the names of the phases that belong to each.

The first stage is the one at the start of the job. It also contains all phases that have no entry here.
"""


class ProgressGauge:
    """Computes progress from the counters of a job at different times.

    ``now`` is always the time in seconds of a clock that never goes back.
    """

    def __init__(self, now: float, stages: StagesByPhase) -> None:
        self._start = now
        self._stages = stages
        self._default_stage = next(iter(stages.values()))
        self._start_stage(self._default_stage, now, 0, 0, 0)

    def _start_stage(self, stage: ProgressStage, now: float, moved: int, items: int, weight: int) -> None:
        """Begin to measure ``stage`` at the time ``now``.

        ``moved``, ``items`` and ``weight`` say how much of the stage is done already; it is subtracted, so that rates
        begin at 0.
        """
        self._stage = stage
        self._bytes_done = 0
        self._first = (now, moved, items, weight)
        self._samples = deque([self._first])

    def enter_phase(self, now: float, phase: str, totals: JobCounters) -> None:
        """Note that the job is in ``phase`` at the time ``now``, with the counters ``totals``.

        If the phase belongs to another stage than before, the measurement of that stage begins.
        """
        stage = self._stages.get(phase, self._default_stage)
        if stage is not self._stage:
            done = stage.measure(totals)
            weight = min(done.bytes, done.bytes_total) + done.items * ITEM_WEIGHT_IN_BYTES
            self._start_stage(stage, now, done.moved, done.items, weight)

    def read(self, now: float, totals: JobCounters) -> ProgressSnapshot:
        """Return the progress at the time ``now``, from the counters ``totals`` of the job."""
        done = self._stage.measure(totals)
        is_over = done.is_total_known and 0 < done.items_total <= done.items
        handled = done.bytes_total if is_over else min(done.bytes, done.bytes_total)
        self._bytes_done = max(self._bytes_done, handled)
        weight = self._bytes_done + done.items * ITEM_WEIGHT_IN_BYTES
        whole = done.bytes_total + done.items_total * ITEM_WEIGHT_IN_BYTES

        self._samples.append((now, done.moved, done.items, weight))
        while len(self._samples) > 2 and self._samples[1][0] <= now - RATE_WINDOW_SECONDS:
            self._samples.popleft()
        then, moved_then, items_then, weight_then = self._samples[0]
        began, moved_before, items_before, _ = self._first
        span, whole_span = now - then, now - began
        pace = (weight - weight_then) / span if span > 0 else 0.0

        fraction = None
        if done.is_total_known and done.items_total:
            fraction = 1.0 if is_over else min(weight / whole, _MAX_UNFINISHED_FRACTION)
        return ProgressSnapshot(
            elapsed=now - self._start,
            items_done=done.items,
            items_found=done.items_total,
            bytes_done=self._bytes_done,
            bytes_found=done.bytes_total,
            fraction=fraction,
            rate=max(0.0, (done.moved - moved_then) / span) if span > 0 else 0.0,
            mean_rate=(done.moved - moved_before) / whole_span if whole_span > 0 else 0.0,
            item_rate=max(0.0, (done.items - items_then) / span) if span > 0 else 0.0,
            mean_item_rate=(done.items - items_before) / whole_span if whole_span > 0 else 0.0,
            remaining=max(0, whole - weight) / pace if fraction is not None and pace > 0 else None,
            failed=totals.failed,
            is_scanning=self._stage.finds_total and fraction is None,
            is_measured=self._stage.is_measured,
        )


def percent_text(reading: ProgressSnapshot) -> str:
    """Return the completed part, such as ``45.2 % of bytes`` or ``45.2 % of items``, rounded down.

    While the total is unknown, return ``scanning`` if it will become known, and an empty text if it will not.
    """
    fraction = reading.shown_fraction
    if fraction is None:
        return "scanning" if reading.is_scanning else ""
    return f"{int(fraction * 1000) / 10:.1f} % of {'bytes' if reading.is_mainly_bytes else 'items'}"


def items_done_text(reading: ProgressSnapshot) -> str:
    """Return the completed items and their total, such as ``3 of 7 items``.

    If the stage has no counters of its own, return the number of completed items of the job, such as ``7 items``.
    """
    if not reading.is_measured:
        return count_with_noun(reading.items_done, "item", "items")
    return f"{reading.items_done:,} of {count_with_noun(reading.items_found, 'item', 'items')}"


def bytes_done_text(reading: ProgressSnapshot) -> str:
    """Return the handled bytes and their total, such as ``1.20 GiB of 3.40 GiB``.

    If the stage has no counters of its own, return the handled bytes of the job, such as ``3.40 GiB``.
    """
    if not reading.is_measured:
        return format_size(reading.bytes_done)
    return f"{format_size(reading.bytes_done)} of {format_size(reading.bytes_found)}"


def rate_text(reading: ProgressSnapshot) -> str:
    """Return the current rate, such as ``12.3 MiB/s``; empty if the stage has no counters of its own."""
    return f"{format_size(reading.rate)}/s" if reading.is_measured else ""


def mean_rate_text(reading: ProgressSnapshot) -> str:
    """Return the mean rate, such as ``mean 12.3 MiB/s``; empty if the stage has no counters of its own."""
    return f"mean {format_size(reading.mean_rate)}/s" if reading.is_measured else ""


def remaining_text(reading: ProgressSnapshot) -> str:
    """Return the remaining time, such as ``0:12 left``; empty if it cannot be estimated."""
    return "" if reading.remaining is None else f"{format_running_clock(reading.remaining)} left"


def silent_ranks_text(ranks: Sequence[int]) -> str:
    """Return a text about the ``ranks`` that have not answered lately, such as ``no answer from rank 3, 5``.

    Empty if there are none.
    """
    if not ranks:
        return ""
    more = f" and {len(ranks) - _MAX_NAMED_RANKS} more" if len(ranks) > _MAX_NAMED_RANKS else ""
    return f"no answer from rank {', '.join(map(str, ranks[:_MAX_NAMED_RANKS]))}{more}"
