"""Resumable jobs under difficult conditions: no space for records or spilled tasks, and unusual destinations."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from tests.chaos.dataset import make_dataset
from tests.chaos.unfinished import BUSY, GRACE, REFUSED, STOPPED
from tests.support.command import pcopy, show, succeed
from tests.support.faults import ITEM_BY_ITEM, SLOW, Fault, slowed
from tests.support.filesystems import mounted, scratch, unmount
from tests.support.oracle import differences
from tests.support.processes import background, wait_until
from tests.support.users import NOBODY, require_root


@pytest.fixture(scope="module")
def tree() -> Iterator[Path]:
    with scratch() as place:
        make_dataset(place / "source", 37, files=300, directories=60)
        yield place / "source"


def test_resumed_run_syncs_a_mount_below_the_target(area: Path, env: dict[str, str]) -> None:
    require_root("mount a tmpfs")
    source, copy = area / "source", area / "copy"
    for number in range(40):
        (source / "mount" / f"directory-{number}").mkdir(parents=True)
        for name in range(20):
            (source / "mount" / f"directory-{number}" / f"{name}").touch()
    point = copy / "mount"
    point.mkdir(parents=True)
    subprocess.run(["mount", "-t", "tmpfs", "none", point], check=True)
    try:
        with background(*BUSY, "-T", source, copy, ranks=2, env=env, wrap=slowed(ITEM_BY_ITEM, 20 * SLOW)) as run:
            assert wait_until(lambda: run.process.poll() is not None or (any(point.iterdir()) and recorded(area)))
            time.sleep(0.3)
            run.send_signal(signal.SIGTERM)
            _, err = run.process.communicate(timeout=GRACE)
            assert run.process.returncode == STOPPED, err
        succeed("--resume", ranks=3, env=env)
        assert differences(source, copy) == []
    finally:
        unmount(point)


def recorded(area: Path) -> bool:
    return any(path.stat().st_size for path in (area / "state/pcopy").glob("*/run-*/facts-*"))


@pytest.mark.parametrize("options", [(), ("--checkpoint", "none")])
def test_copy_into_a_directory_that_is_writable_but_not_readable(area: Path, options: tuple[str, ...]) -> None:
    require_root("own what another user writes to")
    (area / "source").mkdir()
    (area / "source" / "file").write_bytes(b"for the box")
    box = area / "box"
    box.mkdir()
    box.chmod(0o1733)
    for number in (1, 2):
        run = pcopy(*options, area / "source" / "file", box / f"file-{number}", ranks=number, user=NOBODY)
        assert run.returncode == 0, show(run)
        assert run.stderr == b"", show(run)
        assert (box / f"file-{number}").read_bytes() == b"for the box"
    run = pcopy(*options, area / "source", box, ranks=2, user=NOBODY)
    assert run.returncode == 0, show(run)
    assert differences(area / "source", box / "source", ownership=False) == []


def fill(small: Path) -> None:
    with suppress(OSError), open(small / "full", "wb", buffering=0) as file:
        while True:
            file.write(bytes(1 << 12))


def test_resume_is_refused_if_the_job_directory_has_no_space(tree: Path, area: Path) -> None:
    require_root("mount a tmpfs")
    with mounted("tmpfs", area, size=16 << 20) as small:
        job = small / "job"
        slow = slowed(ITEM_BY_ITEM, SLOW)
        with background(*BUSY, "--checkpoint", job, tree, area / "copy", ranks=2, wrap=slow) as run:
            assert wait_until(lambda: (job / "current").exists() and (area / "copy").exists())
            time.sleep(0.3)
            run.send_signal(signal.SIGTERM)
            assert run.process.wait(GRACE) == STOPPED
        fill(small)
        full = pcopy("--resume", job, ranks=2)
        assert full.returncode == REFUSED, show(full)
        (line,) = full.stderr.splitlines()
        assert line == b"pcopy: %s: cannot be written: No space left on device" % os.fsencode(job)
        (small / "full").unlink()
        succeed("--resume", job, ranks=3)
        assert differences(tree, area / "copy") == []


@pytest.fixture(scope="module")
def wide() -> Iterator[Path]:
    with scratch() as place:
        for number in range(30000):
            (place / f"a rather long name of a file, so that tasks take some room: {number}").touch()
        yield place


@pytest.mark.in_turn(2)
@pytest.mark.parametrize("store", ["lmdb", "pickle"])
@pytest.mark.parametrize("ranks", [1, 3])
def test_no_space_for_waiting_tasks_stops_the_job(
    wide: Path, area: Path, env: dict[str, str], store: str, ranks: int
) -> None:
    require_root("mount a tmpfs")
    with mounted("tmpfs", area, size=128 << 10) as small:
        limits = ("--memory", "1", "--checkpoint-store", store)
        run = pcopy(*limits, "--spool", small, "-T", wide, area / "copy", ranks=ranks, env=env)
        assert run.returncode == STOPPED, show(run)
        (why,) = (line for line in run.stderr.splitlines() if b"stopped early" in line)
        assert os.fsencode(small) in why and b"name another directory with --spool" in why
        assert b"Traceback" not in run.stderr, show(run)
        assert os.listdir(small) == []
    succeed("--resume", "--spool", area, ranks=ranks, env=env)
    assert differences(wide, area / "copy") == []


@pytest.mark.in_turn(1)
@pytest.mark.parametrize(("rank", "launcher"), [(0, None), (1, None), (1, "mpi")])
def test_one_rank_without_space_for_records_ends_checkpoints_of_all_ranks(
    tree: Path, area: Path, rank: int, launcher: str | None
) -> None:
    """Otherwise phases would continue that are not recorded, and an ordinary user could not write in finished
    directories."""
    job = area / "job"
    wrap = Fault(area / "log", ["write"], job / f"run-1/facts-{rank}", "ENOSPC", when="3+").wrap()
    run = pcopy(*BUSY, "--checkpoint", job, tree, area / "copy", ranks=2, wrap=wrap, launcher=launcher)
    assert run.returncode == 0, show(run)
    assert run.stderr.count(b"no more checkpoints, the job goes on without and cannot be resumed: ") == 1, show(run)
    assert run.stderr.count(b"No space left on device") == 1, show(run)
    assert not job.exists()
    assert differences(tree, area / "copy") == []


def test_job_that_can_no_longer_be_recorded_is_removed_immediately(tree: Path, area: Path) -> None:
    require_root("mount a tmpfs")
    with mounted("tmpfs", area, size=1 << 20) as small:
        job = small / "job"
        wrap = slowed(ITEM_BY_ITEM, 20 * SLOW)  # the last page of a file has space for some more records
        with background(*BUSY, "--checkpoint", job, tree, area / "copy", ranks=2, wrap=wrap) as run:
            assert wait_until(lambda: run.process.poll() is not None or (job / "current").exists())
            fill(small)
            assert wait_until(lambda: run.process.poll() is not None or not job.exists())
            run.kill_all()
        assert differences(tree, area / "copy") != [], "the job directory was not removed before the end"
        again = pcopy("--resume", job, ranks=2)
        assert again.returncode == REFUSED, show(again)
