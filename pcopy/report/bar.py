"""The progress bar of a running job, and the choice between the bar and the other displays: lines, JSON or nothing.

The bar consists of two lines at the bottom of the terminal, with failures and notices above them. Rules:
- Between two updates the cursor is at the beginning of the first line. If the terminal becomes narrower, it may break
  the lines of the bar into more lines, or cut them. In both cases the bar is all that is below the cursor, so that an
  update clears it completely.
- Ctrl-Z clears the bar, because the shell prints below the cursor. The next update draws it again.
- The package rich is imported when the bar is first drawn, so that short jobs are not delayed by the import.
- No thread redraws the bar, because ranks are forked processes, and a fork is safe only in a process with one thread.
- The cursor remains visible, so that a killed job leaves the terminal as it was.
- On a narrow terminal the less important values are omitted first.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, TextIO, cast

from pcopy.report.progress_gauge import (
    ProgressSnapshot,
    StagesByPhase,
    bytes_done_text,
    items_done_text,
    mean_rate_text,
    percent_text,
    rate_text,
    remaining_text,
    silent_ranks_text,
)
from pcopy.report.screen import Clock, OutputOptions, ProgressJsonScreen, ProgressLinesScreen, ProgressScreen
from pcopy.report.streams import TolerantRawStream
from pcopy.tasks.base.job import JobCounters
from pcopy.units import format_running_clock

if TYPE_CHECKING:
    from rich.console import Console, Group, OverflowMethod

    from pcopy.report.lines_file import JsonLinesFile

DEFAULT_LINES_INTERVAL = 10.0
"""Default of ``--progress-interval`` in seconds if progress is printed as lines, which go to files and to the output of
batch systems.
"""
DEFAULT_BAR_INTERVAL = 0.5
"""Default of ``--progress-interval`` for the bar, in seconds."""
DEFAULT_JSON_INTERVAL = 1.0
"""Default of ``--progress-interval`` for ``--progress json``, in seconds."""

_MIN_BAR_WIDTH = 8
"""Minimum width of the bar in columns; on narrower terminals only the numbers are shown."""


CLEAR_BAR = "\r\x1b[J"
"""Control sequence that clears the bar, if the cursor is in its first line: from the beginning of that line on."""
_NO_WRAP, _WRAP = "\x1b[?7l", "\x1b[?7h"
"""Control sequences around the bar: a line that is too long, because the terminal has just become narrower, is cut."""
_TO_FIRST_LINE = "\x1b[1A\r"
"""Control sequence that moves the cursor from the second line of the bar to the beginning of the first one."""


class ProgressBarScreen(ProgressScreen):
    """Shows progress as a bar on a terminal, and failures and notices above the bar."""

    console: Console | None = None
    """rich's object that renders the bar; created at the first update unless a test has set another one."""
    _bar = ""
    """The bar on the terminal, with its control sequences; empty if none is shown."""

    @property
    def clearing_sequence(self) -> str:
        return CLEAR_BAR if self._bar else ""

    def close(self) -> None:
        self._clear_bar()
        super().close()

    def _show_progress(self, phase: str, totals: JobCounters, reading: ProgressSnapshot, silent: Sequence[int]) -> None:
        """Redraw the bar with the current progress.

        Args:
            phase: name of the current phase, printable.
            totals: the counters of the job.
            reading: the progress computed from them.
            silent: ranks that have not answered lately.
        """
        if self.console is None:
            from rich.console import Console

            self.console = Console(file=cast(TextIO, TolerantRawStream(self._stream)))
        console = self.console
        picture = render_bar(
            self._phase_title(phase), reading, silent, console.width, ascii_only=console.options.ascii_only
        )
        with console.capture() as capture:
            console.print(picture, end="")
        lines = capture.get().rstrip("\n")
        if not self._bar:
            self._clear_bar_on_suspension()
        self._bar = f"{_NO_WRAP}{lines}{_WRAP}{_TO_FIRST_LINE}"
        self._write_raw(f"{CLEAR_BAR}{self._bar}")

    def _write_line(self, line: str) -> None:
        """Print a line above the bar."""
        shown, self._bar = self._bar, ""
        if shown:
            self._write_raw(CLEAR_BAR)
        super()._write_line(line)
        if shown:
            self._bar = shown
            self._write_raw(shown)

    def _clear_bar(self) -> None:
        """Remove the bar from the terminal, if it is shown."""
        shown, self._bar = self._bar, ""
        if shown:
            self._write_raw(CLEAR_BAR)

    def _clear_bar_on_suspension(self) -> None:
        """Let SIGTSTP (Ctrl-Z) clear the bar before it stops the process, unless the process ignores the signal."""

        def clear_and_stop(number: int, frame: object) -> None:
            with suppress(OSError, ValueError):  # Not by the stream: this may interrupt one of its methods.
                os.write(self._stream.fileno(), CLEAR_BAR.encode() if self._bar else b"")
            signal.signal(signal.SIGTSTP, signal.SIG_DFL)
            os.kill(os.getpid(), signal.SIGTSTP)  # The process stops here, until SIGCONT arrives.
            signal.signal(signal.SIGTSTP, clear_and_stop)

        if signal.getsignal(signal.SIGTSTP) is signal.SIG_DFL:
            with suppress(ValueError):  # not in the main thread
                signal.signal(signal.SIGTSTP, clear_and_stop)

    def _write_raw(self, text: str) -> None:
        """Write ``text``, which contains control sequences, to the terminal."""
        stream = TolerantRawStream(self._stream)
        stream.write(text)
        stream.flush()


