"""``CopyChunk`` copies a chunk (a part) of a large file into its temporary file; ``DistributeChunks`` distributes
chunks over ranks.

A chunk never creates a file: if the temporary file was removed, the chunk fails. If there are several hosts, each is
first given its share of the chunks, because several writers on one host share its network and its locks. Ranks without
work steal chunks from others, like any other tasks. With ``--stripe-affinity`` a chunk contains the stripes on one OST
(data server of Lustre), and no other rank can steal it. So each rank writes to its own OSTs only.
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
from pcopy.fsio.source import check_file_is_unchanged, status_of_open_item
from pcopy.fsio.temporary import reopen_temporary_file
from pcopy.fsio.throttle import throttled_steps
from pcopy.tasks.base import counts
from pcopy.tasks.base.kind import MissingDirectories, TaskKind, TaskSteps
from pcopy.tasks.base.rank import Rank
from pcopy.tasks.base.result import TaskResult
from pcopy.tasks.base.values import ChunkedFile, Place, pack_numbers, unpack_numbers
from pcopy.tasks.files.chunk_ledger import ChunkCopiedNote
from pcopy.tasks.files.layouts import target_layout_policy


class Chunk(NamedTuple):
    """A part of a large file: a contiguous piece; or, with ``--stripe-affinity``, several contiguous pieces (*runs*) at
    equal distances, all on one OST.

    Fields:
        start, end: first byte, and the byte after the last one.
        part: number of the first run among all runs of the file.
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
    """Return consecutive chunks of ``chunk`` bytes, the last one perhaps shorter, that make up a file of ``size``
    bytes.
    """
    starts = enumerate(range(0, size, chunk))
    return [Chunk(start, min(start + chunk, size), part, turn=part) for part, start in starts]


