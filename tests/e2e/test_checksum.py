"""``--checksum``: files of equal content are skipped, whatever their times, and different ones are replaced."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

from tests.support.command import pcopy, show, succeed, summary
from tests.support.faults import READS, Fault
from tests.support.files import NOW, age_directories, write
from tests.support.oracle import changes, differences, snapshot
from tests.support.trees import random_tree
from tests.support.users import NOBODY, require_root

MIB = 1 << 20
THEN = 1_600_000_000 * 10**9
SIZES = {"empty": 0, "small": 1000, "whole": 5 * MIB + 17, "split": 13 * MIB + 3}


def copy_with_checksum(area: Path, *options: str, ranks: int = 3) -> dict[str, int]:
    return summary(
        succeed("--json", "--checksum", "--chunk-size", "4M", *options, f"{area}/source/", area / "copy", ranks=ranks)
    )


@pytest.mark.parametrize("size", SIZES)
def test_file_of_equal_content_is_skipped_with_unchanged_metadata(area: Path, size: str) -> None:
    data = os.urandom(SIZES[size])
    write(area / "source/file", data)
    write(area / "copy/file", data, THEN)
    (area / "copy/file").chmod(0o640)
    before = snapshot(area / "copy/file")
    reported = copy_with_checksum(area)
    assert changes(before, snapshot(area / "copy/file")) == []
    assert (reported["files"], reported["skipped"], reported["directories"]) == (0, 1, 1)


@pytest.mark.parametrize(("size", "at"), [("small", "first"), ("small", "last"), ("whole", "last"), ("split", "last")])
def test_single_different_byte_causes_a_copy(area: Path, size: str, at: str) -> None:
    """Size and times are equal, so that only reading shows the difference."""
    data = bytearray(os.urandom(SIZES[size]))
    write(area / "source/file", data)
    data[0 if at == "first" else -1] ^= 1
    write(area / "copy/file", data)
    reported = copy_with_checksum(area)
    assert differences(area / "source", area / "copy") == []
    assert (reported["files"], reported["skipped"]) == (1, 0)


def test_file_of_different_size_or_type_is_replaced(area: Path) -> None:
    write(area / "source/longer", b"longer")
    write(area / "copy/longer", b"long")
    write(area / "source/shorter", b"")
    write(area / "copy/shorter", b"x")
    write(area / "source/link", b"elsewhere")
    (area / "copy/link").symlink_to("elsewhere")
    reported = copy_with_checksum(area)
    assert differences(area / "source", area / "copy") == []
    assert (reported["files"], reported["skipped"]) == (3, 0)


def test_missing_items_are_copied_with_checksum(area: Path) -> None:
    random_tree(area / "source", 7, files=40, directories=5, largest=MIB)
    succeed("--checksum", area / "source", area / "copy", ranks=3)
    assert differences(area / "source", area / "copy") == []


def test_symlinks_are_compared_by_target_text(area: Path) -> None:
    for name, there in {"same": "target", "other": "tarGET", "longer": "target/x"}.items():
        for side, text, time in (("source", "target", NOW), ("copy", there, THEN if name == "same" else NOW)):
            (area / side).mkdir(exist_ok=True)
            (area / side / name).symlink_to(text)
            os.utime(area / side / name, ns=(time, time), follow_symlinks=False)
    kept = (area / "copy/same").lstat()
    age_directories(area / "copy")
    reported = copy_with_checksum(area)
    assert (reported["symlinks"], reported["skipped"]) == (2, 1)
    assert {name: os.readlink(area / "copy" / name) for name in ("same", "other", "longer")} == dict.fromkeys(
        ("same", "other", "longer"), "target"
    )
    assert (area / "copy/same").lstat().st_mtime_ns == kept.st_mtime_ns == THEN


def test_special_files_are_compared_by_device_number(area: Path) -> None:
    require_root("make devices")
    for side, minor, time in (("source", 3, NOW), ("copy", 5, THEN)):
        (area / side).mkdir()
        os.mkfifo(area / side / "fifo")
        os.mknod(area / side / "same", 0o20600, os.makedev(1, 7))
        os.mknod(area / side / "other", 0o20600, os.makedev(1, minor))
        for path in (area / side).iterdir():
            os.utime(path, ns=(time, time))
    age_directories(area / "copy")
    reported = copy_with_checksum(area)
    assert (reported["special"], reported["skipped"]) == (1, 2)
    assert (area / "copy/other").stat().st_rdev == os.makedev(1, 3)
    assert (area / "copy/same").stat().st_mtime_ns == THEN


@pytest.mark.parametrize("size", ["small", "whole", "split"])
def test_equal_hard_link_is_skipped_and_its_group_is_linked_to_it(area: Path, size: str) -> None:
    """The other names become links to the skipped one, even if they were separate files of equal content."""
    data = os.urandom(SIZES[size])
    for group in ("equal", "differs"):
        write(area / "source" / group / "a", data)
        os.link(area / "source" / group / "a", area / "source" / group / "b")
        write(area / "copy" / group / "a", data if group == "equal" else data[:-1] + b"?")
        write(area / "copy" / group / "b", data)
    kept = {(area / "copy/equal" / name).stat().st_ino for name in "ab"}
    reported = copy_with_checksum(area)
    assert differences(area / "source", area / "copy") == []
    assert (area / "copy/equal/a").stat().st_ino in kept
    assert reported["skipped"] >= 1


@pytest.mark.parametrize("ranks", [1, 3])
def test_exactly_files_that_cmp_finds_different_are_copied(area: Path, ranks: int) -> None:
    """In the copy some files have other content and the same times, and some have the same content and other times."""
    random_tree(area / "source", 3, files=80, directories=8, largest=6 * MIB)
    subprocess.run(["cp", "-a", area / "source", area / "copy"], check=True)
    damaged, touched = set(), set()
    files = sorted(path for path in (area / "copy").rglob("*") if path.is_file() and not path.is_symlink())
    for number, path in enumerate(files):
        status = path.stat()
        if status.st_nlink > 1 or not status.st_size:
            continue
        if number % 3 == 0:
            data = bytearray(path.read_bytes())
            data[number % len(data)] ^= 0x55
            path.write_bytes(data)
            os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
            damaged.add(path)
        elif number % 3 == 1:
            os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns + 10**10))
            touched.add(path)
    assert damaged and touched
    inodes = {path: path.stat().st_ino for path in files}
    reported = copy_with_checksum(area, ranks=ranks)
    assert reported["files"] == len(damaged)
    assert {path for path in files if path.stat().st_ino != inodes[path]} == damaged
    for path in files:
        there = area / "source" / path.relative_to(area / "copy")
        assert subprocess.run(["cmp", "-s", there, path], check=False).returncode == 0
    left = differences(area / "source", area / "copy")
    assert not [line for line in left if "mtime" not in line and not line.startswith("rsync: .f..t")], left


@pytest.mark.parametrize("size", ["small", "split"])
@pytest.mark.parametrize("side", ["source", "copy"])
def test_read_error_is_reported_for_the_side_where_it_occurs(area: Path, side: str, size: str) -> None:
    data = os.urandom(SIZES[size])
    for tree in ("source", "copy"):
        write(area / tree / "bad", data)
        write(area / tree / "good", b"good")
    fault = Fault(area / "trace", READS, area / side / "bad", "EIO")
    errors = area / "errors"
    run = pcopy(
        *("--json", "--checksum", "--chunk-size", "4M", "--errors", errors, f"{area}/source/", area / "copy"),
        ranks=3,
        wrap=fault.wrap(),
    )
    fault.check()
    assert run.returncode == 1, show(run)
    assert (summary(run)["failed"], summary(run)["skipped"]) == (1, 1)
    reported = json.loads(errors.read_text())
    assert (reported["path"], reported["operation"], reported["errno"]) == (f"{area}/{side}/bad", "read", 5)
    assert (area / "copy/bad").read_bytes() == data


def test_unreadable_target_file_fails(area: Path) -> None:
    require_root("become somebody else")
    for tree in ("source", "copy"):
        write(area / tree / "file", b"data")
    (area / "copy/file").chmod(0o000)
    for path in (area / "copy", area / "copy/file"):
        os.chown(path, NOBODY, NOBODY)
    run = pcopy("--json", "--checksum", f"{area}/source/", area / "copy", user=NOBODY)
    assert run.returncode == 1, show(run)
    assert f"{area}/copy/file: open: Permission denied".encode() in run.stderr, show(run)


def test_access_times_of_compared_files_are_unchanged(area: Path, on_strict_atime: Path) -> None:
    for side in ("source", "copy"):
        write(on_strict_atime / side / "file", b"data", THEN)
    before = [snapshot(on_strict_atime / side / "file") for side in ("source", "copy")]
    succeed("--checksum", f"{on_strict_atime}/source/", on_strict_atime / "copy")
    assert [snapshot(on_strict_atime / side / "file") for side in ("source", "copy")] == before
