"""``CompareTreesBatch``, a batch of the C backend only: it compares subtrees that both trees contain."""

from __future__ import annotations

import os
import stat
import subprocess
from array import array
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from pcopy.fsio import identity
from pcopy.fsio.backend.batches import ItemCounts
from pcopy.fsio.backend.columns import OutcomeCode, pack_names
from pcopy.fsio.backend.interface import BackendSettings
from pcopy.fsio.backend.walk_batches import CompareTreesBatch, WalkResult
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
ALL_LEVELS = 2**32 - 1
FAR = float(1 << 30)
"""A deadline that is never over."""


def compared(
    make_backend: BackendFactory,
    place: Path,
    wanted: int,
    names: Sequence[str] = NAMES,
    inodes: Sequence[int] = (),
    **more: Any,
) -> WalkResult:
    """Compare the directories. ``wanted``: the properties; ``more``: further fields of ``CompareTreesBatch``."""
    backend = make_backend(BackendSettings(PreservedMetadataKinds(), 0o022))
    sides = [os.open(place / side, os.O_RDONLY) for side in "ab"]
    before = len(os.listdir("/proc/self/fd"))
    ours, theirs = (array("Q", inodes or [os.stat(place / side / name).st_ino for name in names]) for side in "ab")
    device = os.stat(place).st_dev
    given = {
        "directory": sides[0],
        "target": sides[1],
        "device": device,
        "other_device": device,
        "max_names": 100,
        "depth": ALL_LEVELS,
        "deadline": FAR,
        "properties": wanted,
        **more,
    }
    packed = pack_names(map(os.fsencode, names))
    try:
        batch = CompareTreesBatch(filters=None, names=packed, inodes=ours, other_inodes=theirs, **given)
        result: WalkResult = done(backend, batch)
        assert len(os.listdir("/proc/self/fd")) == before, "a descriptor is left open"
        return result
    finally:
        backend.close()
        for side in sides:
            os.close(side)


def remaining(result: WalkResult) -> dict[str, str]:
    """Return the letters of the remaining items, by their paths."""
    return {
        os.fsdecode(group.directory + b"/" + name): chr(kind)
        for group in result.remaining
        for name, kind in zip(group.names, group.kinds, strict=True)
    }


@pytest.mark.parametrize(
    "wanted", [0, CONTENT, SIZE | MTIME | MODE | OWNERSHIP, SIZE | MTIME | MODE | OWNERSHIP | CONTENT]
)
def test_equal_items_are_counted(make_backend: BackendFactory, place: Path, wanted: int) -> None:
    result = compared(make_backend, place, wanted)
    assert bytes(result.verdicts.codes) == bytes([OutcomeCode.DONE] * 3)
    read = 2 * (1 + 65535 + 200000 + 9) if wanted & CONTENT else 0
    assert result.counts == ItemCounts(files=5, directories=1, links=1, other_items=1, bytes=read)
    assert remaining(result) == {} == result.frontiers


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
    assert remaining(result) == {f"full/{name}": "c"} and result.counts.files == 5
    (group,) = result.remaining
    inodes = [(place / side / "full").stat().st_ino for side in "ab"]
    assert [group.directory_inode, group.other_directory_inode] == inodes
    assert remaining(compared(make_backend, place, SIZE | MTIME)) == {}


@pytest.mark.parametrize("size", [65535, 65536, 65537, 131072])
def test_ends_of_files_are_compared(make_backend: BackendFactory, place: Path, size: int) -> None:
    """The last byte of a file, and a byte that one side has in addition, whatever the size of a block is."""
    for side in "ab":
        (place / side / "full/more").write_bytes(b"x" * size)
    assert remaining(compared(make_backend, place, CONTENT)) == {}
    flip(place / "b/full/more", size - 1)
    assert remaining(compared(make_backend, place, CONTENT)) == {"full/more": "c"}
    flip(place / "b/full/more", size - 1)
    (place / "b/full/more").write_bytes(b"x" * size + b"y")
    assert remaining(compared(make_backend, place, CONTENT)) == {"full/more": "?"}


