"""What the user sees while a job runs: failures always, progress as it was asked for.

Rules: progress is throttled by time, so that telling it often costs nothing; nothing that goes wrong in telling ends a
job. A standard error that is gone cannot be told of, and then exit status and summary still hold; an errors file that
cannot be written is told of once. Two threads may tell something at once: the rank's own, and the one that watches it.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import time
from _thread import RLock
from binascii import b2a_base64
from collections.abc import Callable, Sequence
from typing import TextIO, cast

from pcopy.errors import Refused
from pcopy.named import NamedTuple
from pcopy.report.gauge import Gauge, Reading, Stages, items, mean_rate, percent, rate, remaining, silence, sizes
from pcopy.report.streams import Tolerant
from pcopy.signature.replacing import with_umask
from pcopy.tasks.base.job import Failure, Totals
from pcopy.text import counted, harmless, shown
from pcopy.units import show_clock


def failure_line(failure: Failure, program: str = "pcopy") -> str:
    """One line for people, without a newline: ``pcopy: PATH: OPERATION: reason (ERRNO-NAME)``."""
    line = f"{program}: {shown(failure.path)}: {_operation(failure)}: {_reason(failure)}"
    if not failure.errno:
        return line
    return f"{line} ({errno.errorcode.get(failure.errno, f'errno {failure.errno}')})"


def failure_json(failure: Failure) -> str:
    """One JSON object on one line; ``path`` as it is shown, ``path_b64`` its exact bytes."""
    values = {
        "path": shown(failure.path),
        "path_b64": b2a_base64(failure.path, newline=False).decode("ascii"),
        "operation": _operation(failure),
        "errno": failure.errno,
        "message": _reason(failure),
    }
    return json.dumps(values)


def _operation(failure: Failure) -> str:
    """It may name an extended attribute, which is the file owner's choice as much as a path is."""
    return shown(os.fsencode(failure.operation))


def _reason(failure: Failure) -> str:
    """What the system says, and what the message adds to it."""
    system = os.strerror(failure.errno) if failure.errno else ""
    message = harmless(failure.message)
    if not message or not system or system == message:
        return message or system or "failed"
    return f"{system}: {message}"


FAILURES_SHOWN = 100
"""Failures that are printed; all of them go to the errors file."""

Clock = Callable[[], float]


class Telling(NamedTuple):
    """How much the user wants to be told of a job; ``json``: at its end, for programs.

    ``errors`` is the file for all failures, made with ``umask`` (None: the process's own); ``interval`` is in seconds.
    ``metrics`` is a file, too, or empty.
    """

    quiet: bool = False
    progress: str = "auto"
    interval: float | None = None
    errors: bytes | None = None
    umask: int | None = None
    json: bool = False
    verbose: int = 0
    metrics: bytes = b""


class FailureLog:
    """The errors file: one JSON object a line, written through with each batch."""

    def __init__(self, path: bytes, umask: int | None = None) -> None:
        """Opens the file, made with mode 0666 without ``umask``; raises ``Refused`` if that is not possible."""
        self.path = path
        try:
            with with_umask(umask):
                # Closed in ``close``. It is ASCII, but that codec might have to be loaded yet.
                self._file = open(path, "a", encoding="utf-8")  # noqa: SIM115
        except OSError as error:
            raise Refused(f"{shown(path)}: cannot write the errors file: {error.strerror}") from None

    def begin(self) -> None:
        """Drops what an earlier job has left."""
        with contextlib.suppress(OSError):  # a pipe or a device holds nothing
            self._file.truncate(0)

    def write(self, failures: Sequence[Failure]) -> None:
        """Raises ``OSError``; then only ``close`` may follow."""
        self._file.writelines(f"{failure_json(failure)}\n" for failure in failures)
        self._file.flush()

    def close(self) -> None:
        """Raises ``OSError`` where what was written did not arrive."""
        self._file.close()


