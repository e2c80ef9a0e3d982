"""``-v``: a line when each phase of the job begins, with what has been found and copied by then."""

from __future__ import annotations

from collections.abc import Sequence

from pcopy.tasks.job import Failure, Totals
from pcopy.tasks.sinks import Sink
from pcopy.text import counted


class Verbose:
    """Passes everything on to another sink, and adds what only ``-v`` tells. Fills ``pcopy.tasks.sinks.Sink``."""

    def __init__(self, sink: Sink) -> None:
        self._sink = sink
        self._phase = ""

    def progress(self, phase: str, totals: Totals, silent: Sequence[int]) -> None:
        if phase != self._phase:
            self._phase = phase
            done = totals.copied + totals.skipped + totals.failed
            self._sink.notice(f"{phase}: {done:,} of {counted(totals.found, 'item', 'items')} done so far")
        self._sink.progress(phase, totals, silent)

    def failures(self, failures: Sequence[Failure]) -> None:
        self._sink.failures(failures)

    def notice(self, text: str) -> None:
        self._sink.notice(text)
