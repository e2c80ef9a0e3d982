"""Runs commands and says how long they took; tables of what came out."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import NamedTuple

CHECKOUT = Path(__file__).resolve().parent.parent
PCOPY = (sys.executable, "-m", "pcopy")
PVERIFY = (sys.executable, "-c", "from pcopy.cli.script import pverify; pverify()")


class Time(NamedTuple):
    """Seconds: by the clock, and of processors (user and system, with all children)."""

    wall: float
    processor: float


def environment() -> dict[str, str]:
    """This process's, in which ``PCOPY`` finds the checkout, and keeps its byte code as installed programs do."""
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    return {**kept, "PYTHONPATH": str(CHECKOUT)}


def timed(*commands: Sequence[str]) -> Time:
    """Runs the commands one after the other; raises ``CalledProcessError`` for the first that fails."""
    before = os.times()
    start = time.monotonic()
    for words in commands:
        subprocess.run(words, check=True, env=environment(), stdout=subprocess.DEVNULL)
    wall = time.monotonic() - start
    after = os.times()
    children = after.children_user - before.children_user + after.children_system - before.children_system
    return Time(wall, children)


def table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """The first column to the left, the others to the right."""
    widths = [max(map(len, column)) for column in zip(heads, *rows, strict=True)]
    lines = []
    for row in (heads, *rows):
        others = (cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True))
        lines.append("  ".join((row[0].ljust(widths[0]), *others)).rstrip())
    return "\n".join(lines)


def compared(times: Mapping[str, Sequence[Time]], against: str) -> str:
    """A table of medians, their ratios to those of ``against``, and extremes."""
    base = median(time.wall for time in times[against])
    rows = []
    for name, taken in times.items():
        walls = [time.wall for time in taken]
        middle = median(walls)
        processor = median(time.processor for time in taken)
        rows.append(
            [name, *(f"{value:.3f}" for value in (middle, min(walls), max(walls), processor)), f"{middle / base:.2f}"]
        )
    return table(["seconds", "median", "min", "max", "processor", f"/ {against}"], rows)
