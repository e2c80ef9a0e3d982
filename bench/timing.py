"""Functions that run commands and measure their times, and that format tables."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import NamedTuple

CHECKOUT_DIRECTORY = Path(__file__).resolve().parent.parent
"""The directory of this checkout."""
PCOPY_COMMAND = (sys.executable, "-m", "pcopy")
"""The command that runs pcopy from the checkout."""
PVERIFY_COMMAND = (sys.executable, "-c", "from pcopy.cli.script import pverify; pverify()")
"""The command that runs pverify from the checkout."""


class RunTime(NamedTuple):
    """Seconds of a run: wall-clock time, and processor time (user and system, with all child processes)."""

    wall: float
    processor: float


def command_environment() -> dict[str, str]:
    """Return the environment variables for commands that are measured.

    With them Python finds the package ``pcopy`` of this checkout, and caches byte code as for installed programs.
    """
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    return {**kept, "PYTHONPATH": str(CHECKOUT_DIRECTORY)}


def measure_commands(*commands: Sequence[str]) -> RunTime:
    """Run ``commands`` one after the other, and return their time together. Raise ``CalledProcessError`` if one
    fails.
    """
    before = os.times()
    start = time.monotonic()
    for words in commands:
        subprocess.run(words, check=True, env=command_environment(), stdout=subprocess.DEVNULL)
    wall = time.monotonic() - start
    after = os.times()
    children = after.children_user - before.children_user + after.children_system - before.children_system
    return RunTime(wall, children)


def text_table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a table as text with aligned columns, the first one to the left, the others to the right.

    ``heads`` are the column titles, ``rows`` the cells.
    """
    widths = [max(map(len, column)) for column in zip(heads, *rows, strict=True)]
    lines = []
    for row in (heads, *rows):
        rest = (cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True))
        lines.append("  ".join((row[0].ljust(widths[0]), *rest)).rstrip())
    return "\n".join(lines)


def comparison_table(times: Mapping[str, Sequence[RunTime]], against: str) -> str:
    """Return a table of the ways in ``times``: medians, extremes, and ratios of the medians to that of the way
    ``against``.
    """
    base = median(time.wall for time in times[against])
    rows = []
    for name, taken in times.items():
        walls = [time.wall for time in taken]
        middle = median(walls)
        processor = median(time.processor for time in taken)
        rows.append(
            [name, *(f"{value:.3f}" for value in (middle, min(walls), max(walls), processor)), f"{middle / base:.2f}"]
        )
    return text_table(["seconds", "median", "min", "max", "processor", f"/ {against}"], rows)
