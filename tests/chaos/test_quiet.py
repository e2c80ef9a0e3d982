"""With ``-q`` a run without problems prints nothing; problems are reported."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from tests.chaos.unfinished import INCOMPLETE, REFUSED, Stop, listed
from tests.support.command import Argument, Completed, pcopy, pverify, show, succeed, summary


def check_silent(run: Completed) -> None:
    assert (run.returncode, run.stdout, run.stderr) == (0, b"", b""), show(run)


@pytest.mark.in_turn(1)
@pytest.mark.parametrize("launcher", [None, "mpi"])
def test_quiet_run_without_problems_prints_nothing(
    tree: Path, area: Path, env: dict[str, str], stop: Stop, launcher: str | None
) -> None:
    first, second, third = (stop(tree, area / name) for name in ("one", "two", "three"))
    commands: list[list[Argument]] = [
        ["--signature", area / "sig", "--manifest", area / "manifest", "-v", tree, area / "copy"],
        ["--verify", "--progress", "plain", "--progress-interval", "0.001", tree, area / "verified"],
        ["--resume", first],
        ["--existing", "skip", "-T", tree, area / "two"],
    ]
    for words in commands:
        check_silent(pcopy("-q", *words, ranks=2, launcher=launcher, env=env))
    check_silent(pcopy("-q", "--discard", third, env=env))
    assert second not in {job["job"] for job in listed(env)} and listed(env) == []
    check_silent(pcopy("-q", "--discard", "--older-than", "1d", env=env))
    against: list[list[Argument]] = [
        [area / "sig"],
        ["--manifest", area / "manifest"],
        [tree],
        ["--create", area / "s"],
    ]
    for words in against:
        check_silent(pverify("-q", "-v", *words, area / "copy", ranks=2, launcher=launcher))


def test_quiet_run_reports_problems(tree: Path, area: Path, env: dict[str, str], stop: Stop) -> None:
    name = stop(tree, area / "copy")
    run = pcopy("-q", "--existing", "fail", "-T", tree, area / "copy", ranks=2, env=env)
    assert run.returncode == INCOMPLETE, show(run)
    for words in (b"File exists", b"pcopy --resume " + name.encode(), b"pcopy: to go on: "):
        assert words in run.stderr, show(run)
    assert b"incomplete" in run.stdout
    assert pcopy("-q", "--discard", "nothing", env=env).stderr.startswith(b"pcopy: nothing: ")
    (area / "copy" / "more").touch()
    run = pverify("-q", tree, area / "copy")
    assert run.returncode == 1 and run.stdout, show(run)


def test_quiet_run_still_prints_json(tree: Path, area: Path, env: dict[str, str]) -> None:
    run = succeed("-q", "--json", tree, area / "copy", ranks=2, env=env)
    assert summary(run)["failed"] == 0 and run.stderr == b""


def test_several_jobs_are_discarded_by_one_command(tree: Path, area: Path, env: dict[str, str], stop: Stop) -> None:
    names = [stop(tree, area / name) for name in ("one", "two", "three")]
    run = pcopy("--discard", names[0], "nothing", env=env)
    assert run.returncode == REFUSED and run.stdout == b"", show(run)
    assert len(listed(env)) == 3, "nothing is touched"
    run = succeed("--discard", *names[:2], env=env)
    assert run.stdout == b"".join(b"discarded %s\n" % name.encode() for name in names[:2])
    assert [job["job"] for job in listed(env)] == names[2:]


AGES = ("7", "d", "7x", "-1d", "1e3d", "", "7 d", "1d2h", "7D")


def test_invalid_ages_are_refused_and_recent_jobs_are_not_discarded(
    tree: Path, area: Path, env: dict[str, str], stop: Stop
) -> None:
    old, new = stop(tree, area / "old"), stop(tree, area / "new")
    for path in [*(area / "state" / "pcopy" / old).rglob("*")]:
        os.utime(path, (1.7e9, 1.7e9))
    for age in AGES:
        run = pcopy("--discard", f"--older-than={age}", env=env)
        assert run.returncode == REFUSED and len(run.stderr.splitlines()) == 1, show(run)
    for words in (["--discard", "--older-than", "7d", old], ["--older-than", "7d", "a", "b"], ["--discard"]):
        run = pcopy(*words, env=env)
        assert run.returncode == REFUSED and len(run.stderr.splitlines()) == 1, show(run)
    assert succeed("--discard", "--older-than", "1w", env=env).stdout == b"nothing to discard\n"
    assert {job["job"] for job in listed(env)} == {old, new}


def test_age_of_a_job_is_the_age_of_its_last_record(area: Path, env: dict[str, str], stop: Stop, tree: Path) -> None:
    names = [stop(tree, area / name) for name in ("one", "two")]
    time.sleep(0.6)
    run = succeed("--discard", "--older-than", "0.5s", env=env)
    assert sorted(run.stdout.decode().splitlines()) == sorted(
        f"discarded {name}: {tree} -> {area / copy}" for name, copy in zip(names, ("one", "two"), strict=True)
    )
    assert listed(env) == []
