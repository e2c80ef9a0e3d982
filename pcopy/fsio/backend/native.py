"""The C backend: processes common cases in C, and leaves all others, row by row, to the code of the Python backend.

A row is one item of a batch; the C code is in ``pcopy/fsio/backend/native``, with the interface backend.h. If it gives
a row the code ``DEFERRED_CODE``, it has changed nothing: the Python code for the same batch then processes that row,
and stores the outcome in the same result. So rare cases are implemented only once, in Python.

Without threads (``pcopy.fsio.backend.native_pool``), rows are processed in ``poll``.
"""

from __future__ import annotations

import errno
import os
from array import array
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Generic, TypeVar, cast

from pcopy.fsio.attribute_names import ACCESS_ACL_XATTR, XATTRS_OF_LUSTRE_FILES, XattrKind, xattr_kind
from pcopy.fsio.attributes import is_xattr_copied
from pcopy.fsio.backend import _native
from pcopy.fsio.backend.batches import (
    FileOperationBatch,
    FindItemsWithoutXattrsBatch,
    ListNamesBatch,
    ListNamesResult,
    SyncDirectoriesBatch,
)
from pcopy.fsio.backend.columns import BatchOutcomeColumns, OutcomeCode
from pcopy.fsio.backend.interface import BackendSettings, BatchTicket
from pcopy.fsio.backend.item_rows import sync_directories
from pcopy.fsio.backend.native_batches import DEFERRED_CODE, NativeBatch, NativeBatchWithoutFallback, native_batch
from pcopy.fsio.backend.native_pool import NativeThreadPool
from pcopy.fsio.backend.plan_copies import PlanCopiesBatch, PlanCopiesResult, file_copy_plans
from pcopy.fsio.backend.python import FILES_PER_POLL, BatchProcessor, FinishedBatchTicket
from pcopy.fsio.directories import OpenedDirectory, PinnedDescriptors, listing_problem

if TYPE_CHECKING:
    from pcopy.fsio.backend.native_tally import NativeColumnSums

_ffi, _lib = _native.ffi, _native.lib

POLL_NANOSECONDS = 2_000_000
"""Time, in nanoseconds, for which one ``poll`` processes rows; then the rank processes messages."""

_MAX_NAME_BYTES = 256
"""Largest number of bytes that one name takes in a listing, including the slash that follows it."""

_XATTR_PREFIXES_LEFT_TO_PYTHON = (b"trusted.pcopy.", b"user.pcopy.", os.fsencode(ACCESS_ACL_XATTR))
"""Prefixes of extended attributes that the C code leaves to Python: pcopy's own marks of incomplete files, and the
access ACL, on which the mode depends of a copy without the ACL.
"""

Result = TypeVar("Result")


class EventWakeDescriptor:
    """A descriptor, from eventfd(2), that becomes readable when ``poll`` of the C backend has something to do, so that
    a caller can wait for that with select(2).
    """

    def __init__(self) -> None:
        self._descriptor = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)

    def fileno(self) -> int:
        return self._descriptor

    def make_readable(self) -> None:
        """Make the descriptor readable."""
        os.eventfd_write(self._descriptor, 1)

    def clear(self) -> None:
        try:
            os.eventfd_read(self._descriptor)
        except BlockingIOError:
            return

    def close(self) -> None:
        os.close(self._descriptor)


