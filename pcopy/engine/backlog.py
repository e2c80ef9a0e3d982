"""Queues of tasks outside memory: tasks of later phases, and tasks for which a rank's queue has no room.

Tasks are stored as frames of pickled primitives in a *spool*: a binary file that is written at its end and read from
its start. Only the frame being filled and the frame being read are Python objects, however many tasks are queued.
"""

from __future__ import annotations

import io
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from typing import BinaryIO

from pcopy.engine.messages import dump_primitives, load_primitives
from pcopy.engine.task import Task

MAX_TASKS_PER_FRAME = 128
"""Maximum number of queued tasks that are written to disk, and read again, together (as one frame)."""
FULL_FRAME_BYTES = 1 << 20
"""Size of the tasks in a frame (a group of tasks that is written and read together) from which on the frame is written.
A backlog has at most two frames in memory: one to be written and one that was read.
"""

OpenSpool = Callable[[], BinaryIO]
"""Function that creates a temporary file for waiting tasks or other data, and opens it for reading and writing. The
file is deleted when it is closed.
"""


class TaskBacklog(ABC):
    """First-in, first-out queue of tasks outside memory. Tasks are removed a frame (up to 128 tasks) at a time.
    Abstract: subclasses store the frames.

    After an error all tasks are still in the backlog.
    """

    def __init__(self) -> None:
        self._open_frame: list[Task] = []
        self._open_frame_bytes = 0
        self.count = 0
        """Number of tasks in the backlog, including those that are not yet written."""
        self.memory_bytes = 0
        """Bytes of memory that the tasks would take if all were in memory."""

    @abstractmethod
    def _store_frame(self, frame: bytes) -> None:
        """Append ``frame``, a packed list of tasks, to the stored frames. May raise ``OSError``."""

    @abstractmethod
    def _load_frame(self) -> bytes | None:
        """Remove and return the oldest stored frame, a packed list of tasks; return None if there is none. May raise
        ``OSError``.
        """

    def append_in_memory(self, task: Task) -> None:
        """Add ``task`` to the frame (group of tasks to be written together) that is being filled, but never write it,
        because storage has failed.
        """
        self._open_frame.append(task)
        self._open_frame_bytes += task.memory_use_in_bytes
        self.count += 1
        self.memory_bytes += task.memory_use_in_bytes

    def append(self, task: Task) -> None:
        """Add ``task`` to the frame (group of tasks to be written together) that is being filled; write the frame if it
        is full.

        May raise ``OSError`` if the frame cannot be written. Even then the task has been added to the backlog, in
        memory.
        """
        self.append_in_memory(task)
        if len(self._open_frame) >= MAX_TASKS_PER_FRAME or self._open_frame_bytes >= FULL_FRAME_BYTES:
            self._store_frame(dump_primitives([tuple(task) for task in self._open_frame]))
            self._open_frame, self._open_frame_bytes = [], 0

    def pop_frame(self) -> list[Task]:
        """Remove and return the tasks of the oldest frame (group of up to 128 tasks); return an empty list if the
        backlog is empty. May raise ``OSError``.
        """
        frame = self._load_frame()
        if frame is None:
            tasks = self._open_frame
            self._open_frame, self._open_frame_bytes = [], 0
        else:
            tasks = [Task(*fields) for fields in load_primitives(frame)]
        self.count -= len(tasks)
        self.memory_bytes -= sum(task.memory_use_in_bytes for task in tasks)
        return tasks

    def pop_all(self) -> Iterator[Task]:
        """Remove and yield all tasks. May raise ``OSError``."""
        while tasks := self.pop_frame():
            yield from tasks

    def close(self) -> None:
        """Drop all tasks and release the storage that they take."""
        self._open_frame = []
        self._open_frame_bytes = self.count = self.memory_bytes = 0


class SpoolFileBacklog(TaskBacklog):
    """Queue of tasks in a temporary file (spool), for tasks that do not fit in memory. Tasks are written and read in
    groups (frames).
    """

    def __init__(self, open_spool: OpenSpool = io.BytesIO) -> None:
        super().__init__()
        self._open_spool = open_spool
        self._spool: BinaryIO | None = None
        self._read_offset = 0
        self._write_offset = 0

    def _store_frame(self, frame: bytes) -> None:
        """Append ``frame``, a packed group of tasks, to the temporary file, preceded by its length (8 bytes,
        big-endian). May raise ``OSError``.
        """
        if self._spool is None:
            self._spool = self._open_spool()
        self._spool.seek(self._write_offset)
        self._spool.write(len(frame).to_bytes(8, "big") + frame)
        self._write_offset += 8 + len(frame)

    def _load_frame(self) -> bytes | None:
        """Return the oldest packed group of tasks that was not read yet from the temporary file; None if there is none.
        Empty the file after the last one. May raise ``OSError``.
        """
        if self._read_offset == self._write_offset:
            return None
        assert self._spool is not None
        self._spool.seek(self._read_offset)
        length = int.from_bytes(self._spool.read(8), "big")
        frame = self._spool.read(length)
        self._read_offset += 8 + length
        if self._read_offset == self._write_offset:
            self._spool.seek(0)
            self._spool.truncate()
            self._read_offset = self._write_offset = 0
        return frame

    def close(self) -> None:
        """Drop all tasks and close the temporary file, which deletes it."""
        super().close()
        if self._spool is not None:
            self._spool.close()
        self._spool = None
        self._read_offset = self._write_offset = 0
