"""What the owner of a file in chunks knows of them."""

from __future__ import annotations

from pcopy.engine.task import TaskId
from pcopy.fsio.problem import Problem
from pcopy.tasks.read_values import ReadOpened
from pcopy.tasks.values import FileOpened


class UnfinishedFile:
    """What the owner of a split file knows of its chunks."""

    __slots__ = ("held", "opened", "problem", "remaining", "roots", "writers")

    def __init__(self, opened: FileOpened, task_id: TaskId) -> None:
        self.opened = opened
        self.held = [task_id]
        """The notes that are held for the file."""
        self.remaining = opened.chunks
        self.problem: Problem | None = None
        self.roots = [b""] * opened.chunks
        self.writers = bytearray(opened.chunks)


class UnfinishedRead:
    """What the owner of a file that is read knows of its chunks."""

    __slots__ = ("held", "opened", "problem", "remaining", "roots")

    def __init__(self, opened: ReadOpened, task_id: TaskId) -> None:
        self.opened = opened
        self.held = [task_id]
        """The notes that are held for the file."""
        self.remaining = opened.chunks
        self.problem: Problem | None = None
        self.roots = [b""] * opened.chunks
