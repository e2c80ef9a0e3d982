"""How many operations are kept under way: decided from measurements, which a server made of numbers gives here."""

from __future__ import annotations

import multiprocessing
import os
from pathlib import Path

import pytest

from pcopy.engine.begun_tasks import BegunTasks
from pcopy.fsio.backend.interface import RowInProgress, ThreadPoolLoad
from pcopy.fsio.layout import LUSTRE_TYPE
from pcopy.launch.in_flight import (
    FIRST_PAUSE_BEFORE_RETRY,
    LONGEST_PAUSE_BEFORE_RETRY,
    MIN_MEASUREMENT_SECONDS,
    ThreadCountController,
    ThreadCountPolicy,
    ThroughputMeasurement,
    max_modifying_operations,
    processor_wait_seconds,
    task_slots_for_threads,
)

EXT4 = 0xEF53


class Server:
    """Each call takes ``latency`` seconds, and ``processor`` seconds of ours; no more than ``room`` run at once."""

    def __init__(self, latency: float = 0.001, processor: float = 0.00001, room: int = 1000) -> None:
        self.latency, self.processor, self.room = latency, processor, room

    def window(self, threads: int, seconds: float = 1.0, delay: float = 0.0) -> ThroughputMeasurement:
        callers = max(1, threads)
        each = (self.latency + self.processor) * max(1.0, callers / self.room)
        operations = int(seconds * callers / each)
        return ThroughputMeasurement(seconds, seconds * callers, operations * self.processor, delay, operations)


def steps(growth: ThreadCountPolicy, server: Server, windows: int) -> list[int]:
    return [growth.next_thread_count(server.window(growth.threads)) for _ in range(windows)]


def without_repeats(numbers: list[int]) -> list[int]:
    return [number for index, number in enumerate(numbers) if index == 0 or number != numbers[index - 1]]


def test_thread_count_grows_while_calls_wait_and_throughput_increases() -> None:
    growth = ThreadCountPolicy(64)
    assert without_repeats(steps(growth, Server(), 20)) == [2, 4, 8, 16, 32, 64]
    assert growth.is_thread_count_final


@pytest.mark.parametrize("most", [1, 2, 3, 8, 11])
def test_thread_count_stays_within_the_share_of_the_rank(most: int) -> None:
    growth = ThreadCountPolicy(most)
    assert max([0, *steps(growth, Server(), 20)]) == (most if most > 1 else 0)
    assert growth.is_thread_count_final


def test_thread_count_is_halved_when_descriptors_run_out() -> None:
    growth = ThreadCountPolicy(64)
    steps(growth, Server(), 20)
    growth.halve_thread_limit()
    assert growth.threads == 32 and growth.is_thread_count_final
    assert max(steps(growth, Server(), 20)) == 32


def test_step_with_too_little_gain_is_undone() -> None:
    growth = ThreadCountPolicy(64)
    assert without_repeats(steps(growth, Server(room=8), 10))[:5] == [2, 4, 8, 16, 8]
    assert not growth.is_thread_count_final


@pytest.mark.parametrize(("gain", "stays"), [(1.05, False), (1.15, True)])
def test_step_is_kept_if_it_gains_ten_percent(gain: float, stays: bool) -> None:
    growth = ThreadCountPolicy(2)
    assert growth.next_thread_count(ThroughputMeasurement(1.0, 1.0, 0.0, 0.0, 1000)) == 2
    assert growth.next_thread_count(ThroughputMeasurement(1.0, 2.0, 0.0, 0.0, 9)) == 2, (
        "a window in which threads were started tells nothing"
    )
    assert growth.next_thread_count(ThroughputMeasurement(1.0, 2.0, 0.0, 0.0, int(1000 * gain))) == (2 if stays else 1)
    if not stays:
        assert growth.next_thread_count(ThroughputMeasurement(1.0, 1.0, 0.0, 0.0, 1000)) == 0


