"""``CreateSmallFilesBatch`` creates small files from memory, in every backend. An error is the result of its row and
leaves no file.
"""

from __future__ import annotations

import errno
import os
import stat
from array import array
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pcopy.fsio.backend.batches import CreateSmallFilesBatch, CreateSmallFilesResult
from pcopy.fsio.backend.columns import CREATION_COLUMNS, ItemStatusColumns, OutcomeCode, pack_names
from pcopy.fsio.backend.interface import BackendSettings, FileOperationBackend
from pcopy.fsio.preserve import PreservedMetadataKinds
from tests.fsio.backend_bench import BACKENDS, done

MOMENT = 1_600_000_000_123_456_789

MakeFiles = Callable[..., CreateSmallFilesResult]

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="gives files to others")


@pytest.fixture(params=list(BACKENDS.values()), ids=list(BACKENDS))
def made(request: pytest.FixtureRequest, area: Path) -> MakeFiles:
    """A function that creates files with these names and contents; the metadata is the same for all."""
    make: Callable[[BackendSettings], FileOperationBackend] = request.param

    def make_files(
        files: dict[bytes, bytes], mode: int = 0o640, mtime: int = MOMENT, owner: tuple[int, int] = (0, 0), **more: Any
    ) -> CreateSmallFilesResult:
        number, contents = len(files), b"".join(files.values())
        rows = ItemStatusColumns(number, CREATION_COLUMNS)
        rows.mode, rows.mtime = array("I", [mode]) * number, array("q", [mtime]) * number
        rows.uid, rows.gid = (array("I", [each]) * number for each in owner)
        rows.size = array("Q", map(len, files.values()))
        offsets = array("Q", [sum(rows.size[:row]) for row in range(number)])
        directory = os.open(area, os.O_RDONLY)
        backend = make(BackendSettings(PreservedMetadataKinds(), 0o022))
        try:
            result: CreateSmallFilesResult = done(
                backend, CreateSmallFilesBatch(directory, pack_names(files), rows, contents, offsets, **more)
            )
            return result
        finally:
            backend.close()
            os.close(directory)

    return make_files


@needs_root
def test_files_are_created_with_given_contents_and_metadata(made: MakeFiles, area: Path) -> None:
    files = {b"one": b"contents", b"empty": b"", b"large\n": b"x" * 300_000}
    result = made(files, 0o4751, owner=(1234, 2345))
    assert list(result.verdicts.codes) == [OutcomeCode.DONE] * 3 and not result.metadata_outcomes
    assert result.verdicts.moved == sum(map(len, files.values()))
    for name, contents in files.items():
        status = (area / os.fsdecode(name)).stat()
        assert (area / os.fsdecode(name)).read_bytes() == contents
        assert stat.S_IMODE(status.st_mode) == 0o4751
        assert (status.st_uid, status.st_gid, status.st_mtime_ns) == (1234, 2345, MOMENT)


def test_existing_item_is_not_touched_by_make(made: MakeFiles, area: Path) -> None:
    (area / "there").write_bytes(b"before")
    (area / "link").symlink_to("elsewhere")
    ours = os.geteuid(), os.getegid()
    result = made({b"there": b"1", b"link": b"2", b"new": b"3", b"n" * 256: b"4"}, owner=ours)
    assert list(result.verdicts.codes) == [
        OutcomeCode.DECIDE_AGAIN,
        OutcomeCode.DECIDE_AGAIN,
        OutcomeCode.DONE,
        OutcomeCode.FAILED,
    ]
    problem = result.verdicts.problem(3)
    assert (problem.operation, problem.errno) == ("create", errno.ENAMETOOLONG)
    assert (area / "there").read_bytes() == b"before" and sorted(os.listdir(area)) == ["link", "new", "there"]


def test_times_before_1970_are_set(made: MakeFiles, area: Path) -> None:
    assert list(made({b"old": b"x"}, mtime=-1, owner=(os.geteuid(), os.getegid())).verdicts.codes) == [OutcomeCode.DONE]
    assert (area / "old").stat().st_mtime_ns == -1


@needs_root
def test_inherited_acl_is_removed(made: MakeFiles, area: Path) -> None:
    def entry(tag: int, may: int, whose: int = 0xFFFFFFFF) -> bytes:
        return tag.to_bytes(2, "little") + may.to_bytes(2, "little") + whose.to_bytes(4, "little")

    acl = b"\2\0\0\0" + entry(1, 7) + entry(2, 7, 1234) + entry(4, 5) + entry(0x10, 7) + entry(0x20, 0)
    try:
        os.setxattr(area, "system.posix_acl_default", acl)
    except OSError as error:
        pytest.skip(f"no ACLs here: {error.strerror}")
    assert list(made({b"new": b"x"}, 0o640, inherits_acl=True).verdicts.codes) == [OutcomeCode.DONE]
    assert os.listxattr(area / "new") == [] and stat.S_IMODE((area / "new").stat().st_mode) == 0o640
