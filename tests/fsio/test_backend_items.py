"""Listing, examining and removing existing items, in every backend."""

from __future__ import annotations

import errno
import os
import subprocess
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from pcopy.fsio.backend.batches import (
    FileOperationBatch,
    ListNamesBatch,
    RemoveItemsBatch,
    StatNamesBatch,
    SyncDirectoriesBatch,
)
from pcopy.fsio.backend.columns import (
    ATIME_COLUMN,
    GROUP_COLUMN,
    INODE_COLUMN,
    OWNER_COLUMN,
    SCAN_COLUMNS,
    ItemStatusColumns,
    OutcomeCode,
    pack_names,
    unpack_names,
)
from pcopy.fsio.backend.interface import BackendSettings, FileOperationBackend
from pcopy.fsio.preserve import PreservedMetadataKinds
from pcopy.fsio.problem import MetadataProblem, Problem
from tests.fsio.backend_bench import BACKENDS, done, found

EVERYTHING = SCAN_COLUMNS | OWNER_COLUMN | GROUP_COLUMN | ATIME_COLUMN


class Items:
    """A directory with items of all kinds, and a backend."""

    def __init__(self, backend: Callable[[BackendSettings], FileOperationBackend], place: Path) -> None:
        self._backend = backend
        self.place = place / "items"
        self.outside = place / "outside"
        self.outside.write_bytes(b"outside")
        self.place.mkdir()
        (self.place / "file").write_bytes(b"content")
        (self.place / "a\nb\udcff").write_bytes(b"")
        (self.place / "directory").mkdir()
        (self.place / "full").mkdir()
        (self.place / "full/file").touch()
        (self.place / "link").symlink_to(self.outside)
        (self.place / "dangling").symlink_to("nowhere")
        os.mkfifo(self.place / "fifo")
        self.names = sorted(os.listdir(self.place))

    def do(self, make: Callable[[int], FileOperationBatch[Any]]) -> Any:
        directory = os.open(self.place, os.O_RDONLY)
        backend = self._backend(BackendSettings(PreservedMetadataKinds(), 0o022))
        before = len(os.listdir("/proc/self/fd"))
        try:
            result = done(backend, make(directory))
            assert len(os.listdir("/proc/self/fd")) == before, "a descriptor is left open"
            return result
        finally:
            backend.close()
            os.close(directory)

    def rows(self, names: Sequence[str], mask: int = SCAN_COLUMNS) -> ItemStatusColumns:
        return found(self.place, names, mask)


@pytest.fixture(params=BACKENDS)
def items(request: pytest.FixtureRequest, on: Any) -> Items:
    return Items(BACKENDS[request.param], on("ext4"))


def packed(names: Sequence[str]) -> bytes:
    return pack_names(map(os.fsencode, names))


def codes(result: Any) -> list[OutcomeCode]:
    return [OutcomeCode(code) for code in result.verdicts.codes]


@pytest.mark.parametrize("on_source", [False, True])
def test_stat_returns_status_of_each_name(items: Items, on_source: bool) -> None:
    names = [*items.names, "absent"]
    reported = items.do(lambda directory: StatNamesBatch(directory, packed(names), EVERYTHING, on_source))
    assert codes(reported) == [OutcomeCode.DONE] * len(items.names) + [
        OutcomeCode.SOURCE_FAILED if on_source else OutcomeCode.FAILED
    ]
    problem = reported.verdicts.problem(len(items.names))
    assert (problem.operation, problem.errno, problem.on_source) == ("stat", errno.ENOENT, on_source)
    rows = reported.rows
    for row, name in enumerate(items.names):
        there = (items.place / name).lstat()
        assert rows.mode[row] == there.st_mode
        assert (rows.uid[row], rows.gid[row]) == (there.st_uid, there.st_gid)
        assert (rows.inode[row], rows.device[row], rows.size[row]) == (there.st_ino, there.st_dev, there.st_size)
        assert (rows.atime[row], rows.mtime[row], rows.ctime[row]) == (
            there.st_atime_ns, there.st_mtime_ns, there.st_ctime_ns
        )  # fmt: skip


def test_stat_returns_requested_columns_only(items: Items) -> None:
    reported = items.do(lambda directory: StatNamesBatch(directory, packed(["file", "fifo"]), INODE_COLUMN))
    assert list(reported.rows.inode) == [(items.place / name).lstat().st_ino for name in ("file", "fifo")]
    assert not reported.rows.mode and not reported.rows.mtime and len(reported.rows) == 2
    assert items.do(lambda directory: StatNamesBatch(directory, b"")).verdicts.codes == b""


def test_stat_follows_links_on_request(items: Items) -> None:
    reported = items.do(
        lambda directory: StatNamesBatch(directory, packed(["link", "dangling"]), INODE_COLUMN, follows_links=True)
    )
    assert reported.rows.inode[0] == items.outside.stat().st_ino
    assert codes(reported) == [OutcomeCode.DONE, OutcomeCode.SOURCE_FAILED]


