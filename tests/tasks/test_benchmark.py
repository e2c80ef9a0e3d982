"""pdbench: whose files each rank reads, what its advice compares, and the removal of its directory."""

from __future__ import annotations

import os
import statistics
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pcopy.tasks.bench import steps
from pcopy.tasks.bench.measure import ranks_whose_files_are_read
from pcopy.tasks.bench.private import PrivateDirectory
from pcopy.tasks.bench.steps import BenchmarkStep, StepResult, median_results
from pcopy.tools.bench_figures import advice_lines, benchmark_json_values


@given(st.lists(st.sampled_from("abc"), min_size=1, max_size=12), st.data())
def test_each_rank_reads_files_of_another_host_if_there_is_one(hosts: list[str], data: st.DataObject) -> None:
    ranks = data.draw(st.integers(1, len(hosts)))
    for rank, other in enumerate(ranks_whose_files_are_read(hosts, ranks)):
        assert 0 <= other < ranks
        assert other != rank or ranks == 1
        assert hosts[other] != hosts[rank] or len(set(hosts[:ranks])) == 1


def test_files_of_each_rank_are_read_by_exactly_one_other() -> None:
    for hosts in (["a"] * 4 + ["b"] * 4, ["a", "b"] * 4, ["a", "b", "b", "c", "a", "c"]):
        assert sorted(ranks_whose_files_are_read(hosts, len(hosts))) == [*range(len(hosts))]
    assert ranks_whose_files_are_read([], 3) == [1, 2, 0]


def created(ranks: int, shared: bool, rate: float, turn: int = 1) -> StepResult:
    return StepResult(
        BenchmarkStep(int(steps.BenchmarkTest.CREATE), ranks, 1, shared, 1000, 1000, turn), 1000, 1000 / rate
    )


def test_one_outlier_does_not_change_the_advice() -> None:
    """One of three repeats is far too high or too low."""
    rates = {1: (100, 9000, 100), 2: (390, 20, 400), 4: (410, 400, 5)}
    taken = [created(ranks, True, rate, turn) for ranks, some in rates.items() for turn, rate in enumerate(some, 1)]
    reported = {each.step.ranks: each.rate for each in median_results(taken)}
    assert reported == pytest.approx({ranks: statistics.median(some) for ranks, some in rates.items()})
    steady = [created(ranks, True, rate) for ranks, rate in reported.items()]
    assert next(advice_lines(steady)).startswith("creating is fastest with 2 ranks in one directory: 390/s, 3.9 times")


def test_widely_varying_repeats_give_no_advice() -> None:
    noise = (100, 190, 140)
    taken = [created(ranks, True, ranks + rate, turn) for ranks in (1, 2, 4) for turn, rate in enumerate(noise, 1)]
    (line,) = advice_lines(median_results(taken))
    assert line.startswith(
        "no advice: repeats of a measurement differ by 63%: they were too short, or other programs use the file system"
    )
    assert benchmark_json_values(median_results(taken))["best"] is None
    little = [
        created(ranks, True, 100 * ranks + rate, turn) for ranks in (1, 2, 4) for turn, rate in enumerate((1, 2, 3))
    ]
    assert benchmark_json_values(median_results(little))["best"] == {"ranks": 4, "in_flight": 1}


def test_differences_smaller_than_between_repeats_are_ignored() -> None:
    """The advice is the smallest number of ranks that may be as fast."""
    rates = {1: (80, 100, 120), 2: (92, 115, 138), 4: (200, 250, 300)}
    for ranks, fastest in ((2, 1), (4, 4)):
        some = {number: each for number, each in rates.items() if number in (1, ranks)}
        taken = [created(number, False, rate, turn) for number, each in some.items() for turn, rate in enumerate(each)]
        assert next(advice_lines(median_results(taken))).startswith(f"creating is fastest with {fastest} rank")


def test_advice_compares_each_layout_only_with_itself() -> None:
    alone = [created(1, True, 100), created(1, False, 1000)]
    assert [*advice_lines(alone)] == ["creating is fastest with 1 rank: 1,000/s"]
    both = [*alone, created(2, True, 150), created(2, False, 2000)]
    lines = [*advice_lines(both)]
    assert (
        "creating is fastest with 2 ranks in directories of their own: 2,000/s, 2.0 times as fast as one by one"
        in lines
    )
    assert [line for line in lines if line.startswith("one directory is a bottleneck: creating files in it reaches 8%")]


def test_only_created_directories_are_removed(area: Path) -> None:
    """Another process moves it, and a directory of the user gets its name."""
    (area / "users").mkdir()
    (area / "users/kept").touch()
    root = os.open(area, os.O_RDONLY)
    private = PrivateDirectory(root, b".made")
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
