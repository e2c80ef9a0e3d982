"""Lists of paths that one program writes and another reads: exact selection, and refusal of other input."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.support.command import Argument, pcopy
from tests.support.files import write


@pytest.fixture
def tree(area: Path) -> Path:
    tree = area / "doc"
    (tree / "sub/empty").mkdir(parents=True)
    write(tree / "sub/large", bytes(200_000))
    write(tree / "sub/small", bytes(3))
    write(tree / "nothing", bytes(0))
    return tree


def found(tree: Path, *tests: str) -> list[str]:
    """Return the paths that find(1) prints for a tree, sorted."""
    run = subprocess.run(["find", tree.name, *tests], cwd=tree.parent, check=True, capture_output=True, text=True)
    return sorted(run.stdout.splitlines())


class Output(NamedTuple):
    returncode: int
    stdout: str
    stderr: str


def run(program: str, *words: Argument, area: Path, ranks: int = 1) -> Output:
    reported = pcopy(*words, program=program, cwd=area, ranks=ranks)
    return Output(reported.returncode, os.fsdecode(reported.stdout), os.fsdecode(reported.stderr))


def test_filters_by_size_and_age_select_only_files(tree: Path, area: Path) -> None:
    """A listed directory would include all its items, so these filters list files only."""
    reported = run("pwalk", "--larger-than", "100K", "doc", area=area)
    assert reported.stdout.splitlines() == found(tree, "-type", "f", "-size", "+100k"), reported
    reported = run("pwalk", "--older-than", "0s", "doc", "-name", "sub", "-prune", "-o", "-print", area=area, ranks=2)
    assert reported.stdout.splitlines() == ["doc/nothing"], reported
    reported = run("pwalk", "--exclude", "large", "doc", area=area)
    assert sorted(reported.stdout.splitlines()) == found(tree, "!", "-name", "large")
    run("pwalk", "-q", "--larger-than", "100K", "--output", "big.jsonl", "doc", area=area)
    copied = run("pcopy", "--files-from", "big.jsonl", "doc/", "copy", area=area)
    assert copied.returncode == 0, copied
    (area / "copy").rename(area / "there")
    assert found(area / "there", "-type", "f") == ["there/sub/large"]


def test_name_with_newline_is_not_written_to_a_list_of_lines(tree: Path, area: Path) -> None:
    write(tree / "new\nline", bytes(1))
    (area / "old.lst").touch()
    for words in ([], ["--sort", "path"]):
        reported = run(
            "pwalk", "-q", "--output", "old.lst", "--output", "other.jsonl", *words, "doc", area=area, ranks=2
        )
        assert (
            reported.returncode == 2 and "doc/new\\nline has a newline in it; use --print0, which" in reported.stderr
        ), reported
        assert sorted(os.listdir(area)) == ["doc", "old.lst"] and not (area / "old.lst").read_bytes()
    assert run("pwalk", "-q", "--print0", "--output", "old.lst", "doc", area=area).returncode == 0
    assert b"doc/new\nline\0" in (area / "old.lst").read_bytes()


def test_input_that_is_not_a_list_of_paths_is_refused(tree: Path, area: Path) -> None:
    """Lists whose paths start in another directory than the program assumes are refused as well."""
    run("pwalk", "-q", "-o", "a.csv", "-o", "a.lst", "doc", "-type", "f", area=area)
    subprocess.run(["tar", "--format=pax", "-cf", "a.tar", "doc"], cwd=area, check=True)
    (area / "lines").write_text(run("ptar", "-t", "--json", "-f", "a.tar", area=area).stdout)
    cases: dict[tuple[str, ...], str] = {
        ("pcopy", "--files-from", "a.csv", "doc", "copy"): "a.csv: is CSV, not a list of paths; write a list",
        ("prm", "--yes", "--from", "a.csv"): "a.csv: is CSV",
        ("pwalk", "--from", "lines"): "lines: is JSON without the first line of a saved listing",
        ("pchmod", "--from", "a.tar", "0"): "a.tar: line 1: ",
        ("pcopy", "--files-from", "a.lst", "doc/", "copy"): "starts in the working directory: write ",
        ("prm", "--yes", "--from", "a.lst", "doc"): "starts in the working directory: write ",
    }
    for (program, *words), line in cases.items():
        reported = run(program, *words, area=area)
        assert reported.returncode == 2 and line in reported.stderr and len(reported.stderr) < 400, reported
    assert len(found(tree)) == 6 and not (area / "copy").exists()


def test_lists_with_carriage_returns_are_read_or_refused(tree: Path, area: Path) -> None:
    write(tree / "kept\r", bytes(1))
    (area / "list").write_bytes(b"sub/small\r\n\r\nkept\r\nnothing\n")
    below = [b"doc/sub/small", b"doc/kept\r", b"doc/nothing"]
    reported = run("pwalk", "--print0", "--from", "list", "doc", area=area)
    assert reported.returncode == 0 and sorted(os.fsencode(reported.stdout).split(b"\0")) == sorted([*below, b""]), (
        reported
    )
    before = found(tree, "-printf", "%p %m\n")
    for program, *words in ("pchmod", "--from", "list", "0600", "doc"), ("prm", "--yes", "-f", "--from", "list", "doc"):
        reported = run(program, *words, area=area)
        assert (
            reported.returncode == 2
            and "list: line 1: sub/small\\r does not exist, sub/small exists: if" in reported.stderr
        ), reported
    assert found(tree, "-printf", "%p %m\n") == before
    (area / "list").write_bytes(b"sub/small\n\r\nkept\r\nnothing\n")
    assert run("pchmod", "--from", "list", "0600", "doc", area=area).returncode == 0
    assert all(os.stat(area / os.fsdecode(path)).st_mode & 0o7777 == 0o600 for path in below)
    assert run("prm", "--yes", "--from", "list", "doc", area=area).returncode == 0
    assert found(tree, "-type", "f") == ["doc/sub/large"]


def test_name_without_carriage_return_is_not_removed_by_a_second_run(tree: Path, area: Path) -> None:
    """A second run with the same list must not remove ``nothing`` instead of the removed ``nothing\\r``."""
    write(tree / "nothing\r", b"")
    (area / "list").write_bytes(b"doc/nothing\r\n")
    assert subprocess.check_output(["find", "doc", "-name", "*\r"], cwd=area) == (area / "list").read_bytes()
    first, second = (run("prm", "--yes", "-f", "--from", "list", area=area) for _ in range(2))
    assert (first.returncode, second.returncode) == (0, 2), (first, second)
    assert os.path.exists(tree / "nothing") and not os.path.exists(tree / "nothing\r")
    (tree / "nothing").unlink()
    assert run("prm", "--yes", "-f", "--from", "list", area=area).returncode == 0
    assert run("prm", "--yes", "--from", "list", area=area).returncode == 1


def test_pwalk_reads_a_list_relative_to_a_directory(tree: Path, area: Path) -> None:
    """prm and pchmod do so, too. Tests apply to listed items; with a saved listing only directories are read again."""
    (area / "list").write_text("sub\nsub/small\n")
    reported = run("pwalk", "--from", "list", "doc", "-type", "f", area=area)
    assert reported.stdout == "doc/sub/small\n", reported
    (area / "list").write_text("sub\n../list\n")
    reported = run("pwalk", "--from", "list", "doc", area=area)
    assert "line 2: ../list does not lie in doc" in reported.stderr, reported
    run("pwalk", "-q", "--output", "all.jsonl", "doc", area=area)
    reported = run("pwalk", "--from", "all.jsonl", "doc/sub", area=area)
    assert "does not lie in doc/sub" in reported.stderr, reported
    os.truncate(tree / "nothing", 5)  # the saved listing still has the old size
    wanted = sorted([*found(tree, "-empty"), "doc/nothing"])
    reported = run("pwalk", "--from", "all.jsonl", "doc", "-empty", area=area, ranks=2)
    assert reported.returncode == 0 and sorted(reported.stdout.splitlines()) == wanted, reported


def test_ptar_suggests_a_command_for_an_archive_that_it_cannot_read(tree: Path, area: Path) -> None:
    (area / "a.tar.xz").write_bytes(b"\xfd7zXZ\0" + bytes(506))
    for words, advice in ((("-t",), "tar -t"), (("-x", "-C", "doc", "sub"), "tar -x -C doc sub")):
        reported = run("ptar", "-f", "a.tar.xz", *words, area=area)
        assert reported.returncode == 2 and reported.stderr.endswith(f"/a.tar.xz | {advice}\n"), reported
    reported = run("ptar", "-c", "-f", "b.tar.gz", "doc", area=area)
    assert reported.returncode == 0 and "b.tar.gz: compressed with gzip, as the name says" in reported.stderr, reported
    reported = run("ptar", "-x", "-f", "b.tar.gz", "do*", area=area)
    assert reported.returncode == 1 and "they are names, not patterns" in reported.stderr, reported
