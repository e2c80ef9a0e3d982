"""Trials: each row is one bare system call, in every backend. An error is the result of its row."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from pcopy.fsio.backend.batches import BenchmarkCallsBatch, BenchmarkOperation
from pcopy.fsio.backend.columns import OutcomeCode, pack_names
from pcopy.fsio.backend.interface import BackendSettings, FileOperationBackend
from pcopy.fsio.preserve import PreservedMetadataKinds
from tests.fsio.backend_bench import BACKENDS, done

NAMES = [b"one", b"two", b"three\n"]

Try = Callable[..., list[tuple[int, int, str]]]


@pytest.fixture(params=list(BACKENDS.values()), ids=list(BACKENDS))
def attempt(request: pytest.FixtureRequest, area: Path) -> Try:
    """A function that makes a call for each of some names and returns code, errno and operation of each row."""
    make: Callable[[BackendSettings], FileOperationBackend] = request.param

    def tried(
        call: BenchmarkOperation, names: list[bytes] = NAMES, new_names: tuple[bytes, ...] = ()
    ) -> list[tuple[int, int, str]]:
        directory = os.open(area, os.O_RDONLY)
        backend = make(BackendSettings(PreservedMetadataKinds(), 0o022))
        try:
            verdicts = done(
                backend, BenchmarkCallsBatch(directory, pack_names(names), call, pack_names(new_names))
            ).verdicts
            failed = OutcomeCode.FAILED
            return [
                (code, verdicts.errnos[row], verdicts.problem(row).operation if code == failed else "")
                for row, code in enumerate(verdicts.codes)
            ]
        finally:
            backend.close()
            os.close(directory)

    return tried


def fine(number: int = len(NAMES)) -> list[tuple[int, int, str]]:
    return [(OutcomeCode.DONE, 0, "")] * number


def test_files_are_created_renamed_and_removed(attempt: Try, area: Path) -> None:
    assert attempt(BenchmarkOperation.CREATE) == fine()
    assert sorted(os.listdir(os.fsencode(area))) == sorted(NAMES)
    made = (area / "one").stat()
    assert (made.st_size, stat.S_IMODE(made.st_mode)) == (0, 0o600)
    assert attempt(BenchmarkOperation.STAT) == attempt(BenchmarkOperation.OPEN) == fine()
    new = (b"1", b"2", b"3")
    assert attempt(BenchmarkOperation.RENAME, new_names=new) == fine()
    assert sorted(os.listdir(os.fsencode(area))) == sorted(new)
    assert attempt(BenchmarkOperation.UNLINK, [*new]) == fine()
    assert os.listdir(area) == []


def test_each_failure_is_reported_for_its_row(attempt: Try, area: Path) -> None:
    (area / "one").write_bytes(b"contents")
    (area / "link").symlink_to("one")
    (area / "directory").mkdir()
    assert attempt(BenchmarkOperation.CREATE, [b"one", b"new"]) == [
        (OutcomeCode.FAILED, errno.EEXIST, "create"),
        *fine(1),
    ]
    assert (area / "one").read_bytes() == b"contents"
    gone = errno.ENOENT
    assert attempt(BenchmarkOperation.STAT, [b"none", b"link"]) == [(OutcomeCode.FAILED, gone, "stat"), *fine(1)]
    assert attempt(BenchmarkOperation.OPEN, [b"none", b"link"]) == [
        (OutcomeCode.FAILED, gone, "open"),
        (OutcomeCode.FAILED, errno.ELOOP, "open"),
    ]
    assert attempt(BenchmarkOperation.RENAME, [b"none"], (b"other",)) == [(OutcomeCode.FAILED, gone, "rename")]
    assert attempt(BenchmarkOperation.UNLINK, [b"directory", b"link"]) == [
        (OutcomeCode.FAILED, errno.EISDIR, "unlink"),
        *fine(1),
    ]
    assert (area / "one").exists()
