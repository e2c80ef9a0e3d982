"""The state of a running task at its rank: another task may run and end while it waits."""

from __future__ import annotations

import errno
import os
import re
import subprocess
from pathlib import Path

import pytest

from pcopy.fsio.identity import FUSE_TYPE
from pcopy.fsio.problem import Problem
from pcopy.fsio.storage import WrittenFileSystems
from pcopy.fsio.syncer import SyncHelperProcess
from pcopy.tasks.base.job import Options
from pcopy.tasks.base.phases import Phase
from pcopy.tasks.base.rank import RunningTask
from pcopy.tasks.base.values import Place
from tests.support.filesystems import FileSystems
from tests.tasks.one_rank import root_of, surroundings


def test_directories_of_a_waiting_task_are_synced_when_it_ends(area: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[int] = []
    real = os.fsync

    def fsync(descriptor: int) -> None:
        synced.append(os.fstat(descriptor).st_ino)
        real(descriptor)

    monkeypatch.setattr(os, "fsync", fsync)
    with surroundings([root_of(area, area)], Options()) as (rank, _):
        rank.storage = WrittenFileSystems(lambda descriptor: FUSE_TYPE, SyncHelperProcess())
        place = Place(
            0, b"", rank.sources[0].identity_of_directory(b""), rank.targets[0].identity_of_directory(b""), False, False
        )
        waits, other = RunningTask(int(Phase.COPY)), RunningTask(int(Phase.COPY))
        rank.running = waits
        rank.open_target_directory(place)
        rank.running = other
        rank.finish_task()
        assert synced == []
        rank.running = waits
        rank.finish_task()
        rank.storage.close()
    assert synced == [area.stat().st_ino]


def test_task_without_an_outcome_releases_its_directories(area: Path) -> None:
    with surroundings([root_of(area, area)], Options()) as (rank, _):
        rank.storage = WrittenFileSystems(lambda descriptor: FUSE_TYPE, SyncHelperProcess())
        place = Place(
            0, b"", rank.sources[0].identity_of_directory(b""), rank.targets[0].identity_of_directory(b""), False, False
        )
        dropped = rank.running = RunningTask(int(Phase.COPY))
        rank.open_target_directory(place)
        (kept,) = dropped.changed_directories.values()
        os.fstat(kept)
        rank.release_task_resources(dropped)
        with pytest.raises(OSError, match="Bad file descriptor"):
            os.fstat(kept)
        rank.storage.close()


def test_each_task_has_its_phase(area: Path) -> None:
    with surroundings([root_of(area, area)], Options()) as (rank, _):
        for phase in (Phase.COPY, Phase.REPAIR, Phase.COPY):
            rank.running = RunningTask(int(phase))
            assert rank.phase == phase


NEWEST = 1000
PLACES: dict[str, tuple[int, list[bytes], bool]] = {
    "read-only twice": (errno.EROFS, [b"a", b"a"], True),
    "two directories": (errno.ENOSPC, [b"a", b"b"] * 20, False),
    "three directories": (errno.ENOSPC, [b"a", b"b", b"a", b"c"], True),
    "three over a quota": (errno.EDQUOT, [b"a", b"b", b"c"], True),
    "one directory": (errno.ENOSPC, [b"a"] * (NEWEST - 1), False),
    "one directory, for long": (errno.ENOSPC, [b"a"] * NEWEST, True),
    "of something else": (errno.EIO, [b"a", b"b", b"c"] * 2, False),
}
"""The errno of successive failures, their directories, and whether the job stops at the last one."""


@pytest.mark.parametrize("writes", [False, True])
@pytest.mark.parametrize("situation", PLACES)
def test_repeated_failures_for_lack_of_space_stop_the_job(area: Path, situation: str, writes: bool) -> None:
    """Failures of different tasks count together. A successful write shows that there is space."""
    number, directories, stops = PLACES[situation]
    problem = Problem("write", number)
    with surroundings([root_of(area, area)], Options()) as (rank, _):
        top = Place(
            0, b"", rank.sources[0].identity_of_directory(b""), rank.targets[0].identity_of_directory(b""), False, False
        )
        for turn, path in enumerate(directories):
            rank.running = RunningTask(int(Phase.COPY))
            assert rank.stop_reason is None, turn
            if writes and turn == len(directories) - 1:
                rank.record_write_success()
            rank.find_item_failure_reason(problem, top._replace(path=path), b"name")
            rank.finish_task()
        assert (rank.stop_reason is not None) == (stops and not writes)


@pytest.mark.parametrize("size", [1, 1 << 60])
def test_item_larger_than_the_free_space_stops_the_job(area: Path, size: int) -> None:
    with surroundings([root_of(area, area)], Options()) as (rank, _):
        top = Place(
            0, b"", rank.sources[0].identity_of_directory(b""), rank.targets[0].identity_of_directory(b""), False, False
        )
        message = rank.find_item_failure_reason(Problem("write", errno.ENOSPC), top, b"name", size)
        assert (rank.stop_reason is not None) == (size > 1)
        assert message.endswith(" are free in the file system now" if size == 1 else ", and the item needs 1.00 EiB")


def test_directories_of_one_project_quota_count_as_one(file_systems: FileSystems) -> None:
    """A full project quota does not stop the job, however many directories the project has."""
    with file_systems.directory("xfs") as area, surroundings([root_of(area, area)], Options()) as (rank, _):
        top = Place(
            0, b"", rank.sources[0].identity_of_directory(b""), rank.targets[0].identity_of_directory(b""), False, False
        )
        subprocess.run(["xfs_io", "-c", "chproj 42", area], check=True)
        for path in (b"a", b"b", b"c", b"d"):
            rank.running = RunningTask(int(Phase.COPY))
            (area / os.fsdecode(path)).mkdir()
            subprocess.run(["xfs_io", "-c", "chproj 42", area / os.fsdecode(path)], check=True)
            place = top._replace(path=path, target_id=rank.targets[0].identity_of_directory(path))
            message = rank.find_item_failure_reason(Problem("write", errno.ENOSPC), place, b"name")
            rank.finish_task()
            assert re.fullmatch(r"in project 42; [0-9.]+ [KMG]iB are free in the file system now", message)
        assert rank.stop_reason is None
