"""What ``--jobs`` says of jobs: a table of no more than 80 columns for people, an object a line for programs.

What a job that did not end in order has done is what is on record of it: that is where a resume goes on.
"""

from __future__ import annotations

import base64
import json
import os
import textwrap
import time
from collections.abc import Sequence

from pcopy.checkpoint.job_file import RUNNING, JobFile
from pcopy.checkpoint.jobs import Listed
from pcopy.checkpoint.lock import Holder, holders
from pcopy.cli.paths import source_of, target_of
from pcopy.cli.units import show_size
from pcopy.errors import Refused
from pcopy.tasks.job import Totals
from pcopy.text import counted, shown

WIDTH = 80
_INDENT = "  "
_HEADS = ("JOB", "BEGUN", "STATE", "COPIED")


def table(found: Sequence[Listed]) -> list[str]:
    """The lines for people; what cannot be used comes last."""
    usable = [(listed, listed.file) for listed in found if listed.file is not None]
    locked = [locks(listed) for listed, _ in usable]
    rows = [_row(listed, job, holding) for (listed, job), holding in zip(usable, locked, strict=True)]
    widths = [max(map(len, column)) for column in zip(_HEADS, *rows, strict=True)][:-1]
    lines = _folded(_HEADS, widths) if rows else []
    for row, (_, job), holding in zip(rows, usable, locked, strict=True):
        lines += _folded(row, widths) + _way(job)
        if holding:
            lines += _wrapped(f"{_INDENT}{_places(holding)}")
    for listed in found:
        if listed.file is None:
            lines += _wrapped(f"cannot be used: {listed.trouble}")
    return lines


def way(job: JobFile) -> str:
    """``SOURCE -> DESTINATION``, in full."""
    return " -> ".join(_ends(job))


def json_line(listed: Listed) -> str:
    """One JSON object on one line."""
    values: dict[str, object] = {
        "job": name_of(listed),
        "directory": shown(listed.path),
        "directory_b64": base64.b64encode(listed.path).decode("ascii"),
    }
    job = listed.file
    if job is None:
        return json.dumps({**values, "state": None, "message": listed.trouble})
    totals, locked = _totals(listed.path, job) or Totals(), locks(listed)
    values |= {
        "begun": job.created,
        "sources": [shown(source_of(root)) for root in job.roots],
        "destination": _ends(job)[1],
        "state": _state(job, locked),
        "runs": job.runs,
        "found": totals.found,
        "copied": totals.copied,
        "skipped": totals.skipped,
        "failed": totals.failed,
        "bytes": totals.bytes,
        "locked": [holder._asdict() for holder in locked],
    }
    return json.dumps(values)


def name_of(listed: Listed) -> str:
    """What ``--resume`` and ``--discard`` want to hear: the directory's name."""
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


def _folded(row: Sequence[str], widths: Sequence[int]) -> list[str]:
    """A row as one line; its last cell has one of its own if it does not fit."""
    *cells, last = row
    line = "  ".join(cell.ljust(width) for cell, width in zip(cells, widths, strict=True))
    whole = f"{line}  {last}"
    return [whole] if len(whole) <= WIDTH else [line.rstrip(), f"{_INDENT}{last}"]


def _way(job: JobFile) -> list[str]:
    """As ``way``, on one line if there is room, else on two, and then the middle of a long path is left out."""
    line = f"{_INDENT}{way(job)}"
    if len(line) <= WIDTH:
        return [line]
    source, target = _ends(job)
    return [_shortened(f"{_INDENT}{source}"), _shortened(f"{_INDENT}-> {target}")]


def _shortened(line: str) -> str:
    if len(line) <= WIDTH:
        return line
    half = (WIDTH - 3) // 2
    return f"{line[:half]}...{line[-half:]}"


def _wrapped(line: str) -> list[str]:
    """A long word is broken: no line is longer than that."""
    return textwrap.wrap(line, WIDTH, subsequent_indent=_INDENT, break_on_hyphens=False, drop_whitespace=True)


def _ends(job: JobFile) -> tuple[str, str]:
    first = job.roots[0]
    if len(job.roots) == 1:
        return shown(source_of(first)), shown(target_of(first))
    return f"{len(job.roots)} sources", shown(first.target)


def _state(job: JobFile, locked: Sequence[Holder]) -> str:
    if locked:
        return RUNNING
    return "interrupted" if job.state == RUNNING else job.state


def _places(locked: Sequence[Holder]) -> str:
    """``3 ranks on a, b``."""
    hosts = ", ".join(dict.fromkeys(holder.host for holder in locked))
    return f"{counted(len(locked), 'rank', 'ranks')} on {hosts}"


def _totals(path: bytes, job: JobFile) -> Totals | None:
    """What the job has counted; None where nothing is known of that."""
    from pcopy.checkpoint.on_record import counts_on_record

    if job.state == RUNNING and (counts := counts_on_record(path)):
        return Totals(*counts[: len(Totals._fields)])
    if not job.totals:
        return None
    return Totals(**{name: count for name, count in job.totals.items() if name in Totals._fields})
