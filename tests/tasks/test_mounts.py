"""Mounts below a root that disappear, or appear, between the start of the job and the task that reaches them."""

from __future__ import annotations

import errno
import os
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from pcopy.fsio.directories import DirectoriesBelowRoot
from pcopy.fsio.identity import IdentityComparison
from pcopy.fsio.mounted import AUTOFS_TYPE, MountRootIdentity
from pcopy.fsio.problem import Problem
from pcopy.tasks.base.job import Failure
from pcopy.tasks.directories.scan_dir import ScanDir
from tests.support.autofs import automounted
from tests.support.files import write
from tests.support.filesystems import mounted
from tests.support.users import require_root
from tests.tasks.one_rank import Hook, copy, root_of, scans


class Bound:
    """A bind mount that a hook removes."""

    def __init__(self, what: Path, where: Path) -> None:
        require_root("mount")
        self._where = where
        subprocess.run(["mount", "--bind", what, where], check=True)
        self._is_there = True

    def unmount(self) -> None:
        if self._is_there:
            subprocess.run(["umount", "--lazy", self._where], check=True)
        self._is_there = False


@pytest.fixture
def other(session_scratch: Path) -> Iterator[Path]:
    with mounted("tmpfs", session_scratch) as point:
        write(point / "inside", b"content")
        yield point


@pytest.fixture
def trees(area: Path) -> tuple[Path, Path]:
    for name in ("source/m", "target/m"):
        (area / name).mkdir(parents=True)
    write(area / "source/m/below", b"not to be copied")
    write(area / "source/z", b"content")
    return area / "source", area / "target"


def at(path: bytes, bound: Bound) -> Hook:
    def before(value: object) -> None:
        if scans(value, path):
            bound.unmount()

    return before


@pytest.mark.parametrize("when", [b"", b"m"])
@pytest.mark.parametrize("same_device", [False, True])
def test_source_directory_unmounted_during_the_job_fails(
    trees: tuple[Path, Path], other: Path, area: Path, when: bytes, same_device: bool
) -> None:
    """It is unmounted either before or after it is found."""
    source, target = trees
    write(area / "same/inside", b"content")
    bound = Bound(area / "same" if same_device else other, source / "m")
    try:
        copied = copy(root_of(source, target), before=at(when, bound))
    finally:
        bound.unmount()
    (failure,) = copied.failures
    assert failure[:3] == (bytes(source / "m"), "open", errno.ESTALE)
    assert "mounted" in failure.message
    assert os.listdir(target / "m") == []
    assert (target / "z").read_bytes() == b"content"
    assert (copied.totals.found, copied.totals.failed) == (3, 1)


@pytest.mark.parametrize("side", ["source", "target"])
def test_mount_deep_in_a_new_subtree_is_expected(area: Path, other: Path, side: str) -> None:
    """The directories above the mount are not copied by one call of the backend, which does not know the mount."""
    source, target = area / "source", area / "target"
    write(source / "a/b/c/m/below", b"not to be copied")
    write(source / "a/z", b"content")
    (target / "a/b/c/m" if side == "target" else target).mkdir(parents=True)
    bound = Bound(other, area / side / "a/b/c/m")
    try:
        copied = copy(root_of(source, target), before=at(b"", bound))
    finally:
        bound.unmount()
    (failure,) = copied.failures
    assert failure[:3] == (bytes(area / side / "a/b/c/m"), "open", errno.ESTALE)
    assert not list((target / "a/b/c/m").glob("*"))
    assert (target / "a/z").read_bytes() == b"content"


def test_nothing_is_written_below_an_unmounted_target(trees: tuple[Path, Path], other: Path) -> None:
    source, target = trees
    bound = Bound(other, target / "m")
    try:
        copied = copy(root_of(source, target), before=at(b"m", bound))
    finally:
        bound.unmount()
    (failure,) = copied.failures
    assert failure[:3] == (bytes(target / "m"), "open", errno.ESTALE)
    assert os.listdir(target / "m") == []
    assert os.listdir(other) == ["inside"]


def test_unmounted_file_in_the_source_fails(trees: tuple[Path, Path], other: Path) -> None:
    source, target = trees
    bound = Bound(other / "inside", source / "z")
    try:
        copied = copy(root_of(source, target), before=at(b"", bound))
    finally:
        bound.unmount()
    assert [failure.path for failure in copied.failures] == [bytes(source / "z")]
    assert not (target / "z").exists()
    assert (target / "m/below").exists()


