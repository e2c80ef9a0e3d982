"""``--control`` changes a running job and ``--jobs`` shows its progress; both use only files in the job directory."""

from __future__ import annotations

import filecmp
import json
import os
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.test_limits import allocated_bytes, make_files
from tests.support.command import Argument, pcopy
from tests.support.processes import Run, background, wait_until

MIB = 1 << 20


@contextmanager
def running_job(area: Path, *options: Argument) -> Iterator[Run]:
    """Run a job that copies small files of 30 MiB in total, which would take some minutes."""
    source = make_files(area / "source", 480, 64 << 10)
    env = {"XDG_STATE_HOME": str(area / "state")}
    with background(*options, "--bwlimit", "200K", f"{source}/", area / "copy", ranks=3, env=env) as run:
        wait_until(lambda: list(area.glob("state/pcopy/*/progress")) or (area / "kept" / "progress").exists())
        yield run


def control(area: Path, job: Argument, *words: str, status: int = 0) -> str:
    done = pcopy("--control", job, *words, env={"XDG_STATE_HOME": str(area / "state")})
    assert done.returncode == status, done.stderr
    return (done.stdout if status == 0 else done.stderr).decode().rstrip("\n")


def jobs(area: Path, *options: str) -> str:
    done = pcopy("--jobs", *options, env={"XDG_STATE_HOME": str(area / "state")})
    assert done.returncode == 0, done.stderr
    return done.stdout.decode()


def job_of(area: Path) -> str:
    (name,) = os.listdir(area / "state" / "pcopy")
    return name


def bytes_read(pids: set[int]) -> dict[int, int]:
    """Return the number of bytes that each process has read so far (proc(5))."""
    found = {}
    for pid in pids:
        fields = dict(line.split(": ") for line in Path(f"/proc/{pid}/io").read_text().splitlines())
        found[pid] = int(fields["rchar"])
    return found


def test_running_job_is_paused_and_resumed_with_new_limits(area: Path) -> None:
    with running_job(area) as run:
        name = job_of(area)
        assert control(area, name, "pause") == "200 KiB/s at most, paused"
        time.sleep(0.5)
        before = allocated_bytes(area / "copy")
        time.sleep(1)
        assert allocated_bytes(area / "copy") == before
        assert "  paused  " in jobs(area)
        assert control(area, name, "resume", "bwlimit=8M/s", "oplimit=2000") == (
            "8.00 MiB/s at most, 2,000 operations/s at most"
        )
        wait_until(lambda: allocated_bytes(area / "copy") > before)
        assert control(area, area / "state" / "pcopy" / name, "oplimit=0") == "8.00 MiB/s at most"
        out, err = run.process.communicate(timeout=60)
        assert run.process.returncode == 0, err
    assert b"480 files" in out
    assert b"pcopy: changed by --control: 200 KiB/s at most, paused\n" in err
    names = os.listdir(area / "source")
    assert filecmp.cmpfiles(area / "source", area / "copy", names, shallow=False)[0] == names
    assert os.listdir(area / "state" / "pcopy") == []


def test_only_active_ranks_take_work(area: Path) -> None:
    with running_job(area, "--checkpoint", area / "kept") as run:
        ranks = set(run.processes())
        assert control(area, area / "kept", "bwlimit=4M", "active=1") == "4.00 MiB/s at most, 1 of 3 ranks active"
        time.sleep(0.7)
        before = bytes_read(ranks)
        time.sleep(1)
        read = sorted(count - before[pid] for pid, count in bytes_read(ranks).items())
        assert read[-1] > MIB
        assert sum(read[:-1]) < 64 << 10, "one file"
        assert control(area, area / "kept", "active=3", "bwlimit=8M") == "8.00 MiB/s at most"
        assert run.process.wait(60) == 0
    assert not (area / "kept").exists()


def test_jobs_option_shows_progress_of_a_running_job(area: Path) -> None:
    with running_job(area, "--checkpoint-interval", "60") as run:
        wait_until(lambda: '"moved": 0' not in jobs(area, "--json"))
        (line,) = [json.loads(line) for line in jobs(area, "--json").splitlines()]
        reported: dict[str, Any] = line["progress"]
        assert (line["state"], reported["ranks"], reported["bwlimit"], reported["paused"]) == (
            "running",
            3,
            200 << 10,
            False,
        )
        assert reported["found"] == 481
        assert 0 < reported["moved"] <= allocated_bytes(area / "copy") + MIB
        assert abs(reported["time"] - time.time()) < 10
        (area / "state" / "pcopy" / job_of(area) / "progress").stat()
        table = jobs(area)
        assert " of 481, " in table
        assert "  3 ranks on " in table
        assert ": 0." in table or " %, " in table
        assert "200 KiB/s at most" in table
        assert (area / "state" / "pcopy" / job_of(area) / "progress").stat().st_mode & 0o777 == 0o600
        run.send_signal(15)
        assert run.process.wait(60) == 75
    (line,) = [json.loads(line) for line in jobs(area, "--json").splitlines()]
    assert (line["state"], line["progress"]) == ("stopped", None)
    error = control(area, job_of(area), "pause", status=2)
    assert re.search(r"([^ ]+): the job is not running; to resume it: pcopy --resume \1$", error), error


@pytest.mark.parametrize(
    ("words", "error"),
    [
        ((), "say what is to change: bwlimit=RATE, oplimit=N, active=N, pause, resume"),
        (("pauze",), "pauze: not one of bwlimit=RATE, "),
        (("bwlimit=fast",), "bwlimit=fast: not a size"),
        (("oplimit=-3",), "oplimit=-3: not a whole number of 0 or more"),
        (("active=0",), "active=0: not a whole number of 1 or more"),
        (("pause", "resume"), "resume: contradicts another word"),
        (("paused=1",), "paused=1: not one of"),
        (("pause", "-n4"), "-n4 cannot be given with --control"),
        (("pause",), "no-job: there is no such job; "),
    ],
)
def test_invalid_control_request_is_refused(area: Path, words: tuple[str, ...], error: str) -> None:
    message = control(area, "no-job", *words, status=2)
    assert error in message.replace("--ranks", "-n4")
    assert message.count("\n") == 0


def test_a_directory_without_a_job_is_refused(area: Path) -> None:
    (area / "none").mkdir(mode=0o700)
    assert "no job runs there" in control(area, area / "none", "pause", status=2)


def test_more_active_ranks_than_the_job_has_are_refused(area: Path) -> None:
    with running_job(area) as run:
        assert "active=4: the job has 3 ranks" in control(area, job_of(area), "active=4", status=2)
        (directory,) = (area / "state" / "pcopy").iterdir()
        (directory / "control").write_text('{"id": 7, "run": 1, "bwlimit": "all"}\n')  # by a user with write access
        (directory / "control").chmod(0o600)
        time.sleep(1)
        assert run.process.poll() is None
        assert control(area, job_of(area), "bwlimit=10M") == "10.0 MiB/s at most"
        assert run.process.wait(60) == 0
