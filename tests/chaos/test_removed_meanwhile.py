"""Directories are removed from the destination of a stopped job: a resume recreates them, and counts them once."""

from __future__ import annotations

import io
import json
import os
import shutil
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from pcopy.errors import RequestRefused
from pcopy.jobs.lifecycle import directory_errors_as_refusal
from pcopy.jobs.missing_directories import MissingDirectoryRepair
from pcopy.tasks.base.job import Job, Options
from tests.chaos.interrupted import TOTALS
from tests.chaos.unfinished import INCOMPLETE, Stop, check_equal
from tests.support.command import Completed, pcopy, show, succeed, summary
from tests.support.faults import ITEM_BY_ITEM, Fault, slowed
from tests.support.users import NOBODY, require_root
from tests.tasks.one_rank import root_of

MANY = "many names"
HALF_WAY = 300
THEN = 1_600_000_000 * 10**9
SHARED = b"the contents of one inode"


def totals(run: Completed) -> dict[str, int]:
    reported = summary(run)
    return {key: reported[key] for key in TOTALS}


def copied(copy: Path) -> int:
    return sum(len(files) for _, _, files in os.walk(copy))


def linked(source: Path, copy: Path) -> int:
    names = (copy / path.relative_to(source) for path in (source / MANY).glob("*/linked-*"))
    return sum(name.exists() and name.stat().st_nlink > 1 for name in names)


def finished(source: Path, copy: Path) -> int:
    """Return the number of directories that have their final times."""
    found = (Path(path) for path, _, _ in os.walk(source))
    both = ((path, copy / path.relative_to(source)) for path in found)
    return sum(there.exists() and there.stat().st_mtime_ns == path.stat().st_mtime_ns for path, there in both)


def all_finished(source: Path, copy: Path) -> bool:
    return finished(source, copy) == sum(1 for _ in os.walk(source))


MOMENTS: dict[str, tuple[str, int, Callable[[Path, Path], bool]]] = {
    "copy": (ITEM_BY_ITEM, 3, lambda source, copy: copied(copy) > HALF_WAY),
    "link": ("linkat", 30, lambda source, copy: linked(source, copy) > 40),
    "finish": (ITEM_BY_ITEM, 3, lambda source, copy: finished(source, copy) > 30),
    "verify": ("fadvise64", 60, all_finished),
}


def remove(copy: Path) -> None:
    """Remove half of the directories with shared inodes, and some other directories with their contents."""
    removed = sorted((copy / MANY).glob("place-*"))[::2]
    removed += sorted(path for path in copy.iterdir() if path.is_dir() and not path.is_symlink() and path.name != MANY)[
        :3
    ]
    assert len(removed) > 6
    for path in removed:
        shutil.rmtree(path)


@pytest.mark.in_turn(3)
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL], ids=["stopped", "killed"])
@pytest.mark.parametrize("moment", MOMENTS)
def test_directories_removed_between_runs_are_copied_again_and_counted_once(
    area: Path, tree: Path, env: dict[str, str], stop: Stop, moment: str, number: int
) -> None:
    copy = area / "copy"
    words = ("--json", "--verify", "-T", tree)
    calls, milliseconds, until = MOMENTS[moment]
    stop(*words, copy, number=number, until=lambda: until(tree, copy), slow=(calls, milliseconds))
    remove(copy)
    run = succeed("--json", "--resume", ranks=2, env=env)
    assert b"gone from the destination" in run.stderr, show(run)
    assert totals(run) == totals(succeed(*words, area / "other", ranks=2, env=env))
    check_equal(tree, copy)


@pytest.mark.in_turn(1)
@pytest.mark.parametrize(
    ("existing", "moment", "name"),
    [("replace", "copy", "place-3"), ("skip", "copy", "place-3"), ("newer", "link", "place-0")],
)
def test_replaced_directory_is_reported_and_nothing_is_written_to_it(
    area: Path, tree: Path, env: dict[str, str], stop: Stop, existing: str, moment: str, name: str
) -> None:
    """A mount may be missing there. When the replacement is moved away, the directory is recreated."""
    copy = area / "copy"
    place = copy / MANY / name
    calls, milliseconds, until = MOMENTS[moment]
    words = ("--existing", existing, "-T", tree)
    stop(*words, copy, until=lambda: place.exists() and until(tree, copy), slow=(calls, milliseconds))
    place.rename(area / "elsewhere")
    place.mkdir()
    run = pcopy("--json", "--resume", ranks=2, env=env)
    assert run.returncode == INCOMPLETE, show(run)
    assert b"%b is not the directory that the job copied to" % name.encode() in run.stderr, show(run)
    assert os.listdir(place) == []
    place.rmdir()
    run = succeed("--json", "--resume", ranks=2, env=env)
    assert totals(run) == totals(succeed("--json", *words, area / "other", ranks=2, env=env)), show(run)
    check_equal(tree, copy)


def one_inode(source: Path) -> Path:
    """Create a file with a name in each of three directories."""
    for name in ("first", "second", "third"):
        (source / name).mkdir(parents=True)
    (source / "first/name").write_bytes(SHARED)
    os.chown(source / "first/name", NOBODY, NOBODY)
    for name in ("second", "third"):
        os.link(source / "first/name", source / name / "name")
    for path in (*source.iterdir(), source):
        os.utime(path, ns=(THEN, THEN))
    return source


