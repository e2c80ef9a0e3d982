"""The interface costs little: it loads no module of the programs, and a call takes hardly longer than the command."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

import pcopy

MOST_OF_IMPORT = 0.005
"""Seconds that ``import pcopy`` may take longer than ``import subprocess``."""
MOST_OF_CALL = 0.010
"""Seconds that a call may take longer than the same command."""
FEWEST_ROUNDS, MOST_ROUNDS = 10, 60
"""How often times are measured: other programs on the machine only make them longer, so the shortest ones count."""


def is_at_most(action: Callable[[], object], other: Callable[[], object], more: float) -> bool:
    """Return True if ``action`` takes at most ``more`` seconds longer than ``other``. The two alternate."""
    shortest = [float("inf"), float("inf")]
    for number in range(1, MOST_ROUNDS + 1):
        shortest = [min(best, _seconds(each)) for best, each in zip(shortest, (action, other), strict=True)]
        if number >= FEWEST_ROUNDS and shortest[0] <= shortest[1] + more:
            return True
    return False


def _seconds(action: Callable[[], object]) -> float:
    begun = time.perf_counter()
    action()
    return time.perf_counter() - begun


@pytest.mark.alone
def test_import_is_quick() -> None:
    def run(code: str) -> Callable[[], object]:
        return lambda: subprocess.run([sys.executable, "-c", code], check=True)

    assert is_at_most(run("import pcopy"), run("import subprocess"), MOST_OF_IMPORT)


@pytest.mark.alone
def test_call_is_as_quick_as_the_command(area: Path) -> None:
    (area / "source").write_bytes(b"contents")
    options = ["--stop-at-eof", "--progress=json", "--errors=/dev/stderr", "--json", "-n", "2"]
    command = [sys.executable, "-m", "pcopy", *options, str(area / "source"), str(area / "copy")]

    def run() -> None:
        pipe = subprocess.PIPE
        with subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe) as process:
            assert process.stdout
            process.stdout.read()

    def call() -> None:
        pcopy.copy(area / "source", area / "copy", ranks=2)

    call()  # imports pcopy.api
    assert is_at_most(call, run, MOST_OF_CALL)


def test_caller_loads_neither_programs_nor_engine(area: Path) -> None:
    code = (
        "import sys, pcopy\n"
        "assert [name for name in sys.modules if name.startswith('pcopy')] == ['pcopy']\n"
        "try:\n    pcopy.copy('missing', 'copy')\nexcept pcopy.Refused:\n    pass\n"
        "list(pcopy.walk('.'))\n"
        "print(*(name for name in sys.modules if name.startswith('pcopy.') and not name.startswith('pcopy.api')))\n"
        "print('asyncio' in sys.modules, 'tempfile' in sys.modules, 'inspect' in sys.modules)"
    )
    run = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True, cwd=area)
    assert run.stdout.splitlines() == ["", "False False True"]  # dataclasses imports inspect, after the child's start
