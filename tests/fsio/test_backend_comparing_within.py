"""``CompareDirectoriesBatch``, a batch of the C backend only: it compares directories that both trees contain."""

from __future__ import annotations

import os
import stat
import subprocess
from array import array
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from pcopy.fsio.backend.batches import ItemCounts
from pcopy.fsio.backend.columns import OutcomeCode, pack_names
from pcopy.fsio.backend.directory_batches import CompareDirectoriesBatch, DirectoryContentsResult
from pcopy.fsio.backend.interface import BackendSettings
from pcopy.fsio.preserve import PreservedMetadataKinds
from pcopy.tasks.compare.properties import CONTENT, MODE, MTIME, OWNERSHIP, SIZE
from tests.fsio.backend_bench import BackendFactory, done
from tests.support.users import require_root


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """Two equal trees ``a`` and ``b``: directories ``full``, ``empty`` and ``some``."""
    for name in ("full/inner", "empty", "some"):
        (tmp_path / "a" / name).mkdir(parents=True)
    for name, size in (("some/0", 0), ("full/1", 1), ("full/most", 65535), ("full/more", 200000), ("full/\n\udcff", 9)):
        (tmp_path / "a" / name).write_bytes(os.urandom(size))
    (tmp_path / "a/full/link").symlink_to("1")
    os.mkfifo(tmp_path / "a/full/fifo")
    subprocess.run(["cp", "-a", tmp_path / "a", tmp_path / "b"], check=True)
    return tmp_path


NAMES = ("full", "empty", "some")


def compared(
    make_backend: BackendFactory,
    place: Path,
    wanted: int,
    names: Sequence[str] = NAMES,
    inodes: Sequence[int] = (),
    **more: Any,
) -> DirectoryContentsResult:
    """Compare the directories. ``wanted``: the properties; ``more``: further fields of ``CompareDirectoriesBatch``."""
    backend = make_backend(BackendSettings(PreservedMetadataKinds(), 0o022))
    sides = [os.open(place / side, os.O_RDONLY) for side in "ab"]
    before = len(os.listdir("/proc/self/fd"))
    ours, theirs = (array("Q", inodes or [os.stat(place / side / name).st_ino for name in names]) for side in "ab")
    devices = (os.stat(place).st_dev,) * 2
    given = {
        "directory": sides[0],
        "target": sides[1],
        "devices": devices,
        "max_names": 100,
        "properties": wanted,
        **more,
    }
    packed = pack_names(map(os.fsencode, names))
    try:
        batch = CompareDirectoriesBatch(names=packed, inodes=ours, other_inodes=theirs, **given)
        result: DirectoryContentsResult = done(backend, batch)
        assert len(os.listdir("/proc/self/fd")) == before, "a descriptor is left open"
        return result
    finally:
        backend.close()
        for side in sides:
            os.close(side)


def remaining(result: DirectoryContentsResult, row: int = 0) -> dict[str, str]:
    found = result.remaining.get(row)
    return dict(zip(map(os.fsdecode, found.names.split(b"/")), found.kinds.decode(), strict=True)) if found else {}


@pytest.mark.parametrize(
    "wanted", [0, CONTENT, SIZE | MTIME | MODE | OWNERSHIP, SIZE | MTIME | MODE | OWNERSHIP | CONTENT]
)
def test_equal_items_are_counted(make_backend: BackendFactory, place: Path, wanted: int) -> None:
    result = compared(make_backend, place, wanted)
    assert bytes(result.verdicts.codes) == bytes([OutcomeCode.DONE] * 3)
    read = 2 * (1 + 65535 + 200000 + 9) if wanted & CONTENT else 0
    assert result.counts == ItemCounts(files=5, directories=1, links=1, other_items=1, bytes=read)
    assert remaining(result) == {"inner": "d"} and result.remaining.keys() == {0}
    inodes = [(place / side / "full/inner").stat().st_ino for side in "ab"]
    assert [*result.remaining[0].inodes, *result.remaining[0].other_inodes] == inodes


def keep_time(path: Path, action: Callable[[], object]) -> None:
    """Run ``action`` and restore the times of ``path`` afterwards."""
    status = path.lstat()
    action()
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns), follow_symlinks=False)


def flip(path: Path, at: int) -> None:
    with open(path, "r+b") as file:
        file.seek(at)
        byte = file.read(1)
        file.seek(at)
        file.write(bytes((byte[0] ^ 1,)))


@pytest.mark.parametrize("at", [0, 65533, 65534, 65535, 131068, 199999])
def test_one_different_byte_is_found(make_backend: BackendFactory, place: Path, at: int) -> None:
    """Also at both ends of a block that is read in one call."""
    name = "most" if at < 65535 else "more"
    keep_time(place / "b/full" / name, lambda: flip(place / "b/full" / name, at))
    assert subprocess.run(["cmp", "-s", place / "a/full" / name, place / "b/full" / name], check=False).returncode == 1
    result = compared(make_backend, place, CONTENT | MTIME)
    assert remaining(result) == {"inner": "d", name: "c"} and result.counts.files == 5
    assert remaining(compared(make_backend, place, SIZE | MTIME)) == {"inner": "d"}


