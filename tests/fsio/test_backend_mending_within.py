"""``SetMetadataInDirectoriesBatch``, a batch of the C backend only: it changes the items within several directories."""

from __future__ import annotations

import os
import stat
import subprocess
from array import array
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from pcopy.fsio.backend.batches import ItemCounts
from pcopy.fsio.backend.columns import OutcomeCode, pack_names
from pcopy.fsio.backend.directory_batches import DirectoryContentsResult, SetMetadataInDirectoriesBatch
from pcopy.fsio.backend.interface import BackendSettings
from pcopy.fsio.preserve import PreservedMetadataKinds, has_capability
from tests.fsio.backend_bench import BackendFactory, done
from tests.support.users import NOBODY, as_user, require_root

MODES = array("H", [bits | 0o4 for bits in range(4096)])
DIRECTORY_MODES = array("H", [bits | 0o5 for bits in range(4096)])


@pytest.fixture
def place(on: Any) -> Path:
    """``full`` with items of several types, ``empty``, ``some`` with three names, and items that are not
    directories.
    """
    place: Path = on("tmpfs")
    for name in ("full/inner", "full/fine", "empty", "some"):
        (place / name).mkdir(parents=True, mode=0o750)
    (place / "full/fine").chmod(0o755)
    (place / "full/inner/deep").write_bytes(b"deep")
    (place / "full/file").write_bytes(b"contents")
    (place / "full/file").chmod(0o4640)
    (place / "full/a\nb\udcff").write_bytes(b"fine")
    (place / "full/a\nb\udcff").chmod(0o604)
    (place / "full/link").symlink_to("../outside")
    os.mkfifo(place / "full/fifo", 0o600)
    for name in ("some/0", "some/1", "some/2", "outside"):
        (place / name).touch()
        (place / name).chmod(0o600)
    (place / "leading").symlink_to("full")
    return place


def set_within(
    make_backend: BackendFactory, place: Path, names: Sequence[str], inodes: Sequence[int] | None = None, **wanted: Any
) -> DirectoryContentsResult:
    """Run the batch. ``wanted``: further fields of ``SetMetadataInDirectoriesBatch``."""
    backend = make_backend(BackendSettings(PreservedMetadataKinds(), 0o022))
    directory = os.open(place, os.O_RDONLY)
    before = len(os.listdir("/proc/self/fd"))
    numbers = array("Q", inodes or [os.lstat(place / name).st_ino for name in names])
    chosen = {
        "device": os.stat(place).st_dev,
        "max_names": 100,
        "modes": MODES,
        "directory_modes": DIRECTORY_MODES,
        **wanted,
    }
    try:
        result: DirectoryContentsResult = done(
            backend, SetMetadataInDirectoriesBatch(directory, pack_names(map(os.fsencode, names)), numbers, **chosen)
        )
        assert len(os.listdir("/proc/self/fd")) == before, "a descriptor is left open"
        return result
    finally:
        backend.close()
        os.close(directory)


def modes_in(place: Path) -> dict[str, str]:
    return {
        os.fsdecode(path.relative_to(place)): f"{stat.S_IMODE(path.lstat().st_mode):o}" for path in place.rglob("*")
    }


def remaining(result: DirectoryContentsResult, row: int) -> dict[bytes, tuple[str, int]]:
    found = result.remaining[row]
    return dict(zip(found.names.split(b"/"), zip(found.kinds.decode(), found.inodes, strict=True), strict=True))