def test_step_is_not_evaluated_while_its_threads_have_no_work() -> None:
    growth = ThreadCountPolicy(64)
    while growth.threads < 4:
        growth.next_thread_count(Server().window(growth.threads))
    assert [growth.next_thread_count(Server().window(1)) for _ in range(3)] == [4, 4, 4]
    assert growth.pause == 0
    assert growth.next_thread_count(Server().window(4)) == 8


def test_unevaluated_step_is_undone_once_calls_do_not_wait() -> None:
    growth = ThreadCountPolicy(64)
    while growth.threads < 4:
        growth.next_thread_count(Server().window(growth.threads))
    assert growth.next_thread_count(ThroughputMeasurement(1.0, 1.0, 0.9, 0.0, 10000)) == 2
    assert growth.pause == FIRST_PAUSE_BEFORE_RETRY
    assert without_repeats(steps(growth, Server(), 20))[-1] == 64


def test_step_is_not_undone_because_the_workload_changed() -> None:
    growth, quick, slow = ThreadCountPolicy(64), Server(latency=0.0002), Server(latency=0.002)
    assert growth.next_thread_count(quick.window(0)) == 2
    assert growth.next_thread_count(slow.window(2)) == 2, "a window in which threads were started tells nothing"
    assert growth.next_thread_count(slow.window(2)) == 1, (
        "ten operations of the new work take as long as fifty of the old one"
    )
    assert growth.next_thread_count(slow.window(2)) == 1, "the other one does not rest yet"
    assert growth.next_thread_count(slow.window(1)) == 2
    assert growth.pause == 0
    assert without_repeats(steps(growth, slow, 20))[-1] == 64


def test_pause_doubles_after_each_unsuccessful_step() -> None:
    growth, pauses = ThreadCountPolicy(64), []
    for _ in range(60):
        growth.next_thread_count(Server(room=1).window(growth.threads))
        if growth.pause:
            assert growth.threads == 0
            pauses.append(growth.pause)
    assert pauses[:4] == [
        FIRST_PAUSE_BEFORE_RETRY,
        2 * FIRST_PAUSE_BEFORE_RETRY,
        4 * FIRST_PAUSE_BEFORE_RETRY,
        8 * FIRST_PAUSE_BEFORE_RETRY,
    ]
    assert max(pauses) == LONGEST_PAUSE_BEFORE_RETRY


@pytest.mark.parametrize(
    "window",
    [
        ThroughputMeasurement(1.0, 1.0, 0.98, 0.0, 10000),  # the calls are all work
        ThroughputMeasurement(1.0, 1.0, 0.25, 0.7, 10000),  # others have the processors
        ThroughputMeasurement(1.0, 1.0, 0.3, 0.25, 1000),  # some wait
        ThroughputMeasurement(1.0, 1.0, 0.1, 0.1, 20000),  # each waits, but for 40 microseconds: for a lock
        ThroughputMeasurement(0.0, 0.0, 0.0, 0.0, 0),
    ],
)
def test_thread_count_does_not_grow_if_calls_do_not_wait(window: ThroughputMeasurement) -> None:
    growth = ThreadCountPolicy(64)
    assert [growth.next_thread_count(window) for _ in range(5)] == [0] * 5
    assert growth.pause == FIRST_PAUSE_BEFORE_RETRY


