"""Job directories that are damaged or were modified by someone else, tested through the command."""

from __future__ import annotations

import os
import pickle
import shutil
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.chaos.dataset import SPLIT, make_dataset
from tests.chaos.unfinished import REFUSED, check_equal
from tests.support.command import Argument, Completed, pcopy, show, summary
from tests.support.faults import ITEM_BY_ITEM, SLOW, slowed
from tests.support.filesystems import remove, scratch
from tests.support.frames import Evil, framed
from tests.support.oracle import snapshot
from tests.support.processes import background, wait_until
from tests.support.users import NOBODY, require_root

RANKS = 3


class KilledJob(NamedTuple):
    """A job that was killed: its source, and the directory ``world`` with its job directory and its copy."""

    source: Path
    world: Path


@pytest.fixture(scope="module")
def killed_job() -> Iterator[KilledJob]:
    """A job that was killed after each rank had recorded several epochs."""
    with scratch() as place:
        make_dataset(place / "source", 21, files=500, directories=80)
        world = place / "world"
        world.mkdir()
        arguments: list[Argument] = ["--checkpoint", world / "job", "--checkpoint-interval", "0.05", *SPLIT]
        arguments += ["--signature", place / "sig", place / "source", world / "copy"]
        with background(*arguments, ranks=RANKS, wrap=slowed(ITEM_BY_ITEM, SLOW)) as run:
            assert wait_until(lambda: run.process.poll() is not None or epochs(world / "job") >= 3)
            run.kill_all()
            assert run.end(10) == 128 + signal.SIGKILL
        yield KilledJob(place / "source", world)


def segments(job: Path) -> list[Path]:
    return sorted(job.glob("run-1/facts-*"))


def epochs(job: Path) -> int:
    found = segments(job)
    return min(len(frames(segment)) for segment in found) if len(found) == RANKS else 0


def frames(segment: Path) -> list[tuple[int, int]]:
    """Return offset and length of each complete frame, as docs/formats/checkpoint.md describes them."""
    data, at, found = segment.read_bytes(), 0, []
    while len(data) - at >= 24:
        length = 24 + int.from_bytes(data[at : at + 8], "big")
        if at + length > len(data):
            break
        found.append((at, length))
        at += length
    return found


def overwrite(path: Path, at: int, data: bytes) -> None:
    with open(path, "r+b") as file:
        file.seek(at)
        file.write(data)


class Case(NamedTuple):
    """``harm`` changes the job directory; ``refused`` is a part of the one-line error message, or None if the job
    resumes."""

    name: str
    harm: Callable[[Path], None]
    refused: str | None


def torn_tail(job: Path) -> None:
    segment = segments(job)[1]
    at, length = frames(segment)[-1]
    os.truncate(segment, at + length - 1)


def flipped_in_the_middle(job: Path) -> None:
    segment = segments(job)[1]
    at, _ = frames(segment)[1]
    overwrite(segment, at + 24, bytes([segment.read_bytes()[at + 24] ^ 1]))


def flipped_in_the_base(job: Path) -> None:
    overwrite(job / "run-1" / "base-0", 30, b"\xff\xff")


def no_segment(job: Path) -> None:
    segments(job)[2].unlink()


def empty_segment(job: Path) -> None:
    os.truncate(segments(job)[0], 0)


def empty_job_file(job: Path) -> None:
    os.truncate(job / "job", 0)


def empty_current(job: Path) -> None:
    os.truncate(job / "current", 0)


def foreign_segment(job: Path) -> None:
    os.chown(segments(job)[0], NOBODY, NOBODY)


def foreign_directory(job: Path) -> None:
    os.chown(job, NOBODY, NOBODY)


def writable_directory(job: Path) -> None:
    job.chmod(0o777)


def writable_run(job: Path) -> None:
    (job / "run-1").chmod(0o770)


def evil_record(job: Path) -> None:
    segments(job)[1].write_bytes(framed(pickle.dumps(Evil(job.parent / "executed"))) * 2)


