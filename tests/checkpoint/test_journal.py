"""A rank's journal: what is recorded when the data, or the records, can't be brought to storage."""

from __future__ import annotations

import errno
import os
from collections.abc import Sequence

import pytest

from pcopy.checkpoint.journal import ThreadedTaskJournal
from pcopy.checkpoint.record import EpochTaskRecord, TaskRecordCollector
from pcopy.engine.journal import NEVER_DURABLE, RankEpoch
from pcopy.engine.messages import ABANDONED_EPOCH
from pcopy.engine.task import Task
from tests.support.processes import wait_until


class Storage:
    """Stands for the destination and the job directory: calls fail from the given one on, and are remembered."""

    def __init__(self, *, syncs: float = float("inf"), appends: float = float("inf")) -> None:
        self.calls: list[str] = []
        self._left = {"sync": syncs, "append": appends}

    def _call(self, name: str) -> None:
        self.calls.append(name)
        self._left[name] -= 1
        if self._left[name] < 0:
            raise OSError(errno.EIO, os.strerror(errno.EIO))

    def sync(self) -> None:
        self._call("sync")

    def store_initial_tasks(self, phase: int, tasks: Sequence[Task]) -> None:
        self.calls.append("begin")

    def append(self, record: EpochTaskRecord) -> None:
        self._call("append")

    def remove_job(self) -> None:
        self.calls.append("withdraw")

    def close(self) -> None:
        """Nothing to be closed."""


def journal_of(storage: Storage) -> ThreadedTaskJournal:
    return ThreadedTaskJournal(TaskRecordCollector(1, 0, 1), storage, storage.sync)


@pytest.fixture(params=[0, 1, 2])
def good(request: pytest.FixtureRequest) -> int:
    """So many cuts go well."""
    number: int = request.param
    return number


def test_each_epoch_is_synced_and_then_recorded() -> None:
    storage = Storage()
    journal = journal_of(storage)
    for epoch in (1, 2, 3):
        journal.end_epoch(epoch, 0)
    assert wait_until(lambda: journal.durable_epoch == 3)
    journal.close(5)
    assert storage.calls == ["sync", "append"] * 3
    assert not journal.has_lost_data


def test_nothing_is_synced_or_recorded_after_lost_data(good: int) -> None:
    storage = Storage(syncs=good)
    journal = journal_of(storage)
    for epoch in range(1, 5):
        journal.end_epoch(epoch, 0)
    journal.close(5)
    assert storage.calls == ["sync", "append"] * good + ["sync"]
    assert journal.has_lost_data
    assert journal.data_loss_reason == "the destination could not be synced: Input/output error"
    assert journal.durable_epoch == good


def test_base_is_stored_before_the_first_sync() -> None:
    storage = Storage(syncs=0)
    journal = journal_of(storage)
    journal.record_initial_tasks(0, ())
    journal.end_epoch(1, 0)
    journal.close(5)
    assert storage.calls == ["begin", "sync"]


def test_job_can_be_removed_after_a_failed_record(good: int) -> None:
    storage = Storage(appends=good)
    journal = journal_of(storage)
    for epoch in range(1, 5):
        journal.end_epoch(epoch, 0)
    assert wait_until(lambda: journal.has_failed)
    assert storage.calls == ["sync", "append"] * (good + 1)
    assert not journal.has_lost_data
    assert journal.durable_epoch == good
    assert journal.warning is not None
    journal.abandon_records()
    journal.close(5)
    assert storage.calls[-1] == "withdraw"
    assert journal.durable_epoch == ABANDONED_EPOCH


def test_abandoned_journal_records_nothing_and_does_not_warn() -> None:
    storage = Storage()
    journal = journal_of(storage)
    journal.abandon_records()
    journal.end_epoch(1, 0)
    journal.close(5)
    assert storage.calls == ["withdraw"]
    assert journal.durable_epoch == ABANDONED_EPOCH
    assert journal.warning is None


def test_journal_abandoned_during_a_sync_records_nothing() -> None:
    """The job is being removed by then, and what came into its directory would be left there."""
    storage = Storage()

    def sync() -> None:
        journal.abandon_records()

    journal = ThreadedTaskJournal(TaskRecordCollector(1, 0, 1), storage, sync)
    journal.end_epoch(1, 0)
    assert wait_until(lambda: journal.durable_epoch == ABANDONED_EPOCH)
    journal.close(5)
    assert storage.calls == ["withdraw"]


def test_stopping_job_does_not_wait_for_a_failed_journal() -> None:
    storage = Storage()
    journal = journal_of(storage)
    journal.stop_recording(OSError(errno.ENOENT, os.strerror(errno.ENOENT)))
    epochs = RankEpoch(journal)
    assert epochs.durable_epoch == 0
    epochs.is_ending = True
    assert epochs.durable_epoch == NEVER_DURABLE
    epochs.enter_epoch(ABANDONED_EPOCH, 0)
    assert wait_until(lambda: epochs.durable_epoch == ABANDONED_EPOCH), (
        "but until the job is gone that is not kept any more"
    )
    journal.close(5)
    assert storage.calls == ["withdraw"]
