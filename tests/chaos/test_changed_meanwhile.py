"""Changes between two runs of a job: in the source, and in what the job has created."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.chaos.unfinished import INCOMPLETE, REFUSED, STOPPED, Stop, check_equal, under_way
from tests.support.command import pcopy, show, succeed, summary
from tests.support.faults import Fault
from tests.support.filesystems import Place, remove


@pytest.fixture
def large(area: Path) -> Path:
    """A directory with a file that takes some time to copy."""
    (area / "large").mkdir()
    piece = os.urandom(1 << 20)
    with open(area / "large" / "file", "wb") as file:
        for number in range(300):
            file.write(number.to_bytes(4, "big") + piece[4:])
    (area / "large" / "small").write_bytes(b"small")
    return area / "large"


def large_under_way(copy: Path) -> list[Path]:
    """Return the temporary files of split files that are being written."""
    try:
        return [path for path in copy.iterdir() if path.name.startswith(".pcopy-") and under_way(path)]
    except OSError:
        return []


def stop_in_the_midst(stop: Stop, large: Path, copy: Path, env: dict[str, str]) -> str:
    """Kill the job when chunks are recorded: some epochs after the file was opened."""
    seen: list[int] = []

    def later() -> bool:
        sizes = [path.stat().st_size for path in copy.parent.glob("state/pcopy/*/run-1/facts-*")]
        if large_under_way(copy):
            seen.append(sum(sizes))
        return len(set(seen)) > 6

    return stop(large, copy, ranks=2, number=signal.SIGKILL, until=later, slow=("pwrite64", 1))


def test_source_changed_between_runs_is_copied_again_from_the_start(
    large: Path, area: Path, env: dict[str, str], stop: Stop
) -> None:
    name = stop_in_the_midst(stop, large, area / "copy", env)
    with open(large / "file", "r+b") as file:
        file.write(b"changed")
    run = succeed("--resume", name, "--json", ranks=3, env=env)
    check_equal(large, area / "copy")
    assert summary(run)["found"] == 3
    assert summary(run)["bytes"] == (300 << 20) + 5
    reported = b"pcopy: %s: has changed since the job was interrupted; its copy begins anew\n"
    assert reported % os.fsencode(large / "file") in run.stderr, show(run)


@pytest.mark.in_turn(1)
@pytest.mark.parametrize("harm", ["truncated", "removed", "replaced"])
def test_temporary_file_damaged_between_runs_is_written_again(
    large: Path, area: Path, env: dict[str, str], stop: Stop, harm: str
) -> None:
    name = stop_in_the_midst(stop, large, area / "copy", env)
    (temporary,) = large_under_way(area / "copy")
    if harm == "truncated":
        os.truncate(temporary, 1000)
    else:
        size = temporary.stat().st_size
        temporary.unlink()
        if harm == "replaced":
            with open(temporary, "wb") as file:
                file.truncate(size)
    run = succeed("--resume", name, "--json", ranks=3, env=env)
    check_equal(large, area / "copy")
    assert summary(run)["files"] == 2


def test_directory_removed_between_runs_is_reported_or_recreated(
    tree: Path, area: Path, env: dict[str, str], stop: Stop
) -> None:
    """The job recreates the items of the directory, or reports them as failed."""
    copy = area / "copy"
    name = stop(tree, copy)
    victims = [path for path in copy.iterdir() if path.is_dir() and not path.is_symlink()]
    for victim in victims:
        remove(victim)
    run = pcopy("--resume", name, "--json", ranks=2, env=env)
    if run.returncode == 0:
        check_equal(tree, copy)
    else:
        assert run.returncode == INCOMPLETE, show(run)
        assert b"No such file or directory" in run.stderr or b"Stale" in run.stderr, show(run)
        assert summary(run)["failed"] > 0


def test_resume_refuses_another_directory_at_the_path_of_dst(
    tree: Path, area: Path, env: dict[str, str], stop: Stop
) -> None:
    (area / "copy").mkdir()
    name = stop("-T", tree, area / "copy")
    (area / "copy").rename(area / "moved")
    (area / "copy").mkdir()
    run = pcopy("--resume", name, env=env)
    assert run.returncode == REFUSED, show(run)
    assert os.fsencode(area / "copy") in run.stderr
    assert os.listdir(area / "copy") == []
    (area / "copy").rmdir()
    (area / "moved").rename(area / "copy")
    succeed("--resume", name, env=env)
    check_equal(tree, area / "copy")


def put_nothing(copy: Path, saved: Path) -> None:
    """Leave the path without a directory."""


def put_empty(copy: Path, saved: Path) -> None:
    copy.mkdir()


def put_file(copy: Path, saved: Path) -> None:
    copy.touch()


def put_link(copy: Path, saved: Path) -> None:
    copy.symlink_to(saved)


def put_copy(copy: Path, saved: Path) -> None:
    subprocess.run(["cp", "-a", saved, copy], check=True)


@pytest.mark.parametrize("put", [put_nothing, put_empty, put_file, put_link, put_copy])
def test_resume_refuses_another_item_at_the_path_of_the_created_copy(
    area: Path, env: dict[str, str], put: Callable[[Path, Path], None]
) -> None:
    (area / "source" / "blocked").mkdir(parents=True)
    (area / "source" / "file").write_bytes(b"file")
    os.symlink("nowhere", area / "source" / "late")
    copy, saved = area / "copy", area / "saved"
    run = pcopy("--max-errors", "1", area / "source", copy, ranks=2, env=env, wrap=fail_symlinks(area))
    assert run.returncode == STOPPED, show(run)
    copy.rename(saved)
    put(copy, saved)
    before = sorted(area.rglob("*"))
    refused = pcopy("--resume", ranks=2, env=env)
    assert refused.returncode == REFUSED, show(refused)
    (line,) = refused.stderr.splitlines()
    assert line.startswith(b"pcopy: %s: not the directory that job " % os.fsencode(copy)), line
    assert b"(pcopy --discard) and start a new one" in line
    assert [path for path in sorted(area.rglob("*")) if "state" not in path.parts] == [
        path for path in before if "state" not in path.parts
    ]
    if os.path.lexists(copy):
        remove(copy)
    saved.rename(copy)
    succeed("--resume", ranks=2, env=env)
    check_equal(area / "source", copy)


def fail_symlinks(area: Path) -> list[str]:
    return Fault(area / "log", ["symlinkat"], None, "EIO").wrap()


def test_resume_refuses_a_recreated_directory_with_the_same_inode_number(
    area: Path, env: dict[str, str], on: Place
) -> None:
    """ext4 reuses the inode number of a removed directory for the next one."""
    copy = on("ext4") / "copy"
    (area / "source").mkdir()
    os.symlink("nowhere", area / "source" / "late")
    run = pcopy("--max-errors", "1", area / "source", copy, ranks=1, env=env, wrap=fail_symlinks(area))
    assert run.returncode == STOPPED, show(run)
    inode = copy.stat().st_ino
    copy.rmdir()
    copy.mkdir()
    if copy.stat().st_ino != inode:
        pytest.skip("the inode was not used again")
    refused = pcopy("--resume", ranks=1, env=env)
    assert refused.returncode == REFUSED, show(refused)
    assert b"it is another one" in refused.stderr, show(refused)
