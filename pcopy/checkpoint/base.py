"""What a rank begins a run with: its tasks and, for rank 0, the counts so far and the phase.

A base is written once, before ``current`` names its run. So it is never torn: a file without its end is damaged. Its
frames are a ``Header`` with name and version of the format in front, for rank 0 the shares of the counts (tuples of
some of them), lists of tasks as plain tuples, and the number of all tasks.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any

from pcopy.checkpoint.directory import Path, check_directory, create
from pcopy.checkpoint.framing import Frame, as_damage, damaged, frames, write_frame
from pcopy.checkpoint.layout import END_IT, VERSION, base_name, run_name
from pcopy.checkpoint.record import as_shares, as_task, is_counts, load_value
from pcopy.engine.backlog import FRAME_BYTES
from pcopy.engine.messages import dump_primitives
from pcopy.engine.task import Share, Task, batches
from pcopy.errors import Refused
from pcopy.fsio.syncer import sync_written
from pcopy.named import NamedTuple
from pcopy.text import shown

FORMAT = "pcopy-base"

_SHARES_TOGETHER = 1024
"""Shares of the counts in one frame."""


class Header(NamedTuple):
    """Whose base it is. ``size`` is the number of the run's ranks; only rank 0 knows ``phase`` (else -1) and counts."""

    run: int
    rank: int
    size: int
    phase: int
    counts: tuple[int, ...]


def write_base(directory: bytes, header: Header, shares: Iterable[Share], tasks: Iterable[Task]) -> None:
    """Writes the base of one rank, and makes it durable; its name in the run's ``directory`` is not yet.

    Raises ``OSError``, if the file is there, too.
    """
    with create(os.path.join(directory, base_name(header.rank))) as file:

        def write(value: object) -> None:
            write_frame(file, dump_primitives(value))

        write((FORMAT, VERSION, *header))
        left = iter(shares)
        while some := tuple(islice(left, _SHARES_TOGETHER)):
            write(some)
        count = 0
        for batch in batches(tasks, FRAME_BYTES):
            write([tuple(task) for task in batch])
            count += len(batch)
        write(count)
        sync_written(file.fileno())


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
    """The shares that make up the counts with which ``run`` begins; raises as ``read_base`` does."""
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
        with as_damage(path, frame.offset):
            value = load_value(frame.payload)
        if type(value) is int:
            if value != count or next(read, None) is not None:
                raise damaged(path, frame.offset, f"the end of {value} tasks, but there are others")
            return
        if type(value) is tuple:
            with as_damage(path, frame.offset):
                yield from as_shares(value)
            continue
        if type(value) is not list:
            raise damaged(path, frame.offset, "neither tasks nor the end")
        with as_damage(path, frame.offset):
            yield from map(as_task, value)
        count += len(value)
    raise Refused(f"{shown(path)}: damaged: it ends after {count} tasks, and more were written")


def _header(path: bytes, frame: Frame, run: int, rank: int) -> Header:
    fields = read_first(path, frame, FORMAT)
    if len(fields) != len(Header._fields) or not is_counts(fields[:-1]) or not is_counts(fields[-1]):
        raise damaged(path, frame.offset, "no header of a base")
    header = Header(*fields)
    if (header.run, header.rank) != (run, rank):
        raise damaged(path, frame.offset, f"the base of run {header.run}, rank {header.rank}")
    return header


def read_first(path: bytes, frame: Frame, name: str) -> tuple[Any, ...]:
    """What stands in a file's first frame behind the ``name`` of its format and this version; raises ``Refused``."""
    with as_damage(path, frame.offset):
        value = load_value(frame.payload)
    if type(value) is not tuple or len(value) < 2 or value[0] != name or type(value[1]) is not int:
        raise damaged(path, 0, f"no file of the format {name}")
    if value[1] != VERSION:
        raise Refused(f"{shown(path)}: version {value[1]} of {name}; this pcopy reads version {VERSION}; {END_IT}")
    return value[2:]
