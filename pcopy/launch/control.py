"""Control of a running job on rank 0: requests of ``pcopy --control``, and progress reports for ``pcopy --jobs``.

Both are files in the job directory, whose file server may hang. So a thread reads and writes these files. The main
thread of rank 0 only exchanges values with that thread, each time it receives the counters of all ranks.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

from pcopy.background import BackgroundThread, OneShotSignal
from pcopy.checkpoint.layout import CONTROL_FILE, PROGRESS_FILE
from pcopy.errors import RESOURCE_EXCEPTIONS, RequestRefused
from pcopy.jobs.control import ControlRequest, job_limits_text, read_json_object, write_json_object
from pcopy.launch.rank_control import RankLimiter, UserLimits
from pcopy.report.progress_gauge import ProgressGauge, StagesByPhase
from pcopy.report.screen import progress_json_values
from pcopy.tasks.base.job import JobCounters

REQUEST_POLL_INTERVAL = 0.5
"""Seconds between two checks for a request of ``pcopy --control`` in the job directory."""

PROGRESS_REPORT_INTERVAL = 2.0
"""Seconds between two progress reports that a running job writes for ``pcopy --jobs``."""

_STOP_TIMEOUT = 1.0
"""Maximum seconds that the end of the job waits for the thread that reads requests and writes progress reports, because
the file server of the job directory may hang.
"""


class JobControlThread:
    """On rank 0: a thread that reads the user's requests (``pcopy --control``) from the job directory and writes
    progress reports (for ``pcopy --jobs``) there. Requests are applied by the main thread.
    """

    def __init__(
        self,
        directory: bytes,
        run: int,
        ranks: int,
        stages: StagesByPhase,
        rank_limits: RankLimiter,
        on_change: Callable[[str], object],
    ) -> None:
        """Create the object without starting its thread.

        Args:
            directory: the job directory.
            run: number of the run; requests for other runs are ignored.
            ranks: number of ranks.
            stages: how progress is measured in each phase.
            rank_limits: the limits on rank 0, which are changed here and sent to all ranks by the engine.
            on_change: called with a description of the limits after the user has changed them.
        """
        self._directory = directory
        self._run = run
        self._ranks = ranks
        self._limits = rank_limits
        self._on_change = on_change
        self._gauge = ProgressGauge(time.monotonic(), stages)
        self._report_due = 0.0
        self._request: dict[str, Any] | None = None  # the latest request, set by the thread
        self._applied_id = ""
        self._report: dict[str, Any] | None = None  # the latest progress report, read by the thread
        self._written_report: dict[str, Any] | None = None
        self._end = OneShotSignal()
        self._thread: BackgroundThread | None = None

    def start(self) -> None:
        """Start the thread; if that is impossible, the job runs without it and ignores requests."""
        with suppress(OSError):
            self._thread = BackgroundThread(self._run_thread)

    def stop(self) -> None:
        """Stop the thread; must be called before the job directory is removed."""
        if self._thread is not None:
            self._end.send()
            self._thread.join(_STOP_TIMEOUT)

    def report_progress(self, phase: str, totals: JobCounters, silent: Sequence[int]) -> None:
        """Apply the latest request of the user, if it is new, and prepare a progress report if one is due. Called on
        the main thread whenever there are new sums of the counters.

        Args:
            phase: name of the current phase.
            totals: sums of the counters over all ranks.
            silent: ranks that have not answered rank 0's last query.
        """
        if self._thread is not None and self._thread.error is not None:  # It has run out of memory.
            self.start()
        now = time.monotonic()
        self._gauge.enter_phase(now, phase, totals)
        has_changed = self._apply_request()
        if now < self._report_due and not has_changed:
            return
        self._report_due = now + PROGRESS_REPORT_INTERVAL
        wanted = self._limits.requested
        values = progress_json_values(phase, totals, self._gauge.read(now, totals), silent)
        if wanted.paused:
            values["eta"] = None
        state = {**wanted._asdict(), "active": wanted.active or self._ranks}
        self._report = {**values, "run": self._run, "ranks": self._ranks, **state, "control": self._applied_id}

    def _apply_request(self) -> bool:
        """Apply the latest request of the user that the thread has read; return True if there is one that was not
        applied before.
        """
        asked = self._request
        if asked is None or asked["id"] == self._applied_id:
            return False
        self._applied_id = asked["id"]
        change = ControlRequest(*(asked.get(name) for name in ControlRequest._fields))
        wanted = UserLimits(**{**self._limits.requested._asdict(), **change.changes})
        if wanted != self._limits.requested:
            self._limits.requested = wanted
            self._on_change(job_limits_text({**wanted._asdict(), "ranks": self._ranks}))
        return True

    def _run_thread(self) -> None:
        """Body of the thread: read requests of the user and write progress reports until the end of the job."""
        while not self._end.wait(REQUEST_POLL_INTERVAL):
            with suppress(
                RequestRefused, *RESOURCE_EXCEPTIONS
            ):  # The thread tries again after the next interval; the job does not depend on these files.
                self._read_request_and_write_progress()

    def _read_request_and_write_progress(self) -> None:
        """Read the request of the user in the job directory, if there is one; write the progress report there if there
        is a new one.
        """
        asked = read_json_object(self._directory, CONTROL_FILE)
        if asked is not None and asked.get("run") == self._run and _is_valid_control_request(asked, self._ranks):
            self._request = asked
        news = self._report
        if news is not None and news is not self._written_report:
            write_json_object(self._directory, PROGRESS_FILE, news)
            self._written_report = news


def _is_valid_control_request(values: dict[str, Any], ranks: int) -> bool:
    """Return True if ``values``, the contents of a request of ``pcopy --control``, are valid for a job with this number
    of ranks.
    """
    numbers = [values.get(name, 0) for name in ("bwlimit", "oplimit", "active")]
    are_valid = all(type(number) is int and number >= 0 for number in numbers)
    return (
        are_valid
        and numbers[2] <= ranks
        and type(values.get("paused", False)) is bool
        and type(values.get("id")) is str
    )
