"""Sums of trees, compared with simple counting. Trees beyond the limit count for the directory that contains them."""

from __future__ import annotations

from random import Random

import pytest

from pcopy.walk import tree_sums
from pcopy.walk.tree_sums import TreeSums
from tests.support.extent import seed


@pytest.mark.parametrize("top", [b"/", b"data/", b"/a/b/"])
@pytest.mark.parametrize("most", [4, 1000])
def test_tree_sums_of_two_ranks_are_merged(monkeypatch: pytest.MonkeyPatch, top: bytes, most: int) -> None:
    monkeypatch.setattr(tree_sums, "MAX_TREES", most)
    random = Random(seed())
    ranks = TreeSums(), TreeSums()
    sizes: dict[bytes, int] = {}
    for _ in range(60):
        names = [random.choice([b"x", b"y", b"long name"]) for _ in range(random.randrange(7))]
        above, size = top + b"".join(name + b"/" for name in names), random.randrange(1000)
        random.choice(ranks).add(above, len(names), 1, size, 2 * size)
        for end in range(min(len(names), 3) + 1):
            path = top + b"/".join(names[:end])
            path = path if path == b"/" else path.rstrip(b"/")
            sizes[path] = sizes.get(path, 0) + size
    ranks[0].merge(ranks[1].rows, ranks[1].has_merged_trees)
    found = {tree.path: tree.size for tree in ranks[0].largest_trees(1000)}
    assert all(tree.allocated == 2 * tree.size for tree in ranks[0].largest_trees(1000))
    whole = top.rstrip(b"/") or top
    if most == 1000:
        assert (found, ranks[0].has_merged_trees) == (sizes, False)
    else:
        assert found[whole] == sizes[whole]
        assert all(size <= sizes[path] for path, size in found.items())
        assert len(ranks[0].rows) <= most + 1
        assert ranks[0].has_merged_trees
