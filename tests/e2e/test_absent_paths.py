"""A path of the command line that does not exist: what each program does with it and with the other paths."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from tests.support.command import pcopy, show

REFUSING = {
    "pcopy": ["file", "absent", "directory"],
    "psync": ["absent/", "directory"],
    "pverify": ["absent", "directory"],
    "ptar": ["-cf", "a.tar", "file", "absent"],
    "pbcast": ["file", "absent", "directory"],
    "pstripe": ["absent"],
    "pdbench": ["absent"],
}
GOING_ON = {"prm": ["--yes"], "pchmod": ["u+rwx"], "pwalk": []}


@pytest.fixture
def place(tmp_path: Path) -> Path:
    (tmp_path / "directory").mkdir()
    (tmp_path / "file").write_bytes(b"text")
    return tmp_path


@pytest.mark.parametrize("program", REFUSING)
def test_command_is_refused_in_one_line_and_changes_nothing(place: Path, program: str) -> None:
    before = sorted(os.listdir(place))
    run = pcopy(*REFUSING[program], program=program, cwd=place)
    assert (run.returncode, run.stdout) == (2, b""), show(run)
    (line,) = run.stderr.decode().splitlines()
    assert line.startswith(f"{program}: absent") and line.count("absent") == 1
    assert "exist" in line or "No such file" in line
    assert sorted(os.listdir(place)) == before and not os.listdir(place / "directory")


@pytest.mark.parametrize("program", GOING_ON)
def test_other_paths_are_processed(place: Path, program: str) -> None:
    words = (*GOING_ON[program], "absent", "file", "none")
    run = pcopy("--errors", "errors", *words, program=program, cwd=place, ranks=2)
    assert run.returncode == 1, show(run)
    reported = [line for line in run.stderr.decode().splitlines() if "No such file" in line]
    assert reported == [f"{program}: {name}: stat: No such file or directory (ENOENT)" for name in ("absent", "none")]
    failed = [json.loads(line)["path"] for line in (place / "errors").read_text().splitlines()]
    assert failed == ["absent", "none"]
    if program != "pwalk":
        lines = run.stdout.decode().splitlines()
        assert lines[0].startswith("3 found = 1 ") and lines[0].endswith(" + 2 failed"), show(run)
        assert "  found and failed include 2 paths of the command line that do not exist" in lines
        (place / "file").touch()
    again = pcopy(*GOING_ON[program], "--json", "absent", program=program, cwd=place)
    if program != "pwalk":
        totals = json.loads(again.stdout)
        assert again.returncode == 1 and (totals["found"], totals["failed"]) == (1, 1), show(again)


def test_prm_ignores_absent_paths_on_request(place: Path) -> None:
    run = pcopy("-f", "absent", "file", program="prm", cwd=place)
    assert run.returncode == 0 and not run.stderr, show(run)
    assert run.stdout.decode().splitlines()[0] == "1 found = 1 removed + 0 not empty + 0 failed"
    assert b"not exist" not in run.stdout
