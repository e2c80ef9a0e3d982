"""SplitRead, ReadOpened, ReadChunk and ChunkRead: a large file is read for its digest by all ranks at once.

The chunk is a power of two of blocks, so that each is a whole subtree of the file's digest tree. A copy that is
verified has the chunks that it was written in, and with several hosts each is read by another host than wrote it: what
one has written it may still hold in memory.
"""

from __future__ import annotations

from collections.abc import Generator

from pcopy.engine.driver import Slices
from pcopy.engine.task import TaskId
from pcopy.errors import InvariantBroken
from pcopy.fsio.close import close_read
from pcopy.fsio.contents import digest_contents, drop_pages, has_holes
from pcopy.fsio.problem import Plain, Problem
from pcopy.fsio.source import check_unchanged, open_source, status_of
from pcopy.tasks import counts
from pcopy.tasks.context import Context
from pcopy.tasks.read_back import (
    check_source,
    links_not_verified,
    links_verified,
    not_verified,
    open_copy,
    unlike,
    verified,
)
from pcopy.tasks.read_items import read_failed, reads_directly, was_read
from pcopy.tasks.read_values import ChunkRead, Contents, ReadChunk, ReadOpened, SplitRead
from pcopy.tasks.result import Result
from pcopy.tasks.unfinished import UnfinishedRead


def split_read(task: SplitRead, context: Context, result: Result) -> Slices:
    """Spawns the chunks; this rank is told of each."""
    contents = task.contents
    size = contents.known.size
    chunk = contents.chunk or context.chunk(size)
    number = context.next_read()
    starts = range(0, size, chunk)
    result.spawn(ReadOpened(number, contents, len(starts)), owner=context.rank)
    # What is as long as the file has chunks, or an inode has names, must not travel with each chunk.
    alone = contents._replace(group=None, writers=b"")
    for index, start in enumerate(starts):
        end = min(start + chunk, size)
        part = ReadChunk(alone, start, end, number, index, context.rank)
        if contents.on_source:
            result.spawn(part, end - start)
        else:
            writers = contents.writers
            result.spawn_elsewhere(part, end - start, writers[index] if len(writers) > 1 else writers[0])
    return result.outcome()
    yield


def read_opened(task: ReadOpened, context: Context, result: Result) -> Slices:
    """From now on the file's chunks are counted here."""
    result.hold()
    unfinished = context.reads[task.number] = UnfinishedRead(task, result.id)
    for note, note_id in context.early_reads.pop(task.number, ()):
        _take(context, result, unfinished, note, note_id)
    return result.outcome()
    yield


def read_chunk(task: ReadChunk, context: Context, result: Result) -> Slices:
    """Digests it and tells the file's owner."""
    root = b""
    told: Plain | None = None
    try:
        root = yield from _digest(task, context)
    except Problem as problem:
        told = problem.plain
    result.spawn(ChunkRead(task.number, task.part, root, told), owner=task.owner % context.size)
    return result.outcome()


def _digest(task: ReadChunk, context: Context) -> Generator[None, None, bytes]:
    contents = task.contents
    place, known = contents.place, contents.known
    direct = context.options.direct
    if contents.on_source:
        reading = open_source(context.open_source(place), contents.name, follow=context.options.dereference)
        direct = reads_directly(context, reading)
    else:
        reading = open_copy(context, place, contents.name, direct=direct)
    try:
        status = status_of(reading, on_source=contents.on_source)
        if contents.on_source:
            check_unchanged(reading, known.version)
        elif status.st_size != known.size:
            raise unlike(f"it has {status.st_size} bytes, not {known.size}")
        else:
            drop_pages(reading, task.start, task.end - task.start)
        hasher = context.hashing.hasher()
        holes = has_holes(status)
        for read in digest_contents(
            reading, task.start, task.end, hasher, holes=holes, on_source=contents.on_source, direct=direct
        ):
            context.counters[counts.MOVED if contents.on_source else counts.VERIFIED_BYTES] += read
            yield
        if contents.on_source:
            check_unchanged(reading, known.version)
            if context.options.drop_cache:
                drop_pages(reading, task.start, task.end - task.start)
        return hasher.root()
    finally:
        close_read(reading)


def chunk_read(task: ChunkRead, context: Context, result: Result) -> Slices:
    """One chunk less to wait for; after the last the file is settled."""
    result.hold()
    unfinished = context.reads.get(task.number)
    if unfinished is not None:
        _take(context, result, unfinished, task, result.id)
    elif context.job.run > 1:  # what a job that was resumed held comes in any order
        context.early_reads.setdefault(task.number, []).append((task, result.id))
    else:
        raise InvariantBroken(f"a chunk of read {task.number}, which is none under way on rank {context.rank}")
    return result.outcome()
    yield


def _take(context: Context, result: Result, unfinished: UnfinishedRead, note: ChunkRead, note_id: TaskId) -> None:
    unfinished.held.append(note_id)
    if note.problem is None:
        unfinished.roots[note.part] = note.root
    elif unfinished.problem is None:
        unfinished.problem = Problem.from_plain(note.problem)
    unfinished.remaining -= 1
    if not unfinished.remaining:
        del context.reads[note.number]
        result.settle(unfinished.held)
        _settle(context, result, unfinished)


def _settle(context: Context, result: Result, unfinished: UnfinishedRead) -> None:
    contents: Contents = unfinished.opened.contents
    place, name, known, problem = contents.place, contents.name, contents.known, unfinished.problem
    digest = b"" if problem else context.hashing.chunks(known.size, unfinished.roots)
    if contents.on_source:
        if problem is None:
            was_read(context, result, place, name, known._replace(digest=digest), contents.counter)
        else:
            read_failed(context, result, place, name, problem, contents.attempt, contents.counter, known.size)
        return
    try:
        if problem is not None:
            raise problem
        if digest != known.digest:
            raise unlike("its contents differ from what was copied")
        check_source(context, place, name, known)
    except Problem as found:
        if contents.group is None:
            not_verified(context, result, place, name, known, contents.counter, found)
        else:
            links_not_verified(context, result, contents.group, known, contents.counter, found)
    else:
        if contents.group is None:
            verified(result, 1, known.size, place)
        else:
            links_verified(result, contents.group, known.size)
