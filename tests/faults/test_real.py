"""Real faults: limits, full and broken file systems, immutable files; nothing is injected here."""

from __future__ import annotations

import errno
import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.faults.worlds import partly_written
from tests.support.command import pcopy, show, summary
from tests.support.files import noise
from tests.support.filesystems import mounted
from tests.support.oracle import differences
from tests.support.users import NOBODY, require_root
from tests.support.walk import temporaries

MIB = 1 << 20


@pytest.fixture
def source(area: Path) -> Path:
    """Small files in two directories, and a large file."""
    place = area / "source"
    for name in ("one/a", "one/victim", "one/z", "two/b"):
        (place / name).parent.mkdir(parents=True, exist_ok=True)
        (place / name).write_bytes(name.encode() * 100)
    (place / "two/large").write_bytes(noise(5 * MIB))
    return place


def reported(errors: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in errors.read_text().splitlines()]


def check_reported_once(errors: Path, number: int, *operations: str) -> None:
    (line,) = reported(errors)
    assert line["errno"] == number and line["operation"] in operations, line


def whole_or_absent(source: Path, copy: Path) -> None:
    assert temporaries(os.fsencode(copy)) == []
    assert partly_written(source, copy) == []


def limited(*limits: str) -> list[str]:
    if not shutil.which("prlimit"):
        pytest.skip("there is no prlimit here")
    return ["prlimit", *limits]


@pytest.mark.parametrize("ranks", [1, 2])
def test_file_size_limit_fails_one_file_only(area: Path, source: Path, ranks: int) -> None:
    """Python ignores SIGXFSZ, so that the write fails with EFBIG: one file fails, not the job."""
    chunks = ("--chunk-size", "1M", "--block-size", "1M")
    run = pcopy(
        "--json", "--errors", area / "e", *chunks, source, area / "copy", ranks=ranks, wrap=limited(f"--fsize={MIB}")
    )
    assert run.returncode == 1, show(run)
    check_reported_once(area / "e", errno.EFBIG, "write", "truncate")
    assert summary(run)["failed"] == 1
    assert not (area / "copy/two/large").exists()
    whole_or_absent(source, area / "copy")


@pytest.mark.parametrize("number", [12, 16, 20, 24])
def test_few_file_descriptors_suffice_or_the_error_is_reported(area: Path, number: int) -> None:
    """Either the descriptors suffice, or files that cannot be opened are reported; there is never a traceback or
    silence."""
    deep = area / "source"
    for level in range(40):
        deep = deep / f"level-{level}"
    deep.mkdir(parents=True)
    (deep / "file").write_bytes(b"deep")
    run = pcopy(
        "--json", "--errors", area / "e", area / "source", area / "copy", ranks=1, wrap=limited(f"--nofile={number}")
    )
    assert b"Traceback" not in run.stderr, show(run)
    assert run.returncode in (0, 1, 2), show(run)
    if run.returncode == 0:
        assert differences(area / "source", area / "copy") == []
    if run.returncode == 1:
        assert {line["errno"] for line in reported(area / "e")} == {errno.EMFILE}
        assert summary(run)["failed"] == len(reported(area / "e"))


@contextmanager
def attribute(path: Path, letter: str) -> Iterator[None]:
    """Set an attribute of a file with ``chattr`` during the context."""
    if not shutil.which("chattr"):
        pytest.skip("there is no chattr here")
    done = subprocess.run(["chattr", f"+{letter}", path], check=False, capture_output=True, text=True)
    if done.returncode:
        pytest.skip(f"chattr: {done.stderr}")
    try:
        yield
    finally:
        subprocess.run(["chattr", f"-{letter}", path], check=True)


@pytest.fixture
def ext4(area: Path) -> Iterator[Path]:
    require_root("mount ext4")
    with mounted("ext4", area, size=64 * MIB) as point:
        yield point


