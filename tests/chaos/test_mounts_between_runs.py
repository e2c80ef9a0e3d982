"""File systems that are mounted, unmounted or replaced between two runs of a job, or while it runs."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.chaos.unfinished import INCOMPLETE, REFUSED, Stop, check_equal
from tests.support import loops
from tests.support.command import Argument, Completed, pcopy, show, succeed
from tests.support.faults import slowed
from tests.support.files import write
from tests.support.filesystems import MAKE, make_image, mounted, unmount
from tests.support.processes import background, wait_until
from tests.support.users import require_root

XFS_BYTES = 300 << 20


class Loop:
    """An image of XFS at ``point``, attached to another loop device each time."""

    def __init__(self, image: Path, point: Path) -> None:
        self._image, self.point = image, point
        make_image(MAKE["xfs"], image, XFS_BYTES)
        self._devices: list[loops.Attached] = []

    def attach(self) -> None:
        self._devices.append(loops.attach(self._image))

    def mount(self) -> int:
        """Mount the device that was attached last; return its device number."""
        subprocess.run(["mount", "-o", "nouuid", self._devices[-1].path, self.point], check=True)
        return self.point.stat().st_dev

    def close(self) -> None:
        if os.path.ismount(self.point):
            unmount(self.point)
        for device in self._devices:
            device.close()


@pytest.fixture
def xfs(area: Path) -> Iterator[Loop]:
    require_root("mount a file system")
    (area / "xfs").mkdir()
    loop = Loop(area / "xfs.image", area / "xfs")
    try:
        loop.attach()
        yield loop
    finally:
        loop.close()


@pytest.mark.parametrize("side", ["source", "target"])
def test_resume_accepts_xfs_under_another_device_number(
    area: Path, env: dict[str, str], stop: Stop, xfs: Loop, side: str
) -> None:
    """The fsid depends on the device number; the UUID does not."""
    first = xfs.mount()
    source = (xfs.point if side == "source" else area) / "tree"
    copy = (xfs.point if side == "target" else area) / "copy"
    for number in range(300):
        write(source / str(number % 10) / str(number), b"content")
    name = stop(source, copy)
    unmount(xfs.point)
    xfs.attach()
    assert xfs.mount() != first
    succeed("--resume", name, env=env, ranks=2)
    check_equal(source, copy)


@pytest.fixture
def disk(area: Path, session_scratch: Path) -> Iterator[Path]:
    """A tmpfs to be mounted below the area; all mounts below the area are removed at the end."""
    with mounted("tmpfs", session_scratch) as point:
        try:
            yield point
        finally:
            for line in reversed(Path("/proc/self/mounts").read_text().splitlines()):
                if line.split()[1].startswith(f"{area}/"):
                    unmount(Path(line.split()[1]))


def bind(what: Path, where: Path) -> None:
    subprocess.run(["mount", "--bind", what, where], check=True)


def refused(env: dict[str, str], path: Path, *words: Argument) -> Completed:
    run = pcopy(*words, env=env)
    assert run.returncode == REFUSED, show(run)
    assert b"%b: " % bytes(path) in run.stderr, show(run)
    return run


def grow(tree: Path, files: int = 300) -> Path:
    for number in range(files):
        write(tree / str(number % 10) / str(number), b"content")
    return tree


def test_resume_refuses_if_a_mount_in_the_source_is_missing(
    area: Path, env: dict[str, str], stop: Stop, disk: Path
) -> None:
    """Otherwise the empty directory below the mount point would be copied."""
    source, copy = grow(area / "tree"), area / "copy"
    grow(disk / "data")
    points = [source / str(number) / "mount" for number in range(10)]
    for point in points:
        point.mkdir()
        bind(disk / "data", point)
    name = stop(source, copy)
    for point in points[1:]:
        unmount(point)
    reported = refused(env, points[1], "--resume", name).stderr.decode()
    here, there = points[1].stat().st_ino, (disk / "data").stat().st_ino
    assert re.search(rf"nothing is mounted \(.* inode {here}\); then: .* inode {there};", reported), reported
    bind(area, points[1])
    refused(env, points[1], "--resume", name)
    unmount(points[1])
    for point in points[1:]:
        bind(disk / "data", point)
    succeed("--resume", name, env=env)
    check_equal(source, copy)
    assert len(os.listdir(copy / "7/mount")) == 10


def test_resume_refuses_if_a_mount_in_the_destination_is_missing(
    area: Path, env: dict[str, str], stop: Stop, disk: Path
) -> None:
    """Nothing is written to the directory below the mount point, and temporary files on the mount are not forgotten."""
    source, copy = grow(area / "tree"), area / "copy"
    point = copy / "3"
    point.mkdir(parents=True)
    bind(disk, point)
    name = stop("-T", source, copy)
    unmount(point)
    refused(env, point, "--resume", name)
    reported = refused(env, point, "--discard", name).stderr
    assert b"mount it" in reported
    assert os.listdir(point) == []
    bind(disk, point)
    succeed("--resume", name, env=env)
    check_equal(source, copy)
    assert len(os.listdir(disk)) == 30


@pytest.mark.parametrize("side", ["source", "copy"])
def test_resume_refuses_if_a_mount_was_added(
    area: Path, env: dict[str, str], stop: Stop, disk: Path, side: str
) -> None:
    """The mount hides copied items, or items to be copied."""
    source, copy = grow(area / "source"), area / "copy"
    (copy / "3").mkdir(parents=True)
    name = stop("-T", source, copy)
    bind(disk, area / side / "3")
    reported = refused(env, area / side / "3", "--resume", name).stderr
    assert b"then: nothing was mounted there" in reported
    unmount(area / side / "3")
    succeed("--resume", name, env=env)
    check_equal(source, copy)
    assert os.listdir(disk) == []


@pytest.mark.parametrize("side", ["source", "copy"])
def test_mount_added_during_the_job_fails_until_it_is_unmounted(
    area: Path, env: dict[str, str], disk: Path, side: str
) -> None:
    """Whether a directory was found before or after the mount."""
    source, copy = area / "source", area / "copy"
    for number in range(30):
        write(source / str(number) / "inner/file", b"content")
        (copy / str(number) / "inner").mkdir(parents=True)
    points = sorted((area / side).glob("*/inner"))
    with background("-T", source, copy, env=env, wrap=slowed("mkdirat", 60)) as run:
        assert wait_until(lambda: list((area / "state").glob("pcopy/*/job")))
        for point in points:
            bind(disk, point)
        out, err = run.process.communicate(timeout=60)
    assert run.process.returncode == INCOMPLETE, (out, err)
    assert b"mounted after the job began" in err, (out, err)
    assert os.listdir(disk) == []
    refused(env, points[0], "--resume")
    for point in points:
        unmount(point)
    succeed("--resume", env=env)
    check_equal(source, copy)


@pytest.mark.parametrize("ranks", [2, 3, 4])
def test_rank_syncs_a_destination_mount_that_it_has_not_written_to(
    area: Path, env: dict[str, str], stop: Stop, disk: Path, ranks: int
) -> None:
    """In the second run, other ranks than the one that syncs the mount may finish its directories."""
    source, copy = grow(area / "tree"), area / "copy"
    (copy / "mounted").mkdir(parents=True)
    for number in range(20):
        write(source / "mounted" / str(number) / "file", b"content")
    bind(disk, copy / "mounted")
    name = stop("-T", source, copy, until=lambda: len([*disk.rglob("file")]) == 20)
    succeed("--resume", name, env=env, ranks=ranks)
    check_equal(source, copy)


@pytest.mark.parametrize("ranks", [2, 4])
@pytest.mark.parametrize("chunks", [(), ("--chunk-size", "1M")])
def test_large_files_are_copied_to_a_mount_in_the_destination(
    area: Path, env: dict[str, str], disk: Path, ranks: int, chunks: tuple[str, ...]
) -> None:
    """Chunks go to ranks that have not used the mount yet."""
    source, copy = area / "tree", area / "copy"
    (copy / "mounted").mkdir(parents=True)
    for number in range(24):
        write(source / "mounted" / str(number), b"c" * (5 << 20))
    bind(disk, copy / "mounted")
    for _ in range(3):
        succeed("-T", *chunks, source, copy, env=env, ranks=ranks)
    check_equal(source, copy)
