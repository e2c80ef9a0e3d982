"""Unfinished jobs, for their users: listed, chosen to be gone on with, discarded.

Rule: nothing is guessed. ``--resume`` without a name goes on only if one single job can be meant, and no job is touched
that somebody works on.
"""

from __future__ import annotations

import base64
import json
import os
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import NamedTuple

from pcopy.checkpoint.job_file import RUNNING, JobFile, JobRoot
from pcopy.checkpoint.jobs import (
    Listed,
    StoredJob,
    Unreadable,
    hold_job,
    is_in_state_directory,
    remove,
    remove_unreadable,
    state_directory,
    take,
    unfinished,
)
from pcopy.checkpoint.lock import Holder, Lock, holders
from pcopy.checkpoint.roots import Gone, check_roots, check_targets, lost
from pcopy.cli.argument_types import absolute
from pcopy.cli.job_options import ALONE
from pcopy.cli.paths import source_of, target_of
from pcopy.cli.units import show_size
from pcopy.errors import Refused
from pcopy.tasks.job import Totals
from pcopy.text import shown

Tell = Callable[[str], object]
_HEADS = ("JOB", "BEGUN", "SOURCE -> DESTINATION", "STATE", "COPIED", "LOCKED BY")


class Resumed(NamedTuple):
    """A job that is ours to go on with: as stored, its roots as they are now, and the lock of rank 0."""

    job: StoredJob
    roots: tuple[JobRoot, ...]
    lock: Lock


def resume(word: bytes, tell: Tell) -> Resumed:
    """The job that the user means by ``word``, locked for rank 0.

    Raises ``Refused`` if there is none, if several can be meant (after ``tell`` was given a list of them), if a rank
    still works on it, or if its roots are not what they were.
    """
    job, lock = take(_only_one(tell) if word == ALONE else job_path(word))
    try:
        return Resumed(job, check_roots(job.file), lock)
    except BaseException:
        lock.close()
        raise


def job_path(word: bytes) -> bytes:
    """The directory of the job that ``word`` names: with a slash a path, else a job in the state directory, or a path.

    Raises ``Refused`` if there is nothing of that name.
    """
    if b"/" not in word and word not in (b".", b".."):
        with suppress(Refused):  # no home is known, and no job by its name
            path = os.path.join(state_directory(), word)
            if os.path.lexists(path):
                return path
    path = absolute(word)
    if os.path.lexists(path):
        return path
    raise Refused(f"{shown(word)}: there is no such job; pcopy --jobs lists those that there are")


def listing(as_json: bool) -> list[str]:
    """The lines of ``--jobs``: a table, or with ``as_json`` an object a line. Raises ``Refused``."""
    state = state_directory()
    found = unfinished(state)
    if as_json:
        return [_as_json(listed) for listed in found]
    if not found:
        return [f"no unfinished jobs in {shown(state)}"]
    return _table(found)


def discard(word: bytes, remove_temporaries: Callable[[StoredJob], object], tell: Tell) -> None:
    """Removes the job that ``word`` names, and before that, by ``remove_temporaries``, its files in the destination.

    ``tell`` hears what was left where. Raises ``Refused`` if there is no such job, if somebody works on it, or if its
    destination is not there, but may come back.
    """
    path = job_path(word)
    try:
        job, lock = hold_job(path)
    except Unreadable as unreadable:
        job_name = shown(os.path.basename(path)) if is_in_state_directory(path) else "JOB"
        remove_unreadable(path)
        tell(f"{unreadable}; temporary files (.pcopy-{job_name}-*) may be left in its destination")
        return
    try:
        try:
            check_targets(job.file)
        except Gone as gone:
            tell(f"temporary files (.pcopy-{job.file.name}-*) may be left where the destination was: {gone}")
        except Refused as refused:
            raise Refused(
                f"{refused}, so that the job's temporary files go, too; if it will not come back, remove {shown(path)}"
            ) from None
        else:
            for target in lost(job.file):
                tell(
                    f"{shown(target)}: not there, or not the one that the job copied to; if that was moved, temporary "
                    f"files (.pcopy-{job.file.name}-*) may be left in it"
                )
            remove_temporaries(job)
        for name in remove(job, lock):
            tell(f"{shown(os.path.join(path, name))}: left, since it is not pcopy's")
    finally:
        lock.close()


