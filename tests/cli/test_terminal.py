"""What users see on a terminal: the bar while the terminal changes its size, and the end of a job by Ctrl-C.

The terminal is emulated by pyte, which cuts lines when it becomes narrower, as xterm does. ``Reflowing`` breaks them
into more lines instead, as tmux and VTE do.
"""

from __future__ import annotations

import fcntl
import io
import os
import pty
import select
import signal
import struct
import termios
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

import pytest
from rich.console import Console

from pcopy.report.bar import ProgressBarScreen
from pcopy.tasks.base.job import JobCounters
from pcopy.tools.copy import COPY_TOOL
from tests.support.command import REPOSITORY, command, succeed
from tests.support.files import noise

pyte = pytest.importorskip("pyte")

MIB = 1 << 20
LINES = 24
HALF = JobCounters(found=10, found_bytes=1 << 30, files=5, bytes=1 << 29, moved=1 << 29)


class Terminal:
    """A terminal without a process."""

    reflows = False

    def __init__(self, columns: int) -> None:
        self.screen = pyte.Screen(columns, LINES)
        self.stream = pyte.Stream(self.screen)
        self.stream.feed("\x1b[20h")  # a newline is also a carriage return, as with a tty

    def rows(self) -> list[str]:
        return [row.rstrip() for row in self.screen.display]

    def narrow(self, columns: int) -> None:
        """Make the terminal narrower."""
        rows, at = self.rows(), self.screen.cursor.y
        column = self.screen.cursor.x
        self.screen.resize(LINES, columns)
        if not self.reflows:
            return
        new: list[str] = []
        for number, row in enumerate(rows):
            if number == at:
                row_of_cursor, column = len(new) + column // columns, column % columns
            new += [row[start : start + columns] for start in range(0, max(1, len(row)), columns)]
        self.screen.reset()
        self.stream.feed("\x1b[20h" + "".join(f"\x1b[{number};1H{row}" for number, row in enumerate(new[:LINES], 1)))
        self.screen.cursor_position(row_of_cursor + 1, column + 1)


class Reflowing(Terminal):
    reflows = True


class Ticks:
    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.mark.parametrize("kind", [Terminal, Reflowing])
@pytest.mark.parametrize("columns", [[100, 60], [100, 30], [100, 99, 98, 50], [200, 41]])
def test_narrower_terminal_has_no_rest_of_the_bar(kind: type[Terminal], columns: list[int]) -> None:
    terminal, clock, stream = kind(columns[0]), Ticks(), io.StringIO()
    screen = ProgressBarScreen(COPY_TOOL.name, COPY_TOOL.stages, stream, 0.5, clock)
    terminal.stream.feed("$ pcopy a b\na -> b\n")

    def show() -> None:
        terminal.stream.feed(stream.getvalue())
        stream.seek(0)
        stream.truncate()

    for width in columns:
        if width != columns[0]:
            terminal.narrow(width)
        screen.console = Console(file=stream, width=width, force_terminal=True, _environ={"TERM": "xterm"})
        for _ in range(2):
            clock.now += 0.5
            screen.receive_progress("copying", HALF, ())
            show()
        rows = terminal.rows()
        assert rows[:2] == ["$ pcopy a b", "a -> b"] and rows[2].startswith("copying "), rows
        assert "512 MiB" in rows[3] and not any(rows[4:]), rows
    screen.receive_notice("a notice")
    show()
    assert terminal.rows()[2] == "pcopy: a notice" and terminal.rows()[3].startswith("copying "), terminal.rows()
    screen.close()
    show()
    assert [*filter(None, terminal.rows())] == ["$ pcopy a b", "a -> b", "pcopy: a notice"]
    assert (terminal.screen.cursor.y, terminal.screen.cursor.x) == (3, 0)


