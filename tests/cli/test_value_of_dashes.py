"""The value ``--`` of an option is a word like others: ``--exclude=--`` excludes a file of that name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pcopy.cli.programs import PROGRAMS, load_program
from pcopy.errors import RequestRefused
from tests.support.command import pcopy

VALUED = [
    (program, word)
    for program in PROGRAMS
    for action in load_program(program).parser()._actions
    for word in action.option_strings
    if action.nargs != 0 and word.startswith("--")
]


def flat(value: Any) -> list[object]:
    return [each for item in value for each in flat(item)] if isinstance(value, (list, tuple)) else [value]


@pytest.mark.parametrize(("program", "word"), VALUED)
def test_value_is_used_or_refused(program: str, word: str) -> None:
    parser = load_program(program).parser()
    parser._defaults.clear()
    for action in parser._actions:
        action.default = None
    try:
        values = vars(parser.parse_args([f"{word}=--"]))
    except RequestRefused as refused:
        assert word in str(refused)
        return
    (value,) = (item for value in values.values() for item in flat(value) if item is not None)
    assert value in ("--", b"!--" if word == "--include" else b"--")


def test_file_of_that_name_is_excluded(area: Path) -> None:
    (area / "tree").mkdir()
    for name in ("--", "a"):
        (area / "tree" / name).touch()
    run = pcopy("--exclude=--", area / "tree", area / "copy")
    assert run.returncode == 0
    assert sorted(path.name for path in (area / "copy").iterdir()) == ["a"]


@pytest.mark.parametrize(("program", "words"), [("pchmod", ["--mode=--", "tree"]), ("pcopy", ["--bwlimit=--", "tree"])])
def test_wrong_value_is_no_internal_error(area: Path, program: str, words: list[str]) -> None:
    (area / "tree").mkdir()
    run = pcopy(*words, *(["copy"] if program == "pcopy" else []), program=program, cwd=area)
    assert run.returncode == (2 if program == "pcopy" else 0), run.stderr
    assert b"Traceback" not in run.stderr
