"""Data for a report, collected while a job runs, in bounded memory: counters over time, phases, and failures.

A sample holds the sums at one time, so that omitting samples loses none of what they count.
"""

from __future__ import annotations

import os
from collections.abc import Sequence

from pcopy.fast_named_tuple import NamedTuple
from pcopy.report.screen import failure_json_values
from pcopy.tasks.base.job import Failure, Totals

MAX_SAMPLES = 600
"""Maximum number of samples. If there would be more, every second one is removed. A chart has no more columns."""

MAX_KINDS = 200
"""Maximum number of kinds of failures that are counted separately. An operation may contain the name of an
attribute, which the file's owner chooses freely.
"""

MAX_FAILURES = 100
"""Maximum number of failures that are stored completely; the file of ``--errors`` has all of them."""


class Sample(NamedTuple):
    """Sums of this run at one time.

    Fields:
    - ``seconds``: time since the run began.
    - ``items``: completed items (copied, skipped or failed).
    - ``moved``: bytes moved.
    - ``checked``: items that the verification has compared.
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
    def from_totals(cls, seconds: float, totals: Totals, before: Totals) -> Sample:
        """Return the sample of the counters ``totals``, without the counters ``before`` of earlier runs."""
        sums = [each - other for each, other in zip(_sums_of(totals), _sums_of(before), strict=True)]
        return cls(round(seconds, 3), *sums)


def _sums_of(totals: Totals) -> tuple[int, ...]:
    """Return the sums of a sample from the counters of a job."""
    completed = totals.copied + totals.skipped + totals.failed
    checked = totals.verified + totals.refuted
    return completed, totals.moved, checked, totals.verified_bytes, totals.failed


class PhaseTime(NamedTuple):
    """A phase of a job: its name, when it ``began`` in seconds since the job began, and how many seconds it lasted."""

    phase: str
    began: float
    seconds: float


class JobHistory:
    """Counters over time, and phases; ``now`` is in seconds of a clock that never goes back."""

    def __init__(self, now: float, before: Totals, most: int = MAX_SAMPLES) -> None:
        self._start = now
        self._earlier_totals = before
        self._max_samples = most
        self._step = 0.0
        self.samples = [Sample.from_totals(0.0, before, before)]
        self._begun: list[tuple[str, float]] = []
        self._end = 0.0

    def add_sample(self, now: float, phase: str, totals: Totals) -> None:
        """Add the counters at the time ``now``; an empty ``phase`` stands for the current one."""
        self._end = seconds = now - self._start
        if phase and (not self._begun or self._begun[-1][0] != phase):
            self._begun.append((phase, seconds if self._begun else 0.0))
        sample = Sample.from_totals(seconds, totals, self._earlier_totals)
        if len(self.samples) > 2 and sample.seconds < self.samples[-2].seconds + self._step:
            self.samples[-1] = sample
        else:
            self.samples.append(sample)
        if len(self.samples) > self._max_samples:
            self.samples = [*self.samples[:-1:2], self.samples[-1]]
            self._step = 2 * sample.seconds / self._max_samples

    def phases(self) -> list[PhaseTime]:
        """Return all phases until now."""
        if not self._begun:
            return []
        ends = [*(began for _, began in self._begun[1:]), self._end]
        return [
            PhaseTime(phase, round(began, 3), round(end - began, 3))
            for (phase, began), end in zip(self._begun, ends, strict=True)
        ]


class FailureKind(NamedTuple):
    """A number of failures with the same operation and errno; ``example`` is the first of them."""

    operation: str
    errno: int
    failures: int
    example: Failure


class FailureSummary:
    """Failures of a job: their numbers by kind, and the first ones completely."""

    def __init__(self) -> None:
        self.first: list[Failure] = []
        self.uncategorised = 0
        """Number of failures whose kind is not counted separately."""
        self._kinds: dict[tuple[str, int], tuple[int, Failure]] = {}

    def add_failures(self, failures: Sequence[Failure]) -> None:
        """Add failures."""
        self.first += failures[: max(0, MAX_FAILURES - len(self.first))]
        for failure in failures:
            kind = failure.operation, failure.errno
            count, example = self._kinds.get(kind, (0, failure))
            if count or len(self._kinds) < MAX_KINDS:
                self._kinds[kind] = count + 1, example
            else:
                self.uncategorised += 1

    def kinds(self) -> list[FailureKind]:
        """Return the kinds, the most frequent first."""
        kinds = [FailureKind(*kind, *count_and_example) for kind, count_and_example in self._kinds.items()]
        return sorted(kinds, key=lambda kind: (-kind.failures, kind.operation, kind.errno))

    def json_values(self) -> dict[str, object]:
        """Return the failures for the JSON report."""
        kinds = []
        for kind in self.kinds():
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
