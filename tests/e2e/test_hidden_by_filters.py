"""Summaries report how many items filters excluded, and which configuration file sets the filters."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.support.command import Argument, pcopy, show

COMMANDS = {
    "pcopy": ("a/", "new"),
    "psync": ("a/", "new"),
    "pverify": ("a", "b"),
    "pverify SIGNATURE PATH": ("a.sig", "a"),
    "pverify --manifest": ("--manifest", "a.manifest", "a"),
    "pverify --create": ("--create", "new.sig", "a"),
    "pverify --compare": ("--compare", "type,content", "a", "b"),
    "ptar": ("-c", "-f", "new.tar", "a"),
    "pchmod": ("700", "a"),
    "prm": ("-f", "a"),
    "pwalk": ("--summary", "a"),
    "pcopy --dry-run": ("--dry-run", "a/", "new"),
    "psync --dry-run": ("--dry-run", "a/", "new"),
    "ptar -c --dry-run": ("-c", "--dry-run", "-f", "new.tar", "a"),
    "pchmod --dry-run": ("--dry-run", "700", "a"),
    "prm --dry-run": ("--dry-run", "a"),
    "ptar -x": ("-x", "-f", "a.tar", "-C", "b"),
    "ptar -x --dry-run": ("-x", "--dry-run", "-f", "a.tar", "-C", "b"),
    "ptar -x of a stream": ("-x", "-f", "a.tar.gz", "-C", "b"),
}
"""Programs, with the arguments of a command that reads the directory a or an archive of it."""

LISTS = {
    "pwalk": ("a",),
    "pwalk --json-lines": ("--json-lines", "a"),
    "ptar -t": ("-t", "-f", "a.tar"),
    "ptar -t --json": ("-t", "--json", "-f", "a.tar"),
    "ptar -t of a stream": ("-t", "-f", "a.tar.gz"),
    "ptar -t --signature": ("-t", "--signature", "new.sig", "-f", "a.tar"),
}
"""The same for commands that print a list and no summary."""


HIDDEN = {"pverify": 2}
"""The number of excluded items that a command reports, if not 1: ``pverify A B`` counts those of both trees."""


@pytest.fixture
def trees(tmp_path: Path) -> Path:
    """Directories a and b with two files each, one equal and one different; signature, manifest and archives of a.

    Signature and manifest do not contain the different file, which the filters exclude.
    """
    for side in ("a", "b"):
        (tmp_path / side).mkdir()
        (tmp_path / side / "same").write_bytes(b"same")
        (tmp_path / side / "hidden.pyc").write_text(side)
    made = ("--create", tmp_path / "a.sig", "--manifest", tmp_path / "a.manifest")
    run = pcopy(*made, "--exclude", "*.pyc", "-n", "1", tmp_path / "a", program="pverify")
    assert run.returncode == 0, show(run)
    for letters, name in (("-cf", "a.tar"), ("-czf", "a.tar.gz")):
        subprocess.run(["tar", letters, name, "a"], cwd=tmp_path, check=True)
    return tmp_path


@pytest.mark.parametrize("name", LISTS)
def test_list_names_file_that_set_filter_on_standard_error(name: str, trees: Path) -> None:
    """Filters on the command line are not reported, as by find and tar."""
    file, program = trees / "filters.yaml", name.split(maxsplit=1)[0]
    file.write_text('exclude: ["*.pyc"]\n')
    run = pcopy("--config", file, "-n", "1", *LISTS[name], program=program, cwd=trees)
    assert run.stderr == f"{program}: 1 item left out by filters ({file}:1)\n".encode(), show(run)
    assert run.returncode == 0 and b"same" in run.stdout and b"hidden" not in run.stdout, show(run)
    (trees / "new.sig").unlink(missing_ok=True)
    quiet = pcopy("-q", "--config", file, "-n", "1", *LISTS[name], program=program, cwd=trees)
    assert (quiet.returncode, quiet.stderr) == (0, b""), show(quiet)
    (trees / "new.sig").unlink(missing_ok=True)
    by_hand = pcopy("--exclude", "*.pyc", "-n", "1", *LISTS[name], program=program, cwd=trees)
    assert (by_hand.returncode, by_hand.stdout, by_hand.stderr) == (0, run.stdout, b""), show(by_hand)


def in_json(trees: Path, program: str, *words: Argument) -> dict[str, Any]:
    """The summary of another run."""
    run = pcopy("--json", *words, program=program, cwd=trees)
    assert run.returncode == 0, show(run)
    found: dict[str, Any] = json.loads(run.stdout.splitlines()[-1])
    return found


AGAIN = {"pverify --create": ("--force",)}
"""Options that allow a command to run a second time."""


@pytest.mark.parametrize("by_hand", [False, True])
@pytest.mark.parametrize("name", COMMANDS)
def test_summary_names_file_that_set_filter(name: str, by_hand: bool, trees: Path) -> None:
    file = trees / "filters.yaml"
    file.write_text('exclude: ["*.pyc"]\n')
    words = ["--config", file] if not by_hand else ["--exclude", "*.pyc"]
    words = [*words, "-n", "1"]
    program = name.split(maxsplit=1)[0]
    run = pcopy(*words, *COMMANDS[name], program=program, cwd=trees)
    reported = (run.stdout + run.stderr).decode()
    origin = re.escape("on the command line" if by_hand else f"{file}:1")
    number = HIDDEN.get(name, 1)
    items = rf"{number} (items?( of A and B together)? left out|excluded) by filters \({origin}\)"
    assert len(re.findall(items, reported)) == reported.count("by filters") == 1, show(run)
    assert run.returncode == 0, show(run)
    found = in_json(trees, program, *words, *COMMANDS[name], *AGAIN.get(name, ()))
    assert found["excluded"] == number and found["filters"] == ([] if by_hand else [f"{file}:1"])
    if program != "pverify":
        return
    is_verdict = "--create" not in name
    assert ("the same, but for " in reported) == is_verdict and ("together" in reported) == (number == 2), show(run)
    words += ["--force"] if not is_verdict else []
    quiet = pcopy("-q", *words, *COMMANDS[name], program=program, cwd=trees)
    assert (quiet.returncode, quiet.stdout, quiet.stderr) == (0, b"", b""), show(quiet)


def test_summary_of_extraction_counts_members_that_were_not_requested(trees: Path) -> None:
    """The message names all reasons for which members are left out: MEMBER, --from and filters."""
    run = pcopy("-c", "-q", "-f", "new.tar", "a", program="ptar", cwd=trees)
    assert run.returncode == 0, show(run)
    (trees / "list").write_text("a/same\n")
    for words in (["a/same"], ["-T", "list"]):
        run = pcopy("-x", "-n", "1", "-f", "new.tar", "-C", "b", *words, program="ptar", cwd=trees)
        assert run.returncode == 0, show(run)
        assert b"  2 items left out by MEMBER, --from or filters (on the command line)\n" in run.stdout, show(run)
