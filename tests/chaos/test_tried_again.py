"""A resume retries failed items as if for the first time: the result shows no trace of the failure."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.chaos.unfinished import INCOMPLETE, STOPPED, check_equal
from tests.support.command import Argument, Completed, pcopy, show, summary
from tests.support.oracle import differences
from tests.support.users import NOBODY, is_root

Run = Callable[..., Completed]


@pytest.fixture
def run(area: Path, env: dict[str, str]) -> Run:
    """``run(arguments…)`` runs pcopy as an ordinary user, so that permissions apply."""
    (area / "state").mkdir()
    for name in ("source", "copy"):
        (area / name).mkdir()

    def run_pcopy(*arguments: Argument, ranks: int = 2) -> Completed:
        give_away(area)
        return pcopy("--json", *arguments, ranks=ranks, env=env, user=NOBODY)

    return run_pcopy


def give_away(area: Path) -> None:
    if is_root():
        for top, directories, files in os.walk(area):
            for name in (".", *directories, *files):
                path = os.path.join(top, name)
                if os.lstat(path).st_uid != NOBODY:
                    os.chown(path, NOBODY, NOBODY)


def date(*paths: Path) -> None:
    for path in paths:
        os.utime(path, ns=(1_577_836_800 * 10**9, 1_577_836_800 * 10**9))


@pytest.mark.in_turn(3)
@pytest.mark.parametrize("times", [1, 2], ids=["once", "twice"])
@pytest.mark.parametrize("mode", [0o755, 0o555], ids=["writable", "read-only"])
@pytest.mark.parametrize("size", [5, 6 << 20], ids=["small", "split"])
def test_resume_copies_a_directory_that_could_not_be_read_before(
    area: Path, run: Run, times: int, mode: int, size: int
) -> None:
    """The parent directory keeps its times, and names of an inode on both sides are hard links."""
    source, copy = area / "source", area / "copy"
    closed, around = source / "around" / "closed", source / "around"
    closed.mkdir(parents=True)
    (around / "open").mkdir()
    (around / "open" / "linked").write_bytes(os.urandom(size))
    os.link(around / "open" / "linked", closed / "linked too")
    os.link(around / "open" / "linked", closed / "and this")
    os.link(around / "open" / "linked", area / "outside")
    (closed / "alone").write_bytes(b"alone")
    date(closed, around / "open", around, source)
    around.chmod(mode)
    closed.chmod(0)
    failing = run("--chunk-size", "1M", "--block-size", "64K", "--verify", "-T", source, copy)
    if times > 1:
        failing = run("--resume", ranks=3)
    assert failing.returncode == INCOMPLETE, show(failing)
    assert summary(failing)["failed"] == 1
    closed.chmod(0o755)
    done = run("--resume", ranks=1)
    assert done.returncode == 0, show(done)
    reported = summary(done)
    assert (reported["found"], reported["files"], reported["hardlinks"]) == (8, 2, 2), reported
    (area / "outside").unlink()
    check_equal(source, copy)


@pytest.mark.parametrize("edited", [False, True], ids=["as it was", "edited"])
def test_existing_file_that_made_an_item_fail_is_not_replaced_by_resume(area: Path, run: Run, edited: bool) -> None:
    for name in ("file", "other", "link"):
        (area / "source" / name).write_bytes(b"new")
        (area / "copy" / name).write_bytes(b"old")
    os.link(area / "source/link", area / "source/second")
    (area / "copy/second").write_bytes(b"old")
    failing = run("--existing", "fail", "-T", area / "source", area / "copy")
    text = b"the user's" if edited else b"old"
    for number in range(3):
        assert failing.returncode == INCOMPLETE, show(failing)
        assert summary(failing)["failed"] == 4
        assert failing.stderr.count(b"EEXIST") == 4, show(failing)
        for path in (area / "copy").iterdir():
            assert number == 0 or path.read_bytes() == text
            path.write_bytes(text)
        failing = run("--resume", ranks=3)
    for path in (area / "copy").iterdir():
        path.unlink()
    done = run("--resume")
    assert done.returncode == 0, show(done)
    assert differences(area / "source", area / "copy") == []


@pytest.mark.parametrize("closed", ["directory/file", "directory", "link", "."])
def test_newer_file_written_before_the_source_became_readable_is_kept(area: Path, run: Run, closed: str) -> None:
    """The file is newer than the source, and is kept."""
    (area / "source/directory").mkdir()
    (area / "source/directory/file").write_bytes(b"old")
    (area / "source/link").write_bytes(b"linked")
    os.link(area / "source/link", area / "source/linked")
    date(*(area / "source").rglob("*"))
    modes = {path: path.stat().st_mode for path in (area / "source").rglob("*")} | {area / "source": 0o755}
    (area / "source" / closed).chmod(0)
    failing = run("-u", "-T", area / "source", area / "copy")
    assert failing.returncode == INCOMPLETE, show(failing)
    written = ["link", "linked"] if closed == "link" else ["directory/file"]
    for name in written:
        (area / "copy" / name).parent.mkdir(exist_ok=True)
        (area / "copy" / name).write_bytes(b"newer, by the user")
    for path, mode in modes.items():
        path.chmod(mode)
    done = run("--resume")
    assert done.returncode == 0, show(done)
    assert summary(done)["skipped"] == len(written), show(done)
    assert {(area / "copy" / name).read_bytes() for name in written} == {b"newer, by the user"}


def test_directory_that_fails_in_every_run_is_counted_once(area: Path, run: Run) -> None:
    """The directory was not finished when its source was removed, and an item in it fails as well; in the end all
    succeeds."""
    directory = area / "source" / "directory"
    directory.mkdir()
    (directory / "file").write_bytes(b"file")
    (area / "copy" / "directory" / "file" / "full").mkdir(parents=True)
    date(directory, area / "source")
    assert run("--max-errors", "1", "-T", area / "source", area / "copy").returncode == STOPPED
    directory.rename(area / "elsewhere")
    for limit in (9, 1, 9, 9):
        failing = run("--resume", "--max-errors", str(limit))
        reported = json.loads(failing.stdout)
        assert failing.returncode == (STOPPED if limit == 1 else INCOMPLETE), show(failing)
        assert min(value for value in reported.values() if type(value) is int) >= 0, reported
        assert limit == 1 or (reported["found"], reported["failed"], reported["directories"]) == (3, 2, 1), reported
    (area / "elsewhere").rename(directory)
    date(area / "source")
    (area / "copy" / "directory" / "file" / "full").rmdir()
    done = run("--resume")
    assert done.returncode == 0, show(done)
    assert summary(done)["directories"] == 2
    assert differences(area / "source", area / "copy") == []
