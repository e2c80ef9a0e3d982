"""Reports of a level to rank 0 are sent in parts, however many items of one directory differ."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pcopy.engine.task import Task
from pcopy.fsio.backend.columns import pack_names
from pcopy.tasks.base.codec import decode_task, encode_task
from pcopy.tasks.base.job import Options
from pcopy.tasks.base.phases import Phase
from pcopy.tasks.base.values import SignatureEntries, pack_numbers
from pcopy.tasks.runner import TaskRunner
from pcopy.tasks.sign.digest_level import (
    DIFFERENCES_PER_MESSAGE,
    DifferencesNote,
    DigestDirectoriesOfDepth,
    SignatureEntriesNote,
)
from pcopy.tasks.sign.signing import MAX_ENTRIES_IN_MEMORY
from tests.tasks.one_rank import root_of, surroundings

NAMES = [b"name-%05d" % number for number in range(12_000)]


def listed(side: int, names: list[bytes]) -> SignatureEntriesNote:
    """The directory itself, and files with these ``names``."""
    kinds, numbers = b"d" + b"f" * len(names), pack_numbers([0] * (1 + len(names)))
    return SignatureEntriesNote(
        (SignatureEntries(side, b"", pack_names([b"", *names]), kinds, numbers, bytes(16 * len(kinds)), 0),)
    )


def test_missing_directory_is_reported_in_parts(area: Path) -> None:
    (area / "source").mkdir()
    reported: list[bytes] = []
    sizes: list[int] = []
    with surroundings([root_of(area / "source", area / "source")], Options(hash="xxh3-128"), against=b"-") as (
        context,
        _,
    ):
        run = TaskRunner(context)
        todo: list[Any] = [DigestDirectoriesOfDepth(0), listed(1, []), listed(0, NAMES)]
        while todo:
            task = todo.pop()
            if isinstance(task, DifferencesNote):
                sizes.append(len(task.rows))
                reported += (path for what, path in task.rows if what == "missing")
                continue
            slices = run(Task((1, 0, 1), Phase.LEVEL, encode_task(task), 0))
            while True:
                try:
                    next(slices)
                except StopIteration as end:
                    todo += (decode_task(spawn.payload) for spawn in end.value.spawned)
                    break
    assert sorted(reported) == NAMES
    assert max(sizes) < DIFFERENCES_PER_MESSAGE + MAX_ENTRIES_IN_MEMORY, "a message is bounded"
