"""The interface costs little: it loads no module of the programs, and a call takes hardly longer than the command."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.support.command import REPOSITORY

MOST_OF_IMPORT = 0.005
"""Seconds that ``import pcopy`` may take longer than ``import subprocess``."""
MOST_OF_CALL = 0.010
"""Seconds that a call may take longer than the same command."""
ROUNDS = 25
"""How often each time is measured. Other programs on the machine only make times longer, so the shortest one counts."""
MOST_ROUNDS = 3 * ROUNDS
MOST_OF_WAITING = 0.005
"""Seconds that the first code of a calm round waits for the processor: its elapsed time without its processor time."""

START = """
import resource, sys, time
from subprocess import PIPE, Popen

def processor_time():
    usages = map(resource.getrusage, (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)

def measure(action):
    begun, used = time.perf_counter(), processor_time()
    action()
    print(time.perf_counter() - begun, processor_time() - used)
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


class Times(NamedTuple):
    """The seconds of a code: ``elapsed``, and those of the ``processor``, which its process and the children took."""

    elapsed: float
    processor: float


def rounds(area: Path, codes: Mapping[str, str]) -> list[dict[str, Times]]:
    """Return the times that each code prints, by rounds. In a round each code runs in a new process, which loads
    modules as for users: from bytecode, which a first round has written.
    """
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY), "PYTHONPYCACHEPREFIX": str(area / "bytecode")}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    times = []
    for _ in range(1 + ROUNDS):
        words = {name: [sys.executable, "-c", START + code] for name, code in codes.items()}
        run = partial(subprocess.check_output, cwd=area, env=environment)
        times.append({name: Times(*map(float, run(command).split())) for name, command in words.items()})
    return times[1:]


def check_cost(area: Path, codes: Mapping[str, str], most: float) -> None:
    """Fail if one of the codes takes ``most`` seconds longer than the first one: of the processor, which hardly depends
    on other programs; or from begin to end, in rounds in which other programs did not take the processor. What seems to
    take longer is measured again: the shortest times of more rounds are nearer to those of an idle machine.
    """
    measured: list[dict[str, Times]] = []
    while len(measured) < MOST_ROUNDS:
        measured += rounds(area, codes)
        failures = excesses(measured, most)
        if not failures:
            return
    pytest.fail("; ".join(failures))


def excesses(measured: Sequence[Mapping[str, Times]], most: float) -> list[str]:
    """Return for each code that takes more than ``most`` seconds longer than the first one, which time is too long."""
    reference, *others = measured[0]
    calm = [each for each in measured if each[reference].elapsed - each[reference].processor <= MOST_OF_WAITING]
    found = []
    for kind, chosen in (("processor", measured), ("elapsed", calm)):
        shortest = {name: min((getattr(each[name], kind) for each in chosen), default=0.0) for name in measured[0]}
        for name in others:
            if shortest[name] > shortest[reference] + most:
                found.append(f"{kind} time of {name!r} in {len(chosen)} rounds: {shortest}")
    return found


@pytest.mark.alone
def test_import_is_quick(area: Path) -> None:
    code = "measure(lambda: Popen([sys.executable, '-c', 'import {}']).wait())"
    check_cost(area, {name: code.format(name) for name in ("subprocess", "pcopy")}, MOST_OF_IMPORT)


@pytest.mark.alone
def test_call_is_as_quick_as_the_command(area: Path) -> None:
    """So is the first call of a process, which loads the interface."""
    (area / "source").write_bytes(b"contents")
    codes = {"command": COMMAND, "first": f"{CALL}\nmeasure(call)", "later": f"{CALL}\ncall(); measure(call)"}
    check_cost(area, codes, MOST_OF_CALL)


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
own = sorted(name for name in sys.modules if name.startswith("pcopy.") and not name.startswith("pcopy.api"))
print(own, [name for name in ("asyncio", "dataclasses", "inspect", "tempfile", "typing") if name in sys.modules])
"""
    run = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True, cwd=area)
    assert run.stdout == "['pcopy.errors', 'pcopy.text'] []\n"
