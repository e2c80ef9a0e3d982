"""Transient errors: the next run repairs their effects completely."""

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


def test_resume_verifies_a_directory_that_could_not_be_opened_before(area: Path, env: dict[str, str]) -> None:
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
def test_resume_removes_an_inherited_acl_after_a_failed_removal(area: Path, env: dict[str, str], which: str) -> None:
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
def test_name_that_is_temporarily_not_found_is_copied_as_a_hard_link(
    area: Path, env: dict[str, str], number: int
) -> None:
    """Each status call in the directory fails in turn. Where the job does not notice it, all names are hard links."""
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


@pytest.mark.parametrize("resumes", [True, False], ids=["resumed", "discarded"])
def test_temporary_signature_file_is_removed_by_resume_and_discard(
    area: Path, env: dict[str, str], resumes: bool
) -> None:
    """The name of the temporary file contains the job, and the file is removed with it."""
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
    if resumes:
        succeed("--resume", job, ranks=1, env=env)
        assert os.listdir(there) == ["signature"]
        check_equal(source, copy)
    else:
        succeed("--discard", job, env=env)
        assert os.listdir(there) == []


def test_resumed_run_reports_only_its_own_transfer_rate(area: Path, env: dict[str, str], stop: Stop) -> None:
    source, copy = area / "source", area / "copy"
    source.mkdir()
    for number in range(60):
        (source / str(number)).write_bytes(os.urandom(1 << 20))
    stop("-T", source, copy, ranks=1, number=signal.SIGTERM, until=lambda: copy.exists() and len(os.listdir(copy)) > 40)
    run = succeed("--resume", "--json", ranks=1, env=env)
    reported = summary(run)
    assert reported["bytes"] == 60 << 20
    assert reported["bytes_per_second"] * reported["seconds"] < 40 << 20, show(run)
