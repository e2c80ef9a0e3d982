"""``ListItemsBatch`` and ``ListPathsBatch``, batches of the C backend only: they list the contents of sibling
directories and of those below them.
"""

from __future__ import annotations

import os
import shutil
import socket
import stat
import subprocess
from array import array
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from pcopy.fsio.backend.columns import ALL_COLUMNS, MODE_COLUMN, SIZE_COLUMN, OutcomeCode, pack_names
from pcopy.fsio.backend.interface import BackendSettings
from pcopy.fsio.backend.walk_batches import ListItemsBatch, ListItemsResult, ListPathsBatch, ListPathsResult
from pcopy.fsio.preserve import PreservedMetadataKinds
from tests.fsio.backend_bench import BackendFactory, done

ALL = sum(bit for _, _, bit, _ in ALL_COLUMNS)
LETTERS = {
    stat.S_IFREG: "f", stat.S_IFDIR: "d", stat.S_IFLNK: "l", stat.S_IFIFO: "p", stat.S_IFSOCK: "s", stat.S_IFCHR: "c"
}  # fmt: skip


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """``full`` with items of all types, ``empty``, ``some`` with five names, and items that are not directories."""
    for name in ("full/inner", "empty", "some"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "full/file").write_bytes(b"contents")
    (tmp_path / "full/a\nb\udcff").touch()
    os.utime(tmp_path / "full/file", ns=(5, 10**18 + 1))
    (tmp_path / "full/link").symlink_to("../empty")
    os.mkfifo(tmp_path / "full/fifo", 0o604)
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(str(tmp_path / "full/socket"))
    if os.geteuid() == 0:
        os.mknod(tmp_path / "full/null", 0o600 | stat.S_IFCHR, os.makedev(1, 3))
    for number in range(5):
        (tmp_path / f"some/{number}").touch()
    (tmp_path / "leading").symlink_to("full")
    (tmp_path / "file").touch()
    return tmp_path


def reported(
    make_backend: BackendFactory,
    place: Path,
    names: Sequence[str],
    inodes: Sequence[int] | None = None,
    device: int | None = None,
    *,
    batch: type[ListItemsBatch | ListPathsBatch] = ListPathsBatch,
    **wanted: Any,
) -> Any:
    """Run a ``batch`` and return its result. ``wanted``: further fields of the batch."""
    backend = make_backend(BackendSettings(PreservedMetadataKinds(), 0o022))
    directory = os.open(place, os.O_RDONLY)
    before = len(os.listdir("/proc/self/fd"))
    numbers = array("Q", inodes or [os.stat(place / name).st_ino for name in names])
    at = os.stat(place).st_dev if device is None else device
    items: dict[str, Any] = {"mask": 0, "kinds": b"", "column_sums": None}
    fields = {
        "max_names": 100,
        "depth": 0,
        "deadline": 0.0,
        "filters": None,
        **(items if batch is ListItemsBatch else {}),
        **wanted,
    }
    try:
        result = done(backend, batch(directory, pack_names(map(os.fsencode, names)), numbers, at, **fields))
        assert len(os.listdir("/proc/self/fd")) == before, "a descriptor is left open"
        return result
    finally:
        backend.close()
        os.close(directory)


def looked(make_backend: BackendFactory, place: Path, *which: Any, **wanted: Any) -> ListItemsResult:
    result: ListItemsResult = reported(make_backend, place, *which, batch=ListItemsBatch, **wanted)
    return result


def check_items(result: ListItemsResult, place: Path, mask: int) -> None:
    """Compare all items of a result with their status."""
    statuses = [os.lstat(place / os.fsdecode(name)) for name in result.paths]
    assert result.kinds.decode() == "".join(LETTERS[stat.S_IFMT(status.st_mode)] for status in statuses)
    assert [*result.inodes] == [status.st_ino for status in statuses]
    if not mask:
        assert result.rows is None
        return
    assert result.rows is not None and len(result.rows) == len(statuses)
    for column, _, bit, field in ALL_COLUMNS:
        wanted = [getattr(status, field) for status in statuses] if mask & bit else []
        assert [*getattr(result.rows, column)] == wanted, column


