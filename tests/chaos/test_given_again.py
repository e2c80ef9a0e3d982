"""The same command again after an interruption: it resumes, starts over, or is refused; pcopy never guesses."""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.chaos.unfinished import INCOMPLETE, REFUSED, STOPPED, Stop, check_equal, listed
from tests.support.command import Argument, pcopy, show, succeed, summary
from tests.support.faults import ITEM_BY_ITEM, READS, SLOW, Fault, slowed
from tests.support.files import write
from tests.support.filesystems import mounted
from tests.support.held import held
from tests.support.oracle import changes, snapshot
from tests.support.processes import background, wait_until
from tests.support.users import require_root
from tests.support.walk import temporaries


def refused(job: str, *words: Argument, **options: Any) -> bytes:
    run = pcopy(*words, **options)
    assert run.returncode == REFUSED, show(run)
    assert run.stdout == b"" and len(run.stderr.splitlines()) == 1, show(run)
    for way in (f"pcopy --resume {job}", f"pcopy --discard {job}"):
        assert way.encode() in run.stderr, show(run)
    return run.stderr


def instead(job: str) -> bytes:
    return b"pcopy --resume %s would resume it instead" % job.encode()


@pytest.mark.in_turn(1)
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_repeated_command_is_refused_with_resume_and_discard_commands(
    tree: Path, area: Path, env: dict[str, str], stop: Stop, number: int
) -> None:
    """This holds for all arguments with the same meaning, under mpiexec, and without checkpoints."""
    name = stop(tree, area / "copy", number=number)
    before = snapshot(area / "copy")
    for words in ([tree, "copy"], [tree, area / "copy"], [tree, "./copy/"], ["--checkpoint", "none", tree, "copy"]):
        refused(name, *words, env=env, cwd=area)
    refused(name, tree.name, area / "copy", env=env, cwd=tree.parent, ranks=2, launcher="mpi")
    assert changes(before, snapshot(area / "copy")) == []
    assert [job["job"] for job in listed(env)] == [name]
    succeed("--checkpoint", area / "job", "--existing", "skip", tree, "copy", env=env, cwd=area)
    shutil.rmtree(area / "copy" / tree.name)
    succeed("--resume", name, env=env)
    check_equal(tree, area / "copy")
    succeed(tree, "copy", env=env, cwd=area)
    check_equal(tree, area / "copy" / tree.name)


def test_job_with_failed_items_is_treated_like_an_interrupted_one(area: Path, env: dict[str, str]) -> None:
    source = area / "source"
    source.mkdir()
    (source / "file").write_bytes(b"x")
    (area / "copy").mkdir()
    (area / "copy" / "file").mkdir()
    (area / "copy" / "file" / "in the way").touch()
    run = pcopy("-T", source, area / "copy", env=env)
    assert run.returncode == INCOMPLETE, show(run)
    (first,) = listed(env)
    run = succeed("--existing", "skip", f"{source}/", area / "copy", env=env)
    assert instead(first["job"]) in run.stderr and listed(env) == []
    fault = Fault(area / "log", READS, source / "file", "EIO")
    run = pcopy(source, area / "new", env=env, wrap=fault.wrap())
    assert run.returncode == INCOMPLETE, show(run)
    (second,) = listed(env)
    refused(second["job"], source, area / "new", env=env)


@pytest.mark.in_turn(1)
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_repeated_command_with_the_same_target_starts_over_and_removes_the_job(
    tree: Path, area: Path, env: dict[str, str], stop: Stop, number: int
) -> None:
    copy = area / "copy"
    commands: list[list[Argument]] = [["-T", tree, copy], [f"{tree}/", copy]]
    for words in commands:
        name = stop(*words, number=number)
        run = succeed(*words, ranks=2, env=env)
        reported = [line for line in run.stderr.splitlines() if instead(name) in line]
        assert len(reported) == 1, show(run)
        assert temporaries(os.fsencode(copy)) == [] and listed(env) == []
        check_equal(tree, copy)
    (area / "into").mkdir()
    name = stop("-u", tree, area / "into", number=number)
    run = succeed("-u", tree, area / "into", ranks=2, env=env)
    assert instead(name) in run.stderr and listed(env) == [], show(run)


