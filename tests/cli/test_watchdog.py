"""The thread that watches a rank: its report of a call that hangs, and the effect of signals during it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from functools import partial
from pathlib import Path

import pytest

from pcopy.background import BackgroundThread
from pcopy.fsio.backend.interface import RowInProgress
from pcopy.fsio.close import close_after_write
from pcopy.launch.rank import oldest_operation
from pcopy.launch.watch.watchdog import (
    MainThreadHeartbeat,
    NoticePipe,
    RankWatchdog,
    SilenceMessagePrinter,
    WatchdogIntervals,
)
from tests.support.processes import wait_until

pytestmark = pytest.mark.alone

ROOT = Path(__file__).parents[2]
PACE = WatchdogIntervals(check=0.02, own_silence=0.1, silence_after_signal=0.05, no_answer=0.1)


class Lines:
    def __init__(self) -> None:
        self.lines: list[str] = []

    def notice(self, text: str) -> None:
        self.lines.append(text)


def watchdog(pulse: MainThreadHeartbeat, lines: Lines, notes: NoticePipe | None = None) -> RankWatchdog:
    hosts = ("alpha", "beta", "gamma")
    return RankWatchdog(SilenceMessagePrinter(0, hosts, lines.notice, notes), pulse, lambda: "at work", PACE)


def test_hanging_rank_reports_where_it_hangs(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    lines, pulse = Lines(), MainThreadHeartbeat()
    watching = watchdog(pulse, lines)
    watching.start()

    def release() -> None:
        wait_until(lambda: len(lines.lines) >= 2)
        os.close(os.open(tmp_path / "fifo", os.O_WRONLY))

    thread = threading.Thread(target=release)
    thread.start()
    os.close(os.open(tmp_path / "fifo", os.O_RDONLY))  # blocks until another thread opens the FIFO for writing
    thread.join()
    pulse.beats += 1
    watching.stop()
    assert lines.lines[0].startswith("rank 0 on alpha has been silent for 0:00 (since ")
    assert lines.lines[0].endswith("), at work; the job waits")
    assert lines.lines[-1].startswith("rank 0 on alpha goes on after 0:0")


def test_hanging_row_of_another_thread_is_reported_with_its_call() -> None:
    lines, pulse = Lines(), MainThreadHeartbeat()
    rows = [RowInProgress(12.5, "create", b"/there/a\nb")]
    watching = RankWatchdog(
        SilenceMessagePrinter(0, (), lines.notice), pulse, lambda: "at work", PACE, oldest=lambda: rows[0]
    )
    watching.start()

    def heard(text: str) -> bool:
        pulse.beats += 1
        return any(text in line for line in lines.lines)

    assert wait_until(lambda: heard("has been silent for"), 60)
    assert lines.lines[0].endswith("), in create of /there/a\\nb; the job waits")
    rows[0] = RowInProgress(13.5, "", b"/there/c")
    assert wait_until(lambda: heard("goes on after"), 60)
    watching.stop()


@pytest.mark.parametrize("call", ["fdatasync", "fsync"])
@pytest.mark.parametrize("is_beside", [False, True], ids=["own thread", "another thread"])
def test_sync_of_a_file_that_hangs_is_named_with_its_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str, is_beside: bool
) -> None:
    lines, pulse, path = Lines(), MainThreadHeartbeat(), tmp_path / "file"

    def hang(descriptor: int) -> None:
        def heard() -> bool:
            pulse.beats += is_beside
            return bool(lines.lines)

        assert wait_until(heard, 60)

    monkeypatch.setattr(os, call, hang)
    watching = RankWatchdog(
        SilenceMessagePrinter(0, (), lines.notice),
        pulse,
        lambda: "at work",
        PACE,
        oldest=partial(oldest_operation, None),
    )
    watching.start()
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT)
    action = partial(close_after_write, descriptor, sync=call == "fsync", store=True)
    if is_beside:
        BackgroundThread(action).join(60)
    else:
        action()
    watching.stop()
    doing = "" if is_beside else "at work, "
    assert lines.lines[0].endswith(f"), {doing}in {call} of {path}; the job waits")
    assert oldest_operation(None) is None


def test_progressing_rank_is_not_reported() -> None:
    lines, pulse = Lines(), MainThreadHeartbeat()
    watching = watchdog(pulse, lines)
    watching.start()
    for _ in range(50):
        pulse.beats += 1
        time.sleep(0.005)
    watching.stop()
    assert lines.lines == []


def test_unresponsive_ranks_are_reported_with_their_hosts() -> None:
    lines, pulse = Lines(), MainThreadHeartbeat()
    watching = watchdog(pulse, lines)
    pulse.silent = (2,)
    watching.start()

    def get_on() -> bool:
        pulse.beats += 1
        return bool(lines.lines)

    assert wait_until(get_on)
    pulse.silent = ()
    watching.stop()
    assert lines.lines[0].startswith("rank 2 on gamma has not answered for 0:00 (since ")
    assert lines.lines[-1].startswith("rank 2 on gamma answers again after 0:00")


def test_rank_that_reported_itself_is_not_reported_twice() -> None:
    notes, lines, pulse = NoticePipe(), Lines(), MainThreadHeartbeat()
    watching = watchdog(pulse, lines, notes)
    pulse.silent = (1,)
    watching.start()
    time.sleep(2 * PACE.check)
    notes.send(1, "here I hang")
    until = time.monotonic() + 4 * PACE.no_answer
    while time.monotonic() < until:
        pulse.beats += 1
        time.sleep(0.002)
    pulse.silent = ()
    watching.stop()
    assert lines.lines == ["here I hang"]


def test_time_while_this_process_was_stopped_does_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    lines, pulse = Lines(), MainThreadHeartbeat()
    pulse.silent = (1,)
    pace = WatchdogIntervals(check=5.0, own_silence=30.0, silence_after_signal=3.0, no_answer=60.0)
    watching = RankWatchdog(SilenceMessagePrinter(0, (), lines.notice), pulse, str, pace)
    start = time.monotonic()
    for now in (start + 5, start + 1000):
        monkeypatch.setattr(time, "monotonic", lambda now=now: now)
        watching._check_signs_of_life()
    assert lines.lines == []


def test_signal_makes_rank_0_report_awaited_ranks_sooner() -> None:
    lines, pulse = Lines(), MainThreadHeartbeat()
    before = signal.signal(signal.SIGUSR1, lambda *_: None)
    try:
        watching = RankWatchdog(
            SilenceMessagePrinter(0, (), lines.notice),
            pulse,
            str,
            WatchdogIntervals(0.02, own_silence=60, silence_after_signal=0.1, no_answer=60),
        )
        pulse.silent = (1,)
        watching.start()
        os.kill(os.getpid(), signal.SIGUSR1)

        def get_on() -> bool:
            pulse.beats += 1
            return bool(lines.lines)

        assert wait_until(get_on, 60)
        watching.stop()
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert lines.lines[0].startswith("rank 1 on ")


def test_notes_reach_the_screen() -> None:
    notes, lines, pulse = NoticePipe(), Lines(), MainThreadHeartbeat()
    watching = watchdog(pulse, lines, notes)
    watching.start()
    notes.send(1, "rank 1\nhangs")
    notes.send(2, "x" * 10000)
    assert wait_until(lambda: len(lines.lines) >= 2)
    watching.stop()
    assert lines.lines[0] == "rank 1 hangs"
    assert set(lines.lines[1]) == {"x"}
    assert len(lines.lines[1]) > 4000


def test_notes_without_a_reader_are_dropped() -> None:
    notes = NoticePipe()
    notes.close_unused_pipe_end(1)
    notes.send(1, "hello")


@pytest.mark.parametrize("count", [1, 2])
def test_a_second_sigint_ends_a_rank_that_hangs(count: int) -> None:
    program = """
import os
from pcopy.launch.watch.signals import StopSignalHandler
from pcopy.launch.watch.watchdog import WatchdogIntervals, MainThreadHeartbeat, SilenceMessagePrinter, RankWatchdog
class Lines:
    def notice(self, text):
        print(text, flush=True)
signals = StopSignalHandler()
signals.install_handlers()
messages = SilenceMessagePrinter(0, (), Lines().notice)
watching = RankWatchdog(messages, MainThreadHeartbeat(), str, WatchdogIntervals(0.05, 60.0, 0.1, 60.0))
watching.start()
reading, _ = os.pipe()
print("ready", flush=True)
os.read(reading, 1)
"""
    process = subprocess.Popen([sys.executable, "-c", program], cwd=ROOT, stdout=subprocess.PIPE)
    assert process.stdout
    assert process.stdout.readline() == b"ready\n"
    process.send_signal(signal.SIGINT)
    assert b"a second SIGINT leaves at once" in process.stdout.readline()
    if count == 2:
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 130
    else:
        time.sleep(0.3)
        assert process.poll() is None
        process.kill()
    process.communicate()
