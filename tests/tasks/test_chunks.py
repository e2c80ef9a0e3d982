"""The order in which chunks of a file are copied: in sequence between local file systems, else concurrently."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from blake3 import blake3

from pcopy.engine.task import Task
from pcopy.fsio import copy_methods
from pcopy.fsio.identity import identity_of_open_item
from pcopy.fsio.preserve import PreservedMetadataKinds
from pcopy.fsio.source import FileContentVersion
from pcopy.tasks.base import distribution
from pcopy.tasks.base.codec import decode_task, encode_task
from pcopy.tasks.base.job import Options
from pcopy.tasks.base.phases import Phase
from pcopy.tasks.base.values import ChunkedFile, Item, Place
from pcopy.tasks.files.chunk_ledger import ChunkCopiedNote, ChunkLedger, LargeFileOpenedNote
from pcopy.tasks.files.copy_chunk import CopyChunk
from pcopy.tasks.runner import TaskRunner
from tests.support.filesystems import Place as PlaceOn
from tests.support.reference_signature import of_file
from tests.tasks.one_rank import consistent, copy, root_of, surroundings

BLOCK = 1 << 20
SIZE = 12 * BLOCK + 12_345


@pytest.fixture
def places(area: Path) -> tuple[Path, Path]:
    """A source with one file of ``SIZE`` bytes, and its target."""
    source, target = area / "source", area / "target"
    source.mkdir()
    target.mkdir()
    (source / "large").write_bytes(random.Random(1).randbytes(SIZE))
    return source, target


class Order:
    """Records how many chunks had been spawned before each one ran."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.starts: list[int] = []
        self.waiting: list[int] = []
        self._made = 0
        real = CopyChunk.__new__

        def made(cls: type[CopyChunk], *values: Any, **named: Any) -> CopyChunk:
            self._made += 1
            return real(cls, *values, **named)

        monkeypatch.setattr(CopyChunk, "__new__", made)

    def __call__(self, value: Any) -> None:
        if isinstance(value, CopyChunk):
            self.starts.append(value.start)
            self.waiting.append(self._made - len(self.starts))


@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("known", [True, False], ids=["local", "of servers"])
@pytest.mark.parametrize("hash_", ["", "blake3"])
def test_chunks_between_local_file_systems_are_copied_in_sequence(
    places: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch, ranks: int, known: bool, hash_: str
) -> None:
    source, target = places
    if not known:
        monkeypatch.setattr(copy_methods, "TRAITS_BY_FILE_SYSTEM_TYPE", {})
    order = Order(monkeypatch)
    options: dict[str, Any] = {"chunk_size": 2 * BLOCK, "block_size": BLOCK, "hash": hash_}
    totals = consistent(copied := copy(root_of(source, target), ranks=ranks, before=order, **options))
    assert totals.files == 1, copied.failures
    assert (target / "large").read_bytes() == (source / "large").read_bytes()
    assert sorted(order.starts) == list(range(0, SIZE, 2 * BLOCK))
    if known or ranks == 1:
        assert order.starts == sorted(order.starts)
        assert set(order.waiting) == {0}
    else:
        assert max(order.waiting) == len(order.starts) - 1


@pytest.mark.parametrize("served", ["source", "target"])
def test_chunks_are_copied_concurrently_if_one_side_is_a_server(
    on: PlaceOn, places: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch, served: str
) -> None:
    ext4 = on("ext4")
    source, target = (ext4, places[1]) if served == "source" else (places[0], ext4)
    if served == "source":
        (source / "large").write_bytes((places[0] / "large").read_bytes())
    monkeypatch.delitem(copy_methods.TRAITS_BY_FILE_SYSTEM_TYPE, 0xEF53)
    order = Order(monkeypatch)
    consistent(copy(root_of(source, target), ranks=2, before=order, chunk_size=BLOCK, block_size=BLOCK))
    assert max(order.waiting) == len(order.starts) - 1
    assert (target / "large").read_bytes() == (source / "large").read_bytes()


