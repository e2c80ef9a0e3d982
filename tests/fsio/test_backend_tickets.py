"""Tickets: they report completion, keep their directories open, and can be cancelled between rows."""

from __future__ import annotations

import os
import select
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from pcopy.fsio.backend.batches import CopyPlan, CopySmallFilesBatch, RemoveItemsBatch, StatNamesBatch
from pcopy.fsio.backend.columns import INODE_COLUMN, ItemStatusColumns, OutcomeCode, pack_names
from pcopy.fsio.backend.interface import BackendSettings, FileOperationBackend, await_ticket
from pcopy.fsio.directories import MIN_CACHED_DIRECTORIES, DirectoriesBelowRoot, DirectoryCache
from pcopy.fsio.preserve import PreservedMetadataKinds
from tests.fsio.backend_bench import BACKENDS, found
from tests.support import native
from tests.support.fake_backend import FakeBackend, LateBackend

FILES = 120
"""More rows than any backend completes in three polls."""
NAMES = [f"{number}" for number in range(FILES)]
PACKED = pack_names(map(os.fsencode, NAMES))


@pytest.fixture(params=BACKENDS)
def backend(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[FileOperationBackend]:
    made = BACKENDS[request.param](BackendSettings(PreservedMetadataKinds(), 0o022))
    if request.param.startswith("c"):
        monkeypatch.setattr("pcopy.fsio.backend.native.POLL_NANOSECONDS", 0)  # as few rows per poll as possible
    yield made
    made.close()
    assert not len(made.pins)


@pytest.fixture
def files(area: Path) -> Path:
    """Directories with files."""
    for directory in ("a", "b", "target"):
        (area / directory).mkdir()
    for name in NAMES:
        (area / "a" / name).write_text(f"a{name}")
        (area / "b" / name).write_text(f"b{name}")
    return area


def is_readable(backend: FileOperationBackend) -> bool:
    assert backend.wake is not None
    return bool(select.select([backend.wake], [], [], 0)[0])


def clear(backend: FileOperationBackend) -> None:
    assert backend.wake is not None
    backend.wake.clear()


def may_be_ahead(backend: FileOperationBackend) -> bool:
    """Return True if the backend works between polls, so that a ticket may be done before it is polled."""
    return getattr(backend, "name", "") == "c" and not backend.runs_in_poll


def opened(path: Path) -> int:
    return os.open(path, os.O_RDONLY)


@pytest.mark.parametrize("make", [FakeBackend, LateBackend])
def test_waiting_on_the_wake_event_yields_each_ticket_once(
    make: Callable[[BackendSettings], FileOperationBackend], files: Path
) -> None:
    """A caller that waits until the wake event is readable, clears it and polls, sees every ticket done, exactly
    once.
    """
    backend = make(BackendSettings(PreservedMetadataKinds(), 0o022))
    directories = [opened(files / name) for name in "ab"]
    assert not is_readable(backend) and backend.poll() == []
    tickets = [backend.submit_batch(StatNamesBatch(directory, PACKED, INODE_COLUMN)) for directory in directories * 3]
    assert all(ticket.is_done is False for ticket in tickets)
    reported: list[Any] = []
    while len(reported) < len(tickets):
        assert backend.wake is not None
        assert select.select([backend.wake], [], [], 60)[0], "it would sleep for ever"
        clear(backend)
        now = backend.poll()
        assert all(ticket.is_done for ticket in now)
        reported += now
    assert {id(ticket) for ticket in reported} == {id(ticket) for ticket in tickets}
    clear(backend)
    assert not is_readable(backend) and backend.poll() == []
    for ticket, name in zip(tickets, "ababab", strict=True):
        assert list(ticket.result.rows.inode) == [(files / name / number).stat().st_ino for number in NAMES]
    for directory in directories:
        os.close(directory)
    backend.close()


def test_fake_backend_completes_tickets_in_random_order(files: Path) -> None:
    directory = opened(files / "a")
    orders = set()
    for seed in range(5):
        backend = FakeBackend(BackendSettings(PreservedMetadataKinds(), 0o022), seed)
        tickets = [backend.submit_batch(StatNamesBatch(directory, PACKED, INODE_COLUMN)) for _ in range(6)]
        order: list[int] = []
        while len(order) < len(tickets):
            order += [tickets.index(ticket) for ticket in backend.poll()]
        orders.add(tuple(order))
        backend.close()
    os.close(directory)
    assert len(orders) > 3


def copying(files: Path, source: int, target: int) -> CopySmallFilesBatch:
    return CopySmallFilesBatch(source, PACKED, target, bytes([CopyPlan.NEW]) * FILES, found(files / "a", NAMES))


@pytest.mark.parametrize("polls", [0, 1, 2, 3])
def test_cancelled_ticket_ends_between_rows(backend: FileOperationBackend, files: Path, polls: int) -> None:
    """Each row is either complete or was never started, and its code says which."""
    source, target = opened(files / "a"), opened(files / "target")
    ticket = backend.submit_batch(copying(files, source, target))
    for _ in range(polls):
        backend.poll()
    ticket.cancel()
    while not ticket.is_done:
        backend.poll()
    codes = ticket.result.verdicts.codes
    copied = [name for name, code in zip(NAMES, codes, strict=True) if code == OutcomeCode.DONE]
    assert set(codes) <= {OutcomeCode.DONE, OutcomeCode.CANCELLED}
    assert ticket.is_cut_short == (len(copied) < FILES)
    assert ticket.is_cut_short or may_be_ahead(backend)
    assert sorted(copied) == sorted(os.listdir(files / "target"))
    assert all((files / "target" / name).read_text() == f"a{name}" for name in copied)
    ticket.cancel()
    assert not len(backend.pins)
    os.close(source)
    os.close(target)


def test_closing_a_task_cancels_its_ticket(backend: FileOperationBackend, files: Path) -> None:
    source, target = opened(files / "a"), opened(files / "target")
    ticket = backend.submit_batch(copying(files, source, target))
    task = await_ticket(backend, ticket)
    next(task, None)
    task.close()
    assert ticket.is_done
    assert OutcomeCode.CANCELLED in ticket.result.verdicts.codes or may_be_ahead(backend)
    os.close(source)
    os.close(target)


def test_waiting_task_gets_the_result(backend: FileOperationBackend, files: Path) -> None:
    directory = opened(files / "a")

    def task() -> Iterator[object]:
        reported.append(
            (yield from await_ticket(backend, backend.submit_batch(StatNamesBatch(directory, PACKED, INODE_COLUMN))))
        )

    reported: list[Any] = []
    yielded = set(task())
    assert len(yielded) == 1 or may_be_ahead(backend), "it yields between slices"
    assert (None in yielded) == backend.runs_in_poll, "it is suspended where there is somebody to wake it"
    assert list(reported[0].verdicts.codes) == [OutcomeCode.DONE] * FILES
    os.close(directory)


@pytest.mark.parametrize("make", BACKENDS.values(), ids=BACKENDS)
def test_closing_the_backend_cancels_its_tickets(
    make: Callable[[BackendSettings], FileOperationBackend], files: Path
) -> None:
    at_first = len(os.listdir("/proc/self/fd"))
    backend = make(BackendSettings(PreservedMetadataKinds(), 0o022))
    directory = opened(files / "a")
    ticket = backend.submit_batch(RemoveItemsBatch(directory, PACKED, ItemStatusColumns(FILES, 0)))
    backend.close()
    assert ticket.is_done and not len(backend.pins)
    os.close(directory)
    assert len(os.listdir("/proc/self/fd")) == at_first


def test_directories_stay_open_while_a_ticket_uses_them(backend: FileOperationBackend, files: Path) -> None:
    """The cache closes the least recently used directory; the next one opened would get its number, and the files."""
    for number in range(4 * MIN_CACHED_DIRECTORIES):
        (files / f"other{number}").mkdir()
    base = opened(files)
    kept = DirectoryCache(MIN_CACHED_DIRECTORIES, backend.pins)
    directories = DirectoriesBelowRoot(base, 0, on_source=False, cache=kept)
    source, target = directories.open(b"a"), directories.open(b"target")
    ticket = backend.submit_batch(copying(files, source, target))
    number = 0
    while not ticket.is_done:
        directories.open(b"other%d" % (number % (4 * MIN_CACHED_DIRECTORIES)))
        directories.discard_directory(b"a")
        number += 1
        if number > MIN_CACHED_DIRECTORIES:
            backend.poll()
    assert number > MIN_CACHED_DIRECTORIES
    assert list(ticket.result.verdicts.codes) == [OutcomeCode.DONE] * FILES
    assert sorted(os.listdir(files / "target")) == sorted(NAMES)
    directories.close()
    os.close(base)
    for descriptor in (source, target):
        with pytest.raises(OSError, match="Bad file descriptor"):
            os.fstat(descriptor)


def test_object_that_is_not_a_batch_is_rejected(backend: FileOperationBackend) -> None:
    batch: Any = object()
    with pytest.raises((TypeError, AttributeError)):
        backend.submit_batch(batch)


def test_out_of_memory_is_raised_and_not_a_row_result(files: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The error reaches the rank. No incomplete copy remains, and the ticket is done."""
    from pcopy.fsio.backend import copy_rows

    def fail(*_: object) -> int:
        raise MemoryError

    backend: FileOperationBackend = BACKENDS["python"](BackendSettings(PreservedMetadataKinds(), 0o022))
    source, target = opened(files / "a"), opened(files / "target")
    ticket = backend.submit_batch(copying(files, source, target))
    monkeypatch.setattr(copy_rows, "_write", fail)
    with pytest.raises(MemoryError):
        backend.poll()
    assert ticket.is_done and not len(backend.pins) and os.listdir(files / "target") == []
    backend.close()
    os.close(source)
    os.close(target)


def test_bytes_of_rows_completed_between_polls_are_counted(files: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Threads may complete the last rows between two polls. Here all end when the batch is asked whether it is done."""
    native.require()
    from pcopy.fsio.backend import native as in_c

    class Library:
        def __getattr__(self, name: str) -> Any:
            return getattr(library, name)

        def pk_poll(self, backend: Any, nanoseconds: int) -> None:
            self.backend = backend

        def pk_is_done(self, batch: Any) -> Any:
            library.pk_poll(self.backend, 10**10)
            return library.pk_is_done(batch)

    library = in_c._lib
    monkeypatch.setattr(in_c, "_lib", Library())
    backend = BACKENDS["c"](BackendSettings(PreservedMetadataKinds(), 0o022))
    source, target = opened(files / "a"), opened(files / "target")
    ticket = backend.submit_batch(copying(files, source, target))
    while not ticket.is_done:
        backend.poll()
    backend.close()
    os.close(source)
    os.close(target)
    assert ticket.result.verdicts.moved == sum(path.stat().st_size for path in (files / "target").iterdir()) > 0
