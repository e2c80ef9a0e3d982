"""Which rank reads data that a host wrote: a rank of another host, if there is one."""

from __future__ import annotations

from collections import Counter, defaultdict
from types import SimpleNamespace
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pcopy.engine.task import ANY_RANK
from pcopy.fsio.layout import FileStripes
from pcopy.tasks.base.distribution import Hosts
from pcopy.tasks.base.values import unpack_numbers
from pcopy.tasks.files.copy_chunk import (
    Chunk,
    CopyChunk,
    DistributeChunks,
    chunks_by_ost,
    consecutive_chunks,
    spawn_chunks,
)

MIB = 1 << 20
CLUSTERS = st.lists(st.sampled_from(["alpha", "beta", "gamma", "delta"]), min_size=1, max_size=12)


@given(CLUSTERS, st.data())
def test_data_written_by_a_host_is_read_on_another(names: list[str], data: st.DataObject) -> None:
    rank, writer = (data.draw(st.integers(0, len(names) - 1)) for _ in range(2))
    mine = Hosts(names, rank)
    written_by = Hosts(names, writer).this_host
    others = [other for other, name in enumerate(names) if name != names[writer]]
    chosen = [mine.rank_on_other_host(written_by) for _ in range(3 * len(names))]
    if others:
        assert set(chosen) == set(others), "each in its turn"
    else:
        assert set(chosen) == {ANY_RANK}


@given(CLUSTERS)
def test_all_ranks_use_the_same_byte_for_a_host(names: list[str]) -> None:
    called = {(name, Hosts(names, rank).this_host) for rank, name in enumerate(names)}
    assert len(called) == len({name for name, _ in called}) == len({byte for _, byte in called})
    assert all(0 <= byte < 256 for _, byte in called)


@pytest.mark.parametrize("rank", [0, 1, 3])
def test_work_is_spread_evenly_over_the_other_hosts(rank: int) -> None:
    """Three hosts with two ranks each: four ranks read the data written by the second host."""
    hosts = Hosts(["a", "a", "b", "b", "c", "c"], rank)
    turns = Counter(hosts.rank_on_other_host(1) for _ in range(400))
    assert turns.keys() == {0, 1, 4, 5}
    assert max(turns.values()) <= 2 * min(turns.values())


def test_first_choice_of_each_rank_is_itself() -> None:
    """So that ranks that start at the same time do not all choose the same one."""
    names = ["a", "b", "c", "d"]
    assert [Hosts(names, rank).rank_on_other_host(255) for rank in range(4)] == [0, 1, 2, 3]


def test_on_one_host_any_rank_may_read() -> None:
    for hosts in (Hosts((), 0), Hosts((), 5), Hosts(["here", "here"], 1)):
        assert hosts.this_host == 0
        assert hosts.rank_on_other_host(0) == ANY_RANK


def test_more_than_256_hosts_share_bytes_safely() -> None:
    """Hosts that share a byte count as one host, and no data is ever read by its writer."""
    names = [f"{number}" for number in range(300)]
    bytes_of = [Hosts(names, rank).this_host for rank in range(300)]
    assert set(bytes_of) == set(range(256))
    hosts = Hosts(names, 0)
    for rank in range(300):
        assert hosts.rank_on_other_host(bytes_of[rank]) != rank


class Spawned:
    """Replaces a task result; records the byte ranges of a file that each rank starts with."""

    def __init__(self) -> None:
        self.ranges: defaultdict[int | None, list[tuple[int, int]]] = defaultdict(list)

    def spawn_task(self, task: CopyChunk | DistributeChunks, cost: int = 0, *, owner: int | None = None) -> None:
        if isinstance(task, CopyChunk):
            self.ranges[owner] += task.byte_ranges()
            return
        numbers, width = unpack_numbers(task.chunks), len(Chunk._fields)
        for at in range(0, len(numbers), width):
            chunk = Chunk(*numbers[at : at + width])
            self.ranges[owner].append((chunk.start, chunk.end))


def begun_by(names: list[str], ranks: int, chunks: list[Chunk]) -> dict[int | None, list[tuple[int, int]]]:
    spawned = Spawned()
    spawn_chunks(cast(Any, None), chunks, cast(Any, SimpleNamespace(hosts=Hosts(names, 0, ranks))), cast(Any, spawned))
    found = sorted(each for ranges in spawned.ranges.values() for each in ranges)
    assert [start for start, _ in found] == [0, *(end for _, end in found[:-1])], "each byte once"
    return dict(spawned.ranges)


def test_each_host_starts_with_its_own_part_of_a_file() -> None:
    """One rank of each host; the other ranks of the host steal from it first."""
    chunks = consecutive_chunks(16 * MIB, MIB)
    begun = begun_by(["a", "a", "a", "b", "b", "b"], 6, chunks)
    assert {owner: len(ranges) for owner, ranges in begun.items()} == {0: 8, 3: 8}
    assert begun_by([], 4, chunks).keys() == {None}


def test_osts_are_distributed_over_hosts_before_ranks() -> None:
    """Two ranks write to two OSTs: one of each host."""
    begun = begun_by(["a", "a", "b", "b"], 4, chunks_by_ost(16 * MIB + 5, 4 * MIB, FileStripes(MIB, MIB, (6, 1))))
    assert begun.keys() == {0, 2}
    assert all(start // MIB % 2 == (owner == 2) for owner, ranges in begun.items() for start, _ in ranges)
    assert (
        len(begun_by(["a", "a", "b", "b"], 4, chunks_by_ost(16 * MIB, 4 * MIB, FileStripes(MIB, MIB, (0, 1, 2, 3)))))
        == 4
    )
    assert len(begun_by([], 3, chunks_by_ost(16 * MIB, 4 * MIB, FileStripes(MIB, MIB, (0, 1, 2, 3))))) == 3