@pytest.mark.parametrize("most", [1, 3, 2048])
def test_list_returns_names_types_and_inodes(items: Items, most: int) -> None:
    kinds: dict[bytes, bytes] = {}
    inodes: dict[bytes, int] = {}
    directory = os.open(items.place, os.O_RDONLY)
    backend = items._backend(BackendSettings(PreservedMetadataKinds(), 0o022))
    part: ListNamesBatch | None = ListNamesBatch(directory, most, is_detailed=True)
    while part is not None:
        listed = done(backend, part)
        assert codes(listed) == [OutcomeCode.DONE] and listed.name_count <= most
        names = unpack_names(listed.names, listed.name_count)
        kinds.update(zip(names, (bytes([kind]) for kind in listed.kinds), strict=True))
        inodes.update(zip(names, listed.inodes, strict=True))
        part = listed.next_batch
    backend.close()
    os.close(directory)
    assert sorted(map(os.fsdecode, kinds)) == items.names
    assert inodes == {os.fsencode(name): (items.place / name).lstat().st_ino for name in items.names}
    found: list[str | Path] = ["find", items.place, "-mindepth", "1", "-maxdepth", "1", "-printf", "%y %f\\0"]
    lines = subprocess.run(found, check=True, capture_output=True).stdout.split(b"\0")[:-1]
    assert {name: kind for kind, name in (line.split(b" ", 1) for line in lines)} == kinds


def test_list_of_a_file_fails(items: Items) -> None:
    items.place /= "file"
    reported = items.do(ListNamesBatch)
    problem = reported.verdicts.problem(0)
    assert (problem.operation, problem.errno, problem.on_source) == ("readdir", errno.ENOTDIR, True)
    assert reported.name_count == 0 and reported.next_batch is None


def test_remove_deletes_all_but_nonempty_directories(items: Items) -> None:
    rows = items.rows(items.names)
    reported = items.do(lambda directory: RemoveItemsBatch(directory, packed(items.names), rows))
    by_name = dict(zip(items.names, codes(reported), strict=True))
    assert by_name.pop("full") is OutcomeCode.FAILED
    assert set(by_name.values()) == {OutcomeCode.DONE}
    problem = reported.verdicts.problem(items.names.index("full"))
    assert (problem.operation, problem.errno) == ("rmdir", errno.ENOTEMPTY)
    assert os.listdir(items.place) == ["full"] and items.outside.read_bytes() == b"outside"
    reported = items.do(lambda directory: RemoveItemsBatch(directory, b"file", ItemStatusColumns(1, 0)))
    assert reported.verdicts.problem(0).errno == errno.ENOENT


@pytest.mark.parametrize("kind", ["another file", "symlink", "directory"])
def test_replaced_item_is_not_removed(items: Items, kind: str) -> None:
    path, rows = items.place / "file", items.rows(["file", "fifo"])
    path.rename(items.place / "aside")
    make: dict[str, Callable[[], object]] = {
        "another file": lambda: path.write_bytes(b"another"),
        "symlink": lambda: path.symlink_to("directory"),
        "directory": path.mkdir,
    }
    make[kind]()
    reported = items.do(lambda directory: RemoveItemsBatch(directory, b"file/fifo", rows))
    assert codes(reported) == [OutcomeCode.DECIDE_AGAIN, OutcomeCode.DONE]
    assert os.path.lexists(path) and not os.path.lexists(items.place / "fifo")


def test_item_without_known_mode_is_not_removed_as_a_directory(items: Items) -> None:
    reported = items.do(lambda directory: RemoveItemsBatch(directory, b"directory/link", ItemStatusColumns(2, 0)))
    assert reported.verdicts.problem(0).operation == "unlink" and codes(reported)[1] is OutcomeCode.DONE
    assert (items.place / "directory").is_dir() and items.outside.exists()


def test_directories_are_synced(items: Items) -> None:
    """The sync of a pipe fails; the others succeed."""
    reading, writing = os.pipe()
    reported = items.do(lambda directory: SyncDirectoriesBatch((directory, reading, directory)))
    os.close(reading)
    os.close(writing)
    assert codes(reported) == [OutcomeCode.DONE, OutcomeCode.FAILED, OutcomeCode.DONE]
    problem = reported.verdicts.problem(1)
    assert (problem.operation, problem.errno) == ("fsync", errno.EINVAL)


def test_row_results_keep_all_fields_of_a_problem(items: Items) -> None:
    """Operation, attribute, errno and text of a problem survive packing into columns."""
    from pcopy.fsio.backend.columns import BatchOutcomeColumns

    problems: Iterator[Problem] = iter(
        [
            Problem("open", errno.ESTALE, on_source=True, changed=True),
            Problem("read", 0, on_source=True, changed=True, text="the file grew while it was copied"),
            Problem("read", errno.EIO, on_source=True),
            Problem("getxattr user.a b", errno.EIO, on_source=True),
            Problem("rename", errno.ESTALE, text="something else"),
            MetadataProblem("setxattr user.large", errno.ENOSPC),
        ]
    )
    verdicts = BatchOutcomeColumns(6)
    for row, problem in enumerate(problems):
        verdicts.set_problem_of_row(row, problem)
        again = verdicts.problem(row)
        assert (type(again), again.problem_as_tuple) == (type(problem), problem.problem_as_tuple)
    assert codes(type("Told", (), {"verdicts": verdicts})) == [
        OutcomeCode.SOURCE_CHANGED, OutcomeCode.SOURCE_CHANGED, OutcomeCode.SOURCE_FAILED, OutcomeCode.SOURCE_FAILED,
        OutcomeCode.FAILED,
        OutcomeCode.LACKS_METADATA
    ]  # fmt: skip
