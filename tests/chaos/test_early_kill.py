"""Jobs that end before their first checkpoint: killed jobs can be resumed, and successful ones have made no sync
calls."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from tests.chaos.unfinished import REFUSED, check_equal, listed
from tests.support.command import Argument, pcopy, show, succeed
from tests.support.faults import ITEM_BY_ITEM, SLOW, require_strace, slowed
from tests.support.processes import background, wait_until


@pytest.mark.parametrize("launcher", [None, "mpi"])
def test_job_killed_before_its_first_checkpoint_can_be_resumed(
    tree: Path, area: Path, env: dict[str, str], launcher: str | None
) -> None:
    copy = area / "copy"
    with background(tree, copy, ranks=2, launcher=launcher, env=env, wrap=slowed(ITEM_BY_ITEM, SLOW)) as run:
        assert wait_until(lambda: run.process.poll() is not None or copy.exists())
        run.kill_all()
        run.end(10)
    assert wait_until(lambda: [job["state"] for job in listed(env)] == ["interrupted"])  # ranks under mpiexec end later
    assert [job["destination"] for job in listed(env)] == [str(copy)]
    assert not [*area.glob("state/pcopy/*/current")]
    succeed("--resume", ranks=2, env=env)
    check_equal(tree, copy)
    assert listed(env) == []


def test_first_checkpoint_is_written_after_five_seconds(tree: Path, area: Path, env: dict[str, str]) -> None:
    began = time.monotonic()
    with background(tree, area / "copy", ranks=1, env=env, wrap=slowed(ITEM_BY_ITEM, 5 * SLOW)) as run:
        assert wait_until(lambda: run.process.poll() is not None or [*area.glob("state/pcopy/*/run-1/facts-0")], 60)
        assert run.process.poll() is None and time.monotonic() - began > 5
        assert wait_until(lambda: run.process.poll() is not None or any(job["copied"] for job in listed(env)))
        run.kill_all()
        run.end(10)
    (job,) = listed(env)
    assert 0 < job["copied"] < job["found"], "recorded items are reported"
    assert f"{job['copied']:,} of {job['found']:,}, " in succeed("--jobs", env=env).stdout.decode()


def test_short_job_makes_no_sync_call_but_the_final_one(area: Path, env: dict[str, str]) -> None:
    """Except the sync of the copies at the end of the job."""
    require_strace()
    for number in range(5):
        (area / "source" / f"{number}").mkdir(parents=True)
        (area / "source" / f"{number}" / "file").write_bytes(b"small")
    log = area / "log"
    wrap = ["strace", "-f", "-qq", "-o", log, "-e", "trace=fsync,fdatasync,syncfs,sync"]
    succeed(area / "source", area / "copy", ranks=2, env=env, wrap=wrap)
    calls = [line.split("(")[0].split()[-1] for line in log.read_text().splitlines() if "(" in line]
    assert calls == ["syncfs"]
    assert os.listdir(area / "state" / "pcopy") == []


@pytest.mark.parametrize("left", ["no job", "empty", "zeros", "only a lock", "nothing"])
def test_remains_of_a_job_after_a_power_loss_cause_no_error(area: Path, env: dict[str, str], left: str) -> None:
    (area / "source").mkdir()
    job = area / "state" / "pcopy" / "0123456789"
    job.mkdir(parents=True, mode=0o700)
    files: dict[str, dict[str, bytes]] = {
        "no job": {"lock-0": b" ", "job.new": b""},
        "empty": {"lock-0": b"", "job": b""},
        "zeros": {"lock-0": b"", "job": bytes(3000)},
        "only a lock": {"lock-0": b"x"},
        "nothing": {},
    }
    for name, contents in files[left].items():
        (job / name).write_bytes(contents)
        (job / name).chmod(0o600)
    commands: list[list[Argument]] = [["--jobs"], [area / "source", area / "copy"], ["-q", area / "source", area / "b"]]
    for words in commands:
        assert succeed(*words, env=env).stderr == b""
    assert listed(env) == []
    run = pcopy("--resume", env=env)
    assert run.returncode == REFUSED and b"there is no unfinished job" in run.stderr, show(run)
    succeed("--checkpoint", job, area / "source", area / "c", env=env)
    assert not job.exists()
