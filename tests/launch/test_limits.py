"""A limit that all ranks share, in virtual time: their sum keeps to it within 5 % over 10 s, as they come and go."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from math import inf
from random import Random

import pytest

from pcopy.engine.messages import CounterQuery, CounterSums, Message
from pcopy.engine.progress import CounterTree
from pcopy.engine.steering import RankTaskRestriction
from pcopy.fsio.throttle import Throttle
from pcopy.launch.rank_control import RankLimiter, UserLimits

MIB = 1 << 20
STEP = 0.02
"""Seconds of virtual time between two looks at a rank."""
QUERY = 0.1
"""Seconds between two queries, as a job with a limit has them, but written down on purpose."""
WINDOW = 10.0

Demand = Callable[[int, float], float]
"""How many bytes a second a rank could move at that time; 0: it is idle."""


class Ranks:
    """Ranks that move as much as they may, in pieces, and the tree between them, with latencies."""

    def __init__(self, size: int, limit: int, demand: Demand, *, piece: int = 0, seed: int = 1) -> None:
        self.now = 0.0
        self.demand = demand
        self.piece = piece
        self.random = Random(seed)
        self.throttles = [Throttle(lambda: self.now, self._never) for _ in range(size)]
        self.steering = [
            RankLimiter(rank, size, throttle, UserLimits(limit), lambda: self.now)
            for rank, throttle in enumerate(self.throttles)
        ]
        self.trees = [CounterTree(rank, size, 2, [0], steering=each) for rank, each in enumerate(self.steering)]
        self.moved: list[tuple[float, float]] = []
        self._begun = [0.0] * size  # until when a rank is at its last piece
        self._under_way: list[tuple[float, int, int, int, Message]] = []
        self._sent = 0

    @staticmethod
    def _never(seconds: float) -> None:
        raise AssertionError("nothing sleeps in virtual time")

    def run(self, seconds: float) -> None:
        next_query = self.now
        end = self.now + seconds
        while self.now < end:
            if self.now >= next_query:
                self._send(0, self.trees[0].start_query())
                next_query += QUERY
            while self._under_way and self._under_way[0][0] <= self.now:
                _, _, source, rank, message = heapq.heappop(self._under_way)
                tree = self.trees[rank]
                assert isinstance(message, CounterQuery | CounterSums)
                said = (
                    tree.receive_query(message)
                    if isinstance(message, CounterQuery)
                    else tree.receive_answer(source, message)
                )
                self._send(rank, said)
            for rank in range(len(self.throttles)):
                self._move(rank)
            self.now += STEP

    def _send(self, source: int, messages: list[tuple[int, Message]]) -> None:
        for rank, message in messages:
            self._sent += 1
            at = self.now + self.random.uniform(0.0005, 0.03)
            heapq.heappush(self._under_way, (at, self._sent, source, rank, message))

    def _move(self, rank: int) -> None:
        speed, throttle = self.demand(rank, self.now), self.throttles[rank]
        while speed and self._begun[rank] <= self.now and throttle.bytes.seconds_to_wait(self.now) <= 0:
            size = self.piece or throttle.bytes_to_copy_next(8 * MIB)
            throttle.bytes.take_tokens(size)
            self.moved.append((self.now, size))
            self._begun[rank] = max(self._begun[rank], self.now - STEP) + size / speed

    def windows(self, first: float) -> list[float]:
        """The mean rate over each ``WINDOW`` that begins ``first`` seconds after the start or later."""
        found, at = [], first
        while at + WINDOW <= self.now:
            found.append(sum(size for moment, size in self.moved if at <= moment < at + WINDOW) / WINDOW)
            at += 0.25
        return found


def always(rank: int, now: float) -> float:
    return 500.0 * MIB


def taking_turns(rank: int, now: float) -> float:
    """Each rank is idle for some seconds, then works for some; at any time one works at least."""
    busy = (now + 1.7 * rank) % (5.3 + rank % 3) < 3.0 + rank % 2
    return 500.0 * MIB if busy or rank == 0 else 0.0


def one_then_all(rank: int, now: float) -> float:
    """The worst that can come: for long one has it all, then all want something at once."""
    return 500.0 * MIB if rank == 0 or now % 24 > 12 else 0.0


def some_are_slow(rank: int, now: float) -> float:
    """Half of the ranks can't use what would be theirs."""
    return 3.0 * MIB if rank % 2 else 500.0 * MIB


