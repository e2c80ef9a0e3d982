"""With the policies skip, newer and fail, no file of the user is overwritten, whenever a job is killed and resumed."""

from __future__ import annotations

import os
import shutil
import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.chaos.unfinished import INCOMPLETE
from tests.support.command import Argument, pcopy, show, succeed, summary
from tests.support.faults import slowed
from tests.support.files import noise
from tests.support.filesystems import mounted, remove, scratch
from tests.support.oracle import differences
from tests.support.processes import Run, background, wait_until
from tests.support.users import require_root
from tests.support.walk import temporaries

KINDS = ("ext4", "ext4-128")
POLICIES = ("skip", "newer", "fail")
LONG_AGO = 10**9 * 10**9
FILES, DIRECTORIES = 24, 4
BUSY: tuple[Argument, ...] = ("--checkpoint-interval", "0.05", "--chunk-size", "4M", "-q")
SELDOM: tuple[Argument, ...] = ("--checkpoint-interval", "60")
"""With this interval, named items are not recorded."""
SLOW = 15
"""Milliseconds that one call of each item takes."""


class Moment(NamedTuple):
    """When a job is killed: ``calls`` are slow, and ``reached`` returns True."""

    calls: str
    reached: Callable[[Path], object]


def named(copy: Path) -> list[Path]:
    return [path for path in copy.rglob("f*") if not path.is_dir()]


MOMENTS = {
    "copy": Moment("utimensat", lambda copy: len(temporaries(os.fsencode(copy))) > FILES),
    "name": Moment("renameat2", lambda copy: len(named(copy / "new-1")) > 3),
}


@pytest.fixture(scope="module")
def places() -> Iterator[dict[str, Path]]:
    require_root("mount images")
    with scratch() as place, mounted("ext4", place, 1 << 29) as modern, mounted("ext4-128", place, 1 << 29) as old:
        yield {"ext4": modern, "ext4-128": old}


@pytest.fixture
def place(places: dict[str, Path], kind: str) -> Iterator[Path]:
    path = places[kind] / "place"
    path.mkdir()
    yield path
    remove(path)


def make_source(source: Path) -> None:
    for number in range(DIRECTORIES):
        directory = source / f"{'old' if number < 1 else 'new'}-{number}"
        directory.mkdir(parents=True)
        for index in range(FILES):
            (directory / f"f{index:02}").write_bytes(b"source %d" % index)
        os.mkfifo(directory / "f-fifo")
        (directory / "f-link").symlink_to("f01")
        os.link(directory / "f01", directory / "f-linked")
        os.link(directory / "f01", source / f"f-linked-{number}")
    (source / "new-1" / "f-large").write_bytes(noise(13 << 20))
    for path in source.rglob("*"):
        os.utime(path, ns=(LONG_AGO, LONG_AGO), follow_symlinks=False)


def put(path: Path) -> None:
    """Replace a file as an editor does: write a new one and rename it."""
    part = path.with_name("part")
    kind = path.name
    if kind == "f-fifo":
        os.mkfifo(part, 0o640)
    elif kind == "f-link":
        part.symlink_to("mine")
    else:
        part.write_bytes(b"mine, and longer than what the source has")
    part.rename(path)


def seen(path: Path) -> tuple[Any, ...]:
    status = path.lstat()
    contents = path.read_bytes() if stat.S_ISREG(status.st_mode) else b""
    return status.st_ino, status.st_mode, status.st_mtime_ns, status.st_uid, contents


def killed(run: Run, copy: Path, moment: Moment, records: Path) -> None:
    def ready() -> object:
        return [*records.glob("pcopy/*/run-1/facts-*")] and moment.reached(copy)

    assert wait_until(lambda: run.process.poll() is not None or ready(), 60)
    assert run.process.poll() is None, run.process.communicate()
    run.kill_all()
    run.process.communicate()
    assert run.survivors() == []


def started(place: Path, policy: str, moment: Moment, env: dict[str, str], *interval: Argument) -> None:
    source, copy = place / "source", place / "copy"
    words: list[Argument] = [*BUSY, *interval, "--existing", policy, "-T", source, copy]
    with background(*words, ranks=2, env=env, wrap=slowed(moment.calls, SLOW)) as run:
        killed(run, copy, moment, place / "state")


