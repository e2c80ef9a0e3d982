"""``RemoveDirectoriesBatch``, a batch of the C backend only: it removes sibling directories with their contents."""

from __future__ import annotations

import os
import subprocess
from array import array
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from pcopy.fsio.backend.batches import ItemCounts
from pcopy.fsio.backend.columns import OutcomeCode, pack_names
from pcopy.fsio.backend.directory_batches import DirectoryContentsResult, RemoveDirectoriesBatch
from pcopy.fsio.backend.interface import BackendSettings
from pcopy.fsio.preserve import PreservedMetadataKinds
from tests.fsio.backend_bench import BackendFactory, done
from tests.support.users import require_root


@pytest.fixture
def place(tmp_path: Path) -> Path:
    for name in ("files", "empty", "deep/inner", "outside"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "files/a\nb\udcff").write_bytes(b"seven b")
    (tmp_path / "files/link").symlink_to("../outside")
    os.mkfifo(tmp_path / "files/fifo")
    for name in ("deep/file", "deep/inner/file", "outside/canary"):
        (tmp_path / name).touch()
    (tmp_path / "leading").symlink_to("outside")
    return tmp_path


def removed(
    make_backend: BackendFactory, place: Path, names: Sequence[str], inodes: Sequence[int] = (), **more: Any
) -> DirectoryContentsResult:
    backend = make_backend(BackendSettings(PreservedMetadataKinds(), 0o022))
    directory = os.open(place, os.O_RDONLY)
    before = len(os.listdir("/proc/self/fd"))
    numbers = array("Q", inodes or [os.stat(place / name).st_ino for name in names])
    given = {"device": os.stat(place).st_dev, "max_names": 100, **more}
    try:
        batch = RemoveDirectoriesBatch(directory, pack_names(map(os.fsencode, names)), numbers, **given)
        result: DirectoryContentsResult = done(backend, batch)
        assert len(os.listdir("/proc/self/fd")) == before, "a descriptor is left open"
        return result
    finally:
        backend.close()
        os.close(directory)


def test_directories_with_only_files_are_removed(make_backend: BackendFactory, place: Path) -> None:
    result = removed(make_backend, place, ["files", "empty", "deep"])
    assert bytes(result.verdicts.codes) == bytes([OutcomeCode.DONE, OutcomeCode.DONE, OutcomeCode.SLOW_PATH])
    assert result.counts == ItemCounts(files=2, directories=2, links=1, other_items=1, bytes=7)
    assert sorted(os.listdir(place)) == ["deep", "leading", "outside"]
    assert os.listdir(place / "deep") == ["inner"] and os.listdir(place / "deep/inner") == ["file"]
    assert os.listdir(place / "outside") == ["canary"]


def test_unusual_directories_are_not_removed(make_backend: BackendFactory, place: Path) -> None:
    """Symbolic links, directories other than the one found, directories on another device, and directories with more
    names.
    """
    outside = os.stat(place / "outside").st_ino
    result = removed(make_backend, place, ["leading", "files", "gone"], [outside] * 3)
    assert bytes(result.verdicts.codes) == bytes([OutcomeCode.SLOW_PATH] * 3)
    assert (
        removed(make_backend, place, ["files"], device=os.stat(place).st_dev + 1).verdicts.codes[0]
        == OutcomeCode.SLOW_PATH
    )
    assert removed(make_backend, place, ["files"], max_names=2).verdicts.codes[0] == OutcomeCode.SLOW_PATH
    assert len(os.listdir(place / "files")) == 3 and os.listdir(place / "outside") == ["canary"]
    with pytest.raises(ValueError, match="1 inodes for 2 rows"):
        removed(make_backend, place, ["files", "empty"], [1])


def test_mount_points_are_not_removed(make_backend: BackendFactory, place: Path) -> None:
    """A bind mount from the same device: device and inode match those listed, only the mount id differs. So for a
    file.
    """
    require_root("mount")
    (place / "files/at").touch()
    mounts = [(place / "outside", place / "empty"), (place / "outside/canary", place / "files/at")]
    for what, where in mounts:
        subprocess.run(["mount", "--bind", what, where], check=True)
    try:
        result = removed(make_backend, place, ["empty", "files"])
        assert bytes(result.verdicts.codes) == bytes([OutcomeCode.SLOW_PATH] * 2)
        assert os.listdir(place / "outside") == ["canary"] and os.listdir(place / "files") == ["at"]
    finally:
        for _, where in mounts:
            subprocess.run(["umount", where], check=True)
