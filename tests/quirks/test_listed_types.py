"""Directories that list wrong types. A type is what the status of an item says: no program loses or misses an item."""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
from pathlib import Path

import pytest

from tests.support import native
from tests.support.command import pcopy, succeed
from tests.support.oracle import differences
from tests.support.preload import preloaded

WRONG = Path(__file__).with_name("types.c")


def make_tree(top: Path) -> None:
    for path in ("a/odd-directory/below", "a/odd-empty", "odd-top/a/odd-deep"):
        (top / path).mkdir(parents=True)
    for path in ("a/odd-file", "a/odd-directory/below/file", "odd-top/a/odd-deep/file"):
        (top / path).write_text(path)
    (top / "a/odd-link").symlink_to("odd-directory")
    os.mkfifo(top / "a/odd-fifo")


def paths_in(tree: Path) -> set[str]:
    found = subprocess.run(["find", ".", "-print0"], cwd=tree, check=True, capture_output=True, text=True).stdout
    return {path for path in found.split("\0") if path}


@pytest.fixture(params=["?", "f", "d", "l", "p"])
def environment(request: pytest.FixtureRequest) -> dict[str, str]:
    native.require()
    return {**preloaded(WRONG), "PCOPY_TEST_TYPE": request.param, "PCOPY_BACKEND": "c"}


@pytest.fixture
def tree(area: Path) -> Path:
    make_tree(area / "tree")
    return area / "tree"


@pytest.mark.parametrize("program", ["pcopy", "psync"])
def test_copy_is_complete(area: Path, tree: Path, environment: dict[str, str], program: str) -> None:
    copy = area / "copy"
    words = ("-T", tree, copy) if program == "pcopy" else (f"{tree}/", f"{copy}/")
    succeed("-q", "-n", "1", *words, program=program, env=environment)
    assert not differences(tree, copy)
    (tree / "odd-top/a/odd-deep/later").write_text("later")
    (tree / "a/odd-empty/later").mkdir()
    succeed("-q", "-n", "1", f"{tree}/", f"{copy}/", program="psync", env=environment)
    assert not differences(tree, copy)


def test_pattern_for_directories_excludes_directories(area: Path, tree: Path, environment: dict[str, str]) -> None:
    words = "--exclude=odd-*/", f"{tree}/"
    subprocess.run(["rsync", "-a", "--specials", *words, area / "expected"], check=True)
    succeed("-q", "-n", "1", *words, area / "copy", env=environment)
    assert paths_in(area / "copy") == paths_in(area / "expected")
    assert "./a/odd-file" in paths_in(area / "copy")


def test_tree_is_removed(tree: Path, environment: dict[str, str]) -> None:
    succeed("-q", "-n", "1", "--yes", "-r", tree, program="prm", env=environment)
    assert not os.path.lexists(tree)


def test_modes_are_changed(tree: Path, environment: dict[str, str]) -> None:
    succeed("-q", "-n", "1", "u=rwx,go=", tree, program="pchmod", env=environment)
    for path in paths_in(tree):
        status = os.lstat(tree / path)
        assert stat.S_ISLNK(status.st_mode) or stat.S_IMODE(status.st_mode) == 0o700, path


def test_archive_is_complete(area: Path, tree: Path, environment: dict[str, str]) -> None:
    succeed("-q", "-n", "1", "-cf", area / "archive.tar", "-C", tree, ".", program="ptar", env=environment)
    (area / "extracted").mkdir()
    subprocess.run(["tar", "-xpf", area / "archive.tar", "-C", area / "extracted"], check=True)
    assert not differences(tree, area / "extracted")


def test_comparison_sees_a_difference(area: Path, tree: Path, environment: dict[str, str]) -> None:
    copy = area / "copy"
    shutil.copytree(tree, copy, symlinks=True, ignore=shutil.ignore_patterns("odd-fifo"))
    os.mkfifo(copy / "a/odd-fifo")
    words = ("-q", "-n", "1", "--compare", "type,content", tree, copy)
    succeed(*words, program="pverify", env=environment)
    (copy / "odd-top/a/odd-deep/file").write_text("odd-top/a/odd-deep/f1le")
    run = pcopy(*words, program="pverify", env=environment)
    assert run.returncode == 1, run.stderr


def test_pverify_lists_all_differences(area: Path, tree: Path, environment: dict[str, str]) -> None:
    """Also those below a directory that only one tree has."""
    copy = area / "copy"
    make_tree(copy)
    words = ("-q", "-n", "1", tree, copy)
    succeed(*words, program="pverify", env=environment)
    (copy / "odd-top/a/odd-deep/file").write_text("odd-top/a/odd-deep/f1le")
    shutil.rmtree(copy / "a/odd-directory")
    run = pcopy(*words, program="pverify", env=environment)
    assert run.stdout.splitlines() == [
        b"missing a/odd-directory",
        b"missing a/odd-directory/below",
        b"missing a/odd-directory/below/file",
        b"changed odd-top/a/odd-deep/file",
    ], run.stderr
