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
from pcopy.checkpoint.base import Header, base_path, read_first, read_header, read_shares, write_base
from pcopy.checkpoint.base import read_base as read_base
from pcopy.checkpoint.directory import Path, check_directory, create_run, remove_run
from pcopy.checkpoint.framing import Frame, as_damage, damaged, frames, heads, write_frame
from pcopy.checkpoint.join import Join, dealt
from pcopy.checkpoint.layout import CURRENT, RUN, VERSION, facts_name, names, run_name
from pcopy.checkpoint.record import ID_BYTES, added, is_counts, read_facts, read_head
from pcopy.engine.backlog import SpoolFactory
from pcopy.engine.messages import dump_primitives
from pcopy.engine.task import Share, Task
from pcopy.errors import Refused
from pcopy.fsio.durable import sync_directory_at
from pcopy.named import NamedTuple
from pcopy.text import shown

FORMAT = "pcopy-checkpoint"
"""Name of the format of the file ``current``."""


class Remaining(NamedTuple):
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
    began: int = 0
    """Time of the cut of that epoch, as in the records; 0 if there was none."""


class Mending(Protocol):
    """Replacement of remaining tasks that cannot be resumed as they are."""

    def look(self, run: int, tasks: Iterable[Task]) -> None:
        """Examine all tasks that remain after ``run``."""

    def takes_back(self, label: bytes) -> bool:
        """Return True if everything that was counted under ``label`` must be subtracted from the counts."""

    def tasks(self) -> Iterator[Task]:
        """Yield the tasks to be run in place of the examined ones."""


_Epochs = dict[int, tuple[int, tuple[int, ...], int]]
"""Facts about each epoch by its number: (phase, sums of the counts of all ranks, time of the cut).

Phase and time are those that rank 0 recorded.
"""


def begin(
    job_dir: Path,
    size: int,
    counts: Iterable[int],
    tasks: Iterable[Task],
    *,
    run: int = 1,
    phase: int = 0,
) -> Remaining:
    """Write the base of the first run of a stored job, with ``tasks`` dealt out to ``size`` ranks; durable on return.

    ``run`` is greater than 1 if earlier runs left no records. Raise ``Refused`` if a run is recorded already or the
    directory is not trusted, and ``OSError``. After an error the new run is not recorded.
    """
    job = os.fsencode(job_dir)
    check_directory(job)
    if has_begun(job):
        raise Refused(f"{shown(job)}: holds a job that has begun; resume it, or remove the directory")
    first = Remaining(run, size, phase, 0, tuple(counts))
    _write_run(job, first, tasks, io.BytesIO)
    return first


def has_begun(job_dir: Path) -> bool:
    """Return True if a run is recorded. Without one the job has to start from its beginning."""
    return os.path.lexists(os.path.join(os.fsencode(job_dir), CURRENT))


def load(job_dir: Path, *, open_spool: SpoolFactory) -> tuple[Remaining, Iterator[Task]]:
    """Return the progress of a job, and an iterator over the remaining tasks, sorted by id.

    The progress is read immediately. The tasks are determined when the first one is requested, partly in spool files.
    Raise ``Refused``, immediately or later, if a file is missing, not trusted or damaged, and ``OSError`` from spool
    files.
    """
    job = os.fsencode(job_dir)
    remaining = _how_far(job)
    return remaining, _remaining_tasks(job, remaining, open_spool)


