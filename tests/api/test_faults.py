"""Faults of the interface itself: threads that fail, resources that are refused, and uses at the same time."""

from __future__ import annotations

import errno
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import pcopy
from pcopy.api import results
from pcopy.api.running import FinishedProcess, Request, RunningJob
from tests.api.conftest import child, processes_with, progress_line
from tests.support.processes import HANGS, PROMPT, wait_until
from tests.support.warm import TOKEN

LINES_AND_SLEEP = """
import os, sys, time
failure = b'{"path_b64": "YQ==", "operation": "open", "errno": 5, "message": "no"}\\n'
os.write(STREAM, failure * 2)
time.sleep(1000)
"""


PYTHON = sys.executable


def job_of(finish: Callable[[FinishedProcess], Any] = lambda finished: finished.status) -> RunningJob[Any]:
    return RunningJob(Request("pcopy", [], finish))


class TestThreadsThatFail:
    @pytest.mark.parametrize("stream", [1, 2], ids=["output", "messages"])
    def test_line_that_cannot_be_stored(self, area: Path, monkeypatch: pytest.MonkeyPatch, stream: int) -> None:
        def fail(lines: results.JsonLines[Any], line: bytes) -> None:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

        child(area, monkeypatch, LINES_AND_SLEEP.replace("STREAM", str(stream)))
        monkeypatch.setattr(results.JsonLines, "append", fail)
        job = job_of()
        with pytest.raises(OSError, match="No space left") as failed:
            job.wait(HANGS)
        assert failed.value.errno == errno.ENOSPC
        assert list(job) == []
        assert processes_with(os.environ[TOKEN]) == []

    def test_thread_that_cannot_be_started(self, area: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """The first thread is that which reads messages; it starts the one that reads the output."""
        child(area, monkeypatch, "import time; time.sleep(1000)")
        start = threading.Thread.start
        for number in (1, 2):
            calls: list[int] = []

            def fail(thread: threading.Thread, calls: list[int] = calls, number: int = number) -> None:
                calls.append(1)
                if len(calls) == number:
                    raise RuntimeError("can't start new thread")
                start(thread)

            monkeypatch.setattr(threading.Thread, "start", fail)
            descriptors = os.listdir("/proc/self/fd")
            with pytest.raises(RuntimeError, match="can't start new thread"):
                RunningJob(Request("pcopy", [], lambda _: None, [b"a"])).wait(HANGS)
            assert len(os.listdir("/proc/self/fd")) == len(descriptors)
            assert processes_with(os.environ[TOKEN]) == []

    def test_program_that_cannot_be_started_leaves_no_descriptor(
        self, area: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(sys, "executable", str(area / "missing-python"))
        descriptors = os.listdir("/proc/self/fd")
        with pytest.raises(FileNotFoundError) as failed:
            pcopy.copy(area, area / "copy", from_=["a"])
        kept = failed  # Its frames refer to the job.
        assert len(os.listdir("/proc/self/fd")) == len(descriptors)
        assert kept.value.errno == errno.ENOENT

    @pytest.mark.parametrize("executable", ["", None, "/usr/sbin/uwsgi", PYTHON])
    def test_caller_without_a_python(self, area: Path, monkeypatch: pytest.MonkeyPatch, executable: str | None) -> None:
        """Another program has Python embedded, or is frozen. It is not started as if it were Python."""
        monkeypatch.setattr(sys, "executable", executable)
        if executable == PYTHON:
            monkeypatch.setattr(sys, "frozen", True, raising=False)
        with pytest.raises(
            pcopy.Error, match=r"^sys.executable names no Python that could run the programs: "
        ) as failed:
            pcopy.copy(area, area / "copy")
        assert str(failed.value).endswith(f": {executable or ''!r}")

    def test_listener_that_fails(self, area: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        def fail(event: object) -> None:
            raise ZeroDivisionError

        child(area, monkeypatch, "import os, time; os.write(2, b'one\\n'); time.sleep(0.5)")
        job = job_of()
        with job._listening(fail):
            assert job.wait(HANGS) == 0


class TestDeadlines:
    def test_deadline_with_many_events(self, area: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """Events that wait in the queue do not extend the time."""
        line = f"{progress_line(1)}\n".encode()
        child(area, monkeypatch, f"import os, time; [(os.write(2, {line!r}), time.sleep(0.01)) for _ in range(2000)]")
        calls: list[object] = []

        def work_slowly(event: object) -> None:
            calls.append(event)
            time.sleep(0.2)

        job: RunningJob[Any] = RunningJob(Request("pcopy", [], lambda _: None, progress=lambda _: None))
        monkeypatch.setattr(job, "_call_back", work_slowly)
        assert wait_until(job.progress)
        with pytest.raises(TimeoutError):
            job.wait(0.5)
        assert 1 <= len(calls) <= 4
        job.kill()
        job.wait(HANGS)


class TestKill:
    def test_number_of_a_process_that_was_reaped_is_not_used(self, area: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        child(area, monkeypatch, "pass")
        job = job_of()
        assert job.wait(HANGS) == 0
        sent: list[int] = []
        monkeypatch.setattr(os, "killpg", lambda number, _: sent.append(number))
        job.kill()
        assert sent == []

    def test_process_is_reaped_under_the_lock(self, area: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """While ``kill`` has the lock, the number of the process stays that of the process."""
        child(area, monkeypatch, "import sys; sys.stdin.read()")
        job = job_of()
        with job._lock:
            os.kill(job.pid, signal.SIGKILL)
            assert wait_until(lambda: "\nState:\tZ" in Path(f"/proc/{job.pid}/status").read_text(), PROMPT)
            time.sleep(0.2)
            assert Path(f"/proc/{job.pid}").exists()
        assert job.wait(HANGS) == -signal.SIGKILL


class TestWalks:
    @pytest.fixture
    def endless(self, area: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        lines = r"""
import sys
print("head")
while True:
    print('{"path": "a", "type": "file"}', flush=True)
"""
        child(area, monkeypatch, lines)

    def test_last_reference_that_ends_in_the_reader(self, area: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        code = "import os, time; time.sleep(0.5); os.write(2, b'x\\n'); os.read(0, 1)"
        child(area, monkeypatch, code)
        walk = pcopy.walk(area)
        job, box = walk._job, [walk]
        del walk
        with job._listening(lambda _: box.clear()):  # It is called in the thread that reads messages.
            assert wait_until(lambda: not box, PROMPT)
            assert wait_until(job.done, PROMPT)

    def test_walk_that_another_thread_closes_ends(self, area: Path, endless: None) -> None:
        walk = pcopy.walk(area)
        next(walk)
        while not walk._lines:  # Entries that were read before are not returned either.
            next(walk)
        walk._job.output.close()
        with pytest.raises(StopIteration):
            next(walk)
        walk.close()

    def test_close_between_the_two_first_lines(self, area: Path, endless: None) -> None:
        walk = pcopy.walk(area)
        output = walk._job.output

        class Closing:
            closed = False

            has_begun = False

            def read1(self, size: int) -> bytes:
                if self.has_begun:
                    self.closed = True
                    raise ValueError("read of closed file")
                self.has_begun = True
                return b"head\n"

            def close(self) -> None:
                output.close()

        monkeypatched: Any = Closing()
        walk._job.output = monkeypatched
        with pytest.raises(StopIteration):
            next(walk)

    @pytest.mark.parametrize("line", ["[]", "1", "null", '"text"', '{"path": 5}', '{"path": "a", "mode": null}'])
    def test_line_that_is_not_an_entry(self, area: Path, monkeypatch: pytest.MonkeyPatch, line: str) -> None:
        child(area, monkeypatch, f"print('head'); print({line!r})")
        with pytest.raises(pcopy.InternalError, match="is not an entry"):
            next(pcopy.walk(area))
