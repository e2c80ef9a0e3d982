"""Tickets: they are done when they are done, hold their directories open, and can be cancelled between rows."""

from __future__ import annotations

import os
import select
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from pcopy.fsio.directories import MIN_CAPACITY, DirectoryCache, RootDirectories
from pcopy.fsio.kernel.batches import CopyPlan, CopySmallFiles, RemoveItems, StatNames
from pcopy.fsio.kernel.columns import INODE, RowCode, Rows, pack_names
from pcopy.fsio.kernel.interface import Backend, BackendSettings, await_ticket
from pcopy.fsio.preserve import Preserve
from tests.fsio.kernel_bench import KERNELS, found
from tests.support import native
from tests.support.fake_kernel import FakeBackend, LateBackend

FILES = 120
"""More than any kernel does in three polls."""
NAMES = [f"{number}" for number in range(FILES)]
PACKED = pack_names(map(os.fsencode, NAMES))


@pytest.fixture(params=KERNELS)
def kernel(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Backend]:
    made = KERNELS[request.param](BackendSettings(Preserve(), 0o022))
    if request.param.startswith("c"):
        monkeypatch.setattr("pcopy.fsio.kernel.native.POLL_NANOSECONDS", 0)  # as few rows in a poll as it ever does
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


def is_readable(kernel: Backend) -> bool:
    assert kernel.wake is not None
    return bool(select.select([kernel.wake], [], [], 0)[0])


def clear(kernel: Backend) -> None:
    assert kernel.wake is not None
    kernel.wake.clear()


def may_be_ahead(kernel: Backend) -> bool:
    """Does it work by itself, so that a ticket may be done before anybody asks? (Its harness, in C, can stop it.)"""
    return getattr(kernel, "name", "") == "c" and not kernel.runs_in_poll


def opened(path: Path) -> int:
    return os.open(path, os.O_RDONLY)


@pytest.mark.parametrize("make", [FakeBackend, LateBackend])
def test_waiting_on_the_wake(make: Callable[[BackendSettings], Backend], files: Path) -> None:
    """Whoever sleeps until the wake is readable, clears it and polls, sees every ticket done, once."""
    kernel = make(BackendSettings(Preserve(), 0o022))
    directories = [opened(files / name) for name in "ab"]
    assert not is_readable(kernel) and kernel.poll() == []
    tickets = [kernel.submit(StatNames(directory, PACKED, INODE)) for directory in directories * 3]
    assert all(ticket.is_done is False for ticket in tickets)
    told: list[Any] = []
    while len(told) < len(tickets):
        assert kernel.wake is not None
        assert select.select([kernel.wake], [], [], 60)[0], "it would sleep for ever"
        clear(kernel)
        now = kernel.poll()
        assert all(ticket.is_done for ticket in now)
        told += now
    assert {id(ticket) for ticket in told} == {id(ticket) for ticket in tickets}
    clear(kernel)
    assert not is_readable(kernel) and kernel.poll() == []
    for ticket, name in zip(tickets, "ababab", strict=True):
        assert list(ticket.result.rows.inode) == [(files / name / number).stat().st_ino for number in NAMES]
    for directory in directories:
        os.close(directory)
    kernel.close()


def test_a_fake_does_them_in_another_order(files: Path) -> None:
    directory = opened(files / "a")
    orders = set()
    for seed in range(5):
        kernel = FakeBackend(BackendSettings(Preserve(), 0o022), seed)
        tickets = [kernel.submit(StatNames(directory, PACKED, INODE)) for _ in range(6)]
        order: list[int] = []
        while len(order) < len(tickets):
            order += [tickets.index(ticket) for ticket in kernel.poll()]
        orders.add(tuple(order))
        kernel.close()
    os.close(directory)
    assert len(orders) > 3


def copying(files: Path, source: int, target: int) -> CopySmallFiles:
    return CopySmallFiles(source, PACKED, target, bytes([CopyPlan.NEW]) * FILES, found(files / "a", NAMES))


@pytest.mark.parametrize("polls", [0, 1, 2, 3])
def test_what_is_cancelled_ends_between_rows(kernel: Backend, files: Path, polls: int) -> None:
    """Each row is whole or was never begun, and says which."""
    source, target = opened(files / "a"), opened(files / "target")
    ticket = kernel.submit(copying(files, source, target))
    for _ in range(polls):
        kernel.poll()
    ticket.cancel()
    while not ticket.is_done:
        kernel.poll()
    codes = ticket.result.verdicts.codes
    copied = [name for name, code in zip(NAMES, codes, strict=True) if code == RowCode.DONE]
    assert set(codes) <= {RowCode.DONE, RowCode.CANCELLED}
    assert ticket.is_cut_short == (len(copied) < FILES)
    assert ticket.is_cut_short or may_be_ahead(kernel)
    assert sorted(copied) == sorted(os.listdir(files / "target"))
    assert all((files / "target" / name).read_text() == f"a{name}" for name in copied)
    ticket.cancel()
    assert not len(kernel.pins)
    os.close(source)
    os.close(target)


