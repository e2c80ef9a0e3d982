"""Temporary files of unsplit files, which no task knows by name: a resume or ``--discard`` removes what a kill
leaves."""

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
"""Milliseconds for each read of a slow file: it takes seconds to copy, longer than a busy machine may pause. The run is
killed before its end."""


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
    """Run pcopy on one rank, kill it while it writes the copy of the file ``slow``, and return the name of the job.

    ``after``: do not kill before this file exists.
    """
    words: list[Argument] = []
    if "--resume" not in arguments:
        words = ["--hash", "xxh3-128", "--signature", area / "sig"]
    wrap = slowed(",".join(READS), SLOWLY, "-P", str(slow))
    before = under_way(area)

    def is_under_way() -> bool:
        return bool(under_way(area) - before) and (after is None or after.exists())

    def epochs() -> int:
        with suppress(FileNotFoundError):  # the directory of an earlier run is being removed
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
    """Return all temporary files below ``area``. (Other files may be removed during the walk.)"""
    return {Path(top, name) for top, _, names in os.walk(area) for name in names if name.startswith(".pcopy-")}


@pytest.mark.parametrize("several", [False, True])
def test_resume_removes_temporary_files_next_to_single_items(area: Path, env: dict[str, str], several: bool) -> None:
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
def test_discard_removes_temporary_files_in_directories(area: Path, env: dict[str, str], on_record: bool) -> None:
    """Also those of a job without records; the target of a symbolic link is not changed."""
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


def test_discard_removes_temporary_files_of_earlier_runs(area: Path, env: dict[str, str]) -> None:
    """One of the files is complete when the second run is killed: tasks name only its directory."""
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
