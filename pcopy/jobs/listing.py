"""What ``--jobs`` says of jobs: a table for people, an object a line for programs.

If a job did not end in order, its counts are those on record: a resume goes on from there.
"""

from __future__ import annotations

import json
import os
import time
from binascii import b2a_base64
from collections.abc import Sequence

from pcopy.errors import Refused
from pcopy.jobs.directories import Listed
from pcopy.jobs.job_file import RUNNING, JobFile
from pcopy.jobs.lock import Holder, holders
from pcopy.jobs.paths import source_of, target_of
from pcopy.tasks.base.job import Totals
from pcopy.text import counted, shown
from pcopy.units import show_size

_HEADS = ("JOB", "BEGUN", "STATE", "COPIED")


def table(found: Sequence[Listed]) -> list[str]:
    """The lines for people; what cannot be used comes last."""
    usable = [(listed, listed.file, locks(listed)) for listed in found if listed.file is not None]
    rows = [_row(*each) for each in usable]
    widths = [max(map(len, column)) for column in zip(_HEADS, *rows, strict=True)]
    lines = [_line(_HEADS, widths)] if rows else []
    for row, (_, job, holding) in zip(rows, usable, strict=True):
        lines += [_line(row, widths), f"  {way(job)}"]
        if holding:
            hosts = ", ".join(dict.fromkeys(holder.host for holder in holding))
            lines.append(f"  {counted(len(holding), 'rank', 'ranks')} on {hosts}")
    return lines + [f"cannot be used: {listed.trouble}" for listed in found if listed.file is None]


def way(job: JobFile) -> str:
    """``SOURCE -> DESTINATION``, in full."""
    return " -> ".join(_ends(job))


def json_line(listed: Listed) -> str:
    values: dict[str, object] = {
        "job": name_of(listed),
        "directory": shown(listed.path),
        "directory_b64": b2a_base64(listed.path, newline=False).decode("ascii"),
    }
    job = listed.file
    if job is None:
        return json.dumps({**values, "state": None, "message": listed.trouble})
    totals, locked = _totals(listed.path, job) or Totals(), locks(listed)
    counts = {name: getattr(totals, name) for name in ("found", "copied", "skipped", "failed", "bytes")}
    values |= {
        "begun": job.created,
        "sources": [shown(source_of(root)) for root in job.roots],
        "destination": _ends(job)[1],
        "state": _state(job, locked),
        "runs": job.runs,
        **counts,
        "locked": [holder._asdict() for holder in locked],
    }
    return json.dumps(values)


def name_of(listed: Listed) -> str:
    """The name by which ``--resume`` and ``--discard`` know a job: its directory's."""
    return shown(os.path.basename(listed.path))


def locks(listed: Listed) -> list[Holder]:
    """The ranks that work on the job."""
    try:
        return holders(listed.path)
    except Refused:  # it has ended in this moment
        return []


def _row(listed: Listed, job: JobFile, locked: Sequence[Holder]) -> tuple[str, ...]:
    totals = _totals(listed.path, job)
    begun = time.strftime("%Y-%m-%d %H:%M", time.localtime(job.created))
    copied = f"{totals.copied:,} of {totals.found:,}, {show_size(totals.bytes)}" if totals else "-"
    return name_of(listed), begun, _state(job, locked), copied


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