def test_failed_fstat_of_a_mounted_file_fails_only_that_file(
    trees: tuple[Path, Path], other: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, target = trees
    bound = Bound(other / "inside", source / "z")
    real = os.fstat

    def fstat(descriptor: int) -> os.stat_result:
        if os.readlink(f"/proc/self/fd/{descriptor}") == str(source / "z"):
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return real(descriptor)

    def break_down(value: object) -> None:
        if isinstance(value, ScanDir):
            monkeypatch.setattr(os, "fstat", fstat)

    try:
        copied = copy(root_of(source, target), before=break_down)
    finally:
        bound.unmount()
    assert copied.failures == [Failure(bytes(source / "z"), "fstat", errno.EIO, os.strerror(errno.EIO))]
    assert (target / "m/below").exists()


def test_contents_of_lasting_mounts_are_copied(trees: tuple[Path, Path], other: Path) -> None:
    source, target = trees
    bounds = Bound(other, source / "m"), Bound(other / "inside", source / "z")
    try:
        copied = copy(root_of(source, target))
    finally:
        for bound in bounds:
            bound.unmount()
    assert copied.failures == []
    assert os.listdir(target / "m") == ["inside"]
    assert (target / "z").read_bytes() == b"content"


@pytest.mark.parametrize("when", [b"", b"m"])
@pytest.mark.parametrize("side", ["source", "target"])
def test_mount_made_during_the_job_is_not_entered(
    trees: tuple[Path, Path], other: Path, when: bytes, side: str
) -> None:
    """Other hosts do not have it, and a later run may not have it either."""
    source, target = trees
    (target / "m/kept").touch()
    with ExitStack() as stack:

        def before(value: object) -> None:
            if scans(value, when):
                stack.callback(Bound(other, source.parent / side / "m").unmount)

        copied = copy(root_of(source, target), before=before)
    (failure,) = copied.failures
    assert failure[:3] == (bytes(source.parent / side / "m"), "open", errno.ESTALE)
    assert "mounted after the job began" in failure.message
    assert os.listdir(target / "m") == ["kept"]
    assert os.listdir(other) == ["inside"]
    assert (target / "z").read_bytes() == b"content"


@pytest.fixture
def entered(trees: tuple[Path, Path], other: Path) -> Iterator[Path]:
    """A directory that an automounter mounts in the source when it is entered."""
    source, _ = trees
    with automounted(source / "m", other, ["auto"]):
        yield source / "m/auto"


def test_automounted_directory_is_copied(trees: tuple[Path, Path], entered: Path) -> None:
    source, target = trees
    copied = copy(root_of(source, target))
    assert copied.failures == []
    assert (target / "m/auto/inside").read_bytes() == b"content"


def test_automount_is_refused_on_several_hosts(trees: tuple[Path, Path], entered: Path) -> None:
    base = os.open(trees[0], os.O_RDONLY)
    autofs = {b"m": MountRootIdentity(AUTOFS_TYPE, 0, 0, b"")}
    sides = [
        DirectoriesBelowRoot(base, 0, on_source=True, expected_mounts=autofs, one_host=one_host)
        for one_host in (True, False)
    ]
    try:
        assert os.listdir(sides[0].open(b"m/auto")) == ["inside"]
        with pytest.raises(Problem, match="a file system of its own"):
            sides[1].open(b"m/auto")
    finally:
        for side in sides:
            side.close()
        os.close(base)


def test_file_systems_at_one_path_on_two_hosts_are_distinguished(
    trees: tuple[Path, Path], session_scratch: Path
) -> None:
    """Their roots have the same inode number, and so do the items in them."""
    base = os.open(trees[0], os.O_RDONLY)
    seen = []
    try:
        for _ in range(2):
            with mounted("tmpfs", session_scratch) as twin:
                (twin / "inside").mkdir()
                bound = Bound(twin, trees[0] / "m")
                host = DirectoriesBelowRoot(base, 0, on_source=True)
                seen.append(host.identity_of_directory(b"m/inside"))
                host.close()
                bound.unmount()
    finally:
        os.close(base)
    one, other = seen
    assert one.inode == other.inode
    assert one.compare_with_identity(other) is IdentityComparison.OTHER
