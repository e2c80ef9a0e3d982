"""Observing a running program: its ranks, the files that it has written so far, and what it leaves behind."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.support.command import RUN, Argument, new_token, start
from tests.support.walk import temporaries
from tests.support.warm import TOKEN

Process = subprocess.Popen[bytes]

HANGS = 60
"""Seconds after which an expected event counts as missing.

This limit only ends a test that hangs. It is the same for all events, because a busy machine may take ten times as long
as an idle one. Shorter limits are for events that must not happen. A test of response times compares with a promise of
the program (``PROMPT``), or runs alone (``@pytest.mark.alone``).
"""

PROMPT = 10
"""Seconds within which a run ends after a signal. The promise is 5 on an idle machine."""


class Run:
    """A run in the background, with all its processes."""

    def __init__(self, process: Process, token: str, before: Iterable[str] = ()) -> None:
        """``before``: the processes that existed before it, by their names in /proc."""
        self.process = process
        self._token = f"{TOKEN}={token}".encode()
        self._others = set(before)

    def processes(self) -> list[int]:
        """All living processes of this run, including the launcher; zombies do not count."""
        names = set(filter(str.isdigit, os.listdir("/proc")))
        self._others &= names  # the id of an ended process may be reused
        return [int(name) for name in sorted(names - self._others, key=int) if self._is_ours(name)]

    def send_signal(self, number: int) -> None:
        """Send a signal to the program itself, as a user would, if it still runs: strace in front of it would not
        forward it.
        """
        if self.process.poll() is not None:
            return
        started = self.process.pid
        if os.path.basename(os.readlink(f"/proc/{started}/exe")) == "strace":
            (started,) = (pid for pid in self.processes() if _parent(pid) == started)
        os.kill(started, number)

    def ranks(self) -> list[int]:
        """The copying processes: those without a child process that belongs to this run."""
        ours = [pid for pid in self.processes() if not _is_syncer(pid)]
        parents = {_parent(pid) for pid in ours}
        return [pid for pid in ours if pid not in parents]

    def survivors(self, seconds: float = PROMPT) -> list[int]:
        """Return the processes that still live after ``seconds``, which give them time to end."""
        wait_until(lambda: not self.processes(), seconds)
        return self.processes()

    def end(self, seconds: float) -> int:
        """Wait for the end; return the status as a shell shows it: 128 + signal if a signal ended the process."""
        self.process.communicate(timeout=seconds)
        status = self.process.returncode
        return 128 - status if status < 0 else status

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Stop all its processes while the context lasts."""
        stopped = self.processes()
        for pid in stopped:
            os.kill(pid, signal.SIGSTOP)
        try:
            assert wait_until(lambda: all(_state(pid) in "tT" for pid in stopped)), "it does not stop"
            yield
        finally:
            for pid in stopped:
                os.kill(pid, signal.SIGCONT)

    def kill_all(self) -> None:
        """Kill all processes at once, as a failed node would."""
        for pid in self.processes():
            _kill(pid)

    def _is_ours(self, name: str) -> bool:
        try:
            with open(f"/proc/{name}/stat", "rb") as file:
                if file.read().rsplit(b")", 1)[1].split()[0] in (b"Z", b"X"):
                    return False
            with open(f"/proc/{name}/environ", "rb") as file:
                return self._token in file.read().split(b"\0")
        except OSError:
            return False


def children() -> set[int]:
    """The child processes of this process, including those that have ended and were not waited for."""
    tasks = os.listdir("/proc/self/task")
    return {int(pid) for task in tasks for pid in Path(f"/proc/self/task/{task}/children").read_text().split()}


def _parent(pid: int) -> int:
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return int(file.read().rsplit(b")", 1)[1].split()[1])
    except OSError:
        return 0


def _state(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()[0]


def _is_syncer(pid: int) -> bool:
    """Return True if it is one of the processes that sync for a rank (``pcopy.fsio.syncer``)."""
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            return b"pcopy.fsio.syncer" in file.read()
    except OSError:
        return False


def _kill(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return


@contextmanager
def background(*arguments: Argument, **options: Any) -> Iterator[Run]:
    """Yield a run that continues while the test acts; kill its remaining processes at the end."""
    token, before = new_token(), os.listdir("/proc")
    process = start(*arguments, token=token, **options)
    run = Run(process, token, before)
    try:
        yield run
    finally:
        run.kill_all()
        process.communicate()


def wait_until(condition: Callable[[], object], seconds: float = HANGS) -> bool:
    """Return True if ``condition`` becomes true within ``seconds``. It is checked immediately, then at growing
    intervals.
    """
    begun = time.monotonic()
    while not condition():
        passed = time.monotonic() - begun
        if passed > seconds:
            return False
        time.sleep(min(max(0.002, passed / 20), 0.02))
    return True


def wait_for_temporary(run: Run, directory: bytes, seconds: float = HANGS) -> None:
    """Wait until a large file is being written, which means that the run is copying."""

    def begun() -> bool:
        return run.process.poll() is not None or (os.path.isdir(directory) and bool(temporaries(directory)))

    assert wait_until(begun, seconds), "no temporary file was ever seen"
    assert run.process.poll() is None, f"the run ended too early: {run.process.communicate()!r}"


def peak_memory(program: str, *words: object, ranks: int) -> int:
    """Run a program, which must succeed. Return the peak memory in bytes of its largest process."""
    command = [sys.executable, *RUN[program], "-q", "-n", str(ranks), *map(str, words)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    child = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL)
    _, status, used = os.wait4(child.pid, 0)
    child.returncode = os.waitstatus_to_exitcode(status)
    assert child.returncode == 0
    assert isinstance(used, resource.struct_rusage)
    return used.ru_maxrss << 10
