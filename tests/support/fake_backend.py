"""Backends that behave like one with many threads: they complete tickets in any order, late, and a few rows at a time.

The Python backend does the work. ``FakeBackend`` takes the order and the time from a seed. ``LateBackend`` works in
real time: its threads wake the waiting rank.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from random import Random
from typing import Any, Protocol, TypeVar

from pcopy.fsio.backend.batches import FileOperationBatch
from pcopy.fsio.backend.interface import BackendSettings, BatchTicket, ThreadPool, WakeDescriptor
from pcopy.fsio.backend.python import BatchProcessor, PythonBackend, PythonBatchTicket
from pcopy.fsio.directories import PinnedDescriptors, decline_to_open_directory

Result = TypeVar("Result")

MOST_POLLS = 4
"""Maximum number of polls before a ticket starts, and again before its completion is reported."""


class SettableWake(WakeDescriptor, Protocol):
    """A wake event as its backend uses it."""

    def set(self) -> None:
        """Signal that a poll will make progress."""

    def close(self) -> None:
        """Close the event; no caller waits for it afterwards."""


class EventWake:
    """A wake event by eventfd(2). Any thread may set it."""

    def __init__(self) -> None:
        self._descriptor = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._lock = threading.Lock()

    def fileno(self) -> int:
        return self._descriptor

    def set(self) -> None:
        """Make it readable."""
        with self._lock:
            if self._descriptor >= 0:
                os.eventfd_write(self._descriptor, 1)

    def clear(self) -> None:
        with suppress(BlockingIOError):
            os.eventfd_read(self._descriptor)

    def close(self) -> None:
        with self._lock:
            os.close(self._descriptor)
            self._descriptor = -1


class _Uneven(PythonBackend):
    """A Python backend that processes one to three rows at a time."""

    def __init__(self, settings: BackendSettings, random: Random) -> None:
        super().__init__(settings)
        self._random = random

    def _batch_processor(self, batch: FileOperationBatch[Any]) -> tuple[BatchProcessor, int]:
        return super()._batch_processor(batch)[0], self._random.randint(1, 3)


class FakeTicket:
    """A ticket with its own backend."""

    def __init__(self, inner: _Uneven, ticket: BatchTicket[Any], random: Random) -> None:
        self._inner = inner
        self._ticket = ticket
        self._random = random
        self._until_begun = random.randrange(MOST_POLLS)
        self._until_told = random.randrange(MOST_POLLS)
        self.is_done = False

    @property
    def result(self) -> Any:
        return self._ticket.result

    @property
    def is_cut_short(self) -> bool:
        return self._ticket.is_cut_short

    def advance(self) -> bool:
        """Make progress; return True if the ticket is done."""
        if self._until_begun:
            self._until_begun -= 1
        elif not self._ticket.is_done:
            self._inner.poll()
        elif self._until_told:
            self._until_told -= 1
        else:
            self._inner.close()
            self.is_done = True
        return self.is_done

    def cancel(self) -> None:
        """Cancel the ticket; rows that have started are completed."""
        if self._ticket.is_done or self.is_done:
            return
        for _ in range(self._random.randrange(3)):
            self._inner.poll()
        self._ticket.cancel()


class FakeBackend:
    """Implements ``pcopy.fsio.backend.interface.FileOperationBackend``."""

    pool: ThreadPool | None = None
    runs_in_poll = False
    open_directory = staticmethod(decline_to_open_directory)
    has_directory_batches = False

    def __init__(self, settings: BackendSettings, seed: int = 1, wake: SettableWake | None = None) -> None:
        self._settings = settings
        self._random = Random(seed)
        self._under_way: dict[FakeTicket, tuple[int, ...]] = {}
        self.pins = PinnedDescriptors()
        self.wake: SettableWake = wake or EventWake()

    def new_column_sums(self, bounds: Sequence[int]) -> None:
        """Return None: this backend has no column sums."""

    def submit_batch(self, batch: FileOperationBatch[Result]) -> BatchTicket[Result]:
        inner = _Uneven(self._settings, self._random)
        ticket = FakeTicket(inner, inner.submit_batch(batch), self._random)
        for descriptor in batch.directory_descriptors:
            self.pins.pin_descriptor(descriptor)
        self._under_way[ticket] = batch.directory_descriptors
        self.wake.set()
        return ticket

    def poll(self) -> list[BatchTicket[Any]]:
        """Make progress with some tickets."""
        done = [ticket for ticket in self._under_way if self._random.random() < 0.5 and ticket.advance()]
        for ticket in done:
            for descriptor in self._under_way.pop(ticket):
                self.pins.unpin_descriptor(descriptor)
        if self._under_way:
            self.wake.set()
        return [*done]

    def close(self) -> None:
        for ticket in self._under_way:
            ticket.cancel()
        while self._under_way:
            self.poll()
        self.wake.close()


class LateBackend(PythonBackend):
    """A backend that processes some rows of a ticket in each poll that follows a wake-up by one of its threads."""

    runs_in_poll = False
    has_directory_batches = False

    def __init__(self, settings: BackendSettings, seed: int = 1, latest: float = 0.002) -> None:
        super().__init__(settings)
        self.wake = self._event = EventWake()
        self.most = 0
        """Maximum number of active tickets."""
        self._random = Random(seed)
        self._latest = latest
        self._due: deque[PythonBatchTicket[Any]] = deque()

    def submit_batch(self, batch: FileOperationBatch[Result]) -> BatchTicket[Result]:
        ticket = super().submit_batch(batch)
        if isinstance(ticket, PythonBatchTicket):
            self._later(ticket)
            self.most = max(self.most, len(self._tickets))
        return ticket

    def _later(self, ticket: PythonBatchTicket[Any]) -> None:
        timer = threading.Timer(self._random.random() * self._latest, self._wake_for, (ticket,))
        timer.daemon = True
        timer.start()

    def _wake_for(self, ticket: PythonBatchTicket[Any]) -> None:
        self._due.append(ticket)
        self._event.set()

    def poll(self) -> list[BatchTicket[Any]]:
        while self._due:
            ticket = self._due.popleft()
            if not ticket.is_done:
                ticket.advance_batch()
            if not ticket.is_done:
                self._later(ticket)
        done: list[BatchTicket[Any]] = [ticket for ticket in self._tickets if ticket.is_done]
        self._tickets[:] = [ticket for ticket in self._tickets if not ticket.is_done]
        return done

    def close(self) -> None:
        super().close()
        self._event.close()
