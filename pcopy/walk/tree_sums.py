"""Sums for the upper directories of a walk with everything below them, as du computes.

Memory is bounded: directories deeper than ``MAX_TREE_LEVEL`` are added to the ones above them only, and so are further
ones once there are ``MAX_TREES``.
"""

from __future__ import annotations

from collections.abc import Mapping
from heapq import nsmallest

from pcopy.fast_named_tuple import NamedTuple

MAX_TREE_LEVEL = 3
"""Deepest level below a PATH whose directories have their own sum; PATH itself is level 0."""

MAX_TREES = 1 << 15
"""Maximum number of directories with their own sum, on each rank."""

TreeRows = dict[bytes, list[int]]


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
        self.rows: TreeRows = {}
        """By path (ending with a slash): level, items, bytes, allocated bytes; without those of rows below it."""
        self.has_merged_trees = False
        """True if there were more than ``MAX_TREES`` directories."""

    def add(self, above: bytes, level: int, items: int, size: int, allocated: int) -> None:
        """Add items that lie in the directory ``above`` (ending with a slash), which is ``level``
        levels below a PATH.
        """
        if level > MAX_TREE_LEVEL:
            above = above.rsplit(b"/", level - MAX_TREE_LEVEL + 1)[0] + b"/"
            level = MAX_TREE_LEVEL
        row = self.rows.get(above)
        while row is None:
            if level == 0 or len(self.rows) < MAX_TREES:
                row = self.rows[above] = [level, 0, 0, 0]
                break
            self.has_merged_trees = True
            above, level = _parent(above), level - 1
            row = self.rows.get(above)
        row[1] += items
        row[2] += size
        row[3] += allocated

    def merge(self, rows: Mapping[bytes, list[int]], is_folded: bool) -> None:
        """Add the sums of another rank."""
        self.has_merged_trees |= is_folded
        for above, (level, *numbers) in rows.items():
            self.add(above, level, *numbers)

    def largest(self, most: int) -> list[TreeSum]:
        """Return the ``most`` largest directories by bytes, each with everything below it, the largest first."""
        whole = {above: list(row) for above, row in self.rows.items()}
        for level in range(MAX_TREE_LEVEL, 0, -1):
            for above in [path for path, row in whole.items() if row[0] == level]:
                parent = whole.setdefault(_parent(above), [level - 1, 0, 0, 0])
                parent[1:] = [old + new for old, new in zip(parent[1:], whole[above][1:], strict=True)]
        trees = (TreeSum(above[:-1] or above, *row[1:]) for above, row in whole.items())
        return nsmallest(most, trees, key=lambda tree: (-tree.size, -tree.allocated, tree.path))


def _parent(above: bytes) -> bytes:
    """Return the parent of a directory; both paths end with a slash."""
    return above[: above.rindex(b"/", 0, -1) + 1]