@pytest.mark.parametrize("existing", ["replace", "skip"])
@pytest.mark.parametrize(("removed", "failing"), [("first", 0), ("second", 1)])
def test_names_of_an_inode_without_metadata_are_linked_again_after_removal(
    area: Path, env: dict[str, str], existing: str, removed: str, failing: int
) -> None:
    require_root("give files away")
    source, copy = one_inode(area / "source"), area / "copy"
    fault = Fault(area / "log", ["fchown"], None, "EIO", when="1+")
    words = ("--json", "--existing", existing, "-T", source)
    run = pcopy(*words, copy, ranks=1, env=env, wrap=fault.wrap())
    fault.check()
    assert run.returncode == INCOMPLETE, show(run)
    shutil.rmtree(copy / removed)
    for _ in range(failing):  # the remaining records must be complete, too
        run = pcopy("--json", "--resume", ranks=1, env=env, wrap=fault.wrap())
        assert run.returncode == INCOMPLETE, show(run)
    run = succeed("--json", "--resume", ranks=2, env=env)
    assert totals(run) == totals(succeed(*words, area / "other", ranks=2, env=env))
    check_equal(source, copy)


@pytest.mark.in_turn(1)
@pytest.mark.parametrize("removed", [("first",), ("second",), ("first", "second")])
def test_bytes_of_an_inode_are_counted_once_after_a_removal(
    area: Path, env: dict[str, str], removed: tuple[str, ...]
) -> None:
    """The bytes were counted in the directory of the first name."""
    require_root("give files away")
    source, copy = one_inode(area / "source"), area / "copy"
    fault = Fault(area / "log", ["fchown"], None, "EIO", when="1+")
    run = pcopy("--existing", "skip", "-T", source, copy, ranks=1, env=env, wrap=fault.wrap())
    fault.check()
    assert run.returncode == INCOMPLETE, show(run)
    for name in removed:
        shutil.rmtree(copy / name)
    words = ("--progress", "json", "--progress-interval", "0.1", "--resume")
    run = succeed(*words, ranks=1, env=env, wrap=slowed(ITEM_BY_ITEM, 300))
    reported = [json.loads(line) for line in run.stderr.splitlines() if line.startswith(b"{")]
    assert (reported[-1]["found"], reported[-1]["found_bytes"]) == (7, len(SHARED)), show(run)
    check_equal(source, copy)


def test_finished_directory_replaced_by_a_symlink_is_reported(area: Path, env: dict[str, str]) -> None:
    """No task remains for the directory; the job notices the replacement by the recorded hard links."""
    source, copy = area / "source", area / "copy"
    for name in ("first", "second"):
        (source / name).mkdir(parents=True)
    (source / "first/name").write_bytes(b"shared")
    os.link(source / "first/name", source / "second/name")
    fault = Fault(area / "log", ["utimensat"], copy, "EIO")
    run = pcopy("--json", "-T", source, copy, ranks=1, env=env, wrap=fault.wrap())
    fault.check()
    assert (run.returncode, summary(run)["failed"]) == (INCOMPLETE, 1), show(run)
    (copy / "second").rename(area / "elsewhere")
    (copy / "second").symlink_to(area / "elsewhere")
    run = pcopy("--json", "--resume", ranks=1, env=env)
    assert (run.returncode, summary(run)["failed"]) == (INCOMPLETE, 1), show(run)
    assert b"second: open: " in run.stderr, show(run)
    (copy / "second").unlink()
    run = succeed("--json", "--resume", ranks=2, env=env)
    assert totals(run) == totals(succeed("--json", "-T", source, area / "other", ranks=2, env=env))
    check_equal(source, copy)


def test_recreated_directory_is_recognised_in_later_runs(area: Path, env: dict[str, str]) -> None:
    """Also by the records of its hard links."""
    source, copy = area / "source", area / "copy"
    for name in ("first", "second", "third"):
        (source / name).mkdir(parents=True)
    (source / "first/name").write_bytes(b"shared")
    for name in ("second", "third"):
        os.link(source / "first/name", source / name / "name")
    fault = Fault(area / "log", ["utimensat"], copy, "EIO")
    pcopy("--json", "-T", source, copy, ranks=1, env=env, wrap=fault.wrap())
    for name in ("first", "third"):
        shutil.rmtree(copy / name)
        run = pcopy("--json", "--resume", ranks=1, env=env, wrap=fault.wrap())
        fault.check()
        assert (run.returncode, summary(run)["failed"]) == (INCOMPLETE, 1), show(run)
        assert b"not the directory that the job copied to" not in run.stderr, show(run)
    run = succeed("--json", "--resume", ranks=2, env=env)
    assert b"not the directory that the job copied to" not in run.stderr, show(run)
    assert totals(run) == totals(succeed("--json", "-T", source, area / "other", ranks=2, env=env))
    check_equal(source, copy)


def test_destination_that_cannot_be_opened_is_reported_with_its_path(area: Path) -> None:
    """The message does not name the job directory."""
    root = root_of(area, area)._replace(target=bytes(area / "copy"))
    missing = MissingDirectoryRepair(Job("job", 2, (root,), Options()), io.BytesIO)
    reported = f"^{area}/copy: cannot be opened: No such file or directory$"
    with pytest.raises(RequestRefused, match=reported), directory_errors_as_refusal(bytes(area / "job")):
        missing.examine_tasks(1, ())
