"""Reports of a level to rank 0 are sent in parts, however many items of one directory differ."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

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
    SendSignatureEntries,
    SignatureEntriesNote,
    UnsentSignatureEntries,
)
from pcopy.tasks.sign.signing import MAX_ENTRIES_IN_MEMORY, SignatureState
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
            todo += spawned_by(run, Phase.LEVEL, encode_task(task))
    assert sorted(reported) == NAMES
    assert max(sizes) < DIFFERENCES_PER_MESSAGE + MAX_ENTRIES_IN_MEMORY, "a message is bounded"


def spawned_by(run: TaskRunner, phase: Phase, payload: bytes) -> list[Any]:
    """Run a task to its end, and return the tasks that it has spawned."""
    slices = run(Task((1, 0, 1), phase, payload, 0))
    while True:
        try:
            next(slices)
        except StopIteration as end:
            return [decode_task(spawn.payload) for spawn in end.value.spawned]


def chain_entries(depth: int) -> list[SignatureEntries]:
    """Entries of a chain of directories, of which each has two siblings."""
    paths, path = [b""], b""
    for number in range(depth):
        path += b"/" * bool(path) + b"d%d" % number
        paths += [path, path + b"x", path + b"y"]
    return [SignatureEntries(0, path, b"", b"d", bytes(8), bytes(16), 0) for path in paths]


def test_paths_of_a_chain_take_few_bytes_in_a_message_and_arrive_complete(
    area: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All of them together grow with the square of the depth."""
    (area / "source").mkdir()
    entries = chain_entries(500)
    received: list[bytes] = []
    sizes: list[int] = []
    with surroundings([root_of(area / "source", area / "source")], Options(hash="xxh3-128")) as (context, _):
        monkeypatch.setattr(
            context.shared_instance(SignatureState).digester, "add", lambda path, _: received.append(path)
        )
        for each in entries:
            context.shared_instance(UnsentSignatureEntries).store_entries(each)
        run = TaskRunner(context)
        todo: list[Any] = [SendSignatureEntries()]
        while todo:
            payload = encode_task(todo.pop())
            sizes.append(len(payload))
            todo += spawned_by(run, Phase.SIGN, payload)
    assert sorted(received) == sorted(each.path for each in entries)
    assert sum(len(each.path) for each in entries) > 1_500_000
    assert sum(sizes) < 300_000
