"""A rank's journal: facts are gathered in memory, made durable by a thread of their own, and then recorded.

The order is what a checkpoint rests on: first the facts are gathered, then the data that they tell of goes to stable
storage, then the record is appended. Rule: once the data of one cut could not be brought there, nothing later is
recorded, since the kernel reports a lost write once only; the job has to stop. If the job directory
can't be written, only the checkpoint is lost: the job goes on without one, on all ranks, and its records are removed.
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
"""Bytes of facts after which a rank cuts, whatever the time."""

FACTS_BEFORE_WAIT = 64 << 20
"""Bytes of facts, on their way to storage and after, above which no new task is begun."""


class Store(Protocol):
    """Where records go; used by the journal's thread only."""

    def begin(self, phase: int, tasks: Sequence[Task]) -> None:
        """At rank 0, before the first record of a new job: makes it what there is to resume."""

    def append(self, record: Record) -> None:
        """Makes the record durable; raises ``OSError`` or ``PcopyError``."""

    def withdraw(self) -> None:
        """At rank 0: removes the job, if it is there; raises ``PcopyError``."""

    def close(self) -> None:
        """No more records."""


class FactJournal:
    """Fills ``pcopy.engine.journal.Journal``."""

    def __init__(self, window: Window, store: Store, sync: Callable[[], None]) -> None:
        """``sync`` brings all that this rank has written to stable storage; raises ``OSError``."""
        self.durable = 0
        self.data_lost: str | None = None
        """Why what was written is not on storage, once that is so: the job has to stop."""
        self.warning: str | None = None
        """Why this rank can record nothing any more, once that is so: worth a notice."""
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
        """Is nothing recorded any more?"""
        return self.is_lost or self.has_failed or self._given_up

    @property
    def is_lost(self) -> bool:
        return self.data_lost is not None

    @property
    def wants_cut(self) -> bool:
        return not self._is_over and self._window.size >= FACTS_BEFORE_CUT

    @property
    def is_full(self) -> bool:
        return not self._is_over and self._window.size + self._under_way >= FACTS_BEFORE_WAIT

    def base(self, phase: int, tasks: Sequence[Task]) -> None:
        self._base = phase, tuple(tasks)

    def spawned(self, task: Task) -> None:
        if not self._is_over:
            self._window.spawned(task)

    def done(self, task: Task, counts: Sequence[int], settled: Sequence[TaskId], shares: Sequence[Share] = ()) -> None:
        if not self._is_over:
            self._window.done(task.id, counts, settled, shares)

    def cut(self, epoch: int, phase: int) -> None:
        """Hands the facts over to the thread."""
        if self._is_over:
            return
        self._window.begun(phase)
        size = self._window.size
        self._under_way += size
        self._do(partial(self._record, self._window.capture(epoch), size))

    def give_up(self) -> None:
        self._given_up = True
        self._do(self._withdraw)

    def _do(self, action: Callable[[], None]) -> None:
        """Leaves ``action`` to the thread, which is started for the first one."""
        self._jobs.put(action)
        if self._thread is None:
            try:
                self._thread = Beside(self._do_all)
            except OSError as error:  # no thread is to be had: what is left to do is done here
                self.fail(error)
                self._jobs.put(None)
                self._do_all()

    def fail(self, error: Exception) -> None:
        """From now on nothing is recorded. Whatever it is, it must not end the copy."""
        if not self._given_up:  # else what failed is that the job has gone, and somebody has told why
            self.warning = f"no more checkpoints, the job goes on without and cannot be resumed: {error}"
        self.has_failed = True

    def close(self, patience: float) -> bool:
        """Ends the thread, which has ``patience`` seconds; a call to the system that takes longer is left behind.

        False then: what it is about may be on record yet. But what it would begin after that is not: rank 0 may be
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
        while (action := self._jobs.get()) is not None:
            action()

    def _record(self, record: Record, size: int) -> None:
        """Other ranks wait for the base, which claims nothing, and a sync may take long: so the base goes first."""
        if not self._is_over and self._begin() and self._sync_data() and not self._given_up:
            self._append(record)
        self._under_way -= size

    def _begin(self) -> bool:
        base, self._base = self._base, None
        return base is None or self._store_safely(partial(self._store.begin, *base))

    def _sync_data(self) -> bool:
        try:
            self._sync()
        except HINDRANCES as error:
            self.data_lost = f"{NOT_SYNCED}: {getattr(error, 'strerror', None) or hindrance(error)}"
        return not self.is_lost

    def _append(self, record: Record) -> None:
        if self._store_safely(partial(self._store.append, record)):
            self.durable = record.epoch

    def _store_safely(self, action: Callable[[], None]) -> bool:
        try:
            action()
        except Exception as error:
            self.fail(error)
        return not self.has_failed

    def _withdraw(self) -> None:
        with suppress(Exception):  # as bad as the directory is, there is nothing more to be done about it
            self._store.withdraw()
        self.durable = LAST_EPOCH