def test_a_task_that_is_closed_leaves_nothing_under_way(kernel: Backend, files: Path) -> None:
    source, target = opened(files / "a"), opened(files / "target")
    ticket = kernel.submit(copying(files, source, target))
    task = await_ticket(kernel, ticket)
    next(task, None)
    task.close()
    assert ticket.is_done
    assert RowCode.CANCELLED in ticket.result.verdicts.codes or may_be_ahead(kernel)
    os.close(source)
    os.close(target)


def test_a_task_that_waits_gets_the_result(kernel: Backend, files: Path) -> None:
    directory = opened(files / "a")

    def task() -> Iterator[object]:
        told.append((yield from await_ticket(kernel, kernel.submit(StatNames(directory, PACKED, INODE)))))

    told: list[Any] = []
    yielded = set(task())
    assert len(yielded) == 1 or may_be_ahead(kernel), "it yields between slices"
    assert (None in yielded) == kernel.runs_in_poll, "it is suspended where there is somebody to wake it"
    assert list(told[0].verdicts.codes) == [RowCode.DONE] * FILES
    os.close(directory)


@pytest.mark.parametrize("make", KERNELS.values(), ids=KERNELS)
def test_closing_cancels(make: Callable[[BackendSettings], Backend], files: Path) -> None:
    at_first = len(os.listdir("/proc/self/fd"))
    kernel = make(BackendSettings(Preserve(), 0o022))
    directory = opened(files / "a")
    ticket = kernel.submit(RemoveItems(directory, PACKED, Rows(FILES, 0)))
    kernel.close()
    assert ticket.is_done and not len(kernel.pins)
    os.close(directory)
    assert len(os.listdir("/proc/self/fd")) == at_first


def test_directories_stay_open_under_a_ticket(kernel: Backend, files: Path) -> None:
    """The cache closes what was used longest ago; the next one would get its number, and the files."""
    for number in range(4 * MIN_CAPACITY):
        (files / f"other{number}").mkdir()
    base = opened(files)
    kept = DirectoryCache(MIN_CAPACITY, kernel.pins)
    directories = RootDirectories(base, 0, on_source=False, cache=kept)
    source, target = directories.open(b"a"), directories.open(b"target")
    ticket = kernel.submit(copying(files, source, target))
    number = 0
    while not ticket.is_done:
        directories.open(b"other%d" % (number % (4 * MIN_CAPACITY)))
        directories.discard(b"a")
        number += 1
        if number > MIN_CAPACITY:
            kernel.poll()
    assert number > MIN_CAPACITY
    assert list(ticket.result.verdicts.codes) == [RowCode.DONE] * FILES
    assert sorted(os.listdir(files / "target")) == sorted(NAMES)
    directories.close()
    os.close(base)
    for descriptor in (source, target):
        with pytest.raises(OSError, match="Bad file descriptor"):
            os.fstat(descriptor)


def test_what_is_no_batch(kernel: Backend) -> None:
    batch: Any = object()
    with pytest.raises((TypeError, AttributeError)):
        kernel.submit(batch)


def test_memory_that_runs_out_is_nobodys_verdict(files: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The rank has to know; nothing half copied is left, and the ticket is done."""
    from pcopy.fsio.kernel import copy_rows

    def fail(*_: object) -> int:
        raise MemoryError

    kernel: Backend = KERNELS["python"](BackendSettings(Preserve(), 0o022))
    source, target = opened(files / "a"), opened(files / "target")
    ticket = kernel.submit(copying(files, source, target))
    monkeypatch.setattr(copy_rows, "_write", fail)
    with pytest.raises(MemoryError):
        kernel.poll()
    assert ticket.is_done and not len(kernel.pins) and os.listdir(files / "target") == []
    kernel.close()
    os.close(source)
    os.close(target)


def test_bytes_of_rows_that_end_meanwhile_count(files: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Threads may end the last rows between two looks at a batch: here all end when it is asked whether they have."""
    native.require()
    from pcopy.fsio.kernel import native as in_c

    class Library:
        def __getattr__(self, name: str) -> Any:
            return getattr(library, name)

        def pk_poll(self, kernel: Any, nanoseconds: int) -> None:
            self.kernel = kernel

        def pk_is_done(self, batch: Any) -> Any:
            library.pk_poll(self.kernel, 10**10)
            return library.pk_is_done(batch)

    library = in_c._lib
    monkeypatch.setattr(in_c, "_lib", Library())
    kernel = KERNELS["c"](BackendSettings(Preserve(), 0o022))
    source, target = opened(files / "a"), opened(files / "target")
    ticket = kernel.submit(copying(files, source, target))
    while not ticket.is_done:
        kernel.poll()
    kernel.close()
    os.close(source)
    os.close(target)
    assert ticket.result.verdicts.moved == sum(path.stat().st_size for path in (files / "target").iterdir()) > 0
