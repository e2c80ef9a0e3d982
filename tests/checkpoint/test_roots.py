"""A job goes on in the directories that it began with, and in no others."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from pcopy.errors import RequestRefused
from pcopy.jobs.job_file import JobRoot, TargetIdentity
from pcopy.jobs.roots import (
    DestinationRemovedError,
    check_target_directories,
    checked_roots_of_job,
    root_with_target_identity,
    roots_with_file_systems,
)
from tests.checkpoint.made import job_of, root_of
from tests.support import loops
from tests.support.filesystems import MAKE, Place, make_image, mounted
from tests.support.users import require_root


@pytest.fixture
def trees(area: Path) -> tuple[Path, Path]:
    for name in ("source", "target"):
        (area / name).mkdir()
    return area / "source", area / "target"


def test_identities_of_roots_agree_with_stat(on: Place) -> None:
    paths = [on(kind) for kind in ("ext4", "xfs", "tmpfs")]
    for source in paths:
        for target in paths:
            root = root_of(source, target)
            assert roots_with_file_systems((root.as_root,)) == (root,)
            assert checked_roots_of_job(job_of(root)) == (root,)


def test_device_numbers_may_change(trees: tuple[Path, Path]) -> None:
    root = root_of(*trees)
    then = root._replace(source_id=(99, root.source_id[1]), target_id=(98, root.target_id[1]))
    assert checked_roots_of_job(job_of(then)) == (root,)


@pytest.mark.parametrize("side", ["source", "target"])
def test_replaced_root_directory_is_refused(side: str, trees: tuple[Path, Path]) -> None:
    job = job_of(root_of(*trees))
    path = trees[side == "target"]
    path.rename(path.with_name("moved"))
    with pytest.raises(RequestRefused, match=f"{path}: .*cannot be opened: No such file"):
        checked_roots_of_job(job)
    path.mkdir()
    with pytest.raises(
        RequestRefused, match=rf"{path}: not the directory that job {job.name} began with: its inode is \d+"
    ):
        checked_roots_of_job(job)
    path.rmdir()
    path.symlink_to("moved")
    with pytest.raises(RequestRefused, match=f"{path}: "):
        checked_roots_of_job(job)
    path.unlink()
    path.with_name("moved").rename(path)
    checked_roots_of_job(job)


def test_another_type_of_file_system_is_refused(trees: tuple[Path, Path], on: Place) -> None:
    root = root_of(*trees)
    job, other = job_of(root), on("tmpfs" if root.target_place[0] == 0xEF53 else "ext4")
    subprocess.run(["mount", "--bind", other, trees[1]], check=True)
    try:
        with pytest.raises(RequestRefused, match=rf"{trees[1]}: .*type of its file system is 0x\w+, was 0x\w+; .*fsid"):
            checked_roots_of_job(job)
    finally:
        subprocess.run(["umount", trees[1]], check=True)
    checked_roots_of_job(job)


def test_another_file_system_of_the_same_type_is_refused(session_scratch: Path) -> None:
    with mounted("ext4", session_scratch, 64 << 20) as first, mounted("ext4", session_scratch, 64 << 20) as second:
        job = job_of(root_of(first, first))
        assert os.stat(first).st_ino == os.stat(second).st_ino
        subprocess.run(["mount", "--bind", second, first], check=True)
        try:
            with pytest.raises(
                RequestRefused, match=rf"{first}: .*began with: its file system \(fsid\) is 0x"
            ) as caught:
                checked_roots_of_job(job)
            assert "type" not in str(caught.value)
        finally:
            subprocess.run(["umount", first], check=True)


def test_remounted_file_system_is_accepted(session_scratch: Path, area: Path) -> None:
    require_root("mount ext4")
    image = session_scratch / "again.image"
    try:
        make_image(MAKE["ext4"], image, 64 << 20)
        with loops.attached(image) as disk:
            mounting: list[str | Path] = ["mount", disk, area]
            subprocess.run(mounting, check=True)
            job = job_of(root_of(area, area))
            subprocess.run(["umount", area], check=True)
            with pytest.raises(RequestRefused):
                checked_roots_of_job(job)
            subprocess.run(mounting, check=True)
            try:
                checked_roots_of_job(job)
            finally:
                subprocess.run(["umount", area], check=True)
    finally:
        image.unlink(missing_ok=True)


def test_root_replaced_before_the_job_began_is_refused(trees: tuple[Path, Path]) -> None:
    root = root_of(*trees)
    with pytest.raises(RequestRefused, match="was replaced by another"):
        roots_with_file_systems((root._replace(target_id=root.source_id).as_root,))


def made_in(trees: tuple[Path, Path]) -> tuple[JobRoot, Path]:
    """A root whose directory the job makes, and the path of that."""
    return root_of(*trees)._replace(name=b"copy"), trees[1] / "copy"


def test_identity_of_created_target_is_recorded_once_it_exists(trees: tuple[Path, Path]) -> None:
    root, copy = made_in(trees)
    assert root_with_target_identity(root) == root
    copy.symlink_to(trees[0])
    assert root_with_target_identity(root) == root, "a link gives way"
    copy.unlink()
    copy.mkdir()
    made = root_with_target_identity(root)
    born = int(subprocess.run(["stat", "-c", "%W", copy], check=True, capture_output=True).stdout)
    inode, f_type, fsid, birth = made.made
    assert (inode, (f_type, fsid), birth // 10**9) == (copy.stat().st_ino, root.target_place, born)
    assert root_with_target_identity(made) is made
    assert checked_roots_of_job(job_of(made)) == (made,)
    for other in (root._replace(name=b""), root._replace(item=b"item")):
        assert root_with_target_identity(other) == other


@pytest.mark.parametrize("field", range(4))
def test_directory_other_than_the_created_target_is_refused(field: int, trees: tuple[Path, Path]) -> None:
    root, copy = made_in(trees)
    copy.mkdir()
    root = root_with_target_identity(root)
    values = list(root.made)
    values[field] += 1
    if field == 3 and not root.made.birth:
        pytest.skip("no file system here tells when a directory was made")
    other = root._replace(made=TargetIdentity(*values))
    with pytest.raises(RequestRefused, match=f"{copy}: not the directory that job .* copies to: it is another one; "):
        checked_roots_of_job(job_of(other))
    unknown = root._replace(made=root.made._replace(birth=0))
    assert checked_roots_of_job(job_of(unknown)) == (unknown,), "an older kernel, or another host, does not know"


def test_removed_destination_is_distinguished_from_unmounted_one(
    trees: tuple[Path, Path], session_scratch: Path
) -> None:
    gone = root_of(*trees)
    trees[1].rmdir()
    for _ in range(2):
        with pytest.raises(DestinationRemovedError, match=f"{trees[1]}: is gone, or another directory is in its place"):
            check_target_directories(job_of(gone))
        trees[1].mkdir(exist_ok=True)
    with mounted("tmpfs", session_scratch) as point:
        (point / "target").mkdir()
        away = root_of(trees[0], point / "target")
        check_target_directories(job_of(away))
    with pytest.raises(RequestRefused, match="does not seem to be mounted") as caught:
        check_target_directories(job_of(away))
    assert not isinstance(caught.value, DestinationRemovedError)
