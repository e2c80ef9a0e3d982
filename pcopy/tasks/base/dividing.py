"""Division of a task between ranks: its items are split into portions, each of which takes long enough to be worth
sending.

A rank learns the time per item while it runs tasks. It is milliseconds if each call goes to a file server; on a local
file system it is microseconds, and tasks are not divided there.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from pcopy.fsio.backend.columns import pack_names, unpack_names
from pcopy.tasks.base.rank import CALL_COST, Rank

MAX_PORTIONS = 32
"""Largest number of portions of one division. A portion that takes long is divided again."""

MIN_DIVISIBLE_COST = 16 * CALL_COST
"""Least estimated cost, in bytes, of a task that may be divided."""

MIN_PORTION_SECONDS = 0.02
"""Least duration of a portion, in seconds, if another rank is idle. It is much longer than the time to send and to
start a portion.
"""

MIN_PORTION_SECONDS_IF_ALL_BUSY = 0.25
"""Least duration of a portion, in seconds, if no rank is idle. A rank may hold this much work that others could do once
they become idle.
"""

DEFAULT_ITEM_SECONDS = 0.005
"""Assumed seconds per item of a kind that was not measured yet: the time of one call to a server."""

_AVERAGED_ITEMS = 512
"""Number of items after which older measurements count half."""


class ItemDurations:
    """Measured time per item of each kind of tasks, on one rank."""

    def __init__(self, rank: Rank | None = None) -> None:
        """Begin without measurements. ``rank`` is not used; ``Rank.own`` passes it."""
        self._measured: dict[int, tuple[float, float]] = {}
        """Sum of seconds and number of items, by the code of the kind."""

    def record_duration(self, code: int, items: int, seconds: float) -> None:
        """Record that a task with so many ``items`` took this many ``seconds``."""
        before, number = self._measured.get(code, (0.0, 0.0))
        share = 0.5 if number > _AVERAGED_ITEMS else 1.0
        self._measured[code] = before * share + seconds, number * share + items

    def _worthwhile_portions(self, code: int, items: int, *, hungry: bool) -> int:
        """Return the number of portions that each take long enough to be sent."""
        seconds, number = self._measured.get(code, (DEFAULT_ITEM_SECONDS, 1))
        return int(items * seconds / number / (MIN_PORTION_SECONDS if hungry else MIN_PORTION_SECONDS_IF_ALL_BUSY))

    def is_too_quick_to_divide(self, code: int, items: int) -> bool:
        """Return True if processing these ``items`` takes so little time that sending a portion of them to another rank
        is not worthwhile.
        """
        return self._worthwhile_portions(code, items, hungry=True) < 2

    def portion_count(self, code: int, items: int, least: int, *, hungry: bool) -> int:
        """Return the number of portions into which a task is divided; 0 or 1 if it is not divided.

        Args:
            code: code of the task's kind.
            items: number of its items.
            least: least number of items of a portion.
            hungry: True if another rank is idle and asks for work.
        """
        return min(MAX_PORTIONS, items // least, self._worthwhile_portions(code, items, hungry=hungry))


def portion_slices(items: int, portions: int) -> list[slice]:
    """Return slices that split ``items`` items into ``portion_count`` parts whose sizes differ by at most one."""
    ends = [items * portion // portions for portion in range(portions + 1)]
    return [slice(start, end) for start, end in pairwise(ends)]


def split_names(packed: bytes, at: Sequence[slice]) -> list[bytes]:
    """Return the names, which are joined by slashes, in parts according to the slices ``at``."""
    names = unpack_names(packed)
    return [pack_names(names[each]) for each in at]


def split_column(column: bytes, at: Sequence[slice]) -> list[bytes]:
    """Return a column, which has the same number of bytes for each item, in parts according to the slices ``at``."""
    width = len(column) // at[-1].stop
    return [column[each.start * width : each.stop * width] for each in at]
