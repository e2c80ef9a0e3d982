"""``ChangeTreesBatch``, a batch of the C backend only: it changes the items of subtrees."""

from __future__ import annotations

import os
import stat
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
from pcopy.fsio.backend.walk_batches import ChangeTreesBatch, WalkResult
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


def change_trees(
    make_backend: BackendFactory,
    place: Path,
    names: Sequence[str],
    kinds: bytes = b"",
    inodes: Sequence[int] | None = None,
    **wanted: Any,
) -> WalkResult:
    """Run the batch. ``wanted``: further fields of ``ChangeTreesBatch``."""
    backend = make_backend(BackendSettings(PreservedMetadataKinds(), 0o022))
    directory = os.open(place, os.O_RDONLY)
    before = len(os.listdir("/proc/self/fd"))
    chosen = {
        "inodes": array("Q", inodes or [os.lstat(place / name).st_ino for name in names]),
        "device": os.stat(place).st_dev,
        "max_names": 100,
        "depth": 1000,
        "deadline": time.monotonic() + 60,
        "kinds": kinds,
        "modes": MODES,
        "directory_modes": DIRECTORY_MODES,
        **wanted,
    }
    try:
        batch = ChangeTreesBatch(filters=None, directory=directory, names=pack_names(map(os.fsencode, names)), **chosen)
        result: WalkResult = done(backend, batch)
        assert len(os.listdir("/proc/self/fd")) == before, "a descriptor is left open"
        return result
    finally:
        backend.close()
        os.close(directory)


def modes_in(place: Path) -> dict[str, str]:
    return {
        os.fsdecode(path.relative_to(place)): f"{stat.S_IMODE(path.lstat().st_mode):o}" for path in place.rglob("*")
    }


def remaining(result: WalkResult) -> dict[bytes, str]:
    """Return the letter of each remaining item, by path."""
    return {
        b"/".join((items.directory, name)): chr(letter)
        for items in result.remaining
        for name, letter in zip(items.names, items.kinds, strict=True)
    }


CHANGED = {
    "full/inner": "755",
    "full/file": "4644",
    "full/fifo": "604",
    "full/inner/deep": "644",
    **dict.fromkeys(["some/0", "some/1", "some/2"], "604"),
}


def test_contents_of_directories_are_changed(make_backend: BackendFactory, place: Path) -> None:
    (place / "full/inner/deep").chmod(0o640)
    before = modes_in(place)
    result = change_trees(make_backend, place, ["full", "empty", "some"])
    assert bytes(result.verdicts.codes) == bytes([OutcomeCode.DONE] * 3) and not any(result.letters)
    assert result.counts == ItemCounts(files=6, directories=2, links=1, other_items=1, bytes=16, changed=7)
    assert modes_in(place) == before | CHANGED and result.frontiers == {}
    ctimes = {path: path.lstat().st_ctime_ns for path in place.rglob("*")}
    again = change_trees(make_backend, place, ["full", "empty", "some"])
    assert again.counts == result.counts._replace(changed=0)
    assert {path: path.lstat().st_ctime_ns for path in place.rglob("*")} == ctimes


def test_items_are_changed_with_their_contents(make_backend: BackendFactory, place: Path) -> None:
    (place / "full/inner/deep").chmod(0o640)
    before = modes_in(place)
    result = change_trees(make_backend, place, ["full", "outside", "leading", "some", "empty"], b"dfldd")
    assert bytes(result.verdicts.codes) == bytes([OutcomeCode.DONE] * 5) and not any(result.letters)
    assert result.counts == ItemCounts(files=7, directories=5, links=2, other_items=1, bytes=16, changed=10)
    rows = {"full": "755", "some": "755", "empty": "755", "outside": "604"}
    assert modes_in(place) == before | CHANGED | rows


def test_owners(make_backend: BackendFactory, place: Path) -> None:
    """The owner of a link is changed on the link itself, and a change of the owner clears set-id bits."""
    require_root("give files away")
    result = change_trees(make_backend, place, ["full"], uid=7, gid=8)
    assert result.counts.changed == 7
    assert {(path.lstat().st_uid, path.lstat().st_gid) for path in (place / "full").rglob("*")} == {(7, 8)}
    assert {(place / name).lstat().st_uid for name in ("full", "outside")} == {0}
    assert modes_in(place)["full/file"] == "644"


def test_unusual_directories_take_the_slow_path(make_backend: BackendFactory, place: Path) -> None:
    """Symbolic links, directories other than the one found, directories on another device, and directories with more
    names.
    """
    before = modes_in(place)
    inode = os.stat(place / "full").st_ino
    for kinds in (b"", b"ddddd"):
        names, inodes = ["leading", "outside", "gone", "some", "empty"], [inode] * 4 + [inode + (1 << 40)]
        result = change_trees(make_backend, place, names, kinds, inodes)
        assert bytes(result.verdicts.codes) == bytes([OutcomeCode.SLOW_PATH] * 5)
        limits: list[tuple[str, dict[str, Any]]] = [
            ("full", {"device": os.stat(place).st_dev + 1}),
            ("some", {"max_names": 2}),
        ]
        for name, limit in limits:
            result = change_trees(make_backend, place, [name], kinds[:1], **limit)
            assert result.verdicts.codes[0] == OutcomeCode.SLOW_PATH
        assert modes_in(place) == before and result.frontiers == {} and not any(result.counts)
    assert change_trees(make_backend, place, ["some"], max_names=3).verdicts.codes[0] == OutcomeCode.DONE


