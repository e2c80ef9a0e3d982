"""CopyChunk: some bytes of a large file, copied into its temporary file. HandChunks: which rank begins with which.

A chunk never creates: without its temporary file there is nothing to fill. Several writers of one host share its
network and its locks, so where there are several hosts each gets its part of the chunks first; ranks without work take
chunks from others, as ever. With ``--stripe-affinity`` a chunk is what lies on one OST, and nobody takes it from the
rank that it is for: so each rank writes to its own OSTs only.
"""

from __future__ import annotations

import zlib
from collections.abc import Generator, Iterator, Sequence
from contextlib import AbstractContextManager, closing, nullcontext

from pcopy.engine.task import Task
from pcopy.fsio.close import abandon, close_written
from pcopy.fsio.contents import digest_contents, has_holes
from pcopy.fsio.layout import Stripes
from pcopy.fsio.problem import Plain, Problem
from pcopy.fsio.source import check_unchanged, status_of
from pcopy.fsio.temporary import reopen
from pcopy.fsio.throttle import throttled
from pcopy.named import NamedTuple
from pcopy.tasks.base import counts
from pcopy.tasks.base.kind import Gone, Kind, Steps
from pcopy.tasks.base.rank import Rank
from pcopy.tasks.base.result import Result
from pcopy.tasks.base.values import OpenFile, Place, pack_numbers, unpack_numbers
from pcopy.tasks.files.chunk_ledger import ChunkDone
from pcopy.tasks.files.layouts import layout_at


class Chunk(NamedTuple):
    """The bytes from ``start`` to ``end``; with a ``stride`` (not 0) only the first ``run`` of each so many. ``part``
    is the number of the first run. Chunks with the same ``turn`` are begun by the same rank."""

    start: int
    end: int
    part: int
    stride: int = 0
    run: int = 0
    turn: int = 0


def in_order(size: int, chunk: int) -> list[Chunk]:
    """Chunks of so many bytes, one after the other."""
    starts = enumerate(range(0, size, chunk))
    return [Chunk(start, min(start + chunk, size), part, turn=part) for part, start in starts]


