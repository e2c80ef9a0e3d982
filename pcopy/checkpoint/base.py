"""The base of a rank in a run: the tasks with which it begins and, for rank 0, the counts so far and the phase.

A base is written once, before the file ``current`` names its run. So a crash cannot leave an incomplete base of a
recorded run: a base file without its end is damaged. The file consists of frames (``pcopy.checkpoint.framing``), in
this order:

- name and version of the format, and the header;
- for rank 0: the shares of the counts (parts of the counts, each under a label), in tuples of limited length;
- lists of tasks as plain tuples;
- the number of all tasks.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any

from pcopy.checkpoint.directory import AnyPath, check_trusted_directory, create_file
from pcopy.checkpoint.framing import (
    RecordFrame,
    damaged_file_error,
    read_record_frames,
    value_error_as_damaged_file_error,
    write_record_frame,
)
from pcopy.checkpoint.layout import (
    JOB_FORMAT_VERSION,
    OTHER_VERSION_ADVICE,
    initial_tasks_file_name,
    run_directory_name,
)
from pcopy.checkpoint.record import SharePacker, is_tuple_of_ints, task_from_fields, unpack_shares, unpickle_primitives
from pcopy.engine.backlog import FULL_FRAME_BYTES
from pcopy.engine.messages import dump_primitives
from pcopy.engine.task import Share, Task, task_batches
from pcopy.errors import path_refused
from pcopy.fast_named_tuple import NamedTuple
from pcopy.fsio.syncer import sync_file_if_supported

RUN_BASE_FORMAT = "pcopy-base"
"""Name of the format, at the beginning of each file with the tasks with which a rank begins a run."""

_SHARES_PER_FRAME = 1024
"""Maximum number of shares (labelled parts of the counts) that are written together, in one frame of the file."""


class InitialTasksFileHeader(NamedTuple):
    """First part of a base file, the file with the tasks with which a rank begins a run.

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


def write_initial_tasks(
    directory: bytes, header: InitialTasksFileHeader, shares: Iterable[Share], tasks: Iterable[Task]
) -> None:
    """Write the base of one rank, that is, the tasks with which it begins a run, as a file in ``directory``; bring the
    file to stable storage. The caller must sync ``directory``.

    Raise ``OSError``, also if the file exists.

    Args:
        directory: path of the directory of the run.
        header: first part of the file: rank, run, and on rank 0 phase and counters.
        shares: parts of the counts in ``header`` under labels; for rank 0 only.
        tasks: tasks with which the rank begins the run.
    """
    with create_file(os.path.join(directory, initial_tasks_file_name(header.rank))) as file:

        def write(value: object) -> None:
            """Append ``value`` as a frame."""
            write_record_frame(file, dump_primitives(value))

        write((RUN_BASE_FORMAT, JOB_FORMAT_VERSION, *header))
        remaining = iter(shares)
        while some_shares := tuple(map(SharePacker().pack_share, islice(remaining, _SHARES_PER_FRAME))):
            write(some_shares)
        count = 0
        for batch in task_batches(tasks, FULL_FRAME_BYTES):
            write([tuple(task) for task in batch])
            count += len(batch)
        write(count)
        sync_file_if_supported(file.fileno())


def initial_tasks_path(job_dir: AnyPath, run: int, rank: int) -> bytes:
    """Return the path of the file with the tasks with which ``rank`` begins ``run``."""
    return os.path.join(os.fsencode(job_dir), run_directory_name(run), initial_tasks_file_name(rank))


def read_initial_tasks_header(job_dir: AnyPath, run: int, rank: int) -> InitialTasksFileHeader:
    """Return the header of the base file of ``rank`` in ``run``, the file with the tasks with which the rank begins.

    Raise ``RequestRefused`` if the file is missing, is damaged, is that of another rank or run, or does not belong to
    the caller alone.
    """
    path = initial_tasks_path(job_dir, run, rank)
    return _checked_initial_tasks_header(path, next(read_record_frames(path), RecordFrame(0, b"")), run, rank)