def test_failed_chunk_ends_the_following_chunks(places: tuple[Path, Path]) -> None:
    source, target = places

    def steal(value: Any) -> None:
        if isinstance(value, CopyChunk) and value.part == 2:
            for path in target.iterdir():
                path.unlink()

    options: dict[str, Any] = {"chunk_size": BLOCK, "block_size": BLOCK}
    totals = consistent(copied := copy(root_of(source, target), ranks=2, before=steal, **options))
    assert (totals.files, totals.failed) == (0, 1), copied.failures
    assert list(target.iterdir()) == []


def test_sequential_chunks_are_larger_unless_a_size_is_given(
    places: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    source, target = places
    monkeypatch.setattr(distribution, "MIN_CHUNK", BLOCK)
    monkeypatch.setattr("pcopy.tasks.files.split_file.MIN_SEQUENTIAL_CHUNK", 4 * BLOCK)
    for asked, chunk in ((0, 4 * BLOCK), (2 * BLOCK, 2 * BLOCK)):
        order = Order(monkeypatch)
        consistent(copy(root_of(source, target), ranks=2, before=order, chunk_size=asked, block_size=BLOCK))
        assert order.starts == list(range(0, SIZE, chunk))


@pytest.fixture
def opened(places: tuple[Path, Path]) -> Iterator[tuple[Any, ChunkedFile, Path]]:
    """A rank that computes digests, and a file whose temporary file exists and is empty."""
    source, target = places
    with surroundings(
        [root_of(source, target)], Options(PreservedMetadataKinds(), hash="blake3", block_size=BLOCK), 2
    ) as (rank, _):
        status = (source / "large").stat()
        place = Place(
            0, b"", rank.sources[0].identity_of_directory(b""), rank.targets[0].identity_of_directory(b""), False, False
        )
        temporary = rank.temporary_names.next_name()
        path = target / os.fsdecode(temporary)
        descriptor = os.open(path, os.O_CREAT | os.O_RDWR, 0o600)
        os.ftruncate(descriptor, SIZE)
        made = identity_of_open_item(descriptor, os.fstat(descriptor), place.target_id.mount_code, created_by_job=True)
        os.close(descriptor)
        item = Item(0, status.st_ino, SIZE, ((place, b"large"),), 0)
        yield rank, ChunkedFile(item, FileContentVersion.from_status(status), temporary, made), path


def run(rank: Any, value: Any, number: int) -> list[Any]:
    """Run a task and return the tasks that it spawns."""
    slices = TaskRunner(rank)(Task((1, 0, number), int(Phase.COPY), encode_task(value), 0))
    try:
        while True:
            next(slices)
    except StopIteration as end:
        return [decode_task(spawn.payload) for spawn in end.value.spawned]


def test_chunk_may_consist_of_every_third_stripe(
    places: tuple[Path, Path], opened: tuple[Any, ChunkedFile, Path]
) -> None:
    """These are the stripes of one server. The digest of the file does not depend on the division."""
    rank, file, path = opened
    contents = (places[0] / "large").read_bytes()
    run(rank, LargeFileOpenedNote(file, 3, BLOCK), 1)
    finishes = []
    for first in (1, 0, 2):
        chunk = CopyChunk(file, first * BLOCK, SIZE, first, 3 * BLOCK, BLOCK, False)
        (note,) = run(rank, chunk, 2 + first)
        assert isinstance(note, ChunkCopiedNote) and note.problem is None
        assert (note.part, note.step, note.runs) == (first, 3, len(range(first * BLOCK, SIZE, 3 * BLOCK)))
        if first == 1:  # only its own stripes are written
            for at in range(0, SIZE, BLOCK):
                expected = contents[at : at + BLOCK] if at // BLOCK % 3 == 1 else bytes(len(contents[at : at + BLOCK]))
                assert path.read_bytes()[at : at + BLOCK] == expected
        finishes += run(rank, note, 10 + first)
    (finish,) = finishes
    assert path.read_bytes() == contents
    assert finish.digest == of_file(contents, BLOCK, lambda data: blake3(data).digest())
    assert len(finish.writers) == -(-SIZE // BLOCK)
    assert not rank.shared_instance(ChunkLedger).awaited
