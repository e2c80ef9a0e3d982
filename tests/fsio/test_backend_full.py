"""A batch ends early if the target is full or read-only, because every further file would fail as well."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from pcopy.fsio.backend.batches import CopyPlan, CopySmallFilesBatch, CopySmallFilesResult
from pcopy.fsio.backend.columns import OutcomeCode, pack_names
from pcopy.fsio.backend.interface import BackendSettings, BatchTicket, FileOperationBackend
from pcopy.fsio.preserve import PreservedMetadataKinds
from tests.fsio.backend_bench import BACKENDS, found
from tests.support.filesystems import mounted

FILES = 60
AT_ONCE = 4
"""Number of threads of a backend with threads: the rows that they have started are completed."""


@pytest.fixture
def full(area: Path) -> Iterator[Path]:
    """A file system without space for one large file, but with space for many small ones."""
    with mounted("tmpfs", area, size=1 << 20) as place:
        yield place


@pytest.fixture
def source(area: Path) -> Path:
    (area / "source").mkdir()
    return area / "source"


def copied(
    make: Callable[[BackendSettings], FileOperationBackend], source: Path, target: Path, names: list[str]
) -> BatchTicket[CopySmallFilesResult]:
    backend = make(BackendSettings(PreservedMetadataKinds(), 0o022))
    reading, writing = (os.open(path, os.O_RDONLY) for path in (source, target))
    try:
        packed = pack_names(map(os.fsencode, names))
        ticket = backend.submit_batch(
            CopySmallFilesBatch(reading, packed, writing, bytes([CopyPlan.NEW]) * len(names), found(source, names))
        )
        while not ticket.is_done:
            backend.poll()
        assert not len(backend.pins)
        return ticket
    finally:
        backend.close()
        os.close(reading)
        os.close(writing)


def with_files(source: Path, sizes: list[int], attribute: bool = False) -> list[str]:
    names = [f"{number:03}" for number in range(len(sizes))]
    for name, size in zip(names, sizes, strict=True):
        (source / name).write_bytes(bytes([7]) * size)
        if attribute:  # the C backend does not know this attribute at first and leaves the file to the Python backend
            os.setxattr(source / name, f"trusted.key{name}", b"value")
    return names


@pytest.mark.parametrize("attribute", [False, True], ids=["plain", "with attributes"])
@pytest.mark.parametrize("make", BACKENDS.values(), ids=BACKENDS)
def test_batch_ends_at_the_second_failure(
    make: Callable[[BackendSettings], FileOperationBackend], source: Path, full: Path, attribute: bool
) -> None:
    names = with_files(source, [2 << 20] * FILES, attribute)
    ticket = copied(make, source, full, names)
    codes, errnos = list(ticket.result.verdicts.codes), ticket.result.verdicts.errnos
    failed = codes.count(OutcomeCode.FAILED)
    assert 2 <= failed <= 1 + AT_ONCE and failed + codes.count(OutcomeCode.CANCELLED) == FILES
    assert {errnos[row] for row, code in enumerate(codes) if code == OutcomeCode.FAILED} == {errno.ENOSPC}
    assert ticket.is_cut_short and os.listdir(full) == []


@pytest.mark.parametrize("make", [make for name, make in BACKENDS.items() if name != "c-threads"])
def test_success_between_failures_lets_the_batch_continue(
    make: Callable[[BackendSettings], FileOperationBackend], source: Path, full: Path
) -> None:
    names = with_files(source, [2 << 20, 100] * (FILES // 2))
    ticket = copied(make, source, full, names)
    assert list(ticket.result.verdicts.codes) == [OutcomeCode.FAILED, OutcomeCode.DONE] * (FILES // 2)
    assert not ticket.is_cut_short and sorted(os.listdir(full)) == names[1::2]


@pytest.mark.parametrize("make", BACKENDS.values(), ids=BACKENDS)
def test_second_failure_in_the_last_row_cancels_nothing(
    make: Callable[[BackendSettings], FileOperationBackend], source: Path, full: Path
) -> None:
    """No row remains that could be cancelled."""
    ticket = copied(make, source, full, with_files(source, [2 << 20] * 2))
    assert list(ticket.result.verdicts.codes) == [OutcomeCode.FAILED] * 2 and not ticket.is_cut_short
