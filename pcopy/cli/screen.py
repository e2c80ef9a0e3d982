"""What the user sees while a job runs: failures always, progress as it was asked for.

Rules: progress is throttled by time, so that telling it often costs nothing; nothing that goes wrong in telling ends a
job. A standard error that is gone cannot be told of, and then exit status and summary still hold; an errors file that
cannot be written is told of once. Two threads may tell something at once: the rank's own, and the one that watches it.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import threading
import time
from collections.abc import Callable, Sequence
from typing import Self, TextIO, cast

from pcopy.cli.gauge import Gauge, Reading, items, mean_rate, percent, rate, remaining, silence, sizes
from pcopy.cli.options import Arguments
from pcopy.cli.report import failure_json, failure_line
from pcopy.cli.streams import Tolerant
from pcopy.cli.units import show_clock
from pcopy.errors import Refused
from pcopy.signature.replacing import with_umask
from pcopy.tasks.job import Failure, Totals
from pcopy.text import harmless, shown

FAILURES_SHOWN = 100
PLAIN_INTERVAL = 10.0
BAR_INTERVAL = 0.5
JSON_INTERVAL = 1.0

Clock = Callable[[], float]


class FailureLog:
    """The errors file: one JSON object a line, written through with each batch."""

    def __init__(self, path: bytes, umask: int | None = None) -> None:
        """Makes the file, mode 0666 without ``umask``, or empties it; raises ``Refused`` if that is not possible."""
        self.path = path
        try:
            with with_umask(umask):
                # Closed in ``close``. It is ASCII, but that codec might have to be loaded yet.
                self._file = open(path, "w", encoding="utf-8")  # noqa: SIM115
        except OSError as error:
            raise Refused(f"{shown(path)}: cannot write the errors file: {error.strerror}") from None

    def write(self, failures: Sequence[Failure]) -> None:
        """Raises ``OSError``; then only ``close`` may follow."""
        self._file.writelines(f"{failure_json(failure)}\n" for failure in failures)
        self._file.flush()

    def close(self) -> None:
        """Raises ``OSError`` where what was written did not arrive."""
        self._file.close()


class Screen:
    """Failures and notices on ``stream``; subclasses draw the progress. Fills ``pcopy.tasks.sinks.Sink``."""

    def __init__(self, stream: TextIO, interval: float, clock: Clock, log: FailureLog | None = None) -> None:
        """``interval`` is the least time between two drawings, in seconds of ``clock``; ``log`` is closed with this."""
        self.program = "pcopy"
        """The name that stands before each line."""
        self._stream = cast(TextIO, Tolerant(stream))
        self._interval = interval
        self._clock = clock
        self._log = log
        now = clock()
        self._gauge = Gauge(now)
        self._due = now + interval
        self._told = 0
        self._lock = threading.RLock()

    def progress(self, phase: str, totals: Totals, silent: Sequence[int]) -> None:
        """Draws if it is time; the first drawing comes after one interval."""
        now = self._clock()
        self._gauge.enter(now, phase, totals)
        if now < self._due:
            return
        with self._lock:
            self._due = now + self._interval
            self._draw(harmless(phase), totals, self._gauge.read(now, totals), silent)

    def failures(self, failures: Sequence[Failure]) -> None:
        """Prints the first ``FAILURES_SHOWN`` of the job, and puts all into the errors file."""
        with self._lock:
            self._tell(failures)

    def _tell(self, failures: Sequence[Failure]) -> None:
        for failure in failures[: max(0, FAILURES_SHOWN - self._told)]:
            self._print(failure_line(failure, self.program))
        if self._told <= FAILURES_SHOWN < self._told + len(failures):
            self._print(
                f"{self.program}: more failures: {f'see {shown(self._log.path)}' if self._log else 'use --errors FILE'}"
            )
        self._told += len(failures)
        if self._log is not None:
            try:
                self._log.write(failures)
            except OSError as error:
                self._lose_log(self._log, error)

    def notice(self, text: str) -> None:
        """Prints a line, with ``-q`` too."""
        with self._lock:
            self._print(f"{self.program}: {text}")

    def close(self) -> None:
        """Takes the progress away and closes the errors file; may be called again."""
        log, self._log = self._log, None
        if log is not None:
            try:
                log.close()
            except OSError as error:
                self._lose_log(log, error)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _draw(self, phase: str, totals: Totals, reading: Reading, silent: Sequence[int]) -> None:
        raise NotImplementedError

    def _print(self, line: str) -> None:
        """All that is told, but for what a bar draws, goes through here: nothing in it begins another line."""
        self._show(harmless(line))

    def _show(self, line: str) -> None:
        self._stream.write(f"{line}\n")
        self._stream.flush()

    def _lose_log(self, log: FailureLog, error: OSError) -> None:
        self._log = None
        self._print(
            f"{self.program}: {shown(log.path)}: cannot write the errors file: {error.strerror}; it is not complete"
        )
        with contextlib.suppress(OSError):  # the same error again
            log.close()


class SilentScreen(Screen):
    """No progress at all."""

    def __init__(self, stream: TextIO, clock: Clock, log: FailureLog | None = None) -> None:
        super().__init__(stream, 0.0, clock, log)

    def progress(self, phase: str, totals: Totals, silent: Sequence[int]) -> None:
        """Nothing."""


class PlainScreen(Screen):
    """A line each interval, for logs and for terminals that can do no more."""

    def _draw(self, phase: str, totals: Totals, reading: Reading, silent: Sequence[int]) -> None:
        parts = [
            percent(reading),
            items(reading),
            sizes(reading),
            f"{rate(reading)} ({mean_rate(reading)})" if reading.measured else "",
            remaining(reading),
            f"{reading.failed:,} failed" if reading.failed else "",
            silence(silent),
        ]
        self._print(f"{self.program}: {show_clock(reading.elapsed)} {phase}: {', '.join(filter(None, parts))}")


def open_screen(arguments: Arguments, stderr: TextIO, clock: Clock = time.monotonic) -> Screen:
    """The screen that ``arguments`` ask for, on ``stderr``; makes the errors file. For rank 0 only.

    Raises ``Refused`` if the errors file cannot be made.
    """
    screen = _open(arguments, stderr, clock)
    screen.program = arguments.program
    return screen


def _open(arguments: Arguments, stderr: TextIO, clock: Clock) -> Screen:
    """A bar needs a terminal that can move its cursor, and rich; elsewhere lines take its place."""
    log = FailureLog(arguments.errors, arguments.options.umask) if arguments.errors is not None else None
    if arguments.quiet or arguments.progress == "none":
        return SilentScreen(stderr, clock, log)
    interval = arguments.progress_interval
    if arguments.progress == "json":
        from pcopy.cli.json_screen import JsonScreen

        return JsonScreen(stderr, interval or JSON_INTERVAL, clock, log)
    if arguments.progress != "plain" and _can_draw(stderr):
        from pcopy.cli.bar import BarScreen

        return BarScreen(stderr, interval or BAR_INTERVAL, clock, log)
    return PlainScreen(stderr, interval or PLAIN_INTERVAL, clock, log)


def _can_draw(stream: TextIO) -> bool:
    terminal = os.environ.get("TERM", "")
    return stream.isatty() and terminal not in {"", "dumb", "unknown"} and importlib.util.find_spec("rich") is not None
