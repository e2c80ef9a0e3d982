"""Resuming a job: reads the tasks that remain from the records of its last run, and writes them as the base of the
next.

    remaining = base of the run + all spawned tasks - all done tasks, over the records of epochs up to E

The last complete epoch of a rank is the last one up to which its file has every epoch from 1. E is the least of these
over the run's ranks. No message crosses a cut backwards, so these records are consistent: a task that is done in them
was spawned in them or is in the base. Later records are not consistent, since the records of other ranks are missing
for them.

``current`` names the run whose base is complete. It is replaced after all files of the new run are durable, and the old
run is removed after the replacement is durable. So exactly one complete run exists at any moment.
"""

from __future__ import annotations

import io
import os
import re
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from contextlib import closing, suppress
from types import MappingProxyType
from typing import Protocol

from pcopy.checkpoint import directory
from pcopy.checkpoint.base import BaseHeader, base_path, read_base_header, read_first_frame, read_shares, write_base
from pcopy.checkpoint.base import read_base as read_base
from pcopy.checkpoint.directory import AnyPath, check_directory, create_run_directory, remove_run_directory
from pcopy.checkpoint.framing import Frame, damage_error, read_frame_heads, read_frames, reporting_damage, write_frame
from pcopy.checkpoint.join import RemainingTasksFinder, tasks_by_rank
from pcopy.checkpoint.layout import (
    CURRENT_FILE,
    JOB_FORMAT_VERSION,
    RUN_PATTERN,
    directory_names,
    facts_file_name,
    run_directory_name,
)
from pcopy.checkpoint.record import ID_BYTES, counter_sums, is_tuple_of_ints, read_facts, read_head
from pcopy.engine.backlog import OpenSpool
from pcopy.engine.messages import dump_primitives
from pcopy.engine.task import LabelledCounts, Task
from pcopy.errors import RequestRefused
from pcopy.fast_named_tuple import NamedTuple
from pcopy.fsio.durable import sync_directory_at
from pcopy.text import printable_path

CURRENT_FORMAT = "pcopy-checkpoint"
"""Name of the format of the file ``current``."""


class JobProgress(NamedTuple):
    """Progress of a job as its records show it."""

    run: int
    """Number of the last run."""
    size: int
    """Number of ranks of that run."""
    phase: int
    """Phase that was running at the end of ``epoch``."""
    epoch: int
    """Last epoch of the run that is complete on all ranks; 0 stands for the run's base."""
    counts: tuple[int, ...]
    """Sums of the counts of all tasks done until then."""
    cut_time: int = 0
    """Time of the cut of that epoch, as in the records; 0 if there was none."""


class TaskReplacement(Protocol):
    """Replacement of remaining tasks that cannot be resumed as they are."""

    def examine(self, run: int, tasks: Iterable[Task]) -> None:
        """Examine all tasks that remain after ``run``."""

    def are_counts_void(self, label: bytes) -> bool:
        """Return True if everything that was counted under ``label`` must be subtracted from the counts."""

    def replacement_tasks(self) -> Iterator[Task]:
        """Yield the tasks to be run in place of the examined ones."""


_EpochFacts = dict[int, tuple[int, tuple[int, ...], int]]
"""Facts about each epoch by its number: (phase, sums of the counts of all ranks, time of the cut).

Phase and time are those that rank 0 recorded.
"""


def write_first_run(
    job_dir: AnyPath,
    size: int,
    counts: Iterable[int],
    tasks: Iterable[Task],
    *,
    run: int = 1,
    phase: int = 0,
) -> JobProgress:
    """Write the base of the first run of a stored job, with ``tasks`` dealt out to ``size`` ranks; durable on return.

    ``run`` is greater than 1 if earlier runs left no records. Raise ``RequestRefused`` if a run is recorded already or
    the directory is not trusted, and ``OSError``. After an error the new run is not recorded.
    """
    job = os.fsencode(job_dir)
    check_directory(job)
    if is_run_recorded(job):
        raise RequestRefused(f"{printable_path(job)}: holds a job that has begun; resume it, or remove the directory")
    first = JobProgress(run, size, phase, 0, tuple(counts))
    _write_run(job, first, tasks, io.BytesIO)
    return first


def is_run_recorded(job_dir: AnyPath) -> bool:
    """Return True if a run is recorded. Without one the job has to start from its beginning."""
    return os.path.lexists(os.path.join(os.fsencode(job_dir), CURRENT_FILE))


def load_progress(job_dir: AnyPath, *, open_spool: OpenSpool) -> tuple[JobProgress, Iterator[Task]]:
    """Return the progress of a job, and an iterator over the remaining tasks, sorted by id.

    The progress is read immediately. The tasks are determined when the first one is requested, partly in spool files.
    Raise ``RequestRefused``, immediately or later, if a file is missing, not trusted or damaged, and ``OSError`` from
    spool files.
    """
    job = os.fsencode(job_dir)
    remaining = _recorded_progress(job)
    return remaining, _remaining_tasks(job, remaining, open_spool)


