"""The display of a running job for the user: failures always, and progress as it was asked for.

Rules: progress is limited to intervals of time, so that frequent calls cost nothing. An error in the output never ends
a job. If standard error is closed, no message is possible, but exit status and summary are still right. An errors file
that cannot be written is reported once. Two threads may print at the same time: the rank's main thread and the
watchdog.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import time
from _thread import RLock
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, TextIO, cast

from pcopy.fast_named_tuple import NamedTuple
from pcopy.report.progress_gauge import (
    ProgressGauge,
    ProgressReading,
    Stages,
    bytes_text,
    items_text,
    mean_rate_text,
    percent_text,
    rate_text,
    remaining_text,
    silence_text,
)
from pcopy.report.streams import TolerantStream
from pcopy.tasks.base.actions import Action
from pcopy.tasks.base.job import Failure, Totals
from pcopy.text import count_with_noun, one_line_message, printable_path, printable_text
from pcopy.units import format_clock

if TYPE_CHECKING:
    from pcopy.report.lines_file import LinesFile
    from pcopy.tasks.base.item_outcomes import ItemOutcomes


def failure_line(failure: Failure, program: str = "pcopy") -> str:
    """Return a failure as one line for people, without a newline: ``pcopy: PATH: OPERATION: reason (ERRNO-NAME)``."""
    line = f"{program}: {printable_path(failure.path)}: {_escaped_operation(failure)}: {_reason_text(failure)}"
    if not failure.errno:
        return line
    return f"{line} ({errno.errorcode.get(failure.errno, f'errno {failure.errno}')})"


def failure_json(failure: Failure) -> str:
    """Return a failure as a JSON object on one line."""
    return json.dumps(failure_json_values(failure))


def failure_json_values(failure: Failure) -> dict[str, object]:
    """Return a failure as values for programs: ``path`` as it is shown, ``path_b64`` with its exact bytes."""
    from pcopy.report.lines_file import path_json_values  # slow to import, and few jobs need it

    return {
        **path_json_values(failure.path),
        "operation": _escaped_operation(failure),
        "errno": failure.errno,
        "message": _reason_text(failure),
    }


def _escaped_operation(failure: Failure) -> str:
    """Return the operation with unprintable characters escaped: it may name an extended attribute, whose name may
    contain any.
    """
    return printable_path(os.fsencode(failure.operation))


def _reason_text(failure: Failure) -> str:
    """Return the reason of a failure: the system's text for its errno, and the message."""
    system = os.strerror(failure.errno) if failure.errno else ""
    message = printable_text(failure.message)
    if not message or not system or system == message:
        return message or system or "failed"
    return f"{system}: {message}"


ERRORS, LOG = "errors file", "log"
"""Names, in messages, of the files that are written while a job runs."""

MAX_FAILURES_SHOWN = 100
"""Number of failures that are printed; all of them are written to the errors file."""

Clock = Callable[[], float]


class OutputOptions(NamedTuple):
    """Which output the user wants.

    Fields:
    - ``quiet``: ``-q``.
    - ``progress``: ``auto``, ``bar``, ``plain``, ``json`` or ``none``.
    - ``interval``: seconds between two updates of the progress; None: the default.
    - ``errors``: file for all failures; None: none.
    - ``umask``: for new files; None: the process's umask.
    - ``json``: print the summary as JSON.
    - ``verbose``: number of ``-v``.
    - ``metrics``: file for metrics; empty: none.
    """

    quiet: bool = False
    progress: str = "auto"
    interval: float | None = None
    errors: bytes | None = None
    umask: int | None = None
    json: bool = False
    verbose: int = 0
    metrics: bytes = b""
    log: bytes | None = None
    """File for the outcome of each item; None: none."""
    reports: tuple[bytes, ...] = ()
    """Files for the report."""
    filter_origins: tuple[str, ...] = ()
    """Where filters were set, if any was set in a file: file and line, and "the command line"."""

    @property
    def reports_items(self) -> bool:
        """True if the outcome of each item must be reported."""
        return self.log is not None or (self.verbose > 1 and not self.quiet)