def other_version(job: Path) -> None:
    job.write_bytes(job.read_bytes().replace(b"pcopy job 6 ", b"pcopy job 7 "))


def damaged(job: Path) -> None:
    job.write_bytes(job.read_bytes()[:-1])


@pytest.mark.parametrize("change", [other_version, damaged])
def test_unreadable_job_is_reported_and_files_it_may_have_truncated_are_not_kept(
    tree: Path, area: Path, env: dict[str, str], stop: Stop, change: Callable[[Path], None]
) -> None:
    copy = area / "copy"
    name = stop(f"{tree}/", copy, number=signal.SIGKILL)
    job = Path(listed(env)[0]["directory"]) / "job"
    change(job)
    before = snapshot(copy)
    discard = f"discard it: pcopy --discard {name}"
    for words in (["-u"], ["--existing", "skip"], ["-u", "--checkpoint", "none"]):
        run = pcopy(*words, f"{tree}/", copy, env=env)
        assert run.returncode == REFUSED and changes(before, snapshot(copy)) == [], show(run)
        reported = f"pcopy: job {name} cannot be read. It may have this destination, and ".encode()
        assert run.stderr.startswith(reported) and run.stderr.endswith(f"{discard})\n".encode()), show(run)
        assert b": write --existing changed (" in run.stderr, show(run)
    for directory in ("other", "small"):
        (area / directory).mkdir()
    (area / "link").symlink_to(copy)
    for place, is_told in ((area / "other/new", change is damaged), (copy / "new", True), (area / "link/new", True)):
        run = pcopy("-u", area / "small", place, env=env)
        assert run.returncode == (REFUSED if is_told else 0), show(run)
        assert (b"cannot be read" in run.stderr) == is_told, show(run)
    for left in temporaries(os.fsencode(copy)):
        (copy / os.fsdecode(left)).unlink()
    for words in (["--existing", "changed"], []):
        run = succeed(*words, f"{tree}/", copy, env=env)
        reported = f"pcopy: job {name} cannot be read, and may have this destination: {job}: ".encode()
        assert run.stderr.startswith(reported) and run.stderr.endswith(f"{discard}\n".encode()), show(run)
        check_equal(tree, copy)
    assert succeed("-q", f"{tree}/", copy, env=env).stderr == b""
    succeed("--discard", name, env=env, ranks=None)
    assert succeed("-u", f"{tree}/", copy, env=env).stderr == b""


def cut_short(area: Path, env: dict[str, str]) -> tuple[Path, Path, str]:
    """Create a source with one file and kill its copy while the copied file is empty. Return source, copy and job
    name."""
    source, copy = area / "source", area / "copy"
    for directory in (source, copy):
        directory.mkdir()
    (source / "file").write_bytes(b"whole")
    os.utime(source / "file", (1, 1))
    with held(area / "trace", f"{source}/", copy, calls=("openat",), path=copy, when="1+", ranks=1, env=env) as run:
        while not (copy / "file").exists():
            run.next_stop()
        run.run.kill_all()
        assert wait_until(lambda: not run.run.processes())
    assert (copy / "file").stat().st_size == 0
    (job,) = listed(env)
    return source, copy, job["job"]


