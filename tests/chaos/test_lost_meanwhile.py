"""What an earlier run has copied is removed or cut before the job is resumed: it does not end as if all were there."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.chaos.unfinished import INCOMPLETE, Stop, check_equal
from tests.support.command import pcopy, show, succeed, summary
from tests.support.faults import Fault
from tests.support.oracle import differences

DIRECTORIES = 40
FOUND = 1 + DIRECTORIES * 6


@pytest.fixture
def source(area: Path) -> Path:
    for number in range(DIRECTORIES):
        directory = area / f"source/{number}"
        directory.mkdir(parents=True)
        for name in ("one", "two", "three"):
            (directory / name).write_bytes(b"the contents")
        os.mkfifo(directory / "fifo")
        os.link(directory / "one", area / f"source/{number}-too")
    return area / "source"


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
    lost = {path.parent.name for path in source.glob("*/two") if differences(path, copy / path.relative_to(source))}
    told = {
        path.name for path in copy.iterdir() if b"%b: look: an item that was copied is gone" % bytes(path) in run.stderr
    }
    assert lost == told, show(run)
    said = summary(run)
    assert said["failed"] == len(told)
    assert said["found"] == said["copied"] + said["failed"]
    assert run.returncode == (INCOMPLETE if told else 0), show(run)
    if number == signal.SIGTERM:
        assert told
    succeed("-T", "--existing", "changed", source, copy, ranks=2, env=env)
    if told:
        check_end(env)
    check_equal(source, copy)


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
    area: Path, source: Path, env: dict[str, str], stop: Stop
) -> None:
    copy = area / "copy"
    stop_halfway(stop, source, copy)
    for path in source.glob("*/two"):
        grown(path)
        (path.parent / "new").touch()
    run = succeed("--json", "--resume", ranks=2, env=env)
    assert summary(run)["found"] == FOUND