class NativeBatchTicket(Generic[Result]):
    """The ticket (handle) of a batch in the C backend: first C processes its rows (items), then Python processes those
    that C has deferred.
    """

    def __init__(self, backend: NativeBackend, batch: FileOperationBatch[Any], rows: NativeBatch) -> None:
        self.is_done = False
        self.is_cut_short = False
        self._backend = backend
        self._descriptors = batch.directory_descriptors
        self._rows = rows
        self._verdicts = rows.result.verdicts
        self._work: BatchProcessor | None = None
        self._deferred_rows: list[int] = []
        self._is_cancelled = False
        for descriptor in self._descriptors:
            backend.pins.pin_descriptor(descriptor)

    @property
    def result(self) -> Result:
        result: Any = self._rows.result
        return cast(Result, result)

    @property
    def has_deferred_rows(self) -> bool:
        """True if the C code is done with the batch, and rows that it left to Python remain to be processed."""
        return not self.is_done and self._work is not None

    def advance_batch(self) -> None:
        """Record how far the C code has processed the batch. When C is done with the batch, process in Python some of
        the rows that it deferred.
        """
        if self._work is None:
            batch = self._rows.batch
            is_done = _lib.pk_is_done(batch)
            self._verdicts.moved = _lib.pk_moved(batch)  # read after pk_is_done, or the last rows might be missing
            if not is_done:
                return
            self._prepare_deferred_rows(batch)
        rows, self._deferred_rows = self._deferred_rows[:FILES_PER_POLL], self._deferred_rows[FILES_PER_POLL:]
        try:
            for row in rows:
                self._work.run(row, row + 1)  # type: ignore[union-attr]
        except BaseException:  # not an error of a row; for example, no memory
            self.cancel()
            raise
        if self._work is not None and self._work.is_target_full and OutcomeCode.PENDING in self._verdicts.codes:
            self.cancel()
        elif not self._deferred_rows:
            self.mark_batch_done()

    def _prepare_deferred_rows(self, batch: Any) -> None:
        """Complete the result when the C code is done with ``batch``, a C structure, and create the Python object that
        processes the rows (items) which C left to Python.

        If this raises an exception, the ticket is unchanged and the next ``advance_batch`` tries again.
        """
        codes = self._verdicts.codes
        self.is_cut_short = bool(batch.cancelled)
        if DEFERRED_CODE in codes:
            self._backend.classify_unknown_xattrs()
        self._rows.fill_in_batch_result()
        if DEFERRED_CODE in codes:
            self.is_cut_short = self.is_cut_short or self._is_cancelled
            deferred = [row for row, code in enumerate(codes) if code == DEFERRED_CODE]
            if not self.is_cut_short:
                self._work = self._rows.make_row_processor()
                self._deferred_rows = deferred
            for row in deferred:
                codes[row] = OutcomeCode.CANCELLED if self.is_cut_short else OutcomeCode.PENDING
        _lib.pk_release(batch)

    def cancel(self) -> None:
        """Cancel the batch: no more rows (items) of it are started, neither in C nor in Python."""
        if self.is_done:
            return
        if self._work is None:
            self._is_cancelled = True
            _lib.pk_cancel(self._backend.handle, self._rows.batch)
            self.advance_batch()
            return
        self.is_cut_short = True
        codes = self._verdicts.codes
        codes[:] = bytes(code or OutcomeCode.CANCELLED for code in codes)
        self._deferred_rows.clear()
        self.mark_batch_done()

    def mark_batch_done(self) -> None:
        """Mark the ticket as done, and release its directory descriptors so that they may be closed."""
        if not self.is_done:
            self.is_done = True
            for descriptor in self._descriptors:
                self._backend.pins.unpin_descriptor(descriptor)


