"""What remains of a job: read from the facts of its last run, and written as the base of the next one.

    remaining = the run's base + all spawned - all done, over the records of epochs up to E

E is the least, over the run's ranks, of the last complete epoch: of the last one up to which the rank's segment has
every epoch from 1. No message crosses a cut backwards, so these records are all that had happened at a moment which
could have been: what is done in them is spawned in them, or was in the base. Later records are not, since what other
ranks did then is not known.

``current`` names the run whose base is complete. It is replaced after all files of the new run are durable, and the
old run is removed after that is durable; so there is one complete run at any moment.
"""

from __future__ import annotations

import io
import os
import pickle
from collections import defaultdict
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import closing, suppress
from itertools import islice
from typing import NamedTuple, Protocol

from pcopy.checkpoint import directory
from pcopy.checkpoint.base import BaseWriter, Header, base_path, check_version, most_tasks, read_header, read_shares
from pcopy.checkpoint.base import read_base as read_base
from pcopy.checkpoint.dealing import Deal
from pcopy.checkpoint.files import Path, check_directory, remove_run, sync_path
from pcopy.checkpoint.framing import Frame, damaged, frames, write_frame
from pcopy.checkpoint.join import BUDGET, Join
from pcopy.checkpoint.layout import CURRENT, RUN, VERSION, facts_name, run_name
from pcopy.checkpoint.record import ID_BYTES, Head, added, is_counts, load_value, read_facts, read_head
from pcopy.engine.backlog import SpoolFactory
from pcopy.engine.task import Share, Task
from pcopy.errors import Refused
from pcopy.text import shown

FORMAT = "pcopy-checkpoint"

_SHARES_TOGETHER = 1024
"""Shares of the counts in one frame."""


class Remaining(NamedTuple):
    """How far a job has come.

    ``run`` is the last run and ``size`` its number of ranks; ``epoch`` is the last one of it that counts (0: what the
    run began with); ``phase`` is the one under way then, and ``counts`` are the sums over all tasks done until then.
    """

    run: int
    size: int
    phase: int
    epoch: int
    counts: tuple[int, ...]


class Mending(Protocol):
    """What is done about tasks that remain and can't go on as they are."""

    def look(self, run: int, tasks: Iterable[Task]) -> None:
        """Takes all tasks that remain after ``run``."""

    def takes_back(self, label: bytes) -> bool:
        """Does what was counted under this label count no more?"""

    def tasks(self) -> Iterator[Task]:
        """What is to be done instead."""


class _Facts(NamedTuple):
    """What the heads of a run's records tell; ``entries`` counts the tasks and ids in those that count."""

    remaining: Remaining
    entries: int


class _Epoch:
    """What all ranks together say of one epoch."""

    def __init__(self) -> None:
        self.phase = -1
        self.counts: tuple[int, ...] = ()
        self.entries = 0

    def add(self, head: Head) -> None:
        if head.rank == 0:
            self.phase = head.phase
        self.counts = added(self.counts, head.counts)
        self.entries += head.done + head.spawned


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


def load(job_dir: Path, *, open_spool: SpoolFactory, budget: int = BUDGET) -> tuple[Remaining, Iterator[Task]]:
    """How far the job has come, and the tasks that remain, in no order.

    The facts are read at once, but nothing is held of them; the tasks are found when the first is asked for, with some
    ``budget`` bytes of memory and the rest in spools. Raises ``Refused``, then or later, for anything missing, not to
    be trusted or damaged, and ``OSError`` from spools.
    """
    job = os.fsencode(job_dir)
    facts = _read_facts(job)
    return facts.remaining, _remaining_tasks(job, facts, open_spool, budget)


def compact(
    job_dir: Path,
    size: int,
    *,
    address: Callable[[Task], Task | None] | None = None,
    mending: Mending | None = None,
    open_spool: SpoolFactory,
    budget: int = BUDGET,
) -> Remaining:
    """Writes what remains as the base of a new run with ``size`` ranks, makes that the current one, removes the others.

    ``mending`` may put other tasks in the place of those that remain, and take back what was counted under some labels.
    ``address`` is asked for each task, and may give it another owner, or leave it out (None). Returns what ``load``
    would tell from now on: the new run, at epoch 0. Raises as ``load`` does, and ``OSError``; then the old run is still
    whole, and current unless the very last fsync failed.
    """
    job = os.fsencode(job_dir)
    facts = _read_facts(job)
    old = facts.remaining
    new = Remaining(old.run + 1, size, old.phase, 0, old.counts)
    with closing(_remaining_tasks(job, facts, open_spool, budget)) as remaining:
        tasks: Iterable[Task] = remaining
        shares = _shares(job, old)
        if mending is not None:
            mending.look(old.run, remaining)
            tasks = mending.tasks()
            new = new._replace(counts=_less(old.counts, (share for share in shares if mending.takes_back(share[0]))))
            shares = (share for share in _shares(job, old) if not mending.takes_back(share[0]))
        kept = (task for task in map(address, tasks) if task is not None) if address else tasks
        _write_run(job, new, kept, open_spool, shares)
    for name in os.listdir(job):
        if RUN.fullmatch(name) and name != run_name(new.run):
            with suppress(OSError):  # the job is safe; what is left goes with the next one
                remove_run(os.path.join(job, name))
    return new


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
    for rank in range(old.size if old.epoch else 0):
        path = os.path.join(job, run_name(old.run), facts_name(rank))
        for frame in frames(path):
            try:
                head, _, shares, _ = read_facts(frame.payload)
            except ValueError as error:
                raise damaged(path, frame.offset, str(error)) from None
            if head.epoch > old.epoch:
                break
            yield from shares


