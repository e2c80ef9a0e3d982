"""Tasks that a stopping job drops although they are addressed to one rank: those that take long."""

from __future__ import annotations

import pytest

from pcopy.engine.task import ANY_RANK, Task
from pcopy.fsio.identity import ItemIdentity
from pcopy.fsio.source import FileContentVersion
from pcopy.tasks.base import values
from pcopy.tasks.base.codec import encode_task
from pcopy.tasks.base.kind import TaskKind
from pcopy.tasks.directories.finish_dir import FinishDirsLast
from pcopy.tasks.directories.sync_files import SyncFileSystems
from pcopy.tasks.report_failures import ReportFailures
from pcopy.tasks.runner import is_droppable_work
from pcopy.tasks.sign.manifest_lines import ReadManifest
from pcopy.tasks.verify.split_read import SplitFileForReading

PLACE = values.Place(0, b"directory", ItemIdentity(1, 2), ItemIdentity(3, 4), False, False)
CONTENTS = values.FileToRead(
    PLACE, b"name", values.ContentInfo(b"-", 9, bytes(16), FileContentVersion(1, 9, 0, 0)), False, 0, 3, 1 << 20, b"\0"
)


def made(value: TaskKind, owner: int) -> Task:
    return Task((1, 0, 1), 5, encode_task(value), 1, False, owner)


@pytest.mark.parametrize(
    "work", [SyncFileSystems(None), SyncFileSystems(PLACE), SplitFileForReading(CONTENTS), ReadManifest()]
)
def test_reads_and_syncs_may_be_dropped_on_stop(work: TaskKind) -> None:
    assert is_droppable_work(made(work, 1))


@pytest.mark.parametrize("note", [ReportFailures((), (), ()), FinishDirsLast()])
def test_notes_are_kept_on_stop_unless_any_rank_may_run_them(note: TaskKind) -> None:
    assert not is_droppable_work(made(note, 1))
    assert is_droppable_work(made(note, ANY_RANK))
