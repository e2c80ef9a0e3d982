"""Decides when to report a silent rank: one that hangs in a system call, or does not answer the queries of rank 0.

A silent rank need not be dead: the failover of a file server blocks all I/O for many minutes, and the job waits. So a
silence does not end the job. It is reported after some time, again each time it has lasted twice as long, and when it
ends. This module reads no clock; ``now`` is in seconds of a clock that stands still while this process itself is
stopped.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import inf

from pcopy.fast_named_tuple import NamedTuple


class SilenceReport(NamedTuple):
    """A message to be printed: ``rank`` has given no sign of life for ``seconds``. If ``is_over`` is True, it has just
    begun to answer again.
    """

    rank: int
    seconds: float
    is_over: bool


class _SilentPeriod:
    """A period in which a rank gives no sign of life. It began at the time ``since``, and is reported next when it has
    lasted ``due`` seconds.
    """

    def __init__(self, since: float, due: float) -> None:
        self.since = since
        self.due = due
        self.is_reported = False


class RankSilenceMonitor:
    """Decides when to report that other ranks give no sign of life: after some time, again each time the silence has
    lasted twice as long, and when it ends. A silence that the rank itself has reported is not reported again.
    """

    def __init__(self, report_after: float, most_named: float) -> None:
        """Begin to observe; no rank counts as silent yet.

        Args:
            report_after: seconds without a sign of life after which a rank is reported for the first time.
            most_named: maximum length of the list of silent ranks. If the list has that length, it may be truncated, so
                a rank that is not in it may still be silent.
        """
        self._due = report_after
        self._most_named = most_named
        self._periods: dict[int, _SilentPeriod] = {}
        self._self_reporting: set[int] = set()

    @property
    def has_reported_silence(self) -> bool:
        """True if a rank was reported to give no sign of life, and its return was not reported yet."""
        return any(spell.is_reported for spell in self._periods.values())

    def shorten_time_to_report_silence(self, due: float) -> None:
        """From now on report a silence when it has lasted ``due`` seconds, if that is earlier than before. This also
        applies to silences that have begun. Called when the user wants to stop the job.
        """
        self._due = min(self._due, due)
        for spell in self._periods.values():
            if not spell.is_reported:
                spell.due = min(spell.due, self._due)

    def register_report_sent_by_rank(self, rank: int) -> None:
        """Register that ``rank`` has itself reported that it gives no sign of life, or gives one again, so that it is
        not reported here.
        """
        if rank in self._periods:
            self._self_reporting.add(rank)

    def silence_reports_to_print(self, silent: Sequence[int], now: float) -> list[SilenceReport]:
        """Return the reports to print at the time ``now`` about ranks that give no sign of life, or give one again.
        ``silent`` are the ranks that give none now.
        """
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


class OwnRankSilenceMonitor(RankSilenceMonitor):
    """Decides when this rank reports that it makes no progress itself, for example because it hangs in a system call.

    The main thread increments a counter all the time while it makes progress. Other threads perform operations; they
    make progress if the start time of the oldest operation in progress changes.
    """

    def __init__(self, rank: int, due: float) -> None:
        super().__init__(due, inf)
        self._rank = rank
        self._beats = -1
        self._oldest: float | None = None
        self.is_main_thread_silent = False
        """True if the main thread has made no progress between the last two checks."""

    def own_silence_reports_to_print(self, beats: int, now: float, oldest: float | None = None) -> list[SilenceReport]:
        """Return the reports to print at the time ``now``: that this rank makes no progress, or that it makes progress
        again.

        Args:
            beats: counter that the main thread increments.
            now: time in seconds.
            oldest: start time of the oldest operation in progress; None if there is none.
        """
        self.is_main_thread_silent, self._beats = beats == self._beats, beats
        is_same, self._oldest = oldest is not None and oldest == self._oldest, oldest
        gets_on = not (self.is_main_thread_silent or is_same)
        return [
            *(self.silence_reports_to_print((), now) if gets_on else ()),
            *self.silence_reports_to_print((self._rank,), now),
        ]
