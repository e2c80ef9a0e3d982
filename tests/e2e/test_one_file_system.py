"""``-x``: mount points become empty directories, as with cp and rsync; files are always copied."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support.attributes import has_xattrs
from tests.support.command import pcopy, show, succeed, summary
from tests.support.files import write
from tests.support.filesystems import Place, mounted
from tests.support.oracle import differences
from tests.support.users import require_root

MIB = 1 << 20


@pytest.fixture
def source(area: Path, session_scratch: Path) -> Iterator[Path]:
    """Yield a tree with another file system mounted at ``mount``."""
    require_root("mount file systems")
    source = area / "source"
    write(source / "file", b"content")
    write(source / "a/inner", b"inner")
    (source / "mount").mkdir()
    with mounted("tmpfs", session_scratch, size=64 * MIB) as other:
        write(other / "left-out", b"elsewhere")
        write(other / "sub/left-out", b"elsewhere")
        other.chmod(0o1751)
        os.chown(other, 1, 2)
        if has_xattrs(bytes(other)):
            os.setxattr(other, "user.of", b"the mounted root")
        os.utime(other, ns=(1, 1_234_567_890_123_456_789))
        subprocess.run(["mount", "--bind", other, source / "mount"], check=True)
        try:
            yield source
        finally:
            subprocess.run(["umount", source / "mount"], check=True)


@pytest.mark.parametrize("ranks", [1, 3])
def test_mount_points_become_empty_directories(area: Path, source: Path, ranks: int) -> None:
    subprocess.run(["rsync", "-aHAXx", "--modify-window=-1", f"{source}/", area / "rsync"], check=True)
    subprocess.run(["cp", "-ax", source, area / "cp"], check=True)
    reported = summary(succeed("--json", "-x", source, area / "copy", ranks=ranks))
    assert differences(area / "rsync", area / "copy") == []
    assert differences(area / "cp", area / "copy") == []
    assert os.listdir(area / "copy/mount") == []
    assert (area / "copy/mount").stat().st_mode & 0o7777 == 0o1751
    assert (reported["directories"], reported["files"], reported["skipped"], reported["found"]) == (3, 2, 0, 5)


def test_mounted_file_systems_are_copied_without_the_option(area: Path, source: Path) -> None:
    succeed(source, area / "copy", ranks=2)
    assert differences(source, area / "copy") == []


def test_mount_point_given_as_source_is_copied(area: Path, source: Path) -> None:
    """The file system of each SRC counts, not that of its parent directory."""
    (area / "into").mkdir()
    succeed("-x", source / "mount", source / "a", area / "into", ranks=2)
    assert differences(source / "mount", area / "into/mount") == []
    assert differences(source / "a", area / "into/a") == []
    succeed("-x", f"{source}/mount/", area / "copy")
    assert differences(source / "mount", area / "copy") == []


def test_existing_directory_at_a_mount_point_keeps_its_contents(area: Path, source: Path) -> None:
    """It gets the attributes of the mounted directory."""
    write(area / "copy/mount/old", b"old")
    succeed("-x", f"{source}/", area / "copy")
    assert (area / "copy/mount/old").read_bytes() == b"old"
    assert (area / "copy/mount").stat().st_mode & 0o7777 == 0o1751
    shutil.rmtree(area / "copy/mount")
    write(area / "copy/mount", b"a file in the way")
    succeed("-x", f"{source}/", area / "copy")
    assert os.listdir(area / "copy/mount") == []


def test_followed_link_to_another_file_system_is_a_mount_point(area: Path, source: Path) -> None:
    """A followed link to a file is copied whatever its file system."""
    (source / "to-directory").symlink_to("mount/sub")
    (source / "to-file").symlink_to("mount/left-out")
    (source / "to-own").symlink_to("a")
    subprocess.run(["rsync", "-aHAXxL", "--modify-window=-1", f"{source}/", area / "rsync"], check=True)
    succeed("-xL", source, area / "copy", ranks=3)
    assert differences(area / "rsync", area / "copy") == []
    assert os.listdir(area / "copy/to-directory") == []
    assert (area / "copy/to-file").read_bytes() == b"elsewhere"
    assert (area / "copy/to-own/inner").read_bytes() == b"inner"


def test_mount_point_in_a_large_directory_becomes_empty(area: Path, source: Path) -> None:
    for number in range(2500):
        (source / str(number)).write_bytes(b"")
    succeed("-x", source, area / "copy", ranks=3)
    assert os.listdir(area / "copy/mount") == []
    assert len(os.listdir(area / "copy")) == 2503


def test_file_that_is_a_mount_point_is_copied(area: Path, source: Path) -> None:
    write(area / "elsewhere", b"")
    subprocess.run(["mount", "--bind", source / "mount/left-out", source / "file"], check=True)
    try:
        succeed("-x", source, area / "copy")
        assert (area / "copy/file").read_bytes() == b"elsewhere"
    finally:
        subprocess.run(["umount", source / "file"], check=True)


def test_unreadable_mounted_directory_is_no_failure(area: Path, source: Path) -> None:
    """Its contents are not copied, so they need not be readable."""
    (source / "mount").chmod(0o711)
    for name in os.listxattr(source / "mount"):  # other users may not read these either
        os.removexattr(source / "mount", name)
    (area / "copy").mkdir()
    os.chown(area / "copy", 65534, 65534)
    run = pcopy("-x", source, area / "copy", user=65534)
    assert run.returncode == 0, show(run)
    assert (area / "copy/source/mount").stat().st_mode & 0o777 == 0o711


def test_btrfs_subvolumes_count_as_file_systems(area: Path, on: Place) -> None:
    place = on("btrfs")
    if not shutil.which("btrfs"):
        pytest.skip("there is no btrfs program here")
    write(place / "source/file", b"content")
    subprocess.run(["btrfs", "subvolume", "create", place / "source/volume"], check=True, capture_output=True)
    write(place / "source/volume/left-out", b"elsewhere")
    subprocess.run(["cp", "-ax", place / "source", area / "cp"], check=True)
    succeed("-x", place / "source", area / "copy")
    assert differences(area / "cp", area / "copy") == []
    assert os.listdir(area / "copy/volume") == []
    subprocess.run(["btrfs", "subvolume", "delete", place / "source/volume"], check=True, capture_output=True)


@contextmanager
def bind_mounted(directory: Path, point: Path) -> Iterator[Path]:
    """Mount ``directory`` at ``point`` as well."""
    point.mkdir()
    subprocess.run(["mount", "--bind", directory, point], check=True)
    try:
        yield point
    finally:
        subprocess.run(["umount", point], check=True)


@pytest.mark.parametrize("options", [(), ("--mirror",), ("--dry-run",)])
def test_destination_mounted_inside_the_source_is_not_copied(
    area: Path, source: Path, options: tuple[str, ...]
) -> None:
    """As ``/mnt/new`` in ``/``: the copy stops at DST. A bind mount of SRC's own file system is copied."""
    clone = source / "mount"
    with bind_mounted(source / "a", source / "again"):
        for _ in range(2):
            reported = summary(succeed("--json", "-x", *options, f"{source}/", clone, ranks=3))
            assert reported["found"] == reported["copied"] + reported["skipped"] == 7
        if "--dry-run" in options:
            assert sorted(os.listdir(clone)) == ["left-out", "sub"]
            return
        line = ["rsync", "-aHAXxni", "--checksum", "--modify-window=-1", "--exclude=/mount", f"{source}/", f"{clone}/"]
        assert subprocess.run(line, check=True, capture_output=True).stdout == b""
    assert os.listdir(clone / "mount") == []
    old = [] if "--mirror" in options else ["left-out", "sub"]
    assert sorted(os.listdir(clone)) == sorted(["a", "again", "file", "mount", *old])


def test_destination_inside_the_source_is_refused_on_one_file_system(area: Path, source: Path) -> None:
    """Also without ``-x`` or with links followed."""
    advice = "; name a DST outside, or write -x (without -L), since DST is on another file system"
    for options, reported in (((), advice), (("-xL",), advice)):
        run = pcopy(*options, f"{source}/", source / "mount")
        assert run.returncode == 2 and reported in run.stderr.decode(), show(run)
    with bind_mounted(source / "a", source / "again"), bind_mounted(source / "a", source / "mount/source"):
        for words in ((f"{source}/", source / "again"), (source, source / "mount"), (source, source / "a/new")):
            run = pcopy("-x", *words)
            assert run.returncode == 2 and run.stderr.endswith(b"name a DST outside\n"), show(run)
    assert os.listdir(source / "a") == ["inner"]