@pytest.mark.parametrize("mask", [0, ALL, SIZE_COLUMN, MODE_COLUMN])
def test_names_and_statuses_are_listed(make_backend: BackendFactory, place: Path, mask: int) -> None:
    rows = ["full", "empty", "some"]
    result = looked(make_backend, place, rows, mask=mask)
    assert bytes(result.verdicts.codes) == bytes([OutcomeCode.DONE] * 3)
    names = [os.fsencode(os.path.join(row, name)) for row in rows for name in os.listdir(place / row)]
    assert sorted(result.paths) == sorted(names)
    check_items(result, place, mask)
    found = [(part.directory, part.directory_inode, part.end - part.start) for part in result.items_by_directory()]
    assert found == [(row.encode(), os.stat(place / row).st_ino, len(os.listdir(place / row))) for row in rows]
    for part in result.items_by_directory():
        assert {name.rpartition(b"/")[0] for name in result.paths[part.start : part.end]} <= {part.directory}


@pytest.mark.parametrize("mask", [0, ALL])
@pytest.mark.parametrize("depth", [0, 1, 3, 100])
def test_items_of_subtree_are_listed_or_left_to_the_caller(
    make_backend: BackendFactory, tmp_path: Path, depth: int, mask: int
) -> None:
    """What the rows and the directories that are left contain together is what find(1) lists."""
    make_subtrees(tmp_path)
    rows = ["0", "1", "2"]
    result = looked(make_backend, tmp_path, rows, depth=depth, deadline=float(1 << 30), mask=mask)
    assert bytes(result.verdicts.codes) == bytes([OutcomeCode.DONE] * 3)
    check_items(result, tmp_path, mask)
    left = [group.directory + b"/" + name for group in result.remaining for name in group.names]
    inside = [path for path in left for path in found_below(tmp_path, path, depth + 1)]
    assert sorted([*result.paths, *inside]) == sorted(
        path for row in rows for path in found_below(tmp_path, row.encode(), depth + 1)
    )
    if depth == 100:
        assert {path.rpartition(b"/")[2] for path in left} == {b"many", b"deep"}


def test_only_requested_types_are_examined(make_backend: BackendFactory, place: Path) -> None:
    result = looked(make_backend, place, ["full"], mask=MODE_COLUMN, kinds=b"l")
    assert result.rows is not None
    modes = dict(zip(result.paths, result.rows.mode, strict=True))
    assert stat.S_ISLNK(modes.pop(b"full/link")) and not any(modes.values()) and len(modes) >= 4


@pytest.mark.parametrize("threads", [0, 2])
def test_threads_do_not_fill_column_sums(make_backend: BackendFactory, place: Path, threads: int) -> None:
    """Running threads leave the sums unchanged, and new threads do not start while they are filled."""
    backend = make_backend(BackendSettings(PreservedMetadataKinds(), 0o022))
    tally, pool = backend.new_column_sums([0] * 9), backend.pool
    assert tally is not None and pool is not None
    pool.request_threads(threads)
    directory = os.open(place, os.O_RDONLY)
    inodes = array("Q", [os.stat(place / "some").st_ino])
    try:
        ticket = backend.submit_batch(
            ListItemsBatch(directory, b"some", inodes, os.stat(place).st_dev, 100, 0, 0.0, None, ALL, b"", tally)
        )
        pool.request_threads(2)
        assert backend.runs_in_poll == (threads == 0)
        while not ticket.is_done:
            backend.poll()
        result = ticket.result
        assert [*result.entered().is_summed] == [threads == 0]
        assert any(tally.histograms()["sizes"].values()) == (threads == 0)
        assert len(result.paths) == (5 if threads else 0)
        pool.request_threads(2)
        assert not backend.runs_in_poll
    finally:
        backend.close()
        os.close(directory)