class FakePool:
    """One that a ``Server`` answers."""

    def __init__(self, server: Server) -> None:
        self.server = server
        self.threads = 0
        self.limits: list[tuple[int, int]] = []
        self.asked = 0
        self._load = ThreadPoolLoad()

    def pass_time(self, seconds: float) -> None:
        more, load = self.server.window(self.threads, seconds), self._load
        operations = load.operations + more.operations
        self._load = ThreadPoolLoad(
            load.busy + more.busy, load.wall + more.wall, load.processor + more.processor, operations
        )

    def request_threads(self, threads: int) -> None:
        self.threads = threads

    def thread_pool_load(self) -> ThreadPoolLoad:
        self.asked += 1
        return self._load

    def set_concurrency_limits(self, ranks: int, modifying: int) -> None:
        self.limits.append((ranks, modifying))

    def oldest_row_in_progress(self) -> RowInProgress | None:
        return None


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def run(
    pool: FakePool, asked: int, ranks: int, seconds: float, share: float = 0.0, modifying: int = 0
) -> tuple[BegunTasks, int]:
    """A rank that looks every 5 ms. ``share`` of all time its threads could run, and have no processor."""
    clock, under_way, threads = Clock(), BegunTasks(0, 1), 1

    def delay() -> float:
        return clock.now * share * max(1, pool.threads)

    in_flight = ThreadCountController(pool, under_way, asked, ranks, lambda: modifying, clock, delay)
    while clock.now < seconds:
        in_flight.measure_and_adapt_thread_count()
        clock.now += 0.005
        pool.pass_time(0.005)
        threads = max(threads, pool.threads)
    return under_way, threads


@pytest.mark.parametrize(("ranks", "most"), [(1, 64), (8, 8), (33, 0), (500, 0)])
def test_ranks_of_a_host_share_the_threads(ranks: int, most: int) -> None:
    pool = FakePool(Server())
    run(pool, 0, ranks, 5.0)
    assert pool.threads == most
    assert pool.limits == ([(ranks, 0)] if most else [])


def test_thread_count_is_reached_within_twelve_measurements() -> None:
    pool = FakePool(Server())
    run(pool, 0, 8, 12 * MIN_MEASUREMENT_SECONDS)
    assert pool.threads == 8


def test_requested_thread_count_is_used_without_measurements() -> None:
    pool = FakePool(Server(latency=0.0, processor=0.001))
    under_way, _ = run(pool, 7, 3, 2.0, modifying=5)
    assert (pool.threads, pool.asked, pool.limits) == (7, 0, [(3, 5)])
    assert under_way.slots == task_slots_for_threads(7) == 7
    pool = FakePool(Server())
    under_way, most = run(pool, 1, 1, 2.0)
    assert (pool.threads, pool.asked, most) == (0, 0, 1)


def test_busy_host_is_not_taken_for_a_slow_server() -> None:
    """Calls take four times as long as they need the processor, since others have it."""
    pool = FakePool(Server(latency=0.0003, processor=0.0001))
    _, most = run(pool, 0, 1, 3.0, share=0.75)
    assert most == 1
    _, most = run(FakePool(Server(latency=0.0003, processor=0.0001)), 0, 1, 3.0)
    assert most == 64


def test_time_that_this_process_waits_for_a_processor_is_measured() -> None:
    before = processor_wait_seconds()
    others = [multiprocessing.Process(target=sum, args=(range(10**7),)) for _ in range(2 * (os.cpu_count() or 1))]
    for other in others:
        other.start()
    sum(range(10**6))
    for other in others:
        other.join()
    assert processor_wait_seconds() > before >= 0.0


def test_lustre_limits_modifying_operations(tmp_path: Path) -> None:
    """Clients of several file systems: the least one counts, for any of them may be the target."""
    place = tmp_path / "mdc"
    for name, number in (("a-MDT0000-mdc-ffff1", "7\n"), ("b-MDT0000-mdc-ffff2", "16\n"), ("c", "none")):
        (place / name).mkdir(parents=True)
        (place / name / "max_mod_rpcs_in_flight").write_text(number)
    (place / "num_refs").write_text("1")
    places = [str(tmp_path / "nowhere"), str(place)]
    assert max_modifying_operations([EXT4], 1, places) == 0
    assert max_modifying_operations([EXT4, LUSTRE_TYPE], 1, places) == 7
    assert max_modifying_operations([LUSTRE_TYPE], 2, places) == 3
    assert max_modifying_operations([LUSTRE_TYPE], 8, places) == 1
    assert max_modifying_operations([LUSTRE_TYPE], 1, places[:1]) == 7
