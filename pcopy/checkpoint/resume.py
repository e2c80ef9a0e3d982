"""What remains of a job: read from the facts of its last run, and written as the base of the next one.

    remaining = the run's base + all spawned - all done, over the records of epochs up to E

The last complete epoch of a rank is the last one up to which its segment has every epoch from 1. E is the least of
these over the run's ranks. No message crosses a cut backwards, so these records fit together: if a task is done in
them, it was spawned in them or is in the base. Later records do not fit, since the records of other ranks are missing
there.

``current`` names the run whose base is complete. It is replaced after all files of the new run are durable, and the
old run is removed after that is durable; so there is one complete run at any moment.
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


class Remaining(NamedTuple):
    """How far a job has come.

    ``run`` is the last run and ``size`` its number of ranks; ``epoch`` is the last one of it that counts (0: what the
    run began with); ``phase`` is the one under way then, and ``counts`` are the sums over all tasks done until then.
    ``began`` is when the cut of that epoch began, as in ``Record``; 0 without one.
    """

    run: int
    size: int
    phase: int
    epoch: int
    counts: tuple[int, ...]
    began: int = 0


class Mending(Protocol):
    """What is done about tasks that remain and can't go on as they are."""

    def look(self, run: int, tasks: Iterable[Task]) -> None:
        """Takes all tasks that remain after ``run``."""

    def takes_back(self, label: bytes) -> bool:
        """Does what was counted under this label count no more?"""

    def tasks(self) -> Iterator[Task]:
        """What is to be done instead."""


_Epochs = dict[int, tuple[int, tuple[int, ...], int]]
"""By the number of an epoch: its phase, as rank 0 recorded it, the sums of what all ranks have counted in it, and when
rank 0 cut."""


def begin(
    job_dir: Path,
    size: int,
    counts: Iterable[int],
    tasks: Iterable[Task],
    *,
    run: int = 1,
    phase: int = 0,
) -> Remaining:
    """Makes the first run of a job that is on record, for ``size`` ranks, with ``tasks`` dealt out to them; durable on
    return. Its number ``run`` is higher where runs before it left no record.

    Raises ``Refused`` if there is a run already, or the directory is not to be trusted, and ``OSError``; then there is
    still none.
    """
    job = os.fsencode(job_dir)
    check_directory(job)
    if has_begun(job):
        raise Refused(f"{shown(job)}: holds a job that has begun; resume it, or remove the directory")
    first = Remaining(run, size, phase, 0, tuple(counts))
    _write_run(job, first, tasks, io.BytesIO)
    return first


def has_begun(job_dir: Path) -> bool:
    """Is there a run on record? Without one the job begins with its roots."""
    return os.path.lexists(os.path.join(os.fsencode(job_dir), CURRENT))


def load(job_dir: Path, *, open_spool: SpoolFactory) -> tuple[Remaining, Iterator[Task]]:
    """How far the job has come, and the tasks that remain, by their ids.

    The facts are read at once, but nothing is held of them; the tasks are found when the first is asked for, partly in
    spools. Raises ``Refused``, then or later, for anything missing, not to be trusted or damaged, and ``OSError`` from
    spools.
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
    """Writes what remains as the base of a new run with ``size`` ranks, makes that the current one, removes the others.

    ``mending`` may put other tasks in the place of those that remain, and take back what was counted under some labels.
    ``address`` is asked for each task, and may give it another owner, or leave it out (None). ``least_counts`` are
    numbers below which counters do not remain, by their places: what the records lack of them. Returns what ``load``
    would tell from now on: the new run, at epoch 0. Raises as ``load`` does, and ``OSError``; then the old run is still
    whole, and current unless the very last fsync failed.
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
            with suppress(OSError):  # the job is safe; what is left goes with the next one
                remove_run(os.path.join(job, name))
    return new


def _raised(counts: tuple[int, ...], least_counts: Mapping[int, int]) -> tuple[int, ...]:
    raised = list(counts)
    for counter, number in least_counts.items():
        raised += [0] * (counter + 1 - len(raised))
        raised[counter] = max(raised[counter], number)
    return tuple(raised)


def _less(counts: tuple[int, ...], shares: Iterator[Share]) -> tuple[int, ...]:
    left = list(counts)
    for _, share in shares:
        for counter, number in share:
            left += [0] * (counter + 1 - len(left))
            left[counter] -= number
    return tuple(left)


