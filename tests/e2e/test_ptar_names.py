"""``ptar -v`` prints the names of members as GNU tar does, and nothing else on standard output."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.archives import ptar
from tests.support.command import RUN, Completed, show

SPELLINGS = ("data", "data/", "./data", "data/sub", "../top/data", "TOP/data", ".", "data/file")
"""Ways to name what is archived; TOP stands for the absolute path of the directory."""


ENVIRONMENT = {**os.environ, "TERM": "xterm", "PYTHONPATH": str(Path(__file__).resolve().parents[2])}
RUN_PTAR = shlex.join([sys.executable, *RUN["ptar"]])


@pytest.fixture
def top(tmp_path: Path) -> Path:
    """The directory ``top`` with a tree of all types of items; only this tree is in it."""
    top = tmp_path / "top"
    data = top / "data"
    (data / "sub" / "empty").mkdir(parents=True)
    (data / "file").write_bytes(b"contents")
    (data / "sub" / "large").write_bytes(b"x" * (3 << 20))
    os.link(data / "file", data / "sub" / "another name")
    (data / "link").symlink_to("file")
    (data / "to a directory").symlink_to("sub")
    os.mkfifo(data / "fifo")
    (data / "new\nline").touch()
    return top


def tar(*words: str | Path, cwd: Path) -> list[str]:
    done = subprocess.run(["tar", "--sort=name", *words], cwd=cwd, check=True, capture_output=True, text=True)
    return sorted(done.stdout.splitlines())


def names(run: Completed) -> list[str]:
    assert run.returncode == 0, show(run)
    return sorted(run.stdout.decode().splitlines())


@pytest.mark.parametrize("ranks", [1, 3])
@pytest.mark.parametrize("given", SPELLINGS)
def test_names_are_those_of_tar(given: str, ranks: int, top: Path, tmp_path: Path) -> None:
    path = given.replace("TOP", str(top))
    ours, theirs = tmp_path / "ours.tar", tmp_path / "theirs.tar"
    archived = ptar("-cvf", ours, path, ranks=ranks, cwd=top)
    assert names(archived) == tar("-cvf", theirs, path, cwd=top)
    assert b"archived" in archived.stderr and b"backend" not in archived.stderr, show(archived)
    for archive in (ours, theirs):
        for number, words in enumerate(((), ("-C", "below"))):
            one, other = tmp_path / f"{archive.stem}-ptar-{number}", tmp_path / f"{archive.stem}-tar-{number}"
            for place in (one, other):
                (place / "below").mkdir(parents=True)
            unpacked = ptar("-xvf", archive, *words, ranks=ranks, cwd=one)
            listed = tar("-xvf", archive, "--show-transformed-names", *words, cwd=other)
            assert names(unpacked) == listed
            assert b"unpacked" in unpacked.stderr and b"backend" not in unpacked.stderr, show(unpacked)


def test_listed_paths_are_printed_as_by_tar(top: Path, tmp_path: Path) -> None:
    (tmp_path / "list").write_text("data/sub\ndata/file\n")
    words = ("-C", top, "-T", tmp_path / "list")
    ours = names(ptar("-c", "-v", "-f", tmp_path / "ours.tar", *words, cwd=tmp_path))
    assert ours == tar("-cvf", tmp_path / "theirs.tar", *words, cwd=tmp_path)


def test_two_letters_add_phases_on_standard_error(top: Path) -> None:
    once, twice = (names(ptar(f"-c{'v' * number}f", "../a.tar", "data", cwd=top)) for number in (1, 2))
    assert once == twice
    run = ptar("-cvvf", "../a.tar", "data", cwd=top)
    assert b"backend" in run.stderr and b"phase copy" in run.stderr, show(run)


def test_json_is_alone_on_standard_output(top: Path) -> None:
    run = ptar("-cvf", "../a.tar", "data", "--json", "--progress", "none", cwd=top)
    assert json.loads(run.stdout)["failed"] == 0
    assert sorted(run.stderr.decode().splitlines()) == tar("-cvf", "../b.tar", "data", cwd=top)


def test_quiet_prints_no_names(top: Path) -> None:
    run = ptar("-cqvf", "../a.tar", "data", cwd=top)
    assert (run.returncode, run.stdout, run.stderr) == (0, b"", b"")


def test_failed_items_are_not_among_the_names(top: Path, tmp_path: Path) -> None:
    subprocess.run(["tar", "-cf", tmp_path / "a.tar", "data"], cwd=top, check=True)
    out = tmp_path / "out"
    (out / "data/link/full").mkdir(parents=True)
    run = ptar("-xvf", tmp_path / "a.tar", cwd=out)
    assert run.returncode == 1, show(run)
    printed = run.stdout.decode().splitlines()
    assert "data/link" not in printed and "data/file" in printed
    assert b"data/link: " in run.stderr, show(run)


def test_terminal_shows_names_without_a_bar(top: Path) -> None:
    """A bar on the same terminal would stand between the names."""
    line = f"{RUN_PTAR} -cvf ../a.tar data --progress-interval 0.0001"
    run = subprocess.run(
        ["script", "-qec", line, "/dev/null"], cwd=top, env=ENVIRONMENT, capture_output=True, check=True
    )
    shown = run.stdout
    assert b"data/sub/large\r\n" in shown
    assert b"\x1b" not in shown
