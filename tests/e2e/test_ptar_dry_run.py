"""``ptar --dry-run`` lists what would be archived or unpacked, and changes nothing."""

from __future__ import annotations

import json
import os
import re
import subprocess
import tarfile
from pathlib import Path

import pytest

from tests.support.archives import MIB, made_of, member, ptar, small_file_system
from tests.support.command import show


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    tree = tmp_path / "tree"
    for number in range(300):
        file = tree / f"{number % 7}/{number % 5}/file {number}"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(b"x" * (number**2))
    (tree / "empty").touch()
    os.mkfifo(tree / "fifo")
    (tree / "large").write_bytes(b"x" * (9 * MIB))
    os.link(tree / "large", tree / "another name")
    (tree / "to").symlink_to("nowhere")
    return tree


def state_of(place: Path) -> bytes:
    """Return all metadata of the tree except access times."""
    words = ["find", str(place), "-printf", "%p %y %i %n %m %U %G %s %T@ %C@ %l\\0"]
    return b"\0".join(sorted(subprocess.run(words, check=True, capture_output=True).stdout.split(b"\0")))


def listed(stdout: bytes) -> dict[str, str]:
    """Return the predicted actions by path."""
    lines = stdout.decode().splitlines()
    found = [re.fullmatch(r"(copy|replace|meta) (?:[a-z,]+ )?([/t].*)", line) for line in lines]
    return {match[2]: match[1] for match in found if match}


@pytest.mark.parametrize("words", [(), ("--zstd",), ("--signature", "tree.sig", "--resume")])
@pytest.mark.parametrize("ranks", [1, 3])
def test_archive_dry_run_lists_all_items_and_changes_nothing(ranks: int, words: tuple[str, ...], tree: Path) -> None:
    if "--zstd" in words:
        pytest.importorskip("zstandard")
    around = tree.parent
    before = state_of(around)
    run = ptar("-c", "-f", "a.tar", "--dry-run", "--exclude", "empty", *words, "tree", cwd=around, ranks=ranks)
    assert (run.returncode, run.stderr) == (0, b""), show(run)
    assert state_of(around) == before
    find = ["find", "tree", "!", "-path", "tree/empty"]
    found = subprocess.run(find, cwd=around, check=True, capture_output=True, text=True)
    assert sorted(listed(run.stdout)) == sorted(found.stdout.splitlines())
    real = ptar("-c", "-q", "--json", "-f", "a.tar", "--exclude", "empty", "tree", cwd=around, ranks=2)
    again = ptar("-c", "-f", "a.tar", "--dry-run", "--json", "--exclude", "empty", *words, "tree", cwd=around)
    reported, wanted = json.loads(again.stdout), json.loads(real.stdout)
    same = (
        "found",
        "files",
        "directories",
        "symlinks",
        "special",
        "hardlinks",
        "bytes",
        "skipped",
        "failed",
        "archive",
    )
    assert [reported[key] for key in same] == [wanted[key] for key in same]
    assert (reported["dry_run"], wanted["dry_run"]) == (True, False)


@pytest.mark.parametrize("ranks", [1, 3])
def test_unpack_dry_run_lists_all_items_and_changes_nothing(ranks: int, tree: Path, tmp_path: Path) -> None:
    subprocess.run(["tar", "--format=pax", "-cf", "a.tar", "tree"], cwd=tmp_path, check=True)
    out = tmp_path / "out"
    (out / "tree").mkdir(parents=True)
    (out / "tree/large").write_bytes(b"mine")
    (out / "tree/to").symlink_to("elsewhere")
    before = state_of(out)
    run = ptar("-x", "-f", tmp_path / "a.tar", "-C", out, "--dry-run", cwd=tmp_path, ranks=ranks)
    assert (run.returncode, run.stderr) == (0, b""), show(run)
    assert state_of(out) == before
    names = subprocess.run(["tar", "-tf", tmp_path / "a.tar"], check=True, capture_output=True).stdout.splitlines()
    reported = listed(run.stdout)
    assert len(reported) == len(names)
    assert {path for path, word in reported.items() if word == "replace"} == {f"{out}/tree/large", f"{out}/tree/to"}
    assert {path for path, word in reported.items() if word == "meta"} == {f"{out}/tree"}
    words = ("-x", "--json", "-f", tmp_path / "a.tar", "-C", out)
    foreseen = json.loads(ptar(*words, "--dry-run", cwd=tmp_path, ranks=ranks).stdout)
    done = json.loads(ptar(*words, cwd=tmp_path, ranks=ranks).stdout)
    same = ("found", "files", "directories", "symlinks", "special", "hardlinks", "bytes", "skipped", "failed")
    assert [foreseen[key] for key in same] == [done[key] for key in same]


def test_dry_run_fails_for_members_that_would_fail(tmp_path: Path) -> None:
    archive = made_of(tmp_path / "a.tar", [member("../out"), member("in"), member("twice"), member("twice", b"last")])
    (tmp_path / "to").mkdir()
    run = ptar("-x", "--dry-run", "-f", archive, "-C", tmp_path / "to", cwd=tmp_path)
    assert run.returncode == 1 and b"../out" in run.stderr, show(run)
    assert sorted(listed(run.stdout)) == [f"{tmp_path}/to/in", f"{tmp_path}/to/twice"]
    assert b"4 found = 2 would be unpacked + 1 left out + 1 failed" in run.stdout
    assert not os.listdir(tmp_path / "to")


def test_dry_run_reports_the_space_needed(tmp_path: Path) -> None:
    (tmp_path / "large").write_bytes(os.urandom(3 * MIB))
    with tarfile.open(tmp_path / "a.tar", "w") as archive:
        archive.add(tmp_path / "large", "large")
    with small_file_system(tmp_path / "small", 2) as small:
        for words in (("-c", "-f", small / "b.tar", "large"), ("-x", "-f", "a.tar", "-C", small)):
            run = ptar("--dry-run", *words, cwd=tmp_path)
            assert run.returncode == 0 and b"MiB are needed" in run.stdout, show(run)
            assert not os.listdir(small)


def test_listing_has_no_dry_run(tmp_path: Path) -> None:
    made_of(tmp_path / "a.tar", [member("in")])
    run = ptar("-t", "--dry-run", "-f", "a.tar", cwd=tmp_path)
    assert run.returncode == 2 and run.stderr.startswith(b"ptar: --dry-run can only be given with -c or -x"), show(run)
