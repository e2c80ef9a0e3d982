"""The output of ``--jobs``: a table for people, or a JSON object per line for programs.

For a killed job the counts are those of its records, from which a resume continues.
"""

from __future__ import annotations

import json
import time
from binascii import b2a_base64
from collections.abc import Sequence
from typing import Any

from pcopy.jobs.control import described, progress_of
from pcopy.jobs.directories import Listed
from pcopy.jobs.job_file import RUNNING, JobFile, name_of
from pcopy.jobs.lock import Holder, locks
from pcopy.jobs.paths import source_of, target_of
from pcopy.tasks.base.job import Totals
from pcopy.text import counted, shown
from pcopy.units import show_clock, show_size

OLD_NEWS = 30.0
"""Age in seconds from which the listing shows how old the progress of a running job is; a job reports every 2 s."""

_COUNTED = ("found", "bytes")
_HEADS = ("JOB", "BEGUN", "STATE", "COPIED")


def table(found: Sequence[Listed]) -> list[str]:
    """Return the lines of the table; jobs that cannot be used come last."""
    usable = [(listed, listed.file, locks(listed.path)) for listed in found if listed.file is not None]
    progresses = [progress_of(listed.path, job.runs) if holders else None for listed, job, holders in usable]
    rows = [_row(*each, progress) for each, progress in zip(usable, progresses, strict=True)]
    widths = [max(map(len, column)) for column in zip(_HEADS, *rows, strict=True)]
    lines = [_line(_HEADS, widths)] if rows else []
    for row, (_, job, holders), progress in zip(rows, usable, progresses, strict=True):
        lines += [_line(row, widths), f"  {way(job)}"]
        if holders:
            hosts = ", ".join(dict.fromkeys(holder.host for holder in holders))
            ranks = progress["ranks"] if progress else len(holders)
            lines.append(f"  {counted(ranks, 'rank', 'ranks')} on {hosts}{_getting_on(progress)}")
    return lines + [f"cannot be used: {listed.trouble}" for listed in found if listed.file is None]


def way(job: JobFile) -> str:
    """Return ``SOURCE -> DESTINATION`` with full paths."""
    return " -> ".join(_ends(job))


def json_line(listed: Listed) -> str:
    """Return the JSON object of one job as a line."""
    values: dict[str, object] = {
        "job": name_of(listed.path),
        "directory": shown(listed.path),
        "directory_b64": b2a_base64(listed.path, newline=False).decode("ascii"),
    }
    job = listed.file
    if job is None:
        return json.dumps({**values, "state": None, "message": listed.trouble})
    totals, locked = _totals(listed.path, job) or Totals(), locks(listed.path)
    counts = {name: getattr(totals, name) for name in ("found", "copied", "skipped", "failed", "bytes")}
    values |= {
        "begun": job.created,
        "sources": [shown(source_of(root)) for root in job.roots],
        "destination": _ends(job)[1],
        "state": _state(job, locked),
        "runs": job.runs,
        **counts,
        "locked": [holder._asdict() for holder in locked],
        "progress": progress_of(listed.path, job.runs) if locked else None,
    }
    return json.dumps(values)


def _getting_on(progress: dict[str, Any] | None) -> str:
    """Return the progress of a running job as the end of a line; empty if there is none."""
    if progress is None:
        return ""
    age = time.time() - progress["time"]
    parts = [
        f"{progress['percent']} %" if progress["percent"] is not None else progress["phase"],
        f"{show_size(progress['bytes_per_second'])}/s",
        f"{show_clock(progress['eta'])} left" if progress["eta"] is not None else "",
        f"{progress['failed']:,} failed" if progress["failed"] else "",
        described(progress),
        f"not heard of for {show_clock(age)}" if age > OLD_NEWS else "",
    ]
    return ": " + ", ".join(filter(None, parts))


def _row(listed: Listed, job: JobFile, locked: Sequence[Holder], progress: dict[str, Any] | None) -> tuple[str, ...]:
    """Return the cells of one job in the table."""
    totals = _totals(listed.path, job) if progress is None else Totals(**{name: progress[name] for name in _COUNTED})
    begun = time.strftime("%Y-%m-%d %H:%M", time.localtime(job.created))
    number = progress["copied"] if progress else totals.copied if totals else 0
    copied = f"{number:,} of {totals.found:,}, {show_size(totals.bytes)}" if totals else "-"
    state = "paused" if progress and progress["paused"] else _state(job, locked)
    return name_of(listed.path), begun, state, copied


def _line(row: Sequence[str], widths: Sequence[int]) -> str:
    """Return the cells as a line, padded to the widths of the columns."""
    return "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()


def _ends(job: JobFile) -> tuple[str, str]:
    """Return the source and the destination of a job, for people."""
    first = job.roots[0]
    if len(job.roots) == 1:
        return shown(source_of(first)), shown(target_of(first))
    return f"{len(job.roots)} sources", shown(first.target)


def _state(job: JobFile, locked: Sequence[Holder]) -> str:
    """Return the state of a job for people: ``running`` if a rank is alive, ``interrupted`` if its last run was
    killed.
    """
    if locked:
        return RUNNING
    return "interrupted" if job.state == RUNNING else job.state


def _totals(path: bytes, job: JobFile) -> Totals | None:
    """Return the counters of a job; None if none are known."""
    from pcopy.checkpoint.resume import counts_on_record

    if job.state == RUNNING and (counts := counts_on_record(path)):
        return Totals(*counts[: len(Totals._fields)])
    if not job.totals:
        return None
    return Totals(**{name: count for name, count in job.totals.items() if name in Totals._fields})
