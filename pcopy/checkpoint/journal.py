"""Journal of one rank: gathers facts ("task spawned", "task done") in memory; at each cut a separate thread brings the
files that this rank has written, and a record of the facts, to stable storage.

The order is essential. First the facts are taken from memory. Then the data of all files written so far are synced.
Then the record is appended and synced. If the data could not be synced, nothing later is recorded, since the kernel
reports a lost write only once; the job has to stop. If the job directory cannot be written, only the checkpoint is
lost: all ranks continue the job without a checkpoint, and its records are removed.
"""

from __future__ import annotations

from _queue import SimpleQueue
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Protocol

from pcopy.background import BackgroundThread
from pcopy.checkpoint.record import EpochTaskRecord, TaskRecordCollector
from pcopy.engine.messages import ABANDONED_EPOCH
from pcopy.engine.task import Task, TaskId, TaskShares
from pcopy.errors import RESOURCE_EXCEPTIONS, SYNC_FAILED_TEXT, resource_error_text

CHECKPOINT_CUT_AT_BYTES = 32 << 20
"""Bytes of facts (records of spawned and done tasks) in memory from which on a rank makes a cut: it passes them on to
be written, without waiting for the regular time.
"""

WAIT_FOR_STORAGE_AT_BYTES = 64 << 20
"""Bytes of facts (records of spawned and done tasks) not yet on storage from which on the rank begins no new task."""


class TaskRecordStore(Protocol):
    """Protocol: writes the records of one rank to the job directory. Used by the journal's thread only."""

    def store_initial_tasks(self, phase: int, tasks: Sequence[Task]) -> None:
        """On rank 0, before the first record of a new job: write ``tasks``, with which ``phase`` begins. Without later
        records the job is resumed from these.
        """

    def append(self, record: EpochTaskRecord) -> None:
        """Append the record; return once it is on stable storage. Raise ``OSError`` or ``PcopyError``."""

    def remove_job(self) -> None:
        """On rank 0: remove the records of the job, if there are any. Raise ``PcopyError``."""

    def close(self) -> None:
        """Release all resources; no records follow."""


