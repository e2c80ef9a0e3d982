"""What an earlier run has copied is removed or cut before the job is resumed: it does not end as if all were there."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from pcopy.tasks.base.rank import CLOCK_GRACE
from tests.chaos.unfinished import INCOMPLETE, Stop, check_equal
from tests.support.command import pcopy, show, succeed, summary
from tests.support.faults import Fault
from tests.support.filesystems import mounted, scratch
from tests.support.oracle import differences
from tests.support.users import require_root

DIRECTORIES = 40
FOUND = 1 + DIRECTORIES * 6


AGE = CLOCK_GRACE / 10**9 + 0.2
"""Seconds after which nobody doubts that an item is older than a job that begins."""


def make(source: Path) -> Path:
    for number in range(DIRECTORIES):
        directory = source / f"{number}"
        directory.mkdir(parents=True)
        for name in ("one", "two", "three"):
            (directory / name).write_bytes(b"the contents")
        os.mkfifo(directory / "fifo")
        os.link(directory / "one", source / f"{number}-too")
    time.sleep(AGE)
    return source


@pytest.fixture(scope="module")
def source() -> Iterator[Path]:
    """For tests that leave it as it is."""
    with scratch() as place:
        yield make(place / "source")


def cut(path: Path) -> None:
    os.truncate(path, 1)


def grown(path: Path) -> None:
    with open(path, "ab") as file:
        file.write(b"more")


def replaced(path: Path) -> None:
    path.unlink()
    path.symlink_to("elsewhere")


def below(copy: Path) -> list[Path]:
    return [path for path in copy.glob("*/*") if not path.name.startswith(".pcopy-")]


def stop_halfway(stop: Stop, source: Path, copy: Path, number: int = signal.SIGTERM) -> None:
    """Ends a job whose directories are all there, and most of them not yet full."""
    stop(source, copy, number=number, until=lambda: len(below(copy)) > 3 * DIRECTORIES // 2)


def check_end(env: dict[str, str]) -> None:
    """The job goes on, and ends with all items."""
    run = succeed("--json", "--resume", ranks=2, env=env)
    assert summary(run)["found"] == summary(run)["copied"] == FOUND


@pytest.mark.in_turn(3)
@pytest.mark.parametrize("damage", [Path.unlink, cut, grown, replaced], ids=["removed", "cut", "grown", "replaced"])
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL], ids=["stopped", "killed"])
def test_items_that_were_copied(
    area: Path, source: Path, env: dict[str, str], stop: Stop, damage: Callable[[Path], None], number: int
) -> None:
    """Each is copied again, since that was not on record, or its directory is told of."""
    copy = area / "copy"
    stop_halfway(stop, source, copy, number)
    for path in below(copy):
        if path.name == "two":
            damage(path)
    run = pcopy("--json", "--resume", ranks=2, env=env)
    lost = set(re.findall(r"(?:^| )([^ /]+)/two$", "\n".join(differences(source, copy)), re.MULTILINE))
    reported = {
        path.name for path in copy.iterdir() if b"%b: look: an item that was copied is gone" % bytes(path) in run.stderr
    }
    assert lost == reported, show(run)
    said = summary(run)
    assert said["failed"] == len(reported)
    assert said["found"] == said["copied"] + said["failed"]
    assert run.returncode == (INCOMPLETE if reported else 0), show(run)
    if number == signal.SIGTERM:
        assert reported
    if reported:
        subprocess.run(["rsync", "-aHAX", "--checksum", f"{source}/", f"{copy}/"], check=True)
        check_end(env)
    check_equal(source, copy)


@pytest.mark.parametrize("removed", ["", "file"])
def test_directories_that_were_there_already_and_are_removed_meanwhile(
    area: Path, env: dict[str, str], stop: Stop, removed: str
) -> None:
    """Or what is in them. Nothing was left to do in them, so that no task names them any more."""
    source, copy = area / "source", area / "copy"
    there = [source / f"there-{number}" for number in range(20)]
    for directory in there:
        directory.mkdir(parents=True)
        (directory / "file").write_bytes(b"the contents")
    time.sleep(AGE)
    subprocess.run(["cp", "-a", source, copy], check=True)
    make(source)
    stop("-T", "--existing", "changed", source, copy, until=lambda: len([*copy.glob("*/one")]) > DIRECTORIES // 2)
    for directory in there:
        (shutil.rmtree if not removed else os.unlink)(copy / directory.name / removed)
    run = pcopy("--json", "--resume", ranks=2, env=env)
    lost = [directory for directory in there if not (copy / directory.name / "file").exists()]
    assert run.returncode == (INCOMPLETE if lost else 0), show(run)


def test_a_directory_that_cannot_be_listed_any_more_is_told(
    area: Path, source: Path, env: dict[str, str], stop: Stop
) -> None:
    """Nobody knows then whether something of it is lost; the next resume looks again."""
    copy = area / "copy"
    stop_halfway(stop, source, copy)
    fault = Fault(area / "log", ["getdents64"], source / "7", "EIO")
    run = pcopy("--json", "--resume", ranks=2, env=env, wrap=fault.wrap())
    assert run.returncode == INCOMPLETE, show(run)
    assert f"{source}/7: readdir: Input/output error".encode() in run.stderr, show(run)
    assert summary(run)["failed"] == 1
    check_end(env)
    check_equal(source, copy)


def test_what_has_changed_in_the_source_since_is_nothing_that_was_lost(
    area: Path, env: dict[str, str], stop: Stop
) -> None:
    source, copy = make(area / "source"), area / "copy"
    stop_halfway(stop, source, copy)
    for path in source.glob("*/two"):
        grown(path)
        (path.parent / "new").touch()
    run = succeed("--json", "--resume", ranks=2, env=env)
    new = [*copy.glob("*/new")]  # of directories whose scan was not on record
    assert summary(run)["found"] == summary(run)["copied"] == FOUND + len(new)


@pytest.mark.parametrize("existing", ["skip", "newer"])
def test_what_was_kept_is_nothing_that_was_lost(
    area: Path, source: Path, env: dict[str, str], stop: Stop, existing: str
) -> None:
    """Though it is no copy, and younger than the clocks can tell."""
    copy = area / "copy"
    for number in range(DIRECTORIES):
        (copy / f"{number}").mkdir(parents=True)
        (copy / f"{number}" / "two").write_bytes(b"kept")
    stop(
        *("-T", "--existing", existing, source, copy),
        until=lambda: len([*copy.glob("*/one")]) > DIRECTORIES // 2,
    )
    said = summary(succeed("--json", "--resume", ranks=2, env=env))
    assert (said["found"], said["skipped"], said["failed"]) == (FOUND, DIRECTORIES, 0)
    assert {path.read_bytes() for path in copy.glob("*/two")} == {b"kept"}


def test_what_one_file_system_leaves_out_is_nothing_that_was_lost(
    area: Path, session_scratch: Path, env: dict[str, str], stop: Stop
) -> None:
    require_root("mount")
    copy, source = area / "copy", area / "source"
    with mounted("tmpfs", session_scratch) as other:
        (other / "inside").touch()
        (source / "0").mkdir(parents=True)
        subprocess.run(["mount", "--bind", other, source / "0"], check=True)
        try:
            for number in range(1, DIRECTORIES):
                (source / f"{number}").mkdir()
                for name in ("one", "two"):
                    (source / f"{number}" / name).touch()
            time.sleep(AGE)
            stop("--one-file-system", source, copy, until=lambda: len(below(copy)) > DIRECTORIES // 2)
            said = summary(succeed("--json", "--resume", ranks=2, env=env))
        finally:
            subprocess.run(["umount", source / "0"], check=True)
    assert said["found"] == said["copied"] == 1 + DIRECTORIES + 2 * (DIRECTORIES - 1)
    assert os.listdir(copy / "0") == []