def compact(
    job_dir: Path,
    size: int,
    *,
    address: Callable[[Task], Task | None] | None = None,
    mending: Mending | None = None,
    open_spool: SpoolFactory,
    least_counts: Mapping[int, int] = MappingProxyType({}),
) -> Remaining:
    """Write the remaining tasks as the base of a new run, make it the current run, and remove the other runs.

    Args:
        size: number of ranks of the new run.
        address: called with each task; returns it, possibly with another owner, or None to leave it out.
        mending: replaces tasks, and names labels whose counts are subtracted.
        open_spool: opens a temporary file for sorting.
        least_counts: minimum value of counters by their index, for counts that the records lack.

    Return the progress of the job in the new run, at epoch 0. Raise ``Refused`` if a file is missing, not trusted or
    damaged, and ``OSError``. After an error the old run is complete and still current, unless the very last fsync
    failed.
    """
    job = os.fsencode(job_dir)
    old = _how_far(job)
    new = Remaining(old.run + 1, size, old.phase, 0, old.counts, old.began)
    with closing(_remaining_tasks(job, old, open_spool)) as remaining:
        tasks: Iterable[Task] = remaining
        shares = _shares(job, old)
        if mending is not None:
            mending.look(old.run, remaining)
            tasks = mending.tasks()
            new = new._replace(counts=_less(old.counts, (share for share in shares if mending.takes_back(share[0]))))
            shares = (share for share in _shares(job, old) if not mending.takes_back(share[0]))
        new = new._replace(counts=_raised(new.counts, least_counts))
        kept = (task for task in map(address, tasks) if task is not None) if address else tasks
        _write_run(job, new, kept, open_spool, shares)
    with directory.opened(job) as descriptor:
        runs = names(descriptor)
    for name in runs:
        if re.fullmatch(RUN, name) and name != run_name(new.run):
            with suppress(OSError):  # the new run is durable; the next resume removes the rest
                remove_run(os.path.join(job, name))
    return new


def _raised(counts: tuple[int, ...], least_counts: Mapping[int, int]) -> tuple[int, ...]:
    """Return ``counts`` with each counter raised to its minimum in ``least_counts``."""
    raised = list(counts)
    for counter, number in least_counts.items():
        raised += [0] * (counter + 1 - len(raised))
        raised[counter] = max(raised[counter], number)
    return tuple(raised)


def _less(counts: tuple[int, ...], shares: Iterator[Share]) -> tuple[int, ...]:
    """Return ``counts`` minus the counts in ``shares``."""
    reduced = list(counts)
    for _, share in shares:
        for counter, number in share:
            reduced += [0] * (counter + 1 - len(reduced))
            reduced[counter] -= number
    return tuple(reduced)


def _shares(job: bytes, old: Remaining) -> Iterator[Share]:
    """Yield the shares of all counts as they were recorded; a label may occur several times."""
    yield from read_shares(job, old.run)
    for rank in range(old.size):
        for _, shares, _ in _facts(job, old, rank):
            yield from shares


def _write_run(
    job: bytes, new: Remaining, tasks: Iterable[Task], open_spool: SpoolFactory, shares: Iterable[Share] = ()
) -> None:
    """Write the bases of all ranks of the run ``new`` durably, then make it the current run. Raise ``OSError``."""
    path = os.path.join(job, run_name(new.run))
    remove_run(path)  # remains of an attempt that a crash interrupted
    try:
        create_run(path)
        with closing(dealt(tasks, new.size, open_spool)) as ranks:
            for rank, own in enumerate(ranks):
                phase, counts = (-1, ()) if rank else (new.phase, new.counts)
                write_base(path, Header(new.run, rank, new.size, phase, counts), () if rank else shares, own)
        sync_directory_at(path)
        sync_directory_at(job)
    except BaseException:
        with suppress(OSError):  # the first error is the one to report
            remove_run(path)
        raise
    frame = io.BytesIO()
    write_frame(frame, dump_primitives((FORMAT, VERSION, new.run, new.size)))
    with directory.opened(job) as descriptor:
        directory.replace(descriptor, CURRENT, frame.getvalue())


def read_current(job: bytes) -> tuple[int, int]:
    """Return the number of the current run and its number of ranks. Raise ``Refused``."""
    path = os.path.join(job, CURRENT)
    numbers = read_first(path, next(frames(path), Frame(0, b"")), FORMAT)
    if len(numbers) != 2 or not is_counts(numbers) or min(numbers) < 1:
        raise damaged(path, 0, "not the number of a run and its number of ranks")
    return numbers[0], numbers[1]


def counts_on_record(job: bytes) -> tuple[int, ...] | None:
    """Return the sums of the counts of all tasks recorded as done; None if no run is recorded or nothing can be read.

    The sums are for display, possibly while ranks are working on the job. Only the heads of the records are read, and
    no digest is verified. If a record is just being written, or the run just being replaced, the result is slightly out
    of date or None.
    """
    try:
        return _how_far(job, heads).counts if has_begun(job) else None
    except (Refused, OSError):
        return None


