"""FileOpened and ChunkDone: the owner of a large file counts its chunks as they are copied.

After the last one it spawns FinishFile. A resumed job replays these notes in any order.
"""

from __future__ import annotations

from collections.abc import Iterator

from pcopy.engine.task import Task
from pcopy.fast_named_tuple import NamedTuple
from pcopy.fsio.in_place import incomplete_file_problem
from pcopy.fsio.problem import PackedProblem, Problem
from pcopy.fsio.temporary import run_and_rank_of
from pcopy.tasks.base.item_columns import split_digests
from pcopy.tasks.base.kind import MissingDirectories, Note
from pcopy.tasks.base.ledger import AwaitedParts, CompletionLedger
from pcopy.tasks.base.rank import Rank
from pcopy.tasks.base.result import TaskResult
from pcopy.tasks.files.finish_file import ChunkedFileTask, FinishFile, fail_opened, remove_temporary


class FileOpened(ChunkedFileTask, code=13, doing="waiting for the chunks of", is_note=True):
    """Note that tells the owner of a large file how many ``chunks`` to expect.

    ``chunk`` is the size in bytes of the parts for which content roots and writers are recorded: a whole chunk, or one
    run of a chunk.
    """

    chunks: int
    chunk: int

    def assigned_rank(self, ranks: int) -> int:
        return run_and_rank_of(self.file.temporary)[1] % ranks

    def run(self, rank: Rank, result: TaskResult) -> None:
        runs = -(-self.file.version.size // self.chunk)
        file = FileProgress(self, [b""] * runs, bytearray(runs))
        rank.instance(ChunkLedger).open(self.file.temporary, file, self.chunks, result)


class ChunkDone(Note, code=15, doing="noting a part of a file"):
    """Note that reports that a chunk was copied, or that it failed with ``problem``.

    Fields:
        temporary: name of the temporary file.
        problem: the error, or None.
        part: number of the first run of the chunk.
        step: distance between the numbers of two runs of the chunk.
        runs: number of runs of the chunk.
        roots: content roots of the runs, joined; empty if no digests are computed.
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
        return run_and_rank_of(self.temporary)[1] % ranks

    def replacement_tasks(self, task: Task, missing: MissingDirectories) -> Iterator[Task]:
        return iter(()) if missing.is_chunk_obsolete(self.temporary) else iter((task,))

    def run(self, rank: Rank, result: TaskResult) -> None:
        rank.instance(ChunkLedger).count_part(self.temporary, self, result)


class FileProgress(NamedTuple):
    """State of a large file on the rank that owns it.

    Fields:
        opened: the note that opened it.
        roots: content root of each chunk, or of each run of one.
        writers: number of the host that wrote each of them.
    """

    opened: FileOpened
    roots: list[bytes]
    writers: bytearray


class ChunkLedger(CompletionLedger[bytes, FileProgress, ChunkDone]):
    """The large files that a rank owns, by the names of their temporary files."""

    def record_part(self, awaited: AwaitedParts[FileProgress], note: ChunkDone) -> None:
        parts = awaited.opened
        file = parts.opened.file
        if note.problem is not None and awaited.problem is None:
            awaited.problem = Problem.from_packed(note.problem)
            if file.overwritten_owner:
                awaited.problem = incomplete_file_problem(awaited.problem)
            remove_temporary(self._rank, file)  # the remaining chunks fail at once without the temporary file
        roots = split_digests(note.roots, len(note.roots) // note.runs) if note.roots else []
        for run in range(note.runs):
            parts.writers[note.part + run * note.step] = note.writer
        for run, root in enumerate(roots):
            parts.roots[note.part + run * note.step] = root

    def act_when_complete(self, awaited: AwaitedParts[FileProgress], result: TaskResult) -> None:
        rank, parts = self._rank, awaited.opened
        file = parts.opened.file
        if awaited.problem is None:
            digest = rank.hashing.digest_of_chunks(file.version.size, parts.roots) if rank.has_digests else b""
            finish = FinishFile(file, digest, parts.opened.chunk, bytes(parts.writers))
            # Owned by this rank, so that a job that keeps nothing when it stops finds the note and removes the file.
            result.spawn(finish, owner=rank.number)
        else:
            fail_opened(rank, result, file, awaited.problem)


def remove_all_temporaries(rank: Rank, since: int = 1) -> None:
    """Remove the temporary files of all unfinished large files of this rank that the run ``since`` or a later one
    created. The job stops early.
    """
    awaited = rank.instance(ChunkLedger).awaited
    for temporary, file in awaited.items():
        if run_and_rank_of(temporary)[0] >= since:
            remove_temporary(rank, file.opened.opened.file)
    awaited.clear()
