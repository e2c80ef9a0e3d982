"""``--report``: a description of a job and its course, as a page for people (.html) or as JSON for programs (.json).

The format is described in docs/formats/report.md. The data are collected while the job runs. The file is written when
the job has ended, whatever its exit status, unless the process of rank 0 was killed.
"""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from pcopy import __version__
from pcopy.errors import EXIT_STOPPED
from pcopy.report.history import CounterSample, FailureSummary, JobHistory
from pcopy.report.lines_file import path_as_json_values
from pcopy.report.output_file import OutputFile
from pcopy.report.recorder import JobEnd, JobRecorder, PrintNotice, RunDescription
from pcopy.tasks.base.job import Failure, Job, JobCounters, Options, options_by_name
from pcopy.tasks.base.rank_sums import NUMBER_OF_SIZE_CLASSES, ReportSums
from pcopy.text import printable_path, shell_quoted

REPORT_FORMAT, REPORT_VERSION = "pcopy-report", 1
"""First two values of a JSON report; the version is increased when the meaning of a key changes."""

_INTERNAL_OPTIONS = frozenset(("umask", "itemize"))
"""Fields of ``Options`` that are no options of a command line; the report omits them."""


class JobReportRecorder(JobRecorder):
    """Collects the data of one job, and writes its report to one file or several files."""

    def __init__(
        self,
        paths: Sequence[bytes],
        umask: int | None = None,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
    ) -> None:
        """Open the directories of the report files ``paths``; raise ``RequestRefused`` if a file cannot be created
        there.

        Args:
            umask: for new files; None: the process's umask.
            clock: returns seconds of a clock that never goes back.
            wall: returns seconds since 1970.
        """
        self._files = [OutputFile(path, umask) for path in paths]
        self._clock = clock
        self._wall = wall
        self._failures = FailureSummary()

    def begin_recording(self, facts: RunDescription, notice: PrintNotice) -> None:
        self._facts = facts
        self._notice = notice
        self._history = JobHistory(self._clock(), facts.earlier_totals)

    def record_progress(self, phase: str, totals: JobCounters, silent: Sequence[int]) -> None:
        self._history.add_sample(self._clock(), phase, totals)

    def record_failures(self, failures: Sequence[Failure]) -> None:
        self._failures.add_failures(failures)

    def end(self, end: JobEnd) -> None:
        self._history.add_sample(self._clock(), "", end.totals)
        values = self._report_json_values(end)
        for file in self._files:
            try:
                file.replace(_report_file_contents(file.name, values), durable_contents=end.status != EXIT_STOPPED)
            except OSError as error:
                self._notice(f"{printable_path(file.path)}: cannot write the report: {error.strerror}")
            file.close()

    def _report_json_values(self, end: JobEnd) -> dict[str, Any]:
        """Return the contents of the report as values for JSON, by key. ``end`` says how the job ended."""
        facts, history = self._facts, self._history
        sums = ReportSums.from_packed_bytes(end.work_of_ranks)
        seconds = end.summary.get("seconds", history.samples[-1].seconds)
        return {
            "format": REPORT_FORMAT,
            "version": REPORT_VERSION,
            "program": facts.program,
            "program_version": __version__,
            "kernel": facts.backend,
            "done": facts.done_word,
            "command": " ".join([facts.program, *(shell_quoted(os.fsencode(word)) for word in facts.command_line)]),
            "dry_run": facts.job.options.dry_run,
            "job": _job_json_values(facts),
            "hosts": [{"host": host, "ranks": facts.hosts.count(host)} for host in dict.fromkeys(facts.hosts)],
            "started": _iso_time(facts.started),
            "ended": _iso_time(self._wall()),
            "seconds": seconds,
            "exit_status": end.status,
            "meaning": facts.status_meanings.get(end.status, f"ended with status {end.status}"),
            "halted": end.halt_reason,
            "summary": dict(end.summary),
            "totals": _totals_json_values(end.totals),
            "this_run": _this_run_json_values(history.samples[-1], end, facts.earlier_totals, seconds),
            "phases": [phase._asdict() for phase in history.phases()],
            "history": {"columns": CounterSample._fields, "rows": history.samples},
            "sizes": _file_sizes_json_values(sums),
            "ranks": [{**work._asdict(), "host": facts.hosts[work.rank]} for work in sorted(sums.ranks)],
            "slowest": [_slow_file_json_values(*slow) for slow in sums.slowest_files],
            "failures": self._failures.failures_as_json_values(),
        }


