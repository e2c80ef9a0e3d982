"""Division of a task between ranks: its items are split into portions, each of which takes long enough to be worth
sending to another rank.

While a rank runs tasks, it learns how long an item takes. It is milliseconds if each system call goes to a file server.
On a local file system it is microseconds, and tasks are not divided there.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from pcopy.fsio.backend.columns import pack_names, unpack_names
from pcopy.tasks.base.rank import CALL_COST, Rank

MAX_PORTIONS = 32
"""Largest number of portions into which one task is divided. A portion that takes long is divided again by the rank
that has it.
"""

MIN_DIVISIBLE_COST = 16 * CALL_COST
"""Least estimated cost, in bytes, of a task that may be divided. A cheaper task is too short for that."""

MIN_PORTION_SECONDS = 0.02
"""Least duration of a portion, in seconds, if another rank is idle. It is much longer than the time to send a portion
to that rank and to start it there.
"""

MIN_PORTION_SECONDS_IF_ALL_BUSY = 0.25
"""Least duration of a portion, in seconds, if no rank is idle. If one becomes idle, it may have to wait that long until
this rank can give it something.
"""

DEFAULT_ITEM_SECONDS = 0.005
"""Assumed seconds per item for a kind of tasks that was not measured yet: the time of one call to a file server."""

_AVERAGED_ITEMS = 512
"""Number of measured items after which all measurements so far are given half their weight, so that newer ones count
more.
"""


class ItemDurations:
    """Average duration of one item in the tasks of each kind, as this rank has measured it so far. It decides into how
    many portions (tasks for a part of the items) a task is worth dividing.
    """

    def __init__(self, rank: Rank | None = None) -> None:
        """Begin without measurements. ``rank`` is not used; ``Rank.shared_instance`` passes it."""
        self._measured: dict[int, tuple[float, float]] = {}
        """Sum of seconds and number of items that were measured, by the code of the kind."""

    def record_duration(self, code: int, items: int, seconds: float) -> None:
        """Record that a task of the kind ``code`` took ``seconds`` for ``items`` items."""
        before, number = self._measured.get(code, (0.0, 0.0))
        share = 0.5 if number > _AVERAGED_ITEMS else 1.0
        self._measured[code] = before * share + seconds, number * share + items

    def _worthwhile_portion_count(self, code: int, items: int, *, hungry: bool) -> int:
        """Return the number of portions into which ``items`` items of the kind ``code`` can be divided so that each
        takes at least the least duration of a portion. ``hungry`` is True if another rank is idle and asks for work:
        then the least duration is shorter.
        """
        seconds, number = self._measured.get(code, (DEFAULT_ITEM_SECONDS, 1))
        return int(items * seconds / number / (MIN_PORTION_SECONDS if hungry else MIN_PORTION_SECONDS_IF_ALL_BUSY))

    def is_too_quick_to_divide(self, code: int, items: int) -> bool:
        """Return True if ``items`` items of the kind ``code`` take so little time that it is not worthwhile to send
        some of them to another rank.
        """
        return self._worthwhile_portion_count(code, items, hungry=True) < 2

    def task_portion_count(self, code: int, items: int, min_items: int, *, hungry: bool) -> int:
        """Return the number of portions into which a task should be divided; 0 or 1 if it should not be divided.

        Args:
            code: code of the task's kind.
            items: number of its items.
            min_items: least number of items of a portion.
            hungry: True if another rank is idle and asks for work.
        """
        return min(MAX_PORTIONS, items // min_items, self._worthwhile_portion_count(code, items, hungry=hungry))


def portion_slices(items: int, portions: int) -> list[slice]:
    """Return slices that split ``range(items)`` into ``portions`` parts, whose lengths differ by at most one."""
    ends = [items * portion // portions for portion in range(portions + 1)]
    return [slice(start, end) for start, end in pairwise(ends)]


def split_names(packed: bytes, slices: Sequence[slice]) -> list[bytes]:
    """Return the names in ``packed``, which are joined by slashes, as one packed string for each of the slices in
    ``slices``.
    """
    names = unpack_names(packed)
    return [pack_names(names[each]) for each in slices]


def split_column(column: bytes, slices: Sequence[slice]) -> list[bytes]:
    """Return the bytes of ``column``, which has the same number of bytes for each item, as one part for each of the
    slices ``slices``. The slices must cover all items.
    """
    width = len(column) // slices[-1].stop
    return [column[each.start * width : each.stop * width] for each in slices]
