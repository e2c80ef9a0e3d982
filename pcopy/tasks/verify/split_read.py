"""SplitRead, ReadOpened, ReadChunk and ChunkRead: all ranks together read a large file for its digest.

The rank that splits the file receives a note for each chunk; the last note completes the file. A copy is read in the
chunks in which it was written, each by another host than the one that wrote it, because that host may still have it in
its page cache.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from itertools import count

from pcopy.engine.task import ANYBODY, Task
from pcopy.fsio.problem import Plain, Problem
from pcopy.named import NamedTuple
from pcopy.tasks.base import counts
from pcopy.tasks.base.codec import encode
from pcopy.tasks.base.kind import Gone, Kind, Note, Steps
from pcopy.tasks.base.ledger import Awaited, Ledger
from pcopy.tasks.base.rank import Rank
from pcopy.tasks.base.result import Result
from pcopy.tasks.base.spreading import MOST_CHUNKS, chunk_with_holes
from pcopy.tasks.base.values import Contents, Place
from pcopy.tasks.verify.reading import check_source, digested, not_verified, read_failed, unlike, verified, was_read

ReadId = tuple[int, int, int]
"""Identifies a file that is read in chunks: the run, the rank that owns it, and a number."""


class OfContents(Kind):
    """Base of the tasks that are about the file described by ``contents``."""

    contents: Contents

    def about(self) -> tuple[Place, bytes]:
        return self.contents.place, self.contents.name

    def reduced(self, task: Task, gone: Gone) -> Iterator[Task]:
        """Yield the task with the names that still exist; any name of an inode serves to read it."""
        group = self.contents.group
        if group is not None and (kept := gone.kept(group.names)):
            remaining = self.contents._replace(group=group._replace(names=kept))
            if kept[0] != group.names[0]:
                place, name = kept[0]
                remaining = remaining._replace(place=place, name=name, counter=counts.HARDLINKS)
            yield task._replace(payload=encode(self._replace(contents=remaining)))


class SplitRead(OfContents, code=43, doing="reading", is_note=False):
    """Splits a large file into chunks that are read by tasks of their own."""

    def run(self, rank: Rank, result: Result) -> None:
        """Spawn the tasks for the chunks, and the note for this rank, which receives their results."""
        contents = self.contents
        size = contents.known.size
        chunk, writers = contents.chunk or rank.chunk(size), contents.writers
        if contents.on_source and not (contents.chunk or rank.options.chunk_size):
            with suppress(Problem):  # the task of each chunk reports the error
                status = rank.source_status(contents.place, contents.name)
                chunk = chunk_with_holes(chunk, size, min(size, status.st_blocks * 512), rank.size)
        # The chunk size was chosen for writing, so that each chunk lies on one server: there may be too many chunks.
        if size > MOST_CHUNKS * chunk:
            chunk = max(chunk, rank.chunk(size))
        number = rank.job.run, rank.number, next(rank.own(ReadLedger).numbers)
        starts = range(0, size, chunk)
        result.spawn(ReadOpened(contents, number, len(starts)))
        # ``writers`` grows with the number of chunks, ``group`` with that of names: neither is sent with each chunk.
        alone = contents._replace(group=None, writers=b"")
        for index, start in enumerate(starts):
            end = min(start + chunk, size)
            part = ReadChunk(alone, start, end, number, index)
            if contents.on_source:
                result.spawn(part, end - start)
            else:
                at = start // contents.chunk if len(writers) > 1 else 0
                result.spawn_elsewhere(part, end - start, writers[at])


class ReadOpened(OfContents, code=44, doing="waiting for the chunks of", is_note=True):
    """A note that tells the owner of a file how many ``chunks`` are read."""

    number: ReadId
    chunks: int

    def home(self, ranks: int) -> int:
        return self.number[1] % ranks

    def reduced(self, task: Task, gone: Gone) -> Iterator[Task]:
        """Yield the task with the remaining names, or a ``SplitRead`` if the first name, by which the chunks are read,
        was removed.
        """
        if gone.has(self.contents.place):
            return SplitRead(self.contents).reduced(task._replace(owner=ANYBODY), gone)
        return super().reduced(task, gone)

    def run(self, rank: Rank, result: Result) -> None:
        file = FileRead(self.contents, [b""] * self.chunks)
        rank.own(ReadLedger).open(self.number, file, self.chunks, result)


class ReadChunk(OfContents, code=45, doing="reading a part of", is_note=False):
    """Reads the bytes from ``start`` to ``end``, which are the chunk ``part`` of the file ``number``."""

    start: int
    end: int
    number: ReadId
    part: int

    def run(self, rank: Rank, result: Result) -> Steps:
        root = b""
        problem_met: Plain | None = None
        try:
            root = (yield from digested(rank, self.contents, self.start, self.end)).root()
        except Problem as problem:
            problem_met = problem.plain
        result.spawn(ChunkRead(self.number, self.part, root, problem_met))


class ChunkRead(Note, code=46, doing="recording a part of a file that was read"):
    """A note with the content root of one chunk, or the problem that was met."""

    number: ReadId
    part: int
    root: bytes
    problem: Plain | None

    def home(self, ranks: int) -> int:
        return self.number[1] % ranks

    def run(self, rank: Rank, result: Result) -> None:
        rank.own(ReadLedger).take(self.number, self, result)


class FileRead(NamedTuple):
    """The owner's record of a file that is read in chunks: the content root of each chunk."""

    contents: Contents
    roots: list[bytes]


class ReadLedger(Ledger[ReadId, FileRead, ChunkRead]):
    """The files that are read in chunks and owned by this rank, by numbers that it assigns."""

    def __init__(self, rank: Rank) -> None:
        super().__init__(rank)
        self.numbers = count(1)

    def noted(self, awaited: Awaited[FileRead], note: ChunkRead) -> None:
        if note.problem is None:
            awaited.opened.roots[note.part] = note.root
        elif awaited.problem is None:
            awaited.problem = Problem.from_plain(note.problem)

    def ended(self, awaited: Awaited[FileRead], result: Result) -> None:
        """Complete a file whose chunks have all been read: record its digest, or verify the copy against it."""
        rank, file, problem = self._rank, awaited.opened, awaited.problem
        contents = file.contents
        place, name, known = contents.place, contents.name, contents.known
        digest = b"" if problem else rank.hashing.chunks(known.size, file.roots)
        if contents.on_source:
            if problem is None:
                was_read(rank, result, place, name, known._replace(digest=digest), contents.counter)
            else:
                read_failed(result, place, name, problem, contents.attempt, contents.counter, known.size)
            return
        try:
            if problem is not None:
                raise problem
            if digest != known.digest:
                raise unlike("its contents differ from the source")
            check_source(rank, contents)
        except Problem as found:
            not_verified(rank, result, contents, found)
        else:
            verified(result, contents)
