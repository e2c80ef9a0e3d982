"""``pverify A B`` counts an item of A and its counterpart in B once, and refuses a directory and a file in one line."""

from __future__ import annotations

import json
import os
import re
import subprocess
from pathlib import Path

import pytest

from tests.support.command import pverify, show
from tests.support.faults import READS, Fault
from tests.support.trees import random_tree

MIB = 1 << 20


@pytest.fixture(scope="module")
def place(session_scratch: Path) -> Path:
    """Return a directory with equal trees ``a`` and ``b``, and a tree ``c`` with one more file of 3 MiB."""
    path = session_scratch / "pairs"
    path.mkdir()
    random_tree(path / "a", 35, files=40, directories=8, largest=4 * MIB, privileged=False)
    for other in "bc":
        subprocess.run(["cp", "-a", path / "a", path / other], check=True)
    (path / "c/more").write_bytes(bytes(3 * MIB))
    return path


def size_text(number: int) -> str:
    return f"{number / MIB:.1f} MiB" if number < 100 * MIB else f"{number / MIB:.0f} MiB"


def counted(tree: Path, *but: str) -> tuple[int, int]:
    """Return the items and the bytes of files in ``tree``, as find(1) counts them with the tests ``but``.

    pverify does not count sockets as read, because they have no contents.
    """
    find = ["find", str(tree), *but, "-printf", "%y %s\n"]
    out = subprocess.run(find, check=True, capture_output=True).stdout.split(b"\n")[:-1]
    return len(out), sum(int(line.split()[1]) for line in out if line[:1] == b"f")


@pytest.mark.parametrize("ranks", [1, 3])
def test_equal_trees_are_counted_once(place: Path, ranks: int) -> None:
    (items, size), (found, _) = counted(place / "a", "!", "-type", "s"), counted(place / "a")
    slowly = ("--bwlimit", "12M", "--progress", "plain", "--progress-interval", "0.05")
    run = pverify(*slowly, place / "a", place / "b", ranks=ranks)
    text = run.stderr.decode()
    assert run.returncode == 0, show(run)
    assert f"pverify: {items:,} items of {size_text(size)} in " in text, text
    progress = re.findall(r"read: .*?(\d+) of (\d+) items?, (\S+ \S+) of (\S+ \S+), ", text)
    assert progress and max(int(total) for _, total, *_ in progress) == found, text
    assert all(int(done) <= int(total) for done, total, *_ in progress), text


def test_different_trees_are_counted_separately(place: Path) -> None:
    (items, size), (others, other_size) = (counted(place / tree, "!", "-type", "s") for tree in "ac")
    run = pverify(place / "a", place / "c")
    expected = f"{items:,} items of {size_text(size)} in A and {others:,} items of {size_text(other_size)} in B, in "
    assert run.returncode == 1 and expected in run.stderr.decode(), show(run)


def test_unreadable_item_is_one_of_both_trees_together(place: Path) -> None:
    file = next(path for path in sorted((place / "a").rglob("*")) if path.is_file() and path.stat().st_size > 2 * MIB)
    fault = Fault(place / "log", READS, file, "EIO", when="1+")
    run = pverify(place / "a", place / "b", wrap=fault.wrap())
    expected = f"{2 * counted(place / 'a')[0]:,} items of A and B together could not be read: the result is unknown"
    assert run.returncode == 2 and expected in run.stderr.decode(), show(run)


def test_json_counts_both_sides_as_documented(place: Path) -> None:
    run = pverify("--json", place / "a", place / "b")
    assert json.loads(run.stdout)["bytes"] == 2 * counted(place / "a")[1]


@pytest.mark.parametrize("slash", ["", "/"])
def test_directory_and_file_are_refused_in_one_line(area: Path, slash: str) -> None:
    (area / "tree/below").mkdir(parents=True)
    (area / "tree/file").write_text("x")
    (area / "other").write_text("x")
    os.mkfifo(area / "pipe")
    first = f"{area}/tree{slash}"
    advice = "name two directories, two files, or a signature (or --manifest MANIFEST) and what is compared with it"
    for other, kind in {"other": "a file", "tree/file": "a file", "pipe": "no regular file"}.items():
        run = pverify(first, area / other)
        line = f"pverify: {first} is a directory, and {area}/{other} is {kind}; {advice}\n"
        assert (run.returncode, run.stdout, run.stderr.decode()) == (2, b"", line)
    for other in ("other", "tree/file"):
        run = pverify(area / other, first)
        line = (
            f"pverify: {area}/{other} is a file, and {first} is a directory, and {area}/{other} is no signature (it is "
            f"not a mapping of keys to values); {advice}\n"
        )
        assert (run.returncode, run.stdout, run.stderr.decode()) == (2, b"", line)