def test_column_sums_include_only_regular_directories(make_backend: BackendFactory, place: Path) -> None:
    """``some`` contains only regular items; each other directory has one item that needs closer examination."""
    for name in ("strange", "mixed"):
        shutil.copytree(place / "some", place / name)
    (place / "strange/\x7f").touch()
    (place / "some/inner").mkdir()
    (place / "some/0").write_bytes(b"x" * 4096)
    names = ["strange", "some", "empty"]
    if os.geteuid() == 0:
        os.chown(place / "mixed/0", 1, -1)
        names.append("mixed")
    backend = make_backend(BackendSettings(PreservedMetadataKinds(), 0o022))
    tally = backend.new_column_sums([0] * 9)
    assert tally is not None
    result = looked(make_backend, place, names, mask=ALL, column_sums=tally)
    check_items(result, place, ALL)
    entered = result.entered()
    assert [*entered.paths] == [name.encode() for name in names]
    assert [*entered.items] == [len(os.listdir(place / name)) for name in names]
    left = {part.directory.decode(): part.end - part.start for part in result.items_by_directory()}
    if not backend.runs_in_poll:
        assert left == {name: len(os.listdir(place / name)) for name in names}
        return
    assert left == {name: len(os.listdir(place / name)) for name in names if name not in ("some", "empty")}
    statuses = [os.lstat(place / "some" / name) for name in os.listdir(place / "some")]
    row = names.index("some")
    assert (entered.sizes[row], entered.users[row], entered.groups[row]) == (4096, os.geteuid(), os.getegid())
    assert entered.allocated[row] == sum(512 * each.st_blocks for each in statuses)
    assert [numbers[row] for numbers in entered.kinds] == [5, 1, 0, 0, 0, 0, 0]
    assert tally.sums()["bytes"] == 4096 and tally.histograms()["sizes"] == {0: 4, 13: 1}


def test_sums_have_the_largest_files(make_backend: BackendFactory, tmp_path: Path) -> None:
    """Several files have the size of the last one of the 20; the directories are listed in no order."""
    for number in range(60):
        directory = tmp_path / "bac"[number % 3] / ("inner" if number % 2 else "")
        directory.mkdir(parents=True, exist_ok=True)
        (directory / f"file{number * 7 % 60}").write_bytes(b"x" * (number % 5))
    backend = make_backend(BackendSettings(PreservedMetadataKinds(), 0o022))
    tally = backend.new_column_sums([0] * 9)
    assert tally is not None
    wanted = {"mask": ALL, "column_sums": tally, "path_prefix": b"up/", "depth": 1, "deadline": 1e9}
    looked(make_backend, tmp_path, ["b", "a", "c"], **wanted)
    find = ["find", "a", "b", "c", "-type", "f", "-printf", "up/%p %s\\n"]
    lines = subprocess.run(find, cwd=tmp_path, check=True, capture_output=True).stdout.splitlines()
    sizes = sorted(((int(size), path) for path, size in map(bytes.split, lines)), key=lambda file: (-file[0], file[1]))
    assert len(sizes) == 60 and sizes[19][0] == sizes[20][0]
    assert tally.largest_files() == (sizes[:20] if backend.runs_in_poll else [])


def test_sums_need_their_columns(make_backend: BackendFactory, place: Path) -> None:
    tally = make_backend(BackendSettings(PreservedMetadataKinds(), 0o022)).new_column_sums([0] * 9)
    assert tally is not None
    with pytest.raises(ValueError, match="a column that the sums need is missing"):
        looked(make_backend, place, ["full"], mask=ALL & ~SIZE_COLUMN, column_sums=tally)


def test_paths_and_types_are_listed(make_backend: BackendFactory, place: Path) -> None:
    (place / "full" / "second").mkdir()
    result: ListPathsResult = reported(
        make_backend, place, ["full", "empty", "some"], path_prefix=b"up/on top/", depth=1
    )
    assert bytes(result.verdicts.codes) == bytes([OutcomeCode.DONE] * 3)
    find = ["find", "full", "empty", "some", "-mindepth", "1", "-printf", "up/on top/%p\\0%y\\0"]
    words = subprocess.run(find, cwd=place, check=True, capture_output=True).stdout.split(b"\0")
    paths, letters = words[:-1:2], b"".join(words[1::2])
    assert sorted(result.packed_paths.split(b"\0")[:-1]) == sorted(paths)
    others = len(letters) - sum(map(letters.count, b"fdl"))
    assert result.counts[:4] == (letters.count(b"f"), letters.count(b"d"), letters.count(b"l"), others)
    assert others >= 2
    (group,) = result.remaining
    assert (group.directory, group.directory_inode) == (b"full", os.stat(place / "full").st_ino)
    assert group.kinds == b"dd"
    inside = dict(zip(group.names, group.inodes, strict=True))
    assert inside == {os.fsencode(name): os.stat(place / "full" / name).st_ino for name in ("inner", "second")}


