"""Hold a run of the program at one system call, so that an attack happens at the worst moment.

A small library in C, preloaded into the run, waits at the call. It intercepts functions of libc and is independent of
their callers, so that it works for any implementation; it needs no delays, so that a test is as fast as the copy and
never misses.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from tests.support.command import Argument, other_modules
from tests.support.preload import preloaded
from tests.support.processes import background

SOURCE = Path(__file__).with_name("window.c")
PATIENCE = 60.0
"""Seconds within which a run reaches its window, and its end; it copies only a few items."""


class Window(NamedTuple):
    """The ``nth`` time that ``call`` is made for ``name`` below a directory with ``under`` in its path.

    ``create`` and ``open`` are openat(2) with and without O_CREAT; ``chown``, ``chmod``, ``utime``, ``read``,
    ``write``, ``setxattr`` and ``listxattr`` are calls with a descriptor of ``name``. A name may end with ``*``.
    """

    call: str
    name: str
    under: str
    nth: int = 1
    when: str = "before"


class Ended(NamedTuple):
    """How a run ended; ``status`` is None if it hung."""

    status: int | None
    errors: str
    output: str = ""


def run_through(
    window: Window | None,
    act: Callable[[str], None],
    scratch: Path,
    *arguments: Argument,
    package: Path | None = None,
    patience: float = PATIENCE,
    env: Mapping[str, str] = MappingProxyType({}),
    **options: Any,
) -> Ended:
    """Run a program (``pcopy``, or that of ``options``) with ``arguments``, and call ``act`` with the name that matches
    ``window``, while the run waits there.

    ``package`` is the directory of the program, if it is not this checkout. A run that takes more than ``patience``
    seconds hangs. Fails if the window is never reached.
    """
    environment = dict(env)
    if package:
        environment["PYTHONPATH"] = os.pathsep.join([str(package), *other_modules(options.get("user"))])
    if window is None:
        with background(*arguments, env=environment, **options) as run:
            return _end(run.process, patience)
    fifos = [scratch / name for name in ("reached", "go")]
    for fifo in fifos:
        os.mkfifo(fifo, 0o600)
    environment |= preloaded(SOURCE) | {
        "WINDOW": " ".join(map(str, window)),
        "WINDOW_REACHED": str(fifos[0]),
        "WINDOW_GO": str(fifos[1]),
        "WINDOW_COUNT": str(scratch / "count"),
    }
    with background(*arguments, env=environment, **options) as run:
        name = _wait(fifos[0], run.process)
        if name is None:
            raise AssertionError(f"{window} was never reached: {_end(run.process, 0)}")
        act(name)
        with open(fifos[1], "wb", buffering=0) as go:
            go.write(b".")
        return _end(run.process, patience)


def _wait(fifo: Path, process: subprocess.Popen[bytes]) -> str | None:
    """Return the name at which the run waits; None if it ended before."""
    descriptor = os.open(fifo, os.O_RDONLY | os.O_NONBLOCK)
    try:
        for _ in range(int(PATIENCE / 0.01)):
            if name := _read(descriptor):
                return os.fsdecode(name)
            if process.poll() is not None:
                return None
            try:
                process.wait(0.01)
            except subprocess.TimeoutExpired:
                continue
        return None
    finally:
        os.close(descriptor)


def _read(descriptor: int) -> bytes:
    try:
        return os.read(descriptor, 4096)
    except BlockingIOError:
        return b""


def _end(process: subprocess.Popen[bytes], patience: float) -> Ended:
    try:
        output, errors = process.communicate(timeout=patience)
    except subprocess.TimeoutExpired:
        return Ended(None, "")
    return Ended(process.returncode, *(text.decode(errors="backslashreplace") for text in (errors, output)))
