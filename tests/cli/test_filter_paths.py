"""Patterns that can match nothing below the paths of the command line are refused: otherwise items that they should
protect would be removed.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from pcopy.cli.pcopy import PCOPY
from pcopy.cli.prm import PRM
from pcopy.cli.program import ProgramCommandLine
from pcopy.cli.pverify import PVERIFY
from pcopy.errors import RequestRefused


@pytest.fixture
def top(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current directory: run7, data and copy, each with a file keep, and a link to run7."""
    for name in ("run7", "data", "copy"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "keep").touch()
    (tmp_path / "link").symlink_to("run7")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def refusal(program: ProgramCommandLine, *words: str) -> str:
    """Return the line of the refusal, or an empty string if the arguments are accepted."""
    try:
        program.parse_command_line(words)
    except RequestRefused as refused:
        return str(refused)
    return ""


@pytest.mark.parametrize(
    ("pattern", "advice"),
    [
        ("./keep", "write /keep, for a path below"),
        ("./keep/", "write /keep/, for"),
        ("a/./b", "write /a/b, for"),
        ("a//b", "write /a/b, for"),
        ("//a", "write /a, for"),
        ("../a", "patterns are for paths below"),
        ("a/..", "patterns are for paths below"),
        (".", "patterns are for paths below"),
        ("a\\", "a backslash before a slash or at the end"),
        ("a\\/b", "a backslash before a slash or at the end"),
        ("a[b", "a bracket is not closed"),
        ("[[:capital:]]", "there is no class [:capital:]"),
    ],
)
def test_pattern_that_is_no_path_below_the_root_is_refused(top: Path, pattern: str, advice: str) -> None:
    for option in ("--exclude", "--include"):
        reported = refusal(PRM, "--exclude=x", option, pattern, "run7")
        assert reported.startswith(f"{option}: ") and advice in reported, reported
    Path("patterns").write_text(f"*.o\n{pattern}\n")
    reported = refusal(PRM, "--exclude-from=patterns", "run7")
    assert "line 2: " in reported and advice in reported


@pytest.mark.parametrize("pattern", [".a", "...", "a..", "..a/b", "[.]a", "a/.b/..c", "\\ "])
def test_names_containing_dots_are_accepted(top: Path, pattern: str) -> None:
    assert not refusal(PRM, "--exclude", pattern, "run7")


def test_pattern_that_repeats_a_path_of_the_command_line_is_refused(top: Path) -> None:
    for path in ("run7", "./run7/", str(top / "run7"), "../" + top.name + "/run7", "link"):
        for pattern in (f"{top}/run7/keep", f"{top}/run\\7/keep"):
            reported = refusal(PRM, f"--exclude={pattern}", path)
            assert "--exclude" in reported and reported.endswith(f"are for paths below {path}: write /keep")
    for pattern in ("run7/keep", "/run7/keep"):
        assert refusal(PRM, f"--exclude={pattern}", "data", "run7").endswith("write /keep")
    assert refusal(PRM, f"--exclude={top}/run7", "run7").endswith("that item itself cannot be left out")
    assert "--include" in refusal(PVERIFY, "--exclude=*", f"--include={top}/data/*/", "data", "copy")
    for words in (["data/", "copy"], ["-T", "--mirror", "data", "copy"]):
        for place, path in (("data", words[-2]), ("copy", "copy")):
            reported = refusal(PCOPY, f"--exclude={top}/{place}/keep", *words)
            assert reported.endswith(f"are for paths below {path}: write /keep")


def test_pattern_starting_with_a_path_name_is_refused_when_deleting(top: Path) -> None:
    for words, is_refused in ((["--mirror"], True), (["--delete"], True), ([], False)):
        for pattern in ("copy/keep", "/data/keep"):
            assert bool(refusal(PCOPY, *words, f"--exclude={pattern}", "data/", "copy")) == is_refused


def test_pattern_starting_with_a_path_as_written_is_refused_when_deleting(top: Path) -> None:
    Path("run7/a/b").mkdir(parents=True)
    for pattern in ("run7/a/b/keep", "/run7/a/b/keep", "a/b/keep", "b/keep", f"{top.name}/run7/a/b/keep"):
        for path in ("run7/a/b", "./run7/a/b/", f"{top}/run7/a/b"):
            reported = refusal(PRM, f"--exclude={pattern}", path)
            assert reported.endswith(f"are for paths below {path}: write /keep")
    assert refusal(PCOPY, "--mirror", "--exclude=run7/a/keep", "run7/a/", "copy").endswith("below run7/a/: write /keep")
    assert not refusal(PRM, "--exclude=run7/a/keep", "run7/a/b")
    Path("run7/a/b/run7/a/b").mkdir(parents=True)
    assert not refusal(PRM, "--exclude=run7/a/b/keep", "run7/a/b")


def test_pattern_matching_an_existing_path_is_accepted(top: Path) -> None:
    for path in (top / "run7/run7", top / "copy/data", Path(f"{top}/run7{top}/run7")):
        path.mkdir(parents=True)
    assert not refusal(PRM, "--exclude=run7/keep", "run7")
    assert not refusal(PRM, f"--exclude={top}/run7/keep", "run7")
    assert not refusal(PCOPY, "--mirror", "--exclude=data/keep", "data/", "copy")
    for words in (["--exclude=run7", "run7"], ["--exclude=/run7", "run7"], ["--exclude=run77/keep", "run7"]):
        assert not refusal(PRM, *words)
    assert not refusal(PCOPY, f"--exclude={top}/copy/keep", "/", "copy")
