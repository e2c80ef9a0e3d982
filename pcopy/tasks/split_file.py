"""SplitFile: a large file becomes chunks that all ranks copy at once into one temporary file.

The chunk is chosen when the file's turn comes, from what is known by then: about the bytes found so far, divided among
64 chunks a rank, as a power of two of blocks, so that a chunk is a whole subtree of the file's digest tree.
"""

from __future__ import annotations

from pcopy.engine.driver import Slices
from pcopy.fsio.close import abandon, close_read, close_written
from pcopy.fsio.data import set_size
from pcopy.fsio.existing import alike
from pcopy.fsio.problem import Problem
from pcopy.fsio.source import Version, check_found, open_source, status_of
from pcopy.fsio.temporary import create, remove
from pcopy.tasks import counts
from pcopy.tasks.context import Context, Result
from pcopy.tasks.copy_files import count_settled
from pcopy.tasks.link_group import after_settled, representative_failed
from pcopy.tasks.retry import failed_or_retried
from pcopy.tasks.targets import look, may_replace
from pcopy.tasks.values import CopyChunk, FileOpened, FinishFile, OpenFile, SplitFile
from pcopy.tasks.whole_file import Settled, copy_whole

CHUNKS_PER_RANK = 64
SMALLEST_CHUNK = 16 << 20
LARGEST_CHUNK = 1 << 30


def chunk_size(asked: int, block: int, known: int, ranks: int) -> int:
    """Bytes of one chunk: ``asked`` if that is not 0, else chosen for ``known`` bytes; block·2^k in any case."""
    wanted = asked or min(max(known // (ranks * CHUNKS_PER_RANK), SMALLEST_CHUNK), LARGEST_CHUNK)
    chunk = block
    while chunk < wanted:
        chunk *= 2
    return chunk


def split_file(task: SplitFile, context: Context, result: Result) -> Slices:
    """Splits the file, or copies it whole if it is under one and a half chunks."""
    known = max(context.totals()[counts.FOUND_BYTES], context.counters[counts.FOUND_BYTES], task.size)
    chunk = chunk_size(context.options.chunk_size, context.options.block_size, known, context.size)
    try:
        if context.size == 1 or 2 * task.size < 3 * chunk:
            settled = yield from copy_whole(context, result, task.place, task.name, task.mount, task.inode)
            count_settled(context, result, settled.copied, settled.size)
            after_settled(context, result, task, settled)
        else:
            _split(task, context, result, chunk)
    except Problem as problem:
        split_failed(context, result, task, problem)
    return result.outcome()


def split_failed(context: Context, result: Result, task: SplitFile, problem: Problem) -> None:
    """The file is not copied; if it has further names, one of them takes its place."""
    if task.links:
        representative_failed(context, result, task, problem)
    else:
        failed_or_retried(context, result, task.place, task.name, problem, task.attempt, task.size)


def _split(task: SplitFile, context: Context, result: Result, chunk: int) -> None:
    """Makes the temporary file and spawns what fills it; raises ``Problem``."""
    source, target = context.open_source(task.place), context.open_target(task.place)
    reading = open_source(source, task.name)
    try:
        status = status_of(reading, on_source=True)
        check_found(status, context.source_device(task.place, task.mount), task.inode)
        new_name = context.new_name(task.place, task.name)
        present = look(target, new_name)
        if present is not None and not may_replace(context, task.place, status, present):
            count_settled(context, result, False, status.st_size)
            same = alike(status, present, context.options.modify_window)
            after_settled(context, result, task, Settled(False, status.st_size, present.st_ino, same))
            return
        temporary = context.temporary_names.next()
        writing = create(target, temporary)
        try:
            try:
                new = status_of(writing)
                file = OpenFile(task, Version.of(status), temporary, new.st_ino)
                cloned = context.mover.clone(reading, writing, (status.st_dev, new.st_dev))
                if not cloned:
                    set_size(writing, status.st_size)
            except BaseException:
                abandon(writing)
                raise
            close_written(writing)
        except Problem:
            remove(target, temporary)
            raise
    finally:
        close_read(reading)
    if cloned or not status.st_size:  # it may have been emptied since it was found: no chunk would ever be done
        context.counters[counts.MOVED] += status.st_size
        result.spawn(FinishFile(file), owner=context.rank)
        return
    starts = range(0, status.st_size, chunk)
    result.spawn(FileOpened(file, len(starts)), owner=context.rank)
    alone = file._replace(split=task._replace(links=()))  # many links must not travel with each chunk
    for start in starts:
        end = min(start + chunk, status.st_size)
        result.spawn(CopyChunk(alone, start, end, context.rank), end - start)
