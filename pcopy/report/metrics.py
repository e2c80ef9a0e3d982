"""``--metrics``: what a job counts, as text that Prometheus' node_exporter hands on (docs/formats/metrics.md).

Rules: each file is valid by itself, and beside others in one directory, since a series has the file's own name as its
label. How the last run ended is told while the next one runs, too. The names say their units; a name with ``_total``
begins at 0 with each job.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Iterator, Sequence

from pcopy import __version__
from pcopy.errors import OK
from pcopy.named import NamedTuple
from pcopy.report.gauge import Gauge, Reading
from pcopy.report.output_file import OutputFile
from pcopy.report.recorder import End, Facts, Notice, Recorder
from pcopy.tasks.base.job import Totals
from pcopy.text import shown

METRICS_INTERVAL = 15.0
"""Seconds between two versions of the file: as often as Prometheus asks for them, unless it is told otherwise."""

ENDING = b".prom"
"""Of the files that node_exporter reads."""

_MOST = 1 << 20
"""Bytes of an older file that are looked at."""


class _Last(NamedTuple):
    """How the last run that has ended did so; times in seconds since 1970, None: none has."""

    status: int | None = None
    finished: float | None = None
    succeeded: float | None = None


class _Sample(NamedTuple):
    """A series without its prefix and its first label: ``labels`` are further ones, values None are left out."""

    name: str
    kind: str
    help: str
    value: float | None
    labels: tuple[tuple[str, str], ...] = ()


class Metrics(Recorder):
    """The file of one job."""

    def __init__(
        self,
        path: bytes,
        umask: int | None = None,
        interval: float | None = None,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
    ) -> None:
        """``interval`` is in seconds of ``clock``; ``wall`` counts from 1970. Raises ``Refused``."""
        self._file = OutputFile(path, umask)
        self._interval = interval or METRICS_INTERVAL
        self._clock = clock
        self._wall = wall
        self._due = 0.0
        self._is_told = False
        self._phase = ""
        self._ended: int | None = None

    def begin(self, facts: Facts, notice: Notice) -> None:
        self._facts = facts
        self._notice = notice
        self._last = last_of(self._file.read(_MOST), facts.program)
        self._gauge = Gauge(self._clock(), facts.stages)
        self._write(facts.before, ())

    def progress(self, phase: str, totals: Totals, silent: Sequence[int]) -> None:
        now = self._clock()
        self._gauge.enter(now, phase, totals)
        self._phase = phase
        if now >= self._due:
            self._write(totals, silent)

    def end(self, end: End) -> None:
        now = round(self._wall(), 3)
        self._ended = end.status
        self._last = _Last(end.status, now, now if end.status == OK else self._last.succeeded)
        self._write(end.totals, ())
        self._file.close()

    def _write(self, totals: Totals, silent: Sequence[int]) -> None:
        now = self._clock()
        self._due = now + self._interval
        reading = self._gauge.read(now, totals) if self._ended is None else None
        try:
            self._file.replace(self._text(totals, silent, reading).encode())
        except OSError as error:
            if not self._is_told:
                self._is_told = True
                reason = f"{error.strerror}; the job goes on" if self._ended is None else error.strerror
                self._notice(f"{shown(self._file.path)}: cannot write the metrics: {reason}")

    def _text(self, totals: Totals, silent: Sequence[int], reading: Reading | None) -> str:
        file = shown(self._file.name.removesuffix(ENDING))
        samples = [*self._job(silent), *_counted(totals, self._facts.done), *_forecast(reading), *self._ends()]
        return "".join(_lines(self._facts.program, file, samples))

    def _job(self, silent: Sequence[int]) -> Iterator[_Sample]:
        facts = self._facts
        roots = facts.job.roots
        labels = {
            "version": __version__,
            "job": facts.job.name,
            "source": shown(roots[0].source_shown) if len(roots) == 1 else f"{len(roots)} sources",
            "destination": shown(roots[0].target_shown) if facts.writes else "",
        }
        yield _Sample("job_info", "gauge", "The job that the file tells of; the value is 1.", 1, (*labels.items(),))
        is_running = self._ended is None
        yield _Sample("running", "gauge", "1 while the job runs, else 0.", int(is_running))
        if is_running and self._phase:
            phase = (("phase", self._phase),)
            yield _Sample("phase_info", "gauge", "The phase that the job is in; the value is 1.", 1, phase)
        started = round(facts.started, 3)
        yield _Sample("started_timestamp_seconds", "gauge", "When this run has begun.", started)
        yield _Sample("runs", "gauge", "How often the job was begun or gone on with.", facts.job.run)
        yield _Sample("ranks", "gauge", "Processes that share the work.", len(facts.hosts))
        if is_running:
            yield _Sample("silent_ranks", "gauge", "Ranks that have not answered lately.", len(silent))

    def _ends(self) -> Iterator[_Sample]:
        last = self._last
        what = "exit status of the last run that has ended."
        yield _Sample("last_exit_status", "gauge", f"The {what}", last.status)
        yield _Sample("finished_timestamp_seconds", "gauge", "When the last run has ended.", last.finished)
        what = "When a run has ended with status 0 for the last time."
        yield _Sample("last_success_timestamp_seconds", "gauge", what, last.succeeded)


def _counted(totals: Totals, done: str) -> Iterator[_Sample]:
    """Of the whole job, with its earlier runs."""
    yield _Sample("found_items", "gauge", "Items found up to now.", totals.found)
    yield _Sample("found_bytes", "gauge", "Bytes of the regular files found up to now.", totals.found_bytes)
    for name, text, value in (
        (f"{done.replace(' ', '_')}_items", f"Items that were {done}.", totals.copied),  # a name has no space
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
        yield _Sample(f"{name}_total", "counter", text, value)


def _forecast(reading: Reading | None) -> Iterator[_Sample]:
    if reading is not None:
        what = "Share of the phase's work that is done, 0 to 1; missing while that is not known."
        yield _Sample("progress_ratio", "gauge", what, reading.fraction)
        left = None if reading.left is None else round(reading.left, 1)
        yield _Sample("remaining_seconds", "gauge", "Estimated time to the end of the phase.", left)


def _lines(program: str, file: str, samples: Sequence[_Sample]) -> Iterator[str]:
    for sample in samples:
        if sample.value is None:
            continue
        name = f"{program}_{sample.name}"
        labels = ",".join(f'{key}="{_escaped(value)}"' for key, value in (("file", file), *sample.labels))
        yield f"# HELP {name} {sample.help}\n# TYPE {name} {sample.kind}\n{name}{{{labels}}} {sample.value!r}\n"


def _escaped(value: str) -> str:
    """As the value of a label."""
    return value.replace("\\", "\\\\").replace("\n", "\\n").replace('"', '\\"')


def begins_as_metrics(beginning: bytes) -> bool:
    """Is it what some program's ``--metrics`` has written?"""
    return re.match(rb"# HELP p[a-z]+_job_info ", beginning) is not None


def last_of(text: bytes, program: str) -> _Last:
    """How the run that ``text``, an older file, tells of ended, or the one before."""
    found = {}
    names = b"last_exit_status|finished_timestamp_seconds|last_success_timestamp_seconds"
    lines = rb"^%b_(%b)\{[^\n]*\} (\d+(?:\.\d+)?)$" % (os.fsencode(program), names)
    for name, value in re.findall(lines, text, re.MULTILINE):
        found[name] = float(value)
    status = found.get(b"last_exit_status")
    return _Last(
        None if status is None else int(status),
        found.get(b"finished_timestamp_seconds"),
        found.get(b"last_success_timestamp_seconds"),
    )
