"""Threads that end for lack of memory after they have begun: nothing waits for them forever, nothing counts as done."""

from __future__ import annotations

import os
import re
import signal
import socket
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

import pcopy
from pcopy import background
from pcopy.background import BackgroundThread, run_in_background
from pcopy.checkpoint import journal as journal_module
from pcopy.checkpoint.journal import ThreadedTaskJournal
from pcopy.checkpoint.record import TaskRecordCollector
from pcopy.engine.messages import ABANDONED_EPOCH
from pcopy.errors import RequestRefused
from pcopy.fsio import helper_thread, syncer
from pcopy.fsio.helper_thread import HelperThread
from pcopy.fsio.throttle import Throttle
from pcopy.jobs import lifecycle
from pcopy.launch import control
from pcopy.launch.rank_control import RankLimiter, UserLimits
from pcopy.launch.watch import signals as signals_module
from pcopy.launch.watch import watchdog as watchdog_module
from pcopy.launch.watch.signals import StopSignalHandler
from pcopy.launch.watch.watchdog import MainThreadHeartbeat, RankWatchdog, SilenceMessagePrinter, WatchdogIntervals
from pcopy.tasks.base.job import JobCounters
from pcopy.tools.director import JOB_STAGES
from tests.checkpoint.test_journal import Storage
from tests.support.processes import wait_until

SECONDS = 20.0
"""No wait takes longer, though each thread ends before its work is done."""


class ThreadWithoutMemory(BackgroundThread):
    """A thread that begins, and ends before the first operation of its action."""

    def __init__(self, _: Callable[[], object]) -> None:
        super().__init__(_fail)


def _fail() -> None:
    raise MemoryError


def _helper_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[int] = []
    monkeypatch.setattr(helper_thread, "BackgroundThread", ThreadWithoutMemory)
    helper = HelperThread()
    helper.submit_call(done.append, 1)
    helper.submit_call(done.append, 2)
    for _ in range(2):  # each call that was not made is an error
        with pytest.raises(MemoryError):
            helper.wait(helper._pending - 1)
    helper.wait()
    helper.submit_call(done.append, 3)
    helper.wait()
    assert helper.pending_call_count == 0
    assert done == [3]
    helper = HelperThread()
    helper.submit_call(done.append, 4)
    helper.wait_for_calls_ignoring_errors()
    assert helper.pending_call_count == 0


def _work_of_a_task(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(background, "BackgroundThread", ThreadWithoutMemory)
    with pytest.raises(MemoryError):
        list(run_in_background(lambda: None, 0.01))


def _journal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journal_module, "BackgroundThread", ThreadWithoutMemory)
    storage = Storage()
    journal = ThreadedTaskJournal(TaskRecordCollector(1, 0, 1), storage, storage.sync)
    journal.end_epoch(1, 0)
    monkeypatch.setattr(journal_module, "BackgroundThread", BackgroundThread)  # memory is free again

    def has_failed() -> bool:
        journal.check_thread()
        return journal.has_failed

    assert wait_until(has_failed)
    assert journal.warning is not None
    assert "no more checkpoints" in journal.warning
    assert "ENOMEM" in journal.warning
    journal.abandon_records()
    assert wait_until(lambda: journal.durable_epoch == ABANDONED_EPOCH)
    assert journal.close(5)
    assert storage.calls == ["withdraw"]


def _end_of_a_journal(monkeypatch: pytest.MonkeyPatch) -> None:
    """The thread ends just before the journal is closed, and no other thread can be started."""
    monkeypatch.setattr(journal_module, "BackgroundThread", ThreadWithoutMemory)
    storage = Storage()
    journal = ThreadedTaskJournal(TaskRecordCollector(1, 0, 1), storage, storage.sync)
    journal.end_epoch(1, 0)
    monkeypatch.setattr(journal_module, "BackgroundThread", partial(_fail_with, OSError("no thread")))
    assert journal.close(5)
    assert journal.has_failed
    assert journal.durable_epoch == 0
    assert storage.calls == []


def _broken_journal(monkeypatch: pytest.MonkeyPatch) -> None:
    """An exception that is no lack of a resource ends the job."""

    class Broken(BackgroundThread):
        def __init__(self, _: Callable[[], object]) -> None:
            super().__init__(partial(_fail_with, AssertionError("a bug")))

    monkeypatch.setattr(journal_module, "BackgroundThread", Broken)
    storage = Storage()
    journal = ThreadedTaskJournal(TaskRecordCollector(1, 0, 1), storage, storage.sync)
    journal.end_epoch(1, 0)
    with pytest.raises(AssertionError, match="a bug"):
        journal.close(5)