def make_subtrees(top: Path) -> None:
    """Create subtrees of up to five levels, with a directory of many names, and a chain of 40 directories."""
    for number in range(3):
        for path in ("a", "a/b", "a/b/c", "a/b/d", "e", "e/f\n"):
            (top / f"{number}" / path).mkdir(parents=True)
        for path in ("file", "a/file", "a/b/d/file", "e/f\n/file"):
            (top / f"{number}" / path).touch()
        (top / f"{number}/a/link").symlink_to("b")
    for number in range(200):
        (top / f"1/a/many/{number}").mkdir(parents=True)
    (top / "2" / "/".join(["deep"] * 40)).mkdir(parents=True)


@pytest.mark.parametrize("deadline", [0.0, float(1 << 30)])
@pytest.mark.parametrize("depth", [0, 1, 2, 3, 100])
def test_subtree_is_listed_or_left_to_the_caller(
    make_backend: BackendFactory, tmp_path: Path, depth: int, deadline: float
) -> None:
    """What the rows and the directories that are left contain together is what find(1) lists."""
    make_subtrees(tmp_path)
    rows = ["0", "1", "2"]
    result: ListPathsResult = reported(make_backend, tmp_path, rows, path_prefix=b"", depth=depth, deadline=deadline)
    assert bytes(result.verdicts.codes) == bytes([OutcomeCode.DONE] * 3)
    paths = result.packed_paths.split(b"\0")[:-1]
    assert sum(result.counts[:4]) == len(paths)
    left = []
    for group in result.remaining:
        assert os.stat(tmp_path / os.fsdecode(group.directory)).st_ino == group.directory_inode
        for name, inode in zip(group.names, group.inodes, strict=True):
            left.append(group.directory + b"/" + name)
            assert os.stat(tmp_path / os.fsdecode(left[-1])).st_ino == inode
    inside = [path for path in left for path in found_below(tmp_path, path, depth + 1)]
    assert sorted(paths + inside) == sorted(
        path for row in rows for path in found_below(tmp_path, row.encode(), depth + 1)
    )
    if deadline and depth == 100:
        assert {path.rpartition(b"/")[2] for path in left} == {b"many", b"deep"}
        assert [path.count(b"/") for path in left if path.endswith(b"deep")] == [32]
    if not deadline:
        assert len(paths) == sum(len(os.listdir(tmp_path / row)) for row in rows)


@pytest.mark.parametrize("deadline", [0.0, float(1 << 30)])
@pytest.mark.parametrize("depth", [0, 2, 100])
def test_subtree_is_summed_up_or_left_to_the_caller(
    make_backend: BackendFactory, tmp_path: Path, depth: int, deadline: float
) -> None:
    """The sums of each directory are those of find(1), and the tally has all of them together."""
    make_subtrees(tmp_path)
    (tmp_path / "0/a/b/sized").write_bytes(bytes(5000))
    backend = make_backend(BackendSettings(PreservedMetadataKinds(), 0o022))
    tally, names = backend.new_column_sums(range(9)), ["0", "1", "2"]
    if tally is None:
        return  # the backend in Python has no sums
    directory = os.open(tmp_path, os.O_RDONLY)
    status = os.fstat(directory)
    batch = ListItemsBatch(
        directory, b"0/1/2", array("Q", [os.stat(tmp_path / name).st_ino for name in names]), status.st_dev, 100, depth,
        deadline, None, ALL, b"", tally,
    )  # fmt: skip
    result = done(backend, batch)
    os.close(directory)
    assert bytes(result.verdicts.codes) == bytes([OutcomeCode.DONE] * 3)
    check_items(result, tmp_path, ALL)
    entered = result.entered()
    for row, path in enumerate(entered.paths):
        inside = [os.lstat(tmp_path / os.fsdecode(path) / name) for name in os.listdir(tmp_path / os.fsdecode(path))]
        kinds = [LETTERS[stat.S_IFMT(one.st_mode)] for one in inside]
        assert entered.items[row] == len(inside) and entered.inodes[row] == os.stat(tmp_path / os.fsdecode(path)).st_ino
        if not entered.is_summed[row]:
            assert not any(numbers[row] for numbers in entered.kinds)
            continue
        assert [numbers[row] for numbers in entered.kinds] == [kinds.count(letter) for letter in "fdlpscb"]
        assert entered.sizes[row] == sum(one.st_size for one in inside if stat.S_ISREG(one.st_mode))
        assert entered.allocated[row] == sum(512 * one.st_blocks for one in inside)
        assert (entered.users[row], entered.groups[row]) == ((os.geteuid(), os.getegid()) if kinds else (0, 0))
    assert tally.sums()["bytes"] == sum(entered.sizes)
    left = {group.directory + b"/" + name for group in result.remaining for name in group.names}
    summed = {path for path, is_summed in zip(entered.paths, entered.is_summed, strict=True) if is_summed}
    others = {part.directory for part in result.items_by_directory()}
    found = {
        path
        for name in names
        for path in subprocess.run(
            ["find", name, "-maxdepth", str(depth), "-type", "d", "-print0"],
            cwd=tmp_path,
            check=True,
            capture_output=True,
        ).stdout.split(b"\0")[:-1]
    }
    assert not (left & summed or left & others or summed & others) and summed | others == set(entered.paths)
    assert summed | others == {
        path for path in found if not any(path == one or path.startswith(one + b"/") for one in left)
    }
    if not backend.runs_in_poll:
        assert not summed
    elif deadline and depth == 100:
        assert {path.rpartition(b"/")[2] for path in left} == {b"many", b"deep"}, "many names, too deep"
        assert others == {b"0/e", b"1/e", b"2/e"}, "names that are not printable"