class NativeBackend:
    """The C backend: processes batches of file operations in C, with or without threads. It implements the protocol
    ``pcopy.fsio.backend.interface.FileOperationBackend``, which describes the methods that have no description here.
    """

    name = "c"
    has_directory_batches = True

    def __init__(self, settings: BackendSettings) -> None:
        """Create the backend, without threads.

        Raise ``MemoryError``, or ``OSError`` if there is no descriptor for ``wake``.
        """
        self._settings = settings
        self._digest_size = len(settings.digest(b"")) if settings.digest is not None else 0
        self.pins = PinnedDescriptors()
        self.wake = EventWakeDescriptor()
        self._algorithm: int = _lib.pk_find_digest(settings.hash_name.encode()) if settings.hash_name else 0
        digest = _ffi.new("pk_digest *", (self._digest_size, self._algorithm, settings.block_size))
        self.handle: Any = _lib.pk_open(self.wake.fileno(), digest[0])
        if self.handle == _ffi.NULL:
            raise MemoryError
        self.pool = NativeThreadPool(self.handle)
        self._tickets: list[NativeBatchTicket[Any]] = []
        self._unknown_xattr = _ffi.new("char[256]")
        # Make the names of Lustre's attributes known to C in advance. Otherwise C would defer all files of the first
        # batches: it learns one unknown name per batch.
        for name in XATTRS_OF_LUSTRE_FILES:
            _lib.pk_learn(self.handle, name, self._xattr_copy_method(name))
        self._listing: Any = _ffi.new("pk_listing *")
        self._opened: Any = _ffi.new("pk_opened *")
        self._names: Any = b""
        self._kinds: Any = b""
        self._inodes: Any = b""

    @property
    def runs_in_poll(self) -> bool:
        return not self.pool.threads

    def submit_batch(self, batch: FileOperationBatch[Result]) -> BatchTicket[Result]:
        if isinstance(batch, PlanCopiesBatch):
            decided: Any = PlanCopiesResult(file_copy_plans(batch.policy, batch.sources, batch.targets))
            return FinishedBatchTicket(decided)
        if isinstance(batch, ListNamesBatch):
            listed: Any = self._list_names(batch)
            return FinishedBatchTicket(listed)
        if isinstance(batch, SyncDirectoriesBatch) and self.runs_in_poll:
            synced: Any = sync_directories(batch)
            return FinishedBatchTicket(synced)
        if not self._tickets:
            self.pool.apply_requested_thread_count()
        rows = self._native_batch(batch)
        rows.batch.at_once = self.pool.max_rows_modifying_directory(rows.batch.rows)
        fills_tally = bool(rows.batch.tree and rows.batch.tree.tally)
        if fills_tally and not self.runs_in_poll:
            rows.batch.tree.tally, fills_tally = _ffi.NULL, False  # no lock protects the tally
        ticket: NativeBatchTicket[Any] = NativeBatchTicket(self, batch, rows)
        if number := _lib.pk_submit(self.handle, rows.batch):
            ticket.mark_batch_done()
            raise MemoryError if number == errno.ENOMEM else ValueError("there is not one name for each row")
        self._tickets.append(ticket)
        if fills_tally:
            self.pool.can_start_threads = False
        return ticket

    def _native_batch(self, batch: FileOperationBatch[Any]) -> NativeBatch:
        """Return an object with the batch as a C structure, which has pointers to the batch's columns."""
        if isinstance(batch, FindItemsWithoutXattrsBatch):
            return NativeBatchWithoutFallback(self._settings, batch)
        # A job without directories, or without subtrees, loads no module for them.
        if batch.row_kind == "directory":
            from pcopy.fsio.backend.native_directories import native_directory_batch

            return native_directory_batch(self._settings, batch)
        if batch.row_kind == "subtree":
            from pcopy.fsio.backend.native_walk import native_walk_batch

            return native_walk_batch(batch)
        if batch.row_kind == "members of subtrees":
            from pcopy.fsio.backend.native_members import native_member_batch

            return native_member_batch(self._settings, batch)
        return native_batch(self._settings, batch, self._digest_size, has_digest=bool(self._algorithm))

    def open_directory(self, around: int, name: bytes, flags: int, wants_mark: bool) -> OpenedDirectory | None:
        opened = self._opened
        descriptor = _lib.pk_open_directory(around, name, flags, wants_mark, opened)
        if descriptor < 0:
            return None
        mark = _ffi.buffer(opened.mark)[1 : opened.mark[0] + 1] if opened.mark[0] else b""
        return descriptor, opened.device, opened.inode, mark

    def new_column_sums(self, bounds: Sequence[int]) -> NativeColumnSums:
        from pcopy.fsio.backend.native_tally import NativeColumnSums  # imported here because few tools need it

        return NativeColumnSums(bounds)

    def _list_names(self, batch: ListNamesBatch) -> ListNamesResult:
        """Carry out a ``ListNamesBatch`` immediately, and return its result: most directories take one system
        call.
        """
        listing = batch.listing_state or self._listing
        if batch.listing_state is None:
            listing.at = listing.end = listing.has_begun = listing.is_over = 0
        listed = ListNamesResult(BatchOutcomeColumns(1))
        if len(self._names) < batch.max_names * _MAX_NAME_BYTES:
            self._names = _ffi.new("char[]", batch.max_names * _MAX_NAME_BYTES)
            self._kinds, self._inodes = _ffi.new("uint8_t[]", batch.max_names), _ffi.new("uint64_t[]", batch.max_names)
        details = (self._kinds, self._inodes) if batch.is_detailed else (_ffi.NULL, _ffi.NULL)
        number = _lib.pk_list(batch.directory, listing, self._names, len(self._names), *details, batch.max_names)
        if number < 0:
            code = OutcomeCode.SOURCE_FAILED if batch.on_source else OutcomeCode.FAILED
            listed.verdicts.set_code_and_problem(0, code, listing_problem(-number))
            return listed
        listed.verdicts.codes[0] = OutcomeCode.DONE
        listed.name_count = number
        listed.names = _ffi.buffer(self._names, listing.used)[:]
        if batch.is_detailed:
            listed.kinds = _ffi.buffer(self._kinds, number)[:]
            listed.inodes = array("Q", _ffi.buffer(self._inodes, number * 8)[:])
        if not listing.is_over:
            if listing is self._listing:  # ``next_batch`` goes on with this structure: other listings need a new one
                self._listing = _ffi.new("pk_listing *")
            listed.next_batch = ListNamesBatch(
                batch.directory, batch.max_names, batch.is_detailed, batch.on_source, listing
            )
        return listed

    def poll(self) -> list[BatchTicket[Any]]:
        waiting = self._tickets
        if not waiting:
            return []
        _lib.pk_poll(self.handle, POLL_NANOSECONDS)
        try:
            for ticket in waiting:
                if not ticket.is_done:
                    ticket.advance_batch()
        finally:
            done: list[BatchTicket[Any]] = [ticket for ticket in waiting if ticket.is_done]
            waiting[:] = [ticket for ticket in waiting if not ticket.is_done]
            self.pool.can_start_threads = self.pool.can_start_threads or not waiting
        if not self.runs_in_poll and any(ticket.has_deferred_rows for ticket in waiting):
            self.wake.make_readable()  # deferred rows are processed in poll, and no C thread wakes the caller for them
        return done

    def classify_unknown_xattrs(self) -> None:
        """Pass to the C code how to treat those extended attributes that it has met but does not know. (It left files
        that have them to Python.)
        """
        while _lib.pk_unknown(self.handle, self._unknown_xattr):
            name = _ffi.string(self._unknown_xattr)
            _lib.pk_learn(self.handle, self._unknown_xattr, self._xattr_copy_method(name))

    def _xattr_copy_method(self, name: bytes) -> int:
        """Return how the C code has to treat the extended attribute ``name``: PK_KEEP (copy it), PK_LEAVE (ignore it),
        or 0 (leave files that have it to Python).
        """
        if name.startswith(_XATTR_PREFIXES_LEFT_TO_PYTHON):
            return 0
        text_name = os.fsdecode(name)
        if not is_xattr_copied(text_name, self._settings.preserve):
            return int(_lib.PK_LEAVE)
        return int(_lib.PK_KEEP) if xattr_kind(text_name) is XattrKind.ORDINARY else 0

    def close(self) -> None:
        for ticket in self._tickets:
            ticket.cancel()
        while self._tickets:
            self.poll()
            if not self.runs_in_poll and self._tickets:
                _wait_until_backend_is_ready(self.wake)
        self.pool.close()
        self.wake.close()  # last, because the threads write to this descriptor


def _wait_until_backend_is_ready(wake: EventWakeDescriptor) -> None:
    """Wait until ``wake`` is readable, so that the backend has something to do in ``poll``, but at most one second."""
    import select

    select.select([wake], [], [], 1)
    wake.clear()
