"""Sums for directories of a walk with everything below them, as du(1) computes them, for the upper levels only.

Memory is bounded: a directory deeper than ``MAX_TREE_LEVEL`` has no sum of its own, but counts in those above it. So
does each further directory if there are already ``MAX_TREES`` sums.
"""

from __future__ import annotations

from collections.abc import Mapping
from heapq import nsmallest

from pcopy.fast_named_tuple import NamedTuple

MAX_TREE_LEVEL = 3
"""Maximum number of levels below a PATH on which directories have their own sum; PATH itself is level 0. Deeper
directories are counted in those above them.
"""

MAX_TREES = 1 << 15
"""Maximum number of directories for which a sum with everything below them is kept, on each rank and after merging on
rank 0.
"""

TreeSumRows = dict[bytes, list[int]]


class TreeSum(NamedTuple):
    """The sums of all items below the directory ``path``: their number (``items``), the bytes of regular files
    (``size``), and the bytes that are allocated for all of them.
    """

    path: bytes
    items: int
    size: int
    allocated: int


class TreeSums:
    """Number and bytes of the items in each directory of the upper levels, with everything below it, as du(1) shows
    them. The sums of one rank or, after merging, of all ranks.
    """

    def __init__(self) -> None:
        self.rows: TreeSumRows = {}
        """Sums by path of a directory (ending with a slash): level, number of items, bytes, allocated bytes. Items
        below the directory that are counted for a directory on a lower level are not included here.
        """
        self.has_merged_trees = False
        """True if some directory of the upper levels has no sum of its own, but is counted in that above it, because
        there were ``MAX_TREES`` sums already.
        """

    def add(self, above: bytes, level: int, items: int, size: int, allocated: int) -> None:
        """Add items of one directory to the sum of this directory, or of the one above it that has a sum.

        Args:
            above: path of the directory, ending with a slash.
            level: number of levels that it is below a PATH of the command line.
            items: number of items.
            size: bytes of the regular files among them.
            allocated: bytes that are allocated for all of them.
        """
        if level > MAX_TREE_LEVEL:
            above, level = _path_of_first_components(above, above.count(b"/") - level + MAX_TREE_LEVEL), MAX_TREE_LEVEL
        row = self.rows.get(above)
        while row is None:
            if level == 0 or len(self.rows) < MAX_TREES:
                row = self.rows[above] = [level, 0, 0, 0]
                break
            self.has_merged_trees = True
            above, level = _parent_directory_path(above), level - 1
            row = self.rows.get(above)
        row[1] += items
        row[2] += size
        row[3] += allocated

    def merge(self, rows: Mapping[bytes, list[int]], is_folded: bool) -> None:
        """Add the sums of another rank. The arguments are the values of that rank's attributes: ``rows``, and as
        ``is_folded`` its ``has_merged_trees``.
        """
        self.has_merged_trees |= is_folded
        for above, (level, *numbers) in rows.items():
            self.add(above, level, *numbers)

    def largest_trees(self, most: int) -> list[TreeSum]:
        """Return the ``most`` largest directories by bytes, each with everything below it, the largest first."""
        whole = {above: list(row) for above, row in self.rows.items()}
        paths_by_level: list[list[bytes]] = [[] for _ in range(MAX_TREE_LEVEL + 1)]
        for above, row in self.rows.items():
            paths_by_level[row[0]].append(above)
        for level in range(MAX_TREE_LEVEL, 0, -1):
            for path in paths_by_level[level]:
                above = _parent_directory_path(path)
                parent = whole.get(above)
                if parent is None:
                    parent = whole[above] = [level - 1, 0, 0, 0]
                    paths_by_level[level - 1].append(above)
                _, items, size, allocated = whole[path]
                parent[1] += items
                parent[2] += size
                parent[3] += allocated
        largest = nsmallest(most, whole.items(), key=lambda tree: (-tree[1][2], -tree[1][3], tree[0]))
        return [TreeSum(above[:-1] or above, *row[1:]) for above, row in largest]


def _parent_directory_path(above: bytes) -> bytes:
    """Return the parent of a directory; both paths end with a slash."""
    return above[: above.rindex(b"/", 0, -1) + 1]


def _path_of_first_components(above: bytes, slashes: int) -> bytes:
    """Return the beginning of a path that ends with the slash number ``slashes`` (counted from 1)."""
    end = -1
    for _ in range(slashes):
        end = above.index(b"/", end + 1)
    return above[: end + 1]
