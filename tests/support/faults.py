"""System calls that fail: strace makes them, on chosen files only, in every process of a run."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

import pytest

READS = ("read", "pread64", "readv", "preadv", "preadv2", "copy_file_range", "sendfile", "splice")
WRITES = ("write", "pwrite64", "writev", "pwritev", "pwritev2", "copy_file_range", "sendfile", "splice")


class Fault:
    """``calls`` on ``path`` fail with ``error``: always, or as ``when`` says in strace's words (``1``, ``2+``)."""

    def __init__(self, log: Path, calls: Sequence[str], path: Path, error: str, when: str = "1+") -> None:
        self._log, self._calls, self._path, self._error, self._when = log, calls, path, error, when

    def wrap(self) -> list[str]:
        """What to put in front of the command line."""
        if not shutil.which("strace"):
            pytest.skip("there is no strace here")
        calls = ",".join("?" + call for call in self._calls)
        line = ["strace", "-f", "-qq", "-o", str(self._log), "-P", str(self._path), "-e", f"trace={calls}"]
        return [*line, "-e", f"inject={calls}:error={self._error}:when={self._when}"]

    def check(self) -> None:
        """A fault that never happened proves nothing."""
        assert b"(INJECTED)" in self._log.read_bytes(), f"no call of {self._calls} on {self._path} was seen"