class Screen:
    """Failures and notices on ``stream``; subclasses draw the progress. Fills ``pcopy.tasks.base.job.Sink``."""

    def __init__(
        self, program: str, stages: Stages, stream: TextIO, interval: float, clock: Clock, log: FailureLog | None = None
    ) -> None:
        """``interval`` is the least time between two drawings, in seconds of ``clock``; ``log`` is closed with this."""
        self._program = program
        self._stream = cast(TextIO, Tolerant(stream))
        self._interval = interval
        self._clock = clock
        self._log = log
        now = clock()
        self._gauge = Gauge(now, stages)
        self._due = now + interval
        self._told = 0
        self._phase = ""
        self._lock = RLock()
        self.is_verbose = False
        """Is a line printed when each phase begins?"""

    def begin(self) -> None:
        """The job will not be refused any more: empties the errors file."""
        if self._log is not None:
            self._log.begin()

    def progress(self, phase: str, totals: Totals, silent: Sequence[int]) -> None:
        """Draws if it is time; the first drawing comes after one interval."""
        if self.is_verbose and phase != self._phase:
            self._phase = phase
            done = totals.copied + totals.skipped + totals.failed
            self.notice(f"{phase}: {done:,} of {counted(totals.found, 'item', 'items')} done so far")
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
            for failure in failures[: max(0, FAILURES_SHOWN - self._told)]:
                self._print(failure_line(failure, self._program))
            if self._told <= FAILURES_SHOWN < self._told + len(failures):
                where = f"see {shown(self._log.path)}" if self._log else "use --errors FILE"
                self._print(f"{self._program}: more failures: {where}")
            self._told += len(failures)
            if self._log is not None:
                try:
                    self._log.write(failures)
                except OSError as error:
                    self._lose_log(self._log, error)

    def notice(self, text: str) -> None:
        """Prints a line, with ``-q`` too."""
        with self._lock:
            self._print(f"{self._program}: {text}")

    def close(self) -> None:
        """Takes the progress away and closes the errors file; may be called again."""
        log, self._log = self._log, None
        if log is not None:
            try:
                log.close()
            except OSError as error:
                self._lose_log(log, error)

    def _draw(self, phase: str, totals: Totals, reading: Reading, silent: Sequence[int]) -> None:
        """Nothing, where no progress is wanted."""

    def _print(self, line: str) -> None:
        """All that is told, but for what a bar draws, goes through here: nothing in it begins another line."""
        self._show(harmless(line))

    def _show(self, line: str) -> None:
        self._stream.write(f"{line}\n")
        self._stream.flush()

    def _lose_log(self, log: FailureLog, error: OSError) -> None:
        self._log = None
        self._print(
            f"{self._program}: {shown(log.path)}: cannot write the errors file: {error.strerror}; it is not complete"
        )
        with contextlib.suppress(OSError):  # the same error again
            log.close()


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
        self._print(f"{self._program}: {show_clock(reading.elapsed)} {phase}: {', '.join(filter(None, parts))}")


_COUNTED = (
    *("found", "copied", "skipped", "failed", "unscanned", "bytes", "moved", "found_bytes"),
    *("to_verify", "to_verify_bytes", "verified", "verified_bytes"),
)
"""Counters that a line shows, by their names in ``Totals``."""


class JsonScreen(Screen):
    """For programs, a JSON object each interval (docs/formats/progress.md); failures and notices stay lines of text."""

    def _draw(self, phase: str, totals: Totals, reading: Reading, silent: Sequence[int]) -> None:
        fraction, left = reading.fraction, reading.left
        values = {
            "time": round(time.time(), 3),
            "elapsed": round(reading.elapsed, 3),
            "phase": phase,
            **{name: getattr(totals, name) for name in _COUNTED},
            "handled_bytes": reading.bytes_done,
            "percent": None if fraction is None else int(fraction * 1000) / 10,
            "bytes_per_second": round(reading.rate),
            "mean_bytes_per_second": round(reading.mean_rate),
            "items_per_second": round(reading.item_rate, 1),
            "mean_items_per_second": round(reading.mean_item_rate, 1),
            "eta": None if left is None else round(left, 1),
            "silent": list(silent),
        }
        self._print(json.dumps(values))
