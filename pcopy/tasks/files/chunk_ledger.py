"""One rank, the owner of a large file, counts the chunks of the file as they are copied. The notes
``LargeFileOpenedNote`` and ``ChunkCopiedNote`` (messages in the form of short tasks) tell it about them.

After the last chunk it spawns ``FinishFile``. A resumed job runs the notes again, in any order.
"""

from __future__ import annotations

from collections.abc import Iterator

from pcopy.engine.task import Task
from pcopy.fast_named_tuple import NamedTuple
from pcopy.fsio.in_place import incomplete_file_problem
from pcopy.fsio.problem import PackedProblem, Problem
from pcopy.fsio.temporary import run_and_rank_in_temporary_name
from pcopy.tasks.base.item_columns import split_digests
from pcopy.tasks.base.kind import MissingDirectories, TaskWithoutDirectory
from pcopy.tasks.base.ledger import CompletionLedger, ObjectAwaitingParts
from pcopy.tasks.base.rank import Rank
from pcopy.tasks.base.result import TaskResult
from pcopy.tasks.files.finish_file import (
    ChunkedFileTask,
    FinishFile,
    handle_failure_of_opened_file,
    remove_temporary_file,
)


class LargeFileOpenedNote(ChunkedFileTask, code=13, doing="waiting for the chunks of", is_note=True):
    """Note (message in the form of a short task) that informs the owner of a large file, the rank that collects the
    results, how many notes about its ``chunks`` to expect.

    The owner records digests and hosts for each part of ``chunk`` bytes. A part is a whole chunk; or, if a chunk
    consists of several runs (contiguous pieces with gaps between them), one run.
    """

    chunks: int
    chunk: int

    def assigned_rank(self, ranks: int) -> int:
        return run_and_rank_in_temporary_name(self.file.temporary)[1] % ranks

    def run(self, rank: Rank, result: TaskResult) -> None:
        runs = -(-self.file.version.size // self.chunk)
        file = FileProgress(self, [b""] * runs, bytearray(runs))
        rank.shared_instance(ChunkLedger).open(self.file.temporary, file, self.chunks, result)


class ChunkCopiedNote(TaskWithoutDirectory, code=15, doing="recording a copied part of a file"):
    """Note (message in the form of a short task) to the owner of a large file: a chunk was copied, or failed with
    ``problem``. A chunk consists of one or several runs, contiguous pieces of the file.

    Fields:
        temporary: name of the temporary file, which identifies the file.
        problem: the error, packed; None if the chunk was copied.
        part: number of the first run of the chunk. The runs of a file are numbered in the order of its bytes.
        step: difference between the numbers of two consecutive runs of the chunk.
        runs: number of runs of the chunk.
        roots: digests of the contents of the runs, joined; empty if no digests are computed.
        writer: number of the host that wrote the chunk.
    """

    temporary: bytes
    problem: PackedProblem | None
    part: int
    step: int
    runs: int
    roots: bytes
    writer: int

    def assigned_rank(self, ranks: int) -> int:
        return run_and_rank_in_temporary_name(self.temporary)[1] % ranks

    def replacement_tasks(self, task: Task, missing: MissingDirectories) -> Iterator[Task]:
        return iter(()) if missing.is_chunk_obsolete(self.temporary) else iter((task,))

    def run(self, rank: Rank, result: TaskResult) -> None:
        rank.shared_instance(ChunkLedger).count_part(self.temporary, self, result)


class FileProgress(NamedTuple):
    """A large file that is being copied, and what its owner, the rank that collects the results, has received about it.

    Fields:
        opened: the note that announced the file.
        roots: digest of the contents of each part; empty where it is not known yet.
        writers: number of the host that wrote each part, one byte each.
    """

    opened: LargeFileOpenedNote
    roots: list[bytes]
    writers: bytearray


class ChunkLedger(CompletionLedger[bytes, FileProgress, ChunkCopiedNote]):
    """The large files that this rank owns and that are not complete, by the names of their temporary files."""

    def record_part_result(self, awaited: ObjectAwaitingParts[FileProgress], note: ChunkCopiedNote) -> None:
        parts = awaited.opened
        file = parts.opened.file
        if note.problem is not None and awaited.problem is None:
            awaited.problem = Problem.from_packed_tuple(note.problem)
            if file.overwritten_owner:
                awaited.problem = incomplete_file_problem(awaited.problem)
            remove_temporary_file(self._rank, file)  # so that the remaining chunks fail at once
        roots = split_digests(note.roots, len(note.roots) // note.runs) if note.roots else []
        for run in range(note.runs):
            parts.writers[note.part + run * note.step] = note.writer
        for run, root in enumerate(roots):
            parts.roots[note.part + run * note.step] = root

    def complete_awaited_object(self, awaited: ObjectAwaitingParts[FileProgress], result: TaskResult) -> None:
        rank, parts = self._rank, awaited.opened
        file = parts.opened.file
        if awaited.problem is None:
            digest = (
                rank.job_item_hasher.digest_of_chunks(file.version.size, parts.roots) if rank.computes_digests else b""
            )
            finish = FinishFile(file, digest, parts.opened.chunk, bytes(parts.writers))
            # Owned by this rank, so that a job that keeps nothing when it stops finds the note and removes the file.
            result.spawn_task(finish, owner=rank.number)
        else:
            handle_failure_of_opened_file(rank, result, file, awaited.problem)


def remove_all_temporary_files(rank: Rank, since: int = 1) -> None:
    """Remove the temporary files of all incomplete large files of this rank that the run with the number ``since`` or a
    later run created. This is done when the job stops and keeps nothing for a resume.
    """
    awaited = rank.shared_instance(ChunkLedger).awaited
    for temporary, file in awaited.items():
        if run_and_rank_in_temporary_name(temporary)[0] >= since:
            remove_temporary_file(rank, file.opened.opened.file)
    awaited.clear()
