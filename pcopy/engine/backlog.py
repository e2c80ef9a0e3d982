"""Tasks that wait outside memory: those of later phases, and what a full queue can't hold.

They are kept as frames of pickled primitives in a *spool*, a binary file that grows at its end and is read from its
start. Only the frame being filled and the frame being read are Python objects, however many tasks wait.
"""

from __future__ import annotations

import io
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from typing import BinaryIO

from pcopy.engine.messages import dump_primitives, load_primitives
from pcopy.engine.task import Task

FRAME_TASKS = 128
"""Tasks in one frame of a backlog at most."""
FRAME_BYTES = 1 << 20
"""Bytes after which a frame is full: so much of a backlog is in memory, once for writing and once for reading."""

SpoolFactory = Callable[[], BinaryIO]
"""Opens an empty binary file for reading and writing, which vanishes when it is closed."""


class Backlog(ABC):
    """Tasks outside memory, first in, first out: ``count`` of them, of ``footprint`` bytes together.

    They are handed on in frames. An error leaves every task in the backlog.
    """

    def __init__(self) -> None:
        self._filling: list[Task] = []
        self._filling_bytes = 0
        self.count = 0
        self.footprint = 0

    @abstractmethod
    def _put(self, frame: bytes) -> None:
        """Keeps a packed frame; may raise ``OSError``."""

    @abstractmethod
    def _take(self) -> bytes | None:
        """The oldest of those, which is given up; None if there is none. May raise ``OSError``."""

    def keep(self, task: Task) -> None:
        """As ``append``, in memory."""
        self._filling.append(task)
        self._filling_bytes += task.footprint
        self.count += 1
        self.footprint += task.footprint

    def append(self, task: Task) -> None:
        """May raise ``OSError``; the task is in the backlog nevertheless."""
        self.keep(task)
        if len(self._filling) >= FRAME_TASKS or self._filling_bytes >= FRAME_BYTES:
            self._put(dump_primitives([tuple(task) for task in self._filling]))
            self._filling, self._filling_bytes = [], 0

    def take_frame(self) -> list[Task]:
        """The oldest frame's tasks, which leave the backlog; nothing if it is empty. May raise ``OSError``."""
        frame = self._take()
        if frame is None:
            tasks = self._filling
            self._filling, self._filling_bytes = [], 0
        else:
            tasks = [Task(*fields) for fields in load_primitives(frame)]
        self.count -= len(tasks)
        self.footprint -= sum(task.footprint for task in tasks)
        return tasks

    def drained(self) -> Iterator[Task]:
        """All tasks, which leave the backlog; may raise ``OSError``."""
        while tasks := self.take_frame():
            yield from tasks

    def close(self) -> None:
        self._filling = []
        self._filling_bytes = self.count = self.footprint = 0


class SpoolBacklog(Backlog):
    """Its frames are in a spool."""

    def __init__(self, open_spool: SpoolFactory = io.BytesIO) -> None:
        super().__init__()
        self._open_spool = open_spool
        self._spool: BinaryIO | None = None
        self._read_at = 0
        self._write_at = 0

    def _put(self, frame: bytes) -> None:
        if self._spool is None:
            self._spool = self._open_spool()
        self._spool.seek(self._write_at)
        self._spool.write(len(frame).to_bytes(8, "big") + frame)
        self._write_at += 8 + len(frame)

    def _take(self) -> bytes | None:
        if self._read_at == self._write_at:
            return None
        assert self._spool is not None
        self._spool.seek(self._read_at)
        length = int.from_bytes(self._spool.read(8), "big")
        frame = self._spool.read(length)
        self._read_at += 8 + length
        if self._read_at == self._write_at:
            self._spool.seek(0)
            self._spool.truncate()
            self._read_at = self._write_at = 0
        return frame

    def close(self) -> None:
        super().close()
        if self._spool is not None:
            self._spool.close()
        self._spool = None
        self._read_at = self._write_at = 0
