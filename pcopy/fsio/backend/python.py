"""The Python backend: each ``poll`` processes a few rows of the oldest batch, in the calling thread.

A row is one item of a batch. The number of rows per ``poll`` is small, so that a rank can process messages in between.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Generic, Protocol, TypeVar, cast

from pcopy.fsio.backend.batches import (
    BatchResult,
    BenchmarkCallsBatch,
    CompareXattrsBatch,
    CopySmallFilesBatch,
    CreateSmallFilesBatch,
    FileOperationBatch,
    ListNamesBatch,
    ReadSmallFilesBatch,
    RemoveItemsBatch,
    SetMetadataBatch,
    SetUniformMetadataBatch,
    StatNamesBatch,
    SyncDirectoriesBatch,
)
from pcopy.fsio.backend.columns import OutcomeCode
from pcopy.fsio.backend.copy_rows import CopySmallFilesBatchProcessor
from pcopy.fsio.backend.interface import BackendSettings, BatchTicket, ThreadPool, WakeDescriptor
from pcopy.fsio.backend.item_rows import (
    CompareXattrsBatchProcessor,
    ListNamesBatchProcessor,
    ReadSmallFilesBatchProcessor,
    RemoveItemsBatchProcessor,
    StatNamesBatchProcessor,
    sync_directories,
)
from pcopy.fsio.backend.plan_copies import PlanCopiesBatch, PlanCopiesResult, file_copy_plans
from pcopy.fsio.directories import PinnedDescriptors, decline_to_open_directory

FILES_PER_POLL = 8
"""Number of files that one ``poll`` copies, reads, creates, changes or removes."""

NAMES_PER_POLL = 32
"""Number of names for which one ``poll`` reads the status, compares attributes, or makes one call of a benchmark."""

Result = TypeVar("Result")


class BatchProcessor(Protocol):
    """Protocol of an object that processes the rows (items) of one batch in Python."""

    @property
    def result(self) -> BatchResult:
        """The result of the batch, which ``run`` fills in."""

    @property
    def is_target_full(self) -> bool:
        """True if the target has no space left, so that the operation would fail for all items that follow."""

    def run(self, start: int, end: int) -> None:
        """Process the items (rows) from the index ``start`` up to, but not including, ``end``, and set the verdict
        (code, error, bytes, duration) of each.
        """


class FinishedBatchTicket(Generic[Result]):
    """The ticket (handle) of a batch that was carried out completely during ``submit_batch``."""

    is_done = True
    is_cut_short = False

    def __init__(self, result: Result) -> None:
        self.result = result

    def cancel(self) -> None:
        """Do nothing, since all items of the batch have been processed."""


class PythonBatchTicket(Generic[Result]):
    """The ticket (handle) of a batch in progress: each call of ``advance_batch`` processes the next ``step`` rows
    (items).
    """

    def __init__(self, work: BatchProcessor, step: int, descriptors: tuple[int, ...], pins: PinnedDescriptors) -> None:
        self.is_done = False
        self.is_cut_short = False
        self._work = work
        self._verdicts = work.result.verdicts
        self._rows_per_step = step
        self._next_row = 0
        self._descriptors = descriptors
        self._pins = pins
        for descriptor in descriptors:
            pins.pin_descriptor(descriptor)

    @property
    def result(self) -> Result:
        result: Any = self._work.result
        return cast(Result, result)

    def advance_batch(self) -> None:
        """Process the next ``step`` rows (items) of the batch.

        Errors of single items are stored in their verdicts. If another exception is raised (such as no memory), the
        ticket is cancelled and the exception goes to the caller.
        """
        rows = len(self._verdicts)
        start, self._next_row = self._next_row, min(self._next_row + self._rows_per_step, rows)
        try:
            self._work.run(start, self._next_row)
        except BaseException:  # not an error of a row; for example, no memory
            self.cancel()
            raise
        if self._work.is_target_full and OutcomeCode.PENDING in self._verdicts.codes:
            self.cancel()
        elif self._next_row == rows:
            self._mark_batch_done()

    def cancel(self) -> None:
        """Cancel the batch: give all rows (items) that have not been started the code ``CANCELLED``."""
        if not self.is_done:
            self.is_cut_short = True
            codes = self._verdicts.codes
            codes[:] = bytes(code or OutcomeCode.CANCELLED for code in codes)
            self._mark_batch_done()

    def _mark_batch_done(self) -> None:
        self.is_done = True
        for descriptor in self._descriptors:
            self._pins.unpin_descriptor(descriptor)


class PythonBackend:
    """The Python backend: processes batches of file operations with Python's own system calls. It implements the
    protocol ``pcopy.fsio.backend.interface.FileOperationBackend``, which describes the methods that have no description
    here.

    It has no threads: ``poll`` processes some rows (items) of the oldest ticket. ``PlanCopiesBatch`` and
    ``SyncDirectoriesBatch`` are carried out during ``submit_batch``.
    """

    name = "python"
    has_directory_batches = False
    wake: WakeDescriptor | None = None
    pool: ThreadPool | None = None
    runs_in_poll = True

    def __init__(self, settings: BackendSettings) -> None:
        self._settings = settings
        self._digest_size = len(settings.digest(b"")) if settings.digest is not None else 0
        self.pins = PinnedDescriptors()
        self._tickets: list[PythonBatchTicket[object]] = []

    open_directory = staticmethod(decline_to_open_directory)

    def new_column_sums(self, bounds: Sequence[int]) -> None:
        """Return None: this backend does not compute sums over columns."""

    def submit_batch(self, batch: FileOperationBatch[Result]) -> BatchTicket[Result]:
        if isinstance(batch, PlanCopiesBatch):
            decided: Any = PlanCopiesResult(file_copy_plans(batch.policy, batch.sources, batch.targets))
            return FinishedBatchTicket(decided)
        if isinstance(batch, SyncDirectoriesBatch):
            synced: Any = sync_directories(batch)
            return FinishedBatchTicket(synced)
        work, step = self._batch_processor(batch)
        ticket: PythonBatchTicket[Any] = PythonBatchTicket(work, step, batch.directory_descriptors, self.pins)
        self._tickets.append(ticket)
        return ticket

    def _batch_processor(self, batch: FileOperationBatch[Any]) -> tuple[BatchProcessor, int]:
        """Return the object that processes the rows (items) of ``batch``, and the number of rows to process in each
        ``poll``.
        """
        settings, size = self._settings, self._digest_size
        work: BatchProcessor
        match batch:
            case ListNamesBatch():
                work, step = ListNamesBatchProcessor(batch), 1
            case StatNamesBatch():
                work, step = StatNamesBatchProcessor(batch), NAMES_PER_POLL
            case CopySmallFilesBatch():
                work, step = CopySmallFilesBatchProcessor(settings, batch, size), FILES_PER_POLL
            case ReadSmallFilesBatch():
                work, step = ReadSmallFilesBatchProcessor(settings, batch, size), FILES_PER_POLL
            case RemoveItemsBatch():
                work, step = RemoveItemsBatchProcessor(batch), FILES_PER_POLL
            case SetMetadataBatch() | SetUniformMetadataBatch():
                from pcopy.fsio.backend.metadata_rows import (
                    metadata_batch_processor,  # imported here because copies do not need it
                )

                work, step = metadata_batch_processor(batch), FILES_PER_POLL
            case CompareXattrsBatch():
                work, step = CompareXattrsBatchProcessor(settings, batch), NAMES_PER_POLL
            case CreateSmallFilesBatch():
                from pcopy.fsio.backend.create_rows import (
                    CreateSmallFilesBatchProcessor,  # imported here because copies do not need it
                )

                work, step = CreateSmallFilesBatchProcessor(settings, batch), FILES_PER_POLL
            case BenchmarkCallsBatch():
                from pcopy.fsio.backend.trial_rows import (
                    BenchmarkCallsBatchProcessor,  # imported here because copies do not need it
                )

                work, step = BenchmarkCallsBatchProcessor(batch), NAMES_PER_POLL
            case _:
                raise TypeError(f"{type(batch).__name__}: the Python backend does not support this batch")
        return work, step

    def poll(self) -> list[BatchTicket[Any]]:
        waiting = self._tickets
        try:
            for ticket in waiting:
                if not ticket.is_done:
                    ticket.advance_batch()
                    break
        finally:
            done: list[BatchTicket[Any]] = [ticket for ticket in waiting if ticket.is_done]
            waiting[:] = [ticket for ticket in waiting if not ticket.is_done]
        return done

    def close(self) -> None:
        while self._tickets:
            self._tickets.pop().cancel()
