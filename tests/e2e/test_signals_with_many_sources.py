"""SIGINT to a copy of many sources (``pcopy * DST``): it takes effect immediately, however many there are."""

from __future__ import annotations

import os
import re
import signal
from collections import Counter
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.support.command import Argument, Completed, pcopy, show, succeed
from tests.support.faults import require_strace, slowed
from tests.support.oracle import differences
from tests.support.processes import HANGS, background, wait_until

SOURCES = 3000
FEW = SOURCES // 2
"""Limit of calls of each kind, by all ranks, after the signal: fewer than one for each source."""

INTERRUPTED, STOPPED = 130, 75


class Moment(NamedTuple):
    """SIGINT comes at the call number ``when`` among ``calls``; ``status`` is the expected exit status."""

    name: str
    calls: str
    when: int
    status: int

    def __str__(self) -> str:
        return self.name


STATUS_CALLS = "?newfstatat,?lstat,?stat"

MOMENTS = (
    Moment("looking at the sources", STATUS_CALLS, SOURCES - 500, INTERRUPTED),
    Moment("looking for them in the target", STATUS_CALLS, 2 * SOURCES - 500, INTERRUPTED),
    Moment("the file systems are asked for room", "?statfs,?fstatfs", 1, INTERRUPTED),
    Moment("the other rank is started", "?clone,?fork", 1, STOPPED),
    Moment("the job is stored", "flock", 1, STOPPED),
)


@pytest.fixture
def source(area: Path) -> Path:
    source = area / "source"
    source.mkdir()
    for number in range(SOURCES):
        (source / f"f{number:04}").write_bytes(b"%d" % number)
    (area / "target").mkdir()
    return source


def words(source: Path) -> list[Argument]:
    return [*sorted(os.listdir(source)), source.parent / "target"]


def state(area: Path) -> dict[str, str]:
    return {"XDG_STATE_HOME": str(area / "state")}


def job_files(area: Path) -> list[Path]:
    """Return the files of jobs in the state directory."""
    return [path for path in area.glob("state/pcopy/**/*") if path.is_file()]


def count_complete_files(source: Path) -> int:
    """Check that all files with final names equal their sources. Return their number."""
    names = [name for name in os.listdir(source.parent / "target") if not name.startswith(".pcopy-")]
    for name in names:
        assert (source.parent / "target" / name).read_bytes() == (source / name).read_bytes()
    return len(names)


def check_resumed(source: Path, number: int) -> None:
    """Check that ``--resume`` completes the job, which had copied ``number`` files, and removes its records."""
    area, target = source.parent, source.parent / "target"
    assert number < SOURCES
    succeed("--resume", ranks=2, env=state(area))
    os.utime(
        target, ns=(source.stat().st_atime_ns, source.stat().st_mtime_ns)
    )  # the job does not set the times of the target itself
    assert differences(source, target) == []
    assert job_files(area) == []


def calls_after_the_signal(log: Path) -> Counter[str]:
    """Count the system calls of rank 0, which gets the signal, and of its child processes."""
    _, signal_came, after = log.read_text(errors="replace").partition("--- SIGINT ")
    assert signal_came
    return Counter(re.findall(r"^\d+ +(\w+)\(", after, re.MULTILINE))


def interrupted_at(moment: Moment, source: Path) -> tuple[Completed, Counter[str]]:
    require_strace()
    area, log = source.parent, source.parent / "log"
    wrap = ["strace", "-f", "-qq", "-o", str(log), "-e", "trace=all"]
    wrap += ["-e", f"inject={moment.calls}:signal=SIGINT:when={moment.when}"]
    run = pcopy(*words(source), ranks=2, cwd=source, env=state(area), wrap=wrap, timeout=HANGS)
    return run, calls_after_the_signal(log)


@pytest.mark.parametrize("moment", MOMENTS, ids=str)
def test_signal_takes_effect_without_a_call_for_each_source(source: Path, moment: Moment) -> None:
    """No remaining work is done for each source."""
    run, calls = interrupted_at(moment, source)
    assert run.returncode == moment.status, show(run)
    assert max(calls.values()) < FEW, calls.most_common(5)
    if moment.status == INTERRUPTED:
        assert run.stderr == b"pcopy: interrupted\n"
        assert os.listdir(source.parent / "target") == []
        assert job_files(source.parent) == []
    else:
        assert b"pcopy: to go on: pcopy --resume " in run.stderr, show(run)
        check_resumed(source, count_complete_files(source))


def test_job_stopped_while_copying_many_sources_is_resumed(source: Path) -> None:
    area, target = source.parent, source.parent / "target"
    options = {"ranks": 2, "cwd": source, "env": state(area), "wrap": slowed("utimensat", 10)}
    with background(*words(source), **options) as run:
        assert wait_until(lambda: os.listdir(target) or run.process.poll() is not None)
        run.send_signal(signal.SIGINT)
        assert run.end(HANGS) == STOPPED
    check_resumed(source, count_complete_files(source))