class ProgressScreen:
    """Prints failures and notices to ``stream``; subclasses show the progress. Implements
    ``pcopy.tasks.base.job.Sink``.
    """

    def __init__(
        self,
        program: str,
        stages: Stages,
        stream: TextIO,
        interval: float,
        clock: Clock,
        files: Sequence[LinesFile | None] = (),
    ) -> None:
        """``interval`` is the least time between two drawings, in seconds of ``clock``.

        ``files`` are that of the failures, and that of all items, each if it is wanted; they are closed with this.
        """
        self._program = program
        self._stream = cast(TextIO, TolerantStream(stream))
        self._interval = interval
        self._clock = clock
        self._files = dict(zip((ERRORS, LOG), files, strict=False))
        now = clock()
        self._gauge = ProgressGauge(now, stages)
        self._due = now + interval
        self._failure_count = 0
        self._phase = ""
        self._limits_text = ""
        self._lock = RLock()
        self.is_verbose = False
        """True if a line is printed when a phase begins."""
        self.shows_items = False
        """True if a line is printed for each item."""

    def begin(self) -> None:
        """Truncate the files; the job will not be refused any more."""
        for file in filter(None, self._files.values()):
            file.make_empty()

    def progress(self, phase: str, totals: Totals, silent: Sequence[int]) -> None:
        """Show the progress if an update is due; the first one comes after one interval."""
        if self.is_verbose and phase != self._phase:
            self._phase = phase
            done = totals.copied + totals.skipped + totals.failed
            self.notice(f"{phase}: {done:,} of {count_with_noun(totals.found, 'item', 'items')} done so far")
        now = self._clock()
        self._gauge.enter_phase(now, phase, totals)
        if now < self._due:
            return
        with self._lock:
            self._due = now + self._interval
            self._show_progress(printable_text(phase), totals, self._gauge.read(now, totals), silent)

    def failures(self, failures: Sequence[Failure]) -> None:
        """Print failures, up to ``MAX_FAILURES_SHOWN`` of a job, and write all of them to the errors file."""
        with self._lock:
            for failure in failures[: max(0, MAX_FAILURES_SHOWN - self._failure_count)]:
                self._print_line(one_line_message(failure_line(failure, self._program)))
            if self._failure_count <= MAX_FAILURES_SHOWN < self._failure_count + len(failures):
                errors = self._files.get(ERRORS)
                where = f"see {printable_path(errors.path)}" if errors else "use --errors FILE"
                self._print_line(f"{self._program}: more failures: {where}")
            self._failure_count += len(failures)
            self._write_to_file(ERRORS, map(failure_json, failures))

    def items(self, items: Sequence[ItemOutcomes]) -> None:
        """Write the outcome of items to the log, and print it if the user wants that. Failed items are printed by
        ``failures``.
        """
        with self._lock:
            for each in items if self.shows_items else ():
                if each.action != Action.FAIL:
                    for item in each.outcomes():
                        self._print_line(str(item))
            if self._files.get(LOG) is not None:
                from pcopy.report.lines_file import item_lines

                self._write_to_file(LOG, item_lines(items))

    def notice(self, text: str) -> None:
        """Print a line, even with ``-q``."""
        with self._lock:
            self._print_line(one_line_message(f"{self._program}: {text}"))

    def report_control(self, state: str) -> None:
        """Report that the user has changed the limits of the running job; ``state`` describes them and is shown with
        the progress.

        An empty ``state`` stands for no limits.
        """
        self._limits_text = state
        self.notice(f"changed by --control: {state or 'no limits, all ranks active'}")

    def _phase_title(self, phase: str) -> str:
        """Return the phase with the limits of the job."""
        return f"{phase} ({self._limits_text})" if self._limits_text else phase

    def remove_new_files(self) -> None:
        """Close the files of a job that was refused, and remove those that were created for it."""
        files, self._files = self._files, {}
        for file in filter(None, files.values()):
            try:
                file.remove_if_new()
            except OSError as error:
                self._print_line(
                    f"{self._program}: {printable_path(file.path)}: cannot remove the {file.name}: {error.strerror}"
                )

    def close(self) -> None:
        """Remove the progress display and close the files; may be called again."""
        files, self._files = self._files, {}
        for file in filter(None, files.values()):
            try:
                file.close()
            except OSError as error:
                self._report_write_error(file, error)

    def _show_progress(self, phase: str, totals: Totals, reading: ProgressReading, silent: Sequence[int]) -> None:
        """Show the progress. This class shows none; subclasses override the method."""

    def _print_line(self, line: str) -> None:
        """Print a line. All text except the bar is printed here, with control characters escaped, so that it
        stays on one line.
        """
        self._write_line(printable_text(line))

    def _write_line(self, line: str) -> None:
        """Write a line to the stream."""
        self._stream.write(f"{line}\n")
        self._stream.flush()

    def _write_to_file(self, which: str, lines: Iterable[str]) -> None:
        """Write lines to one of the files, if it is open; after an error report it and close the file."""
        file = self._files.get(which)
        if file is not None:
            try:
                file.write(lines)
            except OSError as error:
                self._files[which] = None
                self._report_write_error(file, error)

    def _report_write_error(self, file: LinesFile, error: OSError) -> None:
        """Report that a file cannot be written, and close it."""
        self._print_line(
            f"{self._program}: {printable_path(file.path)}: cannot write the {file.name}: {error.strerror}; it is not "
            "complete"
        )
        with contextlib.suppress(OSError):  # It may raise the same error again.
            file.close()


