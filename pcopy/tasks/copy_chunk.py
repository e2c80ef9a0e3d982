"""CopyChunk: one stretch of a large file. It never creates: without its temporary file there is nothing to fill."""

from __future__ import annotations

from collections.abc import Generator

from pcopy.engine.driver import Slices
from pcopy.fsio.close import abandon, close_read, close_written
from pcopy.fsio.data import has_holes
from pcopy.fsio.problem import Problem
from pcopy.fsio.source import check_unchanged, open_source, status_of
from pcopy.fsio.temporary import reopen
from pcopy.tasks import counts
from pcopy.tasks.context import Context, Result
from pcopy.tasks.values import ChunkDone, CopyChunk


def copy_chunk(task: CopyChunk, context: Context, result: Result) -> Slices:
    """Copies it and tells the file's owner how it went."""
    told: tuple[str, int, str, bool, bool] | None = None
    try:
        yield from _copy(task, context)
        context.succeeded()
    except Problem as problem:
        context.failed(problem)
        told = (problem.operation, problem.errno or 0, problem.strerror or "", problem.on_source, problem.changed)
    result.spawn(ChunkDone(task.file.temporary, told), owner=task.owner)
    return result.outcome()


def _copy(task: CopyChunk, context: Context) -> Generator[None, None, None]:
    file = task.file
    place = file.split.place
    reading = open_source(context.open_source(place), file.split.name)
    try:
        check_unchanged(reading, file.version)
        writing = reopen(context.open_target(place), file.temporary, file.temporary_inode)
        try:
            devices = context.devices(place)
            holes = has_holes(status_of(reading, on_source=True))
            for moved in context.mover.copy(reading, writing, task.start, task.end, devices, holes=holes):
                context.counters[counts.MOVED] += moved
                yield
            check_unchanged(reading, file.version)
        except BaseException:
            abandon(writing)
            raise
        close_written(writing)
    finally:
        close_read(reading)
