"""SIGINT during the start: status 130 and one line, without a traceback, as soon as the program's own code runs."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.support.command import REPOSITORY, Argument, command
from tests.support.faults import require_strace

WAYS: dict[str, tuple[Sequence[str], str]] = {
    "bin/pcopy": ([f"{REPOSITORY}/bin/pcopy"], "bin/pcopy"),
    "bin/pverify": ([f"{REPOSITORY}/bin/pverify"], "bin/pverify"),
    "installed": (["-c", "import re, sys; from pcopy.cli.script import pcopy; pcopy()"], "launch/interrupts"),
    "-m pcopy": (["-m", "pcopy"], "launch/interrupts"),
}


@pytest.mark.in_turn(2)
@pytest.mark.parametrize("way", WAYS)
def test_interrupt_during_the_start_prints_one_line(area: Path, way: str) -> None:
    """The signal arrives at different opens of files, from the program's first module to the source directory."""
    require_strace()
    (area / "source").mkdir()
    program, first = WAYS[way]
    paths: list[Argument] = [area / "source", area / "copy"]
    if "pverify" in way:
        paths = [area / "source", area / "source"]
    _, env = command(*paths)
    env |= {"PYTHONDONTWRITEBYTECODE": "1", "PYTHONPYCACHEPREFIX": "/proc/none"}  # each run opens the same files
    log = area / "log"
    line = [sys.executable, *program, *map(str, paths)]

    def run(*inject: str) -> subprocess.CompletedProcess[bytes]:
        wrap = ["strace", "-qq", "-o", str(log), "-e", "trace=openat", *inject]
        return subprocess.run([*wrap, *line], check=False, env=env, capture_output=True, timeout=60)

    assert run().returncode == 0
    opened = log.read_text(errors="replace").splitlines()
    start = [number for number, call in enumerate(opened, 1) if re.search(rf'{first}[^/"]*"', call)][-1]
    end = next(number for number, call in enumerate(opened, 1) if f'"{area}' in call)
    assert end - start > 30
    reported = b"pverify: interrupted\n" if "pverify" in way else b"pcopy: interrupted\n"
    for number in (start + 1, *range(start + 2, end, (end - start) // 6)):
        (area / "copy").rmdir() if (area / "copy").exists() else None
        ended = run("-e", f"inject=openat:signal=SIGINT:when={number}")
        assert (ended.returncode, ended.stdout, ended.stderr) == (130, b"", reported), opened[number - 1]
        assert not (area / "copy").exists()


def test_ignored_interrupt_does_not_end_the_start(area: Path) -> None:
    require_strace()
    (area / "source").mkdir()
    line, env = command(area / "source", area / "copy")
    wrap = ["env", "--ignore-signal=INT", "strace", "-qq", "-o", os.devnull, "-e", "trace=openat"]
    wrap += ["-e", "inject=openat:signal=SIGINT:when=100"]
    ended = subprocess.run([*wrap, *line], check=False, env=env, capture_output=True, timeout=60)
    assert ended.returncode == 0 and (area / "copy").is_dir(), ended