def to_standard_error(line: str) -> None:
    """What hears lists and remarks unless somebody else does."""
    print(line, file=sys.stderr)


def _only_one(tell: Tell) -> bytes:
    state = state_directory()
    listed_all = unfinished(state)
    found = [listed for listed in listed_all if listed.file is not None]
    free = [listed for listed in found if not _locks(listed)]
    if len(free) == 1:
        return free[0].path
    if not found and listed_all:
        tell("\n".join(_table(listed_all)))
        raise Refused(f"no unfinished job in {shown(state)} can be used as it is; name another directory: --resume DIR")
    if not found:
        raise Refused(f"there is no unfinished job in {shown(state)}; name its directory: --resume DIR")
    tell("\n".join(_table(found)))
    if not free:
        raise Refused("all unfinished jobs are being worked on: wait for their end, or end them first")
    raise Refused(f"{len(free)} unfinished jobs can be meant; name one: pcopy --resume JOB")


def _table(found: Sequence[Listed]) -> list[str]:
    rows = [_HEADS] + [_row(listed, listed.file) for listed in found if listed.file is not None]
    widths = [max(len(row[column]) for row in rows) for column in range(len(_HEADS))]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    return lines[len(rows) == 1 :] + [f"cannot be used: {listed.trouble}" for listed in found if listed.file is None]


def _row(listed: Listed, job: JobFile) -> tuple[str, ...]:
    totals, locked = _totals(job), _locks(listed)
    begun = time.strftime("%Y-%m-%d %H:%M", time.localtime(job.created))
    copied = f"{totals.copied:,} of {totals.found:,}, {show_size(totals.bytes)}"
    return _name(listed), begun, _way(job), _state(job, locked), copied, _places(locked)


def _name(listed: Listed) -> str:
    """What ``--resume`` wants to hear: the directory's name."""
    return shown(os.path.basename(listed.path))


def _way(job: JobFile) -> str:
    first = job.roots[0]
    sources = shown(source_of(first)) if len(job.roots) == 1 else f"{len(job.roots)} sources"
    return f"{sources} -> {shown(target_of(first) if len(job.roots) == 1 else first.target)}"


def _state(job: JobFile, locked: Sequence[Holder]) -> str:
    if locked:
        return RUNNING
    return "interrupted" if job.state == RUNNING else job.state


def _places(locked: Sequence[Holder]) -> str:
    """``3 ranks on a, b``; ``-`` for none."""
    if not locked:
        return "-"
    hosts = ", ".join(dict.fromkeys(holder.host for holder in locked))
    return f"{len(locked)} {'rank' if len(locked) == 1 else 'ranks'} on {hosts}"


def _as_json(listed: Listed) -> str:
    values: dict[str, object] = {
        "job": _name(listed),
        "directory": shown(listed.path),
        "directory_b64": base64.b64encode(listed.path).decode("ascii"),
    }
    job = listed.file
    if job is None:
        return json.dumps({**values, "state": None, "message": listed.trouble})
    totals, locked = _totals(job), _locks(listed)
    values |= {
        "begun": job.created,
        "sources": [shown(source_of(root)) for root in job.roots],
        "destination": shown(job.roots[0].target if len(job.roots) > 1 else target_of(job.roots[0])),
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


def _locks(listed: Listed) -> list[Holder]:
    try:
        return holders(listed.path)
    except Refused:  # it has ended in this moment
        return []


def _totals(job: JobFile) -> Totals:
    return Totals(**{name: count for name, count in job.totals.items() if name in Totals._fields})
