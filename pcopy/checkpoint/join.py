"""Tasks spawned less tasks done, with a bounded part of them in memory.

Both are partitioned on disk by some bits of a checksum of the task's id, so that each pair of parts can be compared
alone; a part that is still too large is partitioned again by the next bits. The checksum spreads ids evenly, which are
numbered one by one.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from typing import BinaryIO

from pcopy.checkpoint.record import ID_BYTES, pack_id, unpack_id
from pcopy.engine.backlog import Backlog, SpoolFactory
from pcopy.engine.task import Task
from pcopy.errors import Refused

BUDGET = 64 << 20
"""Bytes of memory for the ids of one part."""

_ENTRY = 128
"""Bytes of memory for an id in a set."""

_BITS = 5
_DEEPEST = 5
"""Levels, for 32 bits of checksum."""

_HELD = 1 << 16
_READ = 1 << 12


class _Ids:
    """Packed ids, in a spool beyond the first 64 KiB."""

    def __init__(self, open_spool: SpoolFactory) -> None:
        self._open_spool = open_spool
        self._spool: BinaryIO | None = None
        self._held = bytearray()
        self.count = 0

    def append(self, packed: bytes) -> None:
        self._held += packed
        self.count += 1
        if len(self._held) >= _HELD:
            if self._spool is None:
                self._spool = self._open_spool()
            view = memoryview(bytes(self._held))
            while view:  # an unbuffered file may take less than all at once
                view = view[self._spool.write(view) :]
            self._held.clear()

    def __iter__(self) -> Iterator[bytes]:
        if self._spool is not None:
            self._spool.seek(0)
            while block := self._spool.read(_READ * ID_BYTES):
                yield from _split(block)
        yield from _split(bytes(self._held))

    def close(self) -> None:
        if self._spool is not None:
            self._spool.close()


def _split(packed: bytes) -> Iterator[bytes]:
    return (packed[at : at + ID_BYTES] for at in range(0, len(packed), ID_BYTES))


class Join:
    """Takes tasks that were spawned and ids of those done, in any order; then gives the tasks that remain, once."""

    def __init__(
        self, open_spool: SpoolFactory, expected: int, *, where: str, budget: int = BUDGET, level: int = 0
    ) -> None:
        """``expected`` is how many tasks and ids will come; ``where`` names the run in errors."""
        self._open_spool, self._where, self._budget, self._level = open_spool, where, budget, level
        bits = 0
        while bits < _BITS and expected * _ENTRY > budget << bits:
            bits += 1
        self._shift, self._mask = level * _BITS, (1 << bits) - 1
        self._spawned = [Backlog(open_spool) for _ in range(1 << bits)]
        self._done = [_Ids(open_spool) for _ in range(1 << bits)]

    def _part(self, packed: bytes) -> int:
        return zlib.crc32(packed) >> self._shift & self._mask

    def spawned(self, task: Task) -> None:
        """May raise ``OSError`` from the spool, as ``done`` and ``remaining`` may."""
        self._spawned[self._part(pack_id(task.id))].append(task)

    def done(self, packed: bytes) -> None:
        self._done[self._part(packed)].append(packed)

    def remaining(self) -> Iterator[Task]:
        """What was spawned and not done.

        Raises ``Refused`` if a task was spawned twice, or done twice, or done and never spawned: then facts are missing
        or are no facts, and what remains cannot be told.
        """
        for spawned, done in zip(self._spawned, self._done, strict=True):
            entries = spawned.count + done.count
            if entries * _ENTRY > self._budget and self._level < _DEEPEST:
                yield from self._again(spawned, done, entries)
            else:
                yield from self._compare(spawned, done)
            spawned.close()
            done.close()

    def _again(self, spawned: Backlog, done: _Ids, entries: int) -> Iterator[Task]:
        """Partitions one part by the next bits."""
        finer = Join(self._open_spool, entries, where=self._where, budget=self._budget, level=self._level + 1)
        try:
            for task in drained(spawned):
                finer.spawned(task)
            for packed in done:
                finer.done(packed)
            yield from finer.remaining()
        finally:
            finer.close()

    def _compare(self, spawned: Backlog, done: _Ids) -> Iterator[Task]:
        settled: set[bytes] = set()
        for packed in done:
            if packed in settled:
                raise self._wrong(packed, "done twice")
            settled.add(packed)
        seen: set[bytes] = set()
        for task in drained(spawned):
            packed = pack_id(task.id)
            if packed in seen:
                raise self._wrong(packed, "spawned twice")
            seen.add(packed)
            if packed not in settled:
                yield task
        for packed in settled - seen:
            raise self._wrong(packed, "done and was never spawned")

    def _wrong(self, packed: bytes, what: str) -> Refused:
        run, rank, number = unpack_id(packed)
        return Refused(f"{self._where}: damaged: task {number} of rank {rank} in run {run} was {what}")

    def close(self) -> None:
        """Forgets everything."""
        for spawned, done in zip(self._spawned, self._done, strict=True):
            spawned.close()
            done.close()


def drained(backlog: Backlog) -> Iterator[Task]:
    """All tasks of a backlog, which leave it."""
    while tasks := backlog.take_frame():
        yield from tasks
