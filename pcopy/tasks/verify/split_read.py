"""Reads a large file for its digest, by all ranks together: ``SplitFileForReading`` divides the file into chunks
(parts), ``ReadChunk`` reads one of them.

The rank that runs ``SplitFileForReading`` owns the file: it collects the results. Two kinds of notes (messages in the
form of short tasks) reach it: ``ChunkedReadStartedNote``, and a ``ChunkReadNote`` for each chunk. After the last one it
completes the file. A copy is read in the chunks in which it was written. Each chunk is read by another host than the
one that wrote it, because that host may still have it in its page cache.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from itertools import count

from pcopy.engine.task import ANY_RANK, Task
from pcopy.fast_named_tuple import NamedTuple
from pcopy.fsio.problem import PackedProblem, Problem
from pcopy.tasks.base import counts
from pcopy.tasks.base.codec import encode_task
from pcopy.tasks.base.distribution import MAX_CHUNKS, sparse_chunk_size
from pcopy.tasks.base.kind import MissingDirectories, TaskKind, TaskSteps, TaskWithoutDirectory
from pcopy.tasks.base.ledger import CompletionLedger, ObjectAwaitingParts
from pcopy.tasks.base.rank import Rank
from pcopy.tasks.base.result import TaskResult
from pcopy.tasks.base.values import FileToRead, Place
from pcopy.tasks.verify.reading import (
    check_source_unchanged,
    count_verified_copy,
    hash_file_range,
    mismatch_problem,
    record_digest,
    report_or_repair_copy,
    report_read_failure,
)

ChunkedReadId = tuple[int, int, int]
"""Identifies a large file that is read in chunks: number of the run, number of the rank that collects the digests of
the chunks, and a number that this rank chose.
"""


class FileReadingTask(TaskKind):
    """Base class of tasks about reading one file. ``contents`` says which file, and what is known about it."""

    contents: FileToRead

    def subject(self) -> tuple[Place, bytes]:
        return self.contents.place, self.contents.name

    def replacement_tasks_if_directories_missing(self, task: Task, missing: MissingDirectories) -> Iterator[Task]:
        """Yield this task for a resumed job in which directories of the file's names were removed (``missing``). It
        gets only the names that still exist, because the file can be read by any of them. Yield nothing if there are
        none.
        """
        group = self.contents.linked_item
        if group is not None and (kept := missing.names_outside_missing_directories(group.names)):
            remaining = self.contents._replace(linked_item=group._replace(names=kept))
            if kept[0] != group.names[0]:
                place, name = kept[0]
                remaining = remaining._replace(place=place, name=name, counter=counts.HARDLINKS)
            yield task._replace(payload=encode_task(self._replace(contents=remaining)))


class SplitFileForReading(FileReadingTask, code=43, doing="reading", is_note=False):
    """Task that divides a large file into chunks (parts), and spawns a task for each chunk that reads it."""

    def run(self, rank: Rank, result: TaskResult) -> None:
        """Spawn the tasks that read the chunks, and the note from which this rank knows how many results to collect."""
        contents = self.contents
        size = contents.known.size
        chunk, writers = contents.chunk or rank.chunk_size_of_file(size), contents.writers
        if contents.on_source and not (contents.chunk or rank.copy_options.chunk_size):
            with suppress(Problem):  # the task of each chunk reports the error
                status = rank.source_item_status(contents.place, contents.name)
                chunk = sparse_chunk_size(chunk, size, min(size, status.st_blocks * 512), rank.size)
        # A file may have been written in chunks of one stripe each (--stripe-affinity): that may be too many chunks.
        if size > MAX_CHUNKS * chunk:
            chunk = max(chunk, rank.chunk_size_of_file(size))
        number = rank.job.run, rank.number, next(rank.shared_instance(ChunkedReadLedger).numbers)
        starts = range(0, size, chunk)
        result.spawn_task(ChunkedReadStartedNote(contents, number, len(starts)))
        # Not sent with each chunk: ``writers`` grows with the number of chunks, ``linked_item`` with that of names.
        alone = contents._replace(linked_item=None, writers=b"")
        for index, start in enumerate(starts):
            end = min(start + chunk, size)
            part = ReadChunk(alone, start, end, number, index)
            if contents.on_source:
                result.spawn_task(part, end - start)
            else:
                at = start // contents.chunk if len(writers) > 1 else 0
                result.spawn_task_on_other_host(part, end - start, writers[at])


class ChunkedReadStartedNote(FileReadingTask, code=44, doing="waiting for the chunks of", is_note=True):
    """Note (message in the form of a short task) to the rank that collects the digests of a large file: it must wait
    for ``chunks`` chunks. ``number`` identifies the file.
    """

    number: ChunkedReadId
    chunks: int

    def assigned_rank(self, ranks: int) -> int:
        return self.number[1] % ranks

    def replacement_tasks_if_directories_missing(self, task: Task, missing: MissingDirectories) -> Iterator[Task]:
        """Yield this note for a resumed job in which directories of the file's names were removed (``missing``), with
        the names that still exist. If the name by which the chunks are read was removed, yield a
        ``SplitFileForReading`` instead, which begins anew with another name.
        """
        if missing.contains(self.contents.place):
            return SplitFileForReading(self.contents).replacement_tasks_if_directories_missing(
                task._replace(owner=ANY_RANK), missing
            )
        return super().replacement_tasks_if_directories_missing(task, missing)

    def run(self, rank: Rank, result: TaskResult) -> None:
        file = ChunkedRead(self.contents, [b""] * self.chunks)
        rank.shared_instance(ChunkedReadLedger).open(self.number, file, self.chunks, result)


class ReadChunk(FileReadingTask, code=45, doing="reading a part of", is_note=False):
    """Task that reads chunk number ``part`` of a large file, the bytes from ``start`` to ``end``, and sends its digest
    to the rank that collects them. ``number`` identifies the file.
    """

    start: int
    end: int
    number: ChunkedReadId
    part: int

    def run(self, rank: Rank, result: TaskResult) -> TaskSteps:
        root = b""
        problem_met: PackedProblem | None = None
        try:
            root = (yield from hash_file_range(rank, self.contents, self.start, self.end)).root()
        except Problem as problem:
            problem_met = problem.problem_as_tuple
        result.spawn_task(ChunkReadNote(self.number, self.part, root, problem_met))


class ChunkReadNote(TaskWithoutDirectory, code=46, doing="recording a part of a file that was read"):
    """Note (message in the form of a short task) that a chunk was read. It goes to the rank that collects the digests
    of the file.

    Fields:
        number: identifies the file.
        part: number of the chunk.
        root: digest of the contents of the chunk; empty if it could not be read.
        problem: the error, packed; None if the chunk was read.
    """

    number: ChunkedReadId
    part: int
    root: bytes
    problem: PackedProblem | None

    def assigned_rank(self, ranks: int) -> int:
        return self.number[1] % ranks

    def run(self, rank: Rank, result: TaskResult) -> None:
        rank.shared_instance(ChunkedReadLedger).count_part(self.number, self, result)


class ChunkedRead(NamedTuple):
    """A large file that is read in chunks, and the digests that have arrived so far, on the rank that collects them.

    Fields:
        contents: the file.
        roots: digest of the contents of each chunk; empty for a chunk that was not read yet.
    """

    contents: FileToRead
    roots: list[bytes]


class ChunkedReadLedger(CompletionLedger[ChunkedReadId, ChunkedRead, ChunkReadNote]):
    """The large files whose chunks are being read and whose digests this rank collects, by their ``ChunkedReadId``."""

    def __init__(self, rank: Rank) -> None:
        super().__init__(rank)
        self.numbers = count(1)

    def record_part_result(self, awaited: ObjectAwaitingParts[ChunkedRead], note: ChunkReadNote) -> None:
        if note.problem is None:
            awaited.opened.roots[note.part] = note.root
        elif awaited.problem is None:
            awaited.problem = Problem.from_packed_tuple(note.problem)

    def complete_awaited_object(self, awaited: ObjectAwaitingParts[ChunkedRead], result: TaskResult) -> None:
        """Complete a file whose chunks were all read. For a file of the source, record the digest; for a copy, compare
        the digest with the expected one.
        """
        rank, file, problem = self._rank, awaited.opened, awaited.problem
        contents = file.contents
        place, name, known = contents.place, contents.name, contents.known
        digest = b"" if problem else rank.job_item_hasher.digest_of_chunks(known.size, file.roots)
        if contents.on_source:
            if problem is None:
                record_digest(rank, result, place, name, known._replace(digest=digest), contents.counter)
            else:
                report_read_failure(result, place, name, problem, contents.attempt, contents.counter, known.size)
            return
        try:
            if problem is not None:
                raise problem
            if digest != known.digest:
                raise mismatch_problem("its contents differ from the source")
            check_source_unchanged(rank, contents)
        except Problem as found:
            report_or_repair_copy(rank, result, contents, found)
        else:
            count_verified_copy(result, contents)
