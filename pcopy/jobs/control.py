"""What is said to a job that runs, and what it tells of itself: two small files in its directory.

Rank 0 looks for the one and replaces the other (``pcopy.launch.control``); whoever asks may be on another host that
shares the directory. So nothing but the files is needed, neither signals nor ports (docs/formats/control.md).
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Mapping
from typing import Any

from pcopy.checkpoint import directory as files
from pcopy.checkpoint.directory import opened
from pcopy.checkpoint.layout import CONTROL, JOB, PROGRESS
from pcopy.errors import NotAllDone, Refused
from pcopy.jobs.directories import NoJob, open_job
from pcopy.jobs.lock import holders
from pcopy.named import NamedTuple
from pcopy.text import counted, shown
from pcopy.units import show_size

ANSWERED_WITHIN = 15.0
"""Seconds that a job has to answer: it looks every half second, and a network file system may show that late."""

_TOLD = frozenset(
    (
        *("time", "phase", "found", "copied", "failed", "bytes", "percent", "bytes_per_second", "eta"),
        *("ranks", "bwlimit", "oplimit", "active", "paused", "control"),
    )
)
_LOOK = 0.1
"""Seconds between two looks for the answer."""


class Change(NamedTuple):
    """What the user wants to be otherwise; None: as it is. The numbers are as in ``pcopy.launch.steersman.Wanted``."""

    bwlimit: int | None = None
    oplimit: int | None = None
    active: int | None = None
    paused: bool | None = None

    @property
    def wanted(self) -> dict[str, Any]:
        return {name: value for name, value in self._asdict().items() if value is not None}


def read(path: bytes, name: bytes) -> dict[str, Any] | None:
    """What a file of the job in ``path`` says; None if it is not there, or is none that pcopy writes.

    The directory is opened anew: so a network file system looks at it anew. Raises ``Refused``, ``OSError``.
    """
    with opened(path) as descriptor:
        try:
            values = json.loads(files.read(descriptor, name, where=path))
        except (FileNotFoundError, ValueError):
            return None
    return values if isinstance(values, dict) else None


def write(path: bytes, name: bytes, values: Mapping[str, Any]) -> None:
    """Replaces the file, as long as there is a job in ``path``; raises ``Refused``, ``OSError``."""
    with opened(path) as descriptor:
        os.stat(JOB, dir_fd=descriptor, follow_symlinks=False)
        files.replace(descriptor, name, json.dumps(values).encode() + b"\n", durable=False)


def progress_of(path: bytes, run: int) -> dict[str, Any] | None:
    """What the run number ``run`` of the job in ``path`` has told of itself at last, if it has."""
    try:
        told = read(path, PROGRESS)
    except (Refused, OSError):  # it has ended in this moment
        return None
    return told if told is not None and told.get("run") == run and told.keys() >= _TOLD else None


def change(path: bytes, wanted: Change, clock: Callable[[], float] = time.monotonic) -> dict[str, Any]:
    """Changes the job that runs in ``path``; returns what it tells of itself once it has done so.

    Raises ``Refused`` if that can't be, and ``NotAllDone`` if there is no answer.
    """
    until = clock() + ANSWERED_WITHIN
    _running(path)
    run = open_job(path).file.runs
    told = _awaited(path, run, until, clock, lambda told: True)
    ranks = int(told["ranks"])
    if wanted.active is not None and not 1 <= wanted.active <= ranks:
        raise Refused(
            f"active={wanted.active}: the job has {counted(ranks, 'rank', 'ranks')}; write a number up to that"
        )
    order = os.urandom(8).hex()
    with_order = {"id": order, "run": run, **wanted.wanted}
    try:
        write(path, CONTROL, with_order)
    except OSError as error:
        raise Refused(f"{shown(path)}: cannot be written: {error.strerror}") from None
    try:
        return _awaited(path, run, until, clock, lambda told: told["control"] == order)
    except Refused:
        raise NotAllDone(f"{shown(path)}: the job has ended meanwhile, before it has answered") from None


def _running(path: bytes) -> None:
    """Raises ``Refused`` unless somebody works on the job."""
    try:
        open_job(path)
        found = holders(path)
    except NoJob:
        raise Refused(f"{shown(path)}: no job runs there; pcopy --jobs lists those that there are") from None
    if not any(holder.rank == 0 for holder in found):
        raise Refused(f"{shown(path)}: the job is not running; to go on with it: pcopy --resume")


def _awaited(
    path: bytes, run: int, until: float, clock: Callable[[], float], is_it: Callable[[dict[str, Any]], bool]
) -> dict[str, Any]:
    """What the job tells of itself, once that ``is_it``."""
    while clock() < until:
        told = progress_of(path, run)
        if told is not None and is_it(told):
            return told
        _running(path)
        time.sleep(_LOOK)
    raise NotAllDone(
        f"{shown(path)}: the job has not answered for {ANSWERED_WITHIN:.0f} s: it may be at its end, or its storage "
        "hangs; pcopy --jobs tells when it was heard of"
    )


def described(told: Mapping[str, Any]) -> str:
    """What holds in a job, by what it tells: ``500 MiB/s at most, 2 of 8 ranks active, paused``; empty: nothing."""
    parts = []
    if told.get("bwlimit"):
        parts.append(f"{show_size(told['bwlimit'])}/s at most")
    if told.get("oplimit"):
        parts.append(f"{told['oplimit']:,} operations/s at most")
    if told.get("active") and told["active"] < told["ranks"]:
        parts.append(f"{told['active']} of {told['ranks']} ranks active")
    if told.get("paused"):
        parts.append("paused")
    return ", ".join(parts)
