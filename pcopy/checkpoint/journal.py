"""A rank's journal: facts are gathered in memory, made durable by a thread of their own, and then recorded.

The order is what a checkpoint rests on: first the facts are captured, then the data that they speak of is brought to
stable storage, then the record is appended. Rule: once the data of one cut could not be brought there, nothing later is
recorded, since the kernel reports a lost write once only; the job has to stop. A job directory that can't be written
costs the checkpoint only: the job goes on without.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Sequence
from typing import Protocol

from pcopy.checkpoint.record import Record, Window
from pcopy.engine.task import Task, TaskId

FACTS_BEFORE_CUT = 32 << 20
"""Bytes of facts after which a rank cuts, whatever the time."""

FACTS_BEFORE_WAIT = 64 << 20
"""Bytes of facts, on their way to storage and after, above which no new task is begun."""

FOREVER = 1 << 62
"""The durable epoch of a rank that keeps no journal any more: nobody shall wait for it."""


class Store(Protocol):
    """Where records go; used by the journal's thread only."""

    def begin(self, phase: int, tasks: Sequence[Task]) -> None:
        """At rank 0, before the first record of a new job: makes it what there is to resume."""

    def append(self, record: Record) -> None:
        """Makes the record durable; raises ``OSError`` or ``PcopyError``."""

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
        """Why there is no checkpoint any more, once that is so: worth a notice."""
        self._window = window
        self._store = store
        self._sync = sync
        self._base: tuple[int, tuple[Task, ...]] | None = None
        self._cuts: queue.SimpleQueue[tuple[Record, int] | None] = queue.SimpleQueue()
        self._under_way = 0
        self._thread: threading.Thread | None = None
        self._over = False

    @property
    def is_lost(self) -> bool:
        return self.data_lost is not None

    @property
    def wants_cut(self) -> bool:
        return not self._over and self._window.size >= FACTS_BEFORE_CUT

    @property
    def is_full(self) -> bool:
        return not self._over and self._window.size + self._under_way >= FACTS_BEFORE_WAIT

    def base(self, phase: int, tasks: Sequence[Task]) -> None:
        self._base = phase, tuple(tasks)

    def spawned(self, task: Task) -> None:
        if not self._over:
            self._window.spawned(task)

    def done(self, task: Task, counts: Sequence[int], settled: Sequence[TaskId]) -> None:
        if not self._over:
            self._window.done(task.id, counts, settled)

    def cut(self, epoch: int, phase: int) -> None:
        """Hands the facts over to the thread, which is started with the first cut."""
        if self._over:
            return
        self._window.begun(phase)
        size = self._window.size
        self._under_way += size
        self._cuts.put((self._window.capture(epoch), size))
        if self._thread is None:
            self._thread = threading.Thread(target=self._record_all, name="journal", daemon=True)
            self._thread.start()

    def close(self, patience: float) -> None:
        """Ends the thread, which has ``patience`` seconds; a call to the system that takes longer is left behind."""
        if self._thread is not None:
            self._cuts.put(None)
            self._thread.join(patience)
        if self._thread is None or not self._thread.is_alive():
            self._store.close()

    def _record_all(self) -> None:
        while (cut := self._cuts.get()) is not None:
            record, size = cut
            if not self._over:
                self._record(record)
            self._under_way -= size

    def _record(self, record: Record) -> None:
        try:
            self._sync()
        except OSError as error:
            self.data_lost = f"the destination could not be synced: {error.strerror}"
            self._over = True
            return
        try:
            if self._base is not None:
                self._store.begin(*self._base)
                self._base = None
            self._store.append(record)
        except Exception as error:  # whatever it is, it must not end the copy
            self.warning = f"no more checkpoints, the job goes on without: {error}"
            self.durable = FOREVER
            self._over = True
        else:
            self.durable = record.epoch
