"""How many facts a rank holds in memory: from 32 MiB on it cuts though it is not time yet, from 64 MiB on it waits."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from unittest import mock

import pytest

from pcopy.checkpoint.journal import ThreadedTaskJournal
from pcopy.checkpoint.record import EpochTaskRecord, TaskRecordCollector
from pcopy.engine.limits import EngineLimits
from pcopy.engine.task import NewTask, Task
from tests.engine.spoken import Directions, Spoken
from tests.support.processes import wait_until

MIB = 1 << 20
PAYLOAD = bytes(MIB)


class Storage:
    """It takes the facts of one cut for each time that ``free`` is released."""

    def __init__(self) -> None:
        self.free = threading.Semaphore(0)
        self.epochs: list[int] = []

    def sync(self) -> None:
        assert self.free.acquire(timeout=60)

    def store_initial_tasks(self, phase: int, tasks: Sequence[Task]) -> None:
        """Takes no time."""

    def append(self, record: EpochTaskRecord) -> None:
        self.epochs.append(record.epoch)

    def remove_job(self) -> None:
        raise AssertionError

    def close(self) -> None:
        """Nothing to be closed."""


@pytest.fixture
def storage() -> Storage:
    return Storage()


@pytest.fixture
def journal(storage: Storage) -> Iterator[ThreadedTaskJournal]:
    made = ThreadedTaskJournal(TaskRecordCollector(1, 0, 1), storage, storage.sync)
    yield made
    storage.free.release(10)
    made.close(5)


def held(journal: ThreadedTaskJournal, until: Callable[[], bool]) -> int:
    """Bytes of payload of the tasks that the journal is told of, 1 MiB at a time, until that is true."""
    for number in range(200):
        if until():
            return number * MIB
        journal.record_spawned_task(Task((1, 0, number + 1), 0, PAYLOAD, 1))
    raise AssertionError("it holds any number of facts")


def test_journal_needs_a_cut_from_32_mebibytes(journal: ThreadedTaskJournal, storage: Storage) -> None:
    assert held(journal, lambda: journal.needs_checkpoint) == 32 * MIB
    journal.end_epoch(1, 0)
    assert not journal.needs_checkpoint
    assert held(journal, lambda: journal.needs_checkpoint) == 32 * MIB


def test_facts_of_tasks_spawned_and_done_use_no_memory(journal: ThreadedTaskJournal) -> None:
    for number in range(1, 200):
        task = Task((1, 0, number), 0, PAYLOAD, 1)
        journal.record_spawned_task(task)
        journal.record_done_task(task, (1,), ())
        assert not journal.needs_checkpoint


def test_rank_waits_at_64_mebibytes_until_facts_are_on_storage(journal: ThreadedTaskJournal, storage: Storage) -> None:
    assert held(journal, lambda: journal.must_wait_for_storage) == 64 * MIB
    journal.end_epoch(1, 0)
    assert journal.must_wait_for_storage, "what is under way to storage is in memory"
    storage.free.release()
    assert wait_until(lambda: not journal.must_wait_for_storage)
    assert storage.epochs == [1]


def test_facts_being_stored_count_together_with_newer_ones(journal: ThreadedTaskJournal, storage: Storage) -> None:
    held(journal, lambda: journal.needs_checkpoint)
    journal.end_epoch(1, 0)
    assert not journal.must_wait_for_storage
    assert held(journal, lambda: journal.must_wait_for_storage) == 32 * MIB
    storage.free.release()
    assert wait_until(lambda: not journal.must_wait_for_storage)
    assert journal.needs_checkpoint


def test_job_cuts_and_waits_by_size_of_facts_before_the_interval_ends(
    journal: ThreadedTaskJournal, storage: Storage
) -> None:
    """The interval of 60 s has not begun to pass. Each task spawns one of 1 MiB for a later phase."""
    rank = Spoken(0, 1, Directions(first=200, phases=2), journal=journal, limits=EngineLimits())
    rank.node.begin_job(0.0)
    cuts: list[int] = []
    with mock.patch.object(journal, "end_epoch", wraps=journal.end_epoch) as cut:
        for run in range(1, 65):
            rank.run(NewTask(1, PAYLOAD, 1))
            cuts += [run] * (cut.call_count - len(cuts))
    assert cuts == [32, 64]
    assert rank.node.take_task() is None
    assert storage.epochs == []
    storage.free.release()
    assert wait_until(lambda: not journal.must_wait_for_storage)
    assert storage.epochs == [1]
    assert rank.node.take_task() is not None
