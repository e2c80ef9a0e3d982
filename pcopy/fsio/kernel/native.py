"""The C backend: processes common cases in C, and leaves all others, row by row, to the code of the Python backend.

The C code is in ``pcopy/fsio/kernel/native``; kernel.h is its interface. If a row is ``DEFERRED``, C has changed
nothing: the Python code for the same batch processes that row into the same result. So rare cases are implemented once.

Without threads (``pcopy.fsio.kernel.native_pool``), rows are processed in ``poll``.
"""

from __future__ import annotations

import errno
import os
from array import array
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Generic, TypeVar, cast

from pcopy.fsio.attribute_names import ACCESS_ACL, EACH_FILE_ON_LUSTRE, Kind, kind_of
from pcopy.fsio.attributes import is_copied
from pcopy.fsio.directories import Opened, Pins, listing_problem
from pcopy.fsio.kernel import _native
from pcopy.fsio.kernel.batches import Batch, List, Listed, SyncDirectories
from pcopy.fsio.kernel.columns import Code, Verdicts
from pcopy.fsio.kernel.decide import Decide, Decided, decide_rows
from pcopy.fsio.kernel.directory_batches import Bare, Look, Members
from pcopy.fsio.kernel.interface import Settings, Ticket
from pcopy.fsio.kernel.item_rows import sync_directories
from pcopy.fsio.kernel.native_batches import DEFERRED, InC, PlainInC, in_c
from pcopy.fsio.kernel.native_directories import directories_in_c
from pcopy.fsio.kernel.native_pool import NativePool
from pcopy.fsio.kernel.python import FILES_AT_ONCE, DoneTicket, Work

if TYPE_CHECKING:
    from pcopy.fsio.kernel.native_tally import NativeTally

_ffi, _lib = _native.ffi, _native.lib

NANOSECONDS_AT_ONCE = 2_000_000
"""Time for which one ``poll`` processes rows; then the rank looks for messages."""

_LONGEST_NAME = 256
"""Largest length of a name in bytes, including the slash that follows it."""

_FOR_PYTHON = (b"trusted.pcopy.", b"user.pcopy.", os.fsencode(ACCESS_ACL))
"""Prefixes of extended attributes that the C code leaves to Python: pcopy's own marks, and the access ACL, which
decides the mode of a copy that does not get it."""

Result = TypeVar("Result")


class EventWake:
    """A ``pcopy.fsio.kernel.interface.Wake`` that uses eventfd(2)."""

    def __init__(self) -> None:
        self._descriptor = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)

    def fileno(self) -> int:
        return self._descriptor

    def set(self) -> None:
        """Make the descriptor readable."""
        os.eventfd_write(self._descriptor, 1)

    def clear(self) -> None:
        try:
            os.eventfd_read(self._descriptor)
        except BlockingIOError:
            return

    def close(self) -> None:
        os.close(self._descriptor)


