"""When is a line told about a silent rank: one that hangs in a call, or does not answer the root?

A silent rank is not dead: the failover of a file server blocks all I/O for many minutes, and the job waits. So silence
is only told: once it has lasted, again each time it has lasted twice as long, and when it is over. There is no clock
here; ``now`` is in seconds on a clock that stands still while this process itself is stopped.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

HANGING = 30.0
"""Seconds without a sign of life after which a rank tells of itself."""

HANGING_ON_STOP = 3.0
"""The same, and that after which rank 0 tells of others, once a signal has asked the rank to stop."""

NO_ANSWER = 60.0
"""Seconds without an answer after which rank 0 tells of another rank, which may be unable to speak for itself."""


class Silence(NamedTuple):
    """``rank`` has been silent for ``seconds``, or has been until now if it ``is_over``."""

    rank: int
    seconds: float
    is_over: bool


class _Spell:
    """One silence from its beginning on; it is next told of when it has lasted ``due`` seconds."""

    __slots__ = ("due", "is_told", "since")

    def __init__(self, since: float, due: float) -> None:
        self.since = since
        self.due = due
        self.is_told = False

    def hasten(self, due: float) -> None:
        if not self.is_told:
            self.due = min(self.due, due)

    def look(self, now: float) -> float | None:
        """The seconds that it has lasted, if they are to be told."""
        lasted = now - self.since
        if lasted < self.due:
            return None
        self.due = 2 * lasted
        self.is_told = True
        return lasted


class OwnSilence:
    """Whether this rank's main thread gets on, by a count that it raises all the time."""

    def __init__(self, rank: int, now: float, hanging: float) -> None:
        self._rank = rank
        self._beats = -1
        self._hanging = hanging
        self._spell = _Spell(now, hanging)

    @property
    def is_told(self) -> bool:
        return self._spell.is_told

    def hasten(self, seconds: float) -> None:
        """From now on, and where it is silent already, ``seconds`` are enough to tell of it."""
        self._hanging = min(self._hanging, seconds)
        self._spell.hasten(self._hanging)

    def look(self, beats: int, now: float) -> Silence | None:
        """What is to be told at ``now``, when the count is ``beats``."""
        spell = self._spell
        if beats != self._beats:
            self._beats = beats
            self._spell = _Spell(now, self._hanging)
            return Silence(self._rank, now - spell.since, True) if spell.is_told else None
        lasted = spell.look(now)
        return None if lasted is None else Silence(self._rank, lasted, False)


class OthersSilence:
    """At rank 0: who has not answered. A rank that tells of itself is not told of here as well."""

    def __init__(self, no_answer: float, most_named: int) -> None:
        """``most_named``: a list of as many ranks may be cut, so that one that is missing in it has not answered."""
        self._no_answer = no_answer
        self._most_named = most_named
        self._spells: dict[int, _Spell] = {}
        self._speaking: set[int] = set()

    def hasten(self, seconds: float) -> None:
        """From now on, and where a rank is silent already, ``seconds`` are enough to tell of it."""
        self._no_answer = min(self._no_answer, seconds)
        for spell in self._spells.values():
            spell.hasten(self._no_answer)

    def spoke(self, rank: int) -> None:
        """``rank`` has told of its silence itself, or of the end of it."""
        if rank in self._spells:
            self._speaking.add(rank)

    def look(self, silent: Sequence[int], now: float) -> list[Silence]:
        """What is to be told at ``now``, when the ranks ``silent`` have not answered lately."""
        told: list[Silence] = []
        if len(silent) < self._most_named:
            for rank in sorted(self._spells.keys() - set(silent)):
                spell = self._spells.pop(rank)
                if spell.is_told and rank not in self._speaking:
                    told.append(Silence(rank, now - spell.since, True))
                self._speaking.discard(rank)
        for rank in silent:
            spell = self._spells.setdefault(rank, _Spell(now, self._no_answer))
            if rank not in self._speaking and (lasted := spell.look(now)) is not None:
                told.append(Silence(rank, lasted, False))
        return told
