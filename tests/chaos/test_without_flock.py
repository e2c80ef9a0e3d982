"""A job directory on a file system without flock: concurrent runs could not be detected, so no job is stored or
resumed."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from tests.chaos.unfinished import INCOMPLETE, REFUSED, check_equal
from tests.support.command import pcopy, show
from tests.support.faults import Fault
from tests.support.filesystems import remove


def missing(area: Path) -> Fault:
    return Fault(area / "log", ["flock"], None, "ENOSYS")


def test_job_is_not_stored_without_flock(area: Path, env: dict[str, str]) -> None:
    source = area / "source"
    source.mkdir()
    (source / "file").write_bytes(b"file")
    where = ("--checkpoint", area / "job")
    run = pcopy(*where, source, area / "copy", ranks=2, env=env, wrap=(fault := missing(area)).wrap())
    fault.check()
    assert run.returncode == REFUSED, show(run)
    assert b"cannot be locked" in run.stderr, show(run)
    assert b"--checkpoint DIR" in run.stderr, show(run)
    assert not (area / "copy").exists()
    assert not (area / "job").exists()
    run = pcopy(source, area / "copy", ranks=2, env=env, wrap=missing(area).wrap())
    assert run.returncode == 0, show(run)
    assert b"goes on without and cannot be resumed: " in run.stderr, show(run)
    assert b"--checkpoint DIR" in run.stderr, show(run)
    assert not list((area / "state").glob("pcopy/*"))
    check_equal(source, area / "copy")


def test_job_is_not_resumed_without_flock(area: Path, env: dict[str, str]) -> None:
    source, copy = area / "source", area / "copy"
    source.mkdir()
    (source / "file").write_bytes(b"file")
    (copy / "file" / "in the way").mkdir(parents=True)
    first = pcopy("-T", source, copy, ranks=2, env=env)
    assert first.returncode == INCOMPLETE, show(first)
    remove(copy / "file")
    (job,) = (area / "state" / "pcopy").iterdir()
    run = pcopy("--resume", job.name, ranks=2, env=env, wrap=(fault := missing(area)).wrap())
    fault.check()
    assert run.returncode == REFUSED, show(run)
    assert b"cannot be locked" in run.stderr, show(run)
    assert b"(cp -a) to a file system that has locks, and name the copy: --resume DIR" in run.stderr, show(run)
    assert os.listdir(copy) == []
    subprocess.run(["cp", "-a", job, area / "moved"], check=True)
    assert pcopy("--resume", area / "moved", ranks=2, env=env).returncode == 0
    check_equal(source, copy)
