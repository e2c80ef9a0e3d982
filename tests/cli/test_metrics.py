"""``--metrics`` in virtual time: how often the file is written, and the progress of a phase in it."""

from __future__ import annotations

import os
from itertools import pairwise
from pathlib import Path

import pytest

from pcopy.report.metrics import METRICS_INTERVAL, MetricsRecorder, is_beginning_of_metrics_file
from pcopy.report.recorder import JobEnd, RunDescription
from pcopy.tasks.base.job import Job, JobCounters, Options, Root
from pcopy.tools.director import JOB_STAGES
from tests.support.metrics import Read

ROOTS = (Root(b"/s", b"/d", b"", b"", b"s", b"d", (1, 1), (1, 2)),)
FACTS = RunDescription(
    "pcopy", "copied", True, JOB_STAGES, Job("0a", 1, ROOTS, Options()), ["host"] * 3, "backend c", 1.5e9
)


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


def made(path: Path, clock: Clock, interval: float | None = None) -> tuple[MetricsRecorder, list[str]]:
    reported: list[str] = []
    metrics = MetricsRecorder(os.fsencode(path), 0o022, interval, clock, lambda: 1.5e9 + clock.now)
    metrics.begin_recording(FACTS, reported.append)
    return metrics, reported


@pytest.mark.parametrize("interval", [None, 2.0])
def test_metrics_file_is_written_each_interval(tmp_path: Path, clock: Clock, interval: float | None) -> None:
    path = tmp_path / "a.prom"
    metrics, _ = made(path, clock, interval)
    versions = []
    for _ in range(120):
        clock.now += 0.5
        metrics.record_progress("copy", JobCounters(found=10, files=int(clock.now) % 10), ())
        versions.append(path.stat().st_ino)
    changes = sum(one != other for one, other in pairwise(versions))
    assert changes == pytest.approx(60 / (interval or METRICS_INTERVAL), abs=1)


def test_metrics_contain_progress_and_phase(tmp_path: Path, clock: Clock) -> None:
    path = tmp_path / "a.prom"
    metrics, _ = made(path, clock, 1.0)
    for bytes_ in (0, 100 << 20, 200 << 20):
        clock.now += 1.0
        metrics.record_progress("copy", JobCounters(found=1, found_bytes=400 << 20, moved=bytes_), (2, 5))
    read = Read(path)
    assert read["pcopy_progress_ratio"] == pytest.approx(0.5, abs=0.01)
    assert read["pcopy_remaining_seconds"] == pytest.approx(3.0, abs=0.2)  # at the rate of the first 3 s
    assert read.labels["pcopy_phase_info"]["phase"] == "copy"
    assert (read["pcopy_silent_ranks"], read["pcopy_ranks"]) == (2, 3)


def test_write_error_is_reported_once_and_writing_is_retried(tmp_path: Path, clock: Clock) -> None:
    path = tmp_path / "a.prom"
    metrics, reported = made(path, clock, 1.0)
    path.unlink()
    path.mkdir()
    for _ in range(3):
        clock.now += 1.0
        metrics.record_progress("copy", JobCounters(found=1), ())
    assert len(reported) == 1 and "the job goes on" in reported[0]
    path.rmdir()
    metrics.end(JobEnd(75, JobCounters(found=7)))
    read = Read(path)
    assert (read["pcopy_found_items"], read["pcopy_last_exit_status"]) == (7, 75)
    assert read.get("pcopy_last_success_timestamp_seconds") is None
    assert os.listdir(tmp_path) == ["a.prom"]


@pytest.mark.parametrize("text", ["", "pcopy_running 1", "# HELP node_load1 1m load average.", "#!/bin/sh\nrm -r"])
def test_other_files_are_not_recognized_as_metrics(text: str) -> None:
    assert not is_beginning_of_metrics_file(text.encode())


def test_metrics_file_is_recognized(tmp_path: Path, clock: Clock) -> None:
    made(tmp_path / "a.prom", clock)
    assert is_beginning_of_metrics_file((tmp_path / "a.prom").read_bytes()[:200])
