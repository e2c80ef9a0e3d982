"""Rank 0's desk: takes what ``pcopy --control`` asks for, and tells ``pcopy --jobs`` how the job gets on.

The files lie in the job's directory, whose server may hang. So a thread reads and writes them; the rank itself only
hands over what there is to tell, and takes what was asked for, whenever it hears of all ranks' counters.
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
"""Seconds between two looks for somebody who asks."""

TELL = 2.0
"""Seconds between two times that the job tells how it gets on."""

_PATIENCE = 1.0
"""Seconds that the end of the job waits for the thread: its storage may hang."""


class Desk:
    """Of the run number ``run``, in the job's directory. ``steered`` hears what holds once the user has changed it."""

    def __init__(
        self,
        directory: bytes,
        run: int,
        ranks: int,
        stages: Stages,
        steersman: Steersman,
        steered: Callable[[str], object],
    ) -> None:
        self._directory = directory
        self._run = run
        self._ranks = ranks
        self._steersman = steersman
        self._steered = steered
        self._gauge = Gauge(time.monotonic(), stages)
        self._next = 0.0
        self._asked: dict[str, Any] | None = None  # by the thread
        self._answered = ""
        self._news: dict[str, Any] | None = None  # for the thread
        self._written: dict[str, Any] | None = None
        self._end = Bell()
        self._thread: Beside | None = None

    def start(self) -> None:
        """Without a thread nobody is heard, and the job goes on all the same."""
        with suppress(OSError):
            self._thread = Beside(self._serve)

    def stop(self) -> None:
        """Before the job's directory is removed."""
        if self._thread is not None:
            self._end.ring()
            self._thread.is_over(_PATIENCE)

    def tell(self, phase: str, totals: Totals, silent: Sequence[int]) -> None:
        """All ranks have told their counters: does what was asked for, and hands on how the job gets on."""
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
        """Was something asked for, that holds from now on?"""
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
        while not self._end.wait(LOOK):
            with suppress(Refused, *HINDRANCES):  # it is tried again, and the job goes on
                self._look()

    def _look(self) -> None:
        asked = read(self._directory, CONTROL)
        if asked is not None and asked.get("run") == self._run and _is_order(asked, self._ranks):
            self._asked = asked
        news = self._news
        if news is not None and news is not self._written:
            write(self._directory, PROGRESS, news)
            self._written = news


def _is_order(values: dict[str, Any], ranks: int) -> bool:
    """Does it say what ``--control`` may say, for a job on so many ranks?"""
    numbers = [values.get(name, 0) for name in ("bwlimit", "oplimit", "active")]
    are_good = all(type(number) is int and number >= 0 for number in numbers)
    return (
        are_good and numbers[2] <= ranks and type(values.get("paused", False)) is bool and type(values.get("id")) is str
    )
