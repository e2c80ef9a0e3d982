"""Calls for small files that hang in threads of the backend: the rank reports the oldest one, and ends on request.

The main thread of such a rank continues: it answers other ranks and handles signals.
"""

from __future__ import annotations

import os
import re
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from pcopy.fsio.backend.choose import backend_name
from tests.e2e.test_silence import HOST, PROMPT, Listener, impatient, passed_through
from tests.support.command import Argument, succeed
from tests.support.oracle import differences
from tests.support.processes import Run, background, wait_until

pytestmark = [
    pytest.mark.skipif(backend_name() != "c", reason="there is no C backend here"),
    pytest.mark.c_backend,
]

FILES, DIRECTORIES = 6000, 2
"""Few directories, so that no main thread creates one while files are copied."""
THREADS: list[Argument] = ["--in-flight", "8"]


@pytest.fixture
def source(area: Path) -> Path:
    for number in range(DIRECTORIES):
        directory = area / "source" / f"{number}"
        directory.mkdir(parents=True)
        for file in range(FILES // DIRECTORIES):
            (directory / f"file{file}").write_text(f"{number} {file}" * 100)
    (area / "below").mkdir()
    return area / "source"


@pytest.fixture
def target(area: Path, source: Path) -> Iterator[tuple[Path, int]]:
    """Yield a directory mounted by bindfs, and the id of the process."""
    with passed_through(area / "below", area / "through") as server:
        yield area / "through", server


def wait_until_it_copies(run: Run, below: Path) -> None:
    assert wait_until(lambda: sum(len(files) for _, _, files in os.walk(below)) > 1000, 60)
    assert run.process.poll() is None


@pytest.fixture
def env(area: Path) -> dict[str, str]:
    return {"XDG_STATE_HOME": str(area / "state")}


def count_hanging_threads(pid: int) -> int:
    """Count the threads of a rank that wait in a call for the process of the file system."""
    calls = [Path(f"/proc/{pid}/task/{task}/wchan").read_text() for task in os.listdir(f"/proc/{pid}/task")]
    return sum("request" in call for call in calls)


def states(pid: int) -> dict[int, str]:
    """Return the states of the threads of a process, as in proc(5)."""
    tasks = Path(f"/proc/{pid}/task")
    return {int(each): (tasks / each / "stat").read_text().rpartition(")")[2].split()[0] for each in os.listdir(tasks)}


def has_ended(run: Run) -> bool:
    """Return True if the run has ended except for threads in calls of the stopped file system."""
    if run.process.poll() is not None:
        return True
    try:
        found = [(task != pid, state) for pid in run.processes() for task, state in states(pid).items()]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return all(state in "ZX" or (state == "D" and is_worker) for is_worker, state in found)


@pytest.mark.parametrize("kept", [True, False])
def test_stop_waits_for_hanging_threads_and_reports_the_path(
    area: Path, source: Path, target: tuple[Path, int], env: dict[str, str], kept: bool
) -> None:
    through, server = target
    options: list[Argument] = [*THREADS, *([] if kept else ["--checkpoint", "none"])]
    with background(*options, "-T", source, through / "copy", ranks=2, wrap=impatient(), env=env) as run:
        wait_until_it_copies(run, area / "below")
        listener = Listener(run)
        os.kill(server, signal.SIGSTOP)
        path = re.escape(str(through / "copy"))
        for rank in (0, 1):
            said = (
                rf"pcopy: rank {rank} on {HOST} has been silent for 0:0[123] \(since [\d:]+\), "
                rf"(\w[ \w]+ \S+, )?in \w+ of {path}/\d+/(file\d+)?; the job waits\n"
            )
            assert listener.hear(said), listener.text
        run.process.send_signal(signal.SIGTERM)
        time.sleep(1)
        assert run.process.poll() is None
        os.kill(server, signal.SIGCONT)
        assert run.end(PROMPT) == (75 if kept else 128 + signal.SIGTERM), listener.text
        assert run.survivors() == []
    if kept:
        succeed("--resume", ranks=3, env=env)
        assert differences(source, area / "below/copy") == []
    for path, _, names in os.walk(area / "below/copy"):
        for name in names:
            copied = Path(path, name)
            assert copied.read_bytes() == (source / copied.relative_to(area / "below/copy")).read_bytes()


def test_second_sigint_ends_a_run_with_hanging_threads(source: Path, area: Path, target: tuple[Path, int]) -> None:
    through, server = target
    with background(*THREADS, "-T", source, through / "copy", ranks=2, wrap=impatient()) as run:
        wait_until_it_copies(run, area / "below")
        listener = Listener(run)
        os.kill(server, signal.SIGSTOP)
        run.process.send_signal(signal.SIGINT)
        assert listener.hear("a second SIGINT leaves at once"), listener.text
        run.process.send_signal(signal.SIGINT)
        try:
            assert wait_until(lambda: has_ended(run), PROMPT)
        finally:
            os.kill(server, signal.SIGCONT)
        assert run.end(PROMPT) == 130
        assert run.survivors() == []


def test_lost_rank_ends_the_job_despite_hanging_threads(source: Path, area: Path, target: tuple[Path, int]) -> None:
    """Rank 0 waits some seconds for its threads and exits.

    The lost rank has no call in progress: it could not die before that returns.
    """
    through, server = target
    with background(*THREADS, "-T", source, through / "copy", ranks=2, wrap=impatient()) as run:
        wait_until_it_copies(run, area / "below")
        listener = Listener(run)
        (other,) = set(run.ranks()) - {run.process.pid}
        os.kill(other, signal.SIGSTOP)
        assert wait_until(lambda: set(states(other).values()) == {"T"})
        os.kill(server, signal.SIGSTOP)
        try:
            assert wait_until(lambda: count_hanging_threads(run.process.pid))
            os.kill(other, signal.SIGKILL)
            assert listener.hear("rank 1 is gone", 15), listener.text
            assert wait_until(lambda: has_ended(run), PROMPT), listener.text
        finally:
            os.kill(server, signal.SIGCONT)
        assert run.end(PROMPT) == 70, listener.text
        assert "Traceback" not in listener.text
        assert run.survivors() == []