def by_ost(size: int, chunk: int, stripes: Stripes) -> list[Chunk]:
    """Chunks of about so many bytes, each of which lies on one OST."""
    around = stripes.size * len(stripes.osts)
    window = max(1, round(chunk / stripes.size)) * around
    return [
        Chunk(at, min(first + window, size), at // stripes.size, around, stripes.size, ost)
        for first in range(0, size, window)
        for at, ost in zip(range(first, size, stripes.size), stripes.osts, strict=False)
    ]


class OfChunk(Kind):
    """It is about chunks of ``file``."""

    file: OpenFile

    def about(self) -> tuple[Place, bytes]:
        return self.file.item.names[0]

    def mended(self, task: Task, gone: Gone) -> Iterator[Task]:
        is_lost = gone.has(self.file.item.place) or gone.has_chunk(self.file.temporary)
        return iter(()) if is_lost else iter((task,))


class CopyChunk(OfChunk, code=14, doing="copying a part of", is_note=False):
    """The bytes from ``start`` to ``end``, the chunk number ``part``. With a ``stride`` only the first ``run`` bytes of
    each so many, where ``part`` is the number of the first run. ``in_turn``: the next chunk follows it."""

    start: int
    end: int
    part: int
    stride: int
    run_bytes: int
    in_turn: bool

    def stretches(self) -> list[tuple[int, int]]:
        """Where each of its runs begins and ends."""
        stride, run = self.stride or self.end - self.start, self.run_bytes or self.end - self.start
        return [(at, min(at + run, self.end)) for at in range(self.start, self.end, stride)]

    def run(self, rank: Rank, result: Result) -> Steps:
        told: Plain | None = None
        roots: list[bytes] = []
        try:
            roots = yield from _copy(self, rank)
            rank.succeeded()
        except Problem as problem:
            rank.failed(problem, *self.about(), self.file.version.size)
            told = problem.plain
        step = self.stride // self.run_bytes if self.stride else 1
        runs, here = len(self.stretches()), rank.hosts.here
        result.spawn(ChunkDone(self.file.temporary, told, self.part, step, runs, b"".join(roots), here))
        size = self.file.version.size
        if self.in_turn and self.end < size:  # also after a problem: each is awaited, and fails quickly
            end = min(2 * self.end - self.start, size)
            result.spawn(self._replace(start=self.end, end=end, part=self.part + 1), end - self.end)


class HandChunks(OfChunk, code=20, doing="handing on parts of", is_note=False):
    """On the rank that begins with them: ``chunks``, six numbers each."""

    chunks: bytes

    def run(self, rank: Rank, result: Result) -> None:
        numbers = unpack_numbers(self.chunks)
        width = len(Chunk._fields)
        for at in range(0, len(numbers), width):
            _spawn(self.file, Chunk(*numbers[at : at + width]), result)


def spawn_chunks(file: OpenFile, chunks: Sequence[Chunk], rank: Rank, result: Result) -> None:
    """The ``chunks`` of a file: each host gets its part, or each rank for good where they lie on one OST each."""
    turns = {turn: number for number, turn in enumerate(dict.fromkeys(chunk.turn for chunk in chunks))}
    ranks, hosts = rank.hosts.by_turns, rank.hosts.number
    parts: dict[int, list[int]] = {}
    for chunk in chunks:
        if chunk.stride:
            _spawn(file, chunk, result, owner=ranks[turns[chunk.turn] % len(ranks)])
        elif hosts < 2:
            _spawn(file, chunk, result)
        else:
            parts.setdefault(ranks[turns[chunk.turn] % hosts], []).extend(chunk)
    for owner, numbers in parts.items():
        result.spawn(HandChunks(file, pack_numbers(numbers)), owner=owner)


def _spawn(file: OpenFile, chunk: Chunk, result: Result, owner: int | None = None) -> None:
    start, end, part, stride, run, _ = chunk
    size = sum(min(run, end - at) for at in range(start, end, stride)) if stride else end - start
    result.spawn(CopyChunk(file, start, end, part, stride, run, False), size, owner=owner)


def _copy(task: CopyChunk, rank: Rank) -> Generator[None, None, list[bytes]]:
    """Returns each run's content root, if digests are wanted."""
    file = task.file
    place = file.item.place
    with rank.reading(place, file.item.name) as reading:
        check_unchanged(reading, file.version)
        writing = -1
        if not (file.cloned and rank.digests):
            writing = reopen(rank.open_target(place), rank.written_as(file), file.made, file.version.size, file.shown)
        try:
            with (yield from _shared(task, rank, writing)):
                roots = yield from _copy_runs(task, rank, reading, writing)
            check_unchanged(reading, file.version)
        except BaseException:
            if writing >= 0:
                abandon(writing)
            raise
        if writing >= 0:
            sync = rank.syncs_items(place)
            try:
                if not sync and _must_store(task, rank):
                    from pcopy.tasks.base.storing import data_stored

                    yield from data_stored(rank, writing)
            except BaseException:
                abandon(writing)
                raise
            close_written(writing, sync=sync)
    return roots


def _must_store(task: CopyChunk, rank: Rank) -> bool:
    """True if the chunk counts as copied only when its contents are on stable storage: the file was given its size
    before.

    With several hosts no other host can store what this one holds in its cache. On one host the last of the chunks that
    follow one another waits for all of them. FinishFile stores the rest.
    """
    file = task.file
    if not rank.options.sync or rank.keeps:  # what is named last is stored by the phase STORE
        return False
    return rank.hosts.number > 1 or (task.in_turn and task.end == file.version.size and not file.over)


def _copy_runs(task: CopyChunk, rank: Rank, reading: int, writing: int) -> Generator[None, None, list[bytes]]:
    roots = []
    holes = has_holes(status_of(reading, on_source=True))
    for start, end in task.stretches():
        hasher = rank.hasher()
        if writing < 0 and hasher is not None:
            steps = throttled(digest_contents(reading, start, end, hasher, holes=holes), rank.throttle)
        else:
            devices = rank.devices(task.file.item.place)
            steps = rank.mover.copy(reading, writing, start, end, devices, holes=holes, digest=hasher)
        with closing(steps):  # what is done beside ends before the files are closed
            for moved in steps:
                rank.counters[counts.MOVED] += moved
                yield
        if hasher is not None:
            roots.append(hasher.root())
    return roots


def _shared(task: CopyChunk, rank: Rank, writing: int) -> Generator[None, None, AbstractContextManager[None]]:
    """The lock that all who write to the file share, where the user wants that."""
    options = rank.options
    if writing < 0 or not (options.group_lock or options.direct):
        return nullcontext()
    group = zlib.crc32(task.file.temporary) & 0x7FFFFFFF | 1
    return (yield from layout_at(rank, task.file.item.place).shared(writing, group, insists=options.group_lock))
