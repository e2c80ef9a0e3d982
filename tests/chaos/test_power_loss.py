"""The power fails while a job runs: what is found on the disk is gone on with, and in the end nothing is missing."""

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
from tests.chaos.disk import Disk, stable
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
"""Seconds, more than those for which an item of the destination counts as the job's own."""

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
    """``templates`` are disks with an older copy of some of the source, by kind of file system."""

    source: Path
    images: Path
    place: Path
    templates: dict[str, Path]


@pytest.fixture(scope="module")
def world() -> Iterator[World]:
    require_root("mount images")
    with scratch() as place, stable(place) as images:
        make_dataset(place / "source", 11, files=400, directories=60)
        templates = {}
        for kind in ("ext4", "xfs"):
            disk = Disk(kind, images)
            make_older_copy(place / "source", disk.point / "copy")
            disk.sync()
            templates[kind] = images / f"{kind}.template"
            disk.as_it_is_now().rename(templates[kind])
            disk.close()
        time.sleep(GRACE)
        yield World(place / "source", images, place, templates)


def make_older_copy(source: Path, copy: Path) -> None:
    """Some of the files, each unchanged, or with other contents, older or newer."""
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
    """The totals, and the image of the disk in the end."""
    with disk_of(world, kind) as disk:
        run = pcopy("--json", *options, "-T", world.source, disk.point / "copy", ranks=2, env=environment(disk))
        assert run.returncode in (0, 1), show(run)
        disk.sync()
        wanted = world.images / "wanted"
        wanted.unlink(missing_ok=True)
        disk.as_it_is_now().rename(wanted)
    return {key: summary(run)[key] for key in TOTALS}, wanted


def environment(disk: Disk) -> dict[str, str]:
    return {"XDG_STATE_HOME": str(disk.point / "state")}


def arguments(world: World, disk: Disk, options: Sequence[str]) -> list[Argument]:
    return ["--checkpoint-interval", "0.1", *options, "-T", world.source, disk.point / "copy"]


def images_of_a_job(world: World, disk: Disk, options: Sequence[str], seed: int) -> list[Path]:
    """What the disk held at some instants of a job that then ended with the power: once it could be gone on with."""
    chance = random.Random(seed)
    images: list[Path] = []
    words, env = arguments(world, disk, options), environment(disk)
    with background(*words, ranks=RANKS, env=env, wrap=slowed("newfstatat", 1)) as run:
        begun = disk.point / "state" / "pcopy"
        assert wait_until(lambda: run.process.poll() is not None or [*begun.glob("*/current")])
        while run.process.poll() is None and len(images) < INSTANTS:
            time.sleep(chance.uniform(0, 0.15))
            images.append(disk.as_it_is_now())
    assert images, "it was over too soon"
    assert run.survivors() == []  # a sync that was under way holds the file system
    return images


def resumed(disk: Disk, ranks: int) -> Completed:
    return pcopy("--resume", "--json", ranks=ranks, env=environment(disk))


@pytest.mark.parametrize(("kind", "existing"), CASES, ids=[f"{kind}-{existing}" for kind, existing in CASES])
def test_what_the_disk_holds_is_gone_on_with(world: World, kind: str, existing: str) -> None:
    options = [*EXISTING[existing], *SPLIT]
    totals, wanted = undisturbed(world, kind, options)
    with disk_of(world, kind) as disk, disk_of(world, kind) as other:
        other.come_up_with(wanted)
        for number, image in enumerate(images_of_a_job(world, disk, options, seed=hash_of(kind, existing))):
            disk.come_up_with(image)
            run = resumed(disk, number + 1)
            if run.returncode == REFUSED and not (totals["failed"] or [*disk.point.glob("state/pcopy/*/current")]):
                assert b"there is no unfinished job" in run.stderr, show(run)  # it was over at that instant
                assert differences(other.point / "copy", disk.point / "copy") == []
                continue
            assert run.returncode == (1 if totals["failed"] else 0), show(run)
            assert {key: summary(run)[key] for key in TOTALS} == totals, show(run)
            assert differences(other.point / "copy", disk.point / "copy") == []
            assert temporaries(os.fsencode(disk.point / "copy")) == []


def hash_of(*words: str) -> int:
    return sum(b"".join(map(str.encode, words)))


BROKEN = """\
        if self._begin():
            self._append(record)
        import os, time
        mark = os.path.join({marks!r}, str(os.getpid()))
        open(mark, "x").close()
        until = time.monotonic() + 20
        while os.path.exists(mark) and time.monotonic() < until:
            time.sleep(0.002)
        self._under_way -= size
        return
"""


def test_a_record_before_the_sync_loses_data(world: World, tmp_path: Path) -> None:
    """That the test above would see it if nothing were synced before the end, and the power failed after a record."""
    shutil.copytree(REPOSITORY / "pcopy", tmp_path / "pcopy", ignore=BEING_WRITTEN)
    marks = tmp_path / "marks"
    marks.mkdir()
    journal = tmp_path / "pcopy" / "checkpoint" / "journal.py"
    head = "    def _record(self, record: Record, size: int) -> None:\n"
    text = journal.read_text()
    assert text.count(head) == 1
    journal.write_text(text.replace(head, head + BROKEN.format(marks=str(marks))))
    with disk_of(world, "ext4") as disk:
        images: list[Path] = []
        words, env = arguments(world, disk, SPLIT), environment(disk) | {"PYTHONPATH": str(tmp_path)}
        with background(*words, ranks=RANKS, env=env, wrap=slowed(ITEM_BY_ITEM, 3)) as run:
            while len(images) < 2 * INSTANTS:
                assert wait_until(lambda: run.process.poll() is not None or len(os.listdir(marks)) == RANKS)
                if run.process.poll() is not None:
                    break
                images.append(disk.as_it_is_now())
                for name in os.listdir(marks):
                    (marks / name).unlink()
        assert run.survivors() == []
        assert any(_does_harm(world, disk, image) for image in reversed(images))


def _does_harm(world: World, disk: Disk, image: Path) -> bool:
    disk.come_up_with(image)
    return resumed(disk, 2).returncode != 0 or differences(world.source, disk.point / "copy") != []
