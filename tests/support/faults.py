"""System calls that fail or that are slow, by strace in every process of a run."""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from pathlib import Path

import pytest

READS = ("read", "pread64", "readv", "preadv", "preadv2", "copy_file_range", "sendfile", "splice")
SLOW = 3
"""Additional milliseconds of a call in a slow run."""

ITEM_BY_ITEM = "utimensat"
"""A call that is made once per item: if it is slow, a copy takes seconds on the fastest machine."""

WRITES = ("write", "pwrite64", "writev", "pwritev", "pwritev2", "copy_file_range", "sendfile", "splice")


class Slowed(list[str]):
    """Arguments of strace that slow down some calls. Forked runs are slowed down without strace."""

    PRELOADED = frozenset(("copy_file_range", "linkat", "mkdirat", "utimensat"))
    """Calls that the library ``slow.c`` can slow down."""

    def __init__(self, calls: str, milliseconds: int, *options: str) -> None:
        super().__init__(["strace", "-f", "-qq", "--seccomp-bpf", *options, "-o", os.devnull, "-e", f"trace={calls}"])
        self += ["-e", f"inject={calls}:delay_enter={milliseconds}ms"]
        names = calls.split(",")
        self.delays = "" if options else ",".join(f"{name}={milliseconds}" for name in names)
        """Delays for that library, if it supports all requested calls; otherwise empty."""
        if not self.PRELOADED.issuperset(names):
            self.delays = ""


def slowed(calls: str, milliseconds: int, *options: str) -> Slowed:
    """Return the command prefix with which each of ``calls`` takes at least this long, on the fastest machine too.

    ``options`` are further options of strace.
    """
    require_strace()
    return Slowed(calls, milliseconds, *options)


def require_strace() -> None:
    if not shutil.which("strace"):
        pytest.skip("there is no strace here")


class Fault:
    """``calls`` on ``path`` fail with ``error``: always, or as ``when`` says in the syntax of strace (``1``, ``2+``).

    Without a path they fail on every file. Only then other calls can take ``SLOW`` milliseconds each.
    """

    def __init__(
        self,
        log: Path,
        calls: Sequence[str],
        path: Path | None,
        error: str,
        when: str = "1+",
        slow: Sequence[str] = (),
    ) -> None:
        assert path is None or not slow
        self._log, self._calls, self._path, self._error, self._when = log, calls, path, error, when
        self._slow = slow

    def wrap(self) -> list[str]:
        """Return the prefix of the command line."""
        require_strace()
        calls = ",".join("?" + call for call in self._calls)
        line = ["strace", "-f", "-qq", "-o", str(self._log), *(["-P", str(self._path)] if self._path else [])]
        line += ["-e", f"trace={','.join([calls, *self._slow])}"]
        if self._slow:
            line += ["-e", f"inject={','.join(self._slow)}:delay_enter={SLOW}ms"]
        return [*line, "-e", f"inject={calls}:error={self._error}:when={self._when}"]

    def check(self) -> None:
        """Check that the fault occurred; otherwise the test proves nothing."""
        assert b"(INJECTED)" in self._log.read_bytes(), f"no call of {self._calls} on {self._path} was seen"
