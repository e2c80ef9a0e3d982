"""A job that runs is changed by --control, and --jobs shows how it gets on: by files in its directory alone."""

from __future__ import annotations

import filecmp
import json
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.test_limits import held, make
from tests.support.command import Argument, pcopy
from tests.support.processes import Run, background, wait_until

MIB = 1 << 20


@contextmanager
def running(area: Path, *options: Argument) -> Iterator[Run]:
    """A job of 30 MiB in small files that would last for some minutes."""
    source = make(area / "source", 480, 64 << 10)
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


def read_by(pids: set[int]) -> dict[int, int]:
    """How many bytes each process has read by now (proc(5))."""
    found = {}
    for pid in pids:
        fields = dict(line.split(": ") for line in Path(f"/proc/{pid}/io").read_text().splitlines())
        found[pid] = int(fields["rchar"])
    return found


def test_a_running_job_is_paused_changed_and_goes_on(area: Path) -> None:
    with running(area) as run:
        name = job_of(area)
        assert control(area, name, "pause") == "200 KiB/s at most, paused"
        time.sleep(0.5)
        before = held(area / "copy")
        time.sleep(1)
        assert held(area / "copy") == before
        assert "  paused  " in jobs(area)
        assert control(area, name, "resume", "bwlimit=8M/s", "oplimit=2000") == (
            "8.00 MiB/s at most, 2,000 operations/s at most"
        )
        wait_until(lambda: held(area / "copy") > before)
        assert control(area, area / "state" / "pcopy" / name, "oplimit=0") == "8.00 MiB/s at most"
        out, err = run.process.communicate(timeout=60)
        assert run.process.returncode == 0, err
    assert b"480 files" in out
    assert b"pcopy: changed by --control: 200 KiB/s at most, paused\n" in err
    names = os.listdir(area / "source")
    assert filecmp.cmpfiles(area / "source", area / "copy", names, shallow=False)[0] == names
    assert os.listdir(area / "state" / "pcopy") == []


def test_only_active_ranks_take_work(area: Path) -> None:
    with running(area, "--checkpoint", area / "kept") as run:
        ranks = set(run.processes())
        assert control(area, area / "kept", "bwlimit=4M", "active=1") == "4.00 MiB/s at most, 1 of 3 ranks active"
        time.sleep(0.7)
        before = read_by(ranks)
        time.sleep(1)
        read = sorted(count - before[pid] for pid, count in read_by(ranks).items())
        assert read[-1] > MIB
        assert sum(read[:-1]) < 64 << 10, "one file"
        assert control(area, area / "kept", "active=3", "bwlimit=8M") == "8.00 MiB/s at most"
        assert run.process.wait(60) == 0
    assert not (area / "kept").exists()


def test_jobs_tell_how_they_get_on(area: Path) -> None:
    with running(area, "--checkpoint-interval", "60") as run:
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
        assert 0 < reported["moved"] <= held(area / "copy") + MIB
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
    assert error.endswith("the job is not running; to resume it: pcopy --resume")


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
def test_what_cannot_be_asked_for_is_refused(area: Path, words: tuple[str, ...], error: str) -> None:
    said = control(area, "no-job", *words, status=2)
    assert error in said.replace("--ranks", "-n4")
    assert said.count("\n") == 0


def test_a_directory_without_a_job_is_refused(area: Path) -> None:
    (area / "none").mkdir(mode=0o700)
    assert "no job runs there" in control(area, area / "none", "pause", status=2)


def test_more_active_ranks_than_there_are(area: Path) -> None:
    with running(area) as run:
        assert "active=4: the job has 3 ranks" in control(area, job_of(area), "active=4", status=2)
        (directory,) = (area / "state" / "pcopy").iterdir()
        (directory / "control").write_text('{"id": 7, "run": 1, "bwlimit": "all"}\n')  # by whoever may do that
        (directory / "control").chmod(0o600)
        time.sleep(1)
        assert run.process.poll() is None
        assert control(area, job_of(area), "bwlimit=10M") == "10.0 MiB/s at most"
        assert run.process.wait(60) == 0