def _shares(job: bytes, old: Remaining) -> Iterator[Share]:
    """Of all that counts, as it was recorded: there may be several with one label."""
    yield from read_shares(job, old.run)
    for rank in range(old.size):
        for _, shares, _ in _facts(job, old, rank):
            yield from shares


def _write_run(
    job: bytes, new: Remaining, tasks: Iterable[Task], open_spool: SpoolFactory, shares: Iterable[Share] = ()
) -> None:
    path = os.path.join(job, run_name(new.run))
    remove_run(path)  # what a crash has left of an earlier attempt
    try:
        create_run(path)
        with closing(dealt(tasks, new.size, open_spool)) as ranks:
            for rank, own in enumerate(ranks):
                phase, counts = (-1, ()) if rank else (new.phase, new.counts)
                write_base(path, Header(new.run, rank, new.size, phase, counts), () if rank else shares, own)
        sync_directory_at(path)
        sync_directory_at(job)
    except BaseException:
        with suppress(OSError):  # there may be no room; the first error counts
            remove_run(path)
        raise
    frame = io.BytesIO()
    write_frame(frame, dump_primitives((FORMAT, VERSION, new.run, new.size)))
    with directory.opened(job) as descriptor:
        directory.replace(descriptor, CURRENT, frame.getvalue())


def read_current(job: bytes) -> tuple[int, int]:
    """The current run and its number of ranks."""
    path = os.path.join(job, CURRENT)
    numbers = read_first(path, next(frames(path), Frame(0, b"")), FORMAT)
    if len(numbers) != 2 or not is_counts(numbers) or min(numbers) < 1:
        raise damaged(path, 0, "no run and number of ranks")
    return numbers[0], numbers[1]


def counts_on_record(job: bytes) -> tuple[int, ...] | None:
    """The sums over all tasks that are on record as done; None where nothing is, or nothing can be read.

    For people, while others may work on the job: read are the heads of the records only, and no digest is looked at. A
    record that is just being written, or a run that has just been replaced by the next one, leaves the answer a little
    older, or away.
    """
    try:
        return _how_far(job, heads).counts if has_begun(job) else None
    except (Refused, OSError):
        return None


def last_cut_began(job: bytes) -> int:
    """Return when the last durable cut of the current run began, by the destination's clock; 0 if there is none.

    Raises ``Refused`` and ``OSError``.
    """
    return _how_far(job, heads).began if has_begun(job) else 0


def _how_far(job: bytes, read: Callable[[bytes], Iterator[Frame]] = frames) -> Remaining:
    """What the heads of the records tell."""
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
        then, counted, began = epochs[number]
        phase = phase if then < 0 else then
        counts = added(counts, counted)
    return Remaining(run, size, phase, last, counts, began)


def _last_epoch(job: bytes, base: Header, epochs: _Epochs, read: Callable[[bytes], Iterator[Frame]]) -> int:
    """Reads a rank's segment, adds its epochs to ``epochs``, and returns the last complete one; 0 if there is none."""
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


def _remaining_tasks(job: bytes, far: Remaining, open_spool: SpoolFactory) -> Generator[Task, None, None]:
    with closing(Join(open_spool, where=shown(os.path.join(job, run_name(far.run))))) as join:
        for rank in range(far.size):
            for task in read_base(job, far.run, rank):
                join.spawned(task)
            for done, _, spawned in _facts(job, far, rank):
                for task in spawned:
                    join.spawned(task)
                for at in range(0, len(done), ID_BYTES):
                    join.done(done[at : at + ID_BYTES])
        yield from join.remaining()


def _facts(job: bytes, far: Remaining, rank: int) -> Iterator[tuple[bytes, tuple[Share, ...], Iterator[Task]]]:
    """A rank's records that count: the ids of tasks done, packed, shares, and the tasks spawned, read one by one."""
    path = os.path.join(job, run_name(far.run), facts_name(rank))
    for frame in frames(path) if far.epoch else ():
        with as_damage(path, frame.offset):
            head, done, shares, spawned = read_facts(frame.payload)
        if head.epoch > far.epoch:
            return
        yield done, shares, _undamaged(path, frame.offset, spawned)


def _undamaged(path: bytes, offset: int, tasks: Iterator[Task]) -> Iterator[Task]:
    with as_damage(path, offset):
        yield from tasks
