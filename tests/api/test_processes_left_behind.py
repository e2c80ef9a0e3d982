"""Processes that have the outputs of a job, and live longer than it: the job ends with its own process."""

from __future__ import annotations

import asyncio
import errno
import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import pcopy
from pcopy.api.process import start_process
from tests.api.conftest import child
from tests.support.processes import HANGS, PROMPT, wait_until

Launcher = list[str]


@pytest.fixture(params=["descriptor", "no system call", "old Python"])
def launcher(request: pytest.FixtureRequest, area: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Launcher]:
    """A launcher that leaves a process in a session of its own, and becomes the program. The system may have no
    descriptors of processes.
    """
    if request.param == "no system call":

        def refuse(number: int) -> int:
            raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))

        monkeypatch.setattr(os, "pidfd_open", refuse)
    elif request.param == "old Python":
        monkeypatch.delattr(os, "pidfd_open")
    yield ["sh", "-c", 'setsid sleep 1000 & echo $! > "$0"; exec "$@"', str(area / "left")]
    os.kill(int((area / "left").read_text()), signal.SIGKILL)


async def entries_in_event_loop(tree: Path, launcher: Launcher) -> set[bytes]:
    return {entry.path async for entry in pcopy.walk(tree, launcher=launcher)}


CALLS: dict[str, Callable[[Path, Launcher], Any]] = {
    "copy": lambda tree, launcher: pcopy.copy(tree, tree.parent / "copy", launcher=launcher).failed,
    "walk": lambda tree, launcher: {entry.path for entry in pcopy.walk(tree, launcher=launcher)},
    "walk in an event loop": lambda tree, launcher: asyncio.run(entries_in_event_loop(tree, launcher)),
}


@pytest.mark.parametrize("call", CALLS)
def test_result(call: str, tree: Path, launcher: Launcher) -> None:
    for number in range(200):
        (tree / f"{number:0200}").touch()
    begun = time.monotonic()
    result = CALLS[call](tree, launcher)
    assert time.monotonic() - begun < PROMPT
    names = {b"inner", b"inner/deep", b"inner/file", b"inner/deep/large", b"inner/file.tmp", b"hard link", b"link"}
    names |= {b"\xff\xfe\n", b"fifo", *(b"%0200d" % number for number in range(200))}
    paths = {os.fsencode(tree), *(os.fsencode(tree) + b"/" + name for name in names)}
    assert result == (0 if call == "copy" else paths)


def test_what_a_slow_reader_finds_after_the_end(
    area: Path, launcher: Launcher, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All that the pipe has is read, though the time after the end of the process has passed."""
    child(area, monkeypatch, "print('x' * 60_000, flush=True)")
    with start_process("pcopy", [], launcher, None) as process:
        assert process.stdout
        assert process.stdin
        first = process.stdout.read(1)
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        begun = time.monotonic()
        assert first + process.stdout.read() == b"x" * 60_000 + b"\n"
        assert process.stdout.read() == b""
        assert 0.9 < time.monotonic() - begun < PROMPT


def test_kill(area: Path, launcher: Launcher, monkeypatch: pytest.MonkeyPatch) -> None:
    child(area, monkeypatch, "import time; print(1, flush=True); time.sleep(1000)")
    job = pcopy.start(pcopy.copy, "a", "b", launcher=launcher)
    assert wait_until(lambda: (area / "left").exists() and (area / "left").read_text())
    number = int((area / "left").read_text())
    assert wait_until(lambda: os.getsid(number) == number)
    job.kill()
    with pytest.raises(pcopy.InternalError, match="was killed by signal 9"):
        job.wait(PROMPT)
    assert not Path(f"/proc/{job.pid}").exists()


def test_launcher_that_leaves_a_daemon_and_fails(area: Path, tree: Path) -> None:
    code = f"sleep 1000 & echo $! > {area}/left; echo no host is called nowhere >&2; exit 3"
    job = pcopy.start(pcopy.copy, tree, area / "copy", launcher=["sh", "-c", code])
    try:
        with pytest.raises(pcopy.InternalError, match=r"ended with status 3 before pcopy began:\nno host is called"):
            job.wait(HANGS)
    finally:
        os.kill(int((area / "left").read_text()), signal.SIGKILL)
