"""Requests to a running job (``pcopy --control``), and its progress (``pcopy --jobs``): two small files in its job
directory.

Rank 0 reads the requests and replaces the progress (``pcopy.launch.control``). The requesting process may run on
another host that shares the directory. It needs no signals and no ports (docs/formats/control.md).
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Mapping
from typing import Any

from pcopy.checkpoint import directory as files
from pcopy.checkpoint.directory import opened_directory
from pcopy.checkpoint.layout import CONTROL_FILE, JOB_FILE, PROGRESS_FILE
from pcopy.errors import PartlyRefused, RequestRefused
from pcopy.fast_named_tuple import NamedTuple
from pcopy.jobs.directories import NoJob, open_job
from pcopy.jobs.lock import lock_holders
from pcopy.text import count_with_noun, printable_path
from pcopy.units import format_size

ANSWER_TIMEOUT = 15.0
"""Seconds that a job has to answer a request. It looks for requests every half second, and a network file system may
delay that.
"""

_PROGRESS_KEYS = frozenset(
    (
        *("time", "phase", "found", "copied", "failed", "bytes", "percent", "bytes_per_second", "eta"),
        *("ranks", "bwlimit", "oplimit", "active", "paused", "control"),
    )
)
"""Keys that a complete progress file has."""
_POLL_INTERVAL = 0.1
"""Seconds between two attempts to read the answer."""


class ControlRequest(NamedTuple):
    """A request of the user; None leaves a value unchanged.

    Units are those of ``pcopy.launch.rank_control.UserLimits``.
    """

    bwlimit: int | None = None
    oplimit: int | None = None
    active: int | None = None
    paused: bool | None = None

    @property
    def changes(self) -> dict[str, Any]:
        """The values to change, by name."""
        return {name: value for name, value in self._asdict().items() if value is not None}


def read_object(path: bytes, name: bytes) -> dict[str, Any] | None:
    """Return the JSON object in the file ``name`` of the job in ``path``; None if the file is missing or holds no JSON
    object.

    The directory is opened again for each call, so that a network file system fetches its current contents. Raise
    ``RequestRefused`` or ``OSError`` if it cannot be read.
    """
    with opened_directory(path) as descriptor:
        try:
            values = json.loads(files.read_file(descriptor, name, where=path))
        except (FileNotFoundError, ValueError):
            return None
    return values if isinstance(values, dict) else None


def write_object(path: bytes, name: bytes, values: Mapping[str, Any]) -> None:
    """Replace the file ``name`` of the job in ``path``; raise ``RequestRefused`` or ``OSError`` if that fails, or no
    job is there.
    """
    with opened_directory(path) as descriptor:
        os.stat(JOB_FILE, dir_fd=descriptor, follow_symlinks=False)
        files.replace_file(descriptor, name, json.dumps(values).encode() + b"\n", durable=False)


def progress_of(path: bytes, run: int) -> dict[str, Any] | None:
    """Return the latest progress of run number ``run`` of the job in ``path``; None if that run has reported none."""
    try:
        progress = read_object(path, PROGRESS_FILE)
    except (RequestRefused, OSError):  # The job ended just now.
        return None
    return (
        progress if progress is not None and progress.get("run") == run and progress.keys() >= _PROGRESS_KEYS else None
    )


def send_request(path: bytes, wanted: ControlRequest, clock: Callable[[], float] = time.monotonic) -> dict[str, Any]:
    """Send a request to the job that runs in ``path``; return its progress once it has carried out the request.

    Raise ``RequestRefused`` if no job runs there or the request is invalid, and ``PartlyRefused`` if the job does not
    answer in time.
    """
    until = clock() + ANSWER_TIMEOUT
    _refuse_not_running(path)
    run = open_job(path).file.runs
    progress = _wait_for_progress(path, run, until, clock, lambda progress: True)
    ranks = int(progress["ranks"])
    if wanted.active is not None and not 1 <= wanted.active <= ranks:
        raise RequestRefused(
            f"active={wanted.active}: the job has {count_with_noun(ranks, 'rank', 'ranks')}; write a number up to that"
        )
    order = os.urandom(8).hex()
    with_order = {"id": order, "run": run, **wanted.changes}
    try:
        write_object(path, CONTROL_FILE, with_order)
    except OSError as error:
        raise RequestRefused(f"{printable_path(path)}: cannot be written: {error.strerror}") from None
    try:
        return _wait_for_progress(path, run, until, clock, lambda progress: progress["control"] == order)
    except RequestRefused:
        raise PartlyRefused(f"{printable_path(path)}: the job ended before it answered") from None


def _refuse_not_running(path: bytes) -> None:
    """Raise ``RequestRefused`` unless rank 0 of the job is alive."""
    try:
        open_job(path)
        active = lock_holders(path)
    except NoJob:
        raise RequestRefused(f"{printable_path(path)}: no job runs there; pcopy --jobs lists all jobs") from None
    if not any(holder.rank == 0 for holder in active):
        raise RequestRefused(f"{printable_path(path)}: the job is not running; to resume it: pcopy --resume")


def _wait_for_progress(
    path: bytes, run: int, until: float, clock: Callable[[], float], is_answer: Callable[[dict[str, Any]], bool]
) -> dict[str, Any]:
    """Return the job's progress once ``is_answer`` accepts it.

    ``until`` is the deadline by ``clock``; after it ``PartlyRefused`` is raised. Raise ``RequestRefused`` if the job
    ends before.
    """
    while clock() < until:
        progress = progress_of(path, run)
        if progress is not None and is_answer(progress):
            return progress
        _refuse_not_running(path)
        time.sleep(_POLL_INTERVAL)
    raise PartlyRefused(
        f"{printable_path(path)}: the job has not answered for {ANSWER_TIMEOUT:.0f} s: it may be finishing, or its "
        "storage "
        "hangs; pcopy --jobs shows the time of its last report"
    )


def limits_text(progress: Mapping[str, Any]) -> str:
    """Return the limits of a job for people, as ``500 MiB/s at most, 2 of 8 ranks active, paused``; empty if there are
    none.

    ``progress`` is the progress of the job.
    """
    parts = []
    if progress.get("bwlimit"):
        parts.append(f"{format_size(progress['bwlimit'])}/s at most")
    if progress.get("oplimit"):
        parts.append(f"{progress['oplimit']:,} operations/s at most")
    if progress.get("active") and progress["active"] < progress["ranks"]:
        parts.append(f"{progress['active']} of {progress['ranks']} ranks active")
    if progress.get("paused"):
        parts.append("paused")
    return ", ".join(parts)
