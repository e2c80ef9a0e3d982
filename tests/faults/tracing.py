"""Run a command of pcopy under strace: in a child of this process, which has imported the program, or under mpiexec."""

from __future__ import annotations

import importlib
import json
import os
import pkgutil
import re
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

SECONDS = 40.0
"""Seconds after which a run is considered to hang. The longest pause of the program is a few seconds."""

MPIEXEC = "mpiexec"
"""The first argument of a run of two ranks; the second argument is the rank that is traced."""

TRACED = "PCOPY_TRACED"
"""The environment variable with the rank to trace, the directory of the run, and the options of strace."""


def load() -> None:
    """Import all modules that a run may import later: system calls of the import are made by the interpreter."""
    import pcopy

    for module in pkgutil.walk_packages(pcopy.__path__, "pcopy."):
        if not re.search(r"mpi|simulat|__main__", module.name):
            with suppress(ImportError):
                importlib.import_module(module.name)
    for name in ("ctypes", "subprocess", "xxhash"):
        importlib.import_module(name)


class Ended(NamedTuple):
    status: int
    """-1 if the run hung; another negative number is the signal that ended it."""
    output: str
    log: str

    @property
    def injected(self) -> bool:
        return "(INJECTED)" in self.log


def run(words: Sequence[str], place: Path, options: Sequence[str], stop: Callable[[], bool] = lambda: False) -> Ended:
    """Run a command in a child of this process, under strace (with ``options``) or without it.

    The run gets a SIGTERM as soon as ``stop`` returns True.
    """
    output, log = place / "output", place / "log"
    log.write_bytes(b"")
    forked = words[0] != MPIEXEC
    child = os.fork()
    if child == 0:
        _become(words, place, output, options)
    tracer = None
    if options and forked:
        os.waitpid(child, os.WUNTRACED)
        tracer = trace(child, log, options)
        os.kill(child, signal.SIGCONT)
    status = _wait(child, stop)
    with suppress(ProcessLookupError):  # remaining child processes, for instance one that syncs
        os.killpg(child, signal.SIGKILL)
    if tracer is not None:
        tracer.communicate()
    if not forked:
        _end_ranks(place)
    return Ended(status, output.read_bytes().decode(errors="backslashreplace"), log.read_text(errors="replace"))


def trace(process: int, log: Path | str, options: Sequence[str]) -> subprocess.Popen[bytes]:
    """Start strace on ``process`` and its children; return it when it has attached."""
    line = ["strace", "-f", "-o", str(log), *options, "-p", str(process)]
    tracer = subprocess.Popen(line, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    assert tracer.stderr is not None
    reported = tracer.stderr.readline()
    assert b"attached" in reported, reported
    return tracer


def _wait(child: int, stop: Callable[[], bool]) -> int:
    until = time.monotonic() + SECONDS
    reported = False
    while time.monotonic() < until:
        if not reported and stop():
            os.kill(child, signal.SIGTERM)
            reported = True
        pid, status = os.waitpid(child, os.WNOHANG)
        if pid:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.005)
    os.killpg(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return -1


def _end_ranks(place: Path) -> None:
    """Kill ranks that mpiexec has left, and wait for the end of strace."""
    for line in (place / "ranks").read_text().split() if (place / "ranks").exists() else ():
        with suppress(ProcessLookupError):
            os.kill(int(line), signal.SIGKILL)
    while any(_writes_to(process, place / "log") for process in Path("/proc").glob("[0-9]*/cmdline")):
        time.sleep(0.01)


def _writes_to(process: Path, log: Path) -> bool:
    """Return True if ``process`` is an strace that writes to ``log``."""
    with suppress(OSError):
        words = process.read_bytes().split(b"\0")
        return words[0] == b"strace" and os.fsencode(log) in words
    return False


def _become(words: Sequence[str], place: Path, output: Path, options: Sequence[str]) -> None:
    """Become the program in the child; never return."""
    try:
        os.setpgid(0, 0)
        os.chdir(place)
        for descriptor, path in ((0, os.devnull), (1, output), (2, output)):
            opened = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600)
            os.dup2(opened, descriptor)
            os.close(opened)
        os.environ.update(HOME=str(place), XDG_STATE_HOME=str(place / "state"), TMPDIR=str(place), LC_ALL="C.UTF-8")
        tempfile.tempdir = None
        if words[0] == MPIEXEC:
            _become_mpiexec(words, place, options)
        main = main_of(words[0])
        if options:
            os.kill(os.getpid(), signal.SIGSTOP)
        status = main(list(words[1:]))
        os._exit(status)
    except BaseException:
        os.write(2, traceback.format_exc().encode())
    os._exit(99)


def main_of(command: str) -> Callable[[list[str]], int]:
    """Return the main function of ``pcopy`` or ``pverify``."""
    module = importlib.import_module(f"pcopy.cli.{command}")
    return module.main  # type: ignore[no-any-return]


def _become_mpiexec(words: Sequence[str], place: Path, options: Sequence[str]) -> None:
    """Run two ranks; the one whose number follows ``MPIEXEC`` is traced."""
    os.environ[TRACED] = json.dumps([int(words[1]), str(place), list(options)])
    os.environ["PYTHONPATH"] = str(Path(__file__).parents[2])
    mpiexec = str(Path(sys.executable).with_name("mpiexec"))
    os.execv(mpiexec, [mpiexec, "-n", "2", sys.executable, "-m", "tests.faults.mpi_rank", *words[2:]])
