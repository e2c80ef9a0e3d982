"""``python -m bench.kinds``: it runs each program and each option, with items of each kind."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from bench.kinds import DIRECTORIES, KINDS, OPTIONS, PROGRAMS, make_tree
from bench.timing import CHECKOUT_DIRECTORY

CELL = re.compile(r"\d+\.\d\d \(\d+\.\d\d\)( \d+\.\d\d)?|-")

FIND_TEST = {
    "symlink": "-type l -lname ../target/of/the/link",
    "fifo": "-type p",
    "hole": "-type f -size 512b ! -size -1k",
    "pair": "-type f -links 2",
    "old": "-type f ! -newermt 1970-01-01",
    "far": "-type f -newermt 2262-04-12",
    "suid": "-type f -perm 4755",
    "closed": "-type f -perm 0000",
    "long": "-type f -name ????????????????????????????????????????*",
    "empty": "-type f -empty",
    "64k": "-type f -size 64k",
    "dir": "-type d -perm 2775",
    "chain": "-path */a/b/c",
    "small": "-type f -size 8b",
}
"""Tests of find that each item of a kind passes."""


def run_kinds(area: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Run the script in ``area`` with few items, and return the process."""
    command = [sys.executable, "-m", "bench.kinds", "--rounds", "1", "--items", "120", "--base", str(area), *words]
    return subprocess.run(command, cwd=CHECKOUT_DIRECTORY, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("kind", FIND_TEST)
def test_items_are_of_their_kind(kind: str, area: Path) -> None:
    make_tree(area, kind, 150)
    found = subprocess.run(
        ["find", area / kind, "-mindepth", "2", *FIND_TEST[kind].split()], capture_output=True, text=True, check=True
    )
    assert len(found.stdout.splitlines()) == (300 if kind == "pair" else 150)
    directories = [each for each in (area / kind).iterdir() if each.is_dir()]
    assert len(directories) == DIRECTORIES


def test_table_has_a_cell_for_each_program(area: Path) -> None:
    ended = run_kinds(area, "chain", "fifo", "--against", str(CHECKOUT_DIRECTORY))
    assert ended.returncode == 0, ended.stderr
    head, _, *rows = (line.strip("| ").split(" | ") for line in ended.stdout.splitlines())
    assert head == ["120 items", *PROGRAMS]
    assert [row[0] for row in rows] == ["chain", "fifo"]
    for row in rows:
        assert len(row) == len(head)
        assert all(map(CELL.fullmatch, row[1:])), row
    assert not [*area.iterdir()]


def test_each_option_is_measured(area: Path) -> None:
    ended = run_kinds(area, "--options")
    assert ended.returncode == 0, ended.stderr
    rows = [line.strip("| ").split(" | ") for line in ended.stdout.splitlines()[2:]]
    assert [row[0] for row in rows] == [*OPTIONS.values()]
    assert all(CELL.fullmatch(row[1]) for row in rows)


def test_unknown_kind_is_refused(area: Path) -> None:
    ended = run_kinds(area, "socks")
    assert ended.returncode == 2
    assert ended.stderr.splitlines()[-1].startswith(
        f"python -m bench.kinds: error: unknown: socks; choose from {', '.join(KINDS)}"
    )


def test_each_program_can_be_chosen(area: Path) -> None:
    """No name of a program is read as an option."""
    assert not [program for program in PROGRAMS if program.startswith("-")]
    ended = run_kinds(area, "--programs", "compare", "tar -c", "--", "small")
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.splitlines()[0] == "| 120 items | compare | tar -c |"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--against", "/nowhere"), "--against: /nowhere/bin/pcopy: no such program; name the directory of a checkout"),
        (("--base", "/nowhere"), "--base: /nowhere: not a directory"),
    ],
)
def test_missing_directory_is_refused(words: tuple[str, ...], message: str, area: Path) -> None:
    ended = run_kinds(area, "small", *words)
    assert (ended.returncode, ended.stdout) == (2, "")
    assert ended.stderr.splitlines()[-1] == f"python -m bench.kinds: error: {message}"


def test_failing_command_ends_the_measurement(area: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The message has the command, and not the environment of the caller."""
    monkeypatch.setenv("CONFIDENTIAL", "value-of-the-caller")
    program = area / "other/bin/pcopy"
    program.parent.mkdir(parents=True)
    program.write_text("#!/bin/sh\nexit 3\n")
    program.chmod(0o755)
    ended = run_kinds(area, "small", "--programs", "copy", "--against", str(area / "other"))
    assert ended.returncode != 0
    assert "other/bin/pcopy -q" in ended.stderr
    assert "value-of-the-caller" not in ended.stderr
