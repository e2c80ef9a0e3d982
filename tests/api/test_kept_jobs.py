"""``Error.job`` is what ``resume`` finds the job by, however the job was begun and ended."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import pcopy
from tests.support.oracle import differences
from tests.support.processes import HANGS, wait_until

SLOWLY: dict[str, Any] = {"bwlimit": "4M", "progress_interval": 0.1, "ranks": 2}
Job = pcopy.RunningJob[pcopy.CopyResult]


def copied(area: Path, **options: Any) -> Job:
    return pcopy.start(pcopy.copy, area / "large", area / "copy", chunk_size=1 << 20, **SLOWLY, **options)


def stopped(area: Path, **options: Any) -> pcopy.Stopped:
    """Return the exception of a copy that was stopped."""
    job = copied(area, **options)
    assert wait_until(lambda: (progress := job.progress()) and progress.moved)
    job.stop()
    with pytest.raises(pcopy.Stopped) as error:
        job.wait()
    return error.value


def resumed_by_name(area: Path) -> Job:
    return pcopy.start(pcopy.resume, stopped(area).job or "", **SLOWLY)


def resumed_from_list(area: Path) -> Job:
    stopped(area)
    return pcopy.start(pcopy.resume, pcopy.jobs()[0], **SLOWLY)


def resumed_from_directory(area: Path) -> Job:
    stopped(area, checkpoint=area / "job")
    return pcopy.start(pcopy.resume, area / "job", **SLOWLY)


def resumed_by_checkpoint(area: Path) -> Job:
    stopped(area, checkpoint=area / "job")
    return copied(area, checkpoint=area / "job")


BEGINNINGS: dict[str, Callable[[Path], Job]] = {
    "state directory": copied,
    "checkpoint": lambda area: copied(area, checkpoint=area / "job"),
    "relative checkpoint": lambda area: copied(area, checkpoint="job"),
    "resumed by name": resumed_by_name,
    "resumed from list": resumed_from_list,
    "resumed from directory": resumed_from_directory,
    "resumed by checkpoint": resumed_by_checkpoint,
}


@pytest.mark.parametrize("end", ["stop", "kill", "kill at once"])
@pytest.mark.parametrize("beginning", BEGINNINGS)
def test_job_is_known(area: Path, large: Path, monkeypatch: pytest.MonkeyPatch, beginning: str, end: str) -> None:
    monkeypatch.chdir(area)
    job = BEGINNINGS[beginning](area)
    if end != "kill at once":
        assert wait_until(lambda: (progress := job.progress()) and progress.moved)
    if end == "stop":
        job.stop()
    else:
        job.kill()
    with pytest.raises(pcopy.Stopped if end == "stop" else pcopy.InternalError) as error:
        job.wait(HANGS)
    if end == "kill at once" and not beginning.startswith("resumed"):
        assert error.value.job is None
        return
    assert error.value.job is not None
    monkeypatch.chdir("/")
    assert pcopy.resume(error.value.job, bwlimit=0).failed == 0
    assert differences(large, area / "copy") == []
    assert pcopy.jobs() == []
    assert not (area / "job").exists()


def test_path_that_is_written_like_an_option(area: Path, large: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(area)
    (area / "copy").mkdir()
    for name in ("--checkpoint=here", "--resume=here"):
        (area / name).mkdir()
    sources = ["--checkpoint=here", "--resume=here", "large"]
    job = pcopy.start(pcopy.copy, sources, "copy", chunk_size=1 << 20, **SLOWLY)
    assert wait_until(lambda: (progress := job.progress()) and progress.moved)
    job.stop()
    with pytest.raises(pcopy.Stopped) as error:
        job.wait()
    assert [unfinished.job for unfinished in pcopy.jobs()] == [error.value.job] == [job.name]
    assert pcopy.resume(error.value.job or "", bwlimit=0).failed == 0
    assert differences(large, area / "copy/large") == []
    assert {*os.listdir(area / "copy")} == {*sources}


def test_finished_job_is_not_kept(area: Path, large: Path) -> None:
    assert pcopy.copy(large, area / "copy", checkpoint=area / "job").job is None
    with pytest.raises(pcopy.Refused) as refused:
        pcopy.resume(area / "job")
    assert refused.value.job is None