def evil_base(job: Path) -> None:
    (job / "run-1" / "base-0").write_bytes(framed(pickle.dumps(Evil(job.parent / "executed"))))


def symlink_for_a_segment(job: Path) -> None:
    segment = segments(job)[1]
    segment.rename(job.parent / "elsewhere")
    segment.symlink_to(job.parent / "elsewhere")


def fifo_for_a_segment(job: Path) -> None:
    segment = segments(job)[1]
    segment.unlink()
    os.mkfifo(segment, 0o600)


CASES = [
    Case("torn tail", torn_tail, None),
    Case("no segment", no_segment, None),
    Case("empty segment", empty_segment, None),
    Case("flipped byte in the middle", flipped_in_the_middle, "run-1/facts-1: damaged at byte "),
    Case("flipped byte in the base", flipped_in_the_base, "run-1/base-0: damaged at byte 0"),
    Case("empty job file", empty_job_file, "/job"),
    Case("empty current", empty_current, "/current"),
    Case("foreign segment", foreign_segment, f"run-1/facts-0: belongs to user {NOBODY}"),
    Case("foreign directory", foreign_directory, f"/job: belongs to user {NOBODY}"),
    Case("world-writable directory", writable_directory, "/job: "),
    Case("group-writable run", writable_run, "run-1: "),
    Case("a record that runs a command", evil_record, "run-1/facts-1: damaged at byte 0"),
    Case("a base that runs a command", evil_base, "run-1/base-0: damaged at byte 0"),
    Case("a symbolic link for a segment", symlink_for_a_segment, "run-1/facts-1: is a symbolic link"),
    Case("a FIFO for a segment", fifo_for_a_segment, "run-1/facts-1: is not a regular file"),
]


@pytest.mark.in_turn(8)
@pytest.mark.parametrize("case", CASES, ids=[case.name.replace(" ", "-") for case in CASES])
def test_damaged_job_directory_is_resumed_or_reported(killed_job: KilledJob, case: Case) -> None:
    if "foreign" in case.name:
        require_root("give files away")
    with restored(killed_job) as world:
        job = world / "job"
        case.harm(job)
        stored, copied = snapshot(job), snapshot(world / "copy")
        run = pcopy("--resume", job, "--json", ranks=2)
        assert not (world / "executed").exists()
        assert b"Traceback" not in run.stderr, show(run)
        if case.refused is None:
            check_whole(killed_job, world, run)
        else:
            assert run.returncode == REFUSED, show(run)
            (line,) = run.stderr.decode().splitlines()
            assert case.refused in line, line
            assert without_locks(snapshot(job)) == without_locks(stored)
            assert snapshot(world / "copy") == copied


def without_locks(records: dict[bytes, Any]) -> dict[bytes, Any]:
    """Leave out the locks and the top directory, whose times change with the locks, and the access times."""
    kept = {path: record for path, record in records.items() if path and not path.startswith(b"lock-")}
    return {path: record._replace(atime=0) for path, record in kept.items()}


class restored:  # noqa: N801
    """The files as the killed job left them. They are restored from a copy afterwards, with the same inodes of the
    roots and of the copy."""

    def __init__(self, killed_job: KilledJob) -> None:
        self._job = killed_job
        self._backup = killed_job.world.with_name("backup")

    def __enter__(self) -> Path:
        if not self._backup.exists():
            copy_tree(self._job.world, self._backup)
        return self._job.world

    def __exit__(self, *_: object) -> None:
        world = self._job.world
        for path in [*world.iterdir(), *(world / "copy").iterdir()]:
            if path != world / "copy":
                remove(path)
        copy_tree(self._backup, self._job.world)


def copy_tree(source: Path, target: Path) -> None:
    target.mkdir(exist_ok=True)
    shutil.copystat(source, target)
    assert os.system(f"cp -a {source}/. {target}/") == 0


def check_whole(killed_job: KilledJob, world: Path, run: Completed) -> None:
    assert run.returncode == 0, show(run)
    assert summary(run)["failed"] == 0
    check_equal(killed_job.source, world / "copy")
