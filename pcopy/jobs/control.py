"""Requests to a running job (``pcopy --control``), and the progress of a job (``pcopy --jobs``).

Both are small JSON files in the job directory. Rank 0 of the job reads the request file and replaces the progress file
(``pcopy.launch.control``). The process that writes a request may run on another host that shares the directory: no
signals and no ports are needed (docs/formats/control.md).
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Mapping
from typing import Any

from pcopy.checkpoint import directory as files
from pcopy.checkpoint.directory import opened_trusted_directory
from pcopy.checkpoint.layout import CONTROL_FILE, JOB_FILE, PROGRESS_FILE
from pcopy.errors import RequestPartlyRefused, RequestRefused, path_refused
from pcopy.fast_named_tuple import NamedTuple
from pcopy.jobs.directories import NoJobInDirectoryError, open_job
from pcopy.jobs.lock import lock_holders
from pcopy.text import count_with_noun, printable_path
from pcopy.units import format_size

CONTROL_ANSWER_TIMEOUT = 15.0
"""Seconds that ``send_control_request`` waits until the job has carried out the request. A job looks for requests every
half second, but on a network file system it may see them later.
"""

_PROGRESS_KEYS = frozenset(
    (
        *("time", "phase", "found", "copied", "failed", "bytes", "percent", "bytes_per_second", "eta"),
        *("ranks", "bwlimit", "oplimit", "active", "paused", "control"),
    )
)
"""Keys that a progress file must have; a file that lacks one (such as that of another version) is ignored."""
_PROGRESS_READ_INTERVAL = 0.1
"""Seconds between two reads of the progress file, while ``send_control_request`` waits until the job answers in it."""


class ControlRequest(NamedTuple):
    """What the user wants to change in a running job; None leaves a value unchanged.

    Fields:
    - ``bwlimit``: bytes per second of all ranks together; 0: no limit.
    - ``oplimit``: metadata operations per second of all ranks together; 0: no limit.
    - ``active``: number of ranks that work, at least 1; the others wait.
    - ``paused``: True: all work stops until another request has False.
    """

    bwlimit: int | None = None
    oplimit: int | None = None
    active: int | None = None
    paused: bool | None = None

    @property
    def changes(self) -> dict[str, Any]:
        """The values that the user wants to change (those that are not None), by the name of their field."""
        return {name: value for name, value in self._asdict().items() if value is not None}


def read_json_object(path: bytes, name: bytes) -> dict[str, Any] | None:
    """Return the JSON object in the file ``name`` of the job directory ``path``; None if the file is missing or holds
    no JSON object.

    The directory is opened again for each call, so that a network file system fetches its current contents. Raise
    ``RequestRefused`` or ``OSError`` if it cannot be read.
    """
    with opened_trusted_directory(path) as descriptor:
        try:
            values = json.loads(files.read_trusted_file(descriptor, name, where=path))
        except (FileNotFoundError, ValueError):
            return None
    return values if isinstance(values, dict) else None


def write_json_object(path: bytes, name: bytes, values: Mapping[str, Any]) -> None:
    """Write ``values`` as JSON to the file ``name`` of the job directory ``path``, replacing an existing file.

    Raise ``RequestRefused`` or ``OSError`` if ``path`` contains no job or the file cannot be written.
    """
    with opened_trusted_directory(path) as descriptor:
        os.stat(JOB_FILE, dir_fd=descriptor, follow_symlinks=False)
        files.replace_file(descriptor, name, json.dumps(values).encode() + b"\n", durable=False)


def progress_of_run(path: bytes, run: int) -> dict[str, Any] | None:
    """Return the contents of the progress file in the job directory ``path``, if run number ``run`` of the job has
    written it.

    None if that run has not written one yet, or if the file cannot be read, as when the job has just ended.
    """
    try:
        progress = read_json_object(path, PROGRESS_FILE)
    except (RequestRefused, OSError):  # The job ended just now.
        return None
    return (
        progress if progress is not None and progress.get("run") == run and progress.keys() >= _PROGRESS_KEYS else None
    )


def send_control_request(
    path: bytes, wanted: ControlRequest, clock: Callable[[], float] = time.monotonic
) -> dict[str, Any]:
    """Send the request ``wanted`` to the running job in the directory ``path``, and wait until the job has carried it
    out.

    Return the job's progress after the change. ``clock`` returns seconds. Raise ``RequestRefused`` if no job runs there
    or the request is invalid, and ``RequestPartlyRefused`` if the job does not answer within
    ``CONTROL_ANSWER_TIMEOUT``.
    """
    until = clock() + CONTROL_ANSWER_TIMEOUT
    _refuse_unless_running(path)
    run = open_job(path).file.runs
    progress = _wait_for_answer_in_progress_file(path, run, until, clock, lambda progress: True)
    ranks = int(progress["ranks"])
    if wanted.active is not None and not 1 <= wanted.active <= ranks:
        raise RequestRefused(
            f"active={wanted.active}: the job has {count_with_noun(ranks, 'rank', 'ranks')}; write a number from 1 to "
            f"{ranks}"
        )
    order = os.urandom(8).hex()
    with_order = {"id": order, "run": run, **wanted.changes}
    try:
        write_json_object(path, CONTROL_FILE, with_order)
    except OSError as error:
        raise path_refused(path, f"cannot be written: {error.strerror}") from None
    try:
        return _wait_for_answer_in_progress_file(path, run, until, clock, lambda progress: progress["control"] == order)
    except RequestRefused:
        raise RequestPartlyRefused(f"{printable_path(path)}: the job ended before it answered") from None


def _refuse_unless_running(path: bytes) -> None:
    """Raise ``RequestRefused`` unless a process works as rank 0 on the job in the directory ``path``."""
    try:
        open_job(path)
        active = lock_holders(path)
    except NoJobInDirectoryError:
        raise path_refused(path, "no job runs there; pcopy --jobs lists all jobs") from None
    if not any(holder.rank == 0 for holder in active):
        shown = printable_path(path)
        raise RequestRefused(f"{shown}: the job is not running; to resume it: pcopy --resume {shown}")


def _wait_for_answer_in_progress_file(
    path: bytes, run: int, until: float, clock: Callable[[], float], is_answer: Callable[[dict[str, Any]], bool]
) -> dict[str, Any]:
    """Read the progress file again and again; return its contents as soon as ``is_answer`` returns True for them.

    Args:
        path: the job directory.
        run: the number of the run that must have written the file.
        until: the time by ``clock`` at which the wait ends.

    Raise ``RequestPartlyRefused`` at the time ``until``, and ``RequestRefused`` if the job ends before.
    """
    while clock() < until:
        progress = progress_of_run(path, run)
        if progress is not None and is_answer(progress):
            return progress
        _refuse_unless_running(path)
        time.sleep(_PROGRESS_READ_INTERVAL)
    raise RequestPartlyRefused(
        f"{printable_path(path)}: the job has not answered for {CONTROL_ANSWER_TIMEOUT:.0f} s: it may be finishing, or "
        "its storage hangs; pcopy --jobs shows the time of its last report"
    )


def job_limits_text(progress: Mapping[str, Any]) -> str:
    """Return the limits of a job as a text for people, such as ``500 MiB/s at most, 2 of 8 ranks active, paused``;
    empty if the job has no limits.

    ``progress`` is the contents of the job's progress file.
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
