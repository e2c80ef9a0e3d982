"""No disk space for data that does not fit into memory, except the task queue: names of an inode, signature entries,
joins."""

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
"""Number of names of one inode; their notes do not fit into the memory of a spool."""


def linked_names(number: int) -> Iterator[Path]:
    """Yield a directory with so many names of one inode."""
    with scratch() as place:
        first = place / f"{0:0240}"
        first.write_bytes(b"x")
        for name in range(1, number):
            os.link(first, place / f"{name:0240}")
        yield place


@pytest.fixture(scope="module")
def linked() -> Iterator[Path]:
    yield from linked_names(NAMES)


@pytest.fixture
def many_linked() -> Iterator[Path]:
    """So many names that a third of them, those of one rank, do not fit into the memory of a spool, either."""
    yield from linked_names(3 * NAMES)


@pytest.fixture
def small(area: Path) -> Iterator[Path]:
    """A directory for temporary files, with too little space."""
    require_root("mount a tmpfs")
    with mounted("tmpfs", area, size=64 << 10) as place:
        yield place


def assert_reported(run: Completed, status: int, small: Path, advice: str) -> None:
    assert run.returncode == status, show(run)
    (line,) = (line for line in run.stderr.decode().splitlines() if "waiting tasks cannot be written" in line)
    assert f"waiting tasks cannot be written to {small}: No space left on device; {advice}" in line, line
    assert b"Traceback" not in run.stderr, show(run)
    assert os.listdir(small) == []


@pytest.mark.in_turn(1)
@pytest.mark.parametrize("ranks", [1, 3])
def test_job_without_spool_space_stops_and_resumes_with_another_spool(
    linked: Path, area: Path, small: Path, env: dict[str, str], ranks: int
) -> None:
    advice = "name another directory with --spool"
    run = pcopy("--spool", small, "-T", linked, area / "copy", ranks=ranks, env=env)
    assert_reported(run, STOPPED, small, advice)
    assert_reported(pcopy("--resume", "--spool", small, ranks=ranks, env=env), REFUSED, small, advice)
    succeed("--resume", "--spool", area, ranks=4 - ranks, env={**env, "TMPDIR": str(small)})
    assert differences(linked, area / "copy") == []


def test_job_is_not_discarded_if_its_remains_cannot_be_determined(
    linked: Path, area: Path, small: Path, env: dict[str, str]
) -> None:
    """The remains of a job this small would fit into memory; a lower memory limit stands for a large job."""
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
    assert_reported(discard, REFUSED, small, "set TMPDIR to another directory")
    assert list((area / "state/pcopy").iterdir()) == [job]
    succeed("--discard", job.name, env={**env, "TMPDIR": str(small)})
    assert list((area / "state/pcopy").iterdir()) == []


@pytest.mark.in_turn(1)
@pytest.mark.parametrize("ranks", [1, 3])
def test_pverify_without_temporary_space_ends_with_status_2(
    many_linked: Path, area: Path, small: Path, ranks: int
) -> None:
    assert pverify("-q", "--create", area / "sig", "--manifest", area / "manifest", many_linked).returncode == 0
    env = {"TMPDIR": str(small)}
    for words in (("--create", area / "new"), ("--manifest", area / "manifest")):
        run = pverify(*words, many_linked, ranks=ranks, env=env)
        assert_reported(run, REFUSED, small, "set TMPDIR to another directory")
    assert not (area / "new").exists()
