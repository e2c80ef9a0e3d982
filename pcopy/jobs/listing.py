"""What ``--jobs`` says of jobs: a table for people, an object a line for programs.

If a job did not end in order, its counts are those on record: a resume goes on from there.
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
"""Seconds after which it is told how old the news of a running job are, which come every 2 s."""

_COUNTED = ("found", "bytes")
_HEADS = ("JOB", "BEGUN", "STATE", "COPIED")


def table(found: Sequence[Listed]) -> list[str]:
    """The lines for people; what cannot be used comes last."""
    usable = [(listed, listed.file, locks(listed.path)) for listed in found if listed.file is not None]
    told = [progress_of(listed.path, job.runs) if holding else None for listed, job, holding in usable]
    rows = [_row(*each, progress) for each, progress in zip(usable, told, strict=True)]
    widths = [max(map(len, column)) for column in zip(_HEADS, *rows, strict=True)]
    lines = [_line(_HEADS, widths)] if rows else []
    for row, (_, job, holding), progress in zip(rows, usable, told, strict=True):
        lines += [_line(row, widths), f"  {way(job)}"]
        if holding:
            hosts = ", ".join(dict.fromkeys(holder.host for holder in holding))
            ranks = progress["ranks"] if progress else len(holding)
            lines.append(f"  {counted(ranks, 'rank', 'ranks')} on {hosts}{_getting_on(progress)}")
    return lines + [f"cannot be used: {listed.trouble}" for listed in found if listed.file is None]


def way(job: JobFile) -> str:
    """``SOURCE -> DESTINATION``, in full."""
    return " -> ".join(_ends(job))


def json_line(listed: Listed) -> str:
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


def _getting_on(told: dict[str, Any] | None) -> str:
    """What a running job tells of itself, for people."""
    if told is None:
        return ""
    age = time.time() - told["time"]
    parts = [
        f"{told['percent']} %" if told["percent"] is not None else told["phase"],
        f"{show_size(told['bytes_per_second'])}/s",
        f"{show_clock(told['eta'])} left" if told["eta"] is not None else "",
        f"{told['failed']:,} failed" if told["failed"] else "",
        described(told),
        f"not heard of for {show_clock(age)}" if age > OLD_NEWS else "",
    ]
    return ": " + ", ".join(filter(None, parts))


def _row(listed: Listed, job: JobFile, locked: Sequence[Holder], told: dict[str, Any] | None) -> tuple[str, ...]:
    totals = _totals(listed.path, job) if told is None else Totals(**{name: told[name] for name in _COUNTED})
    begun = time.strftime("%Y-%m-%d %H:%M", time.localtime(job.created))
    number = told["copied"] if told else totals.copied if totals else 0
    copied = f"{number:,} of {totals.found:,}, {show_size(totals.bytes)}" if totals else "-"
    state = "paused" if told and told["paused"] else _state(job, locked)
    return name_of(listed.path), begun, state, copied


def _line(row: Sequence[str], widths: Sequence[int]) -> str:
    return "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()


def _ends(job: JobFile) -> tuple[str, str]:
    first = job.roots[0]
    if len(job.roots) == 1:
        return shown(source_of(first)), shown(target_of(first))
    return f"{len(job.roots)} sources", shown(first.target)


def _state(job: JobFile, locked: Sequence[Holder]) -> str:
    if locked:
        return RUNNING
    return "interrupted" if job.state == RUNNING else job.state


def _totals(path: bytes, job: JobFile) -> Totals | None:
    """What the job has counted; None where nothing is known of that."""
    from pcopy.checkpoint.resume import counts_on_record

    if job.state == RUNNING and (counts := counts_on_record(path)):
        return Totals(*counts[: len(Totals._fields)])
    if not job.totals:
        return None
    return Totals(**{name: count for name, count in job.totals.items() if name in Totals._fields})