@pytest.mark.parametrize("letter", ["i", "a"])
def test_immutable_file_fails_and_keeps_its_content(area: Path, source: Path, ext4: Path, letter: str) -> None:
    (ext4 / "copy/one").mkdir(parents=True)
    (ext4 / "copy/one/victim").write_bytes(b"old content")
    with attribute(ext4 / "copy/one/victim", letter):
        run = pcopy("--json", "--errors", area / "e", f"{source}/", ext4 / "copy", ranks=1)
        assert run.returncode == 1, show(run)
        check_reported_once(area / "e", errno.EPERM, "rename")
        assert (ext4 / "copy/one/victim").read_bytes() == b"old content"
        whole_or_absent(source, ext4 / "copy")
        assert [line for line in differences(source, ext4 / "copy") if "victim" not in line] == []


@pytest.mark.parametrize("letter", ["i", "a"])
def test_immutable_directory_fails_its_own_items_only(area: Path, source: Path, ext4: Path, letter: str) -> None:
    """With +i nothing can be created in the directory; with +a created files cannot be renamed and the metadata of the
    directory cannot be set."""
    (ext4 / "copy/one").mkdir(parents=True)
    with attribute(ext4 / "copy/one", letter):
        run = pcopy("--json", "--errors", area / "e", f"{source}/", ext4 / "copy", ranks=1)
        assert run.returncode == 1, show(run)
        lines = reported(area / "e")
        assert {line["errno"] for line in lines} == {errno.EPERM}, lines
        assert len(lines) == summary(run)["failed"] == (4 if letter == "i" else 1), lines
        assert differences(source / "two", ext4 / "copy/two") == []
        whole_or_absent(source, ext4 / "copy")


@pytest.mark.parametrize("ranks", [1, 2])
def test_read_only_target_stops_the_job(area: Path, source: Path, ranks: int) -> None:
    """A read-only target is like a full one: the job stops instead of failing item by item."""
    require_root("mount")
    for number in range(20):  # a rank stops the job after two such errors
        (source / str(number)).mkdir()
    with mounted("tmpfs", area) as point:
        (point / "copy").mkdir()
        subprocess.run(["mount", "-o", "remount,ro", point], check=True)
        run = pcopy("--errors", area / "e", f"{source}/", point / "copy", ranks=ranks)
        assert run.returncode == 75, show(run)
        assert {line["errno"] for line in reported(area / "e")} == {errno.EROFS}
        assert list((point / "copy").iterdir()) == []


def test_target_without_free_inodes_stops_the_job(area: Path) -> None:
    require_root("mount")
    for number in range(30):
        (area / f"source/{number}").mkdir(parents=True)
    with mounted("tmpfs", area, options="nr_inodes=20") as full:
        run = pcopy("--force", "--errors", area / "e", area / "source", full / "copy", ranks=1)
        assert run.returncode == 75, show(run)
        lines = reported(area / "e")
        assert {(line["operation"], line["errno"]) for line in lines} == {("mkdir", errno.ENOSPC)}, lines


@pytest.mark.parametrize("large", [False, True])
def test_exceeded_quota_fails_items_and_does_not_stop_the_job(area: Path, large: bool) -> None:
    """EDQUOT concerns one user; it fails items and does not stop the job."""
    require_root("mount")
    if not shutil.which("mkfs.ext4"):
        pytest.skip("there is no mkfs.ext4 here")
    (area / "source").mkdir()
    (area / "source").chmod(0o755)
    for number in range(1 if large else 40):
        (area / f"source/{number}").write_bytes(noise(8 * MIB if large else 200_000))
    with quota(area, 4 * MIB) as point:
        run = pcopy("--json", "--errors", area / "e", area / "source", point / "copy", ranks=1, user=NOBODY)
        assert run.returncode == 1, show(run)
        lines = reported(area / "e")
        assert {line["errno"] for line in lines} == {errno.EDQUOT}, lines
        assert (
            summary(run)["failed"]
            == len(lines)
            == sum(not (point / "copy" / name).exists() for name in os.listdir(area / "source"))
        )
        whole_or_absent(area / "source", point / "copy")


