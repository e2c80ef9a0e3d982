"""A chain of directories: the memory of no program may grow with the square of its depth, as it would if the paths of
all directories were in memory, or in the records of the job.
"""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.command import RUN

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


def peak_memory(program: str, *words: object) -> int:
    """Return the peak memory in bytes of the largest process of a run with two ranks."""
    command = [sys.executable, *RUN[program], "-q", "-n", "2", *map(str, words)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    child = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL)
    _, status, used = os.wait4(child.pid, 0)
    child.returncode = os.waitstatus_to_exitcode(status)
    assert child.returncode == 0
    assert isinstance(used, resource.struct_rusage)
    return used.ru_maxrss << 10


def copied(top: Path) -> int:
    return peak_memory("pcopy", "-T", top / "chain", top / "copy")


RUNS: dict[str, Callable[[Path], int]] = {
    "pcopy": copied,
    "psync again": lambda top: copied(top) and peak_memory("psync", "-T", top / "chain", top / "copy"),
    "pverify two trees": lambda top: copied(top) and peak_memory("pverify", top / "chain", top / "copy"),
    "pverify --create": lambda top: peak_memory("pverify", "--create", top / "signature", top / "chain"),
    "pwalk": lambda top: peak_memory("pwalk", top / "chain"),
    "pwalk -ls": lambda top: peak_memory("pwalk", top / "chain", "-ls"),
    "pchmod": lambda top: peak_memory("pchmod", "g-w", top / "chain"),
    "prm": lambda top: peak_memory("prm", "--yes", top / "chain"),
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
                peak_memory("prm", "--yes", top / each)
    assert peaks[1] - peaks[0] < ALL_PATHS // 2, f"{peaks[0] >> 20} and {peaks[1] >> 20} MiB"
