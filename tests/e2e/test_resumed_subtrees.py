"""Jobs that are killed and resumed: one call of the C backend copies whole subtrees also in a resumed run, with what
earlier runs have left in them.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
from collections import Counter
from pathlib import Path

import pytest

from tests.chaos.unfinished import stopped
from tests.support.command import Argument, pcopy, show, succeed, summary
from tests.support.faults import require_strace, slowed
from tests.support.files import write
from tests.support.oracle import differences
from tests.support.processes import background, wait_until
from tests.support.walk import temporaries

DIRECTORIES = 4
"""Subdirectories of each directory."""

KILLS = [("mkdirat", 0.2), ("mkdirat", 0.5), ("mkdirat", 0.9), ("fchmod", 0.1), ("utimensat", 0.5), ("utimensat", 0.9)]
"""System calls, and which of the calls of a whole job is the last one before it is killed."""

ODD = "old/o/d/d/e/s/t"
"""A directory with an unusual time. It is deeper than all others, so that it is finished first."""


def run_until(
    call: str, part: float, words: list[Argument], target: Path, env: dict[str, str], microseconds: int = 0
) -> None:
    """Run a job, which copies to ``target``, and kill it at a system call. How many calls a whole job makes is found
    out with a copy of the target. A job that makes fewer calls, because others of its threads make them, ends before:
    then it is repeated, and killed earlier. Each change of a mode takes at least ``microseconds``.
    """
    trial, before = target.parent / "trial", target.parent / "before"
    if target.exists():
        for copied in (trial, before):
            subprocess.run(["cp", "-a", target, copied], check=True)
    wrap = ["strace", "-f", "-qq", "-o", str(target.parent / "calls"), "-e", f"trace={call}"]
    succeed(*words[:-1], trial, ranks=1, env=env, wrap=wrap)
    calls = Counter(
        line.split()[0] for line in (target.parent / "calls").read_text().splitlines() if f"{call}(" in line
    )
    number = int(max(calls.values()) * part)
    killed = kill_at_call(call, max(1, number), words, env, microseconds)
    while killed.returncode == 0 and number > 1:
        number = number * 3 // 4
        shutil.rmtree(target)
        if before.exists():
            subprocess.run(["cp", "-a", before, target], check=True)
            time.sleep(5.2)  # the tolerance for differing clocks: all this is certainly older than the job
        killed = kill_at_call(call, number, words, env, microseconds)
    assert killed.returncode in (-signal.SIGKILL, 128 + signal.SIGKILL), show(killed)


def kill_at_call(
    call: str, number: int, words: list[Argument], env: dict[str, str], microseconds: int
) -> subprocess.CompletedProcess[bytes]:
    """Run a job, and kill it when one of its threads makes the system call ``call`` for the time ``number``."""
    wrap = ["strace", "-f", "-qq", "-o", "/dev/null", "-e", f"inject={call}:signal=KILL:when={number}"]
    wrap += ["-e", f"inject=fchmod:delay_enter={microseconds}"] if microseconds else []
    return pcopy(*words, ranks=1, env=env, wrap=wrap)


def make_tree(top: Path, depth: int = 3) -> int:
    """Make a tree with two files in each directory; return the number of items."""
    top.mkdir()
    number = 3
    for name in ("one", "other"):
        (top / name).write_text(f"{name} in {top}")
        os.utime(top / name, ns=(10**18, 10**18 + depth))
    for each in range(DIRECTORIES if depth else 0):
        number += make_tree(top / f"d{each}", depth - 1)
    top.chmod((0o755, 0o700, 0o750, 0o1777)[depth])
    os.utime(top, ns=(10**18, 10**18 + depth))
    return number


@pytest.mark.parametrize("interval", ["0.01", "30"], ids=["recorded", "unrecorded"])
@pytest.mark.parametrize("kill", KILLS, ids=lambda kill: f"{kill[0]}-{kill[1]}")
@pytest.mark.parametrize("policy", ["replace", "changed", "newer"])
@pytest.mark.parametrize("exists", [False, True], ids=["new", "existing"])
def test_killed_job_is_resumed(area: Path, exists: bool, policy: str, kill: tuple[str, float], interval: str) -> None:
    """An existing copy has a subtree that is complete, one without its files, and directories with other modes."""
    require_strace()
    source, copy = area / "source", area / "copy"
    found = make_tree(source)
    if exists:
        subprocess.run(["cp", "-a", source, copy], check=True)
        for path in (copy / "d1").rglob("one"):
            path.unlink()
        shutil.rmtree(copy / "d2")
        (copy / "d3/d0").chmod(0o700)
        for path in copy.rglob("*"):  # a copy of the user, which is older than the job
            os.utime(path, ns=(path.stat().st_atime_ns, path.stat().st_mtime_ns))
        time.sleep(0.1)
    env = {"XDG_STATE_HOME": str(area / "state")}
    run_until(*kill, ["--json", "--existing", policy, "--checkpoint-interval", interval, "-T", source, copy], copy, env)
    run = pcopy("--resume", "--json", ranks=2, env=env)
    assert run.returncode == 0, show(run)
    reported = summary(run)
    assert (reported["found"], reported["failed"]) == (found, 0), show(run)
    assert reported["copied"] + reported["skipped"] == found, show(run)
    assert differences(source, copy) == []
    assert temporaries(os.fsencode(copy)) == []


@pytest.mark.c_backend
@pytest.mark.parametrize("is_odd", [False, True], ids=["", "odd"])
@pytest.mark.parametrize(
    ("lost", "options"),
    [
        (None, []),
        ("old/a/b/c/file", []),
        ("old/a/b", []),
        (None, ["--exclude", "excluded"]),
        ("old/a/b/c/file", ["--exclude", "excluded"]),
    ],
)
def test_items_lost_in_subtrees_that_needed_nothing_are_found(
    area: Path, lost: str | None, options: list[Argument], *, is_odd: bool
) -> None:
    """Between two runs, an item is removed in or below a directory in which the first run had nothing to do. With a
    filter, both sides have an excluded directory, and in it that of the source has an item that the other has not. If
    the time of another directory of the same call is unusual, all of them are finished one by one.
    """
    source, copy = area / "source", area / "copy"
    for path in ("old/a/b/c", "old/a/d", "new"):
        (source / path).mkdir(parents=True)
        (source / path / "file").write_text(path)
    for number in range(20):
        (source / f"new/{number}").write_text(f"{number}")
    copy.mkdir()
    if options:
        (source / "old/a/b/excluded/a").mkdir(parents=True)
    if is_odd:
        (source / ODD).mkdir(parents=True)
    subprocess.run(["cp", "-a", source / "old", copy], check=True)
    if is_odd:
        (source / ODD / "file").touch()
        os.utime(source / ODD, (-600_000_000, -600_000_000))
    if options:
        (source / "old/a/b/excluded/a/file").touch()
    time.sleep(5.2)  # the tolerance for differing clocks: all this is certainly older than the job
    env = {"XDG_STATE_HOME": str(area / "state")}
    words: list[Argument] = ["--existing", "changed", "--in-flight", "1", "--checkpoint-interval", "0.01", *options]
    words += ["-T", source, copy]
    run_until("utimensat", 0.92 if is_odd else 0.96, words, copy, env, microseconds=50_000)
    if lost is not None:
        subprocess.run(["rm", "-r", copy / lost], check=True)
    resumed = pcopy("--resume", ranks=1, env=env)
    if lost == "old/a/b" and b"all that was in it is copied again" in resumed.stderr:
        # On a busy machine, calls may not enter whole subtrees. Tasks for single directories copy these again.
        assert (resumed.returncode, differences(source, copy)) == (0, []), show(resumed)
        return
    assert (resumed.returncode == 0) == (lost is None), show(resumed)
    assert (b"missing or changed since" in resumed.stderr) == (lost is not None), show(resumed)


@pytest.mark.parametrize("words", [["--backup", "kept"], []], ids=["backup", "no backup"])
def test_directory_in_which_a_killed_run_has_deleted_items_keeps_its_time(area: Path, words: list[Argument]) -> None:
    """The first run is killed while it copies other files. A later one deletes an item, and is killed before that is
    recorded. The last run has nothing to copy or delete in the directory of this item.
    """
    require_strace()
    source, copy = area / "source", area / "copy"
    for path in ("a/b", "d/e"):
        (source / path).mkdir(parents=True)
        (source / path / "file").write_text(path)
        os.utime(source / path, ns=(10**18, 10**18))
    subprocess.run(["cp", "-a", source, copy], check=True)
    extra = [copy / "a/b/extra", copy / "d/e/extra"]
    for file in extra:
        file.write_text("extra")
        os.utime(file.parent, ns=(10**18, 10**18))
    for number in range(40):
        write(source / f"new/{number}", b"new")
    time.sleep(5.2)  # the tolerance for differing clocks: all this is certainly older than the job
    env = {"XDG_STATE_HOME": str(area / "state")}
    words = [area / word if word == "kept" else word for word in words]
    job: list[Argument] = ["--existing", "changed", "--delete", *words, f"{source}/", copy]
    stopped(area, env, *job, ranks=1, number=signal.SIGKILL)
    with background("--resume", ranks=1, env=env, wrap=slowed("unlinkat", 2000)) as run:
        assert wait_until(lambda: not all(file.exists() for file in extra))
        run.kill_all()
    assert [file.exists() for file in extra].count(True) == 1
    succeed("--resume", ranks=1, env=env)
    assert differences(source, copy) == []
