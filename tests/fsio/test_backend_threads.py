"""Threads of the C backend: how many rows run concurrently, in which directories, and what is reported about them.

A slow file system counts concurrent calls. Its writes sleep, any number of them at a time, also in one directory.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from bench.latency import SlowMount, mounted_slow
from pcopy.fsio.backend.batches import CopyPlan, CopySmallFilesBatch, CopySmallFilesResult
from pcopy.fsio.backend.choose import backend_name
from pcopy.fsio.backend.columns import pack_names
from pcopy.fsio.backend.interface import BackendSettings, BatchTicket
from pcopy.fsio.preserve import PreservedMetadataKinds
from tests.fsio.backend_bench import found
from tests.support.users import require_root

if backend_name() != "c":
    pytest.skip("there is no C backend here", allow_module_level=True)

from pcopy.fsio.backend.native import NativeBackend
from pcopy.fsio.backend.native_pool import MAX_MODIFYING_ROWS_PER_DIRECTORY, MIN_ROWS_OF_LARGE_DIRECTORY

LATENCY = 20_000
FILES = 40


@pytest.fixture
def server(area: Path) -> Iterator[SlowMount]:
    require_root("mount")
    if not shutil.which("gcc") or subprocess.run(["pkg-config", "--exists", "fuse3"], check=False).returncode:
        pytest.skip("there is no gcc, or no libfuse3-dev")
    (area / "below").mkdir()
    with mounted_slow(area / "below", entry_timeout=60, attribute_timeout=60) as mounted:
        yield mounted


class Copies:
    """Batches of files in memory, each copied to its own directory on the slow file system."""

    def __init__(self, area: Path, server: SlowMount, *, directories: int = 1, files: int = FILES) -> None:
        self.backend = NativeBackend(BackendSettings(PreservedMetadataKinds(), 0o022))
        self._opened: list[int] = []
        self._batches = []
        self._paths = []
        for number in range(directories):
            source, target = area / f"source{number}", server.path / f"target{number}"
            source.mkdir()
            target.mkdir()
            names = [f"{file}" for file in range(files)]
            for name in names:
                (source / name).write_text(f"{number} {name}")
            descriptors = [os.open(path, os.O_RDONLY) for path in (source, target)]
            self._opened += descriptors
            packed = pack_names(map(os.fsencode, names))
            self._batches.append((descriptors, packed, bytes([CopyPlan.NEW]) * files, found(source, names)))
            self._paths.append((source, target))
        server.set_delays(write=LATENCY)

    def begin(self) -> list[BatchTicket[CopySmallFilesResult]]:
        time.sleep(0.05)  # the threads are idle by now and have to be woken
        return [
            self.backend.submit_batch(CopySmallFilesBatch(source, packed, target, plans, rows))
            for (source, target), packed, plans, rows in self._batches
        ]

    def end(self, tickets: list[BatchTicket[CopySmallFilesResult]]) -> None:
        while not all(ticket.is_done for ticket in tickets):
            self.backend.poll()
            time.sleep(0.001)
        for source, target in self._paths:
            subprocess.run(["diff", "-r", source, target], check=True)

    def close(self) -> None:
        self.backend.close()
        for descriptor in self._opened:
            os.close(descriptor)


@contextmanager
def copies(area: Path, server: SlowMount, *, directories: int = 1, files: int = FILES) -> Iterator[Copies]:
    made = Copies(area, server, directories=directories, files=files)
    try:
        yield made
    finally:
        made.close()


def test_rows_of_one_directory_run_concurrently_up_to_a_limit(area: Path, server: SlowMount) -> None:
    with copies(area, server) as made:
        made.backend.pool.set_thread_count(32)
        made.end(made.begin())
        assert (
            MAX_MODIFYING_ROWS_PER_DIRECTORY // 2
            < server.max_concurrent_operations()
            <= MAX_MODIFYING_ROWS_PER_DIRECTORY
        )


def test_several_directories_keep_all_threads_busy(area: Path, server: SlowMount) -> None:
    with copies(area, server, directories=6) as made:
        made.backend.pool.set_thread_count(32)
        made.end(made.begin())
        assert 2 * MAX_MODIFYING_ROWS_PER_DIRECTORY < server.max_concurrent_operations() <= 32


def test_threads_use_other_directories_instead_of_waiting_for_one(area: Path, server: SlowMount) -> None:
    with copies(area, server, directories=4, files=10) as made:
        server.set_delays(write=0, create=LATENCY)  # calls that a directory serializes
        made.backend.pool.set_thread_count(4)
        made.end(made.begin())
        assert server.max_concurrent_operations() == 4


@pytest.mark.parametrize(("ranks", "most"), [(4, 2), (100, 1)])
def test_ranks_of_a_host_share_the_limit_of_a_large_directory(
    area: Path, server: SlowMount, ranks: int, most: int
) -> None:
    with copies(area, server, files=MIN_ROWS_OF_LARGE_DIRECTORY) as made:
        made.backend.pool.set_concurrency_limits(ranks, 0)
        made.backend.pool.set_thread_count(16)
        made.end(made.begin())
        assert server.max_concurrent_operations() == most


def test_modifying_operations_are_limited_over_all_directories(area: Path, server: SlowMount) -> None:
    with copies(area, server, directories=6, files=10) as made:
        made.backend.pool.set_concurrency_limits(1, 3)
        made.backend.pool.set_thread_count(16)
        made.end(made.begin())
        assert server.max_concurrent_operations() == 3


def test_surplus_threads_stay_idle(area: Path, server: SlowMount) -> None:
    with copies(area, server, directories=6, files=10) as made:
        made.backend.pool.set_thread_count(16)
        made.backend.pool.set_thread_count(2)
        made.end(made.begin())
        assert server.max_concurrent_operations() == 2


def test_new_threads_join_a_running_batch(area: Path, server: SlowMount) -> None:
    with copies(area, server, files=FILES) as made:
        tickets = made.begin()
        made.backend.poll()
        assert made.backend.runs_in_poll and not tickets[0].is_done
        made.backend.pool.request_threads(4)
        assert not made.backend.runs_in_poll
        made.end(tickets)
        assert server.max_concurrent_operations() == 4


def test_threads_stop_when_no_ticket_is_active(area: Path, server: SlowMount) -> None:
    with copies(area, server, directories=2, files=3) as made:
        pool = made.backend.pool
        pool.request_threads(4)
        tickets = made.begin()
        pool.request_threads(0)
        assert not made.backend.runs_in_poll
        made.end(tickets)
        for number in range(2):
            for path in (server.backing / f"target{number}").iterdir():
                path.unlink()
        tickets = made.begin()
        assert made.backend.runs_in_poll
        made.end(tickets)


def test_oldest_row_and_operation_counts_are_reported(area: Path, server: SlowMount) -> None:
    with copies(area, server, directories=2, files=10) as made:
        pool = made.backend.pool
        assert pool.oldest_row_in_progress() is None
        pool.set_thread_count(2)
        before = time.monotonic()
        tickets = made.begin()
        time.sleep(LATENCY / 2e6)
        row = pool.oldest_row_in_progress()
        assert row is not None and before <= row.since <= time.monotonic()
        assert row.operation == "write"
        assert row.path.rpartition(b"/")[0] in {os.fsencode(server.path / f"target{number}") for number in (0, 1)}
        made.end(tickets)
        took = time.monotonic() - before
        assert pool.oldest_row_in_progress() is None
        load = pool.thread_pool_load()
        assert 10 * LATENCY / 1e6 <= load.busy <= took
        assert 20 * LATENCY / 1e6 <= load.wall <= 2 * load.busy
        assert load.processor < load.wall / 2
        assert 20 * 5 < load.operations < 20 * 20
