"""All notes on one file reach the same rank, through any number of resumes on any number of ranks."""

from __future__ import annotations

import random

from pcopy.engine.task import ANY_RANK, Task
from pcopy.fsio.identity import ItemIdentity
from pcopy.fsio.source import FileContentVersion
from pcopy.fsio.temporary import TemporaryNameGenerator, run_and_rank_in_temporary_name
from pcopy.tasks.base.codec import decode_task, encode_task
from pcopy.tasks.base.kind import TaskKind
from pcopy.tasks.base.phases import Phase
from pcopy.tasks.base.values import (
    ChunkedFile,
    ContentInfo,
    FileToRead,
    Item,
    ItemCopy,
    Place,
    SignatureEntries,
    inode_bucket_number,
)
from pcopy.tasks.files.chunk_ledger import ChunkCopiedNote, LargeFileOpenedNote
from pcopy.tasks.files.copy_chunk import CopyChunk
from pcopy.tasks.links.group_links import GatherHardLinks, HardLinkNamesNote, InodeCopiedNote
from pcopy.tasks.report_failures import ReportFailures
from pcopy.tasks.sign.digest_level import DeepestLevelNote, DigestDirectoriesOfDepth, StoreSignatureEntries
from pcopy.tasks.sign.manifest_lines import SendManifestLines
from pcopy.tasks.verify.split_read import ChunkedReadStartedNote, ChunkReadNote

PLACE = Place(0, b"a", ItemIdentity(0, 1), ItemIdentity(0, 2), False, False)
VERSION = FileContentVersion(5, 10, 0, 0)


def task_of(value: TaskKind, owner: int = ANY_RANK, phase: int = Phase.COPY) -> Task:
    return Task((1, 0, 1), int(phase), encode_task(value), 0, False, owner)


def readdress(task: Task, size: int) -> Task | None:
    """Return the task as a resumed job of ``size`` ranks addresses it, or None if it is dropped."""
    resumed: Task | None = decode_task(task.payload).with_reassigned_owner(task, size)
    return resumed


def owner_after(task: Task, sizes: list[int]) -> int:
    for size in sizes:
        resumed = readdress(task, size)
        assert resumed is not None
        task = resumed
    return task.owner


def test_temporary_name_contains_its_run_and_rank() -> None:
    names = TemporaryNameGenerator("0a-1b", 12, 345)
    assert [run_and_rank_in_temporary_name(names.next_name()) for _ in range(2)] == [(12, 345)] * 2


def test_notes_on_chunks_go_to_the_rank_that_coordinates_the_file() -> None:
    chance = random.Random(0)
    for _ in range(300):
        first = chance.randrange(1, 9)
        sizes = [chance.randrange(1, 9) for _ in range(4)]
        rank, told_in = chance.randrange(first), chance.randrange(4)
        file = ChunkedFile(
            Item(0, 5, 10, ((PLACE, b"f"),), 0),
            VERSION,
            TemporaryNameGenerator("j", 1, rank).next_name(),
            ItemIdentity(0, 7),
            (),
        )
        opened = task_of(LargeFileOpenedNote(file, 3, 4), owner=rank)
        chunk = readdress(task_of(CopyChunk(file, 0, 4, 0, 0, 0, False)), sizes[0])
        assert chunk is not None
        note = ChunkCopiedNote(file.temporary, None, 0, 1, 1, b"", 0)
        reported = task_of(note, owner=rank % sizes[told_in])
        assert note.assigned_rank(sizes[told_in]) == reported.owner
        assert reported.owner == owner_after(opened, sizes[: told_in + 1])
        assert owner_after(reported, sizes[told_in + 1 :]) == owner_after(opened, sizes)


def test_notes_on_read_chunks_go_to_the_rank_that_coordinates_the_file() -> None:
    sizes = [3, 4, 5]
    number = (1, 4, 1)
    contents = FileToRead(PLACE, b"f", ContentInfo(b"f", 10, b"", VERSION), False, 0, 0, 4, b"\0")
    opened = task_of(ChunkedReadStartedNote(contents, number, 3), owner=4, phase=Phase.VERIFY)
    note = ChunkReadNote(number, 0, b"", None)
    reported = task_of(note, owner=4 % sizes[1], phase=Phase.VERIFY)
    assert note.assigned_rank(sizes[1]) == reported.owner
    assert reported.owner == owner_after(opened, sizes[:2])
    assert owner_after(reported, sizes[2:]) == owner_after(opened, sizes)


def test_tasks_that_a_phase_recreates_are_dropped_on_resume() -> None:
    assert readdress(task_of(GatherHardLinks(3), owner=1, phase=Phase.LINK), 2) is None
    for note in (DigestDirectoriesOfDepth(3), SendManifestLines(), DeepestLevelNote(3)):
        assert readdress(task_of(note, owner=1, phase=Phase.SIGN), 2) is None


def test_signature_is_recomputed_from_stored_entries() -> None:
    entries = SignatureEntries(0, b"a", b"f", b"f", bytes(8), bytes(16), 0)
    assert owner_after(task_of(StoreSignatureEntries(entries), owner=4, phase=Phase.SIGN), [3]) == 1


def test_copied_inode_is_noted_at_the_rank_of_its_link_bucket() -> None:
    group = Item(0, 131, 10, ((PLACE, b"f"),), 0)
    copy = ItemCopy(ItemIdentity(0, 7), ContentInfo(b"f", 10, b"", VERSION), 0, b"\0")
    bucket = inode_bucket_number(131)
    copied = readdress(task_of(InodeCopiedNote(group, copy), owner=bucket % 2, phase=Phase.FINISH), 5)
    names = readdress(task_of(HardLinkNamesNote(PLACE, b"g", b"", b"", b"", 1, bucket), owner=bucket % 2), 5)
    assert copied is not None
    assert names is not None
    assert (copied.phase, copied.owner) == (Phase.COPY, names.owner)


def test_late_failures_are_retried_from_the_copy_phase() -> None:
    for phase in (Phase.LINK, Phase.VERIFY, Phase.SIGN):
        resumed = readdress(task_of(ReportFailures((), (), ()), owner=0, phase=phase), 3)
        assert resumed is not None
        assert (resumed.phase, resumed.owner) == (Phase.COPY, 0)