@contextmanager
def quota(area: Path, size: int) -> Iterator[Path]:
    """Yield a tmpfs on which an ordinary user has ``size`` bytes; skip if the kernel lacks quotas."""
    point = area / "quota"
    point.mkdir()
    options = f"quota,usrquota_block_hardlimit={size},mode=1777"
    done = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", options, "pcopy-test", point], check=False, capture_output=True, text=True
    )
    if done.returncode:
        pytest.skip(f"no tmpfs with a quota here: {done.stderr}")
    (area / "e").touch()
    (area / "e").chmod(0o666)
    try:
        yield point
    finally:
        subprocess.run(["umount", point], check=True)


def test_failed_writeback_is_reported_by_the_final_sync(area: Path) -> None:
    """Writes succeed, writeback fails: only the last sync reports it, and then every file is uncertain."""
    require_root("mount")
    (area / "source").mkdir()
    for number in range(8):
        (area / f"source/{number}").write_bytes(noise(3 * MIB))
    with mounted("tmpfs", area, size=16 * MIB) as disk, mounted("ext4", disk, size=64 * MIB) as point:
        run = pcopy("--json", "--errors", area / "e", area / "source", point / "copy", ranks=1)
        assert run.returncode == 1, show(run)
        lines = reported(area / "e")
        assert [line["operation"] for line in lines if line["operation"] == "syncfs"], lines
        assert summary(run)["failed"] == len(lines) - 1
        assert b"syncfs" in run.stderr


@contextmanager
def bindfs(area: Path, *options: str) -> Iterator[tuple[Path, Path]]:
    """Yield an empty directory, and the same directory through FUSE."""
    require_root("mount FUSE")
    if not shutil.which("bindfs"):
        pytest.skip("there is no bindfs here")
    lower, point = area / "lower", area / "point"
    lower.mkdir()
    point.mkdir()
    done = subprocess.run(["bindfs", *options, lower, point], check=False, capture_output=True, text=True)
    if done.returncode:
        pytest.skip(f"bindfs: {done.stderr}")
    try:
        yield lower, point
    finally:
        subprocess.run(["umount", point], check=True)


def test_refused_modes_and_owners_on_fuse_are_reported(area: Path, source: Path) -> None:
    """A FUSE file system may refuse any call: here no mode and no owner can be set."""
    with bindfs(area, "--chmod-deny", "--chown-deny") as (lower, point):
        run = pcopy("--json", "--errors", area / "e", source, point / "copy", ranks=1)
        assert run.returncode == 1, show(run)
        lines = reported(area / "e")
        assert {line["errno"] for line in lines} == {errno.EPERM}, lines
        assert {line["operation"] for line in lines} <= {"chmod", "chown"}, lines
        assert summary(run)["failed"] == len(lines)
        whole_or_absent(source, lower / "copy")
        assert (lower / "copy/one/victim").read_bytes() == (source / "one/victim").read_bytes()


def test_paths_too_long_for_the_target_fail_alone(area: Path, source: Path) -> None:
    """Some file systems join paths, so that PATH_MAX limits them: only deeper items fail."""
    at = os.open(source / "one", os.O_RDONLY)
    for level in range(24):
        name = str(level % 10) * 200
        os.mkdir(name, dir_fd=at)
        inner = os.open(name, os.O_RDONLY, dir_fd=at)
        os.close(at)
        at = inner
    os.close(os.open("deep", os.O_CREAT | os.O_WRONLY, dir_fd=at))
    os.close(at)
    with bindfs(area) as (_, point):
        run = pcopy("--json", "--errors", area / "e", source, point / "copy", ranks=1)
        assert run.returncode == 1, show(run)
        check_reported_once(area / "e", errno.ENAMETOOLONG, "mkdir", "open")
        assert differences(source / "two", point / "copy/two") == []
        assert (point / "copy/one/victim").read_bytes() == (source / "one/victim").read_bytes()
