"""Commands for unfinished jobs: list, resume and discard."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from pathlib import Path

import pytest

from tests.chaos.unfinished import BUSY, INCOMPLETE, REFUSED, Stop, check_equal, listed, under_way
from tests.support.command import Argument, pcopy, show, succeed, summary
from tests.support.faults import ITEM_BY_ITEM, SLOW, slowed
from tests.support.filesystems import mounted
from tests.support.processes import background, wait_until
from tests.support.walk import temporaries


def test_unfinished_jobs_are_listed_and_resumed_by_name(
    tree: Path, area: Path, env: dict[str, str], stop: Stop
) -> None:
    """A single job is resumed without a name; with several jobs a name is required. Killed and stopped jobs are
    distinguished."""
    assert succeed("--jobs", env=env).stdout == b"no unfinished jobs in %s\n" % os.fsencode(area / "state" / "pcopy")
    first = stop(tree, area / "one")
    second = stop(tree, area / "two", number=signal.SIGKILL)
    found = {job["job"]: job for job in listed(env)}
    assert {name: job["state"] for name, job in found.items()} == {first: "stopped", second: "interrupted"}
    assert found[first]["destination"] == str(area / "one")
    assert found[first]["locked"] == []
    table = succeed("--jobs", env=env).stdout.decode()
    assert first in table and second in table
    refused = pcopy("--resume", env=env)
    assert refused.returncode == REFUSED, show(refused)
    assert b"2 unfinished jobs match; name one: pcopy --resume JOB" in refused.stderr
    assert first.encode() in refused.stderr and second.encode() in refused.stderr
    succeed("--resume", second, env=env, cwd="/")
    check_equal(tree, area / "two")
    succeed("--resume", env=env, cwd="/")
    check_equal(tree, area / "one")
    assert listed(env) == []
    assert pcopy("--resume", env=env).returncode == REFUSED
    assert pcopy("--resume", first, env=env).returncode == REFUSED


def test_inplace_job_can_be_resumed(tree: Path, area: Path, env: dict[str, str], stop: Stop) -> None:
    """A resumed job removes the marks of the files that it overwrites, by the names of a whole batch."""
    stop(f"{tree}/", area / "copy", "--inplace")
    assert len([path for path in (area / "copy").rglob("*") if path.is_file()]) < 450
    succeed("--resume", env=env)
    check_equal(tree, area / "copy")


def test_running_job_cannot_be_resumed_or_discarded(tree: Path, area: Path, env: dict[str, str], stop: Stop) -> None:
    """Neither during its first run nor during a resumed one; after a kill it can be resumed immediately."""
    name = stop(tree, area / "copy")
    with background("--resume", name, ranks=2, env=env, wrap=slowed(ITEM_BY_ITEM, 50)) as run:
        assert wait_until(lambda: len(listed(env)[0]["locked"]) == 2)
        for arguments in (["--resume", name], ["--resume"], ["--discard", name]):
            refused = pcopy(*arguments, env=env)
            assert refused.returncode == REFUSED, show(refused)
            assert b" on this job; wait" in refused.stderr or b"are being worked on" in refused.stderr, show(refused)
        run.kill_all()
        run.end(10)
    assert listed(env)[0]["locked"] == []
    succeed("--resume", name, env=env)
    check_equal(tree, area / "copy")


def test_a_discarded_job_leaves_no_temporary_files(tree: Path, area: Path, env: dict[str, str], stop: Stop) -> None:
    copy = area / "copy"
    name = stop(tree, copy, number=signal.SIGKILL, until=lambda: any(map(under_way, copy.glob("**/.pcopy-*"))))
    run = succeed("--discard", name, env=env)
    assert run.stdout == b"discarded\n"
    assert listed(env) == []
    assert not (area / "state" / "pcopy" / name).exists()
    assert temporaries(os.fsencode(copy)) == []
    again = pcopy("--discard", name, env=env)
    assert again.returncode == REFUSED, show(again)


def test_job_is_not_discarded_while_its_destination_is_not_mounted(
    tree: Path, area: Path, env: dict[str, str], stop: Stop
) -> None:
    (area / "mounted").mkdir()
    with mounted("tmpfs", area / "mounted") as point:
        name = stop(tree, point / "copy")
    run = pcopy("--discard", name, env=env)
    assert run.returncode == REFUSED, show(run)
    (line,) = run.stderr.splitlines()
    assert os.fsencode(point) in line and b"mount it" in line, line
    assert b"remove %s" % os.fsencode(area / "state" / "pcopy" / name) in line
    assert [job["job"] for job in listed(env)] == [name]


REFUSED_OPTIONS: list[list[Argument]] = [
    ["--existing", "skip"],
    ["--no-preserve", "mode"],
    ["--chunk-size", "2M"],
    ["--hash", "blake3"],
    ["--verify"],
    ["--checkpoint", "/elsewhere"],
    ["/some/source", "/some/destination"],
]


def test_resume_refuses_options_that_change_the_result(tree: Path, area: Path, env: dict[str, str], stop: Stop) -> None:
    name = stop(tree, area / "copy")
    for options in REFUSED_OPTIONS:
        run = pcopy("--resume", name, *options, env=env)
        assert run.returncode == REFUSED, show(run)
        assert os.fsencode(options[0]) in run.stderr, show(run)
    options = ["--progress", "plain", "--max-errors", "7", "--checkpoint-interval", "1", "--memory", "1M", "-v"]
    succeed("--resume", name, *options, ranks=5, env=env)
    check_equal(tree, area / "copy")


@pytest.mark.in_turn(1)
@pytest.mark.parametrize("first", ["mpi", None], ids=["begun under mpiexec", "begun locally"])
def test_job_can_be_resumed_with_another_launcher(
    tree: Path, area: Path, env: dict[str, str], stop: Stop, first: str | None
) -> None:
    then = None if first else "mpi"
    until = (lambda: [*area.glob("state/pcopy/*/run-1/facts-2")]) if first else (lambda: True)
    if first:
        name = stop(tree, area / "copy", ranks=3, number=signal.SIGKILL, launcher=first, until=until)
    else:
        name = stop(tree, area / "copy", ranks=2)
    run = succeed("--resume", name, "--json", ranks=3 if then else 2, launcher=then, env=env)
    check_equal(tree, area / "copy")
    assert summary(run)["failed"] == 0


@pytest.mark.in_turn(1)
@pytest.mark.parametrize("store", ["lmdb", "auto", "pickle"])
def test_job_with_tasks_spilled_to_disk_can_be_resumed(
    tree: Path, area: Path, env: dict[str, str], stop: Stop, store: str
) -> None:
    (area / "spool").mkdir()
    options: list[Argument] = ["--memory", "4K", "--spool", area / "spool", "--checkpoint-store", store]
    name = stop(*options, tree, area / "copy", number=signal.SIGKILL)
    succeed("--resume", name, *options, ranks=2, env=env)
    check_equal(tree, area / "copy")
    assert os.listdir(area / "spool") == []


def test_job_with_only_its_signature_missing_can_be_resumed(tree: Path, area: Path, env: dict[str, str]) -> None:
    """A directory was created at the path of the signature while the job ran."""
    words = (*BUSY, "--signature", area / "sig", tree, area / "copy")
    with background(*words, ranks=3, env=env, wrap=slowed(ITEM_BY_ITEM, SLOW)) as run:
        assert wait_until(lambda: run.process.poll() is not None or [*area.glob("state/pcopy/*/run-1/facts-0")])
        (area / "sig").mkdir()
        _, err = run.process.communicate(timeout=60)
        assert run.process.returncode == INCOMPLETE, err
    assert err.count(os.fsencode(area / "sig")) == 1, err
    assert [(job["state"], job["failed"]) for job in listed(env)] == [("not all written", 0)]
    (area / "sig").rmdir()
    succeed("--resume", env=env)
    check_equal(tree, area / "copy")
    assert (area / "sig").is_file()


def test_unfinished_job_with_the_same_destination_is_reported(
    tree: Path, area: Path, env: dict[str, str], stop: Stop
) -> None:
    """The destination may be given in another form."""
    name = stop(tree, area / "copy")
    goes_on = b"pcopy --resume %s resumes it\n" % name.encode()
    reported = b"pcopy: job %s has not finished with this destination: %s" % (name.encode(), goes_on)
    (area / "more").mkdir()
    meant: tuple[list[Argument], ...] = (["-T", tree, area / "copy"], [f"{tree}/", area / "more", area / "copy"])
    for words in meant:
        run = succeed("--existing", "skip", "-x", *words, ranks=2, env=env)
        assert reported in run.stderr, show(run)
    assert reported not in succeed(tree, area / "other", ranks=2, env=env).stderr
    assert [job["job"] for job in listed(env)] == [name]


@pytest.mark.parametrize("moved", ["source", "copy"])
def test_job_that_cannot_be_resumed_is_reported_with_its_discard_command(
    tree: Path, area: Path, env: dict[str, str], stop: Stop, moved: str
) -> None:
    """A resume that would be refused is not suggested."""
    source, copy = area / "source", area / "copy"
    subprocess.run(["cp", "-a", tree, source], check=True)
    name = stop("-T", source, copy)
    shutil.move(area / moved, area / "moved")
    if moved == "source":
        (area / moved).mkdir()
    run = succeed("-T", source, copy, ranks=2, env=env)
    assert b"pcopy --discard %s discards it\n" % name.encode() in run.stderr and b"--resume" not in run.stderr, show(
        run
    )
    assert pcopy("--resume", name, env=env).returncode == REFUSED
    succeed("--discard", name, env=env)
    assert listed(env) == []