@pytest.mark.parametrize("policy", ["newer", "skip"])
def test_file_truncated_by_a_kill_is_not_kept_by_skip_or_newer(area: Path, env: dict[str, str], policy: str) -> None:
    """A small file has its final name from the start, unless the job keeps existing files."""
    source, copy, job = cut_short(area, env)
    before = snapshot(copy)
    ways = f"resume it (pcopy --resume {job}), or write --existing changed\n".encode()
    for words in ([], ["--checkpoint", "none"], ["--checkpoint", area / "job"], ["--no-preserve", "mode"]):
        again = pcopy("--existing", policy, *words, "-T", source, copy, env=env)
        assert again.returncode == REFUSED and again.stderr.endswith(ways), show(again)
        named = b"-u (--existing newer)" if policy == "newer" else b"--existing skip"
        assert named + b" would keep" in again.stderr, show(again)
        assert changes(before, snapshot(copy)) == [] and not (area / "job").exists()
    succeed("--existing", policy, f"{source}/", area / "other", env=env)
    if policy == "newer":
        succeed("--resume", env=env)
    else:
        assert instead(job) in succeed("--existing", "changed", f"{source}/", copy, env=env).stderr
    check_equal(source, copy)
    assert listed(env) == []
    succeed("--existing", policy, f"{source}/", copy, env=env)


@pytest.mark.parametrize("words", [[], ["--max-errors", "1"]], ids=["failed", "stopped"])
def test_truncated_file_is_not_kept_after_a_resume_that_failed_to_copy_it(
    area: Path, env: dict[str, str], words: list[Argument]
) -> None:
    """A resume that ends without error in another file does not complete the file."""
    source, copy, job = cut_short(area, env)
    for _ in range(2):
        fault = Fault(area / "log", READS, source / "file", "EIO")
        run = pcopy("--resume", *words, env=env, wrap=fault.wrap())
        fault.check()
        assert run.returncode == (STOPPED if words else INCOMPLETE), show(run)
        reported = b"; but what an earlier run was writing when it ended early may be cut short\n" in run.stderr
        assert reported == bool(words), show(run)
        assert (copy / "file").stat().st_size == 0
        for policy in ("newer", "skip"):
            again = pcopy("--existing", policy, f"{source}/", copy, env=env)
            assert again.returncode == REFUSED and b"may be cut short" in again.stderr, show(again)
        assert [found["job"] for found in listed(env)] == [job]
    succeed("--resume", env=env)
    check_equal(source, copy)
    succeed("--existing", "newer", f"{source}/", copy, env=env)


def test_truncated_file_is_reported_if_its_source_was_removed(area: Path, env: dict[str, str]) -> None:
    """No other item of the destination is reported."""
    source, copy, _ = cut_short(area, env)
    (copy / "user's").touch(mode=0o644)
    (source / "file").rename(area / "kept")
    run = succeed("--resume", "--json", env=env)
    reported = f"pcopy: {copy}/file: may be an incomplete copy of an earlier run, and its source no longer exists: "
    assert run.stderr.decode().count(reported) == run.stderr.count(b"incomplete copy") == 1, show(run)
    assert (summary(run)["warnings"], (copy / "file").stat().st_size) == (1, 0)
    (area / "kept").rename(source / "file")
    succeed("--existing", "changed", f"{source}/", copy, env=env)
    assert (copy / "file").read_bytes() == b"whole"


def test_files_copied_by_a_stopped_job_are_not_reported_as_truncated(area: Path, env: dict[str, str]) -> None:
    """The file is complete, although its source was removed."""
    source, copy = area / "source", area / "copy"
    source.mkdir()
    for name in ("first", "second"):
        (source / name).write_bytes(b"whole")
        (source / name).chmod(0o600)
    fault = Fault(area / "log", READS, source / "second", "EIO")
    words = ("--max-errors", "1", "-T", source, copy)
    run = pcopy(*words, ranks=1, env=env, wrap=fault.wrap())
    assert (run.returncode, (copy / "first").read_bytes()) == (STOPPED, b"whole"), show(run)
    (source / "first").unlink()
    run = succeed("--resume", "--json", env=env)
    assert b"cut short" not in run.stderr and summary(run)["warnings"] == 0, show(run)