def render_bar(
    phase: str, reading: ProgressSnapshot, silent: Sequence[int], width: int, *, ascii_only: bool = False
) -> Group:
    """Return the two lines of the bar, as an object that rich can draw, for a terminal of ``width`` columns.

    Args:
        phase: the title of the phase.
        reading: the progress.
        silent: ranks that have not answered lately.
        ascii_only: True to use ASCII characters only.
    """
    from rich.cells import cell_len
    from rich.console import Group
    from rich.progress_bar import ProgressBar
    from rich.table import Table
    from rich.text import Text

    overflow: OverflowMethod = "crop" if ascii_only else "ellipsis"
    right = " ".join(filter(None, [percent_text(reading), remaining_text(reading)]))
    room = width - cell_len(phase) - len(right) - 2
    first: Table | Text
    if room >= _MIN_BAR_WIDTH:
        is_known = reading.shown_fraction is not None
        bar = ProgressBar(
            total=1.0 if is_known else None,
            completed=reading.shown_fraction or 0.0,
            width=room,
            animation_time=reading.elapsed,
            complete_style="cyan",  # the default is a red, which looks like an error
            finished_style="green",
            pulse_style="cyan",
        )
        first = Table.grid(padding=(0, 1, 0, 0))
        first.add_row(Text(phase, no_wrap=True), bar, Text(right, no_wrap=True))
    else:
        first = Text(f"{phase} {right}", no_wrap=True, overflow=overflow)
    second = Text(progress_details_line(reading, silent, width), no_wrap=True, overflow=overflow)
    return Group(first, second)


def progress_details_line(reading: ProgressSnapshot, silent: Sequence[int], width: int) -> str:
    """Return the second line of the bar, counts and rates, in up to ``width`` characters.

    If there is not enough space, the less important values are omitted. The number of failures and the value to which
    the percentage refers (bytes or items) always remain, even if the line is longer than ``width`` then. ``silent``:
    ranks that have not answered lately.
    """
    parts = {
        "failed": f"{reading.failed:,} failed" if reading.failed else "",
        "silent": silent_ranks_text(silent),
        "bytes": bytes_done_text(reading),
        "items": items_done_text(reading),
        "rate": rate_text(reading),
        "mean": mean_rate_text(reading),
        "elapsed": format_running_clock(reading.elapsed),
    }
    for dropped in ("", "elapsed", "mean", "rate", "silent", "items" if reading.is_mainly_bytes else "bytes"):
        parts[dropped] = ""
        line = ", ".join(filter(None, parts.values()))
        if len(line) <= width:
            break
    return line


def open_progress_screen(
    program: str, stages: StagesByPhase, output_options: OutputOptions, stderr: TextIO, clock: Clock = time.monotonic
) -> ProgressScreen:
    """Return the object that shows the progress of a job as ``output_options`` request, with the files of ``--errors``
    and ``--log`` open.

    Called on rank 0 only. A bar needs a terminal whose cursor can be moved, and the package rich; otherwise lines are
    printed. Raise ``RequestRefused`` if a file cannot be created.

    Args:
        program: name of the program, with which each line begins.
        stages: the parts of the job whose progress is measured separately.
        stderr: the stream on which progress is shown.
        clock: returns seconds of a clock that never goes back.
    """
    files = _open_lines_files({"errors": output_options.errors, "log": output_options.log}, output_options.umask)
    kind: type[ProgressScreen] = ProgressLinesScreen
    interval = DEFAULT_LINES_INTERVAL
    if output_options.quiet or output_options.progress == "none":
        kind = ProgressScreen
    elif output_options.progress == "json":
        kind, interval = ProgressJsonScreen, DEFAULT_JSON_INTERVAL
    elif output_options.progress != "plain" and _can_show_bar(stderr):
        kind, interval = ProgressBarScreen, DEFAULT_BAR_INTERVAL
    screen = kind(program, stages, stderr, output_options.interval or interval, clock, files)
    screen.is_verbose = output_options.verbose > 0 and not output_options.quiet
    screen.shows_changes = output_options.verbose > 0 and not (output_options.quiet or output_options.hides_items)
    screen.shows_unchanged = output_options.verbose > 1
    return screen


def _open_lines_files(paths: Mapping[str, bytes | None], umask: int | None) -> list[JsonLinesFile | None]:
    """Open the files of ``--errors`` and ``--log``; return them in the order of ``paths``, with None for an option that
    is not given.

    Args:
        paths: the path for each option, by its name without dashes; None: the option is not given.
        umask: for new files; None: the process's umask.

    Raise ``RequestRefused`` if a file cannot be opened; files that were created here are removed then.
    """
    if not any(path is not None for path in paths.values()):
        return [None] * len(paths)
    from pcopy.report.lines_file import JsonLinesFile

    files: list[JsonLinesFile | None] = []
    try:
        for option, path in paths.items():
            files.append(None if path is None else JsonLinesFile(path, option, umask))
    except BaseException:
        for file in filter(None, files):
            with suppress(OSError):  # Only the first error is reported.
                file.close_and_remove_if_unused()
        raise
    return files


def _can_show_bar(stream: TextIO) -> bool:
    """True if ``stream`` is a terminal whose cursor can be moved (by TERM), and the package rich is installed."""
    if not stream.isatty() or os.environ.get("TERM", "") in {"", "dumb", "unknown"}:
        return False
    from importlib.util import find_spec

    return find_spec("rich") is not None
