"""What a rank begins a run with: its tasks and, for rank 0, the counts so far and the phase.

A base is written once, before ``current`` names its run. So it is never torn: a file without its end is damaged. Its
frames are a ``Header`` with name and version of the format in front, for rank 0 the shares of the counts (tuples of
some of them), lists of tasks as plain tuples, and the number of all tasks.
"""

from __future__ import annotations

import os
import pickle
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from pcopy.checkpoint.files import Path, check_directory, create
from pcopy.checkpoint.framing import Frame, damaged, frames, write_frame
from pcopy.checkpoint.layout import END_IT, VERSION, base_name, run_name
from pcopy.checkpoint.record import as_shares, as_task, is_counts, load_value
from pcopy.engine.backlog import FRAME_BYTES, FRAME_TASKS
from pcopy.engine.task import Share, Task
from pcopy.errors import Refused
from pcopy.text import shown

FORMAT = "pcopy-base"

_LEAST_BYTES = 16
"""Of a pickled task without payload."""


class Header(NamedTuple):
    """Whose base it is. ``size`` is the number of the run's ranks; only rank 0 knows ``phase`` (else -1) and counts."""

    run: int
    rank: int
    size: int
    phase: int
    counts: tuple[int, ...]


class BaseWriter:
    """Writes the base of one rank as a stream."""

    def __init__(self, directory: Path, header: Header) -> None:
        """``directory`` is the run's; the file must not be there. All methods raise ``OSError``."""
        self._file = create(os.path.join(os.fsencode(directory), base_name(header.rank)))
        self._held: list[Task] = []
        self._held_bytes = 0
        self._count = 0
        self._write((FORMAT, VERSION, *header))

    def add(self, task: Task) -> None:
        self._held.append(task)
        self._held_bytes += task.footprint
        if len(self._held) >= FRAME_TASKS or self._held_bytes >= FRAME_BYTES:
            self._write_tasks()

    def add_shares(self, shares: tuple[Share, ...]) -> None:
        """Before the first task."""
        self._write(shares)

    def _write_tasks(self) -> None:
        self._write([tuple(task) for task in self._held])
        self._count += len(self._held)
        self._held, self._held_bytes = [], 0

    def _write(self, value: object) -> None:
        write_frame(self._file, pickle.dumps(value, 5))

    def finish(self) -> None:
        """Completes the file and makes it durable; its name is not yet."""
        if self._held:
            self._write_tasks()
        self._write(self._count)
        os.fsync(self._file.fileno())
        self._file.close()

    def close(self) -> None:
        """Gives the file up, whole or not."""
        self._file.close()


def base_path(job_dir: Path, run: int, rank: int) -> bytes:
    return os.path.join(os.fsencode(job_dir), run_name(run), base_name(rank))


def read_header(job_dir: Path, run: int, rank: int) -> Header:
    """Raises ``Refused`` if the file is missing, not to be trusted, damaged or another rank's."""
    path = base_path(job_dir, run, rank)
    return _header(path, next(frames(path), Frame(0, b"")), run, rank)


def read_base(job_dir: Path, run: int, rank: int) -> Iterator[Task]:
    """The tasks that ``rank`` begins ``run`` with, a frame at a time in memory.

    Raises ``Refused``, at the first task or at the end, if directory or file are missing, not to be trusted or damaged:
    only after the last task is it known that there are no more.
    """
    return (value for value in _read(job_dir, run, rank) if isinstance(value, Task))


def read_shares(job_dir: Path, run: int) -> Iterator[Share]:
    """What the counts that ``run`` begins with consist of; raises as ``read_base`` does."""
    for value in _read(job_dir, run, 0):
        if isinstance(value, Task):
            return
        yield value


def _read(job_dir: Path, run: int, rank: int) -> Iterator[Task | Share]:
    check_directory(os.fsencode(job_dir))
    check_directory(os.path.join(os.fsencode(job_dir), run_name(run)))
    path = base_path(job_dir, run, rank)
    read = frames(path)
    _header(path, next(read, Frame(0, b"")), run, rank)
    count = 0
    for frame in read:
        value = _value(path, frame)
        if type(value) is int:
            if value != count or next(read, None) is not None:
                raise damaged(path, frame.offset, f"the end of {value} tasks, but there are others")
            return
        if type(value) is tuple:
            try:
                yield from as_shares(value)
            except ValueError as error:
                raise damaged(path, frame.offset, str(error)) from None
            continue
        if type(value) is not list:
            raise damaged(path, frame.offset, "neither tasks nor the end")
        for fields in value:
            try:
                task = as_task(fields)
            except ValueError as error:
                raise damaged(path, frame.offset, str(error)) from None
            yield task
            count += 1
    raise Refused(f"{shown(path)}: damaged: it ends after {count} tasks, and more were written")


def most_tasks(job_dir: Path, run: int, rank: int) -> int:
    """At most how many tasks ``read_base`` gives, by the size of the file."""
    return os.stat(base_path(job_dir, run, rank)).st_size // _LEAST_BYTES


def _value(path: bytes, frame: Frame) -> Any:
    try:
        return load_value(frame.payload)
    except ValueError as error:
        raise damaged(path, frame.offset, str(error)) from None


def _header(path: bytes, frame: Frame, run: int, rank: int) -> Header:
    value = _value(path, frame)
    check_version(path, value, FORMAT)
    fields: Sequence[Any] = value[2:]
    if len(fields) != len(Header._fields) or not is_counts(fields[:4]) or not is_counts(fields[4]):
        raise damaged(path, frame.offset, "no header of a base")
    header = Header(*fields)
    if header[:2] != (run, rank):
        raise damaged(path, frame.offset, f"the base of run {header.run}, rank {header.rank}")
    return header


def check_version(path: bytes, value: Any, name: str) -> None:
    """Raises ``Refused`` unless ``value`` is a tuple that begins with the name of a format and this version."""
    if type(value) is not tuple or len(value) < 2 or value[0] != name or type(value[1]) is not int:
        raise damaged(path, 0, f"no file of the format {name}")
    if value[1] != VERSION:
        raise Refused(f"{shown(path)}: version {value[1]} of {name}; this pcopy reads version {VERSION}; {END_IT}")
