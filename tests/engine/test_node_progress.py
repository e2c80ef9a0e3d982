"""The counters on their way up the tree, and what is durable with them."""

from __future__ import annotations

from collections import deque
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pcopy.engine.messages import CounterQuery, CounterSums, Message
from pcopy.engine.progress import MAX_SILENT_RANKS, CounterTree


class Trees:
    """The counters of all ranks, one each; ``deaf`` ranks keep their messages until they wake."""

    def __init__(self, size: int, fan_out: int, seed: int = 0) -> None:
        self.counters = [[rank + 1] for rank in range(size)]
        self.trees = [CounterTree(rank, size, fan_out, self.counters[rank]) for rank in range(size)]
        self.deaf: set[int] = set()
        self._pairs: dict[tuple[int, int], deque[Message]] = {}
        self._random = Random(seed)

    def ask(self) -> None:
        self._send(0, self.trees[0].start_query())

    def _send(self, source: int, messages: list[tuple[int, Message]]) -> None:
        for destination, message in messages:
            self._pairs.setdefault((source, destination), deque()).append(message)

    def settle(self) -> None:
        """Delivers what can be delivered, in any order that keeps each pair's."""
        while pairs := [pair for pair, waiting in self._pairs.items() if waiting and pair[1] not in self.deaf]:
            source, destination = self._random.choice(pairs)
            message = self._pairs[source, destination].popleft()
            tree = self.trees[destination]
            if isinstance(message, CounterQuery):
                self._send(destination, tree.receive_query(message))
            else:
                assert isinstance(message, CounterSums)
                self._send(destination, tree.receive_answer(source, message))

    @property
    def report(self) -> CounterSums:
        report = self.trees[0].latest_sums
        assert report is not None
        return report


@settings(max_examples=60, deadline=None, derandomize=True, database=None)
@given(st.integers(1, 40), st.integers(1, 8), st.integers(0, 1000))
def test_counter_sums_cover_all_ranks(size: int, fan_out: int, seed: int) -> None:
    trees = Trees(size, fan_out, seed)
    for factor in (1, 2):
        trees.ask()
        trees.settle()
        assert trees.report.totals == (factor * size * (size + 1) // 2,)
        assert trees.report.silent_ranks == ()
        for counters in trees.counters:
            counters[0] *= 2
    assert all(tree.totals == (size * (size + 1) // 2,) for tree in trees.trees[1:])


def test_silent_rank_is_reported_and_other_sums_are_complete() -> None:
    trees = Trees(7, 2)
    trees.ask()
    trees.settle()
    trees.deaf = {5}
    for counters in trees.counters:
        counters[0] += 100
    for _ in range(4):  # the news climbs one level a query
        trees.ask()
        trees.settle()
    assert trees.report.totals == (28 + 6 * 100,)
    assert 5 in trees.report.silent_ranks
    trees.deaf = set()
    trees.settle()
    trees.ask()
    trees.settle()
    assert trees.report.totals == (28 + 7 * 100,)
    assert trees.report.silent_ranks == ()


def test_late_answers_are_never_counted_twice() -> None:
    trees = Trees(3, 2)
    trees.deaf = {1}
    for _ in range(5):
        trees.ask()
        trees.settle()
        assert trees.trees[0].latest_sums is None or trees.report.totals[0] <= 6
    trees.deaf = set()
    trees.settle()
    assert (trees.report.totals, trees.report.sequence, trees.report.silent_ranks) == ((6,), 5, ())


def test_number_of_reported_silent_ranks_is_limited() -> None:
    trees = Trees(100, 99)
    trees.deaf = set(range(1, 100))
    trees.ask()
    trees.ask()
    assert trees.report.silent_ranks == tuple(range(1, 1 + MAX_SILENT_RANKS))


@pytest.mark.parametrize(("own", "first", "second", "least"), [(5, 3, 4, 3), (2, 3, 4, 2), (5, 6, 4, 4)])
def test_durable_epoch_is_minimum_of_subtree(own: int, first: int, second: int, least: int) -> None:
    tree = CounterTree(1, 7, 2, [0], lambda: own)
    tree.receive_query(CounterQuery(1, (0,)))
    tree.receive_answer(3, CounterSums(1, (0,), (), first))
    assert tree.receive_answer(4, CounterSums(1, (0,), (), second)) == [(0, CounterSums(1, (0,), (), least))]


def test_child_without_answer_makes_durable_epoch_zero() -> None:
    tree = CounterTree(0, 3, 2, [0], lambda: 5)
    tree.start_query()
    tree.receive_answer(1, CounterSums(1, (0,), (), 5))
    tree.start_query()
    assert tree.latest_sums is not None
    assert tree.latest_sums.durable_epoch == 0
