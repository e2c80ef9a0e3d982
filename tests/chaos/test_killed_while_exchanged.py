"""``-u`` exchanges the names of the older file and the new one, and examines both: a kill in between loses nothing."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.chaos.unfinished import BUSY, INCOMPLETE
from tests.support.command import Completed, pcopy, show, succeed, summary
from tests.support.held import held
from tests.support.walk import temporaries

OLD, MIDDLE = 10**9, 1_500_000_000


@pytest.fixture(params=["one name", "a further name"])
def names(request: pytest.FixtureRequest, area: Path) -> Path:
    """The user's older file ``b`` exists; in the source, ``b`` is a file with one name, or the second name of an
    inode."""
    source, copy = area / "source", area / "copy"
    source.mkdir()
    copy.mkdir()
    (source / "a").write_bytes(b"new")
    if request.param == "one name":
        (source / "b").write_bytes(b"new")
    else:
        os.link(source / "a", source / "b")
    for name in "ab":
        os.utime(source / name, (MIDDLE, MIDDLE))
    (copy / "b").write_bytes(b"old")
    os.utime(copy / "b", (OLD, OLD))
    os.utime(copy, (OLD, OLD))  # else whether it has the time of the source depends on the resolution of the clock
    return copy


def run_until_killed(copy: Path, env: dict[str, str], until: str, *, saves: bool) -> None:
    """Kill the job when the new file has its intermediate name, or after the exchange (``until``). With ``saves``, the
    user saves a newer file just before."""
    log = copy.parent / "calls"
    words = (*BUSY, "-u", "-T", copy.parent / "source", copy)
    with held(log, *words, calls=("renameat", "renameat2"), path=copy, when="1+", ranks=1, env=env) as run:
        while "renameat(" not in log.read_text():
            run.next_stop()
        if saves:
            (copy / "saved").write_bytes(b"newer")
            os.rename(copy / "saved", copy / "b")
        while until not in log.read_text():
            run.next_stop()
        run.run.kill_all()
    assert (b"old" if not saves else b"newer") in [path.read_bytes() for path in copy.iterdir()]


UNTIL = pytest.mark.parametrize("until", ["renameat(", "RENAME_EXCHANGE"], ids=["before", "after"])


@UNTIL
@pytest.mark.parametrize("saves", [False, True], ids=["old", "newer"])
def test_job_killed_during_a_name_exchange_is_resumed(
    names: Path, env: dict[str, str], until: str, saves: bool
) -> None:
    run_until_killed(names, env, until, saves=saves)
    reported = summary(succeed("--resume", "--json", ranks=2, env=env))
    assert reported["skipped"] == saves
    assert (names / "a").read_bytes() == b"new"
    assert (names / "b").read_bytes() == (b"newer" if saves else b"new")
    assert temporaries(os.fsencode(names)) == []


@UNTIL
@pytest.mark.parametrize("saves", [False, True], ids=["old", "newer"])
def test_job_killed_during_a_name_exchange_is_discarded_without_loss(
    names: Path, env: dict[str, str], until: str, saves: bool
) -> None:
    run_until_killed(names, env, until, saves=saves)
    (job,) = os.listdir(names.parent / "state" / "pcopy")
    done = succeed("--discard", job, env=env)
    left = temporaries(os.fsencode(names))
    if until == "RENAME_EXCHANGE":
        check_reported(done, left)
    kept = [names / os.fsdecode(name) for name in (b"b", *left)]
    assert (b"newer" if saves else b"old") in [path.read_bytes() for path in kept]


def check_reported(run: Completed, left: list[bytes]) -> None:
    assert len(left) == 1
    assert left[0] in run.stderr, show(run)


def test_users_file_under_a_temporary_name_is_reported(names: Path, env: dict[str, str]) -> None:
    """The user removed the copy; the user's file remains under a temporary name."""
    run_until_killed(names, env, "RENAME_EXCHANGE", saves=True)
    (names / "b").unlink()
    for _ in range(2):
        run = pcopy("--resume", "--json", ranks=2, env=env)
        assert run.returncode == INCOMPLETE, show(run)
        left = temporaries(os.fsencode(names))
        check_reported(run, left)
    (names / os.fsdecode(left[0])).rename(names / "b")
    succeed("--resume", ranks=2, env=env)
    assert (names / "b").read_bytes() == b"newer"


def test_foreign_item_exchanged_instead_of_the_copy_fails(names: Path, env: dict[str, str]) -> None:
    """Another process with write access replaced the new file before the exchange."""
    words = ("-u", "-T", names.parent / "source", names)
    with held(names.parent / "calls", *words, calls=("renameat",), path=names, ranks=1, env=env) as run:
        (aside,) = names.glob(".pcopy-*-exchanged-*")
        (names / "planted").write_bytes(b"planted")
        (names / "planted").rename(aside)
        done = run.go_on()
    assert done.returncode == INCOMPLETE, show(done)
    assert b"something else was put in its place" in done.stderr
