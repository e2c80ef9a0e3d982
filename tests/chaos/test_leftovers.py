"""Temporary files of whole files, which no task knows by name: what a kill leaves goes by a resume or ``--discard``."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

import pytest

from tests.chaos.unfinished import kill
from tests.support.command import Argument, succeed
from tests.support.faults import READS, slowed
from tests.support.oracle import differences
from tests.support.processes import background, wait_until
from tests.support.walk import temporaries

SIZE = 24 << 20
SLOWLY = 250
"""Milliseconds for each read of a slow file: it is under way for seconds, longer than a busy machine may stand still.
Nobody waits for its end: the run is killed."""


def write(path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(os.urandom(SIZE))
    return path


def killed(
    area: Path,
    env: dict[str, str],
    slow: Path,
    copy: Path,
    *arguments: Argument,
    on_record: bool = True,
    after: Path | None = None,
) -> str:
    """Run pcopy on one rank, kill it while it fills ``copy`` from the file ``slow``, and return the job's name.

    ``after``: not before this file exists.
    """
    words: list[Argument] = []
    if "--resume" not in arguments:
        words = ["--hash", "xxh3-128", "--signature", area / "sig"]
    wrap = slowed(",".join(READS), SLOWLY, "-P", str(slow))
    before = under_way(area)

    def is_under_way() -> bool:
        return bool(under_way(area) - before) and (after is None or after.exists())

    def epochs() -> int:
        with suppress(FileNotFoundError):  # an earlier run's is being removed
            return sum(path.stat().st_size for path in area.glob("state/pcopy/*/run-*/facts-0"))
        return 0

    with background("--checkpoint-interval", "0.05", *words, *arguments, ranks=1, env=env, wrap=wrap) as run:
        assert wait_until(lambda: run.process.poll() is not None or is_under_way())
        if on_record:
            known = epochs()
            assert wait_until(lambda: run.process.poll() is not None or epochs() > known + 200)
        kill(run)
    assert is_under_way() and not copy.exists()
    (job,) = {path.name.split("-")[1] for path in under_way(area)}
    return job


def under_way(area: Path) -> set[Path]:
    """The temporary files anywhere. (The job removes files of its own meanwhile; walk takes no notice.)"""
    return {Path(top, name) for top, _, names in os.walk(area) for name in names if name.startswith(".pcopy-")}


@pytest.mark.parametrize("several", [False, True])
def test_a_resume_removes_what_lies_beside_single_items(area: Path, env: dict[str, str], several: bool) -> None:
    source, copy = write(area / "source/file"), area / "copy"
    copy.mkdir()
    others: list[Argument] = []
    if several:
        (area / "source/directory").mkdir()
        (area / "source/more").write_bytes(b"more")
        others = [area / "source/more", area / "source/directory"]
    killed(area, env, source, copy / "file", source, *others, copy)
    (copy / ".pcopy-other-1-0.1").touch()
    succeed("--resume", ranks=1, env=env)
    assert temporaries(bytes(copy)) == [b".pcopy-other-1-0.1"]
    assert (copy / "file").read_bytes() == source.read_bytes()


@pytest.mark.parametrize("on_record", [True, False])
def test_discarding_removes_them_in_directories(area: Path, env: dict[str, str], on_record: bool) -> None:
    """Also those of a job that had nothing on record yet; whatever a symbolic link leads to is not touched."""
    source, copy, outside = area / "source", area / "copy", area / "outside"
    slow = write(source / "one/two/file")
    where: list[Argument] = [] if on_record else ["--checkpoint", area / "job", "--checkpoint-interval", "60"]
    target = copy / "one/two/file"
    name = killed(area, env, slow, target, *where, "-T", source, copy, on_record=on_record)
    outside.mkdir()
    (outside / f".pcopy-{name}-1-0.1").touch()
    (copy / "link").symlink_to(outside)
    (copy / ".pcopy-other-1-0.1").touch()
    run = succeed("--discard", name if on_record else area / "job", env=env)
    assert (run.stdout, run.stderr) == (b"discarded\n", b"")
    assert temporaries(bytes(copy)) == [b".pcopy-other-1-0.1"]
    assert temporaries(bytes(outside)) == [f".pcopy-{name}-1-0.1".encode()]


def test_discarding_removes_what_earlier_runs_have_left(area: Path, env: dict[str, str]) -> None:
    """One of the files is done when the second run is killed: only its directory is still named by a task."""
    source, copy = area / "source", area / "copy"
    files = [write(source / directory / "file") for directory in "ab"]
    wrap = slowed(",".join(READS), SLOWLY, *(word for file in files for word in ("-P", str(file))))
    arguments: list[Argument] = ["--hash", "xxh3-128", "--signature", area / "sig", "-T", source, copy]
    with background("--checkpoint-interval", "0.05", *arguments, ranks=1, env=env, wrap=wrap) as run:
        assert wait_until(lambda: under_way(area) and [*area.glob("state/pcopy/*/run-1/facts-0")])
        kill(run)
    (left,) = temporaries(bytes(copy))
    first = copy / Path(os.fsdecode(left)).parent
    (last,) = {copy / "a", copy / "b"} - {first}
    name = killed(area, env, source / last.name / "file", last / "file", "--resume", after=first / "file")
    assert (first / "file").exists() and left in temporaries(bytes(copy))
    succeed("--discard", name, env=env)
    assert temporaries(bytes(copy)) == []
    assert differences(source / first.name / "file", first / "file") == []
