"""Stores of waiting tasks, held to one conformance suite."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, cast
from unittest import mock

import lmdb
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pcopy.checkpoint.lmdb_backlog import LmdbBacklog
from pcopy.engine.backlog import SpoolFileBacklog
from tests.checkpoint import backlog_conformance as conformance
from tests.support.filesystems import mounted, scratch

FIRST_MAP = 1 << 20


def open_backlog(spool: Path) -> conformance.Backlog:
    return SpoolFileBacklog(lambda: cast(BinaryIO, tempfile.TemporaryFile(dir=spool)))


def open_lmdb(spool: Path) -> conformance.Backlog:
    return LmdbBacklog(bytes(spool))


@pytest.fixture(autouse=True, scope="module")
def small_map() -> Iterator[None]:
    with mock.patch("pcopy.checkpoint.lmdb_backlog.FIRST_MAP_BYTES", FIRST_MAP):
        yield


STORES = {"spool": open_backlog, "lmdb": open_lmdb}


@pytest.fixture(params=STORES)
def store(request: pytest.FixtureRequest) -> conformance.Open:
    return STORES[request.param]


@pytest.fixture
def disk(area: Path) -> Iterator[Path]:
    """A file system of its own, so that what is free on it is our doing."""
    with mounted("tmpfs", area, size=256 << 20) as point:
        yield point


@settings(max_examples=60, deadline=None)
@given(
    st.sampled_from(sorted(STORES)),
    st.lists(st.one_of(st.just(-1), st.just(-2), st.integers(0, 3000), st.integers(0, 3000)), max_size=80),
    st.sampled_from((1, 3, 128)),
)
def test_stored_tasks_are_returned_in_order(kind: str, steps: list[int], frame_tasks: int) -> None:
    with (
        scratch() as spool,
        mock.patch("pcopy.engine.backlog.MAX_TASKS_PER_FRAME", frame_tasks),
        mock.patch("pcopy.engine.backlog.FULL_FRAME_BYTES", 5000),
    ):
        conformance.first_in_first_out(STORES[kind], spool, steps)


def test_backlog_grows_and_frees_its_space(store: conformance.Open, disk: Path) -> None:
    conformance.grows_and_shrinks(store, disk, 60_000)


def test_backlog_stores_large_tasks(store: conformance.Open, disk: Path) -> None:
    conformance.large_tasks(store, disk)


def test_closed_backlog_leaves_no_file_and_frees_its_space(store: conformance.Open, disk: Path) -> None:
    conformance.leaves_nothing(store, disk)


def test_appending_to_a_full_spool_is_an_error(store: conformance.Open, area: Path) -> None:
    with mounted("tmpfs", area, size=8 << 20) as point:
        conformance.full_spool(store, point)
        assert not list(point.iterdir())


def test_lmdb_reuses_freed_space(area: Path) -> None:
    """A plain spool grows until it is empty; a database does not."""
    with mounted("tmpfs", area, size=8 << 20) as point:
        conformance.room_is_used_again(open_lmdb, point, rounds=2000, held=5000)


def test_lmdb_reports_full_spool_and_loses_no_task(area: Path) -> None:
    with mounted("tmpfs", area, size=4 << 20) as point:
        error = conformance.full_spool(open_lmdb, point)
        assert error.filename == str(point)
        assert "no room for waiting tasks" in str(error)
        store = open_lmdb(point)
        appended = 0
        with pytest.raises(OSError, match="no room"):
            while True:
                appended += 1
                store.append(conformance.task(appended, 1000))
        assert store.count == appended
        assert [each.id[2] for each in conformance.drained(store)] == list(range(1, appended + 1))
        store.close()


def test_tasks_can_be_read_from_a_full_spool(store: conformance.Open, area: Path) -> None:
    """Whoever has filled it; and their room serves later ones when there is some again."""
    with mounted("tmpfs", area, size=8 << 20) as point:
        waiting = store(point)
        for number in range(4000):
            waiting.append(conformance.task(number, 1000))
        with pytest.raises(OSError, match="No space left"), open(point / "other", "wb", buffering=0) as other:
            while other.write(bytes(4096)):
                pass
        taken = iter(conformance.drained(waiting))
        assert [next(taken).id[2] for _ in range(3000)] == list(range(3000))
        (point / "other").unlink()
        for number in range(4000, 6000):
            waiting.append(conformance.task(number, 1000))
        assert [each.id[2] for each in taken] == list(range(3000, 6000))
        waiting.close()


def test_lmdb_returns_tasks_although_deleting_them_fails(area: Path) -> None:
    """Deleting writes. What failed is made up for, so the room is used again."""
    with mounted("tmpfs", area, size=8 << 20) as point:
        store = open_lmdb(point)
        for number in range(5000):
            store.append(conformance.task(number, 1000))
        with mock.patch.object(LmdbBacklog, "_delete_frames_already_read", side_effect=lmdb.DiskError("full")):
            taken = [store.pop_frame()[0].id[2] for _ in range(30)]
        assert taken == list(range(0, 30 * 128, 128))
        store.pop_frame()
        for number in range(4000):
            store.append(conformance.task(number, 1000))
        store.close()


def test_lmdb_files_have_no_name_while_open(area: Path) -> None:
    """So nothing is left by a process that is killed."""
    made: list[int] = []
    real = tempfile.mkdtemp

    def mkdtemp(**options: bytes) -> bytes:
        place = real(**options)
        made.append(os.stat(place).st_mode & 0o7777)
        return place

    with mock.patch.object(tempfile, "mkdtemp", mkdtemp):
        store = open_lmdb(area)
        for number in range(20_000):
            store.append(conformance.task(number, 100))
    assert made == [0o700]
    assert not list(area.iterdir())
    assert sum(1 for _ in conformance.drained(store)) == 20_000
    store.close()


def test_lmdb_reports_missing_spool_directory(area: Path) -> None:
    store = open_lmdb(area / "gone")
    with pytest.raises(FileNotFoundError, match="gone"):
        for number in range(1000):
            store.append(conformance.task(number))


MEMORY_PROGRAM = """
import os, sys
from pcopy.checkpoint import lmdb_backlog
from pcopy.engine.task import Task

def own():
    return int([line.split()[1] for line in open("/proc/self/status") if line.startswith("RssAnon")][0])

lmdb_backlog.FIRST_MAP_BYTES = 1 << 20
store, tasks = lmdb_backlog.LmdbBacklog(os.fsencode(sys.argv[1])), int(sys.argv[2])
before = most = own()
for number in range(tasks):
    store.append(Task((1, 0, number), 0, b"%0100d" % number, 1))
    if number % 10000 == 0:
        most = max(most, own())
number = 0
while frame := store.pop_frame():
    for task in frame:
        assert task.id[2] == number
        number += 1
    if number % 10000 < len(frame):
        most = max(most, own())
assert number == tasks
print(most - before)
"""


def test_lmdb_uses_little_memory(area: Path) -> None:
    """200,000 tasks, whose payloads alone are 20 MB, in less than 8 MiB of the process's own memory."""
    command = [sys.executable, "-c", MEMORY_PROGRAM, str(area), os.environ.get("PCOPY_TEST_TASKS", "200000")]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    assert int(done.stdout) < 8 << 10