def found_below(top: Path, path: bytes, depth: int) -> list[bytes]:
    """Return the paths that find(1) lists below ``path``, down to a depth below the first of its components."""
    levels = str(depth - path.count(b"/"))
    find: list[str | bytes] = ["find", path, "-mindepth", "1", "-maxdepth", levels, "-print0"]
    return subprocess.run(find, cwd=top, check=True, capture_output=True).stdout.split(b"\0")[:-1]


def test_directory_that_cannot_be_opened_is_left_to_the_caller(make_backend: BackendFactory, tmp_path: Path) -> None:
    """The directory of mode 0 is entered by root: then a link that takes its name is the one that is left."""
    (tmp_path / "top/closed").mkdir(parents=True)
    (tmp_path / "top/open").mkdir()
    (tmp_path / "top/open/file").touch()
    (tmp_path / "top/closed").chmod(0)
    result: ListPathsResult = reported(
        make_backend, tmp_path, ["top"], path_prefix=b"", depth=9, deadline=float(1 << 30)
    )
    assert sorted(result.packed_paths.split(b"\0")[:-1]) == [b"top/closed", b"top/open", b"top/open/file"]
    left = [name for group in result.remaining for name in group.names]
    assert left == ([] if os.geteuid() == 0 else [b"closed"])


@pytest.mark.parametrize("batch", [ListItemsBatch, ListPathsBatch])
def test_unusual_directories_take_the_slow_path(
    make_backend: BackendFactory, place: Path, batch: type[ListItemsBatch | ListPathsBatch]
) -> None:
    """Symbolic links, directories other than the one found, directories on another device, and directories with more
    names.
    """
    inode = os.stat(place / "full").st_ino
    ask: Callable[..., Any] = (
        partial(reported, make_backend, place, batch=batch, path_prefix=b"")
        if batch is ListPathsBatch
        else partial(looked, make_backend, place)
    )
    result = ask(["leading", "file", "gone", "some", "empty"], [inode] * 4 + [inode + (1 << 40)])
    assert bytes(result.verdicts.codes) == bytes([OutcomeCode.SLOW_PATH] * 5)
    assert result.frontiers == {} and sum(result.counts) == 0
    assert (result.paths if batch is ListItemsBatch else result.packed_paths) in ([], b"")
    assert ask(["full"], device=os.stat(place).st_dev + 1).verdicts.codes[0] == OutcomeCode.SLOW_PATH
    assert [ask(["some"], max_names=most).verdicts.codes[0] for most in (4, 5)] == [
        OutcomeCode.SLOW_PATH,
        OutcomeCode.DONE,
    ]


def test_columns_of_another_length_are_rejected(make_backend: BackendFactory, place: Path) -> None:
    with pytest.raises(ValueError, match="1 inodes for 2 rows"):
        looked(make_backend, place, ["full", "some"], [1])