def write_next_run(
    job_dir: AnyPath,
    size: int,
    *,
    address: Callable[[Task], Task | None] | None = None,
    mending: TaskReplacement | None = None,
    open_spool: OpenSpool,
    least_counts: Mapping[int, int] = MappingProxyType({}),
) -> JobProgress:
    """Write the remaining tasks as the base of a new run, make it the current run, and remove the other runs.

    Args:
        size: number of ranks of the new run.
        address: called with each task; returns it, possibly with another owner, or None to leave it out.
        mending: replaces tasks, and names labels whose counts are subtracted.
        open_spool: opens a temporary file for sorting.
        least_counts: minimum value of counters by their index, for counts that the records lack.

    Return the progress of the job in the new run, at epoch 0. Raise ``RequestRefused`` if a file is missing, not
    trusted or damaged, and ``OSError``. After an error the old run is complete and still current, unless the very last
    fsync failed.
    """
    job = os.fsencode(job_dir)
    old = _recorded_progress(job)
    new = JobProgress(old.run + 1, size, old.phase, 0, old.counts, old.cut_time)
    with closing(_remaining_tasks(job, old, open_spool)) as remaining:
        tasks: Iterable[Task] = remaining
        shares = _recorded_shares(job, old)
        if mending is not None:
            mending.examine(old.run, remaining)
            tasks = mending.replacement_tasks()
            new = new._replace(
                counts=_without_shares(old.counts, (share for share in shares if mending.are_counts_void(share[0])))
            )
            shares = (share for share in _recorded_shares(job, old) if not mending.are_counts_void(share[0]))
        new = new._replace(counts=_with_minimum_counts(new.counts, least_counts))
        kept = (task for task in map(address, tasks) if task is not None) if address else tasks
        _write_run(job, new, kept, open_spool, shares)
    with directory.opened_directory(job) as descriptor:
        runs = directory_names(descriptor)
    for name in runs:
        if re.fullmatch(RUN_PATTERN, name) and name != run_directory_name(new.run):
            with suppress(OSError):  # the new run is durable; the next resume removes the rest
                remove_run_directory(os.path.join(job, name))
    return new


def _with_minimum_counts(counts: tuple[int, ...], least_counts: Mapping[int, int]) -> tuple[int, ...]:
    """Return ``counts`` with each counter raised to its minimum in ``least_counts``."""
    raised = list(counts)
    for counter, number in least_counts.items():
        raised += [0] * (counter + 1 - len(raised))
        raised[counter] = max(raised[counter], number)
    return tuple(raised)


def _without_shares(counts: tuple[int, ...], shares: Iterator[LabelledCounts]) -> tuple[int, ...]:
    """Return ``counts`` minus the counts in ``shares``."""
    reduced = list(counts)
    for _, share in shares:
        for counter, number in share:
            reduced += [0] * (counter + 1 - len(reduced))
            reduced[counter] -= number
    return tuple(reduced)


def _recorded_shares(job: bytes, old: JobProgress) -> Iterator[LabelledCounts]:
    """Yield the shares of all counts as they were recorded; a label may occur several times."""
    yield from read_shares(job, old.run)
    for rank in range(old.size):
        for _, shares, _ in _complete_records(job, old, rank):
            yield from shares


def _write_run(
    job: bytes, new: JobProgress, tasks: Iterable[Task], open_spool: OpenSpool, shares: Iterable[LabelledCounts] = ()
) -> None:
    """Write the bases of all ranks of the run ``new`` durably, then make it the current run. Raise ``OSError``."""
    path = os.path.join(job, run_directory_name(new.run))
    remove_run_directory(path)  # remains of an attempt that a crash interrupted
    try:
        create_run_directory(path)
        with closing(tasks_by_rank(tasks, new.size, open_spool)) as ranks:
            for rank, own in enumerate(ranks):
                phase, counts = (-1, ()) if rank else (new.phase, new.counts)
                write_base(path, BaseHeader(new.run, rank, new.size, phase, counts), () if rank else shares, own)
        sync_directory_at(path)
        sync_directory_at(job)
    except BaseException:
        with suppress(OSError):  # the first error is the one to report
            remove_run_directory(path)
        raise
    frame = io.BytesIO()
    write_frame(frame, dump_primitives((CURRENT_FORMAT, JOB_FORMAT_VERSION, new.run, new.size)))
    with directory.opened_directory(job) as descriptor:
        directory.replace_file(descriptor, CURRENT_FILE, frame.getvalue())


def read_current_run(job: bytes) -> tuple[int, int]:
    """Return the number of the current run and its number of ranks. Raise ``RequestRefused``."""
    path = os.path.join(job, CURRENT_FILE)
    numbers = read_first_frame(path, next(read_frames(path), Frame(0, b"")), CURRENT_FORMAT)
    if len(numbers) != 2 or not is_tuple_of_ints(numbers) or min(numbers) < 1:
        raise damage_error(path, 0, "not the number of a run and its number of ranks")
    return numbers[0], numbers[1]


