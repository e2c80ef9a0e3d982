"""A chain of directories: the memory of no program may grow with the square of its depth, as it would if the paths of
all directories were in memory, or in the records of the job.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.processes import peak_memory

NAME = "d" * 40
SHALLOW, DEEP = 500, 2000
ALL_PATHS = len(NAME) * DEEP**2 // 2
"""Bytes that the paths of all directories of the deep chain have together: 80 MB."""


def make_chain(top: Path, depth: int) -> None:
    """Create a chain of directories, whose path may be longer than PATH_MAX."""
    top.mkdir()
    here = os.open(top, os.O_RDONLY)
    for _ in range(depth):
        os.mkdir(NAME, dir_fd=here)
        below = os.open(NAME, os.O_RDONLY, dir_fd=here)
        os.close(here)
        here = below
    os.close(here)


def signed(top: Path, *options: str | Path) -> int:
    return peak_memory("pverify", "--create", top / "signature", *options, top / "chain", ranks=2)


def copied(top: Path) -> int:
    return peak_memory("pcopy", "-T", top / "chain", top / "copy", ranks=2)


RUNS: dict[str, Callable[[Path], int]] = {
    "pcopy": copied,
    "psync again": lambda top: copied(top) and peak_memory("psync", "-T", top / "chain", top / "copy", ranks=2),
    "pverify two trees": lambda top: copied(top) and peak_memory("pverify", top / "chain", top / "copy", ranks=2),
    "pverify --create": signed,
    "pverify --create --manifest": lambda top: signed(top, "--manifest", top / "manifest"),
    "pverify SIGNATURE": lambda top: signed(top) and peak_memory("pverify", top / "signature", top / "chain", ranks=2),
    "pverify --manifest": lambda top: (
        signed(top, "--manifest", top / "manifest")
        and peak_memory("pverify", "--manifest", top / "manifest", top / "chain", ranks=2)
    ),
    "pwalk": lambda top: peak_memory("pwalk", top / "chain", ranks=2),
    "pwalk -ls": lambda top: peak_memory("pwalk", top / "chain", "-ls", ranks=2),
    "pchmod": lambda top: peak_memory("pchmod", "g-w", top / "chain", ranks=2),
    "prm": lambda top: peak_memory("prm", "--yes", top / "chain", ranks=2),
}


@pytest.mark.parametrize("run", RUNS)
def test_memory_does_not_grow_with_the_square_of_the_depth(area: Path, run: str) -> None:
    peaks = []
    for depth in (SHALLOW, DEEP):
        top = area / str(depth)
        top.mkdir()
        make_chain(top / "chain", depth)
        peaks.append(RUNS[run](top))
        for each in ("chain", "copy"):
            if (top / each).exists():
                peak_memory("prm", "--yes", top / each, ranks=2)
    assert peaks[1] - peaks[0] < ALL_PATHS // 2, f"{peaks[0] >> 20} and {peaks[1] >> 20} MiB"
