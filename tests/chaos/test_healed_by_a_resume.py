"""Troubles of one moment: the next run mends what they have done, and leaves nothing of it."""

from __future__ import annotations

import os
import re
import signal
import subprocess
from pathlib import Path

import pytest

from tests.chaos.unfinished import INCOMPLETE, Stop, check_equal, kill
from tests.support.command import pcopy, show, succeed, summary
from tests.support.faults import Fault, slowed
from tests.support.held import held
from tests.support.processes import background, wait_until
from tests.support.users import NOBODY


def test_a_directory_that_could_not_be_opened_to_be_verified(area: Path, env: dict[str, str]) -> None:
    source, copy = area / "source", area / "copy"
    (source / "directory").mkdir(parents=True)
    (source / "directory/file").write_bytes(b"file")
    with held(area / "trace", "--json", "--verify", "-T", source, copy, ranks=2, env=env) as run:
        (copy / "directory").rename(area / "elsewhere")
        ended = run.go_on()
    assert (ended.returncode, summary(ended)["failed"]) == (INCOMPLETE, 2), show(ended)
    (area / "elsewhere").rename(copy / "directory")
    done = succeed("--resume", "--json", ranks=2, env=env)
    assert (summary(done)["copied"], summary(done)["directories"]) == (3, 2), show(done)
    check_equal(source / "directory", copy / "directory")


@pytest.mark.parametrize("which", ["1", "2"])
def test_an_inherited_acl_that_could_not_be_removed(area: Path, env: dict[str, str], which: str) -> None:
    source, copy = area / "source", area / "copy"
    (source / "directory").mkdir(parents=True)
    copy.mkdir()
    subprocess.run(["setfacl", "-d", "-m", f"u:{NOBODY}:rwx", copy], check=True)
    fault = Fault(area / "log", ["fremovexattr", "removexattr"], copy / "directory", "EIO", when=which)
    run = pcopy("--json", "-T", source, copy, ranks=1, env=env, wrap=fault.wrap())
    fault.check()
    assert run.returncode == INCOMPLETE, show(run)
    succeed("--resume", ranks=1, env=env)
    assert os.listxattr(copy / "directory") == []
    check_equal(source, copy)


@pytest.mark.parametrize("number", range(1, 9))
def test_a_name_that_is_not_found_for_a_moment_stays_a_link(area: Path, env: dict[str, str], number: int) -> None:
    """Each look at something in the directory in its turn; where the job has not noticed all names are links."""
    source, copy = area / "source", area / "copy"
    for name in ("one", "other"):
        (source / name).mkdir(parents=True)
    (source / "one/a").write_bytes(b"shared")
    for name in ("one/b", "other/c"):
        os.link(source / "one/a", source / name)
    fault = Fault(area / "log", ["newfstatat", "statx"], source / "one", "ENOENT", when=str(number))
    run = pcopy("-T", source, copy, ranks=1, env=env, wrap=fault.wrap())
    if run.returncode == INCOMPLETE:
        run = succeed("--resume", ranks=1, env=env)
    assert run.returncode == 0, show(run)
    check_equal(source, copy)
    assert (copy / "one/a").stat().st_nlink == 3


@pytest.mark.parametrize("goes_on", [True, False], ids=["resumed", "discarded"])
def test_a_signature_that_was_being_written(area: Path, env: dict[str, str], goes_on: bool) -> None:
    """Its temporary file carries the job, and goes with it."""
    source, copy, there, job = area / "source", area / "copy", area / "there", area / "job"
    source.mkdir()
    there.mkdir()
    (source / "file").write_bytes(b"file")
    words = ("--signature", there / "signature", "--checkpoint", job, "-T", source, copy)
    slow = slowed("renameat", 2000)
    with background(*words, ranks=1, env=env, wrap=slow) as run:
        assert wait_until(lambda: run.process.poll() is not None or os.listdir(there))
        kill(run)
    (name,) = os.listdir(there)
    assert re.fullmatch(r"\.pcopy-[0-9a-f]{10}-1-[0-9a-f]{16}", name)
    if goes_on:
        succeed("--resume", job, ranks=1, env=env)
        assert os.listdir(there) == ["signature"]
        check_equal(source, copy)
    else:
        succeed("--discard", job, env=env)
        assert os.listdir(there) == []


def test_the_rate_of_a_run_that_goes_on_is_its_own(area: Path, env: dict[str, str], stop: Stop) -> None:
    source, copy = area / "source", area / "copy"
    source.mkdir()
    for number in range(60):
        (source / str(number)).write_bytes(os.urandom(1 << 20))
    stop("-T", source, copy, ranks=1, number=signal.SIGTERM, until=lambda: copy.exists() and len(os.listdir(copy)) > 40)
    run = succeed("--resume", "--json", ranks=1, env=env)
    reported = summary(run)
    assert reported["bytes"] == 60 << 20
    assert reported["bytes_per_second"] * reported["seconds"] < 40 << 20, show(run)
