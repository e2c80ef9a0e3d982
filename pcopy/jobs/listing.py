"""The output of ``--jobs``: a table for people, or a JSON object per line for programs.

The counts of a running job are those of its progress file. The counts of a killed job are those of its last records,
from which a resume continues; so it repeats some of the work that was done.
"""

from __future__ import annotations

import json
import time
from binascii import b2a_base64
from collections.abc import Sequence
from typing import Any

from pcopy.jobs.control import job_limits_text, progress_of_run
from pcopy.jobs.directories import ListedJob
from pcopy.jobs.job_file import JOB_RUNNING, JobFile, job_name
from pcopy.jobs.lock import LockHolder, lock_holders_if_any
from pcopy.jobs.paths import source_path, target_path
from pcopy.tasks.base.job import JobCounters
from pcopy.text import count_with_noun, printable_path
from pcopy.units import format_running_clock, format_size

OLD_PROGRESS_AGE = 30.0
"""Age in seconds from which a progress file is old, so that the table shows its age. A job writes the file every 2 s.
"""

_SHOWN_COUNTERS = ("found", "bytes")
_COLUMN_TITLES = ("JOB", "BEGUN", "STATE", "COPIED")


def job_table(found: Sequence[ListedJob]) -> list[str]:
    """Return the lines of the table of the jobs ``found``; jobs that cannot be used are at the end."""
    usable = [(listed, listed.file, lock_holders_if_any(listed.path)) for listed in found if listed.file is not None]
    progresses = [progress_of_run(listed.path, job.runs) if holders else None for listed, job, holders in usable]
    rows = [_table_row(*each, progress) for each, progress in zip(usable, progresses, strict=True)]
    widths = [max(map(len, column)) for column in zip(_COLUMN_TITLES, *rows, strict=True)]
    lines = [_padded_table_line(_COLUMN_TITLES, widths)] if rows else []
    for row, (_, job, holders), progress in zip(rows, usable, progresses, strict=True):
        lines += [_padded_table_line(row, widths), f"  {source_and_destination(job)}"]
        if holders:
            hosts = ", ".join(dict.fromkeys(holder.host for holder in holders))
            ranks = progress["ranks"] if progress else len(holders)
            lines.append(f"  {count_with_noun(ranks, 'rank', 'ranks')} on {hosts}{_progress_text(progress)}")
    return lines + [f"cannot be used: {listed.reason}" for listed in found if listed.file is None]


def source_and_destination(job: JobFile) -> str:
    """Return ``SOURCE -> DESTINATION`` with full paths."""
    return " -> ".join(_source_and_destination_cells(job))


def job_as_json_line(listed: ListedJob) -> str:
    """Return the JSON object that ``--jobs --json`` prints for the job ``listed``, as a line."""
    values: dict[str, object] = {
        "job": job_name(listed.path),
        "directory": printable_path(listed.path),
        "directory_b64": b2a_base64(listed.path, newline=False).decode("ascii"),
    }
    job = listed.file
    if job is None:
        return json.dumps({**values, "state": None, "message": listed.reason})
    totals, locked = _known_totals_of_job(listed.path, job) or JobCounters(), lock_holders_if_any(listed.path)
    counts = {name: getattr(totals, name) for name in ("found", "copied", "skipped", "failed", "bytes")}
    values |= {
        "begun": job.created,
        "sources": [printable_path(source_path(root)) for root in job.roots],
        "destination": _source_and_destination_cells(job)[1],
        "state": _job_state_text(job, locked),
        "runs": job.runs,
        **counts,
        "locked": [holder._asdict() for holder in locked],
        "progress": progress_of_run(listed.path, job.runs) if locked else None,
    }
    return json.dumps(values)


def _progress_text(progress: dict[str, Any] | None) -> str:
    """Return the end of the table's line for a running job: its progress; empty if ``progress`` is None.

    ``progress`` is the contents of the job's progress file.
    """
    if progress is None:
        return ""
    age = time.time() - progress["time"]
    parts = [
        f"{progress['percent']} %" if progress["percent"] is not None else progress["phase"],
        f"{format_size(progress['bytes_per_second'])}/s",
        f"{format_running_clock(progress['eta'])} left" if progress["eta"] is not None else "",
        f"{progress['failed']:,} failed" if progress["failed"] else "",
        job_limits_text(progress),
        f"not heard of for {format_running_clock(age)}" if age > OLD_PROGRESS_AGE else "",
    ]
    return ": " + ", ".join(filter(None, parts))


def _table_row(
    listed: ListedJob, job: JobFile, locked: Sequence[LockHolder], progress: dict[str, Any] | None
) -> tuple[str, ...]:
    """Return the cells of the table's row for one job, in the order of ``_COLUMN_TITLES``.

    Args:
        listed, job: the job, and its job file.
        locked: the ranks that work on the job.
        progress: contents of the job's progress file; None if no rank works on it, or it has not reported yet.
    """
    totals = (
        _known_totals_of_job(listed.path, job)
        if progress is None
        else JobCounters(**{name: progress[name] for name in _SHOWN_COUNTERS})
    )
    begun = time.strftime("%Y-%m-%d %H:%M", time.localtime(job.created))
    number = progress["copied"] if progress else totals.copied if totals else 0
    copied = f"{number:,} of {totals.found:,}, {format_size(totals.bytes)}" if totals else "-"
    state = "paused" if progress and progress["paused"] else _job_state_text(job, locked)
    return job_name(listed.path), begun, state, copied


def _padded_table_line(row: Sequence[str], widths: Sequence[int]) -> str:
    """Return the cells ``row`` of a table as a line; each cell is padded to the width of its column."""
    return "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()


def _source_and_destination_cells(job: JobFile) -> tuple[str, str]:
    """Return the source and the destination of a job, for people; several sources are shown as their number."""
    first = job.roots[0]
    if len(job.roots) == 1:
        return printable_path(source_path(first)), printable_path(target_path(first))
    return f"{len(job.roots)} sources", printable_path(first.target)


def _job_state_text(job: JobFile, locked: Sequence[LockHolder]) -> str:
    """Return the state of a job as the table shows it: ``running`` if a rank is alive, ``interrupted`` if the last run
    was killed, else the recorded state.

    ``locked``: the ranks that work on the job.
    """
    if locked:
        return JOB_RUNNING
    return "interrupted" if job.state == JOB_RUNNING else job.state


def _known_totals_of_job(path: bytes, job: JobFile) -> JobCounters | None:
    """Return the counters of the job in the directory ``path``; None if none are known.

    If the job runs or was killed, they come from the records of its progress, otherwise from its job file.
    """
    from pcopy.checkpoint.resume import recorded_counts

    if job.state == JOB_RUNNING and (counts := recorded_counts(path)):
        return JobCounters(*counts[: len(JobCounters._fields)])
    if not job.totals:
        return None
    return JobCounters(**{name: count for name, count in job.totals.items() if name in JobCounters._fields})
