"""Runs of pytest that are forked from a process which has imported it: most of them are shorter than its start.

The first run happens in the process itself, in the directory whose tests are to be run: whatever it imports is there
from then on, but for the program and its tests, which each further run, in a fork, imports from the directory.
"""

from __future__ import annotations

import gc
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import IO, NamedTuple, TextIO

import pytest

HUNG = -1
"""In place of a status: the run did not end in time."""


class Run(NamedTuple):
    """How pytest ended."""

    status: int
    output: str


class Warmed:
    """The side that asks."""

    def __init__(self, directory: Path, search: Path, first: Sequence[str]) -> None:
        """``search`` is where this module is found."""
        code = f"import sys; sys.path.append({str(search)!r}); from tests.mutation import warmed; warmed.main()"
        # Plugins would take longer to load than most tests run.
        environment = os.environ | {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTHONPATH": str(directory)}
        self._process = subprocess.Popen(
            [sys.executable, "-c", code, *first],
            cwd=directory,
            env=environment | {"COLUMNS": "400"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.first = self._answer()

    def run(self, arguments: Sequence[str], seconds: float) -> Run:
        """A run may take so many ``seconds``."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps([seconds, *arguments]) + "\n")
        self._process.stdin.flush()
        return self._answer()

    def _answer(self) -> Run:
        assert self._process.stdout is not None
        return Run(*json.loads(self._process.stdout.readline()))

    def close(self) -> None:
        self._process.communicate()


def main() -> None:
    """The process; it ends with its standard input."""
    with os.fdopen(os.dup(1), "w") as reported, tempfile.TemporaryFile() as output:
        for number in (1, 2):
            os.dup2(output.fileno(), number)
        status = pytest.main(sys.argv[1:])
        _tell(reported, status, output)
        for name in [name for name in sys.modules if name.partition(".")[0] in ("pcopy", "bench", "tests")]:
            del sys.modules[name]
        sys.path.pop()  # where this module was found
        sys.dont_write_bytecode = True  # of what is edited
        gc.collect()
        gc.freeze()
        for line in sys.stdin:
            seconds, *arguments = json.loads(line)
            output.seek(0)
            output.truncate()
            _tell(reported, _run(arguments, seconds), output)


def _tell(reported: TextIO, status: int, output: IO[bytes]) -> None:
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    output.seek(0)
    reported.write(json.dumps([status, output.read().decode(errors="backslashreplace")]) + "\n")
    reported.flush()


def _run(arguments: list[str], seconds: float) -> int:
    child = os.fork()
    if child == 0:
        os.setpgid(0, 0)
        status = int(pytest.main(arguments))
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        os._exit(status)
    until = time.monotonic() + seconds
    while not (ended := os.waitpid(child, os.WNOHANG))[0]:
        if time.monotonic() > until:
            os.killpg(child, signal.SIGKILL)
            os.waitpid(child, 0)
            return HUNG
        time.sleep(0.005)
    return os.waitstatus_to_exitcode(ended[1])
