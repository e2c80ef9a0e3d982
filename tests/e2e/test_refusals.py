"""What is refused: status 2, one line that names the path, and nothing touched."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.support.command import pcopy, show
from tests.support.oracle import changes, snapshot

# Case: (arguments relative to the area, what the message must name).
CASES: dict[str, tuple[list[str], str]] = {
    "missing source": (["missing", "new"], "missing"),
    "missing source into a directory": (["missing", "empty"], "missing"),
    "missing contents": (["missing/", "new"], "missing"),
    "one of two sources missing": (["file", "missing", "empty"], "missing"),
    "file with a slash": (["file/", "new"], "file/"),
    "file with a slash into a directory": (["file/", "empty"], "file/"),
    "symlink to a file, with a slash": (["link-to-file/", "new"], "link-to-file"),
    "dangling symlink with a slash": (["dangling/", "new"], "dangling"),
    "file to an absent directory": (["file", "new/"], "new"),
    "parent of the target is missing": (["source", "no/new"], "no"),
    "parent of a file's target is missing": (["file", "no/new"], "no"),
    "parent is missing, contents": (["source/", "no/new"], "no"),
    "parent of the target is a file": (["source", "file/new"], "file"),
    "several sources, target absent": (["file", "source", "new"], "new"),
    "several sources, target a file": (["source", "other", "file"], "file"),
    "several sources, target dangling": (["file", "source", "dangling"], "dangling"),
    "equal basenames": (["source/inner", "other/inner", "empty"], "inner"),
    "same source twice": (["file", "file", "empty"], "file"),
    "directory to a file": (["source", "file"], "file"),
    "contents to a file": (["source/", "file"], "file"),
    "directory to a symlink to a file": (["source", "link-to-file"], "link-to-file"),
    "directory to a dangling symlink": (["source", "dangling"], "dangling"),
    "contents to a dangling symlink": (["source/", "dangling"], "dangling"),
    "no target directory, to a symlink to a file": (["-T", "source", "link-to-file"], "link-to-file"),
    "no target directory with several sources": (["-T", "file", "source", "empty"], ""),
    "hard link of the target": (["file", "hard-link"], "hard-link"),
    "hard link of the target, in a directory": (["other/file", "."], "file"),
    "source is the target, file": (["file", "file"], "file"),
    "source is the target, by its directory": (["file", "."], "file"),
    "source is the target, directory": (["source", "."], "source"),
    "source is the target, contents": (["source/", "source"], "source"),
    "source is the target, contents of dot": (["source/.", "source/"], "source"),
    "source is the target, -T": (["-T", "source", "source"], "source"),
    "source is the target, spelled otherwise": (["source/", "source/sub/.."], "source"),
    "source is the target, through a symlink": (["source/", "link-to-source"], "link-to-source"),
    "file is the target, through a symlink": (["source/inner", "link-to-source"], "inner"),
    "target inside the source": (["source", "source/new"], "source/new"),
    "target inside the source, existing": (["source", "source/sub"], "source/sub"),
    "target inside the source, deeper": (["source", "source/sub/new"], "source/sub/new"),
    "target inside the source, contents": (["source/", "source/sub"], "source/sub"),
    "target inside the source, contents to new": (["source/", "source/new"], "source/new"),
    "target inside the source, through a symlink": (["source/", "link-to-sub"], "link-to-sub"),
    "target inside the second source": (["other", "source", "source/sub"], "source/sub"),
    "directory into itself": (["source", "source"], "source"),
    "target inside dot": ([".", "source"], "source"),
}


@pytest.fixture
def place(area: Path) -> Path:
    for name in ("source/sub", "other", "empty"):
        (area / name).mkdir(parents=True)
    for name in ("file", "source/inner", "other/inner"):
        (area / name).write_bytes(name.encode())
    os.link(area / "file", area / "hard-link")
    os.link(area / "file", area / "other/file")
    targets = {"link-to-file": "file", "dangling": "nowhere", "link-to-source": "source", "link-to-sub": "source/sub"}
    for name, target in targets.items():
        (area / name).symlink_to(target)
    return area


@pytest.mark.parametrize("case", CASES)
def test_refused(place: Path, case: str) -> None:
    arguments, named = CASES[case]
    before = snapshot(place)
    run = pcopy(*arguments, cwd=place)
    assert run.returncode == 2, show(run)
    assert len(run.stderr.strip().splitlines()) == 1, show(run)
    assert named.encode() in run.stderr, show(run)
    assert b"Traceback" not in run.stderr, show(run)
    assert run.stdout == b"", show(run)
    assert changes(before, snapshot(place)) == []


def test_every_rank_under_mpi_is_refused_but_one_speaks(place: Path) -> None:
    before = snapshot(place)
    run = pcopy("missing", "new", cwd=place, launcher="mpi", ranks=3)
    assert run.returncode == 2, show(run)
    assert run.stderr.count(b"missing") == 1, show(run)
    assert changes(before, snapshot(place)) == []


def test_odd_names_are_shown_escaped(place: Path) -> None:
    """A newline or an escape sequence in a name must not reach the terminal."""
    run = pcopy(b"missing\n\x1b[2J\xff", "new", cwd=place)
    assert run.returncode == 2, show(run)
    assert len(run.stderr.strip().splitlines()) == 1, show(run)
    assert b"\x1b" not in run.stderr, show(run)
    assert b"\xff" not in run.stderr, show(run)
