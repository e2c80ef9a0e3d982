"""The process that performs syncs: it obeys requests, ignores signals, and keeps no descriptor that others wait for."""

from __future__ import annotations

import errno
import os
import resource
import signal
import sys
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path
from threading import Thread
from typing import NoReturn

import pytest

from pcopy.fsio.problem import Problem
from pcopy.fsio.syncer import MAX_FILES_PER_REQUEST, SyncHelperProcess
from tests.support.preload import STORING, hanging_syncs, preloaded
from tests.support.processes import children, wait_until


@pytest.fixture
def syncer() -> Iterator[SyncHelperProcess]:
    made = SyncHelperProcess()
    yield made
    made.close()


def living() -> set[int]:
    """The running child processes of this process."""
    return {pid for pid in children() if state(pid) not in ("Z", "")}


def state(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except OSError:
        return ""


def open_files(pid: int) -> list[str]:
    """Return what the descriptors of a process refer to, without those that it closes meanwhile."""
    found = []
    for descriptor in Path(f"/proc/{pid}/fd").iterdir():
        with suppress(FileNotFoundError):
            found.append(os.readlink(descriptor))
    return found


def started(syncer: SyncHelperProcess, directory: int) -> int:
    """Make the first sync and return the id of the process that it starts."""
    before = living()
    syncer.start()
    syncer.sync(directory)
    (pid,) = living() - before
    return pid


def test_one_process_performs_all_syncs(syncer: SyncHelperProcess, directory: int) -> None:
    pid = started(syncer, directory)
    before = living()
    for _ in range(3):
        syncer.sync(directory)
    assert living() == before
    assert pid in before


def test_sync_error_is_reported_with_its_errno(syncer: SyncHelperProcess, area: Path) -> None:
    searched = os.open(area, os.O_PATH)
    try:
        for _ in range(2):
            with pytest.raises(Problem) as caught:
                syncer.start()
                syncer.sync(searched)
            assert (caught.value.operation, caught.value.errno) == ("syncfs", errno.EBADF)
    finally:
        os.close(searched)


def stored(syncer: SyncHelperProcess, files: list[int]) -> list[int] | None:
    """Sync the files and return the errno of each."""
    syncer.start()
    order = syncer.request_file_sync(files)
    assert order is not None
    with closing(order):
        assert order.wait_for_answer(60)
        return order.results()


def test_several_files_are_synced_and_each_has_its_errno(syncer: SyncHelperProcess, area: Path) -> None:
    files = [os.open(area / f"{number}", os.O_RDWR | os.O_CREAT) for number in range(MAX_FILES_PER_REQUEST - 1)]
    files.insert(3, os.open(area, os.O_PATH))
    try:
        assert stored(syncer, files) == [0] * 3 + [errno.EBADF] + [0] * (MAX_FILES_PER_REQUEST - 4)
    finally:
        for file in files:
            os.close(file)


def test_slow_file_sync_delays_no_other(syncer: SyncHelperProcess, area: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another sync does not wait for it, and the process has closed the files that it has synced."""
    calls = area / "calls"
    calls.write_bytes(b"")
    for name, value in {**preloaded(STORING), "PCOPY_TEST_STORES": str(calls)}.items():
        monkeypatch.setenv(name, value)
    syncer.start()
    file = os.open(area / "file", os.O_RDWR | os.O_CREAT)
    first, second = syncer.request_file_sync([file]), syncer.request_file_sync([file])
    os.close(file)
    assert first is not None and second is not None
    assert wait_until(lambda: calls.stat().st_size == 2), "both are under way"
    directory = os.open(area, os.O_RDONLY)
    syncer.sync(directory)
    os.close(directory)
    assert not first.wait_for_answer(0.05)
    calls.unlink()
    for order in (first, second):
        with closing(order):
            assert order.wait_for_answer(60)
            assert order.results() == [0]
    assert syncer._process is not None
    assert str(area / "file") not in open_files(syncer._process.pid)


def test_file_whose_sync_hangs_is_abandoned(
    syncer: SyncHelperProcess, area: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = area / "calls"
    calls.write_bytes(b"")
    for name, value in {**preloaded(STORING), "PCOPY_TEST_STORES": str(calls)}.items():
        monkeypatch.setenv(name, value)
    syncer.start()
    file = os.open(area / "file", os.O_RDWR | os.O_CREAT)
    order = syncer.request_file_sync([file])
    os.close(file)
    assert order is not None
    assert wait_until(lambda: calls.stat().st_size == 1)
    syncer.close()
    assert order.wait_for_answer(60)
    with pytest.raises(Problem) as caught:
        order.results()
    assert (caught.value.operation, caught.value.errno) == ("fdatasync", errno.EIO)
    order.close()


def test_caller_syncs_if_the_limit_of_open_files_is_reached(syncer: SyncHelperProcess, area: Path) -> None:
    syncer.start()
    files = [os.open(area / f"{number}", os.O_RDWR | os.O_CREAT) for number in range(8)]
    assert stored(syncer, files[:1]) == [0], "it is there"
    assert syncer._process is not None
    resource.prlimit(syncer._process.pid, resource.RLIMIT_NOFILE, (8, 8))
    try:
        assert stored(syncer, files) is None
        assert stored(syncer, files[:1]) == [0]
    finally:
        for file in files:
            os.close(file)


def test_sync_process_ignores_all_signals_but_sigkill(syncer: SyncHelperProcess, directory: int) -> None:
    pid = started(syncer, directory)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGQUIT):
        os.kill(pid, number)
    syncer.sync(directory)
    os.kill(pid, signal.SIGKILL)
    assert wait_until(lambda: state(pid) in ("Z", ""))
    with pytest.raises(Problem) as caught:
        syncer.sync(directory)
    assert caught.value.operation == "syncfs"


def test_caller_syncs_files_after_the_sync_process_was_killed(syncer: SyncHelperProcess, directory: int) -> None:
    pid = started(syncer, directory)
    os.kill(pid, signal.SIGKILL)
    assert wait_until(lambda: state(pid) in ("Z", ""))
    assert syncer.request_file_sync([directory]) is None


def test_signal_mask_of_the_caller_is_restored(syncer: SyncHelperProcess, directory: int) -> None:
    before = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    started(syncer, directory)
    assert signal.pthread_sigmask(signal.SIG_BLOCK, ()) == before


def test_sync_process_inherits_no_descriptors(syncer: SyncHelperProcess, directory: int) -> None:
    reading, writing = os.pipe()
    os.set_inheritable(writing, True)
    try:
        pid = started(syncer, directory)
        held = {os.readlink(f"/proc/{pid}/fd/{name}") for name in os.listdir(f"/proc/{pid}/fd")}
    finally:
        os.close(reading)
        os.close(writing)
    assert {path.partition(":")[0] for path in held} == {"socket", os.devnull}
    assert os.readlink(f"/proc/{pid}/cwd") == "/"


def test_sync_process_ends_when_it_is_closed(syncer: SyncHelperProcess, directory: int) -> None:
    pid = started(syncer, directory)
    syncer.close()
    assert wait_until(lambda: state(pid) in ("Z", ""))


def test_sync_that_hangs_is_abandoned(
    syncer: SyncHelperProcess, directory: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in hanging_syncs(2).items():
        monkeypatch.setenv(name, value)
    pid = started(syncer, directory)
    problems: list[Problem] = []

    def sync() -> None:
        try:
            syncer.sync(directory)
        except Problem as problem:
            problems.append(problem)

    thread = Thread(target=sync)
    thread.start()
    thread.join(0.3)
    assert thread.is_alive()
    syncer.close()
    thread.join(5)
    assert [problem.operation for problem in problems] == ["syncfs"]
    assert wait_until(lambda: state(pid) in ("Z", ""))


@pytest.mark.parametrize("program", ["/nonexistent", "/bin/false"])
def test_caller_syncs_if_the_sync_process_fails_to_start(
    syncer: SyncHelperProcess, directory: int, area: Path, program: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "executable", program)
    syncer.start()
    order = syncer.request_file_sync([directory])
    if order is not None:
        assert order.wait_for_answer(60)
        assert order.results() is None, "the caller syncs"
        order.close()
    syncer.sync(directory)
    searched = os.open(area, os.O_PATH)
    try:
        with pytest.raises(Problem) as caught:
            syncer.sync(searched)
        assert caught.value.errno == errno.EBADF
    finally:
        os.close(searched)


@pytest.mark.parametrize("call", ["socket.socketpair", "subprocess.Popen"])
def test_caller_syncs_if_no_process_can_be_created(
    syncer: SyncHelperProcess, area: Path, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    def refuse(*_: object, **__: object) -> NoReturn:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    monkeypatch.setattr(call, refuse)
    before = living()
    syncer.start()
    assert living() == before
    directory = os.open(area, os.O_RDONLY)
    syncer.sync(directory)
    os.close(directory)
    with pytest.raises(Problem) as raised:  # made by this process itself
        syncer.sync(directory)
    assert raised.value.errno == errno.EBADF
