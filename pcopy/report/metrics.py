"""``--metrics``: counters of a job as text for the textfile collector of Prometheus' node_exporter
(docs/formats/metrics.md).

Rules: several files in one directory do not conflict, because each series has the name of its file as a label. The
outcome of the last run that has ended remains in the file while the next one runs. Metric names contain their units. A
metric with ``_total`` in its name starts at 0 with each job.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Iterator, Sequence

from pcopy import __version__
from pcopy.errors import EXIT_OK
from pcopy.fast_named_tuple import NamedTuple
from pcopy.report.output_file import OutputFile
from pcopy.report.progress_gauge import ProgressGauge, ProgressSnapshot
from pcopy.report.recorder import JobEnd, JobRecorder, PrintNotice, RunDescription
from pcopy.tasks.base.job import JobCounters
from pcopy.text import printable_path

METRICS_INTERVAL = 15.0
"""Seconds between two updates of the metrics file if ``--progress-interval`` is not given: the usual scrape interval of
Prometheus.
"""

METRICS_FILE_EXTENSION = b".prom"
"""File name extension that node_exporter requires. It is left out in the label that contains the name of the file."""

_METRICS_READ_LIMIT = 1 << 20
"""Maximum number of bytes that are read from the metrics file of an earlier run; a file that pcopy wrote is far
shorter.
"""


class _LastRunOutcome(NamedTuple):
    """Outcome of the last run that has ended, of this job or an earlier one with the same file.

    Fields:
    - ``status``: its exit status; None if no run has ended yet.
    - ``finished``: when it ended, in seconds since 1970; None if no run has ended yet.
    - ``succeeded``: when a run ended with status 0 for the last time, in seconds since 1970; None if none has.
    """

    status: int | None = None
    finished: float | None = None
    succeeded: float | None = None


class _Metric(NamedTuple):
    """A metric (a named value for Prometheus) with one value.

    Fields:
    - ``name``: its name without the prefix ``PROGRAM_``.
    - ``kind``: the type for Prometheus: ``gauge`` or ``counter``.
    - ``help``: its description.
    - ``value``: its value; a metric whose value is None is not written.
    - ``labels``: pairs of name and value, in addition to the label with the file's name.
    """

    name: str
    kind: str
    help: str
    value: float | None
    labels: tuple[tuple[str, str], ...] = ()


class MetricsRecorder(JobRecorder):
    """Writes the metrics of one job to a file, which is replaced at each update."""

    def __init__(
        self,
        path: bytes,
        umask: int | None = None,
        interval: float | None = None,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
    ) -> None:
        """Open the directory of the file; raise ``RequestRefused`` if no file can be created there.

        Args:
            path: the file.
            umask: for new files; None: the process's umask.
            interval: seconds of ``clock`` between two updates; None: the default.
            clock: returns seconds of a clock that never goes back.
            wall: returns seconds since 1970.
        """
        self._file = OutputFile(path, umask)
        self._interval = interval or METRICS_INTERVAL
        self._clock = clock
        self._wall = wall
        self._due = 0.0
        self._is_error_reported = False
        self._phase = ""
        self._exit_status: int | None = None

    def begin_recording(self, facts: RunDescription, notice: PrintNotice) -> None:
        self._facts = facts
        self._notice = notice
        self._last = last_run_in_metrics(self._file.read(_METRICS_READ_LIMIT), facts.program)
        self._gauge = ProgressGauge(self._clock(), facts.stages)
        self._write_metrics_file(facts.earlier_totals, ())

    def record_progress(self, phase: str, totals: JobCounters, silent: Sequence[int]) -> None:
        now = self._clock()
        self._gauge.enter_phase(now, phase, totals)
        self._phase = phase
        if now >= self._due:
            self._write_metrics_file(totals, silent)

    def end(self, end: JobEnd) -> None:
        now = round(self._wall(), 3)
        self._exit_status = end.status
        self._last = _LastRunOutcome(end.status, now, now if end.status == EXIT_OK else self._last.succeeded)
        self._write_metrics_file(end.totals, ())
        self._file.close()

    def _write_metrics_file(self, totals: JobCounters, silent: Sequence[int]) -> None:
        """Replace the metrics file by one with the current counters ``totals``.

        ``silent``: ranks that have not answered lately. Only the first error is reported, and the job continues.
        """
        now = self._clock()
        self._due = now + self._interval
        reading = self._gauge.read(now, totals) if self._exit_status is None else None
        try:
            self._file.replace(self._metrics_file_contents(totals, silent, reading).encode())
        except OSError as error:
            if not self._is_error_reported:
                self._is_error_reported = True
                reason = f"{error.strerror}; the job goes on" if self._exit_status is None else error.strerror
                self._notice(f"{printable_path(self._file.path)}: cannot write the metrics: {reason}")

    def _metrics_file_contents(
        self, totals: JobCounters, silent: Sequence[int], reading: ProgressSnapshot | None
    ) -> str:
        """Return the new contents of the metrics file.

        Args:
            totals: the counters of the job.
            silent: ranks that have not answered lately.
            reading: the progress; None when the job has ended.
        """
        file = printable_path(self._file.name.removesuffix(METRICS_FILE_EXTENSION))
        samples = [
            *self._job_metrics(silent),
            *_counter_metrics(totals, self._facts.done_word),
            *_progress_metrics(reading),
            *self._last_run_metrics(),
        ]
        return "".join(_metric_lines(self._facts.program, file, samples))

    def _job_metrics(self, silent: Sequence[int]) -> Iterator[_Metric]:
        """Yield the metrics that describe the job: its name, phase, start and ranks.

        ``silent``: ranks that have not answered lately.
        """
        facts = self._facts
        roots = facts.job.roots
        labels = {
            "version": __version__,
            "job": facts.job.name,
            "source": printable_path(roots[0].source_shown) if len(roots) == 1 else f"{len(roots)} sources",
            "destination": printable_path(roots[0].target_shown) if facts.writes_to_targets else "",
        }
        yield _Metric("job_info", "gauge", "The job that the file describes; the value is 1.", 1, (*labels.items(),))
        is_running = self._exit_status is None
        yield _Metric("running", "gauge", "1 while the job runs, else 0.", int(is_running))
        if is_running and self._phase:
            phase = (("phase", self._phase),)
            yield _Metric("phase_info", "gauge", "The phase that the job is in; the value is 1.", 1, phase)
        started = round(facts.started, 3)
        yield _Metric("started_timestamp_seconds", "gauge", "When this run has begun.", started)
        yield _Metric("runs", "gauge", "How often the job was started or resumed.", facts.job.run)
        yield _Metric("ranks", "gauge", "Processes that share the work.", len(facts.hosts))
        if is_running:
            yield _Metric("silent_ranks", "gauge", "Ranks that have not answered lately.", len(silent))

    def _last_run_metrics(self) -> Iterator[_Metric]:
        """Yield the metrics about the last run that has ended: its status, its end, and the last success."""
        last = self._last
        text = "exit status of the last run that has ended."
        yield _Metric("last_exit_status", "gauge", f"The {text}", last.status)
        yield _Metric("finished_timestamp_seconds", "gauge", "When the last run has ended.", last.finished)
        text = "When a run has ended with status 0 for the last time."
        yield _Metric("last_success_timestamp_seconds", "gauge", text, last.succeeded)


def _counter_metrics(totals: JobCounters, done: str) -> Iterator[_Metric]:
    """Yield the metrics for the counters ``totals`` of the whole job, including its earlier runs.

    ``done``: what the program does to an item, as a participle such as "copied".
    """
    yield _Metric("found_items", "gauge", "Items found up to now.", totals.found)
    yield _Metric("found_bytes", "gauge", "Bytes of the regular files found up to now.", totals.found_bytes)
    for name, text, value in (
        (f"{done.replace(' ', '_')}_items", f"Items that were {done}.", totals.copied),  # names contain no space
        ("skipped_items", "Items that were left alone.", totals.skipped),
        ("failed_items", "Items that have failed.", totals.failed),
        ("bytes", f"Bytes of the files that were {done} whole.", totals.bytes),
        ("moved_bytes", "Bytes as they move; some move in vain.", totals.moved),
        ("skipped_bytes", "Bytes of the files that were left alone.", totals.skipped_bytes),
        ("failed_bytes", "Bytes of the files that have failed.", totals.failed_bytes),
        ("deleted_items", "Items of the destination that were deleted.", totals.deleted),
        ("excused_items", "Items whose owner, group or attributes may not be set.", totals.excused),
        ("warnings", "Warnings.", totals.warnings),
        ("verified_items", "Items that were read back and are right.", totals.verified),
        ("verified_bytes", "Bytes that were read back by this run.", totals.verified_bytes),
    ):
        yield _Metric(f"{name}_total", "counter", text, value)


def _progress_metrics(reading: ProgressSnapshot | None) -> Iterator[_Metric]:
    """Yield the metrics of progress and remaining time; none if ``reading`` is None."""
    if reading is not None:
        text = "Share of the phase's work that is done, 0 to 1; missing while that is not known."
        yield _Metric("progress_ratio", "gauge", text, reading.fraction)
        left = None if reading.remaining is None else round(reading.remaining, 1)
        yield _Metric("remaining_seconds", "gauge", "Estimated time to the end of the phase.", left)


def _metric_lines(program: str, file: str, samples: Sequence[_Metric]) -> Iterator[str]:
    """Yield the metrics ``samples`` in the text format of Prometheus.

    ``program`` becomes the prefix of their names, and ``file`` the value of their label ``file``.
    """
    for sample in samples:
        if sample.value is None:
            continue
        name = f"{program}_{sample.name}"
        labels = ",".join(f'{key}="{_escaped_label_value(value)}"' for key, value in (("file", file), *sample.labels))
        yield f"# HELP {name} {sample.help}\n# TYPE {name} {sample.kind}\n{name}{{{labels}}} {sample.value!r}\n"


def _escaped_label_value(value: str) -> str:
    """Return ``value``, with escapes for characters that the text format of Prometheus does not permit in a label."""
    return value.replace("\\", "\\\\").replace("\n", "\\n").replace('"', '\\"')


def is_beginning_of_metrics_file(beginning: bytes) -> bool:
    """True if ``beginning`` can be the first bytes of a file that ``--metrics`` of pcopy or a related program wrote.

    An existing file that begins otherwise is not replaced.
    """
    return re.match(rb"# HELP p[a-z]+_job_info ", beginning) is not None


def last_run_in_metrics(text: bytes, program: str) -> _LastRunOutcome:
    """Return the outcome of the last run that has ended, from ``text``, the contents of the file before this run.

    ``program``: the prefix of the metrics.
    """
    found = {}
    names = b"last_exit_status|finished_timestamp_seconds|last_success_timestamp_seconds"
    lines = rb"^%b_(%b)\{[^\n]*\} (\d+(?:\.\d+)?)$" % (os.fsencode(program), names)
    for name, value in re.findall(lines, text, re.MULTILINE):
        found[name] = float(value)
    status = found.get(b"last_exit_status")
    return _LastRunOutcome(
        None if status is None else int(status),
        found.get(b"finished_timestamp_seconds"),
        found.get(b"last_success_timestamp_seconds"),
    )