def last_cut_began(job: bytes) -> int:
    """Return the time at which the last durable cut of the current run began, or 0 if there is none.

    The time is in nanoseconds since 1970, by the clock of the destination. Raise ``Refused`` and ``OSError``.
    """
    return _how_far(job, heads).began if has_begun(job) else 0


def _how_far(job: bytes, read: Callable[[bytes], Iterator[Frame]] = frames) -> Remaining:
    """Return the progress of the job from the heads of the records; ``read`` yields the frames of a file."""
    check_directory(job)
    run, size = read_current(job)
    check_directory(os.path.join(job, run_name(run)))
    headers = [read_header(job, run, rank) for rank in range(size)]
    for header in headers:
        if header.size != size:
            raise damaged(base_path(job, run, header.rank), 0, f"for {header.size} ranks; the run has {size}")
    epochs: _Epochs = {}
    last = min(_last_epoch(job, header, epochs, read) for header in headers)
    phase, counts, began = headers[0].phase, headers[0].counts, 0
    for number in range(1, last + 1):
        epoch_phase, counted, began = epochs[number]
        phase = phase if epoch_phase < 0 else epoch_phase
        counts = added(counts, counted)
    return Remaining(run, size, phase, last, counts, began)


def _last_epoch(job: bytes, base: Header, epochs: _Epochs, read: Callable[[bytes], Iterator[Frame]]) -> int:
    """Read the records of a rank, add its epochs to ``epochs``, and return the last complete one; 0 if there is
    none.
    """
    path = os.path.join(job, run_name(base.run), facts_name(base.rank))
    if not os.path.lexists(path):
        return 0
    complete = latest = 0
    for frame in read(path):
        with as_damage(path, frame.offset):
            head = read_head(frame.payload)
        if (head.run, head.rank, head.size) != (base.run, base.rank, base.size):
            raise damaged(path, frame.offset, f"from run {head.run}, rank {head.rank} of {head.size}")
        if head.epoch <= latest:
            raise damaged(path, frame.offset, f"epoch {head.epoch} after epoch {latest}")
        latest = head.epoch
        if latest == complete + 1:
            complete = latest
            phase, counts, began = epochs.get(latest, (-1, (), 0))
            is_other, counts = base.rank > 0, added(counts, head.counts)
            epochs[latest] = (phase, counts, began) if is_other else (head.phase, counts, head.began)
    return complete


def _remaining_tasks(job: bytes, progress: Remaining, open_spool: SpoolFactory) -> Generator[Task, None, None]:
    """Yield the tasks that remain, sorted by id."""
    with closing(Join(open_spool, where=shown(os.path.join(job, run_name(progress.run))))) as join:
        for rank in range(progress.size):
            for task in read_base(job, progress.run, rank):
                join.spawned(task)
            for done, _, spawned in _facts(job, progress, rank):
                for task in spawned:
                    join.spawned(task)
                for at in range(0, len(done), ID_BYTES):
                    join.done(done[at : at + ID_BYTES])
        yield from join.remaining()


def _facts(job: bytes, progress: Remaining, rank: int) -> Iterator[tuple[bytes, tuple[Share, ...], Iterator[Task]]]:
    """Yield the complete records of a rank: the packed ids of done tasks, the shares, and the spawned tasks, read one
    by one.
    """
    path = os.path.join(job, run_name(progress.run), facts_name(rank))
    for frame in frames(path) if progress.epoch else ():
        with as_damage(path, frame.offset):
            head, done, shares, spawned = read_facts(frame.payload)
        if head.epoch > progress.epoch:
            return
        yield done, shares, _undamaged(path, frame.offset, spawned)


def _undamaged(path: bytes, offset: int, tasks: Iterator[Task]) -> Iterator[Task]:
    """Yield ``tasks``; convert a ``ValueError`` into the error for a damaged frame."""
    with as_damage(path, offset):
        yield from tasks
