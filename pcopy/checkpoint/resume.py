"""Resuming a job: finds the tasks that remain from the records of its last run, and writes them as the *base* of the
next run, the tasks with which its ranks begin.

    remaining = base of the run + all spawned tasks - all done tasks, over the records of epochs up to E

An epoch is a numbered part of a run; each rank writes one record for each epoch. A rank's last complete epoch is the
highest one such that its file has the records of all epochs from 1 to it. E is the lowest of these numbers over the
run's ranks. The records up to E are consistent: a task that is done in them was spawned in them or is in the base,
because no message that was sent in one epoch is received in an earlier one. Later records are not used, since the
matching records of some ranks are missing.

The file ``current`` in the job directory names the run whose base is complete. It is replaced after all files of the
new run are durable, and the old run is removed after the replacement is durable. So exactly one complete run is
recorded at any moment.
"""

from __future__ import annotations

import io
import os
import re
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from contextlib import closing, suppress
from types import MappingProxyType
from typing import Protocol, TypeVar

from pcopy.checkpoint import directory
from pcopy.checkpoint.base import (
    InitialTasksFileHeader,
    first_frame_fields,
    initial_tasks_path,
    read_initial_tasks_header,
    read_shares,
    write_initial_tasks,
)
from pcopy.checkpoint.base import read_initial_tasks as read_initial_tasks
from pcopy.checkpoint.directory import AnyPath, check_trusted_directory, create_run_directory, remove_run_directory
from pcopy.checkpoint.framing import (
    RecordFrame,
    damaged_file_error,
    read_frame_heads,
    read_record_frames,
    value_error_as_damaged_file_error,
    write_record_frame,
)
from pcopy.checkpoint.join import RemainingTasksFinder, tasks_by_rank
from pcopy.checkpoint.layout import (
    CURRENT_RUN_FILE,
    JOB_FORMAT_VERSION,
    RUN_DIRECTORY_PATTERN,
    names_of_entries,
    run_directory_name,
    task_record_file_name,
)
from pcopy.checkpoint.record import (
    TASK_ID_BYTES,
    elementwise_counter_sums,
    is_tuple_of_ints,
    read_record_head,
    unpack_task_record,
)
from pcopy.engine.backlog import OpenSpool
from pcopy.engine.messages import dump_primitives
from pcopy.engine.task import CountsOfLabels, Share, Task, labelled_counts
from pcopy.errors import RequestRefused, path_refused
from pcopy.fast_named_tuple import NamedTuple
from pcopy.fsio.durable import sync_directory_at
from pcopy.text import printable_path

CURRENT_RUN_FORMAT = "pcopy-checkpoint"
"""Name of the format, at the beginning of the file ``current``, which names the last run of a job."""


T = TypeVar("T")


class JobProgress(NamedTuple):
    """How far a job had come according to its records: phase, last recorded epoch (part of the run), and counters."""

    run: int
    """Number of the last run."""
    size: int
    """Number of ranks of that run."""
    phase: int
    """Phase that was running at the end of ``epoch``."""
    epoch: int
    """Last epoch (numbered part of the run) whose records exist for all ranks; 0 if there are none, so that the run has
    to begin again with its first tasks.
    """
    counts: tuple[int, ...]
    """Sums of the counts of all tasks done up to the end of ``epoch``, in all runs, by the index of the counter."""
    checkpoint_cut_time: int = 0
    """Time at which ``epoch`` ended on rank 0, in nanoseconds since 1970 by the clock of the destination; 0 if unknown.
    Everything that was written before is on stable storage.
    """


class TaskReplacer(Protocol):
    """Protocol: replaces remaining tasks of a resumed job that cannot run as they are, for example because a directory
    of the destination has vanished.
    """

    def examine_tasks(self, run: int, tasks: Iterable[Task]) -> None:
        """Read all tasks that remain after the run with the number ``run``, to find out which of them cannot run.
        Called once, before the other methods.
        """

    def are_counts_to_be_subtracted(self, label: bytes) -> bool:
        """Return True if the work that was counted under ``label`` will be repeated, so that its counts must be
        subtracted.
        """

    def replacement_tasks(self) -> Iterator[Task]:
        """Yield the tasks with which the job continues, in place of those passed to ``examine_tasks``: replaced ones
        and unchanged ones.
        """


