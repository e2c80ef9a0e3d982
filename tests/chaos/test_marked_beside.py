"""``--inplace`` on a file system without extended attributes: a sidecar file marks a half-written file."""

from __future__ import annotations

import os
import re
import shutil
import stat
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from pcopy.fsio import incomplete_mark
from pcopy.fsio.in_place import mark_file_complete
from tests.chaos.test_half_written import SIZES, killed_at, prepare
from tests.support.command import Argument, pcopy, show, succeed, summary
from tests.support.faults import Fault
from tests.support.filesystems import unmount
from tests.support.users import NOBODY, require_root
from tests.support.walk import temporaries


@pytest.fixture
def without_attributes(area: Path) -> Iterator[Path]:
    """A directory on a file system without extended attributes (bindfs)."""
    require_root("mount")
    if not shutil.which("bindfs"):
        pytest.skip("there is no bindfs here")
    for name in ("below", "point"):
        (area / name).mkdir()
    now = ["-o", "attr_timeout=0"]  # otherwise the new ctime of the other name is visible a second later
    line = ["bindfs", "--xattr-none", *now, str(area / "below"), str(area / "point")]
    tried = subprocess.run(line, check=False, capture_output=True, text=True)
    if tried.returncode:
        pytest.skip(f"no FUSE here: {tried.stderr}")
    try:
        yield area / "point"
    finally:
        unmount(area / "point")


@pytest.mark.parametrize("size", ["small", "split"])
def test_sidecar_file_marks_an_incomplete_file_without_attributes(without_attributes: Path, size: str) -> None:
    area = without_attributes
    target = prepare(area, SIZES[size])
    os.chown(target, NOBODY, 1)
    target.chmod(0o4751)
    place = area.parent
    words: list[Argument] = ["--json", "--inplace", "--existing", "newer", "--no-preserve", "mode,ownership"]
    words += ["--chunk-size", "4M", "--checkpoint", place / "job", f"{area}/source/", area / "copy"]
    killed_at(place, "ftruncate", *words, path=target, ranks=2)
    (sidecar,) = (name for name in os.listdir(area / "copy") if name != "file")
    assert sidecar.startswith(".pcopy-incomplete-")
    run = pcopy("--json", area / "copy", place / "further", ranks=2)  # the sidecar file must not be copied as an item
    assert (run.returncode, summary(run)["failed"]) == (1, 1), show(run)
    assert b"it marks another file in this directory as incomplete" in run.stderr
    assert sidecar not in os.listdir(place / "further")
    reported = summary(succeed(*words, ranks=2))
    status = target.stat()
    assert (reported["files"], reported["failed"]) == (1, 0)
    assert target.read_bytes() == (area / "source/file").read_bytes()
    assert (status.st_uid, status.st_gid, stat.S_IMODE(status.st_mode)) == (NOBODY, 1, 0o4751)
    assert os.listdir(area / "copy") == ["file"]
    assert temporaries(os.fsencode(area)) == []
    assert (area / "copy").stat().st_mtime_ns == (area / "source").stat().st_mtime_ns


@pytest.mark.parametrize("policy", ["skip", "newer"])
@pytest.mark.parametrize("edit", ["saved", "given its number", "chmod"])
def test_marked_file_of_uncertain_identity_is_neither_kept_nor_replaced(
    without_attributes: Path, policy: str, edit: str
) -> None:
    """Inode numbers are reused and may change with each mount, so it is uncertain whether the file is half-written."""
    area = without_attributes
    target = prepare(area, SIZES["small"])
    place = area.parent
    words: list[Argument] = ["--inplace", "--checkpoint", "none", f"{area}/source/", area / "copy"]
    killed_at(place, "ftruncate", "--existing", "newer", *words, path=target, ranks=1)
    (sidecar,) = target.parent.glob(".pcopy-incomplete-*")
    mine = b""
    if edit == "chmod":
        target.chmod(0o644)
    else:
        mine = b"the user's"
        target.unlink()
        target.write_bytes(mine)
        target.chmod(0o600 if edit == "saved" else 0o644)
        number = target.stat().st_ino + (edit == "saved")
        sidecar.write_bytes(re.sub(rb"(?m)^\d+ ", b"%d " % number, sidecar.read_bytes()))
    for _ in range(2):
        run = pcopy("--existing", policy, *words, ranks=1)
        assert run.returncode == 1, show(run)
        assert sidecar.name.encode() in run.stderr
        assert target.read_bytes() == mine
    sidecar.unlink()
    if edit == "chmod":
        target.unlink()
    succeed("--existing", policy, *words, ranks=1)
    assert target.read_bytes() == (mine or (area / "source/file").read_bytes())


