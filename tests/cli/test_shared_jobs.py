"""Ranks that share a job: how long they wait until rank 0 has stored it, and what remains of an abandoned one."""

from __future__ import annotations

import shutil
import threading
import time
from pathlib import Path

import pytest

from pcopy.errors import RequestRefused
from pcopy.jobs.lifecycle import CheckpointSettings, JobDirectory
from pcopy.jobs.rank_store import wait_until_job_is_visible
from pcopy.tasks.base.job import JobCounters
from tests.checkpoint.made import job_of, made, some_root

PATIENCE = 30.0


@pytest.mark.parametrize("seen", [False, True], ids=["it was there for a moment", "it was there before"])
def test_ranks_do_not_wait_for_a_removed_job(area: Path, seen: bool) -> None:
    path = area / "job"
    keeping = CheckpointSettings(directory=bytes(path))
    if not seen:
        made(path)
        threading.Timer(0.5, shutil.rmtree, (path,)).start()
    began = time.monotonic()
    with pytest.raises(RequestRefused, match="the job was removed by another process"):
        wait_until_job_is_visible(keeping, PATIENCE, b"current", was_seen=seen)
    assert time.monotonic() - began < PATIENCE / 2


def test_ranks_wait_for_a_job_that_is_stored_late(area: Path) -> None:
    path = area / "job"

    def store() -> None:
        made(path)
        time.sleep(0.6)
        (path / "current").touch()

    threading.Timer(0.6, store).start()
    keeping = CheckpointSettings(directory=bytes(path), nonce="ab" * 16)
    with pytest.raises(RequestRefused, match="not a directory that all hosts share"):
        wait_until_job_is_visible(keeping, 0.2, b"current")
    began = time.monotonic()
    wait_until_job_is_visible(keeping, PATIENCE, b"current")
    assert 0.5 < time.monotonic() - began < PATIENCE / 2


@pytest.mark.parametrize(("status", "patience"), [(0, None), (75, PATIENCE)])
def test_files_written_while_a_job_is_abandoned_are_removed_at_the_end(
    area: Path, status: int, patience: float | None
) -> None:
    """Other ranks may be writing their first record."""
    path = area / "above" / "job"
    kept = JobDirectory(CheckpointSettings(directory=bytes(path), durable_at_start=True), job_of(some_root()))
    kept.create_durably()
    kept.remove_while_running()
    path.mkdir(parents=True, exist_ok=True)
    path.chmod(0o700)
    (path / "run-1").mkdir()
    for name in ("lock-2", "run-1/facts-2"):
        (path / name).touch()
    assert kept.finish_job(status, JobCounters(), patience) == []
    assert not list(area.iterdir())
