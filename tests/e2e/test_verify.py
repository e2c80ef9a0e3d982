"""``--verify``: the contents read back from the destination must equal the copied ones.

Each run is stopped when everything is copied, at the sync. The test then damages the copy and lets the run continue.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support.command import Argument, Completed, pcopy, show, succeed, summary
from tests.support.damages import DAMAGES, damage_all, flip, make_tree, make_trees
from tests.support.files import replace_by_fifo, replace_by_link
from tests.support.filesystems import Place
from tests.support.held import held
from tests.support.oracle import changes, differences, snapshot
from tests.support.traces import READING, Trace
from tests.support.trees import random_tree
from tests.support.users import NOBODY, is_root, require_root

MIB = 1 << 20
OPTIONS = ("--json", "--verify", "--chunk-size", "4M")

ADDITIONAL_FAILURES = {"name-of-a-directory": {"linked"}, "names-swapped": {"hollow", "directory/inner"}}
"""Failures that pverify does not list: other hard links, and directories that the copy did not create."""


def failing_paths(name: str) -> set[str]:
    """Return the paths that fail verification after a damage. Extra items do not matter."""
    reported = {line.partition(" ")[2] for line in DAMAGES[name].reported if not line.startswith("extra ")}
    return reported | ADDITIONAL_FAILURES.get(name, set())


def failed_paths(errors: Path, *tops: Path) -> list[str]:
    """Return the paths in an errors file, relative to source or copy."""
    paths = [json.loads(line)["path"] for line in errors.read_text().splitlines()]
    return sorted(next(path.removeprefix(f"{top}/") for top in tops if path.startswith(f"{top}/")) for path in paths)


def damaged(
    area: Path, damage: Callable[[Path], object], *options: Argument, ranks: int = 2, **others: Any
) -> tuple[Completed, dict[str, Any]]:
    """Copy ``source`` to ``copy`` and damage it before the verification. Return the run and its summary.

    The run has no checkpoints: on a slow machine, one would sync, and so stop the run, before everything is copied.
    """
    arguments = (
        *OPTIONS,
        "--checkpoint",
        "none",
        "--errors",
        area / "errors",
        *options,
        area / "source",
        area / "copy",
    )
    with held(area / "log", *arguments, ranks=ranks, **others) as run:
        damage(area / "copy")
        ended = run.go_on()
    return ended, summary(ended)


@pytest.mark.in_turn(1)
@pytest.mark.parametrize("ranks", [1, 3])
def test_all_damage_is_found_by_verification(area: Path, ranks: int) -> None:
    make_trees(area / "source")
    ended, reported = damaged(area, damage_all, ranks=ranks)
    assert ended.returncode == 1, show(ended)
    wanted = sorted(f"{name}/{path}" for name in DAMAGES for path in failing_paths(name))
    assert failed_paths(area / "errors", area / "copy") == wanted
    assert reported["failed"] == len(wanted)
    assert reported["changed"] == reported["vanished"] == reported["skipped"] == 0
    items = [path for path in (area / "source").rglob("*") if str(path.relative_to(area / "source")) not in wanted]
    directories = [path for path in items if path.is_dir()]
    files = {path.stat().st_ino: path.stat().st_size for path in items if path.is_file() and not path.is_symlink()}
    assert reported["directories"] == len(directories) + 1
    assert (reported["files"], reported["bytes"]) == (len(files), sum(files.values()))
    assert reported["symlinks"] == sum(path.is_symlink() for path in items)
    assert reported["special"] == sum(path.is_fifo() for path in items)
    assert reported["copied"] == len(items) + 1


@pytest.mark.parametrize("ranks", [1, 3])
def test_intact_copy_verifies(area: Path, filesystem: Path, ranks: int) -> None:
    random_tree(filesystem / "source", 21, files=60, directories=8, privileged=is_root())
    for existing in ("replace", "changed"):
        run = succeed(
            *("--verify", "--chunk-size", "4M", "--existing", existing, "-T", filesystem / "source"),
            filesystem / "copy",
            ranks=ranks,
        )
        items = 1 + sum(1 for _ in items_below(filesystem / "source"))
        assert f"  verified: {items} items, ".encode() in run.stdout or existing == "changed", show(run)
        assert differences(filesystem / "source", filesystem / "copy") == []


def items_below(top: Path) -> list[Path]:
    return list(top.rglob("*"))


def test_skipped_files_with_equal_size_and_time_are_verified(area: Path) -> None:
    """Verification includes skipped files."""
    make_tree(area / "source")
    subprocess.run(["cp", "-a", area / "source", area / "copy"], check=True)
    flip(area / "copy/large", 8 * MIB)
    flip(area / "copy/small", 3)
    run = pcopy(
        *OPTIONS, "--existing", "changed", "--errors", area / "errors", f"{area}/source/", area / "copy", ranks=2
    )
    assert run.returncode == 1, show(run)
    reported = summary(run)
    assert failed_paths(area / "errors", area / "copy") == ["large", "small"]
    assert (reported["failed"], reported["files"]) == (2, 0)


@pytest.mark.parametrize(
    ("size", "where"),
    [(1000, "first"), (9 * MIB, "last"), (40 * MIB, "first"), (40 * MIB, "middle"), (40 * MIB, "last")],
)
def test_flipped_bit_of_a_file_is_found(area: Path, size: int, where: str) -> None:
    """The file is small, large, or copied and read in chunks."""
    (area / "source").write_bytes(os.urandom(size))
    at = {"first": 0, "middle": size // 2, "last": -1}[where]
    ended, reported = damaged(area, lambda copy: flip(copy, at), ranks=3)
    assert ended.returncode == 1, show(ended)
    assert f"pcopy: {area}/copy: verify: its contents differ from the source\n".encode() in ended.stderr
    assert (reported["failed"], reported["files"], reported["bytes"]) == (1, 0, 0)


def test_source_that_changed_after_the_copy_is_reported(area: Path) -> None:
    make_tree(area / "source")

    def change(_: Path) -> None:
        (area / "source/small").write_bytes(b"new")
        (area / "source/large").unlink()
        flip(area / "source/linked", 0)
        (area / "source/link").unlink()
        (area / "source/link").symlink_to("elsewhere")

    ended, reported = damaged(area, change, ranks=2)
    assert ended.returncode == 1, show(ended)
    assert failed_paths(area / "errors", area / "source") == ["directory/linked", "large", "link", "linked", "small"]
    assert (reported["failed"], reported["changed"], reported["vanished"]) == (5, 4, 1)


def test_items_of_a_moved_directory_fail_verification(area: Path) -> None:
    """The verification does not use the open directory that was moved."""
    make_tree(area / "source")

    def move(copy: Path) -> None:
        (copy / "directory").rename(area / "elsewhere")
        (copy / "directory").symlink_to(area / "elsewhere")

    ended, reported = damaged(area, move, ranks=2)
    assert ended.returncode == 1, show(ended)
    wanted = ["directory", "directory/inner", "directory/inner/leaf", "directory/linked", "linked"]
    assert failed_paths(area / "errors", area / "copy") == wanted
    assert reported["failed"] == 5


def test_separated_hard_links_fail_verification(area: Path) -> None:
    make_tree(area / "source")

    def separate(copy: Path) -> None:
        (copy / "linked").unlink()
        shutil.copy2(copy / "directory/linked", copy / "linked")

    ended, reported = damaged(area, separate)
    assert ended.returncode == 1, show(ended)
    assert failed_paths(area / "errors", area / "copy") == ["directory/linked", "linked"]
    assert (reported["failed"], reported["hardlinks"]) == (2, 0)


def test_copy_that_cannot_be_read_back_fails(area: Path) -> None:
    require_root("become somebody else")
    (area / "source").mkdir()
    for name, size in (("small", 10), ("large", 9 * MIB), ("well", 5)):
        (area / f"source/{name}").write_bytes(os.urandom(size))
    (area / "place").mkdir()
    for path in ((area / "source"), (area / "place"), area):
        os.chown(path, NOBODY, NOBODY)

    def close(copy: Path) -> None:
        for name in ("small", "large"):
            (copy / name).chmod(0o000)

    arguments = (*OPTIONS, "--errors", area / "place/errors", area / "source", area / "place/copy")
    with held(area / "log", *arguments, ranks=2, user=NOBODY) as run:
        close(area / "place/copy")
        ended = run.go_on()
    reported = summary(ended)
    assert ended.returncode == 1, show(ended)
    assert failed_paths(area / "place/errors", area / "place/copy") == ["large", "small"]
    assert b"open: Permission denied (EACCES)" in ended.stderr
    assert (reported["failed"], reported["files"], reported["bytes"]) == (2, 1, 5)


def replace_by_same_size(path: Path) -> None:
    status = path.stat()
    path.unlink()
    path.write_bytes(os.urandom(status.st_size))
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))


def replace_by_directory(path: Path) -> None:
    path.unlink()
    path.mkdir()


def replace_by_device(path: Path) -> None:
    require_root("make devices")
    path.unlink()
    os.mknod(path, 0o20600, os.makedev(1, 3))


@pytest.mark.parametrize("size", [1000, 9 * MIB])
@pytest.mark.parametrize(
    "replace", [replace_by_fifo, replace_by_same_size, replace_by_link, replace_by_directory, replace_by_device]
)
def test_replaced_copy_fails_verification(area: Path, size: int, replace: Callable[[Path], None]) -> None:
    """Links are not followed, and FIFOs are not waited for."""
    (area / "source").write_bytes(os.urandom(size))
    ended, reported = damaged(area, replace, ranks=2)
    assert ended.returncode == 1, show(ended)
    assert (reported["failed"], reported["files"], reported["bytes"]) == (1, 0, 0)
    assert f"pcopy: {area}/copy: ".encode() in ended.stderr


def test_no_signature_is_written_if_verification_fails(area: Path) -> None:
    make_tree(area / "source")
    ended, reported = damaged(area, lambda copy: flip(copy / "small", 0), "--signature", area / "sig")
    assert (ended.returncode, reported["signature"]) == (1, None), show(ended)
    assert not (area / "sig").exists()


@pytest.mark.parametrize("ranks", [1, 3])
def test_page_cache_is_dropped_before_verification(on: Place, area: Path, ranks: int) -> None:
    place = on("ext4")
    (place / "source").mkdir()
    for name, size in (("small", 5000), ("large", 9 * MIB)):
        (place / f"source/{name}").write_bytes(os.urandom(size))
    trace = Trace(area / "trace", "syncfs", "fadvise64", *READING)
    succeed("--verify", "--chunk-size", "4M", place / "source", place / "copy", ranks=ranks, wrap=trace.wrap())
    for name in ("small", "large"):
        path = place / "copy" / name
        assert trace.moved(path, READING) == path.stat().st_size
        for calls in trace.on(path):  # the calls of one process
            assert calls[0].startswith("fadvise64(") and "POSIX_FADV_DONTNEED) = 0" in calls[0], calls
            assert all(re.match("fadvise64|p?readv?", call) for call in calls)


@pytest.mark.parametrize("user", [None, NOBODY])
def test_verification_keeps_access_times(on_strict_atime: Path, area: Path, user: int | None) -> None:
    """Access times of the source and of the copy."""
    place = on_strict_atime
    random_tree(place / "source", 8, files=30, directories=5, largest=9 * MIB)
    for path in [place / "source", *(place / "source").rglob("*")]:
        os.chown(path, user or 0, user or 0, follow_symlinks=False)
    for path in (place, area):
        os.chown(path, user or 0, user or 0)
    before = snapshot(place / "source")
    options = ("--verify", "--chunk-size", "4M", "--signature", area / "sig", "--manifest", area / "manifest")
    succeed(*options, place / "source", place / "copy", ranks=3, user=user)
    after = snapshot(place / "copy")
    assert changes(before, snapshot(place / "source")) == []
    assert {path: record.atime for path, record in after.items()} == {
        path: record.atime for path, record in before.items()
    }


@pytest.mark.in_turn(3)
@pytest.mark.parametrize("ranks", [1, 3])
def test_option_direct_reads_past_the_page_cache(filesystem: Path, area: Path, ranks: int) -> None:
    """A file system without direct I/O, such as tmpfs of old kernels, is read through the cache."""
    random_tree(filesystem / "source", 4, files=30, directories=3, largest=9 * MIB + 1)
    trace = Trace(area / "trace", "fcntl", *READING)
    options = (*OPTIONS, "--direct", "--signature", area / "sig")
    reported = summary(succeed(*options, filesystem / "source", filesystem / "copy", ranks=ranks, wrap=trace.wrap()))
    assert reported["failed"] == 0
    calls = [line for log in area.glob("trace/*") for line in log.read_text(errors="replace").splitlines()]
    asked = [line for line in calls if re.search(r"F_SETFL.*\|O_DIRECT\b", line)]
    files = {path.stat().st_ino for path in (filesystem / "source").rglob("*") if path.is_file()}
    assert len(asked) >= len(files)
    flip_one = next(
        path for path in (filesystem / "copy").rglob("*") if path.is_file() and path.stat().st_size > 9 * MIB
    )
    flip(flip_one, -1)
    again = (*OPTIONS, "--direct", "--existing", "changed", f"{filesystem}/source/", filesystem / "copy")
    run = pcopy(*again, ranks=ranks)
    assert run.returncode == 1, show(run)
    assert summary(run)["failed"] >= 1


@pytest.mark.parametrize(("policy", "reported"), [("skip", True), ("newer", True), ("changed", False)])
def test_skipped_and_unverified_files_are_reported(area: Path, policy: str, reported: bool) -> None:
    for tree, contents in (("source", b"one"), ("copy", b"two")):
        (area / tree).mkdir()
        (area / tree / "file").write_bytes(contents)
        os.utime(area / tree / "file", (1, 1))
    run = pcopy("--verify", "--existing", policy, f"{area}/source/", area / "copy")
    assert run.returncode == (0 if reported else 1), show(run)
    line = b"1 item was skipped and not verified (see --existing changed, --checksum)\n"
    assert (line in run.stdout) is reported, show(run)
