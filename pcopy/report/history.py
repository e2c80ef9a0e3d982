"""Data for the report of a job (``--report``), collected while it runs: counters over time, phases, and failures.

Memory is bounded: when there are many samples of the counters, some are removed. A sample contains sums since the run
began, not differences between samples, so the remaining ones are still right.
"""

from __future__ import annotations

import os
from collections.abc import Sequence

from pcopy.fast_named_tuple import NamedTuple
from pcopy.report.screen import failure_json_values
from pcopy.tasks.base.job import Failure, JobCounters

MAX_SAMPLES = 600
"""Maximum number of samples; when there are more, every second one is removed.

A chart of the report is not wide enough to show more.
"""

MAX_FAILURE_KINDS = 200
"""Maximum number of kinds of failures (operation and errno) that are counted separately; failures of any other kind are
counted together.

Without a limit, the memory could grow: an operation may contain the name of an extended attribute, and users choose
these names freely.
"""

MAX_STORED_FAILURES = 100
"""Maximum number of failures that are stored completely; the file of ``--errors`` contains all failures."""


class CounterSample(NamedTuple):
    """What this run has done up to one time.

    Fields:
    - ``seconds``: time since the run began.
    - ``items``: completed items (copied, skipped or failed).
    - ``moved``: bytes written to the destination, also those of files that were not finished.
    - ``checked``: items that the verification (``--verify``) has compared.
    - ``read_back``: bytes that the verification has read.
    - ``failed``: failed items.
    """

    seconds: float
    items: int
    moved: int
    checked: int
    read_back: int
    failed: int

    @classmethod
    def from_totals(cls, seconds: float, totals: JobCounters, before: JobCounters) -> CounterSample:
        """Return the sample at ``seconds`` since the run began.

        Args:
            totals: the counters of the whole job.
            before: the counters of the job's earlier runs, which are subtracted.
        """
        sums = [
            each - other
            for each, other in zip(_counter_sample_values(totals), _counter_sample_values(before), strict=True)
        ]
        return cls(round(seconds, 3), *sums)


def _counter_sample_values(totals: JobCounters) -> tuple[int, ...]:
    """Return the fields of a ``CounterSample`` but the first (the time), in their order, computed from the counters
    ``totals``.
    """
    completed = totals.copied + totals.skipped + totals.failed
    checked = totals.verified + totals.refuted
    return completed, totals.moved, checked, totals.verified_bytes, totals.failed


class PhaseTime(NamedTuple):
    """A phase of a job: its name, when it ``began`` in seconds since this run began, and how many seconds it lasted."""

    phase: str
    began: float
    seconds: float


class JobHistory:
    """The counters of a run at different times (``samples``), and its phases.

    ``now`` is always the time in seconds of a clock that never goes back.
    """

    def __init__(self, now: float, before: JobCounters, most: int = MAX_SAMPLES) -> None:
        """Begin to collect at the time ``now``, the start of this run.

        Args:
            before: the counters of the job's earlier runs.
            most: maximum number of samples.
        """
        self._start = now
        self._earlier_totals = before
        self._max_samples = most
        self._step = 0.0
        self.samples = [CounterSample.from_totals(0.0, before, before)]
        self._begun: list[tuple[str, float]] = []
        self._end = 0.0

    def add_sample(self, now: float, phase: str, totals: JobCounters) -> None:
        """Store a sample of the counters ``totals`` at the time ``now``.

        ``phase``: name of the phase that has begun; empty: the phase has not changed.
        """
        self._end = seconds = now - self._start
        if phase and (not self._begun or self._begun[-1][0] != phase):
            self._begun.append((phase, seconds if self._begun else 0.0))
        sample = CounterSample.from_totals(seconds, totals, self._earlier_totals)
        if len(self.samples) > 2 and sample.seconds < self.samples[-2].seconds + self._step:
            self.samples[-1] = sample
        else:
            self.samples.append(sample)
        if len(self.samples) > self._max_samples:
            self.samples = [*self.samples[:-1:2], self.samples[-1]]
            self._step = 2 * sample.seconds / self._max_samples

    def phases(self) -> list[PhaseTime]:
        """Return all phases that have begun. The last of them counts as lasting until the last sample."""
        if not self._begun:
            return []
        ends = [*(began for _, began in self._begun[1:]), self._end]
        return [
            PhaseTime(phase, round(began, 3), round(end - began, 3))
            for (phase, began), end in zip(self._begun, ends, strict=True)
        ]


class FailureKind(NamedTuple):
    """The failures with the same ``operation`` and ``errno``: their number, and the first of them as an ``example``."""

    operation: str
    errno: int
    failures: int
    example: Failure


class FailureSummary:
    """Failures of a job: their numbers by kind (operation and errno), and the first failures with all details
    (``first``).
    """

    def __init__(self) -> None:
        self.first: list[Failure] = []
        self.uncategorised = 0
        """Number of failures that are counted together, because there are more than ``MAX_FAILURE_KINDS`` kinds."""
        self._kinds: dict[tuple[str, int], tuple[int, Failure]] = {}

    def add_failures(self, failures: Sequence[Failure]) -> None:
        """Count ``failures``, and store them while there are fewer than ``MAX_STORED_FAILURES``."""
        self.first += failures[: max(0, MAX_STORED_FAILURES - len(self.first))]
        for failure in failures:
            kind = failure.operation, failure.errno
            count, example = self._kinds.get(kind, (0, failure))
            if count or len(self._kinds) < MAX_FAILURE_KINDS:
                self._kinds[kind] = count + 1, example
            else:
                self.uncategorised += 1

    def failure_kinds(self) -> list[FailureKind]:
        """Return the kinds of failures that are counted separately, the most frequent first."""
        kinds = [FailureKind(*kind, *count_and_example) for kind, count_and_example in self._kinds.items()]
        return sorted(kinds, key=lambda kind: (-kind.failures, kind.operation, kind.errno))

    def failures_as_json_values(self) -> dict[str, object]:
        """Return the failures as values for the JSON report (docs/formats/report.md)."""
        kinds = []
        for kind in self.failure_kinds():
            shown_values = failure_json_values(kind.example)
            reason = os.strerror(kind.errno) if kind.errno else ""
            example = {key: shown_values[key] for key in ("path", "path_b64", "message")}
            kinds.append(
                {
                    "operation": shown_values["operation"],
                    "errno": kind.errno,
                    "reason": reason,
                    "count": kind.failures,
                    "example": example,
                }
            )
        return {
            "kinds": kinds,
            "others": self.uncategorised,
            "first": [failure_json_values(each) for each in self.first],
        }