def test_other_rows_compare_files_beyond_8_mib(make_backend: BackendFactory, place: Path) -> None:
    """Of a directory, the files up to the one with which more than 8 MiB were read. Directories in it are entered."""
    for side in "ab":
        (place / side / "some/z/inner").mkdir(parents=True)
        for number in range(12):
            (place / side / f"some/{number:02}").write_bytes(b"x" * (512 << 10))
    result = compared(make_backend, place, CONTENT)
    assert remaining(result) == {"some/09": "n", "some/10": "n", "some/11": "n"}
    assert result.counts.files == 5 + 9


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
    assert remaining(compared(make_backend, place, wanted)) == {f"full/{name}": "?"}
    assert remaining(compared(make_backend, place, others)) == {}


def test_different_owners_types_and_names_are_returned(make_backend: BackendFactory, place: Path) -> None:
    require_root("give files away")
    os.chown(place / "b/full/1", 0, 7)
    (place / "b/full/fifo").unlink()
    (place / "b/full/fifo").touch()
    (place / "a/some/0").rename(place / "a/some/1")
    (place / "b/empty/new").touch()
    result = compared(make_backend, place, OWNERSHIP)
    different = {"full/1": "?", "full/fifo": "?", "empty/new": ">", "some/0": ">", "some/1": "<"}
    assert remaining(result) == different and result.frontiers.keys() == {0, 1, 2}
    assert result.counts == ItemCounts(files=3, directories=1, links=1)


def test_sockets_and_marks_of_incomplete_files_are_returned(make_backend: BackendFactory, place: Path) -> None:
    """The caller knows whether they are compared."""
    mark = ".pcopy-incomplete-0123456789abcdef"
    for side in "ab":
        os.mknod(place / side / "full/socket", stat.S_IFSOCK | 0o600)
        (place / side / "full" / mark).touch()
    result = compared(make_backend, place, CONTENT)
    assert remaining(result) == {"full/socket": "?", f"full/{mark}": "?"}
    assert (result.counts.files, result.counts.other_items) == (5, 1)


def test_times_within_the_modify_window_are_equal(make_backend: BackendFactory, place: Path) -> None:
    for beyond in (1, 0):
        for side, moment in (("a", 10**18 + 1), ("b", 10**18 + 1_000_000_001 + beyond)):
            for path in (place / side / "full").iterdir():
                os.utime(path, ns=(0, moment), follow_symlinks=False)
        if beyond:
            assert len(remaining(compared(make_backend, place, MTIME, modify_window=1))) == 7
    assert remaining(compared(make_backend, place, MTIME, modify_window=1)) == {}
    assert len(remaining(compared(make_backend, place, MTIME))) == 7
    (place / "b/full/1").touch()
    assert remaining(compared(make_backend, place, MTIME, modify_window=1)) == {"full/1": "?"}


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
    others: tuple[dict[str, Any], ...] = ({"device": device + 1}, {"other_device": device + 1})
    for fields in others:
        other = compared(make_backend, place, 0, ["some"], **fields)
        assert other.verdicts.codes[0] == OutcomeCode.SLOW_PATH
    result = compared(make_backend, place, 0, ["full"], max_names=6)
    assert result.verdicts.codes[0] == OutcomeCode.SLOW_PATH and not any(result.counts) and not result.frontiers
    assert compared(make_backend, place, 0, ["full"], max_names=7).verdicts.codes[0] == OutcomeCode.DONE
    with pytest.raises(ValueError, match="1 inodes for 2 rows"):
        compared(make_backend, place, 0, ["full", "some"], [1])


def test_mount_point_is_not_entered(make_backend: BackendFactory, place: Path) -> None:
    require_root("mount")
    subprocess.run(["mount", "--bind", place / "b/some", place / "b/full/inner"], check=True)
    try:
        assert remaining(compared(make_backend, place, CONTENT)) == {"full/inner": "d"}
    finally:
        subprocess.run(["umount", place / "b/full/inner"], check=True)