class ThreadedTaskJournal:
    """Records which tasks one rank has spawned and which are done (facts), so that the job can be resumed. A thread
    writes the records to stable storage, after it has synced the files that the rank has written. Implements
    ``pcopy.engine.journal.TaskJournal``.

    The methods are called by the rank's main thread and do not wait for storage, except ``close``.
    """

    def __init__(self, collector: TaskRecordCollector, store: TaskRecordStore, sync: Callable[[], None]) -> None:
        """Create the journal of one rank.

        Args:
            collector: gathers spawned and done tasks until the next record is written.
            store: storage for the records.
            sync: brings all data that this rank has written to stable storage; raises ``OSError``.
        """
        self.durable_epoch = 0
        self.data_loss_reason: str | None = None
        """Reason why data that this rank has written are not on storage, or None. If there is one, the job has to stop.
        """
        self.warning: str | None = None
        """Message for the user that, and why, this rank cannot record its tasks any longer; None if there is none. The
        caller prints it and sets it to None.
        """
        self.has_failed = False
        self._collector = collector
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
    def needs_checkpoint(self) -> bool:
        """True if so many facts (tasks spawned and done) have been gathered in memory that they should be written
        now.
        """
        return not self._is_recording_over and self._collector.memory_bytes >= CHECKPOINT_CUT_AT_BYTES

    @property
    def must_wait_for_storage(self) -> bool:
        """True if so many facts (tasks spawned and done) are not on storage yet that the rank should begin no task for
        the moment.
        """
        return (
            not self._is_recording_over
            and self._collector.memory_bytes + self._pending_bytes >= WAIT_FOR_STORAGE_AT_BYTES
        )

    def record_initial_tasks(self, phase: int, tasks: Sequence[Task]) -> None:
        """On rank 0: keep ``tasks``, with which a new job begins in ``phase``, until the first record is stored; then
        the thread writes both.
        """
        self._base = phase, tuple(tasks)

    def record_spawned_task(self, task: Task) -> None:
        """Add to the next record that ``task`` was spawned."""
        if not self._is_recording_over:
            self._collector.add_spawned_task(task)

    def record_done_task(
        self, task: Task, counts: Sequence[int], completed: Sequence[TaskId], shares: TaskShares = ()
    ) -> None:
        """Add to the next record that ``task`` is done, with its ``counts`` (``shares`` are labelled parts of them),
        and that the tasks with the ids ``completed`` are done, too. Those had ended before, but their effect was
        only in memory until ``task`` used it.
        """
        if not self._is_recording_over:
            self._collector.add_done_task(task.id, counts, completed, shares)

    def end_epoch(self, epoch: int, phase: int) -> None:
        """Pass what was gathered since the last call to the thread, which stores it as the record of ``epoch``
        (numbered part of the run). ``phase`` is the current phase of this rank.
        """
        if self._is_recording_over:
            return
        self._collector.set_phase(phase)
        size = self._collector.memory_bytes
        self._pending_bytes += size
        self._queue_action(partial(self._store_record, self._collector.take_record(epoch), size))

    def abandon_records(self) -> None:
        """Stop recording, because a rank cannot record any longer, and let the thread remove the records of the job.
        Afterwards the thread sets ``durable_epoch`` to ``ABANDONED_EPOCH``.
        """
        self._is_abandoned = True
        self._queue_action(self._remove_job)

    def _queue_action(self, action: Callable[[], None]) -> None:
        """Let the thread run ``action`` after all earlier actions. The first call starts the thread."""
        self._actions.put(action)
        if self._thread is None:
            try:
                self._thread = BackgroundThread(self._run_actions)
            except OSError as error:  # no thread can be started
                self.stop_recording(error)
                self._run_remaining_actions()

    def _run_remaining_actions(self) -> None:
        """Run the queued actions in the caller's thread."""
        self._actions.put(None)
        self._run_actions()

    def check_thread(self) -> None:
        """If the thread has ended for lack of memory, stop recording, and run the remaining actions, which then write
        no records. Raise any other exception that has ended it.

        The caller calls this every few milliseconds, since the thread itself may be unable to report anything.
        """
        error = None if self._thread is None else self._thread.error
        if error is None:
            return
        if not isinstance(error, RESOURCE_EXCEPTIONS):
            raise error
        self.stop_recording(error)
        self._thread = None
        self._run_remaining_actions()

    def stop_recording(self, error: BaseException) -> None:
        """Stop recording because of ``error``, but let the job continue without a checkpoint."""
        if not self._is_abandoned:  # otherwise the job was removed on purpose, and the reason has been reported
            reason = resource_error_text(error) if isinstance(error, MemoryError) else error
            self.warning = f"no more checkpoints, the job goes on without and cannot be resumed: {reason}"
        self.has_failed = True

    def close(self, patience: float) -> bool:
        """Wait up to ``patience`` seconds until the thread has done all its actions, then close the store. Return False
        if the thread is still in a system call; the store then stays open.

        After False, the thread may still complete the record that it is writing. It does not begin another one, since
        rank 0 may be removing the job.
        """
        if self._thread is not None:
            self._actions.put(None)
            if not self._thread.join(patience):
                self._is_abandoned = True
                return False
            self.check_thread()
        self._store.close()
        return True

    def _run_actions(self) -> None:
        """Body of the thread: run the queued actions, until the queue yields None."""
        while (action := self._actions.get()) is not None:
            action()

    def _store_record(self, record: EpochTaskRecord, size: int) -> None:
        """Make ``record`` durable: first store the tasks with which the job begins, if they were not stored yet, then
        sync the data that this rank has written, then append ``record``. Runs in the thread.

        ``size`` is the memory in bytes that ``record`` took before it was packed. The tasks come first because other
        ranks wait for them and a sync may take long. That is safe, because they do not say that any task is done.
        """
        if not self._is_recording_over and self._store_initial_tasks() and self._sync_data() and not self._is_abandoned:
            self._append_record(record)
        if record.spooled is not None:
            record.spooled.file.close()
        self._pending_bytes -= size

    def _store_initial_tasks(self) -> bool:
        """Store the tasks with which the job begins, if there are any that were not stored yet; return False if that
        fails.
        """
        base, self._base = self._base, None
        return base is None or self._try_action_on_store(partial(self._store.store_initial_tasks, *base))

    def _sync_data(self) -> bool:
        """Bring the files that this rank has written to stable storage; return False if that fails."""
        try:
            self._sync()
        except RESOURCE_EXCEPTIONS as error:
            self.data_loss_reason = (
                f"{SYNC_FAILED_TEXT}: {getattr(error, 'strerror', None) or resource_error_text(error)}"
            )
        return not self.has_lost_data

    def _append_record(self, record: EpochTaskRecord) -> None:
        """Append ``record`` to the store. If that succeeds, its epoch (part of the run) becomes the durable one."""
        if self._try_action_on_store(partial(self._store.append, record)):
            self.durable_epoch = record.epoch

    def _try_action_on_store(self, action: Callable[[], None]) -> bool:
        """Call ``action``, which writes to the store; on an error stop recording and return False."""
        try:
            action()
        except Exception as error:
            self.stop_recording(error)
        return not self.has_failed

    def _remove_job(self) -> None:
        """Remove the records of the job, which are not valid any longer; ignore errors."""
        with suppress(Exception):  # the job directory is unusable and has been reported
            self._store.remove_job()
        self.durable_epoch = ABANDONED_EPOCH
