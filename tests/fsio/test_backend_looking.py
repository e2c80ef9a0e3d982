"""``ListDirectoriesBatch`` and ``ListPathsBatch``, batches of the C backend only: they list the contents of sibling
directories.
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
from pcopy.fsio.backend.directory_batches import ListDirectoriesBatch, ListDirectoriesResult
from pcopy.fsio.backend.interface import BackendSettings
from pcopy.fsio.backend.walk_batches import ListPathsBatch, ListPathsResult, SumDirectoriesBatch
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
    batch: type[ListDirectoriesBatch | ListPathsBatch] = ListPathsBatch,
    **wanted: Any,
) -> Any:
    """Run a ``batch`` and return its result. ``wanted``: further fields of the batch."""
    backend = make_backend(BackendSettings(PreservedMetadataKinds(), 0o022))
    directory = os.open(place, os.O_RDONLY)
    before = len(os.listdir("/proc/self/fd"))
    numbers = array("Q", inodes or [os.stat(place / name).st_ino for name in names])
    at = os.stat(place).st_dev if device is None else device
    walks = {"depth": 0, "deadline": 0.0} if batch is ListPathsBatch else {}
    try:
        result = done(
            backend,
            batch(directory, pack_names(map(os.fsencode, names)), numbers, at, **{"max_names": 100, **walks, **wanted}),
        )
        assert len(os.listdir("/proc/self/fd")) == before, "a descriptor is left open"
        return result
    finally:
        backend.close()
        os.close(directory)


def looked(make_backend: BackendFactory, place: Path, *which: Any, **wanted: Any) -> ListDirectoriesResult:
    result: ListDirectoriesResult = reported(make_backend, place, *which, batch=ListDirectoriesBatch, **wanted)
    return result


@pytest.mark.parametrize("mask", [0, ALL, SIZE_COLUMN, MODE_COLUMN])
def test_names_and_statuses_are_listed(make_backend: BackendFactory, place: Path, mask: int) -> None:
    result = looked(make_backend, place, ["full", "empty", "some"], mask=mask)
    assert bytes(result.verdicts.codes) == bytes([OutcomeCode.DONE] * 3)
    for row, name in enumerate(("full", "empty", "some")):
        within = result.contents[row]
        names = within.names.split(b"/") if within.names else []
        assert sorted(names) == sorted(map(os.fsencode, os.listdir(place / name)))
        statuses = [os.lstat(os.path.join(place, name, os.fsdecode(each))) for each in names]
        assert within.kinds.decode() == "".join(LETTERS[stat.S_IFMT(status.st_mode)] for status in statuses)
        if "d" in within.kinds.decode():
            assert [*within.inodes] == [status.st_ino for status in statuses]
        if mask and names:
            assert within.rows is not None and len(within.rows) == len(names)
            for column, _, bit, field in ALL_COLUMNS:
                wanted = [getattr(status, field) for status in statuses] if mask & bit else []
                assert [*getattr(within.rows, column)] == wanted, column
        else:
            assert within.rows is None


def test_only_requested_types_are_examined(make_backend: BackendFactory, place: Path) -> None:
    within = looked(make_backend, place, ["full"], mask=MODE_COLUMN, kinds=b"l").contents[0]
    assert within.rows is not None
    modes = dict(zip(within.names.split(b"/"), within.rows.mode, strict=True))
    assert stat.S_ISLNK(modes[b"link"]) and not modes[b"file"] and not modes[b"inner"]


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
            ListDirectoriesBatch(
                directory,
                b"some",
                inodes,
                os.stat(place).st_dev,
                100,
                ALL,
                column_sums=tally,
                max_summed_file_bytes=4096,
            )
        )
        pool.request_threads(2)
        assert backend.runs_in_poll == (threads == 0)
        while not ticket.is_done:
            backend.poll()
        assert bool(ticket.result.contents[0].totals) == (threads == 0) == any(tally.histograms()["sizes"].values())
        assert bool(ticket.result.contents[0].rows) == (threads > 0)
        pool.request_threads(2)
        assert not backend.runs_in_poll
    finally:
        backend.close()
        os.close(directory)


def test_column_sums_include_only_regular_directories(make_backend: BackendFactory, place: Path) -> None:
    """``some`` contains only regular items; each other directory has one item that needs closer examination."""
    for name in ("strange", "large", "mixed"):
        shutil.copytree(place / "some", place / name)
    (place / "strange/\x7f").touch()
    (place / "large/more").write_bytes(b"x" * 4097)
    (place / "some/inner").mkdir()
    (place / "some/0").write_bytes(b"x" * 4096)
    names = ["strange", "large", "some", "empty"]
    if os.geteuid() == 0:
        os.chown(place / "mixed/0", 1, -1)
        names.append("mixed")
    backend = make_backend(BackendSettings(PreservedMetadataKinds(), 0o022))
    tally = backend.new_column_sums([0] * 9)
    assert tally is not None
    found = {
        name: looked(make_backend, place, [name], mask=ALL, column_sums=tally, max_summed_file_bytes=4096).contents[0]
        for name in names
    }
    if not backend.runs_in_poll:
        assert not any(within.totals for within in found.values()) and found["some"].rows
        return
    assert [name for name, within in found.items() if within.totals] == ["some"]
    assert [name for name, within in found.items() if within.rows] == [
        name for name in names if name not in ("some", "empty")
    ]
    statuses = [os.lstat(place / "some" / name) for name in os.listdir(place / "some")]
    assert found["some"].totals == (4096, sum(512 * each.st_blocks for each in statuses), os.geteuid(), os.getegid())
    assert sorted(found["some"].names.split(b"/")) == sorted(map(os.fsencode, os.listdir(place / "some")))
    assert tally.sums()["bytes"] == 4096 and tally.histograms()["sizes"] == {0: 4, 13: 1}


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
    (tmp_path / "1/e/large").write_bytes(bytes(70_000))
    (tmp_path / "0/a/b/sized").write_bytes(bytes(5000))
    backend = make_backend(BackendSettings(PreservedMetadataKinds(), 0o022))
    tally, names = backend.new_column_sums(range(9)), ["0", "1", "2"]
    if tally is None:
        return  # the backend in Python has no sums
    directory = os.open(tmp_path, os.O_RDONLY)
    status = os.fstat(directory)
    batch = SumDirectoriesBatch(
        directory, b"0/1/2", array("Q", [os.stat(tmp_path / name).st_ino for name in names]), status.st_dev, 100, depth,
        deadline, tally, 60_000,
    )  # fmt: skip
    result = done(backend, batch)
    os.close(directory)
    if not backend.runs_in_poll:
        assert bytes(result.verdicts.codes) == bytes([OutcomeCode.SLOW_PATH] * 3)
        return
    assert bytes(result.verdicts.codes) == bytes([OutcomeCode.DONE] * 3)
    for each in result.summed:
        statuses = [
            os.lstat(tmp_path / os.fsdecode(each.path) / name) for name in os.listdir(tmp_path / os.fsdecode(each.path))
        ]
        kinds = [LETTERS[stat.S_IFMT(one.st_mode)] for one in statuses]
        assert list(each.kinds) == [kinds.count(letter) for letter in "fdlpscb"]
        assert each.size == sum(one.st_size for one in statuses if stat.S_ISREG(one.st_mode))
        assert each.allocated == sum(512 * one.st_blocks for one in statuses)
        assert (each.user, each.group) == ((os.geteuid(), os.getegid()) if kinds else (0, 0))
    assert tally.sums()["bytes"] == sum(each.size for each in result.summed)
    left = {group.directory + b"/" + name for group in result.remaining for name in group.names}
    summed = {each.path for each in result.summed}
    entered = {
        path
        for name in names
        for path in subprocess.run(
            ["find", name, "-maxdepth", str(depth), "-type", "d", "-print0"],
            cwd=tmp_path,
            check=True,
            capture_output=True,
        ).stdout.split(b"\0")[:-1]
    }
    assert not left & summed
    assert {path for path in entered if not any(path == one or path.startswith(one + b"/") for one in left)} == summed
    if deadline and depth == 100:
        odd = {path.rpartition(b"/")[2] for path in left}
        assert odd == {b"many", b"e", b"deep"}, "many names, names that are not printable, a large file, too deep"


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


@pytest.mark.parametrize("batch", [ListDirectoriesBatch, ListPathsBatch])
def test_unusual_directories_take_the_slow_path(
    make_backend: BackendFactory, place: Path, batch: type[ListDirectoriesBatch | ListPathsBatch]
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
    assert (result.contents if batch is ListDirectoriesBatch else result.frontiers) == {}
    assert batch is ListDirectoriesBatch or (result.packed_paths, sum(result.counts)) == (b"", 0)
    assert ask(["full"], device=os.stat(place).st_dev + 1).verdicts.codes[0] == OutcomeCode.SLOW_PATH
    assert [ask(["some"], max_names=most).verdicts.codes[0] for most in (4, 5)] == [
        OutcomeCode.SLOW_PATH,
        OutcomeCode.DONE,
    ]


def test_columns_of_another_length_are_rejected(make_backend: BackendFactory, place: Path) -> None:
    with pytest.raises(ValueError, match="1 inodes for 2 rows"):
        looked(make_backend, place, ["full", "some"], [1])