def deep_pair(place: Path) -> list[str]:
    """Create equal trees ``a/top`` and ``b/top`` in ``place``: three levels of three directories, each with two files.
    Return the paths of all items, without ``top`` itself.
    """
    for first in "012":
        for second in "012":
            (place / "a/top" / first / second).mkdir(parents=True)
    for directory in [place / "a/top", *(path for path in (place / "a/top").rglob("*") if path.is_dir())]:
        (directory / "file").write_bytes(b"1")
        (directory / "link").symlink_to("file")
    subprocess.run(["cp", "-a", place / "a", place / "b"], check=True)
    found = subprocess.run(
        ["find", "top", "-mindepth", "1"], cwd=place / "a", check=True, capture_output=True, text=True
    )
    return found.stdout.split()


def test_whole_subtree_is_compared(make_backend: BackendFactory, tmp_path: Path) -> None:
    paths = deep_pair(tmp_path)
    changed = {"top/1/2/file": "c", "top/0/extra": ">", "top/2/1/link": ">", "top/2/0": "?"}
    (tmp_path / "b/top/1/2/file").write_bytes(b"2")
    (tmp_path / "b/top/0/extra").touch()
    (tmp_path / "a/top/2/1/link").unlink()
    (tmp_path / "b/top/2/0").chmod(0o711)
    result = compared(make_backend, tmp_path, CONTENT | MODE, ["top"])
    assert remaining(result) == changed and bytes(result.verdicts.codes) == bytes([OutcomeCode.DONE])
    entered = [path for path in paths if not path.startswith("top/2/0")]
    kinds = [path.rpartition("/")[2] for path in entered]
    files, links = kinds.count("file"), kinds.count("link") - 1
    assert result.counts[:3] == (files, len(entered) - files - links - 1, links)
    (frontier,) = result.frontiers.values()
    for path, inode in zip(frontier.paths, frontier.inodes, strict=True):
        assert (tmp_path / "a" / os.fsdecode(path)).stat().st_ino == inode
    for group in result.remaining:
        assert (tmp_path / "b" / os.fsdecode(group.directory)).stat().st_ino == group.other_directory_inode


def test_time_ends_a_batch_after_its_first_directory(make_backend: BackendFactory, tmp_path: Path) -> None:
    deep_pair(tmp_path)
    subprocess.run(["cp", "-a", tmp_path / "a/top", tmp_path / "a/second"], check=True)
    subprocess.run(["cp", "-a", tmp_path / "b/top", tmp_path / "b/second"], check=True)
    result = compared(make_backend, tmp_path, CONTENT, ["top", "second"], deadline=0.0)
    assert bytes(result.verdicts.codes) == bytes([OutcomeCode.DONE, OutcomeCode.CANCELLED])
    assert remaining(result) == {"top/0": "d", "top/1": "d", "top/2": "d"}
    assert result.counts == ItemCounts(files=1, links=1, bytes=2)


def test_more_levels_than_may_be_open_are_not_entered(make_backend: BackendFactory, tmp_path: Path) -> None:
    for side in "ab":
        (tmp_path / side / "top").joinpath(*["d"] * 40).mkdir(parents=True)
    result = compared(make_backend, tmp_path, CONTENT, ["top"])
    assert remaining(result) == {"/".join(["top", *["d"] * 32]): "d"} and result.counts == ItemCounts(directories=31)


def test_rows_may_be_items_of_any_type(make_backend: BackendFactory, place: Path) -> None:
    for side in "ab":
        (place / side / "file").write_bytes(b"same")
        (place / side / "other").write_bytes(side.encode())
        (place / side / "link").symlink_to("file")
        os.mkfifo(place / side / "fifo")
        (place / side / "turned").symlink_to(side)
    (place / "a/left").touch()
    (place / "b/some").chmod(0o711)
    names = ["full", "empty", "some", "file", "other", "link", "fifo", "turned", "left", "none"]
    zeros = [0] * len(names)
    result = compared(make_backend, place, CONTENT | MODE, names, zeros, are_items=True)
    done, slow = int(OutcomeCode.DONE), int(OutcomeCode.SLOW_PATH)
    assert [*result.verdicts.codes] == [done, done, slow, done, done, done, done, slow, slow, slow]
    assert [*result.letters] == [ord("c") if name == "other" else 0 for name in names] and result.frontiers == {}
    read = 2 * (1 + 65535 + 200000 + 9 + 4 + 1)
    assert result.counts[:5] == (4 + 2, 1 + 2, 1 + 1, 1 + 1, read)


