"""How much lies below the upper directories of what is walked: all of it, however deep, as du tells.

Memory stays bounded: directories deeper than ``DEEPEST_TREE`` count for the ones above them only, and so do further
ones once there are ``MOST_TREES``.
"""

from __future__ import annotations

from collections.abc import Mapping
from heapq import nsmallest

from pcopy.named import NamedTuple

DEEPEST_TREE = 3
"""Levels below a PATH whose directories have a sum of their own; that of PATH is level 0."""

MOST_TREES = 1 << 15
"""Directories that have a sum of their own, on each rank."""

Rows = dict[bytes, list[int]]


class TreeSum(NamedTuple):
    """What is told of the items below a directory: how many, bytes of regular files, allocated bytes of all."""

    path: bytes
    items: int
    size: int
    allocated: int


class TreeSums:
    """Of one rank, or of all."""

    def __init__(self) -> None:
        self.rows: Rows = {}
        """By path, which ends with a slash: level, items, bytes, allocated bytes; without those of rows below it."""
        self.is_folded = False
        """Were there more than ``MOST_TREES``?"""

    def add(self, above: bytes, level: int, items: int, size: int, allocated: int) -> None:
        """So much lies in the directory ``above`` (its path ends with a slash), so many levels below a PATH."""
        if level > DEEPEST_TREE:
            above = above.rsplit(b"/", level - DEEPEST_TREE + 1)[0] + b"/"
            level = DEEPEST_TREE
        row = self.rows.get(above)
        while row is None:
            if level == 0 or len(self.rows) < MOST_TREES:
                row = self.rows[above] = [level, 0, 0, 0]
                break
            self.is_folded = True
            above, level = _around(above), level - 1
            row = self.rows.get(above)
        row[1] += items
        row[2] += size
        row[3] += allocated

    def merge(self, rows: Mapping[bytes, list[int]], is_folded: bool) -> None:
        """Adds what another rank has found."""
        self.is_folded |= is_folded
        for above, (level, *numbers) in rows.items():
            self.add(above, level, *numbers)

    def largest(self, most: int) -> list[TreeSum]:
        """The largest by bytes, with all that lies below each; the largest first."""
        whole = {above: list(row) for above, row in self.rows.items()}
        for level in range(DEEPEST_TREE, 0, -1):
            for above in [path for path, row in whole.items() if row[0] == level]:
                around = whole.setdefault(_around(above), [level - 1, 0, 0, 0])
                around[1:] = [old + new for old, new in zip(around[1:], whole[above][1:], strict=True)]
        trees = (TreeSum(above[:-1] or above, *row[1:]) for above, row in whole.items())
        return nsmallest(most, trees, key=lambda tree: (-tree.size, -tree.allocated, tree.path))


def _around(above: bytes) -> bytes:
    """The directory around one; both end with a slash."""
    return above[: above.rindex(b"/", 0, -1) + 1]
