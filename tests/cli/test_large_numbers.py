"""Each numeric option of each program, with numbers larger than C or the system can represent."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from pcopy.cli.programs import PROGRAMS, load_program
from tests.support.command import pcopy, show

NUMBERS = {"N", "SECONDS", "SIZE", "RATE"}
"""Names of numeric values in ``--help``."""
WITH_WORDS = (
    "--in-flight",
    "--newer-than",
    "--older-than",
    "--stripe",
    "--stripe-table",
    "--owner",
    "--chown",
    "--blocks",
)
"""Options whose values contain numbers and have other names."""
FORMS = {"--stripe-table": "1,{}=2", "--newer-than": "{}d", "--older-than": "{}d", "--modify-window": "{}"}
RUNS = {
    "pcopy": ("-T", "src", "dst"),
    "psync": ("src/", "dst"),
    "pverify": ("src", "same"),
    "prm": ("--yes", "same"),
    "pstripe": ("src",),
    "ptar": ("-xf", "a.tar", "-C", "dst"),
    "pbcast": ("src/a", "dst"),
    "pdbench": (
        "--time",
        "0.01",
        "--files",
        "1",
        "--tests",
        "create",
        "-n",
        "1",
        "--size",
        "64K",
        "--repeat",
        "1",
        "dst",
    ),
    "pwalk": ("src",),
    "pchmod": ("u+r", "src"),
}
NUMBERS_TRIED = {"2**63-1": str((1 << 63) - 1), "2**63": str(1 << 63), "10**30": str(10**30), "5000 digits": "9" * 5000}


def options_of(program: str) -> Iterator[str]:
    parser = load_program(program).parser()
    for action in parser._actions:
        name = max(action.option_strings, key=len)
        if action.nargs != 0 and (action.metavar in NUMBERS or name in WITH_WORDS):
            yield name


TABLE = [
    (program, option, number)
    for program in PROGRAMS
    for option in options_of(program)
    for number in NUMBERS_TRIED
    if (option, number) != ("--repeat", "2**63-1")  # pdbench would really repeat that often
]


@pytest.fixture
def place(area: Path) -> Path:
    for name in ("src", "same", "dst"):
        (area / name).mkdir()
    (area / "dst/src").mkdir()
    for name in ("src/a", "same/a", "dst/a", "dst/src/a"):
        (area / name).write_text("a")
    for name in ("same/a", "dst/a"):
        os.utime(area / name, (1, 1))
    pcopy("-q", "-cf", "a.tar", "src", program="ptar", cwd=area)
    return area


@pytest.mark.in_turn(80)
@pytest.mark.parametrize(("program", "option", "number"), TABLE)
def test_number_is_refused_or_used(place: Path, program: str, option: str, number: str) -> None:
    value = FORMS.get(option, "{}").format(NUMBERS_TRIED[number])
    more: tuple[str, ...] = ()
    if option == "--modify-window" and program == "pverify":
        more = ("--compare", "mtime")
    if option == "--max-delete":
        more = ("--delete",) if program == "pcopy" else ()
    if option == "--modify-window" and program == "pcopy":
        more = ("--existing", "changed")
    if option == "--stripe-table":
        more = ("--stripe", "auto")
    run = pcopy(*RUNS[program], option, value, *more, program=program, cwd=place)
    assert run.returncode in (0, 1, 2), show(run)
    if number != "2**63-1" and option not in ("--newer-than", "--older-than"):
        assert run.returncode == 2, show(run)
    assert b"Traceback" not in run.stderr and b"(4300 digits)" not in run.stderr, show(run)
