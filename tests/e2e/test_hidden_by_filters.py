"""A summary names what filters of a configuration file left out."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.support.command import pcopy, show

COMMANDS = {
    "pcopy": ("a/", "new"),
    "psync": ("a/", "new"),
    "pverify": ("a", "b"),
    "pverify --compare": ("--compare", "type,content", "a", "b"),
    "ptar": ("-c", "-f", "new.tar", "a"),
    "pchmod": ("700", "a"),
    "prm": ("-f", "a"),
}
"""Programs, with the words of a command that goes through the directory a."""


@pytest.mark.parametrize("by_hand", [False, True])
@pytest.mark.parametrize("name", COMMANDS)
def test_summary_names_file_that_set_filter(name: str, by_hand: bool, tmp_path: Path) -> None:
    for side in ("a", "b"):
        (tmp_path / side).mkdir()
        (tmp_path / side / "same").write_bytes(b"same")
        (tmp_path / side / "hidden.pyc").write_text(side)
    file = tmp_path / "filters.yaml"
    file.write_text('exclude: ["*.pyc"]\n')
    words = ["--config", file] if not by_hand else ["--exclude", "*.pyc"]
    words = [*words, "-n", "1"]
    run = pcopy(*words, *COMMANDS[name], program=name.split(maxsplit=1)[0], cwd=tmp_path)
    told = (run.stdout + run.stderr).decode()
    assert f"left out by filters ({'on the command line' if by_hand else f'{file}:1'})" in told, show(run)
    if name.startswith("pverify"):
        assert run.returncode == 0 and "the same, but for " in told, show(run)
        quiet = pcopy("-q", *words, *COMMANDS[name], program="pverify", cwd=tmp_path)
        assert (quiet.returncode, quiet.stdout, quiet.stderr) == (0, b"", b""), show(quiet)
        run = pcopy("--json", *words, *COMMANDS[name], program="pverify", cwd=tmp_path)
        found = json.loads(run.stdout.splitlines()[-1])
        assert found["excluded"] and found["filters"] == ([] if by_hand else [f"{file}:1"])
