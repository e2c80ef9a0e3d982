"""Journal of one rank: gathers facts in memory; a separate thread makes data and records durable.

The order is essential. First the facts are gathered. Then the data that they describe are brought to stable storage.
Then the record is appended. If the data of one cut could not be brought to storage, nothing later is recorded, since
the kernel reports a lost write only once; the job has to stop. If the job directory cannot be written, only the
checkpoint is lost: all ranks continue the job without one, and its records are removed.
"""

from __future__ import annotations

from _queue import SimpleQueue
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Protocol

from pcopy.background import BackgroundThread
from pcopy.checkpoint.record import FactCollector, FactRecord
from pcopy.engine.messages import LAST_EPOCH
from pcopy.engine.task import LabelledCounts, Task, TaskId
from pcopy.errors import RESOURCE_EXCEPTIONS, SYNC_FAILED_TEXT, resource_error_text

CUT_AT_BYTES = 32 << 20
"""Bytes of gathered facts at which a rank cuts, whatever the time."""

WAIT_AT_BYTES = 64 << 20
"""Bytes of facts that are not on storage yet above which no new task is begun."""


class RecordStore(Protocol):
    """Storage for the records of one rank. Used by the journal's thread only."""

    def store_base(self, phase: int, tasks: Sequence[Task]) -> None:
        """On rank 0, before the first record of a new job: write ``tasks`` as the base from which it can be resumed."""

    def append(self, record: FactRecord) -> None:
        """Append the record durably. Raise ``OSError`` or ``PcopyError``."""

    def remove_job(self) -> None:
        """On rank 0: remove the job, if it was stored. Raise ``PcopyError``."""

    def close(self) -> None:
        """Close the store; no records follow."""


class FactJournal:
    """Implementation of ``pcopy.engine.journal.Journal`` that stores records durably."""

    def __init__(self, window: FactCollector, store: RecordStore, sync: Callable[[], None]) -> None:
        """Create the journal.

        Args:
            window: gathers the facts between two cuts.
            store: storage for the records.
            sync: brings all data that this rank has written to stable storage; raises ``OSError``.
        """
        self.durable_epoch = 0
        self.data_loss_reason: str | None = None
        """Reason why written data are not on storage, or None. If it is set, the job has to stop."""
        self.warning: str | None = None
        """Reason why this rank cannot record facts any longer, or None. Reported to the user as a notice."""
        self.has_failed = False
        self._collector = window
        self._store = store
        self._sync = sync
        self._base: tuple[int, tuple[Task, ...]] | None = None
        self._actions: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._pending_bytes = 0
        self._thread: BackgroundThread | None = None
        self._is_abandoned = False

    @property
    def _is_recording_over(self) -> bool:
        """True if nothing is recorded any longer."""
        return self.has_lost_data or self.has_failed or self._is_abandoned

    @property
    def has_lost_data(self) -> bool:
        """True if written data could not be brought to stable storage."""
        return self.data_loss_reason is not None

    @property
    def needs_cut(self) -> bool:
        """True if so many facts have been gathered that they should be cut now."""
        return not self._is_recording_over and self._collector.memory_bytes >= CUT_AT_BYTES

    @property
    def must_wait_for_storage(self) -> bool:
        """True if so many facts are not on storage yet that no task should be begun."""
        return not self._is_recording_over and self._collector.memory_bytes + self._pending_bytes >= WAIT_AT_BYTES

    def record_base(self, phase: int, tasks: Sequence[Task]) -> None:
        """On rank 0: keep the tasks with which a new job begins until the first record is stored."""
        self._base = phase, tuple(tasks)

    def record_spawned(self, task: Task) -> None:
        """Gather the fact that ``task`` was spawned."""
        if not self._is_recording_over:
            self._collector.add_spawned(task)

    def record_done(
        self, task: Task, counts: Sequence[int], settled: Sequence[TaskId], shares: Sequence[LabelledCounts] = ()
    ) -> None:
        """Gather the fact that ``task`` and the tasks in ``settled`` are done, with the counts."""
        if not self._is_recording_over:
            self._collector.add_done(task.id, counts, settled, shares)

    def end_epoch(self, epoch: int, phase: int) -> None:
        """Pass the facts gathered since the last cut to the thread, as the record of ``epoch``."""
        if self._is_recording_over:
            return
        self._collector.set_phase(phase)
        size = self._collector.memory_bytes
        self._pending_bytes += size
        self._queue_action(partial(self._store_record, self._collector.take_record(epoch), size))

    def abandon(self) -> None:
        """Stop recording; let the thread remove the stored job."""
        self._is_abandoned = True
        self._queue_action(self._remove_job)

    def _queue_action(self, action: Callable[[], None]) -> None:
        """Pass ``action`` to the thread, and start the thread for the first one."""
        self._actions.put(action)
        if self._thread is None:
            try:
                self._thread = BackgroundThread(self._run_actions)
            except OSError as error:  # no thread can be started: run the queued actions here
                self.stop_recording(error)
                self._actions.put(None)
                self._run_actions()

    def stop_recording(self, error: Exception) -> None:
        """Stop recording because of ``error``. Errors of the journal must not end the copy, whatever they are."""
        if not self._is_abandoned:  # otherwise the job was removed on purpose, and the reason has been reported
            self.warning = f"no more checkpoints, the job goes on without and cannot be resumed: {error}"
        self.has_failed = True

    def close(self, patience: float) -> bool:
        """End the thread within ``patience`` seconds, then close the store; return False if the thread is still in a
        system call.

        After False, that call may still complete its record. The thread does not begin another one, since rank 0 may be
        removing the job.
        """
        if self._thread is not None:
            self._actions.put(None)
            if not self._thread.has_ended(patience):
                self._is_abandoned = True
                return False
        self._store.close()
        return True

    def _run_actions(self) -> None:
        """Run the queued actions until the queue yields None. Body of the thread."""
        while (action := self._actions.get()) is not None:
            action()

    def _store_record(self, record: FactRecord, size: int) -> None:
        """Store the base if it has not been stored, sync the data, and append ``record``.

        The base comes first because other ranks wait for it, a sync may take long, and the base does not claim that any
        task is done.
        """
        if not self._is_recording_over and self._store_base() and self._sync_data() and not self._is_abandoned:
            self._append_record(record)
        self._pending_bytes -= size

    def _store_base(self) -> bool:
        """Store the base if there is one; return False if that fails."""
        base, self._base = self._base, None
        return base is None or self._try_store(partial(self._store.store_base, *base))

    def _sync_data(self) -> bool:
        """Bring the data of this rank to stable storage; return False if that fails."""
        try:
            self._sync()
        except RESOURCE_EXCEPTIONS as error:
            self.data_loss_reason = (
                f"{SYNC_FAILED_TEXT}: {getattr(error, 'strerror', None) or resource_error_text(error)}"
            )
        return not self.has_lost_data

    def _append_record(self, record: FactRecord) -> None:
        """Append ``record``; its epoch is durable then."""
        if self._try_store(partial(self._store.append, record)):
            self.durable_epoch = record.epoch

    def _try_store(self, action: Callable[[], None]) -> bool:
        """Run ``action`` of the store; on an error stop recording and return False."""
        try:
            action()
        except Exception as error:
            self.stop_recording(error)
        return not self.has_failed

    def _remove_job(self) -> None:
        """Remove the stored job. Errors are ignored."""
        with suppress(Exception):  # the job directory is unusable and has been reported
            self._store.remove_job()
        self.durable_epoch = LAST_EPOCH
