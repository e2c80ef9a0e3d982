"""The output about a running job on standard error: all failures, and progress in the form that the user requests.

Rules:
- Progress is shown at intervals. A call before the interval is over returns at once, so that frequent calls cost
  nothing.
- An error in the output never ends a job. If standard error is closed, no message is possible, but exit status and
  summary are still right. An errors file that cannot be written is reported once.
- Two threads may print at the same time: the rank's main thread, and the one that watches for ranks without an answer.
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
from pcopy.report.streams import TolerantStream
from pcopy.tasks.base.actions import ItemAction
from pcopy.tasks.base.job import REPORT_ALL_ITEMS, Failure, JobCounters
from pcopy.text import count_with_noun, invoked_name, one_line_message, printable_path, printable_text
from pcopy.units import format_running_clock

if TYPE_CHECKING:
    from pcopy.report.lines_file import JsonLinesFile
    from pcopy.tasks.base.item_outcomes import PackedItemOutcomes


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
    """Return a failure as values for JSON. The path is there twice: ``path`` as people see it, ``path_b64`` with its
    exact bytes.
    """
    from pcopy.report.lines_file import path_as_json_values  # slow to import, and few jobs need it

    return {
        **path_as_json_values(failure.path),
        "operation": _escaped_operation(failure),
        "errno": failure.errno,
        "message": _reason_text(failure),
    }


def _escaped_operation(failure: Failure) -> str:
    """Return what the program tried to do when ``failure`` happened, with unprintable characters escaped.

    It may contain the name of an extended attribute, in which any byte is possible.
    """
    return printable_path(os.fsencode(failure.operation))


def _reason_text(failure: Failure) -> str:
    """Return the reason of a failure: the system's text for its errno, followed by the failure's own message if that
    says more.
    """
    system = os.strerror(failure.errno) if failure.errno else ""
    message = printable_text(failure.message)
    if not message or not system or system == message:
        return message or system or "failed"
    return f"{system}: {message}"


ERRORS_FILE_NOUN, LOG_FILE_NOUN = "errors file", "log"
"""What messages call the files of ``--errors`` and ``--log``."""

MAX_FAILURES_SHOWN = 100
"""Maximum number of failures that are printed, followed by a notice that there are more.

The errors file (``--errors``) contains all of them.
"""

Clock = Callable[[], float]
"""Type of a clock: a function that returns seconds and never goes back."""


class OutputOptions(NamedTuple):
    """The output that the user requests.

    Fields:
    - ``quiet``: True to print only errors (``-q``).
    - ``progress``: ``auto``, ``bar``, ``plain``, ``json`` or ``none``.
    - ``interval``: seconds between two updates of the progress; None: the default.
    - ``errors``: path of the file for all failures; None: no file.
    - ``umask``: for new files; None: the process's umask.
    - ``json``: True to print the summary as JSON.
    - ``verbose``: number of ``-v`` options.
    - ``metrics``: path of the file for metrics; empty: no file.
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
    """Path of the file for the outcome of each item; None: no file."""
    reports: tuple[bytes, ...] = ()
    """Paths of the files for the report."""
    filter_origins: tuple[str, ...] = ()
    """Where the filters were set (``FILE:LINE``, or "the command line"); empty if no configuration file sets any."""

    hides_items: bool = False
    """True if ``-v`` and ``-vv`` print no lines for items, because a dry run prints them on standard output."""

    @property
    def reported_items(self) -> int:
        """The items whose outcome must be reported to rank 0 (``Options.itemize``): all for ``--log``, and for ``-vv``
        without ``-q``; those that were changed for ``-v``.
        """
        shown = 0 if self.quiet else min(self.verbose, REPORT_ALL_ITEMS)
        return REPORT_ALL_ITEMS if self.log is not None else shown


