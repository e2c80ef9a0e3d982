"""SplitFile: a large file becomes chunks that all ranks copy at once into one temporary file.

The chunk is chosen when the file's turn comes, from what is known by then: about the bytes found so far, divided among
64 chunks a rank (``pcopy.tasks.chunks``).
"""

from __future__ import annotations

import stat
from collections.abc import Generator

from pcopy.engine.driver import Slices
from pcopy.fsio.attributes import free_from_acl
from pcopy.fsio.close import abandon, close_written, let_go
from pcopy.fsio.data import set_size
from pcopy.fsio.identity import identity_of
from pcopy.fsio.in_place import incomplete, open_over
from pcopy.fsio.problem import Problem
from pcopy.fsio.source import Version, check_found, open_source, status_of
from pcopy.fsio.temporary import create, made_by, remove
from pcopy.tasks import counts
from pcopy.tasks.context import Context
from pcopy.tasks.copy_files import count_settled
from pcopy.tasks.link_group import after_settled, representative_failed
from pcopy.tasks.result import Result
from pcopy.tasks.retry import failed_or_retried
from pcopy.tasks.targets import inherits_acl, look
from pcopy.tasks.values import CopyChunk, FileOpened, FinishFile, OpenFile, SplitFile
from pcopy.tasks.whole_file import copy_whole, settled_already


def split_file(task: SplitFile, context: Context, result: Result) -> Slices:
    """Splits the file, or copies it whole if it is under one and a half chunks."""
    try:
        if context.splits(task.size):
            yield from _split(task, context, result)
        else:
            settled = yield from copy_whole(context, result, task.place, task.name, task.mount, task.inode, linked=True)
            count_settled(context, result, task.place, task.name, settled, alone=not task.links)
            after_settled(context, result, task, settled)
    except Problem as problem:
        split_failed(context, result, task, problem)
    return result.outcome()


def opened_failed(context: Context, result: Result, file: OpenFile, problem: Problem) -> None:
    """The file was opened and is not copied.

    It may have changed since an earlier run copied parts of it, or that run has renamed it, and was ended before that
    was on record: it was no attempt of this run's.
    """
    task = file.split
    if problem.again and made_by(file.temporary)[0] < context.job.run:
        task = task._replace(attempt=0)
        if problem.changed:
            text = "has changed since the job was interrupted; its copy begins anew"
            result.warn(task.place, task.name, text, on_source=True)
    elif file.over and not problem.changed:
        problem.again = False  # what has taken the file's place in this run is not written over
    split_failed(context, result, task, problem)


def split_failed(context: Context, result: Result, task: SplitFile, problem: Problem) -> None:
    """The file is not copied; if it has further names, one of them takes its place."""
    if task.links or task.failed:
        representative_failed(context, result, task, problem)
    else:
        failed_or_retried(result, task.place, task.name, problem, task.attempt, task.size)


def _split(task: SplitFile, context: Context, result: Result) -> Generator[None, None, None]:
    """Makes the temporary file, or empties the existing one, and spawns what fills it; raises ``Problem``."""
    source, target = context.open_source(task.place), context.open_target(task.place)
    reading = open_source(source, task.name, follow=context.options.dereference)
    try:
        status = status_of(reading, on_source=True)
        check_found(status, context.source_device(task.place, task.mount), task.inode)
        new_name = context.new_name(task.place, task.name)
        present = look(target, new_name)
        temporary = context.temporary_names.next()
        over = None
        if present is not None:
            skipped = yield from settled_already(
                context, task.place, reading, status, target, new_name, present, linked=True
            )
            if skipped is not None:
                count_settled(context, result, task.place, task.name, skipped)
                after_settled(context, result, task, skipped)
                return
            if context.options.inplace:
                over = open_over(
                    target, new_name, present, status, context.options.preserve, context.job.name, temporary
                )
        writing = create(target, temporary) if over is None else over.descriptor
        was = () if over is None else over.before
        try:
            try:
                new = status_of(writing)
                if over is None and (inherits_acl(context, task.place, target) or stat.S_IMODE(new.st_mode) != 0o600):
                    free_from_acl(writing)  # the chunks open it again
                made = identity_of(writing, new, task.place.target_id.mount, made=True)
                file = OpenFile(task, Version.of(status), temporary, made, was)
                cloned = context.mover.clone(reading, writing, (status.st_dev, new.st_dev))
                if not cloned:
                    set_size(writing, status.st_size)
                file = file._replace(cloned=cloned)
            except BaseException:
                abandon(writing)
                raise
            close_written(writing, sync=context.syncs_items(task.place))
        except Problem as problem:
            if over is not None:
                raise incomplete(problem) from problem
            remove(target, temporary)
            raise
    finally:
        let_go(reading)  # the chunks and FinishFile open it again
    chunk = context.chunk(status.st_size)  # it may have grown since it was found
    nothing_to_read = cloned and not context.digests
    if nothing_to_read or not status.st_size:  # it may have been emptied since it was found: no chunk would be done
        context.counters[counts.MOVED] += status.st_size
        digest = context.hashing.chunks(0, []) if context.digests else b""
        result.spawn(FinishFile(file, digest, chunk, bytes((context.hosts.here,))), owner=context.rank)
        return
    starts = range(0, status.st_size, chunk)
    result.spawn(FileOpened(file, len(starts), chunk), owner=context.rank)
    alone = file._replace(split=task._replace(links=(), failed=()))  # many links must not travel with each chunk
    for index, start in enumerate(starts):
        end = min(start + chunk, status.st_size)
        result.spawn(CopyChunk(alone, start, end, index, context.rank), end - start)
