"""The same command once more, after an interruption: it goes on, begins anew, or is refused, and nobody guesses."""

from __future__ import annotations

import os
import shutil
import signal
from pathlib import Path
from typing import Any

import pytest

from tests.chaos.unfinished import INCOMPLETE, REFUSED, Stop, check_equal, listed
from tests.support.command import Argument, pcopy, show, succeed
from tests.support.faults import ITEM_BY_ITEM, READS, Fault, slowed
from tests.support.filesystems import mounted
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
    return b"pcopy --resume %s would go on with it instead" % job.encode()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_arrow_up_and_return_is_refused_with_both_ways_on(
    tree: Path, area: Path, env: dict[str, str], stop: Stop, number: int
) -> None:
    """Whatever words mean the same, under mpiexec and without checkpoints too."""
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


def test_a_job_with_failed_items_is_no_other(area: Path, env: dict[str, str]) -> None:
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


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_what_means_the_same_place_begins_anew_and_takes_the_old_job_with_it(
    tree: Path, area: Path, env: dict[str, str], stop: Stop, number: int
) -> None:
    copy = area / "copy"
    commands: list[list[Argument]] = [["-T", tree, copy], [f"{tree}/", copy]]
    for words in commands:
        name = stop(*words, number=number)
        run = succeed(*words, ranks=2, env=env)
        told = [line for line in run.stderr.splitlines() if instead(name) in line]
        assert len(told) == 1, show(run)
        assert temporaries(os.fsencode(copy)) == [] and listed(env) == []
        check_equal(tree, copy)
    (area / "into").mkdir()
    name = stop(tree, area / "into", number=number)
    run = succeed("-u", tree, area / "into", ranks=2, env=env)
    assert instead(name) in run.stderr and listed(env) == [], show(run)


def test_the_old_job_stays_unless_the_new_one_ends_well(
    tree: Path, area: Path, env: dict[str, str], stop: Stop
) -> None:
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


def test_the_old_job_goes_also_when_the_new_one_has_needed_a_second_run(
    tree: Path, area: Path, env: dict[str, str], stop: Stop
) -> None:
    """But not one that was gone on with since the new one began."""
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


def test_a_job_that_runs_is_not_touched(tree: Path, area: Path, env: dict[str, str]) -> None:
    copy = area / "copy"
    with background(tree, copy, ranks=2, env=env, wrap=slowed(ITEM_BY_ITEM, 60)) as run:
        assert wait_until(lambda: listed(env) and copy.exists())
        (job,) = listed(env)
        other = succeed("--existing", "skip", "-T", area / "state", copy / "elsewhere", env=env)
        busy = b"job %s is still busy with this destination" % job["job"].encode()
        assert busy in other.stderr and b"--resume" not in other.stderr, show(other)
        assert b"wait for its end" in refused(job["job"], tree, copy, env=env)
        other = succeed("--no-sync", "-T", tree, copy, ranks=2, env=env)
        assert busy in other.stderr and b"--resume" not in other.stderr, show(other)
        assert [found["state"] for found in listed(env)] == ["running"]
        run.kill_all()
        run.end(10)
    assert [found["job"] for found in listed(env)] == [job["job"]]


def test_the_same_words_elsewhere_are_another_job(tree: Path, area: Path, env: dict[str, str], stop: Stop) -> None:
    """From another directory, to what the user has made in the place of the copy, and from another source."""
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


def test_another_command_is_not_refused(tree: Path, area: Path, env: dict[str, str], stop: Stop) -> None:
    """One that has never meant DST itself: its job was begun by other words."""
    name = stop("-T", tree, area / "copy")
    run = succeed(tree, area / "copy", ranks=2, env=env)
    assert b"job %s has not finished with this destination" % name.encode() in run.stderr, show(run)
    check_equal(tree, area / "copy" / tree.name)
    assert [job["job"] for job in listed(env)] == [name]


def test_another_file_system_in_the_same_place_is_another_job(
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