def names_compared(make_backend: BackendFactory, place: Path, names: Sequence[str], **more: Any) -> WalkResult:
    """Search directories of ``a`` for items that ``b`` lacks."""
    inodes = [os.lstat(place / "a" / name).st_ino for name in names]
    return compared(make_backend, place, 0, names, inodes, are_items=True, compares_names=True, **more)


def test_extra_items_of_a_subtree_are_returned(make_backend: BackendFactory, tmp_path: Path) -> None:
    deep_pair(tmp_path)
    first, second = tmp_path / "a/top", tmp_path / "b/top"
    (first / "1/2/new").touch()
    (first / "0/1/deep/inside").mkdir(parents=True)
    (first / "2/more").symlink_to("file")
    (second / "2/missing").touch()  # what only the second side has is ignored
    (second / "0/2/file").write_bytes(b"other contents")
    (second / "0/0/file").unlink()
    (second / "0/0/file").mkdir()  # a copy replaces it
    subprocess.run(["rm", "-r", second / "1/0"], check=True)
    (second / "1/0").symlink_to("2")
    extra = {"top/1/2/new": "F", "top/0/1/deep": "D", "top/2/more": "L", "top/1/0": "?"}
    result = names_compared(make_backend, tmp_path, ["top"])
    assert remaining(result) == extra and result.verdicts.codes[0] == OutcomeCode.DONE
    for group in result.remaining:
        for name, inode in zip(group.names, group.inodes, strict=True):
            assert (tmp_path / "a" / os.fsdecode(group.directory + b"/" + name)).lstat().st_ino == inode
        for side, number in (("a", group.directory_inode), ("b", group.other_directory_inode)):
            assert (tmp_path / side / os.fsdecode(group.directory)).stat().st_ino == number
    assert remaining(names_compared(make_backend, tmp_path, ["top"], deadline=0.0)) == {
        f"top/{each}": "d" for each in "012"
    }


def test_new_directories_are_not_searched_for_extra_items(make_backend: BackendFactory, tmp_path: Path) -> None:
    """Directories that were created since a time; older ones are searched, also if their ctime is newer."""
    for side, name in (("a", "old/x"), ("a", "new/x"), ("b", "old"), ("b", "new")):
        (tmp_path / side / name).mkdir(parents=True)
    descriptors = [os.open(tmp_path / "a" / name, os.O_RDONLY) for name in ("old", "new")]
    born = [identity.birth_time(each) for each in descriptors]
    for each in descriptors:
        os.close(each)
    assert all(born), "this file system stores no birth times"
    for since in (born[0] - 1, born[0], born[1]):
        result = names_compared(make_backend, tmp_path, ["old", "new"], created_since=since)
        searched = [name for name, birth in zip(("old", "new"), born, strict=True) if birth <= since]
        assert remaining(result) == {f"{name}/x": "D" for name in searched}, (since, born)


def test_only_directories_are_searched_for_extra_items(make_backend: BackendFactory, place: Path) -> None:
    (place / "a/link").symlink_to("full")
    (place / "b/link").symlink_to("full")
    (place / "a/turned").mkdir()
    (place / "b/turned").symlink_to("full")
    result = names_compared(make_backend, place, ["link", "turned", "full"])
    assert [*result.verdicts.codes] == [OutcomeCode.SLOW_PATH, OutcomeCode.SLOW_PATH, OutcomeCode.DONE]
    other = compared(
        make_backend, place, 0, ["full"], [os.stat(place / "a/some").st_ino], are_items=True, compares_names=True
    )
    assert other.verdicts.codes[0] == OutcomeCode.SLOW_PATH, "another directory than the listed one"