def recorded_counts(job: bytes) -> tuple[int, ...] | None:
    """Return the sums of the counts of all tasks recorded as done; None if no run is recorded or nothing can be read.

    The sums are for display, possibly while ranks are working on the job. Only the heads of the records are read, and
    no digest is verified. If a record is just being written, or the run just being replaced, the result is slightly out
    of date or None.
    """
    try:
        return _recorded_progress(job, read_frame_heads).counts if is_run_recorded(job) else None
    except (RequestRefused, OSError):
        return None


def last_cut_time(job: bytes) -> int:
    """Return the time at which the last durable cut of the current run began, or 0 if there is none.

    The time is in nanoseconds since 1970, by the clock of the destination. Raise ``RequestRefused`` and ``OSError``.
    """
    return _recorded_progress(job, read_frame_heads).cut_time if is_run_recorded(job) else 0


def _recorded_progress(job: bytes, read: Callable[[bytes], Iterator[Frame]] = read_frames) -> JobProgress:
    """Return the progress of the job from the heads of the records; ``read`` yields the frames of a file."""
    check_directory(job)
    run, size = read_current_run(job)
    check_directory(os.path.join(job, run_directory_name(run)))
    headers = [read_base_header(job, run, rank) for rank in range(size)]
    for header in headers:
        if header.size != size:
            raise damage_error(base_path(job, run, header.rank), 0, f"for {header.size} ranks; the run has {size}")
    epochs: _EpochFacts = {}
    last = min(_last_complete_epoch(job, header, epochs, read) for header in headers)
    phase, counts, began = headers[0].phase, headers[0].counts, 0
    for number in range(1, last + 1):
        epoch_phase, counted, began = epochs[number]
        phase = phase if epoch_phase < 0 else epoch_phase
        counts = counter_sums(counts, counted)
    return JobProgress(run, size, phase, last, counts, began)


def _last_complete_epoch(
    job: bytes, base: BaseHeader, epochs: _EpochFacts, read: Callable[[bytes], Iterator[Frame]]
) -> int:
    """Read the records of a rank, add its epochs to ``epochs``, and return the last complete one; 0 if there is
    none.
    """
    path = os.path.join(job, run_directory_name(base.run), facts_file_name(base.rank))
    if not os.path.lexists(path):
        return 0
    complete = latest = 0
    for frame in read(path):
        with reporting_damage(path, frame.offset):
            head = read_head(frame.payload)
        if (head.run, head.rank, head.size) != (base.run, base.rank, base.size):
            raise damage_error(path, frame.offset, f"from run {head.run}, rank {head.rank} of {head.size}")
        if head.epoch <= latest:
            raise damage_error(path, frame.offset, f"epoch {head.epoch} after epoch {latest}")
        latest = head.epoch
        if latest == complete + 1:
            complete = latest
            phase, counts, began = epochs.get(latest, (-1, (), 0))
            is_other, counts = base.rank > 0, counter_sums(counts, head.counts)
            epochs[latest] = (phase, counts, began) if is_other else (head.phase, counts, head.cut_time)
    return complete


def _remaining_tasks(job: bytes, progress: JobProgress, open_spool: OpenSpool) -> Generator[Task, None, None]:
    """Yield the tasks that remain, sorted by id."""
    with closing(
        RemainingTasksFinder(open_spool, where=printable_path(os.path.join(job, run_directory_name(progress.run))))
    ) as join:
        for rank in range(progress.size):
            for task in read_base(job, progress.run, rank):
                join.add_spawned(task)
            for done, _, spawned in _complete_records(job, progress, rank):
                for task in spawned:
                    join.add_spawned(task)
                for at in range(0, len(done), ID_BYTES):
                    join.add_done(done[at : at + ID_BYTES])
        yield from join.remaining_tasks()


def _complete_records(
    job: bytes, progress: JobProgress, rank: int
) -> Iterator[tuple[bytes, tuple[LabelledCounts, ...], Iterator[Task]]]:
    """Yield the complete records of a rank: the packed ids of done tasks, the shares, and the spawned tasks, read one
    by one.
    """
    path = os.path.join(job, run_directory_name(progress.run), facts_file_name(rank))
    for frame in read_frames(path) if progress.epoch else ():
        with reporting_damage(path, frame.offset):
            head, done, shares, spawned = read_facts(frame.payload)
        if head.epoch > progress.epoch:
            return
        yield done, shares, _tasks_reporting_damage(path, frame.offset, spawned)


def _tasks_reporting_damage(path: bytes, offset: int, tasks: Iterator[Task]) -> Iterator[Task]:
    """Yield ``tasks``; convert a ``ValueError`` into the error for a damaged frame."""
    with reporting_damage(path, offset):
        yield from tasks
