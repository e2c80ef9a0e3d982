"""Progress for programs: one JSON object a line, as docs/formats/progress.md describes it."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence

from pcopy.cli.gauge import Reading
from pcopy.cli.screen import Screen
from pcopy.tasks.job import Totals


class JsonScreen(Screen):
    """A line each interval; failures and notices stay lines of text."""

    def _draw(self, phase: str, totals: Totals, reading: Reading, silent: Sequence[int]) -> None:
        self._print(progress_json(time.time(), phase, totals, reading, silent))


def progress_json(now: float, phase: str, totals: Totals, reading: Reading, silent: Sequence[int]) -> str:
    """One object on one line; ``now`` is in seconds since 1970."""
    fraction, left = reading.fraction, reading.left
    values = {
        "time": round(now, 3),
        "elapsed": round(reading.elapsed, 3),
        "phase": phase,
        "found": totals.found,
        "copied": totals.copied,
        "skipped": totals.skipped,
        "failed": totals.failed,
        "unscanned": totals.unscanned,
        "bytes": totals.bytes,
        "moved": totals.moved,
        "found_bytes": totals.found_bytes,
        "to_verify": totals.to_verify,
        "to_verify_bytes": totals.to_verify_bytes,
        "verified": totals.verified,
        "verified_bytes": totals.verified_bytes,
        "handled_bytes": reading.bytes_done,
        "percent": None if fraction is None else int(fraction * 1000) / 10,
        "bytes_per_second": round(reading.rate),
        "mean_bytes_per_second": round(reading.mean_rate),
        "items_per_second": round(reading.item_rate, 1),
        "mean_items_per_second": round(reading.mean_item_rate, 1),
        "eta": None if left is None else round(left, 1),
        "silent": list(silent),
    }
    return json.dumps(values)
