"""``pwalk`` lists trees of several levels, which the backend walks by itself, as find(1) does."""

from __future__ import annotations

import base64
import json
import os
import shlex
import subprocess
from pathlib import Path

import pytest

from tests.support.command import pcopy, show

CHAIN, MANY, LARGE = 70, 300, 1100
"""Levels of a chain of directories, more than a row may have open; names of two directories that are listed by
themselves, one of them only if statuses are needed.
"""

EXPRESSIONS = (
    "",
    "-type f",
    "-type d",
    "-type f -type l",
    "-name 5",
    "-name 'a*' -type d",
    "-size +0",
    "-size -2 -type f",
    "-type f -size +0 -name '1*'",
    "-name 5 -size 0",
    "-perm 600",
    "-path '*/2/*' -size +0",
    "-not -name '[0-9]*' -links +2",
    "-name 5 -o -size +8",
    "-print -name 7 -print",
    "-mindepth 3",
    "-mindepth 4 -size +0",
    "-maxdepth 2",
    "-maxdepth 3 -type f -size +0",
    "-mindepth 2 -maxdepth 4 -type d",
    "-name b -prune -o -print",
    "-name b -prune -o -size +0 -print",
    "-type d -links 2 -prune -o -type f -print",
    "-path '*/chain/*' -prune -o -name '*e*' -print",
    "-empty",
    "-xdev -size +0",
)


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    top = tmp_path_factory.mktemp("subtrees") / "tree"
    for number in range(12):
        for path in ("a/b/c", "a/b/d/e", "f"):
            (top / f"{number}" / path).mkdir(parents=True)
        for path in ("1", "a/5", "a/b/5", "a/b/d/e/10", "f/new\nline"):
            (top / f"{number}" / path).write_bytes(bytes(number * 512))
        (top / f"{number}/a/5").chmod(0o600)
        (top / f"{number}/a/link").symlink_to("b")
    (top / "/".join(["chain"] * CHAIN)).mkdir(parents=True)
    for name, number in (("3/many", MANY), ("4/f/large", LARGE)):
        (top / name).mkdir()
        for each in range(number):
            (top / name / f"{each}").touch()
        (top / name / "a").mkdir()
        (top / name / "a/7").write_bytes(b"x")
    if os.geteuid() == 0:
        os.chown(top / "7/a/5", 1234, 4321)
    return top


def printed_by_find(tree: Path, expression: str, form: str) -> bytes:
    """Return what find(1) prints with -printf ``form`` in place of each -print, or for each item that it selects."""
    words = shlex.split(expression)
    if "-print" not in words:
        words = [*(["(", *words, ")"] if words else []), "-print"]
    given = [part for word in words for part in (["-printf", form] if word == "-print" else [word])]
    return subprocess.run(["find", "tree", *given], cwd=tree.parent, check=True, capture_output=True).stdout


@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("expression", EXPRESSIONS)
def test_items_and_statuses_are_those_of_find(tree: Path, expression: str, ranks: int) -> None:
    words = ("-q", "--json-lines", "--fields=size,mode,inode,links", "tree", *shlex.split(expression))
    run = pcopy(*words, program="pwalk", ranks=ranks, cwd=tree.parent)
    assert (run.returncode, run.stderr) == (0, b""), show(run)
    letters = {"file": "f", "directory": "d", "symlink": "l"}
    listed = [
        "\0".join(
            (
                base64.b64decode(row["path_b64"]).decode() if "path_b64" in row else row["path"],
                *(letters[row["type"]], str(row["size"]), f"{int(row['mode'], 8):o}"),
                *(str(row["inode"]), str(row["links"]), ""),
            )
        )
        for row in map(json.loads, run.stdout.splitlines()[1:])
    ]
    printed = printed_by_find(tree, expression, "%p\\0%y\\0%s\\0%m\\0%i\\0%n\\0\1").decode()
    assert sorted(listed) == sorted(printed.split("\1")[:-1])


@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("expression", EXPRESSIONS)
def test_paths_and_counts_are_those_of_find(tree: Path, tmp_path: Path, expression: str, ranks: int) -> None:
    words = shlex.split(expression)
    run = pcopy("-q", "--print0", "tree", *words, program="pwalk", ranks=ranks, cwd=tree.parent)
    assert (run.returncode, run.stderr) == (0, b""), show(run)
    paths = printed_by_find(tree, expression, "%p\\0").split(b"\0")
    assert sorted(run.stdout.split(b"\0")) == sorted(paths)
    output = ("--output", tmp_path / "list.jsonl", "--json")
    run = pcopy(*output, "tree", *words, program="pwalk", ranks=ranks, cwd=tree.parent)
    assert (run.returncode, run.stderr) == (0, b""), show(run)
    paths.pop()
    reported = json.loads(run.stdout)
    assert reported["found"] == reported["skipped"] + len(set(paths))
    if not {"-prune", "-maxdepth"} & {*words}:
        everything = printed_by_find(tree, "", "x")
        assert reported["found"] == len(everything)


@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize(
    ("filters", "expression"),
    [
        (("--exclude=b",), "-name b -prune -o"),
        (("--exclude=5", "--exclude=/4/f"), "-name 5 -prune -o -path tree/4/f -prune -o"),
        (("--larger-than=1k",), "( -type l -o -type f -size +2 )"),
    ],
)
@pytest.mark.parametrize("tests", ["", "-size +0"])
def test_filters_select_what_find_selects(
    tree: Path, filters: tuple[str, ...], expression: str, tests: str, ranks: int
) -> None:
    words = ("-q", *filters, "tree", *shlex.split(tests), "-print0")
    run = pcopy(*words, program="pwalk", ranks=ranks, cwd=tree.parent)
    assert (run.returncode, run.stderr) == (0, b""), show(run)
    paths = printed_by_find(tree, f"{expression} {tests} -print", "%p\\0").split(b"\0")
    assert sorted(run.stdout.split(b"\0")) == sorted(paths)
