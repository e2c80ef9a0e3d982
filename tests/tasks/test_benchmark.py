"""Whose files ranks of pdbench look at, what its advice compares, and what becomes of its directory."""

from __future__ import annotations

import os
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from pcopy.tasks.bench import steps
from pcopy.tasks.bench.measure import neighbours
from pcopy.tasks.bench.private import Private
from pcopy.tasks.bench.steps import Step, Taken
from pcopy.tools.bench_figures import advice


@given(st.lists(st.sampled_from("abc"), min_size=1, max_size=12), st.data())
def test_another_host_is_looked_at_if_there_is_one(hosts: list[str], data: st.DataObject) -> None:
    ranks = data.draw(st.integers(1, len(hosts)))
    for rank, other in enumerate(neighbours(hosts, ranks)):
        assert 0 <= other < ranks
        assert other != rank or ranks == 1
        assert hosts[other] != hosts[rank] or len(set(hosts[:ranks])) == 1


def test_each_rank_is_looked_at_once_whatever_the_placement() -> None:
    for hosts in (["a"] * 4 + ["b"] * 4, ["a", "b"] * 4, ["a", "b", "b", "c", "a", "c"]):
        assert sorted(neighbours(hosts, len(hosts))) == [*range(len(hosts))]
    assert neighbours([], 3) == [1, 2, 0]


def created(ranks: int, shared: bool, rate: int) -> Taken:
    return Taken(Step(int(steps.Test.CREATE), ranks, 1, shared, 1000, 1000, 1), rate, 1.0)


def test_one_rank_meets_no_wall_and_each_layout_is_compared_with_itself() -> None:
    alone = [created(1, True, 100), created(1, False, 1000)]
    assert [*advice(alone)] == ["creating is fastest with 1 rank: 1,000/s"]
    both = [*alone, created(2, True, 150), created(2, False, 2000)]
    lines = [*advice(both)]
    assert (
        "creating is fastest with 2 ranks in directories of their own: 2,000/s, 2.0 times as fast as one by one"
        in lines
    )
    assert [line for line in lines if line.startswith("one directory is a wall: creating in it reaches 8%")]


def test_only_what_was_made_is_removed(area: Path) -> None:
    """Somebody moves it, and gives its name to a directory of the user."""
    (area / "users").mkdir()
    (area / "users/kept").touch()
    root = os.open(area, os.O_RDONLY)
    private = Private(root, b".made")
    (area / ".made/0.0").mkdir()
    (area / ".made/0.0/0.0").touch()
    (area / ".made/link").symlink_to("../users")
    os.rename(area / ".made", area / "moved")
    os.rename(area / "users", area / ".made")
    assert private.remove().startswith("was moved or replaced meanwhile")
    assert os.listdir(area / ".made") == ["kept"]
    assert os.listdir(area / "moved") == []
    os.rename(area / ".made", area / "users")
    os.rename(area / "moved", area / ".made")
    assert (private.remove(), private.remove()) == ("", "")
    assert os.listdir(area) == ["users"]
    os.close(root)