def _iso_time(moment: float) -> str:
    """Return a time, in seconds since 1970, in ISO 8601 format (UTC)."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(moment))


def _job_json_values(facts: RunDescription) -> dict[str, Any]:
    """Return the values that describe the job: its name, sources, destination and options."""
    job = facts.job
    return {
        "name": job.name,
        "run": job.run,
        "sources": [path_as_json_values(root.source_shown) for root in job.roots],
        "destination": path_as_json_values(job.roots[0].target_shown)
        if facts.writes_to_targets and job.roots
        else None,
        "options": _options_json_values(job),
    }


def _options_json_values(job: Job) -> dict[str, Any]:
    """Return the options of the job that differ from their defaults, by the name of the field in ``Options`` or in the
    options of the program.
    """
    values = options_by_name(job.options, job.program)
    defaults = options_by_name(Options(), None if job.program is None else type(job.program)())
    differ = _values_differing_from_defaults(values, defaults)
    return {name: value for name, value in differ.items() if name not in _INTERNAL_OPTIONS}


def _values_differing_from_defaults(values: Mapping[str, Any], defaults: Mapping[str, Any]) -> dict[str, Any]:
    """Return those of ``values`` that differ from ``defaults``, by name, as values for JSON.

    A value that is a named tuple is reduced to its differing fields, too.
    """
    differ = {}
    for name, value in values.items():
        default = defaults[name]
        if value != default:
            differ[name] = (
                _values_differing_from_defaults(value._asdict(), default._asdict())
                if hasattr(value, "_asdict")
                else _to_json_value(value)
            )
    return differ


def _to_json_value(value: Any) -> Any:
    """Return ``value`` in a form that JSON has: bytes become escaped text, tuples become lists."""
    if isinstance(value, bytes):
        return printable_path(value)
    return [_to_json_value(each) for each in value] if isinstance(value, tuple | list) else value


def _totals_json_values(totals: JobCounters) -> dict[str, int]:
    """Return the counters by name, without internal ones, which only decide whether a phase must run."""
    sums = {name: number for name, number in totals._asdict().items() if not name.startswith("for_")}
    return {"copied": totals.copied, **sums}


def _this_run_json_values(last: CounterSample, end: JobEnd, before: JobCounters, seconds: float) -> dict[str, Any]:
    """Return what this run has done, without earlier runs, and its mean rate in bytes per second.

    Args:
        last: the last sample of the run.
        end: how the job ended.
        before: the counters of the job's earlier runs.
        seconds: duration of the run.
    """
    copied = max(0, end.totals.bytes - before.bytes)
    rate = end.summary.get("bytes_per_second", round(copied / seconds) if seconds > 0 else 0)
    sums = {key: value for key, value in last._asdict().items() if key != "seconds"}
    return {**sums, "bytes": copied, "bytes_per_second": rate}


def _file_sizes_json_values(sums: ReportSums) -> list[dict[str, Any]]:
    """Return how many files of each size the job handled, as one object per power of two, from the smallest to the
    largest size.

    Each contains the number and bytes of files with at least ``from`` and fewer than ``below`` bytes, by outcome.
    """
    powers = [
        power for power in range(NUMBER_OF_SIZE_CLASSES) if any(sizes.files[power] for sizes in sums.sizes.values())
    ]
    rows = []
    for power in range(powers[0], powers[-1] + 1) if powers else ():
        row: dict[str, Any] = {"from": 1 << power >> 1, "below": 1 << power}
        for outcome, sizes in sorted(sums.sizes.items()):
            row[outcome] = {"files": sizes.files[power], "bytes": sizes.bytes[power]}
        rows.append(row)
    return rows


def _slow_file_json_values(nanoseconds: int, size: int, path: bytes) -> dict[str, Any]:
    """Return the values of one of the slowest files: path, duration, size and rate.

    Args:
        nanoseconds: how long the file took.
        size: its size in bytes.
        path: its path.
    """
    seconds = nanoseconds / 10**9
    return {
        **path_as_json_values(path),
        "seconds": round(seconds, 6),
        "bytes": size,
        "bytes_per_second": round(size / seconds) if seconds > 0 else 0,
    }


def _report_file_contents(name: bytes, values: Mapping[str, Any]) -> bytes:
    """Return the contents of a report file: a page if its ``name`` ends in ``.html``, else JSON."""
    if not name.endswith(b".html"):
        return readable_json_text(values).encode()
    from pcopy.report.page.page import html_report_page

    return html_report_page(values).encode()


def readable_json_text(values: Mapping[str, Any]) -> str:
    """Return ``values`` as a JSON object with one line per key, so that people can read it, too."""
    lines = ",\n".join(f"{json.dumps(key)}: {json.dumps(value)}" for key, value in values.items())
    return f"{{\n{lines}\n}}\n"


def is_beginning_of_report_file(beginning: bytes) -> bool:
    """True if ``beginning`` can be the first bytes of a file that ``--report`` of pcopy or a related program wrote.

    An existing file that begins otherwise is not replaced.
    """
    return re.match(rb'\{\n"format": "pcopy-report",|<!doctype html>\n<!-- pcopy-report ', beginning) is not None
