"""When to report a silent rank: one that hangs in a call, or does not answer the root.

A silent rank is not dead: the failover of a file server blocks all I/O for many minutes, and the job waits. So silence
is only reported: after some time, again each time it has lasted twice as long, and when it ends. This module reads no
clock; ``now`` is in seconds of a clock that stands still while this process itself is stopped.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import inf

from pcopy.fast_named_tuple import NamedTuple


class SilenceReport(NamedTuple):
    """A report: ``rank`` has been silent for ``seconds``; if it ``is_over``, the silence has just ended."""

    rank: int
    seconds: float
    is_over: bool


class _SilentPeriod:
    """One silence of a rank. It is reported next when it has lasted ``due`` seconds."""

    def __init__(self, since: float, due: float) -> None:
        self.since = since
        self.due = due
        self.is_reported = False


class SilenceMonitor:
    """The silences of the ranks that one rank observes. A rank that reports its own silence is not reported here
    as well.
    """

    def __init__(self, report_after: float, most_named: float) -> None:
        """Start without any silence.

        Args:
            report_after: seconds after which a silence is reported first.
            most_named: length at which a list of silent ranks may be truncated, so that a rank that is not in it may
                still be silent.
        """
        self._due = report_after
        self._most_named = most_named
        self._periods: dict[int, _SilentPeriod] = {}
        self._self_reporting: set[int] = set()

    @property
    def has_reported(self) -> bool:
        """True if a silence that is not over has been reported."""
        return any(spell.is_reported for spell in self._periods.values())

    def report_earlier(self, due: float) -> None:
        """Report silences after ``due`` seconds from now on, also those that have begun."""
        self._due = min(self._due, due)
        for spell in self._periods.values():
            if not spell.is_reported:
                spell.due = min(spell.due, self._due)

    def add_own_report(self, rank: int) -> None:
        """Register that ``rank`` has reported its silence, or the end of it, itself."""
        if rank in self._periods:
            self._self_reporting.add(rank)

    def reports_due(self, silent: Sequence[int], now: float) -> list[SilenceReport]:
        """Return the silences to report at ``now``, when the ranks ``silent`` are silent."""
        due_reports: list[SilenceReport] = []
        if len(silent) < self._most_named:
            for rank in sorted(self._periods.keys() - set(silent)):
                spell = self._periods.pop(rank)
                if spell.is_reported and rank not in self._self_reporting:
                    due_reports.append(SilenceReport(rank, now - spell.since, True))
                self._self_reporting.discard(rank)
        for rank in silent:
            spell = self._periods.setdefault(rank, _SilentPeriod(now, self._due))
            lasted = now - spell.since
            if rank not in self._self_reporting and lasted >= spell.due:
                spell.due, spell.is_reported = 2 * lasted, True
                due_reports.append(SilenceReport(rank, lasted, False))
        return due_reports


class OwnSilenceMonitor(SilenceMonitor):
    """Observes whether this rank makes progress.

    The main thread increments a counter all the time. The rows that the backend has under way are observed by the start
    time of the oldest one.
    """

    def __init__(self, rank: int, due: float) -> None:
        super().__init__(due, inf)
        self._rank = rank
        self._beats = -1
        self._oldest: float | None = None
        self.is_main_thread_silent = False
        """True if the main thread has made no progress between the last two checks."""

    def due_own_reports(self, beats: int, now: float, oldest: float | None = None) -> list[SilenceReport]:
        """Return the silences to report at ``now``.

        ``beats`` is the main thread's counter, ``oldest`` the start time of the oldest row under way (None: there is
        none).
        """
        self.is_main_thread_silent, self._beats = beats == self._beats, beats
        is_same, self._oldest = oldest is not None and oldest == self._oldest, oldest
        gets_on = not (self.is_main_thread_silent or is_same)
        return [*(self.reports_due((), now) if gets_on else ()), *self.reports_due((self._rank,), now)]