class ProgressScreen:
    """Prints failures and notices, and writes the files of ``--errors`` and ``--log``; subclasses show the progress.

    Used on rank 0. Implements the protocol ``pcopy.tasks.base.job.ProgressSink``, through which a job reports.
    """

    def __init__(
        self,
        program: str,
        stages: StagesByPhase,
        stream: TextIO,
        interval: float,
        clock: Clock,
        files: Sequence[JsonLinesFile | None] = (),
    ) -> None:
        """Prepare the output of a job; nothing is printed yet.

        Args:
            program: name of the program, with which each line begins.
            stages: the parts of the job whose progress is measured separately.
            stream: where lines are printed.
            interval: seconds of ``clock`` between two updates of the progress.
            clock: returns seconds of a clock that never goes back.
            files: the open files of ``--errors`` and of ``--log``, in this order; None for an option that is not given.
                ``close`` closes them.
        """
        self._program = invoked_name(program)
        self._stream = cast(TextIO, TolerantStream(stream))
        self._interval = interval
        self._clock = clock
        self._files = dict(zip((ERRORS_FILE_NOUN, LOG_FILE_NOUN), files, strict=False))
        now = clock()
        self._gauge = ProgressGauge(now, stages)
        self._due = now + interval
        self._failure_count = 0
        self._phase = ""
        self._limits_text = ""
        self._lock = RLock()
        self.job_name: str | None = None
        """Name of the recorded job, for programs that read the progress; None if it is not recorded."""
        self.is_verbose = False
        """True to print a line when a phase begins (``-v``)."""
        self.shows_changes = False
        """True to print a line for each item that is changed (``-v``)."""
        self.shows_unchanged = False
        """True to print a line for each item that remains as it is, too (``-vv``)."""

    @property
    def clearing_sequence(self) -> str:
        """Control sequence that removes the progress from the terminal if the process ends at once; may be empty."""
        return ""

    def truncate_output_files(self) -> None:
        """Called when it is certain that the job runs: truncate the files of ``--errors`` and ``--log``."""
        for file in filter(None, self._files.values()):
            file.truncate_file()

    def receive_progress(self, phase: str, totals: JobCounters, silent: Sequence[int]) -> None:
        """Show the progress if an interval has passed since the last update, or since the start.

        Args:
            phase: name of the current phase.
            totals: the counters of the job.
            silent: ranks that have not answered lately.
        """
        if self.is_verbose and phase != self._phase:
            self._phase = phase
            done = totals.copied + totals.skipped + totals.failed
            self.receive_notice(
                f"phase {phase}: {done:,} of {count_with_noun(totals.found, 'item', 'items')} done so far"
            )
        now = self._clock()
        self._gauge.enter_phase(now, phase, totals)
        if now < self._due:
            return
        with self._lock:
            self._due = now + self._interval
            self._show_progress(printable_text(phase), totals, self._gauge.read(now, totals), silent)

    def receive_failures(self, failures: Sequence[Failure]) -> None:
        """Print failures, up to ``MAX_FAILURES_SHOWN`` of a job, and write all of them to the errors file."""
        with self._lock:
            for failure in failures[: max(0, MAX_FAILURES_SHOWN - self._failure_count)]:
                self._print_line(one_line_message(failure_line(failure, self._program)))
            if self._failure_count <= MAX_FAILURES_SHOWN < self._failure_count + len(failures):
                errors = self._files.get(ERRORS_FILE_NOUN)
                where = (
                    f"all are listed in {printable_path(errors.path)}" if errors else "--errors FILE lists all of them"
                )
                self._print_line(f"{self._program}: further failures are not shown: {where}")
            self._failure_count += len(failures)
            self._write_to_file(ERRORS_FILE_NOUN, map(failure_json, failures))

    def items(self, items: Sequence[PackedItemOutcomes]) -> None:
        """Write the outcomes of ``items`` to the file of ``--log``. Print the changes with ``-v``, all with ``-vv``.

        Failed items are not printed here, because ``failures`` prints them with the reason.
        """
        with self._lock:
            for each in items if self.shows_changes else ():
                if each.action != ItemAction.FAIL and (self.shows_unchanged or each.action != ItemAction.SKIP):
                    for item in each.unpacked_outcomes():
                        self._print_line(str(item))
            if self._files.get(LOG_FILE_NOUN) is not None:
                from pcopy.report.lines_file import item_log_lines

                self._write_to_file(LOG_FILE_NOUN, item_log_lines(items))

    def receive_notice(self, text: str) -> None:
        """Print ``PROGRAM: text`` as one line, even with ``-q``."""
        with self._lock:
            self._print_line(one_line_message(f"{self._program}: {text}"))

    def report_changed_limits(self, state: str) -> None:
        """Print that the user has changed the limits of the running job, and show them with the progress from now on.

        ``state``: the new limits, as text; empty: no limits.
        """
        self._limits_text = state
        self.receive_notice(f"changed by --control: {state or 'no limits, all ranks active'}")

    def _phase_title(self, phase: str) -> str:
        """Return the name of the phase, followed by the limits that the user has set with ``--control``, if there are
        any.
        """
        return f"{phase} ({self._limits_text})" if self._limits_text else phase

    def remove_new_files(self) -> None:
        """Close the files, because the job is not run after all, and remove those that were created for it."""
        files, self._files = self._files, {}
        for file in filter(None, files.values()):
            try:
                file.close_and_remove_if_unused()
            except OSError as error:
                self._print_line(
                    f"{self._program}: {printable_path(file.path)}: cannot remove the {file.name}: {error.strerror}"
                )

    def close(self) -> None:
        """Remove the progress from the terminal, and close the files; has no effect if that is done already."""
        files, self._files = self._files, {}
        for file in filter(None, files.values()):
            try:
                file.close()
            except OSError as error:
                self._report_write_error(file, error)

    def _show_progress(self, phase: str, totals: JobCounters, reading: ProgressSnapshot, silent: Sequence[int]) -> None:
        """Show the progress. This class shows none; a subclass overrides the method.

        Args:
            phase: name of the current phase, printable.
            totals: the counters of the job.
            reading: the progress computed from them.
            silent: ranks that have not answered lately.
        """

    def _print_line(self, line: str) -> None:
        """Print a line, with control characters escaped, so that it stays one line. All text but the bar comes here."""
        self._write_line(printable_text(line))

    def _write_line(self, line: str) -> None:
        """Write a line of printable characters to the stream. The bar overrides this to write above itself."""
        self._stream.write(f"{line}\n")
        self._stream.flush()

    def _write_to_file(self, which: str, lines: Iterable[str]) -> None:
        """Write ``lines`` to the file of ``--errors`` or ``--log``, if it is open. ``which`` is ``ERRORS_FILE_NOUN`` or
        ``LOG_FILE_NOUN``.

        After an error, report the error and close the file: nothing more is written to it.
        """
        file = self._files.get(which)
        if file is not None:
            try:
                file.write(lines)
            except OSError as error:
                self._files[which] = None
                self._report_write_error(file, error)

    def _report_write_error(self, file: JsonLinesFile, error: OSError) -> None:
        """Print that ``file`` cannot be written and is not complete, and close it."""
        self._print_line(
            f"{self._program}: {printable_path(file.path)}: cannot write the {file.name}: {error.strerror}; the "
            "file is not complete"
        )
        with contextlib.suppress(OSError):  # close() may raise the same error again.
            file.close()