class NativeTicket(Generic[Result]):
    """The ticket of a batch that C processes first, and Python after that, for the rows that C has deferred."""

    def __init__(self, kernel: NativeKernel, batch: Batch[Any], rows: InC) -> None:
        self.is_done = False
        self.is_cut_short = False
        self._kernel = kernel
        self._descriptors = batch.descriptors
        self._rows = rows
        self._verdicts = rows.result.verdicts
        self._work: Work | None = None
        self._left: list[int] = []
        self._is_cancelled = False
        for descriptor in self._descriptors:
            kernel.pins.pin(descriptor)

    @property
    def result(self) -> Result:
        result: Any = self._rows.result
        return cast(Result, result)

    @property
    def is_in_python(self) -> bool:
        """True if the C code is done with the batch and deferred rows remain."""
        return not self.is_done and self._work is not None

    def advance(self) -> None:
        """Record the progress of the C code; once it is done, process some of the deferred rows."""
        if self._work is None:
            batch = self._rows.batch
            is_done = _lib.pk_is_done(batch)
            self._verdicts.moved = _lib.pk_moved(batch)  # read after pk_is_done, or the last rows might be missing
            if not is_done:
                return
            self._take_over(batch)
        rows, self._left = self._left[:FILES_AT_ONCE], self._left[FILES_AT_ONCE:]
        try:
            for row in rows:
                self._work.run(row, row + 1)  # type: ignore[union-attr]
        except BaseException:  # not an error of a row; for example, no memory
            self.cancel()
            raise
        if self._work is not None and self._work.is_full and Code.PENDING in self._verdicts.codes:
            self.cancel()
        elif not self._left:
            self.end()

    def _take_over(self, batch: Any) -> None:
        """Complete the result of the C code, and prepare the deferred rows.

        If it raises an exception, the state is unchanged and the next ``advance`` tries again.
        """
        codes = self._verdicts.codes
        self.is_cut_short = bool(batch.cancelled)
        if DEFERRED in codes:
            self._kernel.learn()
        self._rows.finish()
        if DEFERRED in codes:
            self.is_cut_short = self.is_cut_short or self._is_cancelled
            deferred = [row for row, code in enumerate(codes) if code == DEFERRED]
            if not self.is_cut_short:
                self._work = self._rows.careful()
                self._left = deferred
            for row in deferred:
                codes[row] = Code.CANCELLED if self.is_cut_short else Code.PENDING
        _lib.pk_release(batch)

    def cancel(self) -> None:
        """Start no further rows, neither in C nor in Python."""
        if self.is_done:
            return
        if self._work is None:
            self._is_cancelled = True
            _lib.pk_cancel(self._kernel.in_c, self._rows.batch)
            self.advance()
            return
        self.is_cut_short = True
        codes = self._verdicts.codes
        codes[:] = bytes(code or Code.CANCELLED for code in codes)
        self._left.clear()
        self.end()

    def end(self) -> None:
        """Mark the ticket as done and unpin its descriptors."""
        if not self.is_done:
            self.is_done = True
            for descriptor in self._descriptors:
                self._kernel.pins.unpin(descriptor)


