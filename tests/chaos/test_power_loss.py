"""The power fails while a job runs: the job is resumed from the contents of the disk, and in the end nothing is
missing."""

from __future__ import annotations

import os
import random
import shutil
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.chaos.dataset import SPLIT, make_dataset
from tests.chaos.disk import Disk, reflink_directory
from tests.chaos.interrupted import TOTALS
from tests.support.command import BEING_WRITTEN, REPOSITORY, Argument, Completed, pcopy, show, summary
from tests.support.extent import in_turn
from tests.support.faults import ITEM_BY_ITEM, slowed
from tests.support.filesystems import scratch
from tests.support.oracle import differences
from tests.support.processes import background, wait_until
from tests.support.users import require_root
from tests.support.walk import temporaries, walk

GRACE = 6
"""Seconds; longer than the time for which an item of the destination counts as created by the job."""

INSTANTS = 3
RANKS = 3
REFUSED = 2
EXISTING: dict[str, Sequence[str]] = {
    "replace": (),
    "skip": ("--existing", "skip"),
    "changed": ("--existing", "changed"),
    "newer": ("--existing", "newer"),
    "fail": ("--existing", "fail"),
}
ALL_CASES = [("ext4", existing) for existing in EXISTING] + [("xfs", "replace"), ("xfs", "skip")]
CASES = in_turn(ALL_CASES, 3, "power loss")


class World(NamedTuple):
    """``templates``: by type of file system, images of disks that contain an older copy of a part of the source."""

    source: Path
    images: Path
    place: Path
    templates: dict[str, Path]


@pytest.fixture(scope="module")
def world() -> Iterator[World]:
    require_root("mount images")
    with scratch() as place, reflink_directory(place) as images:
        make_dataset(place / "source", 11, files=400, directories=60)
        templates = {}
        for kind in ("ext4", "xfs"):
            disk = Disk(kind, images)
            make_older_copy(place / "source", disk.point / "copy")
            disk.sync()
            templates[kind] = images / f"{kind}.template"
            disk.image_after_power_failure().rename(templates[kind])
            disk.close()
        time.sleep(GRACE)
        yield World(place / "source", images, place, templates)


def make_older_copy(source: Path, copy: Path) -> None:
    """Copy some of the files: unchanged, or with other contents and an older or newer time."""
    chance = random.Random(5)
    copy.mkdir()
    root = os.fsencode(source)
    for entry in walk(root):
        path = os.fsencode(copy) + b"/" + entry.path
        if entry.type == 0o040000 and entry.path:
            os.mkdir(path)
        elif entry.type == 0o100000 and entry.status.st_nlink == 1 and chance.random() < 0.3:
            kind = chance.randrange(3)
            shutil.copyfile(root + b"/" + entry.path, path)
            if kind:
                with open(path, "ab") as file:
                    file.write(b"other")
            moved = (0, -(10**10), 10**10)[kind]
            os.utime(path, ns=(0, entry.status.st_mtime_ns + moved))


@contextmanager
def disk_of(world: World, kind: str) -> Iterator[Disk]:
    disk = Disk(kind, world.images, world.templates[kind])
    try:
        yield disk
    finally:
        disk.close()


def undisturbed(world: World, kind: str, options: Sequence[str]) -> tuple[dict[str, Any], Path]:
    """Run the job without interruption; return its totals and the image of the disk afterwards."""
    with disk_of(world, kind) as disk:
        run = pcopy("--json", *options, "-T", world.source, disk.point / "copy", ranks=2, env=environment(disk))
        assert run.returncode in (0, 1), show(run)
        disk.sync()
        wanted = world.images / "wanted"
        wanted.unlink(missing_ok=True)
        disk.image_after_power_failure().rename(wanted)
    return {key: summary(run)[key] for key in TOTALS}, wanted


def environment(disk: Disk) -> dict[str, str]:
    return {"XDG_STATE_HOME": str(disk.point / "state")}


def arguments(world: World, disk: Disk, options: Sequence[str]) -> list[Argument]:
    return ["--checkpoint-interval", "0.1", *options, "-T", world.source, disk.point / "copy"]


