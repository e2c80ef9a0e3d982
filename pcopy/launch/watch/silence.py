"""When to report a silent rank: one that hangs in a call, or does not answer the root.

A silent rank is not dead: the failover of a file server blocks all I/O for many minutes, and the job waits. So silence
is only reported: after some time, again each time it has lasted twice as long, and when it ends. This module reads no
clock; ``now`` is in seconds of a clock that stands still while this process itself is stopped.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import inf

from pcopy.named import NamedTuple


class Silence(NamedTuple):
    """A report: ``rank`` has been silent for ``seconds``; if it ``is_over``, the silence has just ended."""

    rank: int
    seconds: float
    is_over: bool


class _Spell:
    """One silence of a rank. It is reported next when it has lasted ``due`` seconds."""

    def __init__(self, since: float, due: float) -> None:
        self.since = since
        self.due = due
        self.is_told = False


class Silences:
    """The silences of the ranks that one rank observes. A rank that reports its own silence is not reported here
    as well.
    """

    def __init__(self, due: float, most_named: float) -> None:
        """Start without any silence.

        Args:
            due: seconds after which a silence is reported first.
            most_named: length at which a list of silent ranks may be truncated, so that a rank that is not in it may
                still be silent.
        """
        self._due = due
        self._most_named = most_named
        self._spells: dict[int, _Spell] = {}
        self._speaking: set[int] = set()

    @property
    def are_told(self) -> bool:
        """True if a silence that is not over has been reported."""
        return any(spell.is_told for spell in self._spells.values())

    def hasten(self, due: float) -> None:
        """Report silences after ``due`` seconds from now on, also those that have begun."""
        self._due = min(self._due, due)
        for spell in self._spells.values():
            if not spell.is_told:
                spell.due = min(spell.due, self._due)

    def spoke(self, rank: int) -> None:
        """Register that ``rank`` has reported its silence, or the end of it, itself."""
        if rank in self._spells:
            self._speaking.add(rank)

    def look(self, silent: Sequence[int], now: float) -> list[Silence]:
        """Return the silences to report at ``now``, when the ranks ``silent`` are silent."""
        due_reports: list[Silence] = []
        if len(silent) < self._most_named:
            for rank in sorted(self._spells.keys() - set(silent)):
                spell = self._spells.pop(rank)
                if spell.is_told and rank not in self._speaking:
                    due_reports.append(Silence(rank, now - spell.since, True))
                self._speaking.discard(rank)
        for rank in silent:
            spell = self._spells.setdefault(rank, _Spell(now, self._due))
            lasted = now - spell.since
            if rank not in self._speaking and lasted >= spell.due:
                spell.due, spell.is_told = 2 * lasted, True
                due_reports.append(Silence(rank, lasted, False))
        return due_reports


class OwnSilence(Silences):
    """Observes whether this rank makes progress.

    The main thread increments a counter all the time. The rows that the backend has under way are observed by the start
    time of the oldest one.
    """

    def __init__(self, rank: int, due: float) -> None:
        super().__init__(due, inf)
        self._rank = rank
        self._beats = -1
        self._oldest: float | None = None
        self.is_main = False
        """True if the main thread has made no progress between the last two checks."""

    def look_at(self, beats: int, now: float, oldest: float | None = None) -> list[Silence]:
        """Return the silences to report at ``now``.

        ``beats`` is the main thread's counter, ``oldest`` the start time of the oldest row under way (None: there is
        none).
        """
        self.is_main, self._beats = beats == self._beats, beats
        is_same, self._oldest = oldest is not None and oldest == self._oldest, oldest
        gets_on = not (self.is_main or is_same)
        return [*(self.look((), now) if gets_on else ()), *self.look((self._rank,), now)]
