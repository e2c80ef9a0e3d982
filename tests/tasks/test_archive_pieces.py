"""Pieces do not depend on how many simple files one record contains."""

from __future__ import annotations

import io
import random
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from pcopy.archive.headers import archived_sizes_of_regular_files
from pcopy.fsio.backend.batches import MEMBER_ROW_FORMAT
from pcopy.signature.sorting import ExternalSorter, SortRecord
from pcopy.tasks.archive.descriptions import unpack_item_to_archive
from pcopy.tasks.archive.piece_layout import ArchiveLayout, ArchivePiecesNote, ReportPieces, UnreportedPieces
from pcopy.tasks.archive.pieces import PIECE_BYTES, PIECE_MEMBERS, archive_pieces_of_records
from pcopy.tasks.archive.simple_files import SimpleFiles, holds_simple_files, unpack_simple_files

TIME = 10**18 + 1
OWNERS = {(0, 0): (b"root", b"root")}


def files_of(path: bytes, names: list[bytes], size: int) -> SimpleFiles:
    whole = archived_sizes_of_regular_files([size], [TIME])[0]
    row = MEMBER_ROW_FORMAT.pack(1, size, 2, TIME, TIME, 0o100644, 0, 0, whole)
    return SimpleFiles(0, path, path + b"/", sorted(names), row * len(names), OWNERS)


def tree(chance: random.Random) -> Iterator[tuple[list[SortRecord], list[SortRecord]]]:
    """Yield records of each directory: as a scan in parts produces them, and with one file each."""
    for number in range(chance.randint(1, 12)):
        path, size = b"d%02d" % number, chance.choice((0, 5, 60_000))
        names = [b"%d" % each for each in range(chance.choice((0, 1, 3, 100, 257, 700)))]
        alone = files_of(path, names, size)
        single = [alone.file_description_in_row(row).record_for_sorting for row in range(len(alone))]
        chance.shuffle(names)
        parts: list[SortRecord] = []
        while names:
            some, names = names[: (cut := chance.choice((1, 50, 300)))], names[cut:]
            files = files_of(path, some, size)
            is_alone = chance.random() < 0.2
            parts += (
                [files.file_description_in_row(row).record_for_sorting for row in range(len(files))]
                if is_alone
                else [files.record_for_sorting]
            )
        yield parts, single


def members_of(value: bytes) -> list[tuple[bytes, bytes]]:
    if not holds_simple_files(value):
        described = unpack_item_to_archive(value)
        return [(described.path, described.name)]
    files = unpack_simple_files(value)
    return [(files.path, name) for name in files.names]


@pytest.mark.parametrize("seed", range(12))
def test_pieces_do_not_depend_on_records(seed: int) -> None:
    found = [*tree(random.Random(seed))]
    grouped, single = (sorted(record for part in side for record in part) for side in zip(*found, strict=True))
    for across in (False, True):
        one, other = (
            [
                (piece.key, piece.members, piece.size, [m for value in piece.packed_members for m in members_of(value)])
                for piece in each
            ]
            for each in (
                archive_pieces_of_records(iter(grouped), spans_directories=across),
                archive_pieces_of_records(iter(single), spans_directories=across),
            )
        )
        assert one == other
        assert [member for piece in one for member in piece[3]] == [m for _, value in single for m in members_of(value)]
        assert all(len(piece[3]) == piece[1] <= PIECE_MEMBERS and piece[2] < PIECE_BYTES + 70_000 for piece in one)


class LayingOut:
    """What the tasks of the layout use of a rank and of the result of a task."""

    number = 1

    def __init__(self, records: list[SortRecord]) -> None:
        pieces = archive_pieces_of_records(iter(records), spans_directories=False)
        self.unreported = SimpleNamespace(pieces=pieces)
        self.layout = SimpleNamespace(pieces=ExternalSorter(io.BytesIO))
        self.spawned: list[Any] = []

    def shared_instance(self, kind: type[object]) -> Any:
        return {UnreportedPieces: self.unreported, ArchiveLayout: self.layout}[kind]

    def program_options(self, _: type) -> Any:
        return SimpleNamespace(resumes=False)

    def spawn_task(self, task: Any, *, owner: int) -> None:
        self.spawned.append(task)


def test_keys_of_a_chain_take_few_bytes_in_a_message_and_arrive_complete() -> None:
    """The paths of a chain of directories grow with the square of its depth."""
    paths = [b""] + [b"/".join([b"d"] * depth) for depth in range(1, 600)]
    paths += [path + b"/x" for path in paths[1:]]
    files = (files_of(path, [b"file"], 5) for path in paths)
    records = sorted(each.file_description_in_row(0).record_for_sorting for each in files)
    rank: Any = LayingOut(records)
    ReportPieces().run(rank, rank)
    notes = [task for task in rank.spawned if isinstance(task, ArchivePiecesNote)]
    assert sum(len(key) for key, _ in records) > 500_000
    assert sum(len(note.keys) for note in notes) < 50_000
    while rank.spawned:
        rank.spawned.pop().run(rank, rank)
    assert [key for key, _ in rank.layout.pieces.sorted()] == [key for key, _ in records]
