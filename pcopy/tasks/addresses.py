"""What becomes of the tasks that remain of a job when it is resumed, on any number of ranks."""

from __future__ import annotations

from pcopy.engine.task import Task
from pcopy.fsio.temporary import made_by
from pcopy.tasks.codec import decode
from pcopy.tasks.phases import Phase
from pcopy.tasks.read_values import ChunkRead, ReadOpened
from pcopy.tasks.sign_values import StoredEntries
from pcopy.tasks.signing import owner_of
from pcopy.tasks.values import (
    ChunkDone,
    FailDir,
    FileOpened,
    GroupLinks,
    InodeCopied,
    LinkNote,
    ReportFailures,
    SealDirs,
)


def readdress(task: Task, size: int) -> Task | None:
    """``task`` for a job of ``size`` ranks; None if those that go on make it anew.

    The sign phase always begins anew, from the entries stored for it. What is told of one file must meet at one rank,
    also what chunks that are still to come will tell: they know the rank which opened the file, in whatever run. What
    has failed is tried from the beginning: names of one inode must be found before the phase in which they are linked.
    """
    if task.phase >= Phase.SIGN or task.owner >= 0:
        value = decode(task.payload)
        if isinstance(value, ReportFailures):
            return task._replace(phase=int(Phase.COPY))
        if task.phase >= Phase.SIGN and not isinstance(value, StoredEntries):
            return None
        if isinstance(value, GroupLinks | SealDirs):
            return None
        if isinstance(value, InodeCopied):
            return task._replace(phase=int(Phase.COPY), owner=value.bucket % size)
        if isinstance(value, LinkNote):
            return task._replace(owner=value.bucket % size)
        if isinstance(value, FailDir):
            return task._replace(owner=owner_of(value.place.path, size))
        if isinstance(value, FileOpened):
            return task._replace(owner=made_by(value.file.temporary)[1] % size)
        if isinstance(value, ChunkDone):
            return task._replace(owner=made_by(value.temporary)[1] % size)
        if isinstance(value, ReadOpened | ChunkRead):
            return task._replace(owner=value.number[1] % size)
    return task._replace(owner=task.owner % size) if task.owner >= 0 else task


def waits_for_others(task: Task) -> bool:
    """Is it only of use if other tasks find something? Then no earlier phase has to begin for it."""
    return task.owner >= 0 and task.phase == Phase.COPY and isinstance(decode(task.payload), InodeCopied)
