"""CopyChunk copies a part of a large file into its temporary file; HandChunks distributes the parts over ranks.

A chunk never creates a file: if the temporary file was removed, the chunk fails. If there are several hosts, each is
first given its share of the chunks, because several writers on one host share its network and its locks. Ranks without
work steal chunks from others, like any other tasks. With ``--stripe-affinity`` a chunk contains the stripes on one OST
and is never stolen from the rank that it was given to, so that each rank writes to its own OSTs only.
"""

from __future__ import annotations

import zlib
from collections.abc import Generator, Iterator, Sequence
from contextlib import AbstractContextManager, closing, nullcontext

from pcopy.engine.task import Task
from pcopy.fast_named_tuple import NamedTuple
from pcopy.fsio.close import close_after_failure, close_after_write
from pcopy.fsio.contents import digest_contents, may_have_holes
from pcopy.fsio.layout import FileStripes
from pcopy.fsio.problem import PackedProblem, Problem
from pcopy.fsio.source import check_unchanged, status_of
from pcopy.fsio.temporary import reopen_temporary
from pcopy.fsio.throttle import throttled
from pcopy.tasks.base import counts
from pcopy.tasks.base.kind import MissingDirectories, Steps, TaskKind
from pcopy.tasks.base.rank import Rank
from pcopy.tasks.base.result import TaskResult
from pcopy.tasks.base.values import ChunkedFile, Place, pack_numbers, unpack_numbers
from pcopy.tasks.files.chunk_ledger import ChunkDone
from pcopy.tasks.files.layouts import target_layout


class Chunk(NamedTuple):
    """A part of a large file.

    Fields:
        start, end: first byte, and the byte after the last one.
        part: number of the first run.
        stride: distance in bytes between the starts of two runs; 0 if the chunk is one run from ``start`` to ``end``.
        run: size of a run in bytes, if there is a ``stride``.
        turn: number of a group of chunks. All chunks of a group are first given to the same rank.
    """

    start: int
    end: int
    part: int
    stride: int = 0
    run: int = 0
    turn: int = 0


def consecutive_chunks(size: int, chunk: int) -> list[Chunk]:
    """Return consecutive chunks of ``chunk`` bytes that make up a file of ``size`` bytes."""
    starts = enumerate(range(0, size, chunk))
    return [Chunk(start, min(start + chunk, size), part, turn=part) for part, start in starts]