@pytest.mark.parametrize("size", ["small", "split"])
def test_sidecar_file_is_removed_with_the_file_that_it_marks(without_attributes: Path, size: str) -> None:
    """The other name of the inode was copied, and a resumed job replaces the first name by a link to it."""
    area = without_attributes
    target = prepare(area, SIZES[size])
    os.link(area / "source/file", area / "source/other")
    words: list[Argument] = ["--json", "--inplace", "--chunk-size", "4M", f"{area}/source/", area / "copy"]
    fault = Fault(area.parent / "trace", ["fsync"], target, "EIO")
    env = {"XDG_STATE_HOME": str(area.parent / "state")}
    run = pcopy(*words, ranks=2, wrap=fault.wrap(), env=env)
    fault.check()
    assert (run.returncode, summary(run)["failed"]) == (1, 1), show(run)
    assert len(os.listdir(area / "copy")) == 3
    succeed("--resume", ranks=2, env=env)
    assert sorted(os.listdir(area / "copy")) == ["file", "other"]
    for name in ("file", "other"):
        assert (area / "copy" / name).read_bytes() == (area / "source/file").read_bytes()


@pytest.mark.parametrize("edit", ["saved", "removed"])
@pytest.mark.parametrize("moment", ["ftruncate", "fsync"])
def test_sidecar_file_is_removed_if_the_user_replaced_the_marked_file(
    without_attributes: Path, moment: str, edit: str
) -> None:
    """The job was killed before it wrote the file, or before it removed the mark."""
    area = without_attributes
    target = prepare(area, SIZES["small"])
    sidecar = area / "copy" / os.fsdecode(incomplete_mark.sidecar_name(b"file"))
    env = {"XDG_STATE_HOME": str(area.parent / "state")}
    words: list[Argument] = ["--inplace", "--checkpoint-interval", "0.05", f"{area}/source/", area / "copy"]
    when = "1" if moment == "ftruncate" else "2"  # the first fsync comes when the file is complete
    killed_at(area.parent, moment, *words, path=target, when=when, ranks=1, env=env)
    assert sidecar.exists()
    if edit == "saved":
        (area / "saved").write_bytes(b"the user's")
        os.rename(area / "saved", target)
    else:
        target.unlink()
    succeed("--resume", ranks=1, env=env)
    assert not sidecar.exists()
    succeed(area / "copy", area.parent / "further", ranks=1, env=env)


def test_sidecar_file_of_a_replaced_file_is_removed_by_its_own_job_only(without_attributes: Path) -> None:
    target = without_attributes / "file"
    target.write_bytes(b"new")
    sidecar = without_attributes / os.fsdecode(incomplete_mark.sidecar_name(b"file"))
    directory, descriptor = os.open(target.parent, os.O_RDONLY), os.open(target, os.O_RDONLY)
    try:
        status = os.fstat(descriptor)
        mark = incomplete_mark.IncompleteFileMark("job", status.st_mode, 0, 0)
        incomplete_mark.set_incomplete_file_mark(directory, b"file", descriptor, status, mark, b"temporary")
        (target.parent / "saved").write_bytes(b"the user's")
        os.rename(target.parent / "saved", target)
        mark_file_complete(directory, b"file", status.st_ino, "another", sync=True)
        assert sidecar.exists()
        mark_file_complete(directory, b"file", status.st_ino, "job", sync=True)
        assert not sidecar.exists()
    finally:
        os.close(descriptor)
        os.close(directory)