def images_of_a_job(world: World, disk: Disk, options: Sequence[str], seed: int) -> list[Path]:
    """Return images of the disk at some instants of a job that has begun to record checkpoints and ends with the
    power."""
    chance = random.Random(seed)
    images: list[Path] = []
    words, env = arguments(world, disk, options), environment(disk)
    with background(*words, ranks=RANKS, env=env, wrap=slowed("newfstatat", 1)) as run:
        begun = disk.point / "state" / "pcopy"
        assert wait_until(lambda: run.process.poll() is not None or [*begun.glob("*/current")])
        while run.process.poll() is None and len(images) < INSTANTS:
            time.sleep(chance.uniform(0, 0.15))
            images.append(disk.image_after_power_failure())
    assert images, "the job ended too soon"
    assert run.survivors() == []  # a running sync uses the file system
    return images


def resumed(disk: Disk, ranks: int) -> Completed:
    return pcopy("--resume", "--json", ranks=ranks, env=environment(disk))


@pytest.mark.parametrize(("kind", "existing"), CASES, ids=[f"{kind}-{existing}" for kind, existing in CASES])
def test_job_is_resumed_from_the_disk_contents_after_a_power_loss(world: World, kind: str, existing: str) -> None:
    options = [*EXISTING[existing], *SPLIT]
    totals, wanted = undisturbed(world, kind, options)
    with disk_of(world, kind) as disk, disk_of(world, kind) as other:
        other.restart_with(wanted)
        for number, image in enumerate(images_of_a_job(world, disk, options, seed=hash_of(kind, existing))):
            disk.restart_with(image)
            run = resumed(disk, number + 1)
            if run.returncode == REFUSED and not (totals["failed"] or [*disk.point.glob("state/pcopy/*/current")]):
                assert b"there is no unfinished job" in run.stderr, show(run)  # the job was complete at that instant
                assert differences(other.point / "copy", disk.point / "copy") == []
                continue
            assert run.returncode == (1 if totals["failed"] else 0), show(run)
            assert {key: summary(run)[key] for key in TOTALS} == totals, show(run)
            assert differences(other.point / "copy", disk.point / "copy") == []
            assert temporaries(os.fsencode(disk.point / "copy")) == []


def hash_of(*words: str) -> int:
    return sum(b"".join(map(str.encode, words)))


RECORD_WITHOUT_SYNC = """\
        if self._store_initial_tasks():
            self._append_record(record)
        import os, time
        mark = os.path.join({marks!r}, str(os.getpid()))
        open(mark, "x").close()
        until = time.monotonic() + 20
        while os.path.exists(mark) and time.monotonic() < until:
            time.sleep(0.002)
        self._pending_bytes -= size
        return
"""


def test_recording_before_the_sync_would_lose_data(world: World, tmp_path: Path) -> None:
    """Check that the test above would fail if nothing were synced before a record."""
    shutil.copytree(REPOSITORY / "pcopy", tmp_path / "pcopy", ignore=BEING_WRITTEN)
    marks = tmp_path / "marks"
    marks.mkdir()
    journal = tmp_path / "pcopy" / "checkpoint" / "journal.py"
    head = "    def _store_record(self, record: EpochTaskRecord, size: int) -> None:\n"
    text = journal.read_text()
    assert text.count(head) == 1
    journal.write_text(text.replace(head, head + RECORD_WITHOUT_SYNC.format(marks=str(marks))))
    with disk_of(world, "ext4") as disk:
        images: list[Path] = []
        words, env = arguments(world, disk, SPLIT), environment(disk) | {"PYTHONPATH": str(tmp_path)}
        with background(*words, ranks=RANKS, env=env, wrap=slowed(ITEM_BY_ITEM, 3)) as run:
            while len(images) < 2 * INSTANTS:
                assert wait_until(lambda: run.process.poll() is not None or len(os.listdir(marks)) == RANKS)
                if run.process.poll() is not None:
                    break
                images.append(disk.image_after_power_failure())
                for name in os.listdir(marks):
                    (marks / name).unlink()
        assert run.survivors() == []
        assert any(_does_harm(world, disk, image) for image in reversed(images))


def _does_harm(world: World, disk: Disk, image: Path) -> bool:
    disk.restart_with(image)
    return resumed(disk, 2).returncode != 0 or differences(world.source, disk.point / "copy") != []
