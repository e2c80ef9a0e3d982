"""The job directory and the journals, with the time that storage takes.

A cut captures a rank's facts at once. Then what its host has written goes to the disk, then the record; each takes
some time, in which the world may end. A record that is half written when it ends is none.
"""

from __future__ import annotations

import io
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from random import Random
from typing import NamedTuple, Protocol

from pcopy.checkpoint.join import Join
from pcopy.checkpoint.record import Record, Window, added, as_task, pack_id
from pcopy.engine.task import Share, Task, TaskId
from tests.recovery.files import Files
from tests.recovery.rules import Rules
from tests.support.records import unpack_ids


class Clock(Protocol):
    """The run, for its journals."""

    def later(self, seconds: float, call: Callable[[], None]) -> None:
        """Calls ``call`` after some seconds of virtual time."""

    def storing(self) -> None:
        """A record is being written."""

    def stored(self, rank: int) -> None:
        """A record of ``rank`` is on storage."""


class Remaining(NamedTuple):
    """How far a job has come; the terms are those of ``pcopy.checkpoint.resume``."""

    run: int
    phase: int
    epoch: int
    counts: tuple[int, ...]
    tasks: tuple[Task, ...]


class JobDirectory:
    """What is on stable storage: the base of the current run, and the records of its ranks."""

    def __init__(self, rules: Rules) -> None:
        self._rules = rules
        self.base: Remaining | None = None
        self.records: list[list[Record]] = []

    def begin(self, base: Remaining | None, size: int) -> None:
        """The base of a run is complete, and becomes current; the run before it is gone. (A new job has none yet.)"""
        self.base = base
        self.records = [[] for _ in range(size)]

    def load(self) -> Remaining | None:
        """What remains; None if the job has written nothing."""
        if self.base is None:
            return None
        rules = self._rules
        least = min(len(records) for records in self.records)
        together = rules.least_epoch and rules.markers
        accepted = [records[:least] if together else records for records in self.records]
        phase, counts = self.base.phase, self.base.counts
        for record in (record for records in accepted for record in records):
            counts = added(counts, record.counts)
            phase = max(phase, record.phase)
        join = _joined if together and rules.new_ids else _joined_anyhow
        if not rules.spawned_as_told:
            join = _joined_by_description
        facts = [record for records in accepted for record in records]
        return Remaining(self.base.run, phase, least, counts, tuple(join(self.base.tasks, facts)))


def _told(base: Iterable[Task], records: Sequence[Record]) -> Iterator[Task]:
    yield from base
    for record in records:
        yield from map(as_task, record.spawned)


def _joined(base: Sequence[Task], records: Sequence[Record]) -> Iterator[Task]:
    """As pcopy does it, which refuses facts that contradict each other."""
    join = Join(io.BytesIO, 0, where="the model")
    for task in _told(base, records):
        join.spawned(task)
    for record in records:
        for task_id in unpack_ids(record.done):
            join.done(pack_id(task_id))
    yield from join.remaining()


def _joined_anyhow(base: Sequence[Task], records: Sequence[Record]) -> Iterator[Task]:
    """For facts that may contradict each other, since a rule is off."""
    done = {task_id for record in records for task_id in unpack_ids(record.done)}
    yield from {task.id: task for task in _told(base, records) if task.id not in done}.values()


def _joined_by_description(base: Sequence[Task], records: Sequence[Record]) -> Iterator[Task]:
    """Without a part of rule 1: a task that is described as another one is the same."""
    told = list(_told(base, records))
    ids = {task_id for record in records for task_id in unpack_ids(record.done)}
    done = {task.payload for task in told if task.id in ids}
    yield from {task.payload: task for task in told if task.payload not in done}.values()


class Storage(NamedTuple):
    """Seconds that a sync and a record take at most; bytes of facts above which a rank cuts, and waits."""

    sync: float
    write: float
    wanted: int
    full: int


class ModelJournal:
    """Fills ``pcopy.engine.journal.Journal`` for one rank of one run."""

    def __init__(
        self,
        number: int,
        rank: int,
        size: int,
        *,
        client: int,
        job: JobDirectory,
        files: Files,
        storage: Storage,
        rules: Rules,
        random: Random,
        run: Clock,
    ) -> None:
        self.durable = 0
        self.is_lost = False
        self.has_failed = False
        self._number, self._rank, self._client = number, rank, client
        self._job, self._files, self._storage, self._rules = job, files, storage, rules
        self._random, self._run = random, run
        self._window = Window(number, rank, size)
        self._waiting: deque[tuple[Record, int]] = deque()
        self._under_way = 0
        self._begun_with: Remaining | None = None

    @property
    def wants_cut(self) -> bool:
        return self._window.size > self._storage.wanted

    @property
    def is_full(self) -> bool:
        return self._window.size + self._under_way > self._storage.full

    def base(self, phase: int, tasks: Sequence[Task]) -> None:
        self._begun_with = Remaining(self._number, phase, 0, (), tuple(tasks))

    def spawned(self, task: Task) -> None:
        self._window.spawned(task)

    def done(self, task: Task, counts: Sequence[int], settled: Sequence[TaskId], shares: Sequence[Share] = ()) -> None:
        self._window.done(task.id, counts, settled, shares)

    def cut(self, epoch: int, phase: int) -> None:
        if not self._rank:
            self._window.begun(phase)
        size = self._window.size
        self._under_way += size
        self._waiting.append((self._window.capture(epoch), size))
        if len(self._waiting) == 1:
            self._store()

    def give_up(self) -> None:
        """Nothing makes these journals fail."""

    def _store(self) -> None:
        """The oldest record that waits goes to storage."""
        mark = self._files.mark
        syncing = self._random.uniform(0.1, 1.0) * self._storage.sync
        writing = self._random.uniform(0.1, 1.0) * self._storage.write
        if self._rules.sync_first:
            self._run.later(syncing, lambda: self._files.sync(self._client, mark))
            self._run.later(syncing + writing, self._append)
        else:
            self._run.later(writing, self._append)
            self._run.later(writing + syncing, lambda: self._files.sync(self._client, mark))

    def _append(self) -> None:
        self._run.storing()
        record, size = self._waiting.popleft()
        if self._begun_with is not None:
            self._job.base, self._begun_with = self._begun_with, None
        self._job.records[self._rank].append(record)
        self._under_way -= size
        self.durable = record.epoch
        if self._waiting:
            self._store()
        self._run.stored(self._rank)
