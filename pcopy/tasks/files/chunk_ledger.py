"""FileOpened and ChunkDone: the owner of a split file counts its chunks.

The note of the last one spawns FinishFile. A resumed job tells its notes in any order.
"""

from __future__ import annotations

from collections.abc import Iterator

from pcopy.engine.task import Task
from pcopy.fsio.in_place import incomplete
from pcopy.fsio.problem import Plain, Problem
from pcopy.fsio.temporary import made_by
from pcopy.named import NamedTuple
from pcopy.tasks.base.gathered import split_digests
from pcopy.tasks.base.kind import Gone, Note
from pcopy.tasks.base.ledger import Awaited, Ledger
from pcopy.tasks.base.rank import Rank
from pcopy.tasks.base.result import Result
from pcopy.tasks.files.finish_file import FinishFile, OfFile, discard, opened_failed


class FileOpened(OfFile, code=13, doing="waiting for the chunks of", is_note=True):
    """Tells the owner of a file how many chunks to wait for. What is known of it is known of each ``chunk`` bytes: a
    chunk, or a run of one."""

    chunks: int
    chunk: int

    def home(self, ranks: int) -> int:
        return made_by(self.file.temporary)[1] % ranks

    def run(self, rank: Rank, result: Result) -> None:
        runs = -(-self.file.version.size // self.chunk)
        file = FileInChunks(self, [b""] * runs, bytearray(runs))
        rank.own(ChunkLedger).open(self.file.temporary, file, self.chunks, result)


class ChunkDone(Note, code=15, doing="noting a part of a file"):
    """A chunk is copied, or met a problem. It had so many ``runs``, numbered from ``part`` in steps of ``step``.
    ``roots`` are their joined content roots, if digests are wanted, ``writer`` is the host."""

    temporary: bytes
    problem: Plain | None
    part: int
    step: int
    runs: int
    roots: bytes
    writer: int

    def home(self, ranks: int) -> int:
        return made_by(self.temporary)[1] % ranks

    def mended(self, task: Task, gone: Gone) -> Iterator[Task]:
        return iter(()) if gone.has_chunk(self.temporary) else iter((task,))

    def run(self, rank: Rank, result: Result) -> None:
        rank.own(ChunkLedger).take(self.temporary, self, result)


class FileInChunks(NamedTuple):
    """What the owner of a split file knows of its chunks, or of their runs: the content root of each, and the host that
    has written it."""

    opened: FileOpened
    roots: list[bytes]
    writers: bytearray


class ChunkLedger(Ledger[bytes, FileInChunks, ChunkDone]):
    """The split files that a rank owns, by their temporary names."""

    def noted(self, awaited: Awaited[FileInChunks], note: ChunkDone) -> None:
        parts = awaited.opened
        file = parts.opened.file
        if note.problem is not None and awaited.problem is None:
            awaited.problem = Problem.from_plain(note.problem)
            if file.over:
                awaited.problem = incomplete(awaited.problem)
            discard(self._rank, file)  # so that chunks still to come end quickly
        roots = split_digests(note.roots, len(note.roots) // note.runs) if note.roots else []
        for run in range(note.runs):
            parts.writers[note.part + run * note.step] = note.writer
        for run, root in enumerate(roots):
            parts.roots[note.part + run * note.step] = root

    def ended(self, awaited: Awaited[FileInChunks], result: Result) -> None:
        rank, parts = self._rank, awaited.opened
        file = parts.opened.file
        if awaited.problem is None:
            digest = rank.hashing.chunks(file.version.size, parts.roots) if rank.digests else b""
            finish = FinishFile(file, digest, parts.opened.chunk, bytes(parts.writers))
            result.spawn(finish, owner=rank.number)  # here, so that a job of which nothing is kept removes the file
        else:
            opened_failed(rank, result, file, awaited.problem)


def discard_all(rank: Rank, since: int = 1) -> None:
    """Removes what an early stop leaves behind, if the run ``since``, or a later one, has made it."""
    awaited = rank.own(ChunkLedger).awaited
    for temporary, file in awaited.items():
        if made_by(temporary)[0] >= since:
            discard(rank, file.opened.opened.file)
    awaited.clear()
