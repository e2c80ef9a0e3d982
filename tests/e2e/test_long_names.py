"""Names that are far longer than the system allows: no program prints a message of that length.

Each operand or option may have up to 128 KiB; names in lists and archives may have up to 1 MiB.
"""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

from pcopy.text import MAX_MESSAGE_LENGTH
from tests.archive.test_types import END, header, item
from tests.support.command import pcopy, show
from tests.support.documented import PROGRAMS

LONG = "n" * 100_000
WORDS = {
    "pcopy": [LONG, "new"],
    "psync": [LONG, "new"],
    "pverify": [LONG, "tree"],
    "prm": ["-f", LONG],
    "pchmod": ["u+x", LONG],
    "ptar": ["-c", "-f", "new.tar", LONG],
    "pwalk": [LONG],
    "pstripe": [LONG],
    "pbcast": [LONG, "new"],
    "pdbench": [LONG],
}


def longest(lines: bytes) -> int:
    return max(map(len, lines.splitlines()), default=0)


@pytest.mark.parametrize("program", PROGRAMS)
def test_message_about_a_long_operand_is_shortened(area: Path, program: str) -> None:
    (area / "tree").mkdir()
    run = pcopy(*WORDS[program], program=program, ranks=None, cwd=area)
    assert run.returncode in (1, 2), show(run)
    assert b"nnn" in run.stderr and longest(run.stderr) <= MAX_MESSAGE_LENGTH


@pytest.mark.parametrize("how", ["-t", "-x"])
def test_message_about_a_long_member_is_shortened(area: Path, how: str) -> None:
    """A long name in GNU format of nearly 1 MiB: ``--errors`` has the full name, and the next member is extracted."""
    name = b"n" * ((1 << 20) - 100)
    (area / "a.tar").write_bytes(item(b"@", name, b"L") + header(b"short") + item(b"after", b"x\n") + END)
    (area / "there").mkdir()
    more = ["-C", "there", "--errors", "errors"] if how == "-x" else ["-q"]
    run = pcopy(how, "-f", "a.tar", *more, program="ptar", cwd=area)
    assert run.returncode == 1, show(run)
    assert b"nnn" in run.stderr and longest(run.stderr) <= MAX_MESSAGE_LENGTH
    assert run.stderr.endswith(b": its name has a part of more than 255 bytes\n"), show(run)
    if how == "-x":
        assert json.loads((area / "errors").read_bytes())["path"].endswith(name.decode())
        listed = subprocess.run(["ls", "-A", area / "there"], check=True, capture_output=True).stdout
        assert listed == b"after\n"


@pytest.mark.parametrize("program", ["pcopy", "prm", "pchmod", "pwalk", "pstripe"])
def test_message_about_a_long_line_of_a_list_is_shortened(area: Path, program: str) -> None:
    (area / "tree").mkdir()
    (area / "list").write_text("n" * 1_000_000 + "\n")
    words = {
        "pcopy": ["--files-from", "list", "tree/", "new"],
        "prm": ["-f", "--from", "list", "tree"],
        "pchmod": ["--from", "list", "u+x", "tree"],
        "pwalk": ["--from", "list", "tree"],
        "pstripe": ["--from", "list", "tree"],
    }[program]
    run = pcopy(*words, program=program, ranks=None, cwd=area)
    assert run.returncode in (0, 1, 2), show(run)
    assert longest(run.stderr) <= MAX_MESSAGE_LENGTH


def test_archive_whose_name_is_too_long_is_refused(area: Path) -> None:
    """Without the check the system would report it only when the complete archive is renamed."""
    (area / "tree").mkdir()
    run = pcopy("-c", "-f", area / ("n" * 256), "tree", program="ptar", cwd=area)
    assert run.returncode == 2 and b": cannot be created: File name too long; name another" in run.stderr, show(run)
    assert os.listdir(area) == ["tree"]
    run = pcopy("-c", "-f", area / ("n" * 255), "tree", program="ptar", cwd=area)
    assert run.returncode == 0, show(run)