def _write_run(
    job: bytes, new: Remaining, tasks: Iterable[Task], open_spool: SpoolFactory, shares: Iterable[Share] = ()
) -> None:
    path = os.path.join(job, run_name(new.run))
    remove_run(path)  # what a crash has left of an earlier attempt
    try:
        _write_bases(path, new, tasks, open_spool, iter(shares))
        sync_path(job)
    except BaseException:
        with suppress(OSError):  # there may be no room; the first error counts
            remove_run(path)
        raise
    frame = io.BytesIO()
    write_frame(frame, pickle.dumps((FORMAT, VERSION, new.run, new.size), 5))
    with directory.opened(job) as descriptor:
        directory.replace(descriptor, CURRENT, frame.getvalue())


def _write_bases(
    path: bytes, new: Remaining, tasks: Iterable[Task], open_spool: SpoolFactory, shares: Iterator[Share]
) -> None:
    os.mkdir(path, 0o700)

    def make(rank: int) -> BaseWriter:
        phase, counts = (-1, ()) if rank else (new.phase, new.counts)
        base = BaseWriter(path, Header(new.run, rank, new.size, phase, counts))
        while not rank and (some := tuple(islice(shares, _SHARES_TOGETHER))):
            base.add_shares(some)
        return base

    with closing(Deal(open_spool, make, new.size)) as deal:
        for task in tasks:
            deal.add(task)
        deal.finish()
    sync_path(path)


def read_current(job: bytes) -> tuple[int, int]:
    """The current run and its number of ranks."""
    path = os.path.join(job, CURRENT)
    frame = next(frames(path), Frame(0, b""))
    try:
        value = load_value(frame.payload)
    except ValueError as error:
        raise damaged(path, 0, str(error)) from None
    check_version(path, value, FORMAT)
    if len(value) != 4 or not is_counts(value[2:]) or value[2] < 1 or value[3] < 1:
        raise damaged(path, 0, "no run and number of ranks")
    return value[2], value[3]


def _read_facts(job: bytes) -> _Facts:
    check_directory(job)
    run, size = read_current(job)
    check_directory(os.path.join(job, run_name(run)))
    base = read_header(job, run, 0)
    for rank in range(size):
        header = read_header(job, run, rank)
        if header.size != size:
            raise damaged(base_path(job, run, rank), 0, f"for {header.size} ranks; the run has {size}")
    epochs: dict[int, _Epoch] = defaultdict(_Epoch)
    last = min(_last_epoch(job, run, rank, size, epochs) for rank in range(size))
    phase, counts, entries = base.phase, base.counts, 0
    for number in range(1, last + 1):
        epoch = epochs[number]
        phase = phase if epoch.phase < 0 else epoch.phase
        counts = added(counts, epoch.counts)
        entries += epoch.entries
    return _Facts(Remaining(run, size, phase, last, counts), entries)


def _last_epoch(job: bytes, run: int, rank: int, size: int, epochs: dict[int, _Epoch]) -> int:
    """Reads a rank's segment, adds its epochs to ``epochs``, and returns the last complete one; 0 if there is none."""
    path = os.path.join(job, run_name(run), facts_name(rank))
    if not os.path.lexists(path):
        return 0
    complete = latest = 0
    for frame in frames(path):
        try:
            head = read_head(frame.payload)
        except ValueError as error:
            raise damaged(path, frame.offset, str(error)) from None
        if head[:3] != (run, rank, size):
            raise damaged(path, frame.offset, f"from run {head.run}, rank {head.rank} of {head.size}")
        if head.epoch <= latest:
            raise damaged(path, frame.offset, f"epoch {head.epoch} after epoch {latest}")
        latest = head.epoch
        if latest == complete + 1:
            complete = latest
            epochs[latest].add(head)
    return complete


def _remaining_tasks(job: bytes, facts: _Facts, open_spool: SpoolFactory, budget: int) -> Generator[Task, None, None]:
    run, size, _, last, _ = facts.remaining
    expected = facts.entries + sum(most_tasks(job, run, rank) for rank in range(size))
    where = shown(os.path.join(job, run_name(run)))
    with closing(Join(open_spool, expected, where=where, budget=budget)) as join:
        for rank in range(size):
            for task in read_base(job, run, rank):
                join.spawned(task)
            if last:
                _read_segment(os.path.join(job, run_name(run), facts_name(rank)), last, join)
        yield from join.remaining()


def _read_segment(path: bytes, last: int, join: Join) -> None:
    """Hands the tasks of the epochs up to ``last`` on."""
    for frame in frames(path):
        try:
            head, done, _, spawned = read_facts(frame.payload)
            if head.epoch > last:
                return
            for task in spawned:
                join.spawned(task)
        except ValueError as error:
            raise damaged(path, frame.offset, str(error)) from None
        for at in range(0, len(done), ID_BYTES):
            join.done(done[at : at + ID_BYTES])
