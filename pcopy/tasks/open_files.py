"""FileOpened and ChunkDone: what the owner of a split file is told. The last chunk's note spawns FinishFile."""

from __future__ import annotations

from pcopy.engine.driver import Slices
from pcopy.engine.task import TaskId
from pcopy.errors import InvariantBroken
from pcopy.fsio.in_place import incomplete
from pcopy.fsio.problem import Problem
from pcopy.fsio.temporary import made_by, remove
from pcopy.tasks.context import Context
from pcopy.tasks.result import Result
from pcopy.tasks.split_file import opened_failed
from pcopy.tasks.unfinished import UnfinishedFile
from pcopy.tasks.values import ChunkDone, FileOpened, FinishFile


def file_opened(task: FileOpened, context: Context, result: Result) -> Slices:
    """From now on the file's chunks are counted here."""
    result.hold()
    unfinished = context.unfinished[task.file.temporary] = UnfinishedFile(task, result.id)
    for note, note_id in context.early_chunks.pop(task.file.temporary, ()):
        _take(context, result, unfinished, note, note_id)
    return result.outcome()
    yield


def chunk_done(task: ChunkDone, context: Context, result: Result) -> Slices:
    """One chunk less to wait for."""
    result.hold()
    unfinished = context.unfinished.get(task.temporary)
    if unfinished is not None:
        _take(context, result, unfinished, task, result.id)
    elif context.job.run > 1:  # what a job that was resumed held comes in any order
        context.early_chunks.setdefault(task.temporary, []).append((task, result.id))
    else:
        raise InvariantBroken(f"a chunk of {task.temporary!r}, which is no file under way on rank {context.rank}")
    return result.outcome()
    yield


def _take(context: Context, result: Result, unfinished: UnfinishedFile, note: ChunkDone, note_id: TaskId) -> None:
    """The last note settles all that was held for the file."""
    unfinished.held.append(note_id)
    if note.problem is not None and unfinished.problem is None:
        unfinished.problem = Problem.from_plain(note.problem)
        if unfinished.opened.file.over:
            unfinished.problem = incomplete(unfinished.problem)
        discard(context, unfinished)  # so that chunks still to come end quickly
    unfinished.roots[note.part] = note.root
    unfinished.writers[note.part] = note.writer
    unfinished.remaining -= 1
    if unfinished.remaining:
        return
    file = unfinished.opened.file
    del context.unfinished[file.temporary]
    result.settle(unfinished.held)
    if unfinished.problem is None:
        digest = context.hashing.chunks(file.version.size, unfinished.roots) if context.digests else b""
        finish = FinishFile(file, digest, unfinished.opened.chunk, bytes(unfinished.writers))
        result.spawn(finish, owner=context.rank)  # here, so that an early stop finishes or removes it
    else:
        opened_failed(context, result, file, unfinished.problem)


def discard(context: Context, unfinished: UnfinishedFile) -> None:
    """Removes the temporary file, if its directory is still there. (What is written over is nobody's to remove.)"""
    file = unfinished.opened.file
    if file.over:
        return
    try:
        remove(context.open_target(file.split.place), file.temporary)
    except Problem:
        return  # the directory itself is gone or was replaced, which fails its items on its own


def discard_all(context: Context, since: int = 1) -> None:
    """Removes what an early stop leaves behind, if the run ``since``, or a later one, has made it."""
    for temporary, unfinished in context.unfinished.items():
        if made_by(temporary)[0] >= since:
            discard(context, unfinished)
    context.unfinished.clear()
