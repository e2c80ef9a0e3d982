"""The activity reported for a silent rank: words and a path for every task that can take long."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pcopy.engine.task import Task
from pcopy.fsio.identity import ItemIdentity
from pcopy.fsio.source import FileContentVersion
from pcopy.tasks.base.codec import encode_task
from pcopy.tasks.base.job import Options
from pcopy.tasks.base.kind import TaskKind, TaskSteps
from pcopy.tasks.base.rank import Rank
from pcopy.tasks.base.values import ContentInfo, FileToRead, Item, Place
from pcopy.tasks.runner import TaskRunner, current_activity
from pcopy.tasks.sign.digest_level import DigestDirectoriesOfDepth
from pcopy.tasks.sign.manifest_lines import ReadManifest, WriteManifest
from pcopy.tasks.verify.read_items import ReadItems
from pcopy.tasks.verify.split_read import ReadChunk, SplitFileForReading
from pcopy.tasks.verify.verify_items import VerifyItems, VerifyLinks
from tests.tasks.one_rank import root_of, surroundings


def activity_of(task: TaskKind, rank: Rank) -> str:
    rank.running.task = Task((1, 0, 1), 0, encode_task(task), 0)
    return current_activity(rank)


PLACE = Place(0, b"sub", ItemIdentity(0, 1), ItemIdentity(0, 2), False, False)
KNOWN = ContentInfo(b"f", 3, b"digest", FileContentVersion(1, 3, 0, 0))
CONTENTS = FileToRead(PLACE, b"large", KNOWN, False, 0, 3, 0, b"\0")
GROUP = Item(0, 1, 3, ((PLACE, b"one"), (PLACE, b"two")), 0)
COPIES = FileToRead(*GROUP.names[0], KNOWN, False, 0, 3, 0, b"\0", GROUP)


@pytest.mark.parametrize(
    ("task", "reported"),
    [
        (ReadItems(PLACE, b"", b"", b"", 0, 0), "reading files of SOURCE/sub"),
        (VerifyItems(PLACE, b"", b"", b"", b"", b"", b"", 0), "reading back the copies of SOURCE/sub"),
        (VerifyLinks(COPIES, 1), "reading back the copies of SOURCE/sub/one"),
        (SplitFileForReading(CONTENTS), "reading SOURCE/sub/large"),
        (ReadManifest(), "reading the manifest"),
        (DigestDirectoriesOfDepth(3), "digesting directories"),
        (WriteManifest(), "writing the manifest"),
    ],
)
def test_activity_of_each_task_is_described(area: Path, task: Any, reported: str) -> None:
    source, target = area / "source", area / "target"
    source.mkdir()
    target.mkdir()
    with surroundings([root_of(source, target)], Options(hash="xxh3-128")) as (context, _):
        assert activity_of(task, context) == reported.replace("SOURCE", str(source))


def test_activity_on_a_part_of_a_file_is_described(area: Path) -> None:
    with surroundings([root_of(area, area)], Options(hash="xxh3-128")) as (context, _):
        names = dict.fromkeys(ReadChunk.fields, 0)
        task = ReadChunk(**{**names, "contents": CONTENTS})  # type: ignore[arg-type]
        assert activity_of(task, context) == f"reading a part of {area}/sub/large"


def test_activity_is_that_of_the_task_that_runs(area: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reported: list[str] = []

    def run(_: TaskKind, rank: Rank, __: object) -> TaskSteps:
        while True:
            reported.append(current_activity(rank))
            yield None

    for kind in (ReadManifest, WriteManifest):
        monkeypatch.setattr(kind, "run", run)
    with surroundings([root_of(area, area)], Options(hash="xxh3-128")) as (rank, _):
        assert current_activity(rank) == ""
        reading, writing = (
            TaskRunner(rank)(Task((1, 0, 1), 0, encode_task(kind()), 0)) for kind in (ReadManifest, WriteManifest)
        )
        for slices in (reading, writing, reading):
            next(slices)
    assert reported == ["reading the manifest", "writing the manifest", "reading the manifest"]
