"""``UnpackDirectoriesBatch``, a batch of the C backend only: directories of an archive, and the small files in them."""

from __future__ import annotations

import os
import stat
import time
from array import array
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pcopy.fsio.backend.columns import CREATION_COLUMNS, ItemStatusColumns, OutcomeCode
from pcopy.fsio.backend.interface import BackendSettings
from pcopy.fsio.backend.member_batches import (
    IS_LEAF,
    IS_MEMBER,
    UNPACKED_DIRECTORY_COLUMNS,
    UnpackDirectoriesBatch,
    UnpackDirectoriesResult,
)
from pcopy.fsio.preserve import PreservedMetadataKinds
from tests.fsio.backend_bench import BackendFactory, done

MOMENT = 1_600_000_000_123_456_789
DONE, DECIDE_AGAIN = int(OutcomeCode.DONE), int(OutcomeCode.DECIDE_AGAIN)


def rows(number: int, mask: int, mode: int) -> ItemStatusColumns:
    columns = ItemStatusColumns(number, mask)
    columns.mode, columns.mtime = array("I", [mode]) * number, array("q", [MOMENT]) * number
    columns.uid, columns.gid = array("I", [os.geteuid()]) * number, array("I", [os.getegid()]) * number
    return columns


@pytest.fixture
def batch(area: Path, directory: int) -> UnpackDirectoriesBatch:
    """A leaf with two files, a directory that no member describes with one, and one that has no files yet."""
    directories, files = rows(3, UNPACKED_DIRECTORY_COLUMNS, 0o750), rows(3, CREATION_COLUMNS, 0o604)
    directories.links, files.size = array("I", [2, 1, 0]), array("Q", [3, 0, 4])
    return UnpackDirectoriesBatch(
        directory=directory,
        device=area.stat().st_dev,
        packed_paths=b"leaf\0above/other\0parent\0",
        flags=bytes((IS_MEMBER | IS_LEAF, 0, IS_MEMBER)),
        directories=directories,
        packed_names=b"one\0empty\0two\0",
        files=files,
        contents=b"fourone",
        offsets=array("Q", [4, 7, 0]),
        deadline=time.monotonic() + 60,
    )


def unpacked(make_backend: BackendFactory, batch: UnpackDirectoriesBatch) -> UnpackDirectoriesResult:
    backend = make_backend(BackendSettings(PreservedMetadataKinds(), 0o027))
    try:
        result: UnpackDirectoriesResult = done(backend, batch)
        return result
    finally:
        backend.close()


def modes(area: Path) -> dict[str, int]:
    return {str(path.relative_to(area)): stat.S_IMODE(path.stat().st_mode) for path in area.rglob("*")}


def test_directories_and_files_are_created(
    make_backend: BackendFactory, batch: UnpackDirectoriesBatch, area: Path
) -> None:
    result = unpacked(make_backend, batch)
    assert list(result.directory_codes) == [DONE, DECIDE_AGAIN, DECIDE_AGAIN]
    assert list(result.file_codes) == [DONE] * 3
    assert not any(result.unprepared)
    assert result.verdicts.moved == 7
    assert modes(area) == {
        "leaf": 0o750,
        "leaf/one": 0o604,
        "leaf/empty": 0o604,
        "above": 0o750,
        "above/other": 0o750,
        "above/other/two": 0o604,
        "parent": 0o700,
    }
    assert [(area / name).read_bytes() for name in ("leaf/one", "leaf/empty", "above/other/two")] == [
        b"one",
        b"",
        b"four",
    ]
    assert {(area / name).stat().st_mtime_ns for name in ("leaf", "leaf/one", "above/other/two")} == {MOMENT}


def test_only_the_first_directory_is_begun_after_the_deadline(
    make_backend: BackendFactory, batch: UnpackDirectoriesBatch, area: Path
) -> None:
    batch.deadline = 0.0
    result = unpacked(make_backend, batch)
    assert list(result.directory_codes) == [DONE, 0, 0]
    assert list(result.file_codes) == [DONE, DONE, 0]
    assert sorted(modes(area)) == ["leaf", "leaf/empty", "leaf/one"]


def test_directory_on_another_device_is_left(
    make_backend: BackendFactory, batch: UnpackDirectoriesBatch, area: Path
) -> None:
    batch.device += 1
    result = unpacked(make_backend, batch)
    assert not any(result.directory_codes + result.file_codes)
    assert modes(area) == {"leaf": 0o700, "above": 0o700, "parent": 0o700}
    assert list(result.unprepared) == [0, len("above"), 0]


def with_field(name: str, value: object) -> Callable[[UnpackDirectoriesBatch], None]:
    return lambda batch: setattr(batch, name, value)


COLUMN, NAMES, CONTENTS = "the column", "there is not one path", "the contents of a file"
INVALID: dict[str, tuple[str, Callable[[UnpackDirectoriesBatch], Any]]] = {
    "a path is missing": (NAMES, with_field("packed_paths", b"leaf\0above/other\0")),
    "the last path is not ended": (NAMES, with_field("packed_paths", b"leaf\0above\0other\0parent")),
    "a name is missing": (NAMES, with_field("packed_names", b"one\0empty\0")),
    "the last name is not ended": (NAMES, with_field("packed_names", b"one\0\0empty\0two")),
    "a directory has no mode": (COLUMN, lambda batch: batch.directories.mode.pop()),
    "a directory has no number of files": (COLUMN, lambda batch: batch.directories.links.pop()),
    "a file has no time": (COLUMN, lambda batch: batch.files.mtime.pop()),
    "a file has no offset": (COLUMN, lambda batch: batch.offsets.pop()),
    "the sizes are missing": ("a column", lambda batch: setattr(batch.files, "mask", UNPACKED_DIRECTORY_COLUMNS)),
    "a directory has too many files": (
        "the directories do not have as many files",
        lambda batch: setattr(batch.directories, "links", array("I", [2, 1, 1])),
    ),
    "the contents end too early": (CONTENTS, with_field("contents", b"fouron")),
    "a size is too large": (CONTENTS, lambda batch: setattr(batch.files, "size", array("Q", [3, 2**64 - 1, 4]))),
}


@pytest.mark.parametrize("case", INVALID)
def test_batch_of_which_c_would_read_beyond_the_end_is_refused(
    make_backend: BackendFactory, batch: UnpackDirectoriesBatch, case: str, area: Path
) -> None:
    text, change = INVALID[case]
    change(batch)
    with pytest.raises(ValueError, match=text):
        unpacked(make_backend, batch)
    assert modes(area) == {}