def test_unusual_items_take_the_slow_path(make_backend: BackendFactory, place: Path) -> None:
    """Items of an unknown type, items other than the listed one, and items that vanished."""
    before = modes_in(place)
    inode = os.stat(place / "full").st_ino
    result = change_trees(make_backend, place, ["outside", "outside", "gone"], b"?ff", [inode] * 3)
    assert bytes(result.verdicts.codes) == bytes([OutcomeCode.SLOW_PATH] * 3)
    assert modes_in(place) == before and not any(result.counts)


def test_unusual_directories_remain(make_backend: BackendFactory, place: Path) -> None:
    """A directory with many names, and one that is too deep, are neither changed nor entered."""
    before = modes_in(place)
    deep = "empty" + 31 * "/d"
    (place / deep / "d/d").mkdir(parents=True)
    (place / deep / "d").chmod(0o750)
    result = change_trees(make_backend, place, ["empty"])
    assert remaining(result) == {os.fsencode(deep + "/d"): "d"} and modes_in(place)[deep + "/d"] == "750"
    for name in range(6):
        (place / f"full/inner/{name}").touch()
    assert remaining(change_trees(make_backend, place, ["full"], max_names=6)) == {b"full/inner": "d"}
    assert modes_in(place)["full/inner"] == before["full/inner"]


def test_when_the_time_is_over(make_backend: BackendFactory, place: Path) -> None:
    """The first row is begun, and no directory below it; of a large directory, 256 names are processed."""
    result = change_trees(make_backend, place, ["full", "some"], deadline=0.0)
    assert bytes(result.verdicts.codes) == bytes([OutcomeCode.DONE, OutcomeCode.CANCELLED])
    assert remaining(result) == {b"full/inner": "d", b"full/fine": "d"}
    for name in range(300):
        (place / f"empty/{name:03}").touch(0o600)
    result = change_trees(make_backend, place, ["empty"], deadline=0.0, max_names=1000)
    assert result.counts.files == result.counts.changed == 256
    assert [*remaining(result).values()] == ["f"] * 44


def test_mount_points_are_returned_unchanged(make_backend: BackendFactory, place: Path) -> None:
    """It is recognized by its inode and its device, which differ from those of the directory entry."""
    require_root("mount")
    subprocess.run(["mount", "--bind", place / "some", place / "full/inner"], check=True)
    try:
        result = change_trees(make_backend, place, ["full"])
    finally:
        subprocess.run(["umount", place / "full/inner"], check=True)
    assert remaining(result) == {b"full/inner": "d"} and modes_in(place)["some"] == "750"


def give_all_to_nobody(place: Path) -> None:
    for path in (place, *place.rglob("*")):
        os.chown(path, NOBODY, NOBODY, follow_symlinks=False)


CLOSING = array("H", [bits & ~0o300 for bits in range(4096)])


def test_directories_are_closed_after_everything_below_them(make_backend: BackendFactory, place: Path) -> None:
    require_root("be somebody else")
    give_all_to_nobody(place)

    def change() -> None:
        has_capability.cache_clear()
        result = change_trees(make_backend, place, ["full"], b"d", directory_modes=CLOSING)
        assert bytes(result.verdicts.codes) == bytes([OutcomeCode.DONE]) and not any(result.letters)
        assert result.frontiers == {}
        assert result.counts == ItemCounts(files=3, directories=3, links=1, other_items=1, bytes=16, changed=5)

    as_user(change)
    modes = modes_in(place)
    assert {name: modes[name] for name in ("full", "full/inner", "full/fine", "full/inner/deep")} == {
        "full": "455", "full/inner": "450", "full/fine": "455", "full/inner/deep": "644"
    }  # fmt: skip


def test_directories_with_remaining_items_are_not_closed(make_backend: BackendFactory, place: Path) -> None:
    require_root("be somebody else")
    (place / "full/inner/last").mkdir()
    for name in range(7):
        (place / f"full/inner/last/{name}").touch()
    give_all_to_nobody(place)
    (place / "some/0").unlink()
    (place / "some/0").touch(0o600)  # belongs to root

    def change() -> None:
        has_capability.cache_clear()
        result = change_trees(make_backend, place, ["full"], b"d", directory_modes=CLOSING, max_names=6)
        assert remaining(result) == {b"full/inner/last": "d", b"full/inner": "x"} and result.letters == b"x"
        assert result.counts.directories == 1
        result = change_trees(make_backend, place, ["some"], b"d", directory_modes=CLOSING)
        assert remaining(result) == {b"some/0": "?"} and result.letters == b"x"
        assert result.counts == ItemCounts(files=2, changed=2)

    as_user(change)
    modes = modes_in(place)
    assert {name: modes[name] for name in ("full", "full/inner", "full/fine", "some")} == {
        "full": "755", "full/inner": "750", "full/fine": "455", "some": "750"
    }  # fmt: skip


def test_directories_that_their_new_mode_permits_to_enter(make_backend: BackendFactory, place: Path) -> None:
    require_root("be somebody else")
    give_all_to_nobody(place)
    (place / "full/inner").chmod(0)
    opening = array("H", [bits | 0o700 for bits in range(4096)])

    def change() -> None:
        has_capability.cache_clear()
        result = change_trees(make_backend, place, ["full"], directory_modes=opening)
        assert result.frontiers == {}
        assert result.counts == ItemCounts(files=3, directories=2, links=1, other_items=1, bytes=16, changed=3)

    as_user(change)
    assert modes_in(place)["full/inner"] == "700"


def test_columns_of_another_length_are_rejected(make_backend: BackendFactory, place: Path) -> None:
    with pytest.raises(ValueError, match="1 inodes for 2 rows"):
        change_trees(make_backend, place, ["full", "some"], inodes=[1])
    with pytest.raises(ValueError, match="1 types for 2 rows"):
        change_trees(make_backend, place, ["full", "some"], b"d")
    with pytest.raises(ValueError, match="one mode"):
        change_trees(make_backend, place, ["full"], modes=array("H", [0]))
