"""The base of a rank in a run: the tasks with which it begins and, for rank 0, the counts so far and the phase.

A base is written once, before the file ``current`` names its run. So a crash cannot leave one incomplete: a base file
without its end is damaged. Its frames are, in this order:

- name and version of the format, and the header;
- for rank 0: the shares of the counts, in tuples of limited length;
- lists of tasks as plain tuples;
- the number of all tasks.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any

from pcopy.checkpoint.directory import AnyPath, check_directory, create_file
from pcopy.checkpoint.framing import Frame, damage_error, read_frames, reporting_damage, write_frame
from pcopy.checkpoint.layout import JOB_FORMAT_VERSION, OTHER_VERSION_ADVICE, base_file_name, run_directory_name
from pcopy.checkpoint.record import checked_shares, checked_task, is_tuple_of_ints, load_value
from pcopy.engine.backlog import FRAME_BYTES
from pcopy.engine.messages import dump_primitives
from pcopy.engine.task import LabelledCounts, Task, task_batches
from pcopy.errors import RequestRefused
from pcopy.fast_named_tuple import NamedTuple
from pcopy.fsio.syncer import sync_if_supported
from pcopy.text import printable_path

BASE_FORMAT = "pcopy-base"
"""Name of the format of base files."""

_SHARES_PER_FRAME = 1024
"""Maximum number of shares of the counts in one frame."""


class BaseHeader(NamedTuple):
    """Header of a base file.

    Attributes:
        run: number of the run.
        rank: rank that the base belongs to.
        size: number of ranks of the run.
        phase: phase with which the run begins; -1 except for rank 0.
        counts: counters with which the run begins; empty except for rank 0.
    """

    run: int
    rank: int
    size: int
    phase: int
    counts: tuple[int, ...]


def write_base(directory: bytes, header: BaseHeader, shares: Iterable[LabelledCounts], tasks: Iterable[Task]) -> None:
    """Write the base of one rank and bring the file to stable storage. The entry in the run's ``directory`` is not
    synced.

    Raise ``OSError``, also if the file exists.
    """
    with create_file(os.path.join(directory, base_file_name(header.rank))) as file:

        def write(value: object) -> None:
            """Append ``value`` as a frame."""
            write_frame(file, dump_primitives(value))

        write((BASE_FORMAT, JOB_FORMAT_VERSION, *header))
        remaining = iter(shares)
        while some_shares := tuple(islice(remaining, _SHARES_PER_FRAME)):
            write(some_shares)
        count = 0
        for batch in task_batches(tasks, FRAME_BYTES):
            write([tuple(task) for task in batch])
            count += len(batch)
        write(count)
        sync_if_supported(file.fileno())


def base_path(job_dir: AnyPath, run: int, rank: int) -> bytes:
    """Return the path of the base of ``rank`` in ``run``."""
    return os.path.join(os.fsencode(job_dir), run_directory_name(run), base_file_name(rank))


def read_base_header(job_dir: AnyPath, run: int, rank: int) -> BaseHeader:
    """Return the header of a base. Raise ``RequestRefused`` if the file is missing, not trusted, damaged or another
    rank's.
    """
    path = base_path(job_dir, run, rank)
    return _checked_header(path, next(read_frames(path), Frame(0, b"")), run, rank)


def read_base(job_dir: AnyPath, run: int, rank: int) -> Iterator[Task]:
    """Return the tasks with which ``rank`` begins ``run``, with one frame at a time in memory.

    Raise ``RequestRefused`` if the directory or the file is missing, not trusted or damaged, either at the first task
    or at the end: only after the last task is it certain that none is missing.
    """
    return (value for value in _shares_and_tasks(job_dir, run, rank) if isinstance(value, Task))


def read_shares(job_dir: AnyPath, run: int) -> Iterator[LabelledCounts]:
    """Return the shares of the counts with which ``run`` begins. Raise as ``read_base`` does."""
    for value in _shares_and_tasks(job_dir, run, 0):
        if isinstance(value, Task):
            return
        yield value


def _shares_and_tasks(job_dir: AnyPath, run: int, rank: int) -> Iterator[Task | LabelledCounts]:
    """Yield all shares, then all tasks of a base. Raise ``RequestRefused`` as ``read_base`` does."""
    check_directory(os.fsencode(job_dir))
    check_directory(os.path.join(os.fsencode(job_dir), run_directory_name(run)))
    path = base_path(job_dir, run, rank)
    read = read_frames(path)
    _checked_header(path, next(read, Frame(0, b"")), run, rank)
    count = 0
    for frame in read:
        with reporting_damage(path, frame.offset):
            value = load_value(frame.payload)
        if type(value) is int:
            if value != count or next(read, None) is not None:
                raise damage_error(path, frame.offset, f"the end of {value} tasks, but the file has more or fewer")
            return
        if type(value) is tuple:
            with reporting_damage(path, frame.offset):
                yield from checked_shares(value)
            continue
        if type(value) is not list:
            raise damage_error(path, frame.offset, "neither tasks nor the end")
        with reporting_damage(path, frame.offset):
            yield from map(checked_task, value)
        count += len(value)
    raise RequestRefused(f"{printable_path(path)}: damaged: it ends after {count} tasks, and more were written")


def _checked_header(path: bytes, frame: Frame, run: int, rank: int) -> BaseHeader:
    """Return the header in the first frame of a base; raise ``RequestRefused`` if it is not that of ``run`` and
    ``rank``.
    """
    fields = read_first_frame(path, frame, BASE_FORMAT)
    if len(fields) != len(BaseHeader._fields) or not is_tuple_of_ints(fields[:-1]) or not is_tuple_of_ints(fields[-1]):
        raise damage_error(path, frame.offset, "not the header of a base")
    header = BaseHeader(*fields)
    if (header.run, header.rank) != (run, rank):
        raise damage_error(path, frame.offset, f"belongs to run {header.run}, rank {header.rank}")
    return header


def read_first_frame(path: bytes, frame: Frame, name: str) -> tuple[Any, ...]:
    """Return the fields in a file's first frame, without the name of its format and the version.

    Raise ``RequestRefused`` unless the file has the format ``name`` and the version of this pcopy.
    """
    with reporting_damage(path, frame.offset):
        value = load_value(frame.payload)
    if type(value) is not tuple or len(value) < 2 or value[0] != name or type(value[1]) is not int:
        raise damage_error(path, 0, f"no file of the format {name}")
    if value[1] != JOB_FORMAT_VERSION:
        raise RequestRefused(
            f"{printable_path(path)}: version {value[1]} of {name}; this pcopy reads version {JOB_FORMAT_VERSION}; "
            f"{OTHER_VERSION_ADVICE}"
        )
    return value[2:]
