"""CopyChunk: one stretch of a large file. It never creates: without its temporary file there is nothing to fill."""

from __future__ import annotations

from collections.abc import Generator

from pcopy.engine.driver import Slices
from pcopy.fsio.close import abandon, close_read, close_written
from pcopy.fsio.contents import digest_contents, has_holes
from pcopy.fsio.problem import Plain, Problem
from pcopy.fsio.source import check_unchanged, open_source, status_of
from pcopy.signature.tree import ContentHasher
from pcopy.tasks import counts
from pcopy.tasks.context import Context
from pcopy.tasks.result import Result
from pcopy.tasks.targets import reopen_filled
from pcopy.tasks.values import ChunkDone, CopyChunk


def copy_chunk(task: CopyChunk, context: Context, result: Result) -> Slices:
    """Copies it and tells the file's owner how it went."""
    told: Plain | None = None
    root = b""
    try:
        root = yield from _copy(task, context)
        context.succeeded()
    except Problem as problem:
        context.failed(problem)
        told = problem.plain
    note = ChunkDone(task.file.temporary, told, task.part, root, context.hosts.here)
    result.spawn(note, owner=task.owner % context.size)
    return result.outcome()


def _copy(task: CopyChunk, context: Context) -> Generator[None, None, bytes]:
    """Returns the chunk's content root if digests are wanted."""
    file = task.file
    place = file.split.place
    hasher = context.hasher()
    reading = open_source(context.open_source(place), file.split.name, follow=context.options.dereference)
    try:
        check_unchanged(reading, file.version)
        holes = has_holes(status_of(reading, on_source=True))
        if file.cloned and hasher is not None:
            for read in digest_contents(reading, task.start, task.end, hasher, holes=holes):
                context.counters[counts.MOVED] += read
                yield
            check_unchanged(reading, file.version)
        else:
            yield from _fill(task, context, reading, hasher, holes)
    finally:
        close_read(reading)
    return hasher.root() if hasher is not None else b""


def _fill(
    task: CopyChunk, context: Context, reading: int, hasher: ContentHasher | None, holes: bool
) -> Generator[None, None, None]:
    file = task.file
    place = file.split.place
    writing = reopen_filled(context, context.open_target(place), file)
    try:
        steps = context.mover.copy(
            reading, writing, task.start, task.end, context.devices(place), holes=holes, digest=hasher
        )
        for moved in steps:
            context.counters[counts.MOVED] += moved
            yield
        check_unchanged(reading, file.version)
    except BaseException:
        abandon(writing)
        raise
    close_written(writing, sync=context.syncs_items(place))
