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

from pcopy.beside import Beside
from pcopy.checkpoint.record import Record, Window
from pcopy.engine.messages import LAST_EPOCH
from pcopy.engine.task import Share, Task, TaskId
from pcopy.errors import HINDRANCES, NOT_SYNCED, hindrance

FACTS_BEFORE_CUT = 32 << 20
"""Bytes of gathered facts at which a rank cuts, whatever the time."""

FACTS_BEFORE_WAIT = 64 << 20
"""Bytes of facts that are not on storage yet above which no new task is begun."""


class Store(Protocol):
    """Storage for the records of one rank. Used by the journal's thread only."""

    def begin(self, phase: int, tasks: Sequence[Task]) -> None:
        """On rank 0, before the first record of a new job: write ``tasks`` as the base from which it can be resumed."""

    def append(self, record: Record) -> None:
        """Append the record durably. Raise ``OSError`` or ``PcopyError``."""

    def withdraw(self) -> None:
        """On rank 0: remove the job, if it was stored. Raise ``PcopyError``."""

    def close(self) -> None:
        """Close the store; no records follow."""


class FactJournal:
    """Implementation of ``pcopy.engine.journal.Journal`` that stores records durably."""

    def __init__(self, window: Window, store: Store, sync: Callable[[], None]) -> None:
        """Create the journal.

        Args:
            window: gathers the facts between two cuts.
            store: storage for the records.
            sync: brings all data that this rank has written to stable storage; raises ``OSError``.
        """
        self.durable = 0
        self.data_lost: str | None = None
        """Reason why written data are not on storage, or None. If it is set, the job has to stop."""
        self.warning: str | None = None
        """Reason why this rank cannot record facts any longer, or None. Reported to the user as a notice."""
        self.has_failed = False
        self._window = window
        self._store = store
        self._sync = sync
        self._base: tuple[int, tuple[Task, ...]] | None = None
        self._jobs: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._under_way = 0
        self._thread: Beside | None = None
        self._given_up = False

    @property
    def _is_over(self) -> bool:
        """True if nothing is recorded any longer."""
        return self.is_lost or self.has_failed or self._given_up

    @property
    def is_lost(self) -> bool:
        """True if written data could not be brought to stable storage."""
        return self.data_lost is not None

    @property
    def wants_cut(self) -> bool:
        """True if so many facts have been gathered that they should be cut now."""
        return not self._is_over and self._window.size >= FACTS_BEFORE_CUT

    @property
    def is_full(self) -> bool:
        """True if so many facts are not on storage yet that no task should be begun."""
        return not self._is_over and self._window.size + self._under_way >= FACTS_BEFORE_WAIT

    def base(self, phase: int, tasks: Sequence[Task]) -> None:
        """On rank 0: keep the tasks with which a new job begins until the first record is stored."""
        self._base = phase, tuple(tasks)

    def spawned(self, task: Task) -> None:
        """Gather the fact that ``task`` was spawned."""
        if not self._is_over:
            self._window.spawned(task)

    def done(self, task: Task, counts: Sequence[int], settled: Sequence[TaskId], shares: Sequence[Share] = ()) -> None:
        """Gather the fact that ``task`` and the tasks in ``settled`` are done, with the counts."""
        if not self._is_over:
            self._window.done(task.id, counts, settled, shares)

    def cut(self, epoch: int, phase: int) -> None:
        """Pass the facts gathered since the last cut to the thread, as the record of ``epoch``."""
        if self._is_over:
            return
        self._window.begun(phase)
        size = self._window.size
        self._under_way += size
        self._do(partial(self._record, self._window.capture(epoch), size))

    def give_up(self) -> None:
        """Stop recording; let the thread remove the stored job."""
        self._given_up = True
        self._do(self._withdraw)

    def _do(self, action: Callable[[], None]) -> None:
        """Pass ``action`` to the thread, and start the thread for the first one."""
        self._jobs.put(action)
        if self._thread is None:
            try:
                self._thread = Beside(self._do_all)
            except OSError as error:  # no thread can be started: run the queued actions here
                self.fail(error)
                self._jobs.put(None)
                self._do_all()

    def fail(self, error: Exception) -> None:
        """Stop recording because of ``error``. Errors of the journal must not end the copy, whatever they are."""
        if not self._given_up:  # otherwise the job was removed on purpose, and the reason has been reported
            self.warning = f"no more checkpoints, the job goes on without and cannot be resumed: {error}"
        self.has_failed = True

    def close(self, patience: float) -> bool:
        """End the thread within ``patience`` seconds, then close the store; return False if the thread is still in a
        system call.

        After False, that call may still complete its record. The thread does not begin another one, since rank 0 may be
        removing the job.
        """
        if self._thread is not None:
            self._jobs.put(None)
            if not self._thread.is_over(patience):
                self._given_up = True
                return False
        self._store.close()
        return True

    def _do_all(self) -> None:
        """Run the queued actions until the queue yields None. Body of the thread."""
        while (action := self._jobs.get()) is not None:
            action()

    def _record(self, record: Record, size: int) -> None:
        """Store the base if it has not been stored, sync the data, and append ``record``.

        The base comes first because other ranks wait for it, a sync may take long, and the base does not claim that any
        task is done.
        """
        if not self._is_over and self._begin() and self._sync_data() and not self._given_up:
            self._append(record)
        self._under_way -= size

    def _begin(self) -> bool:
        """Store the base if there is one; return False if that fails."""
        base, self._base = self._base, None
        return base is None or self._store_safely(partial(self._store.begin, *base))

    def _sync_data(self) -> bool:
        """Bring the data of this rank to stable storage; return False if that fails."""
        try:
            self._sync()
        except HINDRANCES as error:
            self.data_lost = f"{NOT_SYNCED}: {getattr(error, 'strerror', None) or hindrance(error)}"
        return not self.is_lost

    def _append(self, record: Record) -> None:
        """Append ``record``; its epoch is durable then."""
        if self._store_safely(partial(self._store.append, record)):
            self.durable = record.epoch

    def _store_safely(self, action: Callable[[], None]) -> bool:
        """Run ``action`` of the store; on an error stop recording and return False."""
        try:
            action()
        except Exception as error:
            self.fail(error)
        return not self.has_failed

    def _withdraw(self) -> None:
        """Remove the stored job. Errors are ignored."""
        with suppress(Exception):  # the job directory is unusable and has been reported
            self._store.withdraw()
        self.durable = LAST_EPOCH
