"""A file system that reports 0 blocks has an unknown size (FUSE, /proc): it is not treated as full."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from bench.latency import can_mount
from tests.support.command import pcopy, show
from tests.support.quirks import quirky

pytestmark = pytest.mark.skipif(not can_mount(), reason="it takes root and libfuse3-dev")

PROGRAMS = {
    "pcopy": ("{source}/", "{there}/copy"),
    "psync": ("{source}/", "{there}/copy"),
    "pcopy --dry-run": ("--dry-run", "{source}/", "{there}/copy"),
    "ptar": ("-x", "-f", "{packed}", "-C", "{there}/copy"),
    "ptar --dry-run": ("-x", "--dry-run", "-f", "{packed}", "-C", "{there}"),
    "pbcast": ("{source}/file", "{there}/copy"),
    "pbcast --dry-run": ("--dry-run", "{source}/file", "{there}"),
    "pdbench": ("--files", "2", "--size", "64K", "--time", "0.01", "--tests", "write", "{there}"),
}
MADE_BEFORE = ("ptar", "pbcast")


@pytest.mark.parametrize("command", PROGRAMS)
def test_unknown_free_space_is_not_treated_as_full(area: Path, command: str) -> None:
    source, packed, backing = area / "source", area / "packed.tar.gz", area / "backing"
    source.mkdir()
    backing.mkdir()
    (source / "file").write_bytes(os.urandom(3 << 20))
    subprocess.run(
        ["tar", "-czf", packed, "-C", source, "."], check=True
    )  # one compressed stream, for which ptar reserves space
    with quirky(backing, "no_blocks") as mounted:
        if command in MADE_BEFORE:
            (mounted / "copy").mkdir()
        places = {"source": source, "there": mounted, "packed": packed}
        words = [word.format(**places) for word in PROGRAMS[command]]
        done = pcopy(*words, program=command.split(maxsplit=1)[0])
    assert done.returncode == 0, show(done)
    said = (done.stdout + done.stderr).decode()
    assert "0 B are free" not in said
    assert "too little" not in said
    if "copy" in os.listdir(backing):
        assert (backing / "copy/file").read_bytes() == (source / "file").read_bytes()
    else:
        assert command not in ("pcopy", "psync", *MADE_BEFORE)
        assert "free on" not in said
