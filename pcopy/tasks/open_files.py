"""FileOpened and ChunkDone: what the owner of a split file is told. The last chunk's note spawns FinishFile."""

from __future__ import annotations

from pcopy.engine.driver import Slices
from pcopy.errors import InvariantBroken
from pcopy.fsio.problem import Problem
from pcopy.fsio.temporary import remove
from pcopy.tasks.context import Context, Result, UnfinishedFile
from pcopy.tasks.split_file import split_failed
from pcopy.tasks.values import ChunkDone, FileOpened, FinishFile


def file_opened(task: FileOpened, context: Context, result: Result) -> Slices:
    """From now on the file's chunks are counted here."""
    context.unfinished[task.file.temporary] = UnfinishedFile(task)
    return result.outcome()
    yield


def chunk_done(task: ChunkDone, context: Context, result: Result) -> Slices:
    """One chunk less to wait for."""
    unfinished = context.unfinished.get(task.temporary)
    if unfinished is None:
        raise InvariantBroken(f"a chunk of {task.temporary!r}, which is no file under way on rank {context.rank}")
    if task.problem is not None and unfinished.problem is None:
        operation, number, text, on_source, changed = task.problem
        unfinished.problem = Problem(operation, number, text=text, on_source=on_source, changed=changed)
        discard(context, unfinished)  # so that chunks still to come end quickly
    unfinished.remaining -= 1
    if not unfinished.remaining:
        del context.unfinished[task.temporary]
        file = unfinished.opened.file
        if unfinished.problem is None:
            result.spawn(FinishFile(file), owner=context.rank)  # here, so that an early stop finishes or removes it
        else:
            split_failed(context, result, file.split, unfinished.problem)
    return result.outcome()
    yield


def discard(context: Context, unfinished: UnfinishedFile) -> None:
    """Removes the temporary file, if its directory is still there."""
    file = unfinished.opened.file
    try:
        remove(context.open_target(file.split.place), file.temporary)
    except Problem:
        return  # the directory itself is gone or was replaced, which fails its items on its own


def discard_all(context: Context) -> None:
    """Removes what an early stop leaves behind."""
    for unfinished in context.unfinished.values():
        discard(context, unfinished)
    context.unfinished.clear()
