"""Runs that are suspended at a chosen system call, so that a test can change files before they continue."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from tests.support.command import Argument, Completed
from tests.support.faults import require_strace
from tests.support.processes import Run, background, wait_until

SYNC = ("syncfs",)
"""The call with which the phase SYNC begins: everything is copied, and nothing is verified yet."""


class Held:
    """A suspended run; ``go_on`` lets it end."""

    def __init__(self, run: Run, log: Path) -> None:
        self.run = run
        self._log = log

    def stopped(self) -> list[int]:
        """The suspended processes."""
        if not self._log.exists():
            return []
        lines = self._log.read_text(errors="replace").splitlines()
        return [int(line.split()[0]) for line in lines if line.endswith("--- stopped by SIGSTOP ---")]

    def next_stop(self) -> None:
        """Continue the only suspended process until it is suspended again."""
        before = self.stopped()
        os.kill(before[-1], signal.SIGCONT)
        assert wait_until(lambda: len(self.stopped()) > len(before)), "it did not stop again"

    def go_on(self, seconds: float = 60) -> Completed:
        """Continue it to its end, and also every process of it that is suspended on the way.

        The signal is sent again and again: one that arrives before strace lets the process wait for it is lost.
        """
        deadline = time.monotonic() + seconds
        while True:
            for process in self.stopped():
                with suppress(ProcessLookupError):
                    os.kill(process, signal.SIGCONT)
            with suppress(subprocess.TimeoutExpired):
                out, err = self.run.process.communicate(timeout=0.02)
                return Completed((), self.run.process.returncode, out, err)
            assert time.monotonic() < deadline, "it never ended"


@contextmanager
def held(
    log: Path,
    *arguments: Argument,
    calls: Sequence[str] = SYNC,
    path: Path | None = None,
    when: str = "1",
    behind: Sequence[Argument] = (),
    **options: Any,
) -> Iterator[Held]:
    """Yield a run that is suspended at the first of ``calls`` (on ``path``, if given); strace writes to the file
    ``log``.

    ``when`` (in the syntax of strace) selects the calls of each process. ``behind`` strace a launcher may follow.
    """
    require_strace()
    names = ",".join("?" + call for call in calls)
    wrap = ["strace", "-f", "-qq", "-o", str(log), *(["-P", str(path)] if path else []), "-e", f"trace={names}"]
    wrap += ["-e", f"inject={names}:signal=SIGSTOP:when={when}"]
    with background(*arguments, wrap=[*wrap, *behind], **options) as run:
        held_run = Held(run, log)
        assert wait_until(lambda: held_run.stopped() or run.process.poll() is not None), "it never stopped"
        assert run.process.poll() is None, run.process.communicate()
        yield held_run
