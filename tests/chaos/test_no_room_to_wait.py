"""No room for what does not fit into memory, beside the queue: names of one inode, entries of a signature, joins."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.chaos.unfinished import REFUSED, STOPPED
from tests.support.command import Completed, command, pcopy, pverify, show, succeed
from tests.support.filesystems import mounted, scratch
from tests.support.oracle import differences
from tests.support.users import require_root

NAMES = 16000
"""Names of one inode whose notes are more than a spool keeps in memory."""


@pytest.fixture(scope="module")
def linked() -> Iterator[Path]:
    with scratch() as place:
        first = place / f"{0:0240}"
        first.write_bytes(b"x")
        for number in range(1, NAMES):
            os.link(first, place / f"{number:0240}")
        yield place


@pytest.fixture
def small(area: Path) -> Iterator[Path]:
    """A directory for temporary files that is too small."""
    require_root("mount a tmpfs")
    with mounted("tmpfs", area, size=64 << 10) as place:
        yield place


def assert_told(run: Completed, status: int, small: Path, advice: str) -> None:
    assert run.returncode == status, show(run)
    (line,) = (line for line in run.stderr.decode().splitlines() if "waiting tasks cannot be written" in line)
    assert f"waiting tasks cannot be written to {small}: No space left on device; {advice}" in line, line
    assert b"Traceback" not in run.stderr, show(run)
    assert os.listdir(small) == []


@pytest.mark.in_turn(1)
@pytest.mark.parametrize("ranks", [1, 3])
def test_a_job_stops_and_goes_on_where_there_is_room(
    linked: Path, area: Path, small: Path, env: dict[str, str], ranks: int
) -> None:
    advice = "name another directory with --spool"
    run = pcopy("--spool", small, "-T", linked, area / "copy", ranks=ranks, env=env)
    assert_told(run, STOPPED, small, advice)
    assert_told(pcopy("--resume", "--spool", small, ranks=ranks, env=env), REFUSED, small, advice)
    succeed("--resume", "--spool", area, ranks=4 - ranks, env={**env, "TMPDIR": str(small)})
    assert differences(linked, area / "copy") == []


def test_a_job_is_not_discarded_blindly(linked: Path, area: Path, small: Path, env: dict[str, str]) -> None:
    """What remains of so small a job is found in memory: one that has little of it stands for a large job."""
    run = pcopy("--spool", small, "-T", linked, area / "copy", ranks=2, env=env)
    assert run.returncode == STOPPED, show(run)
    (job,) = (area / "state/pcopy").iterdir()
    program = (
        "import sys; from pcopy.checkpoint import join; join.JOIN_MEMORY_BYTES = 1 << 20\n"
        "from pcopy.cli.pcopy import main; sys.exit(main())"
    )
    line, environment = command("--discard", job.name, env={**env, "TMPDIR": str(small)})
    words = [line[0], "-c", program, *line[-2:]]
    discard = subprocess.run(words, check=False, env=environment, capture_output=True)
    assert_told(discard, REFUSED, small, "set TMPDIR to another directory")
    assert list((area / "state/pcopy").iterdir()) == [job]
    succeed("--discard", job.name, env={**env, "TMPDIR": str(small)})
    assert list((area / "state/pcopy").iterdir()) == []


@pytest.mark.in_turn(1)
@pytest.mark.parametrize("ranks", [1, 3])
def test_what_is_only_read_is_trouble(linked: Path, area: Path, small: Path, ranks: int) -> None:
    assert pverify("-q", "--create", area / "sig", "--manifest", area / "manifest", linked).returncode == 0
    env = {"TMPDIR": str(small)}
    for words in (("--create", area / "new"), ("--manifest", area / "manifest")):
        run = pverify(*words, linked, ranks=ranks, env=env)
        assert_told(run, REFUSED, small, "set TMPDIR to another directory")
    assert not (area / "new").exists()
