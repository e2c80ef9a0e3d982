"""Jobs that ranks have worked on for a while, and what is true of them, kept in plain dictionaries.

Ranks cut when they like, but as the engine makes them: a rank that takes up a task has cut as often as the one that
spawned it had then. How much of its records a rank has on disk is up to the test.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

from pcopy.checkpoint.framing import RecordFileWriter
from pcopy.checkpoint.record import EpochTaskRecord, TaskRecordCollector
from pcopy.checkpoint.resume import read_initial_tasks
from pcopy.engine.task import ANY_RANK, Task, TaskId

Step = tuple[int, int, int, int, bool]
"""A rank, which of the waiting tasks it takes, how many it spawns, an owner for them, and whether it cuts before."""


def task(number: int, *, rank: int = 0, run: int = 1, owner: int = ANY_RANK, payload: bytes = b"") -> Task:
    return Task((run, rank, number), number % 3, payload or b"%d" % number, number * 7, number % 2 == 0, owner)


class History:
    """One run, from the tasks it began with."""

    def __init__(self, run: int, ranks: int, tasks: Iterable[Task], counts: tuple[int, ...], phase: int = 0) -> None:
        self.run, self.ranks, self.counts, self.phase = run, ranks, counts, phase
        self.windows = [TaskRecordCollector(run, rank, ranks) for rank in range(ranks)]
        self.records: list[list[EpochTaskRecord]] = [[] for _ in range(ranks)]
        self.waiting = {each.id: each for each in tasks}
        self.tasks = dict(self.waiting)
        self.spawned_in = dict.fromkeys(self.tasks, 0)
        self.done_in: dict[TaskId, int] = {}
        self.counted: dict[TaskId, tuple[int, ...]] = {}
        self.begun_in = {0: phase}
        self._number = 10_000

    def epoch(self, rank: int) -> int:
        """The epoch under way."""
        return len(self.records[rank]) + 1

    def cut(self, rank: int) -> None:
        self.records[rank].append(self.windows[rank].take_record(self.epoch(rank)))

    def begin_phase(self, phase: int) -> None:
        self.windows[0].set_phase(phase)
        self.begun_in[self.epoch(0)] = phase

    def step(self, rank: int, pick: int, children: int, owner: int, cut: bool) -> None:
        rank %= self.ranks
        if cut:
            self.cut(rank)
        if not self.waiting:
            return
        taken = list(self.waiting)[pick % len(self.waiting)]
        completed = [each for each in self.waiting if each != taken and owner == self.waiting[each].owner != ANY_RANK]
        for each in (taken, *completed):
            while self.spawned_in[each] > self.epoch(rank):
                self.cut(rank)
        for _ in range(children):
            self._number += 1
            made = task(self._number, rank=rank, run=self.run, owner=owner)
            self.tasks[made.id] = self.waiting[made.id] = made
            self.spawned_in[made.id] = self.epoch(rank)
            self.windows[rank].add_spawned_task(made)
        for each in (taken, *completed):
            del self.waiting[each]
            self.done_in[each] = self.epoch(rank)
        self.counted[taken] = (1, pick, children)
        self.windows[rank].add_done_task(taken, self.counted[taken], completed)

    def write(self, job: Path, durable: Iterable[int]) -> int:
        """Writes as many records of each rank as ``durable`` says; returns the least, the epoch that counts."""
        written = []
        for rank, (records, most) in enumerate(zip(self.records, durable, strict=False)):
            written.append(min(len(records), most))
            if written[-1]:
                writer = RecordFileWriter(job, self.run, rank)
                for record in records[: written[-1]]:
                    writer.append(record)
                writer.close()
        return min(written)

    def remaining(self, epoch: int) -> dict[TaskId, Task]:
        """Spawned up to ``epoch`` and not done by then, one by one."""
        return {
            each: made
            for each, made in self.tasks.items()
            if self.spawned_in[each] <= epoch and self.done_in.get(each, epoch + 1) > epoch
        }

    def totals(self, epoch: int) -> tuple[int, ...]:
        done = [self.counted[each] for each, when in self.done_in.items() if when <= epoch and each in self.counted]
        return tuple(sum(column) for column in zip(self.counts, *done, strict=True))

    def phase_at(self, epoch: int) -> int:
        return max((when, phase) for when, phase in self.begun_in.items() if when <= epoch)[1]


def make_job(area: Path) -> Path:
    job = area / "job"
    job.mkdir(mode=0o700)
    return job


def bases(job: Path, run: int, size: int) -> list[list[Task]]:
    """What each rank of a run begins with."""
    assert sorted(os.listdir(job / f"run-{run}")) == sorted(f"base-{rank}" for rank in range(size))
    return [list(read_initial_tasks(job, run, rank)) for rank in range(size)]
