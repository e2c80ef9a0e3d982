"""A large sparse file is compared in as many parts as its data requires, not as its size does."""

from __future__ import annotations

import os
from pathlib import Path

from pcopy.tasks.base.codec import decode_task
from pcopy.tasks.base.distribution import SPARSE_CHUNKS_PER_RANK
from pcopy.tasks.base.job import CompareOptions, Options
from pcopy.tasks.base.phases import Phase
from pcopy.tasks.base.result import TaskResult
from pcopy.tasks.base.values import Place
from pcopy.tasks.compare.contents import CompareFilePart, CompareLargeFile
from pcopy.tasks.runner import make_task_outcome
from tests.tasks.one_rank import root_of, surroundings

RANKS, SIZE = 2, 1 << 42


def test_sparse_file_is_compared_in_as_many_parts_as_its_data_makes(tmp_path: Path) -> None:
    sides = [tmp_path / "one", tmp_path / "other"]
    inodes = []
    for side in sides:
        side.mkdir()
        (side / "file").write_bytes(b"data")
        os.truncate(side / "file", SIZE)
        inodes.append((side / "file").stat().st_ino)
    roots = [root_of(side, side) for side in sides]
    with surroundings(roots, Options(hash="xxh3-128"), RANKS, program=CompareOptions(), against=b"") as (rank, _):
        one, other = (rank.sources[side].identity_of_directory(b"") for side in (0, 1))
        place = Place(0, b"", one, other, False, False)
        result = TaskResult(rank, Phase.COPY, (1, 0, 1))
        for _ in CompareLargeFile(place, b"file", 0, SIZE, *inodes).run(rank, result) or ():
            pass
        spawned = [decode_task(spawn.payload) for spawn in make_task_outcome(result, rank).spawned]
    parts = [task for task in spawned if isinstance(task, CompareFilePart)]
    assert 2 <= len(parts) <= SPARSE_CHUNKS_PER_RANK * RANKS
    assert sum(part.end - part.start for part in parts) == SIZE
