"""``-v`` tells of each phase once, and keeps nothing from the sink behind it."""

from __future__ import annotations

from collections.abc import Sequence

from pcopy.report.screen import Verbose
from pcopy.tasks.base.job import Failure, Totals


class Recorder:
    """Notes what it is told."""

    def __init__(self) -> None:
        self.told: list[object] = []

    def progress(self, phase: str, totals: Totals, silent: Sequence[int]) -> None:
        self.told.append((phase, totals, silent))

    def failures(self, failures: Sequence[Failure]) -> None:
        self.told.extend(failures)

    def notice(self, text: str) -> None:
        self.told.append(text)


def test_each_phase_is_told_once() -> None:
    recorder = Recorder()
    verbose = Verbose(recorder)
    totals = Totals(found=3, files=1, skipped=1)
    failure = Failure(b"a", "read", 5, "")
    for phase in ("copy", "copy", "finish"):
        verbose.progress(phase, totals, ())
    verbose.failures([failure])
    verbose.notice("text")
    assert recorder.told == [
        "copy: 2 of 3 items done so far",
        ("copy", totals, ()),
        ("copy", totals, ()),
        "finish: 2 of 3 items done so far",
        ("finish", totals, ()),
        failure,
        "text",
    ]