def test_all_simple_items_are_changed(make_backend: BackendFactory, place: Path) -> None:
    before = modes_in(place)
    result = set_within(make_backend, place, ["full", "empty", "some"])
    assert bytes(result.verdicts.codes) == bytes([OutcomeCode.DONE] * 3)
    assert result.counts == ItemCounts(files=5, directories=2, links=1, other_items=1, bytes=12, changed=6)
    changed = {
        "full/inner": "755",
        "full/file": "4644",
        "full/fifo": "604",
        **dict.fromkeys(["some/0", "some/1", "some/2"], "604"),
    }
    assert modes_in(place) == before | changed
    entered = {os.fsencode(name): ("d", (place / "full" / name).stat().st_ino) for name in ("inner", "fine")}
    assert remaining(result, 0) == entered and result.remaining.keys() == {0}
    ctimes = {path: path.lstat().st_ctime_ns for path in place.rglob("*")}
    again = set_within(make_backend, place, ["full", "empty", "some"])
    assert again.counts == result.counts._replace(changed=0)
    assert {path: path.lstat().st_ctime_ns for path in place.rglob("*")} == ctimes


def test_owners(make_backend: BackendFactory, place: Path) -> None:
    """The owner of a link is changed on the link itself, and a change of the owner clears set-id bits."""
    require_root("give files away")
    result = set_within(make_backend, place, ["full"], uid=7, gid=8)
    assert result.counts.changed == 6
    assert {(path.lstat().st_uid, path.lstat().st_gid) for path in (place / "full").iterdir()} == {(7, 8)}
    assert {(place / name).lstat().st_uid for name in ("full", "outside", "full/inner/deep")} == {0}
    assert modes_in(place)["full/file"] == "644"


def test_unusual_directories_take_the_slow_path(make_backend: BackendFactory, place: Path) -> None:
    """Symbolic links, directories other than the one found, directories on another device, and directories with more
    names.
    """
    before = modes_in(place)
    inode = os.stat(place / "full").st_ino
    result = set_within(
        make_backend, place, ["leading", "outside", "gone", "some", "empty"], [inode] * 4 + [inode + (1 << 40)]
    )
    assert bytes(result.verdicts.codes) == bytes([OutcomeCode.SLOW_PATH] * 5)
    assert (
        set_within(make_backend, place, ["full"], device=os.stat(place).st_dev + 1).verdicts.codes[0]
        == OutcomeCode.SLOW_PATH
    )
    assert set_within(make_backend, place, ["some"], max_names=2).verdicts.codes[0] == OutcomeCode.SLOW_PATH
    assert modes_in(place) == before and result.remaining == {} and not any(result.counts)
    assert set_within(make_backend, place, ["some"], max_names=3).verdicts.codes[0] == OutcomeCode.DONE


def test_mount_points_are_returned_unchanged(make_backend: BackendFactory, place: Path) -> None:
    """It is recognized by its inode and its device, which differ from those of the directory entry."""
    require_root("mount")
    subprocess.run(["mount", "--bind", place / "some", place / "full/inner"], check=True)
    try:
        result = set_within(make_backend, place, ["full"])
    finally:
        subprocess.run(["umount", place / "full/inner"], check=True)
    assert remaining(result, 0)[b"inner"][0] == "?" and modes_in(place)["some"] == "750"


def test_directory_that_would_become_inaccessible_is_returned(make_backend: BackendFactory, place: Path) -> None:
    require_root("be somebody else")
    for path in (place, *place.rglob("*")):
        os.chown(path, NOBODY, NOBODY, follow_symlinks=False)
    (place / "some/0").unlink()
    (place / "some/0").touch(0o600)  # belongs to the caller
    closing = array("H", [bits & ~0o300 for bits in range(4096)])

    def change() -> None:
        has_capability.cache_clear()
        result = set_within(make_backend, place, ["full", "some"], directory_modes=closing)
        assert {name: kind for name, (kind, _) in remaining(result, 0).items()} == {b"inner": "?", b"fine": "?"}
        assert [*remaining(result, 1)] == [b"0"], "the slow path reports the refusal"
        assert result.counts.directories == 0 and modes_in(place)["full/inner"] == "750"

    as_user(change)


def test_columns_of_another_length_are_rejected(make_backend: BackendFactory, place: Path) -> None:
    with pytest.raises(ValueError, match="1 inodes for 2 rows"):
        set_within(make_backend, place, ["full", "some"], [1])
    with pytest.raises(ValueError, match="one mode"):
        set_within(make_backend, place, ["full"], modes=array("H", [0]))
