"""Silent ranks are reported and waited for; the job succeeds when they continue."""

from __future__ import annotations

import os
import re
import select
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support.command import REPOSITORY
from tests.support.faults import slowed
from tests.support.filesystems import remove
from tests.support.oracle import differences
from tests.support.processes import Run, background, wait_for_temporary, wait_until
from tests.support.walk import temporaries

MIB = 1 << 20
HOST = re.escape(socket.gethostname())
LOOK, HANGING, NO_ANSWER = 0.2, 1.5, 1.0
PROMPT = 10
"""Seconds within which a run ends once nothing hangs."""


def impatient(hanging: float = HANGING, no_answer: float = NO_ANSWER) -> list[str]:
    """Return a command prefix that makes ranks report silence after a few seconds."""
    script = str(REPOSITORY / "tests/support/impatient.py")
    return [sys.executable, script, f"{LOOK},{hanging},{LOOK},{no_answer}"]


def slow_and_impatient() -> list[str]:
    """Return the same prefix for a run that is slowed down to take more than a second."""
    return [*slowed("pwrite64", 3), *impatient()]


class Listener:
    """Reader of the standard error of a running run."""

    def __init__(self, run: Run) -> None:
        assert run.process.stderr
        self._descriptor = run.process.stderr.fileno()
        self.text = ""

    def hear(self, pattern: str, seconds: float = 30) -> bool:
        """Return True if the output matches ``pattern`` now or within ``seconds``."""
        deadline = time.monotonic() + seconds
        while not re.search(pattern, self.text):
            left = deadline - time.monotonic()
            if left <= 0 or not select.select([self._descriptor], [], [], left)[0]:
                return False
            data = os.read(self._descriptor, 65536)
            if not data:
                return False
            self.text += data.decode()
        return True


@contextmanager
def passed_through(directory: Path, point: Path) -> Iterator[int]:
    """Mount ``directory`` at ``point`` by bindfs. Yield the id of its process: while it is stopped, all calls hang."""
    program = shutil.which("bindfs")
    if program is None or not os.path.exists("/dev/fuse"):
        pytest.skip("there is no bindfs here")
    point.mkdir()
    server = subprocess.Popen([program, "-f", directory, point])
    try:
        assert wait_until(lambda: os.path.ismount(point))
        yield server.pid
    finally:
        os.kill(server.pid, signal.SIGCONT)
        subprocess.run(["fusermount", "-u", "-z", point], check=True)
        server.wait(PROMPT)


def wait_until_all_read(run: Run) -> None:
    """Wait until every rank has read some of the data and is still reading."""

    def read(pid: int) -> int:
        with open(f"/proc/{pid}/io", "rb") as file:
            return int(file.readline().split()[1])

    assert wait_until(lambda: all(read(pid) > 40 * MIB for pid in run.processes()), 60)


@pytest.fixture(scope="module")
def large(session_scratch: Path) -> Iterator[Path]:
    """Yield a source that takes long enough to copy for a test to intervene; no test changes it."""
    place = session_scratch / f"silence-{os.getpid()}"
    (place / "source").mkdir(parents=True)
    for number in range(3):
        with open(place / f"source/{number}", "wb") as file:
            for _ in range(300):
                file.write(os.urandom(1024) * 1024)
    yield place / "source"
    remove(place)


@pytest.fixture
def source(area: Path, large: Path) -> Path:
    (area / "copy").mkdir()
    return large


@pytest.fixture
def hanging(area: Path, source: Path) -> Iterator[tuple[Path, int]]:
    """Yield ``source`` mounted by bindfs, and the id of the process."""
    with passed_through(source, area / "through") as server:
        yield area / "through", server


def test_stopped_rank_is_reported_and_waited_for(area: Path, source: Path) -> None:
    with background("--chunk-size", "16M", source, area / "copy", ranks=3, wrap=slow_and_impatient()) as run:
        wait_for_temporary(run, os.fsencode(area / "copy/source"))
        listener = Listener(run)
        stopped = run.ranks()[-1]
        os.kill(stopped, signal.SIGSTOP)
        assert listener.hear(rf"pcopy: rank 2 on {HOST} has not answered for 0:01 \(since [\d:]+\); the job waits\n")
        assert listener.hear("not answered for 0:0[45]"), listener.text  # after twice the time, and after four times
        assert listener.text.count("has not answered") == 3
        time.sleep(4)
        assert run.process.poll() is None
        os.kill(stopped, signal.SIGCONT)
        assert listener.hear(rf"pcopy: rank 2 on {HOST} answers again after 0:(0[89]|1\d)"), listener.text
        assert run.end(PROMPT) == 0
        assert run.survivors() == []
    assert differences(source, area / "copy/source") == []