def relink(path: Path) -> None:
    path.unlink()
    path.symlink_to("2")


@pytest.mark.parametrize(
    ("wanted", "name", "change"),
    [
        (SIZE, "1", lambda path: path.write_bytes(b"")),
        (CONTENT, "1", lambda path: path.write_bytes(b"")),
        (MTIME, "inner", lambda path: os.utime(path, ns=(0, path.stat().st_mtime_ns + 1))),
        (MTIME, "link", lambda path: os.utime(path, ns=(0, path.lstat().st_mtime_ns - 1), follow_symlinks=False)),
        (MODE, "fifo", lambda path: path.chmod(stat.S_IMODE(path.stat().st_mode) ^ 0o4000)),
        (CONTENT, "link", relink),
    ],
)
def test_different_item_is_returned(
    make_backend: BackendFactory, place: Path, wanted: int, name: str, change: Callable[[Path], object]
) -> None:
    change(place / "b/full" / name)
    others = (SIZE | MTIME | MODE | OWNERSHIP | CONTENT) & ~wanted & ~(MTIME if wanted != MODE else 0)
    others &= ~(SIZE | CONTENT) if wanted & (SIZE | CONTENT) else others
    assert remaining(compared(make_backend, place, wanted)) == {"inner": "d"} | {name: "?"}
    assert remaining(compared(make_backend, place, others)) == {"inner": "d"}


def test_different_owners_types_and_names_are_returned(make_backend: BackendFactory, place: Path) -> None:
    require_root("give files away")
    os.chown(place / "b/full/1", 0, 7)
    (place / "b/full/fifo").unlink()
    (place / "b/full/fifo").touch()
    (place / "a/some/0").rename(place / "a/some/1")
    (place / "b/empty/new").touch()
    result = compared(make_backend, place, OWNERSHIP)
    assert [remaining(result, row) for row in range(3)] == [
        {"1": "?", "fifo": "?", "inner": "d"},
        {"new": "?"},
        {"0": "?", "1": "?"},
    ]
    assert result.counts == ItemCounts(files=3, directories=1, links=1)


def test_times_within_the_modify_window_are_equal(make_backend: BackendFactory, place: Path) -> None:
    for beyond in (1, 0):
        for side, moment in (("a", 10**18 + 1), ("b", 10**18 + 1_000_000_001 + beyond)):
            for path in (place / side / "full").iterdir():
                os.utime(path, ns=(0, moment), follow_symlinks=False)
        if beyond:
            assert len(remaining(compared(make_backend, place, MTIME, modify_window=1))) == 7
    assert remaining(compared(make_backend, place, MTIME, modify_window=1)) == {"inner": "d"}
    assert len(remaining(compared(make_backend, place, MTIME))) == 7
    (place / "b/full/1").touch()
    assert remaining(compared(make_backend, place, MTIME, modify_window=1)) == {"inner": "d", "1": "?"}


def test_unusual_directories_take_the_slow_path(make_backend: BackendFactory, place: Path) -> None:
    """Symbolic links, directories other than the one found, directories on another device, and directories with more
    names.
    """
    for side in "ab":
        (place / side / "leading").symlink_to("full")
    numbers = [os.stat(place / "a" / name).st_ino for name in ("full", "some")]
    assert bytes(compared(make_backend, place, 0, ["leading"], numbers[:1]).verdicts.codes) == bytes(
        [OutcomeCode.SLOW_PATH]
    )
    assert compared(make_backend, place, 0, ["some"], numbers[1:]).verdicts.codes[0] == OutcomeCode.SLOW_PATH, (
        "that of the other side"
    )
    device = os.stat(place).st_dev
    for devices in ((device + 1, device), (device, device + 1)):
        assert compared(make_backend, place, 0, ["some"], devices=devices).verdicts.codes[0] == OutcomeCode.SLOW_PATH
    result = compared(make_backend, place, 0, ["full"], max_names=6)
    assert result.verdicts.codes[0] == OutcomeCode.SLOW_PATH and not any(result.counts) and not result.remaining
    assert compared(make_backend, place, 0, ["full"], max_names=7).verdicts.codes[0] == OutcomeCode.DONE
    with pytest.raises(ValueError, match="1 inodes for 2 rows"):
        compared(make_backend, place, 0, ["full", "some"], [1])


def test_mount_point_is_returned_undecided(make_backend: BackendFactory, place: Path) -> None:
    require_root("mount")
    subprocess.run(["mount", "--bind", place / "b/some", place / "b/full/inner"], check=True)
    try:
        assert remaining(compared(make_backend, place, CONTENT))["inner"] == "?"
    finally:
        subprocess.run(["umount", place / "b/full/inner"], check=True)