def chunks_by_ost(size: int, chunk: int, stripes: FileStripes) -> list[Chunk]:
    """Return chunks of about ``chunk`` bytes that make up a file of ``size`` bytes. Each chunk contains the stripes of
    one OST within a part of the file. ``stripes`` says how the file is spread over its OSTs.
    """
    around = stripes.stripe_size * len(stripes.osts)
    window = max(1, round(chunk / stripes.stripe_size)) * around
    return [
        Chunk(at, min(first + window, size), at // stripes.stripe_size, around, stripes.stripe_size, ost)
        for first in range(0, size, window)
        for at, ost in zip(range(first, size, stripes.stripe_size), stripes.osts, strict=False)
    ]


class ChunkTask(TaskKind):
    """Base class of tasks about chunks (parts) of the large file ``file``."""

    file: ChunkedFile

    def subject(self) -> tuple[Place, bytes]:
        return self.file.item.names[0]

    def replacement_tasks(self, task: Task, missing: MissingDirectories) -> Iterator[Task]:
        is_lost = missing.contains(self.file.item.place) or missing.is_chunk_obsolete(self.file.temporary)
        return iter(()) if is_lost else iter((task,))


class CopyChunk(ChunkTask, code=14, doing="copying a part of", is_note=False):
    """Task that copies a chunk of a large file: all bytes from ``start`` to ``end``, or several runs (contiguous pieces
    at equal distances) between them.

    Fields:
        file: the file and its temporary file.
        part: number of the first run of the chunk among all runs of the file.
        stride: distance in bytes between the starts of two runs; 0 if all bytes from ``start`` to ``end`` are copied.
        run_bytes: size of a run in bytes, if there is a ``stride``.
        in_turn: True if this task spawns the one for the next chunk, so that chunks are copied one after the other.
    """

    start: int
    end: int
    part: int
    stride: int
    run_bytes: int
    in_turn: bool

    def byte_ranges(self) -> list[tuple[int, int]]:
        """Return start and end of each run (contiguous piece) of the chunk."""
        stride, run = self.stride or self.end - self.start, self.run_bytes or self.end - self.start
        return [(at, min(at + run, self.end)) for at in range(self.start, self.end, stride)]

    def run(self, rank: Rank, result: TaskResult) -> TaskSteps:
        failure: PackedProblem | None = None
        roots: list[bytes] = []
        try:
            roots = yield from _copy_chunk(self, rank)
            rank.record_write_success()
        except Problem as problem:
            rank.find_item_failure_reason(problem, *self.subject(), self.file.version.size)
            failure = problem.problem_as_tuple
        step = self.stride // self.run_bytes if self.stride else 1
        runs, here = len(self.byte_ranges()), rank.hosts.this_host
        result.spawn_task(ChunkCopiedNote(self.file.temporary, failure, self.part, step, runs, b"".join(roots), here))
        size = self.file.version.size
        # The next chunk is spawned even after a failure: the owner of the file waits for all chunks. They fail quickly.
        if self.in_turn and self.end < size:
            end = min(2 * self.end - self.start, size)
            result.spawn_task(self._replace(start=self.end, end=end, part=self.part + 1), end - self.end)


class DistributeChunks(ChunkTask, code=20, doing="distributing parts of", is_note=False):
    """Task that spawns the tasks for ``chunks`` of a large file on the rank to which it is sent. That rank begins with
    them, and others can steal them. Each chunk is packed as six numbers, the fields of ``Chunk``.
    """

    chunks: bytes

    def run(self, rank: Rank, result: TaskResult) -> None:
        numbers = unpack_numbers(self.chunks)
        width = len(Chunk._fields)
        for at in range(0, len(numbers), width):
            _spawn_chunk_copy_task(self.file, Chunk(*numbers[at : at + width]), result)


def spawn_chunks(file: ChunkedFile, chunks: Sequence[Chunk], rank: Rank, result: TaskResult) -> None:
    """Spawn the tasks for the ``chunks`` of a file.

    If there are several hosts, each host is sent a share of them, which other ranks may steal. A chunk on one OST is
    assigned to one rank, and cannot be stolen.
    """
    turns = {turn: number for number, turn in enumerate(dict.fromkeys(chunk.turn for chunk in chunks))}
    ranks, hosts = rank.hosts.ranks_round_robin, rank.hosts.host_count
    parts: dict[int, list[int]] = {}
    for chunk in chunks:
        if chunk.stride:
            _spawn_chunk_copy_task(file, chunk, result, owner=ranks[turns[chunk.turn] % len(ranks)])
        elif hosts < 2:
            _spawn_chunk_copy_task(file, chunk, result)
        else:
            parts.setdefault(ranks[turns[chunk.turn] % hosts], []).extend(chunk)
    for owner, numbers in parts.items():
        result.spawn_task(DistributeChunks(file, pack_numbers(numbers)), owner=owner)


def _spawn_chunk_copy_task(file: ChunkedFile, chunk: Chunk, result: TaskResult, owner: int | None = None) -> None:
    """Spawn the task for one chunk. ``owner`` is the only rank that may run it; None means any rank."""
    start, end, part, stride, run, _ = chunk
    size = sum(min(run, end - at) for at in range(start, end, stride)) if stride else end - start
    result.spawn_task(CopyChunk(file, start, end, part, stride, run, False), size, owner=owner)


def _copy_chunk(task: CopyChunk, rank: Rank) -> Generator[None, None, list[bytes]]:
    """Copy the chunk. Return the digest of the contents of each run (contiguous piece); an empty list if the job
    computes no digests. Raise ``Problem`` on failure.
    """
    file = task.file
    place = file.item.place
    with rank.open_source_file(place, file.item.name) as reading:
        check_file_is_unchanged(reading, file.version)
        writing = -1
        if not (file.is_cloned and rank.computes_digests):
            writing = reopen_temporary_file(
                rank.open_target_directory(place),
                rank.name_while_written(file),
                file.identity,
                file.version.size,
                file.server_status,
            )
        try:
            with (yield from _lustre_group_lock(task, rank, writing)):
                roots = yield from _copy_byte_ranges(task, rank, reading, writing)
            check_file_is_unchanged(reading, file.version)
        except BaseException:
            if writing >= 0:
                close_after_failure(writing)
            raise
        if writing >= 0:
            sync = rank.syncs_each_file(place)
            try:
                if not sync and _must_sync_chunk(task, rank):
                    from pcopy.tasks.base.storing import wait_for_data_stored

                    yield from wait_for_data_stored(rank, writing)
            except BaseException:
                close_after_failure(writing)
                raise
            close_after_write(writing, sync=sync)
    return roots


def _must_sync_chunk(task: CopyChunk, rank: Rank) -> bool:
    """Return True if this task must bring what it has written to stable storage before the chunk counts as copied. The
    file has its full size already, so its size would not show after a power failure that contents are missing.

    With several hosts each task does so, because no other host can store the contents of this host's cache. On one
    host, if chunks are copied one after the other, only the last task does so, for all chunks. In all other cases
    ``FinishFile`` stores the file.
    """
    file = task.file
    if (
        not rank.options.sync or rank.names_late
    ):  # copies that get their names in NAME are stored by the phase STORE before
        return False
    return rank.hosts.host_count > 1 or (task.in_turn and task.end == file.version.size and not file.overwritten_owner)


def _copy_byte_ranges(task: CopyChunk, rank: Rank, reading: int, writing: int) -> Generator[None, None, list[bytes]]:
    """Copy each run (contiguous piece) of the chunk, or only digest it if ``writing`` is -1. Return the digest of each
    run; an empty list if the job computes no digests.

    Args:
        reading, writing: descriptors of the source and of the temporary file.
    """
    roots = []
    holes = may_have_holes(status_of_open_item(reading, on_source=True))
    for start, end in task.byte_ranges():
        hasher = rank.new_hasher()
        if writing < 0 and hasher is not None:
            steps = throttled_steps(digest_contents(reading, start, end, hasher, may_have_holes=holes), rank.throttle)
        else:
            devices = rank.source_and_target_device(task.file.item.place)
            steps = rank.mover.copy_byte_range(
                reading, writing, start, end, devices, may_have_holes=holes, digest=hasher
            )
        with closing(steps):  # if a thread copies, it ends here, before the files are closed
            for moved in steps:
                rank.counters[counts.MOVED] += moved
                yield
        if hasher is not None:
            roots.append(hasher.root())
    return roots


def _lustre_group_lock(
    task: CopyChunk, rank: Rank, writing: int
) -> Generator[None, None, AbstractContextManager[None]]:
    """Return a context manager that holds Lustre's group lock while the chunk is written. All writers of the file share
    this lock. If the user does not want it (--group-lock, --direct), return a context manager that does nothing.
    """
    is_required = rank.copy_options.group_lock
    if writing < 0 or not (is_required or rank.options.direct):
        return nullcontext()
    group = zlib.crc32(task.file.temporary) & 0x7FFFFFFF | 1
    layout = target_layout_policy(rank, task.file.item.place)
    return (yield from layout.group_lock(writing, group, is_required=is_required))
