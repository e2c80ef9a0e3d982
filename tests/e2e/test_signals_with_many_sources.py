"""A SIGINT to a copy of many sources (``pcopy * DST``): it is heard at once, however many there are."""

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
"""As often a run may make one system call after the signal, all ranks together: not for each of the sources."""

INTERRUPTED, STOPPED = 130, 75


class Moment(NamedTuple):
    """The SIGINT comes with the call number ``when`` among ``calls``, and ``status`` is that of the run."""

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


def stored(area: Path) -> list[Path]:
    """The files that the jobs have left in the state directory."""
    return [path for path in area.glob("state/pcopy/**/*") if path.is_file()]


def check_whole(source: Path) -> int:
    """Returns how many files are in the target under their own names: each is its source."""
    names = [name for name in os.listdir(source.parent / "target") if not name.startswith(".pcopy-")]
    for name in names:
        assert (source.parent / "target" / name).read_bytes() == (source / name).read_bytes()
    return len(names)


def check_resumed(source: Path, number: int) -> None:
    """``--resume`` finishes the job that ``number`` files were copied for, and leaves nothing of it."""
    area, target = source.parent, source.parent / "target"
    assert number < SOURCES
    succeed("--resume", ranks=2, env=state(area))
    os.utime(target, ns=(source.stat().st_atime_ns, source.stat().st_mtime_ns))  # itself is none of the sources
    assert differences(source, target) == []
    assert stored(area) == []


def calls_after_the_signal(log: Path) -> Counter[str]:
    """How often each was made: by rank 0, which gets the signal, and by all that it has started."""
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
def test_a_signal_is_heard_at_once(source: Path, moment: Moment) -> None:
    """Whatever has to be done yet is not done for each of the sources."""
    run, calls = interrupted_at(moment, source)
    assert run.returncode == moment.status, show(run)
    assert max(calls.values()) < FEW, calls.most_common(5)
    if moment.status == INTERRUPTED:
        assert run.stderr == b"pcopy: interrupted\n"
        assert os.listdir(source.parent / "target") == []
        assert stored(source.parent) == []
    else:
        assert b"pcopy: to go on: pcopy --resume " in run.stderr, show(run)
        check_resumed(source, check_whole(source))


def test_a_signal_while_files_are_copied(source: Path) -> None:
    area, target = source.parent, source.parent / "target"
    options = {"ranks": 2, "cwd": source, "env": state(area), "wrap": slowed("utimensat", 10)}
    with background(*words(source), **options) as run:
        assert wait_until(lambda: os.listdir(target) or run.process.poll() is not None)
        run.send_signal(signal.SIGINT)
        assert run.end(HANGS) == STOPPED
    check_resumed(source, check_whole(source))
