"""The interface costs little: it loads no module of the programs, and a call takes hardly longer than the command."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.support.command import REPOSITORY

MOST_OF_IMPORT = 0.005
"""Seconds that ``import pcopy`` may take longer than ``import subprocess``."""
MOST_OF_CALL = 0.010
"""Seconds that a call may take longer than the same command."""
ROUNDS = 25
"""How often each time is measured. Other programs on the machine only make times longer, so the shortest one counts."""

START = """
import sys, time
from subprocess import PIPE, Popen

def measure(action):
    begun = time.perf_counter()
    action()
    print(time.perf_counter() - begun)
"""
COMMAND = """
def command():
    options = ["--stop-at-eof", "--progress=json", "--errors=/dev/stderr", "--json", "-n", "2"]
    line = [sys.executable, "-m", "pcopy", *options, "source", "copy"]
    with Popen(line, stdin=PIPE, stdout=PIPE, stderr=PIPE) as process:
        process.stdout.read()
    assert process.returncode == 0

measure(command)
"""
CALL = """
import pcopy

def call():
    assert pcopy.copy("source", "copy", ranks=2).failed == 0
"""


def shortest_times(area: Path, codes: Mapping[str, str]) -> dict[str, float]:
    """Return the shortest time that each code prints. The codes alternate, each in a new process that loads modules as
    for users: from bytecode, which a first round has written.
    """
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY), "PYTHONPYCACHEPREFIX": str(area / "bytecode")}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    times: dict[str, list[float]] = {name: [] for name in codes}
    for _ in range(1 + ROUNDS):
        for name, code in codes.items():
            words = [sys.executable, "-c", START + code]
            times[name].append(float(subprocess.check_output(words, cwd=area, env=environment)))
    return {name: min(measured[1:]) for name, measured in times.items()}


@pytest.mark.alone
def test_import_is_quick(area: Path) -> None:
    code = "measure(lambda: Popen([sys.executable, '-c', 'import {}']).wait())"
    times = shortest_times(area, {name: code.format(name) for name in ("pcopy", "subprocess")})
    assert times["pcopy"] <= times["subprocess"] + MOST_OF_IMPORT


@pytest.mark.alone
def test_call_is_as_quick_as_the_command(area: Path) -> None:
    """So is the first call of a process, which loads the interface."""
    (area / "source").write_bytes(b"contents")
    codes = {"command": COMMAND, "first": f"{CALL}\nmeasure(call)", "later": f"{CALL}\ncall(); measure(call)"}
    times = shortest_times(area, codes)
    assert times["first"] <= times["command"] + MOST_OF_CALL, times
    assert times["later"] <= times["command"] + MOST_OF_CALL, times


def test_caller_loads_neither_programs_nor_engine(area: Path) -> None:
    code = """
import sys, pcopy
assert [name for name in sys.modules if name.startswith("pcopy")] == ["pcopy"]
try:
    pcopy.copy("missing", "copy")
except pcopy.Refused:
    pass
pcopy.archive(".", "archive.tar")
list(pcopy.walk("."))
own = [name for name in sys.modules if name.startswith("pcopy.") and not name.startswith("pcopy.api")]
print(own, [name for name in ("asyncio", "dataclasses", "inspect", "tempfile") if name in sys.modules])
"""
    run = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True, cwd=area)
    assert run.stdout == "[] []\n"