def test_killing_a_stopped_rank_ends_the_job(area: Path, source: Path) -> None:
    with background("--chunk-size", "16M", source, area / "copy", ranks=3, wrap=slow_and_impatient()) as run:
        wait_for_temporary(run, os.fsencode(area / "copy/source"))
        listener = Listener(run)
        stopped = run.ranks()[-1]
        os.kill(stopped, signal.SIGSTOP)
        assert listener.hear("rank 2 .* has not answered")
        os.kill(stopped, signal.SIGKILL)
        assert listener.hear(r"pcopy: rank 2 is gone: killed by SIGKILL"), listener.text
        assert run.end(PROMPT) == 70
        assert listener.text.count("is gone") == 1
        assert "Traceback" not in listener.text
        assert run.survivors() == []


def test_hanging_ranks_report_the_path(area: Path, source: Path, hanging: tuple[Path, int]) -> None:
    """Both ranks hang: rank 0 reports itself and forwards the report of the other rank."""
    through, server = hanging
    with background("--chunk-size", "16M", through, area / "copy", ranks=2, wrap=impatient(no_answer=60)) as run:
        wait_until_all_read(run)
        listener = Listener(run)
        os.kill(server, signal.SIGSTOP)
        path = re.escape(str(through))
        for rank in (0, 1):
            said = (
                rf"pcopy: rank {rank} on {HOST} has been silent for 0:0[12] \(since [\d:]+\), "
                rf"(copying|scanning|finishing)[ \w]* {path}\S*; the job waits\n"
            )
            assert listener.hear(said), listener.text
        time.sleep(2)
        os.kill(server, signal.SIGCONT)
        for rank in (0, 1):
            assert listener.hear(rf"pcopy: rank {rank} on {HOST} goes on after 0:0\d\n"), listener.text
        assert run.end(3 * PROMPT) == 0, listener.text
        assert run.survivors() == []
    assert differences(source, area / "copy/through") == []


@pytest.mark.parametrize("kept", [True, False])
def test_stop_waits_for_hanging_ranks(area: Path, hanging: tuple[Path, int], kept: bool) -> None:
    through, server = hanging
    options = ["--chunk-size", "16M", *([] if kept else ["--checkpoint", "none"])]
    with background(*options, through, area / "copy", ranks=2, wrap=impatient(60, 60)) as run:
        wait_until_all_read(run)
        listener = Listener(run)
        os.kill(server, signal.SIGSTOP)
        time.sleep(1)
        run.process.send_signal(signal.SIGTERM)
        assert listener.hear(r"rank \d .* has been silent .*; the job waits\n"), listener.text
        os.kill(server, signal.SIGCONT)
        assert run.end(PROMPT) == (75 if kept else 128 + signal.SIGTERM)
        assert run.survivors() == []
    assert kept or temporaries(os.fsencode(area / "copy")) == []


def test_second_sigint_ends_hanging_ranks(area: Path, hanging: tuple[Path, int]) -> None:
    through, server = hanging
    with background("--chunk-size", "16M", through, area / "copy", ranks=2, wrap=impatient(60, 60)) as run:
        wait_until_all_read(run)
        listener = Listener(run)
        os.kill(server, signal.SIGSTOP)
        time.sleep(1)
        for pid in run.processes():
            os.kill(pid, signal.SIGINT)
        assert listener.hear(r"rank \d .* has been silent .*; a second SIGINT leaves at once\n"), listener.text
        time.sleep(0.2)  # an earlier one would be taken for a repetition of the first
        assert run.process.poll() is None
        for pid in run.processes():
            os.kill(pid, signal.SIGINT)
        time.sleep(0.2)  # without it, the run might end in order with another status once nothing hangs
        os.kill(server, signal.SIGCONT)  # FUSE blocks even a killed process until its call returns
        assert run.end(PROMPT) == 128 + signal.SIGINT
        assert run.survivors() == []
