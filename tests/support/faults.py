"""System calls that fail, or that take their time: strace makes them, in every process of a run."""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from pathlib import Path

import pytest

READS = ("read", "pread64", "readv", "preadv", "preadv2", "copy_file_range", "sendfile", "splice")
SLOW = 3
"""Milliseconds more that a call of a slow run takes."""

ITEM_BY_ITEM = "utimensat"
"""A call that is made for each item: where it is slow, a copy takes seconds on the fastest machine."""

WRITES = ("write", "pwrite64", "writev", "pwritev", "pwritev2", "copy_file_range", "sendfile", "splice")


class Slowed(list[str]):
    """Words of strace, with which each of some calls takes longer; runs that are forked do so without strace."""

    PRELOADED = frozenset(("copy_file_range", "linkat", "mkdirat", "utimensat"))
    """What the library ``slow.c`` makes slow."""

    def __init__(self, calls: str, milliseconds: int, *options: str) -> None:
        super().__init__(["strace", "-f", "-qq", "--seccomp-bpf", *options, "-o", os.devnull, "-e", f"trace={calls}"])
        self += ["-e", f"inject={calls}:delay_enter={milliseconds}ms"]
        names = calls.split(",")
        self.delays = "" if options else ",".join(f"{name}={milliseconds}" for name in names)
        """For that library, if it knows all that is asked for; else empty."""
        if not self.PRELOADED.issuperset(names):
            self.delays = ""


def slowed(calls: str, milliseconds: int, *options: str) -> Slowed:
    """What to put in front of a command line: each of ``calls`` takes so long at least, on the fastest machine too.

    ``options`` are further ones of strace.
    """
    require_strace()
    return Slowed(calls, milliseconds, *options)


def require_strace() -> None:
    if not shutil.which("strace"):
        pytest.skip("there is no strace here")


class Fault:
    """``calls`` on ``path`` fail with ``error``: always, or as ``when`` says in strace's words (``1``, ``2+``).

    Without a path they do so on every file. Only then there can be other calls that take ``SLOW`` milliseconds each.
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
        """What to put in front of the command line."""
        require_strace()
        calls = ",".join("?" + call for call in self._calls)
        line = ["strace", "-f", "-qq", "-o", str(self._log), *(["-P", str(self._path)] if self._path else [])]
        line += ["-e", f"trace={','.join([calls, *self._slow])}"]
        if self._slow:
            line += ["-e", f"inject={','.join(self._slow)}:delay_enter={SLOW}ms"]
        return [*line, "-e", f"inject={calls}:error={self._error}:when={self._when}"]

    def check(self) -> None:
        """A fault that never happened proves nothing."""
        assert b"(INJECTED)" in self._log.read_bytes(), f"no call of {self._calls} on {self._path} was seen"