@pytest.mark.parametrize("demand", [always, taking_turns, one_then_all, some_are_slow])
@pytest.mark.parametrize("size", [1, 3, 16])
def test_all_ranks_together_keep_to_the_limit(size: int, demand: Demand) -> None:
    limit = 100 * MIB
    ranks = Ranks(size, limit, demand)
    ranks.run(60)
    found = ranks.windows(2.0)
    assert len(found) > 100
    assert max(found) <= 1.05 * limit, f"{max(found) / limit:.3f}"
    assert min(found) >= 0.95 * limit, f"{min(found) / limit:.3f}"
    assert max(ranks.windows(0.0)) <= 1.05 * limit


def test_no_burst_follows_a_time_of_low_demand() -> None:
    """After a long time in which the source was slower than the limit, no burst follows."""
    limit = 100 * MIB
    ranks = Ranks(4, limit, lambda rank, now: 5.0 * MIB if now < 30 else 500.0 * MIB)
    ranks.run(50)
    assert max(ranks.windows(0.0)) <= 1.05 * limit


def test_tiny_limit_is_kept() -> None:
    limit = 64 << 10
    ranks = Ranks(3, limit, always)
    ranks.run(120)
    assert all(0.85 * limit <= each <= 1.1 * limit for each in ranks.windows(10.0))
    assert sum(size for _, size in ranks.moved) == pytest.approx(120 * limit, rel=0.05)


def test_pieces_larger_than_the_limit_keep_the_mean_rate() -> None:
    """Batches of small files are larger than what a rank may move in a second: their mean is right."""
    limit = 4 * MIB
    ranks = Ranks(3, limit, always, piece=4 * MIB)
    ranks.run(200)
    assert sum(size for _, size in ranks.moved) == pytest.approx(200 * limit, rel=0.05)


def test_changed_limit_takes_effect() -> None:
    ranks = Ranks(5, 100 * MIB, always)
    ranks.run(20)
    ranks.steering[0].requested = UserLimits(10 * MIB)
    ranks.run(20)
    assert all(each == pytest.approx(10 * MIB, rel=0.05) for each in ranks.windows(24.0))
    ranks.steering[0].requested = UserLimits(0)
    ranks.run(1)
    assert not any(throttle.is_on for throttle in ranks.throttles)
    ranks.steering[0].requested = UserLimits(20 * MIB)
    ranks.run(16)
    assert all(each == pytest.approx(20 * MIB, rel=0.05) for each in ranks.windows(43.0))


def test_without_a_limit_nothing_is_charged() -> None:
    ranks = Ranks(3, 0, always, piece=MIB)
    ranks.run(2)
    assert all(throttle.bytes.paid_tokens(9.0) == 0 and throttle.bytes.rate == inf for throttle in ranks.throttles)


@pytest.mark.parametrize(
    ("active", "paused", "duties"),
    [
        (0, False, [RankTaskRestriction.ALL, RankTaskRestriction.ALL, RankTaskRestriction.ALL]),
        (1, False, [RankTaskRestriction.ALL, RankTaskRestriction.ADDRESSED, RankTaskRestriction.ADDRESSED]),
        (2, False, [RankTaskRestriction.ALL, RankTaskRestriction.ALL, RankTaskRestriction.ADDRESSED]),
        (3, False, [RankTaskRestriction.ALL, RankTaskRestriction.ALL, RankTaskRestriction.ALL]),
        (2, True, [RankTaskRestriction.NOTES, RankTaskRestriction.NOTES, RankTaskRestriction.NOTES]),
    ],
)
def test_only_the_requested_number_of_ranks_is_active(
    active: int, paused: bool, duties: list[RankTaskRestriction]
) -> None:
    ranks = Ranks(3, 0, always)
    ranks.steering[0].requested = UserLimits(active=active, paused=paused)
    ranks.run(1)
    assert [each.allowed_tasks for each in ranks.steering] == duties
    assert [throttle.is_on for throttle in ranks.throttles] == [paused] * 3
    ranks.steering[0].requested = UserLimits()
    ranks.run(1)
    assert {each.allowed_tasks for each in ranks.steering} == {RankTaskRestriction.ALL}