class NativeKernel:
    """The C backend, an implementation of ``pcopy.fsio.kernel.interface.Kernel``."""

    name = "c"
    enters = True

    def __init__(self, settings: Settings) -> None:
        """Create the backend, without threads.

        Raise ``MemoryError``, or ``OSError`` if there is no descriptor for ``wake``.
        """
        self._settings = settings
        self._digest_size = len(settings.digest(b"")) if settings.digest is not None else 0
        self.pins = Pins()
        self.wake = EventWake()
        self._algorithm: int = _lib.pk_find_digest(settings.hash_name.encode()) if settings.hash_name else 0
        digest = _ffi.new("pk_digest *", (self._digest_size, self._algorithm, settings.block_size))
        self.in_c: Any = _lib.pk_open(self.wake.fileno(), digest[0])
        if self.in_c == _ffi.NULL:
            raise MemoryError
        self.pool = NativePool(self.in_c)
        self._waiting: list[NativeTicket[Any]] = []
        self._unknown = _ffi.new("char[256]")
        # Otherwise each of the first batches would meet one unknown attribute.
        for name in EACH_FILE_ON_LUSTRE:
            _lib.pk_learn(self.in_c, name, self._what_of(name))
        self._listing: Any = _ffi.new("pk_listing *")
        self._opened: Any = _ffi.new("pk_opened *")
        self._names: Any = b""
        self._kinds: Any = b""
        self._inodes: Any = b""

    @property
    def works_here(self) -> bool:
        return not self.pool.threads

    def submit(self, batch: Batch[Result]) -> Ticket[Result]:
        if isinstance(batch, Decide):
            decided: Any = Decided(decide_rows(batch.policy, batch.sources, batch.targets))
            return DoneTicket(decided)
        if isinstance(batch, List):
            listed: Any = self._list(batch)
            return DoneTicket(listed)
        if isinstance(batch, SyncDirectories) and self.works_here:
            synced: Any = sync_directories(batch)
            return DoneTicket(synced)
        if not self._waiting:
            self.pool.heed()
        rows = self._in_c(batch)
        rows.batch.at_once = self.pool.at_once(rows.batch.rows)
        fills_tally = isinstance(batch, Look) and batch.tally is not None
        if fills_tally and not self.works_here:
            rows.batch.tree.tally, fills_tally = _ffi.NULL, False  # no lock protects it against threads
        ticket: NativeTicket[Any] = NativeTicket(self, batch, rows)
        if number := _lib.pk_submit(self.in_c, rows.batch):
            ticket.end()
            raise MemoryError if number == errno.ENOMEM else ValueError("there is not one name for each row")
        self._waiting.append(ticket)
        if fills_tally:
            self.pool.may_begin = False
        return ticket

    def _in_c(self, batch: Batch[Any]) -> InC:
        """Return the batch, converted to pointers for the C code."""
        if isinstance(batch, (Bare, Members)):
            return PlainInC(self._settings, batch)
        rows = directories_in_c(self._settings, batch)
        return rows or in_c(self._settings, batch, self._digest_size, has_digest=bool(self._algorithm))

    def open_directory(self, around: int, name: bytes, flags: int, wants_mark: bool) -> Opened | None:
        opened = self._opened
        descriptor = _lib.pk_open_directory(around, name, flags, wants_mark, opened)
        if descriptor < 0:
            return None
        mark = _ffi.buffer(opened.mark)[1 : opened.mark[0] + 1] if opened.mark[0] else b""
        return descriptor, opened.device, opened.inode, mark

    def tally(self, bounds: Sequence[int]) -> NativeTally:
        from pcopy.fsio.kernel.native_tally import NativeTally  # imported here because few tools need it

        return NativeTally(bounds)

    def _list(self, batch: List) -> Listed:
        """Return the result of a ``List`` batch, which is carried out immediately: most directories take one system
        call."""
        listing = batch.going_on or self._listing
        if batch.going_on is None:
            listing.at = listing.end = listing.has_begun = listing.is_over = 0
        listed = Listed(Verdicts(1))
        if len(self._names) < batch.most * _LONGEST_NAME:
            self._names = _ffi.new("char[]", batch.most * _LONGEST_NAME)
            self._kinds, self._inodes = _ffi.new("uint8_t[]", batch.most), _ffi.new("uint64_t[]", batch.most)
        details = (self._kinds, self._inodes) if batch.detailed else (_ffi.NULL, _ffi.NULL)
        number = _lib.pk_list(batch.directory, listing, self._names, len(self._names), *details, batch.most)
        if number < 0:
            code = Code.UNREAD if batch.on_source else Code.FAILED
            listed.verdicts.set(0, code, listing_problem(-number))
            return listed
        listed.verdicts.codes[0] = Code.DONE
        listed.number = number
        listed.names = _ffi.buffer(self._names, listing.used)[:]
        if batch.detailed:
            listed.kinds = _ffi.buffer(self._kinds, number)[:]
            listed.inodes = array("Q", _ffi.buffer(self._inodes, number * 8)[:])
        if not listing.is_over:
            if listing is self._listing:  # ``rest`` continues with this structure, so other listings need a new one
                self._listing = _ffi.new("pk_listing *")
            listed.rest = List(batch.directory, batch.most, batch.detailed, batch.on_source, listing)
        return listed

    def poll(self) -> list[Ticket[Any]]:
        waiting = self._waiting
        if not waiting:
            return []
        _lib.pk_poll(self.in_c, NANOSECONDS_AT_ONCE)
        try:
            for ticket in waiting:
                if not ticket.is_done:
                    ticket.advance()
        finally:
            done: list[Ticket[Any]] = [ticket for ticket in waiting if ticket.is_done]
            waiting[:] = [ticket for ticket in waiting if not ticket.is_done]
            self.pool.may_begin = self.pool.may_begin or not waiting
        if not self.works_here and any(ticket.is_in_python for ticket in waiting):
            self.wake.set()  # deferred rows are processed in poll, and no C thread wakes the caller for them
        return done

    def learn(self) -> None:
        """Tell the C code how to treat the extended attributes that it has met and does not know."""
        while _lib.pk_unknown(self.in_c, self._unknown):
            name = _ffi.string(self._unknown)
            _lib.pk_learn(self.in_c, self._unknown, self._what_of(name))

    def _what_of(self, name: bytes) -> int:
        """Return how the C code has to treat an extended attribute: copy it, ignore it, or 0 to leave files with it to
        Python."""
        if name.startswith(_FOR_PYTHON):
            return 0
        text_name = os.fsdecode(name)
        if not is_copied(text_name, self._settings.preserve):
            return int(_lib.PK_LEAVE)
        return int(_lib.PK_KEEP) if kind_of(text_name) is Kind.OWN else 0

    def close(self) -> None:
        for ticket in self._waiting:
            ticket.cancel()
        while self._waiting:
            self.poll()
            if not self.works_here and self._waiting:
                _await(self.wake)
        self.pool.close()
        self.wake.close()  # last, because the threads write to this descriptor


def _await(wake: EventWake) -> None:
    """Wait for up to one second until the backend has something to do in ``poll``."""
    import select

    select.select([wake], [], [], 1)
    wake.clear()
