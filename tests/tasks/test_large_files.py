"""Files that are split into chunks, and that change between the scan, their opening and their end."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from pcopy.engine.task import Task
from pcopy.fsio.identity import ItemIdentity
from pcopy.fsio.preserve import PreservedMetadataKinds
from pcopy.fsio.source import FileContentVersion
from pcopy.fsio.temporary import TemporaryNameGenerator
from pcopy.tasks.base import distribution
from pcopy.tasks.base.codec import decode_task, encode_task
from pcopy.tasks.base.job import Options
from pcopy.tasks.base.phases import Phase
from pcopy.tasks.base.values import ChunkedFile, Item, Place
from pcopy.tasks.directories.scan_dir import ScanNames
from pcopy.tasks.files.copy_chunk import CopyChunk
from pcopy.tasks.files.finish_file import FinishFile
from pcopy.tasks.files.split_file import SplitFile
from pcopy.tasks.report_failures import ReportFailures
from pcopy.tasks.runner import TaskRunner
from tests.tasks.one_rank import consistent, copy, once, root_of, surroundings

SIZE = 40 << 20
BLOCK = 4 << 20
SPLIT: dict[str, Any] = {"ranks": 4, "chunk_size": BLOCK, "block_size": BLOCK}


@pytest.fixture
def places(area: Path) -> tuple[Path, Path]:
    """A source with one sparse file of ``SIZE`` bytes, and its target."""
    source, target = area / "source", area / "target"
    source.mkdir()
    target.mkdir()
    with open(source / "large", "wb") as file:
        file.truncate(SIZE)
        for start in range(0, SIZE, 3 << 20):
            os.pwrite(file.fileno(), b"%d" % start, start)
    return source, target


@pytest.mark.parametrize("found", [SIZE, SIZE // 5], ids=["whole", "before it grew"])
def test_number_of_chunks_is_bounded_even_for_a_grown_file(
    places: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch, found: int
) -> None:
    """All chunks become tasks at the same time, and a file may have grown since it was found."""
    monkeypatch.setattr(distribution, "MAX_CHUNKS", 3)
    source, target = places
    os.truncate(source / "large", found)
    copied_chunks: list[int] = []

    def before(value: Any) -> None:
        if isinstance(value, SplitFile):
            os.truncate(source / "large", SIZE)
        elif isinstance(value, CopyChunk):
            copied_chunks.append(value.start)

    totals = consistent(copied := copy(root_of(source, target), before=before, **SPLIT))
    assert (totals.files, totals.failed) == (1, 0), copied.failures
    assert sorted(copied_chunks) == [0, 16 << 20, 32 << 20]
    assert (target / "large").read_bytes() == (source / "large").read_bytes()


def leftovers(target: Path) -> list[str]:
    return [path.name for path in target.iterdir() if path.name.startswith(".pcopy")]


@pytest.mark.parametrize("left", [0, 1, BLOCK, SIZE - 1])
def test_file_truncated_before_its_split_is_copied(places: tuple[Path, Path], left: int) -> None:
    """As with a rotated log: a file that has become empty has no chunk that could be the last one."""
    source, target = places
    hook = once(SplitFile, lambda: os.truncate(source / "large", left))
    totals = consistent(copied := copy(root_of(source, target), before=hook, **SPLIT))
    assert (totals.files, totals.failed) == (1, 0), copied.failures
    assert (target / "large").read_bytes() == (source / "large").read_bytes()
    assert not leftovers(target)


@pytest.mark.parametrize("kind", [CopyChunk, FinishFile])
@pytest.mark.parametrize("size", [0, SIZE // 2, 2 * SIZE])
def test_file_of_changing_size_is_copied_again(places: tuple[Path, Path], kind: type[Any], size: int) -> None:
    source, target = places
    hook = once(kind, lambda: os.truncate(source / "large", size))
    totals = consistent(copied := copy(root_of(source, target), before=hook, **SPLIT))
    assert (totals.files, totals.failed) == (1, 0), copied.failures
    assert (target / "large").read_bytes() == (source / "large").read_bytes()
    assert not leftovers(target)


def test_file_that_vanishes_during_its_copy_fails(places: tuple[Path, Path]) -> None:
    source, target = places
    totals = consistent(copy(root_of(source, target), before=once(FinishFile, (source / "large").unlink), **SPLIT))
    assert (totals.failed, totals.vanished) == (1, 1)
    assert list(target.iterdir()) == []


def test_file_that_changes_in_both_attempts_fails(places: tuple[Path, Path]) -> None:
    source, target = places

    def touch(value: Any) -> None:
        if isinstance(value, FinishFile):
            os.utime(source / "large", ns=(7, os.stat(source / "large").st_mtime_ns + 1))

    totals = consistent(copy(root_of(source, target), before=touch, **SPLIT))
    assert (totals.failed, totals.changed) == (1, 1)
    assert list(target.iterdir()) == []


@pytest.mark.parametrize("sparse", [True, False])
def test_sparse_file_is_copied_in_chunks(places: tuple[Path, Path], sparse: bool) -> None:
    source, target = places
    consistent(copied := copy(root_of(source, target), preserve=PreservedMetadataKinds(sparse=sparse), **SPLIT))
    assert copied.kinds.count("CopyChunk") == SIZE // BLOCK
    assert (target / "large").read_bytes() == (source / "large").read_bytes()
    if sparse:
        assert (target / "large").stat().st_blocks <= (source / "large").stat().st_blocks


def test_removed_temporary_file_is_created_again_once(places: tuple[Path, Path]) -> None:
    """It is created again once. If it is removed again, the file fails and nothing is left: the cause is unknown."""
    source, target = places

    def steal() -> None:
        for name in leftovers(target):
            (target / name).unlink()

    consistent(copied := copy(root_of(source, target), before=once(CopyChunk, steal), **SPLIT))
    assert (copied.totals.files, copied.failures) == (1, [])
    assert [path.name for path in target.iterdir()] == ["large"]
    assert (target / "large").read_bytes() == (source / "large").read_bytes()
    (target / "large").unlink()

    def always(value: Any) -> None:
        if isinstance(value, CopyChunk):
            steal()

    totals = consistent(copied := copy(root_of(source, target), before=always, **SPLIT))
    assert totals.failed == 1
    assert copied.failures[0].operation == "open"
    assert list(target.iterdir()) == []


def test_names_of_a_large_file_stay_one_inode(places: tuple[Path, Path]) -> None:
    source, target = places
    os.link(source / "large", source / "also")
    hook = once(FinishFile, lambda: os.truncate(source / "large", SIZE // 2))
    totals = consistent(copy(root_of(source, target), before=hook, **SPLIT))
    assert (totals.files, totals.hardlinks, totals.failed) == (1, 1, 0)
    assert (target / "also").stat().st_ino == (target / "large").stat().st_ino


def test_hard_links_are_not_made_to_a_skipped_large_file(places: tuple[Path, Path]) -> None:
    source, target = places
    os.link(source / "large", source / "also")
    for name in ("large", "also"):
        (target / name).write_bytes(b"old")
        totals = consistent(copy(root_of(source, target), existing="skip", **SPLIT))
        assert (totals.skipped, totals.files, totals.failed) == (1, 1, 0)
        for path in target.iterdir():
            assert path.read_bytes() == (b"old" if path.name == name else (source / "large").read_bytes())
            path.unlink()


def test_failed_close_after_a_failed_write_fails_only_the_file(
    places: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """NFS reports an exceeded quota twice. The file fails, not the job."""
    source, target = places
    real_write, real_close = os.pwrite, os.close
    broken: set[int] = set()

    def pwrite(descriptor: int, data: Any, offset: int) -> int:
        broken.add(descriptor)
        raise OSError(122, "Disk quota exceeded")

    def close(descriptor: int) -> None:
        real_close(descriptor)
        if descriptor in broken:
            broken.discard(descriptor)
            raise OSError(122, "Disk quota exceeded")

    def no_copy(*_: Any) -> int:
        raise OSError(95, "Operation not supported")

    (source / "small").write_bytes(b"1")
    (target / "small").write_bytes(b"old")
    os.truncate(source / "small", 1 << 20)  # sparse files take the slow path
    monkeypatch.setattr(os, "copy_file_range", no_copy)
    monkeypatch.setattr(os, "pwrite", pwrite)
    monkeypatch.setattr(os, "close", close)
    totals = consistent(copied := copy(root_of(source, target), **SPLIT))
    monkeypatch.setattr(os, "pwrite", real_write)
    assert totals.failed == 2
    assert {(failure.operation, failure.errno) for failure in copied.failures} == {("write", 122)}
    assert [path.name for path in target.iterdir()] == ["small"]


@pytest.mark.parametrize(("made_in", "spawned"), [(1, ScanNames), (2, ReportFailures)])
def test_incomplete_copy_of_an_earlier_run_counts_as_no_attempt(
    places: tuple[Path, Path], made_in: int, spawned: type[Any]
) -> None:
    """The temporary file is missing. That of an earlier run may have been renamed without a record."""
    source, target = places
    status = (source / "large").stat()
    with surroundings([root_of(source, target)], Options(PreservedMetadataKinds())) as (context, _):
        context.job = context.job._replace(run=2)
        place = Place(
            0,
            b"",
            context.sources[0].identity_of_directory(b""),
            context.targets[0].identity_of_directory(b""),
            False,
            False,
        )
        item = Item(0, status.st_ino, SIZE, ((place, b"large"),), 1)
        file = ChunkedFile(
            item,
            FileContentVersion.from_status(status),
            TemporaryNameGenerator("test", made_in, 0).next_name(),
            ItemIdentity(0, 1),
        )
        task = Task((made_in, 0, 1), int(Phase.LINK), encode_task(FinishFile(file, b"", BLOCK, b"\0")), 0)
        slices = TaskRunner(context)(task)
        with pytest.raises(StopIteration) as ended:
            while True:
                next(slices)
        (only,) = ended.value.value.spawned
        assert isinstance(decode_task(only.payload), spawned)