class ProgressLinesScreen(ProgressScreen):
    """Shows progress as one line per interval, for logs and simple terminals."""

    def _show_progress(self, phase: str, totals: JobCounters, reading: ProgressSnapshot, silent: Sequence[int]) -> None:
        parts = [
            percent_text(reading),
            items_done_text(reading),
            bytes_done_text(reading),
            f"{rate_text(reading)} ({mean_rate_text(reading)})" if reading.is_measured else "",
            remaining_text(reading),
            f"{reading.failed:,} failed" if reading.failed else "",
            silent_ranks_text(silent),
        ]
        self._print_line(
            f"{self._program}: {format_running_clock(reading.elapsed)} {self._phase_title(phase)}: "
            f"{', '.join(filter(None, parts))}"
        )


_PROGRESS_COUNTERS = (
    *("found", "copied", "skipped", "failed", "unscanned", "bytes", "moved", "found_bytes"),
    *("to_verify", "to_verify_bytes", "verified", "verified_bytes"),
)
"""Names of the counters (fields of ``JobCounters``) that a line of JSON progress contains."""


def progress_json_values(
    phase: str, totals: JobCounters, reading: ProgressSnapshot, silent: Sequence[int]
) -> dict[str, Any]:
    """Return the progress of a job as values for JSON (docs/formats/progress.md).

    Args:
        phase: name of the current phase.
        totals: the counters of the job.
        reading: the progress computed from them.
        silent: ranks that have not answered lately.
    """
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


class ProgressJsonScreen(ProgressScreen):
    """Shows progress as a JSON object when the job begins, and one per interval (docs/formats/progress.md); failures
    and notices remain text.
    """

    def truncate_output_files(self) -> None:
        super().truncate_output_files()
        self._due = self._clock()

    def _show_progress(self, phase: str, totals: JobCounters, reading: ProgressSnapshot, silent: Sequence[int]) -> None:
        values = progress_json_values(phase, totals, reading, silent)
        self._print_line(json.dumps({**values, "state": self._limits_text, "job": self.job_name}))
