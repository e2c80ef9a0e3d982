"""Runs that strace stops at a certain system call, so that a test can change files at that moment.

The signal is sent when the call begins and stops the process, with all its threads, when the call is complete; then the
test changes files and continues the process.
"""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

from tests.support.command import Argument, Completed
from tests.support.faults import require_strace
from tests.support.processes import background, wait_until

SECONDS = 20
PATIENCE = 1.0


class Stops:
    """Stop the run at ``calls`` on ``paths`` (absolute: of a descriptor; otherwise the name that is looked up).

    ``when`` selects calls in the syntax of strace, counted in each process separately.
    """

    def __init__(self, log: Path, calls: str, paths: Sequence[str], when: str) -> None:
        self._log, self._calls, self._paths, self._when = log, calls, paths, when
        self._leaders: dict[int, bool] = {}
        self._waits = 0

    def _wrap(self) -> list[str]:
        require_strace()
        calls = ",".join("?" + call for call in self._calls.split())
        line = ["strace", "-f", "-o", str(self._log), "-e", f"trace={calls}"]
        for path in self._paths:
            line += ["-P", path]
        return [*line, "-e", f"inject={calls}:signal=SIGSTOP:when={self._when}"]

    def run(self, act: Callable[[int], None], *arguments: Argument, ranks: int = 1) -> tuple[Completed, int]:
        """Return the finished run and the number of its stops; ``act`` is called with the number of each stop, from
        0."""
        seen = 0
        with background(*arguments, ranks=ranks, wrap=self._wrap()) as run:
            while True:
                moved = wait_until(
                    lambda seen=seen: run.process.poll() is not None or len(self._stopped()) > seen,  # type: ignore[misc]
                    PATIENCE,
                )
                stopped = self._stopped()
                for process in stopped[seen:]:
                    act(seen)
                    seen += 1
                    _go_on(process)
                if run.process.poll() is not None:
                    break
                if not moved:
                    assert self._waits < SECONDS / PATIENCE, f"the run hangs: {self._log.read_bytes()[-3000:]!r}"
                    self._waits += 1
                    for process in stopped:  # a stop of several threads may need a second SIGCONT
                        _go_on(process)
            output, errors = run.process.communicate()
            return Completed(run.process.args, run.process.returncode, output, errors), seen

    def _stopped(self) -> list[int]:
        """Return the processes in the order of their stops. All threads stop; the first thread of each process makes
        the calls."""
        if not self._log.exists():
            return []
        reported = re.findall(rb"^(\d+) +--- stopped by SIGSTOP", self._log.read_bytes(), re.MULTILINE)
        return [pid for pid in map(int, reported) if self._leaders.setdefault(pid, _leads(pid))]


def _leads(pid: int) -> bool:
    try:
        return f"\nTgid:\t{pid}\n" in Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return False


def _go_on(process: int) -> None:
    with suppress(ProcessLookupError):
        os.kill(process, signal.SIGCONT)