def read_initial_tasks(job_dir: AnyPath, run: int, rank: int) -> Iterator[Task]:
    """Return an iterator over the tasks with which ``rank`` begins ``run``, from the rank's base file. It has about 1
    MiB of them in memory.

    The iterator raises ``RequestRefused`` if the directory or the file is missing or damaged, or does not belong to the
    caller alone. It may do so after the last task, because only then it is certain that no task is missing.
    """
    return (value for value in _shares_and_tasks(job_dir, run, rank) if isinstance(value, Task))


def read_shares(job_dir: AnyPath, run: int) -> Iterator[Share]:
    """Yield the shares of the counts with which ``run`` begins: parts of the counts under labels. Raise
    ``RequestRefused`` if a directory or the file is missing or damaged, or does not belong to the caller alone.
    """
    for value in _shares_and_tasks(job_dir, run, 0):
        if isinstance(value, Task):
            return
        yield value


def _shares_and_tasks(job_dir: AnyPath, run: int, rank: int) -> Iterator[Task | Share]:
    """Yield what the base file of ``rank`` in ``run`` contains: first the shares (labelled parts of the counts), then
    the tasks. Raise ``RequestRefused`` if a directory or the file is missing or damaged, or does not belong to the
    caller alone.
    """
    check_trusted_directory(os.fsencode(job_dir))
    check_trusted_directory(os.path.join(os.fsencode(job_dir), run_directory_name(run)))
    path = initial_tasks_path(job_dir, run, rank)
    read = read_record_frames(path)
    _checked_initial_tasks_header(path, next(read, RecordFrame(0, b"")), run, rank)
    count = 0
    for frame in read:
        with value_error_as_damaged_file_error(path, frame.offset):
            value = unpickle_primitives(frame.payload)
        if type(value) is int:
            if value != count or next(read, None) is not None:
                raise damaged_file_error(
                    path,
                    frame.offset,
                    f"the record says that {value} tasks were written, but the file has more or fewer",
                )
            return
        if type(value) is tuple:
            with value_error_as_damaged_file_error(path, frame.offset):
                yield from unpack_shares(value)
            continue
        if type(value) is not list:
            raise damaged_file_error(path, frame.offset, "the record contains neither tasks nor their number")
        with value_error_as_damaged_file_error(path, frame.offset):
            yield from map(task_from_fields, value)
        count += len(value)
    raise path_refused(path, f"damaged: the file ends after {count} tasks, without its last record")


def _checked_initial_tasks_header(path: bytes, frame: RecordFrame, run: int, rank: int) -> InitialTasksFileHeader:
    """Return the header in ``frame``, the first part of the base file ``path``. Raise ``RequestRefused`` if it is not
    that of ``run`` and ``rank``.
    """
    fields = first_frame_fields(path, frame, RUN_BASE_FORMAT)
    if (
        len(fields) != len(InitialTasksFileHeader._fields)
        or not is_tuple_of_ints(fields[:-1])
        or not is_tuple_of_ints(fields[-1])
    ):
        raise damaged_file_error(path, frame.offset, "the first record is not the header of a file of tasks")
    header = InitialTasksFileHeader(*fields)
    if (header.run, header.rank) != (run, rank):
        raise damaged_file_error(
            path,
            frame.offset,
            f"the file was written for run {header.run}, rank {header.rank}, not for run {run}, rank {rank}",
        )
    return header


def first_frame_fields(path: bytes, frame: RecordFrame, name: str) -> tuple[Any, ...]:
    """Return the fields in ``frame``, the first part of the file ``path``, without the name and the version of the
    format, which come first.

    Raise ``RequestRefused`` unless the file has the format ``name`` and the version that this pcopy reads.
    """
    with value_error_as_damaged_file_error(path, frame.offset):
        value = unpickle_primitives(frame.payload)
    if type(value) is not tuple or len(value) < 2 or value[0] != name or type(value[1]) is not int:
        raise damaged_file_error(path, 0, f"the file does not have the format {name}")
    if value[1] != JOB_FORMAT_VERSION:
        raise path_refused(
            path, f"version {value[1]} of {name}; this pcopy reads version {JOB_FORMAT_VERSION}; {OTHER_VERSION_ADVICE}"
        )
    return value[2:]
