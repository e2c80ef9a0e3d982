"""``RemoveTreesBatch``, a batch of the C backend only: it removes subtrees."""

from __future__ import annotations

import os
import subprocess
import time
from array import array
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from pcopy.fsio.backend.batches import ItemCounts
from pcopy.fsio.backend.columns import OutcomeCode, pack_names
from pcopy.fsio.backend.interface import BackendSettings
from pcopy.fsio.backend.walk_batches import RemoveTreesBatch, WalkResult
from pcopy.fsio.mounted import mount_id_of
from pcopy.fsio.preserve import PreservedMetadataKinds
from tests.fsio.backend_bench import BackendFactory, done
from tests.support.users import require_root

DONE, SLOW_PATH, CANCELLED = OutcomeCode.DONE, OutcomeCode.SLOW_PATH, OutcomeCode.CANCELLED


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
) -> WalkResult:
    backend = make_backend(BackendSettings(PreservedMetadataKinds(), 0o022))
    directory = os.open(place, os.O_RDONLY)
    before = len(os.listdir("/proc/self/fd"))
    given = {
        "inodes": array("Q", inodes or [os.stat(place / name).st_ino for name in names]),
        "device": os.stat(place).st_dev,
        "max_names": 1000,
        "depth": 100,
        "deadline": time.monotonic() + 60,
        "mount": mount_id_of(directory),
        **more,
    }
    try:
        result: WalkResult = done(
            backend, RemoveTreesBatch(directory, pack_names(map(os.fsencode, names)), filters=None, **given)
        )
        assert len(os.listdir("/proc/self/fd")) == before, "a descriptor is left open"
        return result
    finally:
        backend.close()
        os.close(directory)


def codes(result: WalkResult) -> list[int]:
    return [*result.verdicts.codes]


def remaining_items(result: WalkResult, row: int) -> set[tuple[bytes, bytes, str]]:
    """Return (directory, name, letter) of the remaining items of a row."""
    return {
        (items.directory, name, chr(kind))
        for items in result.frontiers[row].remaining
        for name, kind in zip(items.names, items.kinds, strict=True)
    }


@pytest.mark.parametrize("by_type", [False, True])
def test_trees_are_removed(make_backend: BackendFactory, place: Path, by_type: bool) -> None:
    result = removed(make_backend, place, ["files", "empty", "deep"], removes_by_type=by_type)
    assert codes(result) == [DONE] * 3 and not result.frontiers
    size = 0 if by_type else 7
    assert result.counts == ItemCounts(files=3, directories=4, links=1, other_items=1, bytes=size)
    assert sorted(os.listdir(place)) == ["leading", "outside"]
    assert os.listdir(place / "outside") == ["canary"]


@pytest.mark.parametrize("by_type", [False, True])
def test_unusual_directories_are_not_removed(make_backend: BackendFactory, place: Path, by_type: bool) -> None:
    """Symbolic links, directories other than the one found, directories on another device or mount, and directories
    with more names.
    """
    outside = os.stat(place / "outside").st_ino
    result = removed(make_backend, place, ["leading", "files", "gone"], [outside] * 3, removes_by_type=by_type)
    assert codes(result) == [SLOW_PATH] * 3
    wrongs: list[dict[str, Any]] = [{"device": os.stat(place).st_dev + 1}, {"max_names": 2}, {"mount": -1}]
    for wrong in wrongs:
        assert codes(removed(make_backend, place, ["files"], removes_by_type=by_type, **wrong)) == [SLOW_PATH]
    assert len(os.listdir(place / "files")) == 3 and os.listdir(place / "outside") == ["canary"]
    with pytest.raises(ValueError, match="1 inodes for 2 rows"):
        removed(make_backend, place, ["files", "empty"], [1])


def test_mount_points_are_not_removed(make_backend: BackendFactory, place: Path) -> None:
    """A bind mount from the same device: device and inode match those listed, only the mount id differs. So for a
    file, and for what is below the row.
    """
    require_root("mount")
    (place / "files/at").touch()
    (place / "deep/inner/over").mkdir()
    at = [place / "empty", place / "files/at", place / "deep/inner/over"]
    for what, where in zip(("outside", "outside/canary", "outside"), at, strict=True):
        subprocess.run(["mount", "--bind", place / what, where], check=True)
    try:
        result = removed(make_backend, place, ["empty", "files", "deep"], removes_by_type=True)
        assert codes(result) == [SLOW_PATH, DONE, DONE]
        assert remaining_items(result, 1) == {(b"files", b"at", "?")}
        assert remaining_items(result, 2) == {(b"deep/inner", b"over", "d")}
        assert list(result.frontiers[2].paths) == [b"deep", b"deep/inner"]
        assert result.counts == ItemCounts(files=3, links=1, other_items=1)
        assert os.listdir(place / "outside") == ["canary"] and os.listdir(place / "files") == ["at"]
    finally:
        for where in at:
            subprocess.run(["umount", where], check=True)


def test_directory_that_cannot_be_left_is_in_the_frontier(make_backend: BackendFactory, place: Path) -> None:
    """A directory with a mount in it: its other contents are removed, and it is reported with the directories above."""
    require_root("set attributes")
    subprocess.run(["mount", "-t", "tmpfs", "tmpfs", place / "deep/inner"], check=True)
    try:
        result = removed(make_backend, place, ["deep"])
    finally:
        subprocess.run(["umount", place / "deep/inner"], check=True)
    frontier = result.frontiers[0]
    assert (list(frontier.paths), list(frontier.parents)) == ([b"deep"], [0])
    assert list(frontier.inodes) == [os.stat(place / "deep").st_ino]
    assert remaining_items(result, 0) == {(b"deep", b"inner", "d")}


def test_time_is_over(make_backend: BackendFactory, place: Path) -> None:
    """The first row enters one directory, and removes at most some 256 names of it; the other rows are not begun."""
    for number in range(900):
        (place / f"deep/{number}").touch()
    found = {entry.name for entry in os.scandir(place / "deep") if not entry.is_dir()}
    result = removed(make_backend, place, ["deep", "files"], deadline=0.0)
    assert codes(result) == [DONE, CANCELLED]
    left = {entry.name for entry in os.scandir(place / "deep") if not entry.is_dir()}
    assert 256 <= len(found - left) < 256 + 16 and result.counts == ItemCounts(files=len(found - left))
    expected = {(b"deep", os.fsencode(name), "f") for name in left} | {(b"deep", b"inner", "d")}
    assert remaining_items(result, 0) == expected
    assert len(os.listdir(place / "files")) == 3


def test_deep_tree_ends_at_some_level(make_backend: BackendFactory, place: Path) -> None:
    names = [f"d{number}" for number in range(40)]
    (place / "empty").joinpath(*names).mkdir(parents=True)
    frontier = removed(make_backend, place, ["empty"]).frontiers[0]
    levels = len(frontier.paths)
    assert 2 <= levels <= 40 and [*frontier.parents] == [0, *range(levels - 1)]
    (items,) = frontier.remaining
    assert items.directory == frontier.paths[-1] == os.fsencode("/".join(["empty", *names[: levels - 1]]))
    assert (items.names, items.kinds) == ([os.fsencode(names[levels - 1])], b"d")
    assert items.inodes == [os.stat(place / os.fsdecode(items.directory) / names[levels - 1]).st_ino]