class LinesScreen(ProgressScreen):
    """Progress as a line per interval, for logs and simple terminals."""

    def _show_progress(self, phase: str, totals: Totals, reading: ProgressReading, silent: Sequence[int]) -> None:
        parts = [
            percent_text(reading),
            items_text(reading),
            bytes_text(reading),
            f"{rate_text(reading)} ({mean_rate_text(reading)})" if reading.is_measured else "",
            remaining_text(reading),
            f"{reading.failed:,} failed" if reading.failed else "",
            silence_text(silent),
        ]
        self._print_line(
            f"{self._program}: {format_clock(reading.elapsed)} {self._phase_title(phase)}: "
            f"{', '.join(filter(None, parts))}"
        )


_PROGRESS_COUNTERS = (
    *("found", "copied", "skipped", "failed", "unscanned", "bytes", "moved", "found_bytes"),
    *("to_verify", "to_verify_bytes", "verified", "verified_bytes"),
)
"""Counters in a line of JSON progress, by their names in ``Totals``."""


def progress_json_values(phase: str, totals: Totals, reading: ProgressReading, silent: Sequence[int]) -> dict[str, Any]:
    """Return the progress of a job for programs (docs/formats/progress.md)."""
    fraction, left = reading.fraction, reading.remaining
    return {
        "time": round(time.time(), 3),
        "elapsed": round(reading.elapsed, 3),
        "phase": phase,
        **{name: getattr(totals, name) for name in _PROGRESS_COUNTERS},
        "handled_bytes": reading.bytes_done,
        "percent": None if fraction is None else int(fraction * 1000) / 10,
        "bytes_per_second": round(reading.rate),
        "mean_bytes_per_second": round(reading.mean_rate),
        "items_per_second": round(reading.item_rate, 1),
        "mean_items_per_second": round(reading.mean_item_rate, 1),
        "eta": None if left is None else round(left, 1),
        "silent": list(silent),
    }


class JsonScreen(ProgressScreen):
    """Progress as a JSON object per interval (docs/formats/progress.md); failures and notices are printed as text."""

    def _show_progress(self, phase: str, totals: Totals, reading: ProgressReading, silent: Sequence[int]) -> None:
        self._print_line(
            json.dumps({**progress_json_values(phase, totals, reading, silent), "state": self._limits_text})
        )