class Session(NamedTuple):
    """A program that runs on a pseudo-terminal."""

    pid: int
    terminal: int
    shown: Terminal

    def read(self, seconds: float) -> None:
        """Show what the program prints, until it ends or the time is over."""
        until = time.monotonic() + seconds
        while (left := until - time.monotonic()) > 0:
            if not select.select([self.terminal], [], [], left)[0]:
                return
            try:
                data = os.read(self.terminal, 65536)
            except OSError:  # The program has ended.
                return
            self.shown.stream.feed(data.decode())

    def wait_for(self, text: str) -> None:
        until = time.monotonic() + 60
        while not any(text in row for row in self.shown.rows()):
            assert time.monotonic() < until, self.shown.rows()
            self.read(0.1)

    def press(self, key: bytes) -> None:
        os.write(self.terminal, key)

    def interrupt_again(self) -> None:
        """Send the second SIGINT, unless the program has ended already because of the first one."""
        time.sleep(0.1)
        with suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGINT)

    def ended(self) -> tuple[int, list[str]]:
        """Return the exit status, and the lines on the terminal. The cursor must be at the beginning of a line."""
        self.read(60)
        status = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        assert self.shown.screen.cursor.x == 0, self.shown.rows()
        return status, [*filter(None, self.shown.rows())]


@contextmanager
def session(program: str, *words: object, state: Path) -> Iterator[Session]:
    line, env = command(*map(str, words))
    python = line[0]
    pid, terminal = pty.fork()
    if pid == 0:
        os.execve(
            python,
            [python, f"{REPOSITORY}/bin/{program}", *map(str, words)],
            {**env, "TERM": "xterm", "XDG_STATE_HOME": str(state)},
        )
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", LINES, 160, 0, 0))
    try:
        yield Session(pid, terminal, Terminal(160))
    finally:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
        os.close(terminal)


@pytest.fixture
def large(area: Path) -> Path:
    (area / "source").mkdir()
    (area / "source/file").write_bytes(noise(16 * MIB))
    return area


RESUME = "pcopy: ended at once by a second SIGINT; the job is kept; to go on: pcopy --resume "
UNRECORDED = "ended at once by a second SIGINT; the job is not recorded: repeat the command"


@pytest.mark.parametrize("quiet", [False, True])
def test_second_interrupt_prints_how_to_resume(large: Path, quiet: bool) -> None:
    words = ["-n", "2", "--bwlimit", "1M", *(["-q"] if quiet else []), large / "source", large / "copy"]
    with session("pcopy", *words, state=large / "state") as run:
        wait_until_copying(run, large, quiet)
        run.press(b"\x03")
        run.interrupt_again()
        status, rows = run.ended()
    (job,) = os.listdir(large / "state/pcopy")
    if rows[-1].startswith("pcopy: to go on:"):  # It ended in order before the second one.
        assert status == 75 and rows[-1] == f"pcopy: to go on: pcopy --resume {job}"
    else:
        assert (status, rows[-1]) == (130, f"{RESUME}{job}"), rows
        assert not any("━" in row for row in rows), rows
    succeed("--resume", job, env={"XDG_STATE_HOME": str(large / "state")})
    assert (large / "copy/file").read_bytes() == (large / "source/file").read_bytes()


def wait_until_copying(run: Session, area: Path, quiet: bool = False) -> None:
    if not quiet:
        run.wait_for(" of bytes")
        return
    until = time.monotonic() + 60
    while not (area / "copy").exists():
        assert time.monotonic() < until
        run.read(0.1)
    run.read(1)


@pytest.mark.parametrize("program", ["pcopy", "pverify"])
def test_second_interrupt_of_an_unrecorded_job_says_so(large: Path, program: str) -> None:
    other = large / "copy" if program == "pcopy" else large / "source"
    words = ["--bwlimit", "1M", *(["--checkpoint", "none"] if program == "pcopy" else []), large / "source", other]
    with session(program, *words, state=large / "state") as run:
        wait_until_copying(run, large)
        run.press(b"\x03")
        run.interrupt_again()
        status, rows = run.ended()
    assert status in (130, 2), rows
    assert rows[-1] == f"{program}: {UNRECORDED}" or any("stopped by SIGINT" in row for row in rows), rows
    assert not any("━" in row for row in rows), rows