def chunks_by_ost(size: int, chunk: int, stripes: FileStripes) -> list[Chunk]:
    """Return chunks of about ``chunk`` bytes that make up a file of ``size`` bytes. Each chunk contains stripes of one
    OST only.
    """
    around = stripes.stripe_size * len(stripes.osts)
    window = max(1, round(chunk / stripes.stripe_size)) * around
    return [
        Chunk(at, min(first + window, size), at // stripes.stripe_size, around, stripes.stripe_size, ost)
        for first in range(0, size, window)
        for at, ost in zip(range(first, size, stripes.stripe_size), stripes.osts, strict=False)
    ]


class ChunkTask(TaskKind):
    """Base class of tasks about chunks of the large file ``file``."""

    file: ChunkedFile

    def subject(self) -> tuple[Place, bytes]:
        return self.file.item.names[0]

    def replacement_tasks(self, task: Task, missing: MissingDirectories) -> Iterator[Task]:
        is_lost = missing.contains(self.file.item.place) or missing.is_chunk_obsolete(self.file.temporary)
        return iter(()) if is_lost else iter((task,))


class CopyChunk(ChunkTask, code=14, doing="copying a part of", is_note=False):
    """Task that copies the bytes from ``start`` to ``end`` of a large file.

    Fields:
        part: number of the chunk, or of its first run if there is a ``stride``.
        stride: distance in bytes between the starts of two runs; 0 if the whole range is copied.
        run_bytes: size of a run in bytes, if there is a ``stride``.
        in_turn: True if this task spawns the one for the next chunk, so that chunks are copied one after the other.
    """

    start: int
    end: int
    part: int
    stride: int
    run_bytes: int
    in_turn: bool

    def runs(self) -> list[tuple[int, int]]:
        """Return start and end of each run of the chunk."""
        stride, run = self.stride or self.end - self.start, self.run_bytes or self.end - self.start
        return [(at, min(at + run, self.end)) for at in range(self.start, self.end, stride)]

    def run(self, rank: Rank, result: TaskResult) -> Steps:
        failure: PackedProblem | None = None
        roots: list[bytes] = []
        try:
            roots = yield from _copy_chunk(self, rank)
            rank.record_success()
        except Problem as problem:
            rank.handle_failure(problem, *self.subject(), self.file.version.size)
            failure = problem.packed
        step = self.stride // self.run_bytes if self.stride else 1
        runs, here = len(self.runs()), rank.hosts.this_host
        result.spawn(ChunkDone(self.file.temporary, failure, self.part, step, runs, b"".join(roots), here))
        size = self.file.version.size
        # The next chunk is spawned after a failure too: the owner awaits every chunk, and each fails quickly.
        if self.in_turn and self.end < size:
            end = min(2 * self.end - self.start, size)
            result.spawn(self._replace(start=self.end, end=end, part=self.part + 1), end - self.end)


class DistributeChunks(ChunkTask, code=20, doing="distributing parts of", is_note=False):
    """Task that spawns tasks for ``chunks`` on the rank that receives it. Each chunk is packed as six numbers."""

    chunks: bytes

    def run(self, rank: Rank, result: TaskResult) -> None:
        numbers = unpack_numbers(self.chunks)
        width = len(Chunk._fields)
        for at in range(0, len(numbers), width):
            _spawn_chunk(self.file, Chunk(*numbers[at : at + width]), result)


def spawn_chunks(file: ChunkedFile, chunks: Sequence[Chunk], rank: Rank, result: TaskResult) -> None:
    """Spawn tasks for the ``chunks`` of a file.

    With several hosts each host receives a share of them, which other ranks may steal. Chunks that each lie on one OST
    are assigned to one rank, and cannot be stolen.
    """
    turns = {turn: number for number, turn in enumerate(dict.fromkeys(chunk.turn for chunk in chunks))}
    ranks, hosts = rank.hosts.ranks_round_robin, rank.hosts.host_count
    parts: dict[int, list[int]] = {}
    for chunk in chunks:
        if chunk.stride:
            _spawn_chunk(file, chunk, result, owner=ranks[turns[chunk.turn] % len(ranks)])
        elif hosts < 2:
            _spawn_chunk(file, chunk, result)
        else:
            parts.setdefault(ranks[turns[chunk.turn] % hosts], []).extend(chunk)
    for owner, numbers in parts.items():
        result.spawn(DistributeChunks(file, pack_numbers(numbers)), owner=owner)


def _spawn_chunk(file: ChunkedFile, chunk: Chunk, result: TaskResult, owner: int | None = None) -> None:
    """Spawn the task for one chunk."""
    start, end, part, stride, run, _ = chunk
    size = sum(min(run, end - at) for at in range(start, end, stride)) if stride else end - start
    result.spawn(CopyChunk(file, start, end, part, stride, run, False), size, owner=owner)


def _copy_chunk(task: CopyChunk, rank: Rank) -> Generator[None, None, list[bytes]]:
    """Copy the chunk. Return the content root of each run; an empty list if no digests are computed."""
    file = task.file
    place = file.item.place
    with rank.open_for_reading(place, file.item.name) as reading:
        check_unchanged(reading, file.version)
        writing = -1
        if not (file.is_cloned and rank.has_digests):
            writing = reopen_temporary(
                rank.open_target(place),
                rank.name_while_written(file),
                file.identity,
                file.version.size,
                file.server_status,
            )
        try:
            with (yield from _group_lock(task, rank, writing)):
                roots = yield from _copy_runs(task, rank, reading, writing)
            check_unchanged(reading, file.version)
        except BaseException:
            if writing >= 0:
                close_after_failure(writing)
            raise
        if writing >= 0:
            sync = rank.syncs_items(place)
            try:
                if not sync and _is_stored_before_done(task, rank):
                    from pcopy.tasks.base.storing import wait_for_data_stored

                    yield from wait_for_data_stored(rank, writing)
            except BaseException:
                close_after_failure(writing)
                raise
            close_after_write(writing, sync=sync)
    return roots


def _is_stored_before_done(task: CopyChunk, rank: Rank) -> bool:
    """Return True if the chunk must be on stable storage before it counts as copied, because the file was extended to
    its full size before it was written.

    With several hosts no other host can store the contents of this host's cache. On one host the last of the chunks
    that are copied one after the other waits for all of them. FinishFile stores the rest.
    """
    file = task.file
    if not rank.options.sync or rank.names_late:  # files that are named in NAME are brought to storage by STORE before
        return False
    return rank.hosts.host_count > 1 or (task.in_turn and task.end == file.version.size and not file.overwritten_owner)


def _copy_runs(task: CopyChunk, rank: Rank, reading: int, writing: int) -> Generator[None, None, list[bytes]]:
    """Copy each run of the chunk, or only digest it if ``writing`` is negative. Return the content roots."""
    roots = []
    holes = may_have_holes(status_of(reading, on_source=True))
    for start, end in task.runs():
        hasher = rank.new_hasher()
        if writing < 0 and hasher is not None:
            steps = throttled(digest_contents(reading, start, end, hasher, may_have_holes=holes), rank.throttle)
        else:
            devices = rank.source_and_target_device(task.file.item.place)
            steps = rank.mover.copy_range(reading, writing, start, end, devices, may_have_holes=holes, digest=hasher)
        with closing(steps):  # a thread that copies ends before the files are closed
            for moved in steps:
                rank.counters[counts.MOVED] += moved
                yield
        if hasher is not None:
            roots.append(hasher.root())
    return roots


def _group_lock(task: CopyChunk, rank: Rank, writing: int) -> Generator[None, None, AbstractContextManager[None]]:
    """Return a context manager that holds the group lock which all writers of the file share, if the user wants one;
    else one that does nothing.
    """
    options = rank.options
    if writing < 0 or not (options.group_lock or options.direct):
        return nullcontext()
    group = zlib.crc32(task.file.temporary) & 0x7FFFFFFF | 1
    return (
        yield from target_layout(rank, task.file.item.place).group_lock(writing, group, is_required=options.group_lock)
    )
