"""The Python backend with scripted system calls, which cannot be done with the C backend."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from pcopy.fsio.backend import copy_rows, item_rows
from pcopy.fsio.backend.batches import (
    CopyPlan,
    CopySmallFilesBatch,
    CopySmallFilesResult,
    ListNamesBatch,
    ListNamesResult,
    ReadSmallFilesBatch,
)
from pcopy.fsio.backend.columns import BatchOutcomeColumns, OutcomeCode
from pcopy.fsio.backend.interface import BackendSettings
from pcopy.fsio.backend.python import PythonBackend
from pcopy.fsio.preserve import PreservedMetadataKinds
from tests.fsio.backend_bench import done, found


def copy_one(area: Path) -> BatchOutcomeColumns:
    source, target = area / "source", area / "target"
    source.mkdir()
    target.mkdir()
    (source / "file").touch()
    reading, writing = os.open(source, os.O_RDONLY), os.open(target, os.O_RDONLY)
    backend = PythonBackend(BackendSettings(PreservedMetadataKinds(), 0o022))
    batch = CopySmallFilesBatch(reading, b"file", writing, bytes([CopyPlan.NEW]), found(source, ["file"]))
    try:
        result: CopySmallFilesResult = done(backend, batch)
        return result.verdicts
    finally:
        backend.close()
        os.close(reading)
        os.close(writing)


def test_endless_file_of_size_zero_is_not_read_into_memory(area: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file of size 0 in FUSE or debugfs may be endless."""
    got = 0

    def read(_: int, size: int) -> bytes:
        nonlocal got
        got += size
        assert got < 64 << 20
        return bytes(size)

    monkeypatch.setattr(copy_rows, "_read", read)
    monkeypatch.setattr(os, "read", read)
    assert list(copy_one(area).codes) == [OutcomeCode.SLOW_PATH]
    assert not (area / "target/file").exists()


def test_close_error_of_a_source_fails_only_that_file(area: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """FUSE passes on the error with which its file system answers a flush."""
    calls = 0

    def close(descriptor: int) -> None:
        nonlocal calls
        os.close(descriptor)
        calls += 1
        if calls == 1:
            raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(copy_rows, "_close", close)
    problem = copy_one(area).problem(0)
    assert (problem.operation, problem.errno, problem.on_source) == ("close", errno.EIO, True)


def test_entry_of_unknown_type_is_listed(area: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A directory listing without types: each item has to be examined, and may have become unreadable."""

    class Entry:
        name = "lost"

        def is_file(self, *, follow_symlinks: bool) -> bool:
            raise OSError(errno.EIO, "Input/output error")

        def inode(self) -> int:
            return 7

    monkeypatch.setattr(item_rows, "list_directory_entries", lambda _: iter([Entry()]))
    directory = os.open(area, os.O_RDONLY)
    backend = PythonBackend(BackendSettings(PreservedMetadataKinds(), 0o022))
    try:
        listed: ListNamesResult = done(backend, ListNamesBatch(directory, is_detailed=True))
    finally:
        backend.close()
        os.close(directory)
    assert (listed.names, listed.kinds, list(listed.inodes)) == (b"lost", b"?", [7])
    assert list(listed.verdicts.codes) == [OutcomeCode.DONE]


@pytest.mark.parametrize(
    ("values", "named"),
    [((3, b"file", True, False, 4), {}), ((3, b"file"), {"copys": True}), ((3, b"file"), {"names": b"another"})],
    ids=["one too many", "misspelt", "given twice"],
)
def test_batch_rejects_wrong_fields(values: tuple[object, ...], named: dict[str, object]) -> None:
    with pytest.raises(
        TypeError,
        match="ReadSmallFilesBatch has these fields, each once: directory, names, are_copies, excludes_half_written",
    ):
        ReadSmallFilesBatch(*values, **named)  # type: ignore[arg-type]