@pytest.mark.in_turn(5)
@pytest.mark.parametrize("moment", MOMENTS)
@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("kind", KINDS)
def test_files_of_the_user_are_not_overwritten_after_kill_and_resume(
    place: Path, kind: str, policy: str, moment: str
) -> None:
    """Files that are older than the job by less than the tolerance of clocks; files that were changed, saved or created
    during the job, also in directories that only the job created."""
    source, copy, env = place / "source", place / "copy", {"XDG_STATE_HOME": str(place / "state")}
    make_source(source)
    mine = [copy / "old-0" / name for name in ("f00", "f01", "f02", "f-link", "f-fifo")]
    mine[0].parent.mkdir(parents=True)
    for path in mine:
        put(path)
    started(place, policy, MOMENTS[moment], env)
    mine[1].chmod(0o604)
    (copy / "old-0" / "f02").write_bytes(b"written to")
    for number in range(DIRECTORIES):
        directory = copy / f"{'old' if number < 1 else 'new'}-{number}"
        later = [directory / name for name in ("f07", "f08", "f-linked", *(("f-fifo", "f-link") if number else ()))]
        for path in later if directory.exists() else ():
            put(path)
            mine.append(path)
    put(copy / "f-linked-2")
    mine.append(copy / "f-linked-2")
    if (copy / "new-1").exists():
        put(copy / "new-1" / "f-large")
        mine.append(copy / "new-1" / "f-large")
    before = {path: seen(path) for path in mine}
    run = pcopy("--resume", "--json", env=env, ranks=2)
    assert {path: seen(path) for path in mine} == before
    reported = summary(run)
    assert reported["found"] == reported["copied"] + reported["skipped"] + reported["failed"]
    assert reported["failed" if policy == "fail" else "skipped"] > 4
    assert run.returncode == (INCOMPLETE if policy == "fail" else 0), show(run)
    for path in mine:  # all other items are like the source
        os.unlink(path)
        os.unlink(source / path.relative_to(copy))
    left = [line for line in differences(source, copy) if "f" in line.rpartition("/")[2]]
    assert left == [], "\n".join([*left, show(run)])
    assert temporaries(os.fsencode(copy)) == []


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("kind", KINDS[:1])
def test_named_files_that_the_user_removed_are_copied_again(place: Path, kind: str, policy: str) -> None:
    source, copy, env = place / "source", place / "copy", {"XDG_STATE_HOME": str(place / "state")}
    make_source(source)
    started(place, policy, MOMENTS["name"], env, *SELDOM)
    for path in named(copy / "new-1"):
        path.unlink()
    reported = summary(succeed("--resume", "--json", env=env, ranks=2))
    assert (reported["skipped"], reported["failed"], reported["copied"]) == (0, 0, reported["found"])
    assert differences(source, copy) == []
    assert temporaries(os.fsencode(copy)) == []


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("kind", KINDS[:1])
def test_hard_links_into_a_removed_directory_are_restored_as_links(place: Path, kind: str, policy: str) -> None:
    source, copy, env = place / "source", place / "copy", {"XDG_STATE_HOME": str(place / "state")}
    for name in ("new-0", "new-1"):
        (source / name).mkdir(parents=True)
    for index in range(2 * FILES):
        (source / "new-1" / f"f{index:02}").write_bytes(b"source %d" % index)
        os.link(source / "new-1" / f"f{index:02}", source / "new-0" / f"f{index:02}")
    started(place, policy, MOMENTS["name"], env, *SELDOM)
    shutil.rmtree(copy / "new-0")
    reported = summary(succeed("--resume", "--json", env=env, ranks=2))
    assert (reported["skipped"], reported["failed"], reported["hardlinks"]) == (0, 0, 2 * FILES)
    assert differences(source, copy) == []
    assert temporaries(os.fsencode(copy)) == []


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("kind", KINDS[:1])
def test_resume_recognises_files_that_the_job_has_named(place: Path, kind: str, policy: str) -> None:
    source, copy, env = place / "source", place / "copy", {"XDG_STATE_HOME": str(place / "state")}
    make_source(source)
    started(place, policy, MOMENTS["name"], env)
    reported = summary(succeed("--resume", "--json", env=env, ranks=3))
    assert (reported["skipped"], reported["failed"], reported["copied"]) == (0, 0, reported["found"])
    assert differences(source, copy) == []
    assert temporaries(os.fsencode(copy)) == []
