"""Items copied by an earlier run are removed or changed before the resume: the job does not end as if they were
complete."""

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
"""Seconds after which an item is certainly older than a job that begins."""


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
    """A source for tests that do not change it."""
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
    """Stop a job when all directories exist and most of them are incomplete."""
    stop(source, copy, number=number, until=lambda: len(below(copy)) > 3 * DIRECTORIES // 2)


def check_end(env: dict[str, str]) -> None:
    """Resume the job and check that it ends with all items."""
    run = succeed("--json", "--resume", ranks=2, env=env)
    assert summary(run)["found"] == summary(run)["copied"] == FOUND


@pytest.mark.in_turn(3)
@pytest.mark.parametrize("damage", [Path.unlink, cut, grown, replaced], ids=["removed", "cut", "grown", "replaced"])
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL], ids=["stopped", "killed"])
def test_copied_items_damaged_between_runs_are_copied_again_or_reported(
    area: Path, source: Path, env: dict[str, str], stop: Stop, damage: Callable[[Path], None], number: int
) -> None:
    """Each item is copied again if it was not recorded; otherwise its directory is reported."""
    copy = area / "copy"
    stop_halfway(stop, source, copy, number)
    for path in below(copy):
        if path.name == "two":
            damage(path)
    run = pcopy("--json", "--resume", ranks=2, env=env)
    lost = set(re.findall(r"(?:^| )([^ /]+)/two$", "\n".join(differences(source, copy)), re.MULTILINE))
    reported = {
        path.name
        for path in copy.iterdir()
        if b"%b: look: an item that was copied is missing" % bytes(path) in run.stderr
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
def test_existing_directories_removed_between_runs_are_restored_or_reported(
    area: Path, env: dict[str, str], stop: Stop, removed: str
) -> None:
    """Or their contents. These directories were complete, so that no remaining task names them."""
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


def test_source_directory_that_cannot_be_listed_on_resume_is_reported(
    area: Path, source: Path, env: dict[str, str], stop: Stop
) -> None:
    """Whether items of it are lost is unknown then; the next resume checks again."""
    copy = area / "copy"
    stop_halfway(stop, source, copy)
    fault = Fault(area / "log", ["getdents64"], source / "7", "EIO")
    run = pcopy("--json", "--resume", ranks=2, env=env, wrap=fault.wrap())
    assert run.returncode == INCOMPLETE, show(run)
    assert f"{source}/7: readdir: Input/output error".encode() in run.stderr, show(run)
    assert summary(run)["failed"] == 1
    check_end(env)
    check_equal(source, copy)


def test_files_changed_in_the_source_between_runs_are_not_reported_as_lost(
    area: Path, env: dict[str, str], stop: Stop
) -> None:
    source, copy = make(area / "source"), area / "copy"
    stop_halfway(stop, source, copy)
    for path in source.glob("*/two"):
        grown(path)
        (path.parent / "new").touch()
    run = succeed("--json", "--resume", ranks=2, env=env)
    new = [*copy.glob("*/new")]  # in directories whose scan was not recorded
    assert summary(run)["found"] == summary(run)["copied"] == FOUND + len(new)


@pytest.mark.parametrize("existing", ["skip", "newer"])
def test_skipped_files_are_not_reported_as_lost(
    area: Path, source: Path, env: dict[str, str], stop: Stop, existing: str
) -> None:
    """Although the file is not a copy, and its age is within the tolerance of the clocks."""
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


def test_items_excluded_by_one_file_system_are_not_reported_as_lost(
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
