"""When is a line told about a silent rank: one that hangs in a call, or does not answer the root?

A silent rank is not dead: the failover of a file server blocks all I/O for many minutes, and the job waits. So silence
is only told: once it has lasted, again each time it has lasted twice as long, and when it is over. There is no clock
here; ``now`` is in seconds on a clock that stands still while this process itself is stopped.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import inf

from pcopy.named import NamedTuple


class Silence(NamedTuple):
    """``rank`` has been silent for ``seconds``, or has been until now if it ``is_over``."""

    rank: int
    seconds: float
    is_over: bool


class _Spell:
    """One silence from its beginning on; it is next told of when it has lasted ``due`` seconds."""

    def __init__(self, since: float, due: float) -> None:
        self.since = since
        self.due = due
        self.is_told = False


class Silences:
    """Of the ranks that one rank looks after. One that tells of itself is not told of here as well."""

    def __init__(self, due: float, most_named: float) -> None:
        """``due``: seconds after which a silence is told of first. ``most_named``: a list of as many ranks may be cut,
        so that one that is missing in it may be silent yet."""
        self._due = due
        self._most_named = most_named
        self._spells: dict[int, _Spell] = {}
        self._speaking: set[int] = set()

    @property
    def are_told(self) -> bool:
        """Has one been told of that is not over?"""
        return any(spell.is_told for spell in self._spells.values())

    def hasten(self, due: float) -> None:
        """From now on, and where a rank is silent already, ``due`` seconds are enough to tell of it."""
        self._due = min(self._due, due)
        for spell in self._spells.values():
            if not spell.is_told:
                spell.due = min(spell.due, self._due)

    def spoke(self, rank: int) -> None:
        """``rank`` has told of its silence itself, or of the end of it."""
        if rank in self._spells:
            self._speaking.add(rank)

    def look(self, silent: Sequence[int], now: float) -> list[Silence]:
        """What is to be told at ``now``, when these ranks are ``silent``."""
        told: list[Silence] = []
        if len(silent) < self._most_named:
            for rank in sorted(self._spells.keys() - set(silent)):
                spell = self._spells.pop(rank)
                if spell.is_told and rank not in self._speaking:
                    told.append(Silence(rank, now - spell.since, True))
                self._speaking.discard(rank)
        for rank in silent:
            spell = self._spells.setdefault(rank, _Spell(now, self._due))
            lasted = now - spell.since
            if rank not in self._speaking and lasted >= spell.due:
                spell.due, spell.is_told = 2 * lasted, True
                told.append(Silence(rank, lasted, False))
        return told


class OwnSilence(Silences):
    """Whether this rank gets on: its main thread, by a count that it raises all the time, and all rows that its kernel
    has under way, by when the oldest one has begun."""

    def __init__(self, rank: int, due: float) -> None:
        super().__init__(due, inf)
        self._rank = rank
        self._beats = -1
        self._oldest: float | None = None
        self.is_main = False
        """Has the main thread not got on between the last two looks?"""

    def look_at(self, beats: int, now: float, oldest: float | None = None) -> list[Silence]:
        """What is to be told at ``now``, when the count is ``beats``; ``oldest``: when that row has begun."""
        self.is_main, self._beats = beats == self._beats, beats
        is_same, self._oldest = oldest is not None and oldest == self._oldest, oldest
        gets_on = not (self.is_main or is_same)
        return [*(self.look((), now) if gets_on else ()), *self.look((self._rank,), now)]