def _end_of_a_job(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lifecycle, "BackgroundThread", ThreadWithoutMemory)
    for patience in (None, SECONDS):
        with pytest.raises(RequestRefused, match="ENOMEM"):
            lifecycle._run_within_timeout(patience, lambda: None)


def _start_of_a_job(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(signals_module, "BackgroundThread", ThreadWithoutMemory)
    with pytest.raises(MemoryError):
        StopSignalHandler().run_unless_stopped(lambda: 7)


def _requests_of_the_user(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(control, "BackgroundThread", ThreadWithoutMemory)
    limiter = RankLimiter(0, 1, Throttle(), UserLimits())
    with TemporaryDirectory() as directory:
        thread = control.JobControlThread(directory.encode(), 1, 1, JOB_STAGES, limiter, print)
        thread.start()
        monkeypatch.setattr(control, "BackgroundThread", BackgroundThread)  # memory is free again

        def runs_again() -> bool:
            thread.report_progress("copy", JobCounters(), ())
            return thread._thread is not None and thread._thread.error is None and not thread._thread.join(0)

        assert wait_until(runs_again)
        thread.stop()


def _sync_request(monkeypatch: pytest.MonkeyPatch) -> None:
    """The rank sees the end of the socket, and syncs the files itself."""
    monkeypatch.setattr(syncer, "_sync_files", partial(_fail_with, MemoryError()))
    rank, helper = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    rank.settimeout(SECONDS)
    file = os.open(os.devnull, os.O_WRONLY)
    with rank:
        with pytest.raises(MemoryError):
            syncer._handle_request(syncer._FILES_REQUEST, 1, [helper.detach(), file])
        assert rank.recv(1) == b""
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(file)


def _fail_with(error: BaseException, *_: object) -> None:
    raise error


def _watchdog(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the thread the main thread receives the signals that stop the job."""

    class WithoutMemory(background.DetachedThread):
        def __init__(self, _: Callable[[], object]) -> None:
            super().__init__(lambda: None)

    monkeypatch.setattr(watchdog_module, "DetachedThread", WithoutMemory)
    lines: list[str] = []
    arrived: list[int] = []
    before = signal.signal(signal.SIGUSR1, lambda number, _: arrived.append(number))
    voice = SilenceMessagePrinter(0, (), lines.append)
    watching = RankWatchdog(voice, MainThreadHeartbeat(), lambda: "", WatchdogIntervals())
    watching.start()
    try:

        def is_noticed() -> bool:
            watching.check_thread()
            return bool(lines)

        assert wait_until(is_noticed)
        assert signal.SIGUSR1 not in signal.pthread_sigmask(signal.SIG_BLOCK, ())
        os.kill(os.getpid(), signal.SIGUSR1)
        assert wait_until(lambda: arrived == [signal.SIGUSR1])
    finally:
        watching.stop()
        signal.signal(signal.SIGUSR1, before)
    assert len(lines) == 1
    assert lines[0].startswith("rank 0: cannot watch for silent ranks: Cannot allocate memory (ENOMEM)")


USERS = {
    "pcopy/fsio/helper_thread.py": _helper_thread,
    "pcopy/background.py": _work_of_a_task,
    "pcopy/checkpoint/journal.py": _journal,
    "pcopy/checkpoint/journal.py, at its end": _end_of_a_journal,
    "pcopy/checkpoint/journal.py, broken": _broken_journal,
    "pcopy/jobs/lifecycle.py": _end_of_a_job,
    "pcopy/launch/watch/signals.py": _start_of_a_job,
    "pcopy/launch/control.py": _requests_of_the_user,
    "pcopy/fsio/syncer.py": _sync_request,
    "pcopy/launch/watch/watchdog.py": _watchdog,
}
"""The modules that start threads, and a test of each."""


@pytest.mark.timeout(60)
@pytest.mark.parametrize("user", USERS)
def test_thread_that_ends_for_lack_of_memory_is_noticed(user: str, monkeypatch: pytest.MonkeyPatch) -> None:
    began = time.monotonic()
    USERS[user](monkeypatch)
    assert time.monotonic() < began + SECONDS


def test_every_module_that_starts_threads_is_in_the_table() -> None:
    root = Path(pcopy.__file__).parent
    starting = re.compile(r"\b(?:BackgroundThread|DetachedThread|start_new_thread|Thread)\(")
    found = {
        f"pcopy/{path.relative_to(root)}"
        for path in root.rglob("*.py")
        if path.parent.name != "api"  # It runs in other programs; tests/api/test_faults.py has its threads.
        and starting.search(re.sub(r"^class .*$|``[^`]*``", "", path.read_text(), flags=re.MULTILINE))
    }
    assert found == {user.partition(",")[0] for user in USERS}
