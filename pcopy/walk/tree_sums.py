"""Sums for the upper directories of a walk with everything below them, as du computes.

Memory is bounded: directories deeper than ``DEEPEST_TREE`` are added to the ones above them only, and so are further
ones once there are ``MOST_TREES``.
"""

from __future__ import annotations

from collections.abc import Mapping
from heapq import nsmallest

from pcopy.named import NamedTuple

DEEPEST_TREE = 3
"""Deepest level below a PATH whose directories have their own sum; PATH itself is level 0."""

MOST_TREES = 1 << 15
"""Maximum number of directories with their own sum, on each rank."""

Rows = dict[bytes, list[int]]


class TreeSum(NamedTuple):
    """The sum of all items below a directory: their number, the bytes of regular files, and the
    allocated bytes of all.
    """

    path: bytes
    items: int
    size: int
    allocated: int


class TreeSums:
    """The sums of one rank, or of all ranks."""

    def __init__(self) -> None:
        self.rows: Rows = {}
        """By path (ending with a slash): level, items, bytes, allocated bytes; without those of rows below it."""
        self.is_folded = False
        """True if there were more than ``MOST_TREES`` directories."""

    def add(self, above: bytes, level: int, items: int, size: int, allocated: int) -> None:
        """Add items that lie in the directory ``above`` (ending with a slash), which is ``level``
        levels below a PATH.
        """
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
        """Add the sums of another rank."""
        self.is_folded |= is_folded
        for above, (level, *numbers) in rows.items():
            self.add(above, level, *numbers)

    def largest(self, most: int) -> list[TreeSum]:
        """Return the ``most`` largest directories by bytes, each with everything below it, the largest first."""
        whole = {above: list(row) for above, row in self.rows.items()}
        for level in range(DEEPEST_TREE, 0, -1):
            for above in [path for path, row in whole.items() if row[0] == level]:
                parent = whole.setdefault(_around(above), [level - 1, 0, 0, 0])
                parent[1:] = [old + new for old, new in zip(parent[1:], whole[above][1:], strict=True)]
        trees = (TreeSum(above[:-1] or above, *row[1:]) for above, row in whole.items())
        return nsmallest(most, trees, key=lambda tree: (-tree.size, -tree.allocated, tree.path))


def _around(above: bytes) -> bytes:
    """Return the parent of a directory; both paths end with a slash."""
    return above[: above.rindex(b"/", 0, -1) + 1]
