"""How the root ends a phase: it gets the exact sums of all ranks, asks what comes next, and waits for storage.

It also asks for the sums while a phase goes on (``pcopy.engine.progress``); nobody waits for the answers then.
"""

from __future__ import annotations

from collections.abc import Iterable
from math import inf
from typing import Protocol

from pcopy.engine.commit import COMMIT_POLL, Commit
from pcopy.engine.journal import LOST
from pcopy.engine.limits import Limits
from pcopy.engine.messages import Halt, Outgoing
from pcopy.engine.progress import CounterTree
from pcopy.engine.task import Spawn
from pcopy.named import NamedTuple


class Director(Protocol):
    """Decides at the root what happens between phases. ``totals`` are exact: nothing runs while it is asked."""

    def next_phase(self, phase: int, totals: tuple[int, ...]) -> int | None:
        """The phase after ``phase``, a higher number, or None when the job is over."""

    def first_tasks(self, phase: int) -> Iterable[Spawn]:
        """What the root puts in its queue as ``phase`` begins."""

    def status(self, totals: tuple[int, ...], halted: Halt | None) -> int:
        """The exit status of all ranks; ``halted`` is the reason of an early stop."""


class Next(NamedTuple):
    """The phase that comes next; or None, and the ``status`` of the job, which is over."""

    phase: int | None
    status: int


class PhaseEnd:
    """The root's part; on other ranks nothing ever happens here."""

    def __init__(self, director: Director, limits: Limits, progress: CounterTree, commit: Commit) -> None:
        self._director = director
        self._limits = limits
        self._progress = progress
        self._commit = commit
        self._next: Next | None = None
        self._complete = 0
        self.next_query = inf
        """When to ask again, in seconds."""

    @property
    def is_near(self) -> bool:
        """Is a phase over, and are its sums asked for?"""
        return self._complete > 0

    @property
    def is_last(self) -> bool:
        return self._next is not None and self._next.phase is None

    def ask(self, now: float) -> Outgoing:
        """Asks for all counters, and decides when to ask again."""
        asked = self._progress.ask()
        interval = min(self._limits.progress_interval, self._progress.steering.interval)
        if self._complete:  # complete answers are needed, and may take longer than an interval: ever more patience
            interval *= 2 ** (self._progress.sequence - self._complete)
        self.next_query = now + interval
        return asked

    def begin(self, now: float) -> Outgoing:
        """The phase is over: asks for its sums, unless that has been done."""
        if self._complete:
            return []
        asked = self.ask(now)
        self._complete = self._progress.sequence
        return asked

    def decide(self, now: float, phase: int, halted: Halt | None, *, resumed: bool) -> Next | None:
        """What comes next, once the sums of ``phase`` are complete and what it did is on storage; else None."""
        report = self._progress.report
        if report is None or report.sequence < self._complete or report.silent:
            return None
        if self._next is None or (halted is not None and self._next.phase is not None):
            following = None if halted is not None else self._director.next_phase(phase, report.totals)
            status = self._director.status(report.totals, halted) if following is None else 0
            self._next = Next(following, status)
        following, status = self._next
        needed = status != 0 or resumed or following in self._limits.durable_before
        if not self._commit.is_done(report, now, needed=needed, halted=halted is not None, phase=phase):
            self._complete, self.next_query = report.sequence + 1, now + COMMIT_POLL
            return None
        self._complete, self._next = 0, None
        if following is None and not status and halted is not None and report.durable == LOST:
            return Next(None, self._director.status(report.totals, halted))  # all is done, and not on storage
        return Next(following, status)
