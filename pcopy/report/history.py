"""What a report remembers of a job while it runs, in bounded memory: how the sums grew, the phases, and the failures.

A sample holds the sums at one time, so that leaving samples out loses none of what they count.
"""

from __future__ import annotations

import os
from collections.abc import Sequence

from pcopy.named import NamedTuple
from pcopy.report.screen import failure_values
from pcopy.tasks.base.job import Failure, Totals

MOST_SAMPLES = 600
"""Samples that are kept; where there would be more, every second one goes. A chart has no more columns."""

MOST_KINDS = 200
"""Kinds of failures that are told apart: an operation may name an attribute, which is the file owner's choice."""

FIRST_FAILURES = 100
"""Failures that are kept; all of them are in the file of ``--errors``."""


class Sample(NamedTuple):
    """Sums of this run after so many ``seconds``: ``items`` that are settled, bytes that have ``moved``, ``checked``
    items and ``read_back`` bytes of the verification, and ``failed`` items."""

    seconds: float
    items: int
    moved: int
    checked: int
    read_back: int
    failed: int

    @classmethod
    def of(cls, seconds: float, totals: Totals, before: Totals) -> Sample:
        """``before`` are the sums of earlier runs."""
        sums = [each - other for each, other in zip(_sums(totals), _sums(before), strict=True)]
        return cls(round(seconds, 3), *sums)


def _sums(totals: Totals) -> tuple[int, ...]:
    settled = totals.copied + totals.skipped + totals.failed
    checked = totals.verified + totals.refuted
    return settled, totals.moved, checked, totals.verified_bytes, totals.failed


class PhaseTime(NamedTuple):
    """The job was in this phase from then on, in seconds since it began, and for so long."""

    phase: str
    began: float
    seconds: float


class History:
    """``now`` is in seconds of a clock that does not go back."""

    def __init__(self, now: float, before: Totals, most: int = MOST_SAMPLES) -> None:
        self._start = now
        self._before = before
        self._most = most
        self._step = 0.0
        self.samples = [Sample.of(0.0, before, before)]
        self._begun: list[tuple[str, float]] = []
        self._end = 0.0

    def add(self, now: float, phase: str, totals: Totals) -> None:
        """An empty ``phase`` stands for the last one."""
        self._end = seconds = now - self._start
        if phase and (not self._begun or self._begun[-1][0] != phase):
            self._begun.append((phase, seconds if self._begun else 0.0))
        sample = Sample.of(seconds, totals, self._before)
        if len(self.samples) > 2 and sample.seconds < self.samples[-2].seconds + self._step:
            self.samples[-1] = sample
        else:
            self.samples.append(sample)
        if len(self.samples) > self._most:
            self.samples = [*self.samples[:-1:2], self.samples[-1]]
            self._step = 2 * sample.seconds / self._most

    def phases(self) -> list[PhaseTime]:
        """All until now."""
        if not self._begun:
            return []
        ends = [*(began for _, began in self._begun[1:]), self._end]
        return [
            PhaseTime(phase, round(began, 3), round(end - began, 3))
            for (phase, began), end in zip(self._begun, ends, strict=True)
        ]


class FailureKind(NamedTuple):
    """A ``number`` of failures in which an ``operation`` met an ``errno``, and the first one of them."""

    operation: str
    errno: int
    number: int
    example: Failure


class FailureSums:
    def __init__(self) -> None:
        self.first: list[Failure] = []
        self.others = 0
        """Failures of further kinds than are told apart."""
        self._kinds: dict[tuple[str, int], tuple[int, Failure]] = {}

    def add(self, failures: Sequence[Failure]) -> None:
        self.first += failures[: max(0, FIRST_FAILURES - len(self.first))]
        for failure in failures:
            kind = failure.operation, failure.errno
            count, example = self._kinds.get(kind, (0, failure))
            if count or len(self._kinds) < MOST_KINDS:
                self._kinds[kind] = count + 1, example
            else:
                self.others += 1

    def kinds(self) -> list[FailureKind]:
        """The most frequent ones first."""
        kinds = [FailureKind(*kind, *counted) for kind, counted in self._kinds.items()]
        return sorted(kinds, key=lambda kind: (-kind.number, kind.operation, kind.errno))

    def values(self) -> dict[str, object]:
        """For programs."""
        kinds = []
        for kind in self.kinds():
            told = failure_values(kind.example)
            reason = os.strerror(kind.errno) if kind.errno else ""
            example = {key: told[key] for key in ("path", "path_b64", "message")}
            kinds.append(
                {
                    "operation": told["operation"],
                    "errno": kind.errno,
                    "reason": reason,
                    "count": kind.number,
                    "example": example,
                }
            )
        return {"kinds": kinds, "others": self.others, "first": [failure_values(each) for each in self.first]}
