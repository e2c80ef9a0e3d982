"""Control of a running job on rank 0: requests of ``pcopy --control``, and progress reports for ``pcopy --jobs``.

Both are files in the job directory, whose server may hang. So a thread reads and writes them. The rank's main thread
only exchanges values with that thread, each time it receives the counters of all ranks.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

from pcopy.beside import Bell, Beside
from pcopy.checkpoint.layout import CONTROL, PROGRESS
from pcopy.errors import HINDRANCES, Refused
from pcopy.jobs.control import Change, described, read, write
from pcopy.launch.steersman import Steersman, Wanted
from pcopy.report.gauge import Gauge, Stages
from pcopy.report.screen import progress_values
from pcopy.tasks.base.job import Totals

LOOK = 0.5
"""Seconds between two checks for a request."""

TELL = 2.0
"""Seconds between two progress reports."""

_PATIENCE = 1.0
"""Seconds that the end of the job waits for the thread, whose storage may hang."""


class Desk:
    """Reads requests from the job directory, applies them, and writes progress reports there."""

    def __init__(
        self,
        directory: bytes,
        run: int,
        ranks: int,
        stages: Stages,
        steersman: Steersman,
        steered: Callable[[str], object],
    ) -> None:
        """Prepare without starting the thread.

        Args:
            directory: the job directory.
            run: number of the run; requests for other runs are ignored.
            ranks: number of ranks.
            stages: how progress is measured.
            steersman: applies the limits.
            steered: called with a description of the limits after the user has changed them.
        """
        self._directory = directory
        self._run = run
        self._ranks = ranks
        self._steersman = steersman
        self._steered = steered
        self._gauge = Gauge(time.monotonic(), stages)
        self._next = 0.0
        self._asked: dict[str, Any] | None = None  # the latest request, set by the thread
        self._answered = ""
        self._news: dict[str, Any] | None = None  # the latest progress report, read by the thread
        self._written: dict[str, Any] | None = None
        self._end = Bell()
        self._thread: Beside | None = None

    def start(self) -> None:
        """Start the thread; if that is impossible, the job runs without it and ignores requests."""
        with suppress(OSError):
            self._thread = Beside(self._serve)

    def stop(self) -> None:
        """Stop the thread; must be called before the job directory is removed."""
        if self._thread is not None:
            self._end.ring()
            self._thread.is_over(_PATIENCE)

    def tell(self, phase: str, totals: Totals, silent: Sequence[int]) -> None:
        """Apply a new request, and prepare a progress report if one is due. Called with the counters of all ranks.

        ``silent``: ranks that have not answered lately.
        """
        now = time.monotonic()
        self._gauge.enter(now, phase, totals)
        has_changed = self._obeyed()
        if now < self._next and not has_changed:
            return
        self._next = now + TELL
        wanted = self._steersman.wanted
        values = progress_values(phase, totals, self._gauge.read(now, totals), silent)
        if wanted.paused:
            values["eta"] = None
        state = {**wanted._asdict(), "active": wanted.active or self._ranks}
        self._news = {**values, "run": self._run, "ranks": self._ranks, **state, "control": self._answered}

    def _obeyed(self) -> bool:
        """Apply the latest request; return True if it was a new one."""
        asked = self._asked
        if asked is None or asked["id"] == self._answered:
            return False
        self._answered = asked["id"]
        change = Change(*(asked.get(name) for name in Change._fields))
        wanted = Wanted(**{**self._steersman.wanted._asdict(), **change.wanted})
        if wanted != self._steersman.wanted:
            self._steersman.wanted = wanted
            self._steered(described({**wanted._asdict(), "ranks": self._ranks}))
        return True

    def _serve(self) -> None:
        """Read requests and write reports until the end of the job; runs in the thread."""
        while not self._end.wait(LOOK):
            with suppress(Refused, *HINDRANCES):  # Tried again after the next interval; the job runs on.
                self._look()

    def _look(self) -> None:
        """Read the current request, and write the progress report if it is a new one."""
        asked = read(self._directory, CONTROL)
        if asked is not None and asked.get("run") == self._run and _is_order(asked, self._ranks):
            self._asked = asked
        news = self._news
        if news is not None and news is not self._written:
            write(self._directory, PROGRESS, news)
            self._written = news


def _is_order(values: dict[str, Any], ranks: int) -> bool:
    """True if ``values`` is a valid request for a job with this number of ranks."""
    numbers = [values.get(name, 0) for name in ("bwlimit", "oplimit", "active")]
    are_valid = all(type(number) is int and number >= 0 for number in numbers)
    return (
        are_valid
        and numbers[2] <= ranks
        and type(values.get("paused", False)) is bool
        and type(values.get("id")) is str
    )