@pytest.mark.parametrize("policy", ["newer", "skip"])
def test_killed_job_with_skip_or_newer_leaves_no_truncated_file(area: Path, env: dict[str, str], policy: str) -> None:
    """After a kill at any of the first calls on the name, the same command copies the file."""
    source, copy = area / "source", area / "copy"
    for directory in (source, copy):
        directory.mkdir()
    (source / "file").write_bytes(b"whole")
    words: list[Argument] = ["--existing", policy, f"{source}/", copy]
    wrap = slowed(ITEM_BY_ITEM, SLOW)
    with background(*words, ranks=1, env=env, wrap=wrap) as running:
        assert wait_until(lambda: [*copy.iterdir()] or running.process.poll() is not None)
        running.kill_all()
        assert wait_until(lambda: not running.processes())
    assert not (copy / "file").exists() or (copy / "file").read_bytes() == b"whole"
    succeed(*words, ranks=2, env=env)
    check_equal(source, copy)


def test_old_job_is_kept_until_the_new_one_succeeds(tree: Path, area: Path, env: dict[str, str], stop: Stop) -> None:
    words = ("-T", tree, area / "copy")
    name = stop(*words)
    other = stop(*words)
    assert {job["job"] for job in listed(env)} == {name, other}
    run = pcopy("--existing", "fail", *words, ranks=2, env=env)
    assert run.returncode == INCOMPLETE and instead(other) in run.stderr and instead(name) not in run.stderr, show(run)
    assert b"job %s has not finished (nor has an older one) with this" % other.encode() in run.stderr, show(run)
    assert {name, other} < {job["job"] for job in listed(env)}
    run = succeed(*words, ranks=2, env=env)
    assert run.stderr.count(b"\n") == 1 and b"(nor have 2 older ones)" in run.stderr, show(run)
    assert listed(env) == []


def test_old_job_is_removed_when_the_new_one_succeeds_after_a_resume(
    tree: Path, area: Path, env: dict[str, str], stop: Stop
) -> None:
    """A job that was resumed after the new one began is not removed."""
    words = ("-T", tree, area / "copy")
    old = stop(*words)
    new = stop(*words)
    run = succeed("--resume", new, ranks=2, env=env)
    assert instead(old) in run.stderr and listed(env) == [], show(run)
    check_equal(tree, area / "copy")

    old = stop(*words)
    new = stop(*words)
    os.utime(area / "state" / "pcopy" / old / "job")
    run = succeed("--resume", new, ranks=2, env=env)
    assert instead(old) not in run.stderr and [job["job"] for job in listed(env)] == [old], show(run)


def test_running_job_is_not_changed_by_another_run(tree: Path, area: Path, env: dict[str, str]) -> None:
    copy = area / "copy"
    with background(tree, copy, ranks=2, env=env, wrap=slowed(ITEM_BY_ITEM, 60)) as run:
        assert wait_until(lambda: listed(env) and copy.exists())
        (job,) = listed(env)
        other = succeed("--existing", "skip", "-T", area / "state", copy / "elsewhere", env=env)
        busy = b"job %s is still busy with this destination" % job["job"].encode()
        assert busy in other.stderr and b"--resume" not in other.stderr, show(other)
        assert b"wait for its end" in refused(job["job"], tree, copy, env=env)
        for process in run.processes():  # otherwise each run may find a name that the other one has just created
            os.kill(process, signal.SIGSTOP)
        other = succeed("--no-sync", "-T", tree, copy, ranks=2, env=env)
        assert busy in other.stderr and b"--resume" not in other.stderr, show(other)
        assert [found["state"] for found in listed(env)] == ["running"]
        run.kill_all()
        run.end(10)
    assert [found["job"] for found in listed(env)] == [job["job"]]


def test_item_fails_if_another_run_created_its_name(area: Path, env: dict[str, str]) -> None:
    (area / "source").mkdir()
    (area / "source" / "file").write_bytes(b"mine")
    with held(area / "trace", area / "source", area / "copy", calls=("mkdir", "mkdirat"), when="1+", env=env) as run:
        while not (area / "copy").exists():
            run.next_stop()
        (area / "copy" / "file").write_bytes(b"another's")
        done = run.go_on()
    assert done.returncode == INCOMPLETE, show(done)
    assert b"has taken its name in the target meanwhile (does another job copy to the same place?)" in done.stderr
    assert b"fold" not in done.stderr, show(done)
    assert (area / "copy" / "file").read_bytes() == b"another's"


