"""How a task is divided between ranks: its items are cut into portions, each of which takes long enough to be worth it.

How long that is, a rank learns as it runs tasks: milliseconds an item where each call goes to a server, microseconds on
a local file system, where nothing is divided.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from pcopy.fsio.kernel.columns import pack_names, unpack_names
from pcopy.tasks.base.rank import CALL_COST, Rank

MOST_PORTIONS = 32
"""Of one task at a time; a portion that takes long is divided again."""

LEAST_COST = 16 * CALL_COST
"""A task that is estimated lower, in bytes, is not looked at."""

PORTION_SECONDS = 0.02
"""What a portion takes at least: far longer than it takes to be given away, and to be begun."""

UNASKED_SECONDS = 0.25
"""The same, as long as nobody is hungry: for so long a rank may hold what others could do, once they have nothing."""

GUESS = 0.005
"""Seconds that an item is taken to need before any of its kind has been seen: a call to a server."""

_REMEMBERED = 512
"""Items after which what was learned of them counts for half."""


class Paces:
    """How long the items of each kind of tasks take on one rank."""

    def __init__(self, rank: Rank | None = None) -> None:
        """Of any ``rank``."""
        self._seen: dict[int, tuple[float, float]] = {}
        """Seconds, and the items that have taken them, by the kind's code."""

    def took(self, code: int, items: int, seconds: float) -> None:
        """A task has run to its end."""
        before, number = self._seen.get(code, (0.0, 0.0))
        share = 0.5 if number > _REMEMBERED else 1.0
        self._seen[code] = before * share + seconds, number * share + items

    def _worth(self, code: int, items: int, *, hungry: bool) -> int:
        """How many portions take long enough."""
        seconds, number = self._seen.get(code, (GUESS, 1))
        return int(items * seconds / number / (PORTION_SECONDS if hungry else UNASKED_SECONDS))

    def are_quick(self, code: int, items: int) -> bool:
        """Are so many items over before it is worth it that others take a portion of them?"""
        return self._worth(code, items, hungry=True) < 2

    def portions(self, code: int, items: int, least: int, *, hungry: bool) -> int:
        """Into how many, of at ``least`` so many items, a task with so many ``items`` is divided; 0 or 1: it is not."""
        return min(MOST_PORTIONS, items // least, self._worth(code, items, hungry=hungry))


def cuts(items: int, portions: int) -> list[slice]:
    """``items`` in so many stretches, which differ by one at most."""
    ends = [items * portion // portions for portion in range(portions + 1)]
    return [slice(start, end) for start, end in pairwise(ends)]


def cut_names(packed: bytes, at: Sequence[slice]) -> list[bytes]:
    """Names that are joined by slashes."""
    names = unpack_names(packed)
    return [pack_names(names[each]) for each in at]


def cut_column(column: bytes, at: Sequence[slice]) -> list[bytes]:
    """A column with as many bytes for each item."""
    width = len(column) // at[-1].stop
    return [column[each.start * width : each.stop * width] for each in at]