_EpochFacts = dict[int, tuple[int, tuple[int, ...], int]]
"""What the records of all ranks say about each epoch (part of the run), by its number: (phase, sums of the counts of
all ranks, time of its end).

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
    """Write the files with the tasks with which the ranks begin the first recorded run of a job, and make that run the
    current one; durable on return. Return the progress of the job.

    Raise ``RequestRefused`` if a run is recorded already, or if another user could change the job directory, and
    ``OSError``. After an error the new run is not recorded.

    Args:
        job_dir: path of the job directory.
        size: number of ranks, to which ``tasks`` are dealt out.
        counts: counters with which the run begins.
        tasks: tasks with which the run begins.
        run: number of the run; greater than 1 if earlier runs left no records.
        phase: phase with which the run begins.
    """
    job = os.fsencode(job_dir)
    check_trusted_directory(job)
    if is_run_recorded(job):
        raise path_refused(job, "holds a job that has begun; resume it, or remove the directory")
    first = JobProgress(run, size, phase, 0, tuple(counts))
    _write_files_of_new_run(job, first, tasks, io.BytesIO)
    return first


def is_run_recorded(job_dir: AnyPath) -> bool:
    """Return True if a run is recorded in the job directory, so that the job can be resumed. If not, it has to start
    from its beginning.
    """
    return os.path.lexists(os.path.join(os.fsencode(job_dir), CURRENT_RUN_FILE))


def load_job_progress(job_dir: AnyPath, *, open_spool: OpenSpool) -> tuple[JobProgress, Iterator[Task]]:
    """Return the progress of a job, and an iterator over the remaining tasks, sorted by id.

    The progress is read immediately. The tasks are determined when the first one is requested, with temporary files
    from ``open_spool``. Raise ``RequestRefused``, immediately or from the iterator, if a file of the job is missing or
    damaged, or if another user could change it, and ``OSError`` of temporary files.
    """
    job = os.fsencode(job_dir)
    remaining = _recorded_progress(job)
    return remaining, _remaining_tasks(job, remaining, open_spool)


def write_next_run(
    job_dir: AnyPath,
    size: int,
    *,
    address: Callable[[Task], Task | None] | None = None,
    replacement: TaskReplacer | None = None,
    open_spool: OpenSpool,
    least_counts: Mapping[int, int] = MappingProxyType({}),
) -> JobProgress:
    """Write the remaining tasks as those with which a new run begins, make it the current run, and remove the files of
    all earlier runs. Used when a job is resumed.

    Args:
        job_dir: path of the job directory.
        size: number of ranks of the new run.
        address: called with each task; returns the task, possibly with another rank as its owner, or None to leave it
            out.
        replacement: replaces tasks that cannot be resumed, and decides which labelled counts are subtracted; None if
            there is nothing to replace.
        open_spool: opens a temporary file for sorting.
        least_counts: minimum values of some counters, by the index of the counter; used for counts that are known from
            elsewhere and may be missing in the records.

    Return the progress of the job at the start of the new run. Raise ``RequestRefused`` if a file of the job is missing
    or damaged, or if another user could change it, and ``OSError``. After an error the old run is complete and still
    current, unless the very last fsync failed.
    """
    job = os.fsencode(job_dir)
    old = _recorded_progress(job)
    new = JobProgress(old.run + 1, size, old.phase, 0, old.counts, old.checkpoint_cut_time)
    with closing(_remaining_tasks(job, old, open_spool)) as remaining:
        tasks: Iterable[Task] = remaining
        shares = _recorded_shares(job, old)
        if replacement is not None:
            replacement.examine_tasks(old.run, remaining)
            tasks = replacement.replacement_tasks()
            new = new._replace(counts=_counts_minus_shares(old.counts, shares, replacement.are_counts_to_be_subtracted))
            shares = _shares_of_other_labels(_recorded_shares(job, old), replacement.are_counts_to_be_subtracted)
        new = new._replace(counts=_counts_raised_to_minimum(new.counts, least_counts))
        kept = (task for task in map(address, tasks) if task is not None) if address else tasks
        _write_files_of_new_run(job, new, kept, open_spool, shares)
    with directory.opened_trusted_directory(job) as descriptor:
        runs = names_of_entries(descriptor)
    for name in runs:
        if re.fullmatch(RUN_DIRECTORY_PATTERN, name) and name != run_directory_name(new.run):
            with suppress(OSError):  # the new run is durable; the next resume removes the rest
                remove_run_directory(os.path.join(job, name))
    return new


def _counts_raised_to_minimum(counts: tuple[int, ...], least_counts: Mapping[int, int]) -> tuple[int, ...]:
    """Return ``counts`` with each counter raised to its minimum in ``least_counts``."""
    raised = list(counts)
    for counter, number in least_counts.items():
        raised += [0] * (counter + 1 - len(raised))
        raised[counter] = max(raised[counter], number)
    return tuple(raised)


def _counts_minus_shares(
    counts: tuple[int, ...], shares: Iterable[Share], is_subtracted: Callable[[bytes], bool]
) -> tuple[int, ...]:
    """Return ``counts``, a number for each counter, minus those ``shares`` (labelled parts of them) for whose label
    ``is_subtracted`` returns True, because the work under it is repeated.
    """
    reduced = list(counts)
    for label, share in labelled_counts(shares):
        for counter, number in share if is_subtracted(label) else ():
            reduced += [0] * (counter + 1 - len(reduced))
            reduced[counter] -= number
    return tuple(reduced)


def _shares_of_other_labels(shares: Iterable[Share], is_subtracted: Callable[[bytes], bool]) -> Iterator[Share]:
    """Yield ``shares`` without those labels for which ``is_subtracted`` returns True."""
    for share in shares:
        labels = [label for label, _ in labelled_counts((share,))]
        if not any(map(is_subtracted, labels)):
            yield share
        elif isinstance(share, CountsOfLabels):
            yield from (each for each in share.labelled_counts() if not is_subtracted(each[0]))


def _recorded_shares(job: bytes, old: JobProgress) -> Iterator[Share]:
    """Yield the shares (parts of the counts under labels) of all complete records of the run ``old``, and those with
    which it began. A label may occur several times.
    """
    yield from read_shares(job, old.run)
    for rank in range(old.size):
        for _, shares, _ in _records_used_by_resume(job, old, rank):
            yield from shares


def _write_files_of_new_run(
    job: bytes, new: JobProgress, tasks: Iterable[Task], open_spool: OpenSpool, shares: Iterable[Share] = ()
) -> None:
    """Write the files with which the ranks begin the run ``new`` (their tasks, and on rank 0 the counts) durably, then
    make it the current run. Raise ``OSError``.

    Args:
        job: path of the job directory.
        new: number, ranks, phase and counts of the run.
        tasks: tasks with which the run begins; they are dealt out to its ranks.
        open_spool: opens a temporary file for sorting.
        shares: parts of the counts under labels.
    """
    path = os.path.join(job, run_directory_name(new.run))
    remove_run_directory(path)  # an earlier attempt to write it may have been interrupted by a crash
    try:
        create_run_directory(path)
        with closing(tasks_by_rank(tasks, new.size, open_spool)) as ranks:
            for rank, own in enumerate(ranks):
                phase, counts = (-1, ()) if rank else (new.phase, new.counts)
                write_initial_tasks(
                    path, InitialTasksFileHeader(new.run, rank, new.size, phase, counts), () if rank else shares, own
                )
        sync_directory_at(path)
        sync_directory_at(job)
    except BaseException:
        with suppress(OSError):  # the first error is the one to report
            remove_run_directory(path)
        raise
    frame = io.BytesIO()
    write_record_frame(frame, dump_primitives((CURRENT_RUN_FORMAT, JOB_FORMAT_VERSION, new.run, new.size)))
    with directory.opened_trusted_directory(job) as descriptor:
        directory.replace_file(descriptor, CURRENT_RUN_FILE, frame.getvalue())


def read_current_run(job: bytes) -> tuple[int, int]:
    """Return the number of the job's last recorded run and its number of ranks. ``job`` is the job directory. Raise
    ``RequestRefused`` if the file ``current`` there is missing or damaged, or if another user could change it.
    """
    path = os.path.join(job, CURRENT_RUN_FILE)
    numbers = first_frame_fields(path, next(read_record_frames(path), RecordFrame(0, b"")), CURRENT_RUN_FORMAT)
    if len(numbers) != 2 or not is_tuple_of_ints(numbers) or min(numbers) < 1:
        raise damaged_file_error(path, 0, "the record does not consist of the number of a run and its number of ranks")
    return numbers[0], numbers[1]


def recorded_counts(job: bytes) -> tuple[int, ...] | None:
    """Return the counters of the job in the directory ``job``, as far as they are recorded; None if no run is recorded
    or nothing can be read.

    The result is only for display, possibly while ranks are working on the job: only the heads of the records are read,
    and no digest is verified. While a record is being written or the run is being replaced, it may be slightly out of
    date, or None.
    """
    try:
        return _recorded_progress(job, read_frame_heads).counts if is_run_recorded(job) else None
    except (RequestRefused, OSError):
        return None


def last_checkpoint_time(job: bytes) -> int:
    """Return the time before which everything that the job has written is on stable storage: rank 0 ended the last
    epoch (part of the run) then whose records are on stable storage on all ranks. Return 0 if there is none.

    The time is in nanoseconds since 1970, by the clock of the destination. Raise ``RequestRefused`` if a file of the
    job is missing or damaged, and ``OSError``.
    """
    return _recorded_progress(job, read_frame_heads).checkpoint_cut_time if is_run_recorded(job) else 0


def _recorded_progress(job: bytes, read: Callable[[bytes], Iterator[RecordFrame]] = read_record_frames) -> JobProgress:
    """Return how far the job has come, from the heads (numbers without tasks) of its records.

    ``read`` yields the parts of a file: ``read_record_frames``, which verifies them, or ``read_frame_heads``, which is
    faster. Raise ``RequestRefused`` if a file is missing or damaged, or if another user could change it.
    """
    check_trusted_directory(job)
    run, size = read_current_run(job)
    check_trusted_directory(os.path.join(job, run_directory_name(run)))
    headers = [read_initial_tasks_header(job, run, rank) for rank in range(size)]
    for header in headers:
        if header.size != size:
            raise damaged_file_error(
                initial_tasks_path(job, run, header.rank),
                0,
                f"the file was written for {header.size} ranks, but the run has {size}",
            )
    epochs: _EpochFacts = {}
    last = min(_last_complete_epoch(job, header, epochs, read) for header in headers)
    phase, counts, began = headers[0].phase, headers[0].counts, 0
    for number in range(1, last + 1):
        epoch_phase, counted, began = epochs[number]
        phase = phase if epoch_phase < 0 else epoch_phase
        counts = elementwise_counter_sums(counts, counted)
    return JobProgress(run, size, phase, last, counts, began)


def _last_complete_epoch(
    job: bytes, base: InitialTasksFileHeader, epochs: _EpochFacts, read: Callable[[bytes], Iterator[RecordFrame]]
) -> int:
    """Read the records of one rank, that of ``base``, and add the phase, counts and time of each epoch (numbered part
    of the run) to ``epochs``. Return the last epoch up to which the rank has all records; 0 if there is none.
    ``read`` yields the parts of a file, with or without verifying them.
    """
    path = os.path.join(job, run_directory_name(base.run), task_record_file_name(base.rank))
    if not os.path.lexists(path):
        return 0
    complete = latest = 0
    for frame in read(path):
        with value_error_as_damaged_file_error(path, frame.offset):
            head = read_record_head(frame.payload)
        if (head.run, head.rank, head.size) != (base.run, base.rank, base.size):
            raise damaged_file_error(
                path,
                frame.offset,
                f"the record is from run {head.run}, rank {head.rank} of {head.size}, "
                f"not from run {base.run}, rank {base.rank} of {base.size}",
            )
        if head.epoch <= latest:
            raise damaged_file_error(
                path,
                frame.offset,
                f"the record of epoch {head.epoch} follows that of epoch {latest}: epochs must be in ascending order",
            )
        latest = head.epoch
        if latest == complete + 1:
            complete = latest
            phase, counts, began = epochs.get(latest, (-1, (), 0))
            is_other, counts = base.rank > 0, elementwise_counter_sums(counts, head.counts)
            epochs[latest] = (phase, counts, began) if is_other else (head.phase, counts, head.checkpoint_cut_time)
    return complete


def _remaining_tasks(job: bytes, progress: JobProgress, open_spool: OpenSpool) -> Generator[Task, None, None]:
    """Yield the tasks that were spawned and not done by the end of ``progress.epoch``, sorted by id. Raise
    ``RequestRefused`` if a file of the job is missing or damaged, or if another user could change it, and
    ``OSError`` of temporary files.
    """
    with closing(
        RemainingTasksFinder(open_spool, where=printable_path(os.path.join(job, run_directory_name(progress.run))))
    ) as join:
        for rank in range(progress.size):
            for task in read_initial_tasks(job, progress.run, rank):
                join.add_spawned_task(task)
            for done, _, spawned in _records_used_by_resume(job, progress, rank):
                for task in spawned:
                    join.add_spawned_task(task)
                for at in range(0, len(done), TASK_ID_BYTES):
                    join.add_done_task_id(done[at : at + TASK_ID_BYTES])
        yield from join.remaining_tasks()


def _records_used_by_resume(
    job: bytes, progress: JobProgress, rank: int
) -> Iterator[tuple[bytes, Iterator[Share], Iterator[Task]]]:
    """Yield for each record of a rank that a resume uses, that is, up to ``progress.epoch``: the packed ids of done
    tasks, and iterators over the shares (labelled parts of the counts) and the spawned tasks.
    """
    path = os.path.join(job, run_directory_name(progress.run), task_record_file_name(rank))
    for frame in read_record_frames(path) if progress.epoch else ():
        with value_error_as_damaged_file_error(path, frame.offset):
            head, done, shares, spawned = unpack_task_record(frame.payload)
        if head.epoch > progress.epoch:
            return
        yield done, _reporting_damage(path, frame.offset, shares), _reporting_damage(path, frame.offset, spawned)


def _reporting_damage(path: bytes, offset: int, unpacked: Iterator[T]) -> Iterator[T]:
    """Yield tasks or shares, which are unpacked from the file ``path`` at the byte ``offset``. If they are damaged
    (``ValueError``), raise ``RequestRefused`` with path and offset.
    """
    with value_error_as_damaged_file_error(path, offset):
        yield from unpacked