def test_same_arguments_for_other_directories_are_another_job(
    tree: Path, area: Path, env: dict[str, str], stop: Stop
) -> None:
    """From another working directory, to a directory that replaced the copy, and from another source."""
    (area / "link").symlink_to(tree)
    words: list[Argument] = [f"{area}/link/", area / "one" / "copy"]
    name = stop(tree, area / "copy")
    for place in ("one", "two"):
        (area / place / "copy").mkdir(parents=True)
        succeed(tree, "copy", ranks=2, env=env, cwd=area / place)
        check_equal(tree, area / place / "copy" / tree.name)
    shutil.rmtree(area / "copy")
    (area / "copy").mkdir()
    run = succeed(tree, "copy", ranks=2, env=env, cwd=area)
    assert instead(name) not in run.stderr, show(run)
    check_equal(tree, area / "copy" / tree.name)
    assert [job["job"] for job in listed(env)] == [name]
    succeed("--discard", name, env=env)

    name = stop(*words)
    (area / "link").unlink()
    (area / "source").mkdir()
    (area / "link").symlink_to("source")
    run = succeed(*words, ranks=2, env=env)
    assert instead(name) not in run.stderr and [job["job"] for job in listed(env)] == [name], show(run)


def test_command_with_another_meaning_is_not_refused(tree: Path, area: Path, env: dict[str, str], stop: Stop) -> None:
    """A command that never meant DST itself: the job was started with other arguments."""
    name = stop("-T", tree, area / "copy")
    run = succeed(tree, area / "copy", ranks=2, env=env)
    assert b"job %s has not finished with this destination" % name.encode() in run.stderr, show(run)
    check_equal(tree, area / "copy" / tree.name)
    assert [job["job"] for job in listed(env)] == [name]


def test_another_file_system_at_the_same_mount_point_is_another_job(
    tree: Path, area: Path, env: dict[str, str], stop: Stop
) -> None:
    require_root("mount")
    (area / "disk").mkdir()
    with mounted("tmpfs", area / "disk") as disk:
        name = stop(tree, disk / "copy")
    with mounted("tmpfs", area / "disk") as disk:
        (disk / "copy").mkdir()
        run = succeed(tree, disk / "copy", ranks=2, env=env)
        assert instead(name) not in run.stderr, show(run)
        check_equal(tree, disk / "copy" / tree.name)
    assert [job["job"] for job in listed(env)] == [name]


@pytest.mark.parametrize("where", [".old", "{}/copy/.old/"])
def test_repeated_command_recognises_a_relative_or_unusual_backup_path(area: Path, where: str) -> None:
    for number in range(60):
        write(area / f"source/{number}", b"new")
        write(area / f"copy/{number}", b"older")
    words: list[Argument] = ["--checkpoint", area / "job", "--backup", where.format(area), f"{area}/source/"]
    with background(*words, area / "copy", ranks=1, wrap=slowed("linkat", 20)) as run:
        assert wait_until(lambda: (area / "copy/.old").exists() and len(os.listdir(area / "copy/.old")) > 5)
        run.send_signal(signal.SIGTERM)
        reported = run.process.communicate(timeout=60)
    assert run.process.returncode == STOPPED, reported
    other = pcopy(*words[:2], "--backup", "elsewhere", *words[4:], area / "copy")
    assert other.returncode == 2 and b"(different: --backup)" in other.stderr, show(other)
    before = len(os.listdir(area / "copy/.old"))
    assert summary(succeed("--json", *words, area / "copy"))["files"] == 60
    assert 5 < before < 60 == len(os.listdir(area / "copy/.old")) and not (area / "job").exists()
